//! The files for operators name what the server really publishes.

use std::collections::BTreeSet;
use std::path::Path;

use reqwest::Method;

use crate::support::Broker;

/// Every word of a file that is the name of a metric.
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
    let page = broker
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    for file in ["alerts.yml", "grafana-dashboard.json"] {
        let names = metrics(file);
        assert!(names.len() > 5, "{names:?}");
        for name in names {
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
