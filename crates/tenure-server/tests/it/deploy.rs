//! The files for operators name metrics that the server really publishes.

use std::collections::BTreeSet;
use std::path::Path;

use reqwest::Method;

use crate::support::{Broker, until};

/// Every word in a file that looks like a metric's name.
fn metrics(file: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let words = text.split(|each: char| !each.is_ascii_alphanumeric() && each != '_');
    words
        .filter(|word| word.starts_with("tenure_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn alerts_and_dashboard_name_only_what_is_published() {
    let broker = Broker::start().await;
    broker.submit("send").await;
    // The follower of the queue has seen the claim once the page shows it.
    let job = broker.claim().await;
    let path = format!("/v1/jobs/{}/complete", job["id"].as_str().unwrap());
    let done = broker.post(&path, serde_json::json!({"token": job["token"]}));
    assert_eq!(done.await.0, 200);
    let history = format!("/v1/dashboard/jobs/{}/history", job["id"].as_str().unwrap());
    until(async || {
        let (_, history) = broker.get(&history).await;
        let entries = history["entries"].as_array()?;
        (entries.last()?["event"] == "completed").then_some(())
    })
    .await;
    let page = broker
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    for file in ["alerts.yml", "grafana-dashboard.json"] {
        let names = metrics(file);
        assert!(names.len() > 5, "{names:?}");
        // An outbox's metrics appear only with an outbox: the command line's tests check them.
        let own = |name: &String| !name.starts_with("tenure_outbox_");
        for name in names.into_iter().filter(own) {
            let found = page.lines().any(|line| {
                let rest = line.strip_prefix(&name);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            assert!(found, "{file} asks for {name}, which is not in\n{page}");
        }
    }
    broker.handle.stop().await;
}

#[test]
fn the_dashboard_is_json() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/grafana-dashboard.json");
    let text = std::fs::read_to_string(file).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}

#[test]
fn the_placeholder_tokens_of_the_manifest_start_no_broker() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map(str::trim);
    let placeholders: Vec<_> = lines
        .filter(|line| {
            !line.starts_with('#') && line.contains("CHANGE-ME") && !line.contains("://")
        })
        .collect();
    assert_eq!(placeholders.len(), 3, "{placeholders:?}");
    for line in placeholders {
        let error = tenure_server::Tokens::parse(line).unwrap_err();
        assert!(error.to_string().contains("16 to 512"), "{error}");
    }
}
