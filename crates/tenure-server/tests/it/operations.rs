//! Health, readiness, metrics, and the page.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::support::{Broker, config, store_in, until};

#[tokio::test]
async fn a_server_without_its_store_is_alive_and_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("store");
    let mut config = config(&store_in(&place));
    config.ttl = Duration::from_secs(2);
    let broker = Broker::started(config).await;
    broker.serving().await;
    assert_eq!(
        broker.get("/readyz").await,
        (200, json!({"status":"leader"}))
    );
    // Away, and in its place something that is no folder.
    std::fs::rename(&place, folder.path().join("away")).unwrap();
    std::fs::write(&place, "").unwrap();
    let reason = until(async || {
        let (status, answer) = broker.get("/readyz").await;
        (status == 503).then(|| answer["reason"].as_str().unwrap().to_owned())
    })
    .await;
    assert!(!reason.is_empty());
    assert_eq!(broker.get("/healthz").await, (200, json!({"status":"ok"})));
    let (status, answer) = broker.post("/v1/jobs", json!({"type":"t"})).await;
    assert!(status == 503, "{status} {answer}");
}

#[tokio::test]
async fn the_numbers_of_every_layer_are_published() {
    let broker = Broker::start().await;
    broker.submit("t").await;
    let claimed = broker.claim().await;
    let path = format!("/v1/jobs/{}/complete", claimed["id"].as_str().unwrap());
    broker
        .post(&path, json!({ "token": claimed["token"] }))
        .await;
    let response = broker
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let page = response.text().await.unwrap();
    for line in [
        "tenure_http_requests_total{route=\"/v1/jobs\",status=\"2xx\"} 1",
        "tenure_http_requests_total{route=\"/v1/jobs/{id}/complete\",status=\"2xx\"} 1",
        "tenure_election_leads{election=\"tenure.queue\"} 1.0",
        "tenure_queue_serving 1.0",
        "tenure_queue_jobs{queue=\"default\",state=\"completed\"} 1.0",
        "tenure_queue_submitted_total 1",
        "tenure_queue_completed_total 1",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    for name in [
        "tenure_http_request_seconds_bucket",
        "le=\"+Inf\",operation=\"put\",outcome=\"done\"",
        "tenure_heartbeat_seconds_count",
        "tenure_store_request_seconds_count",
        "tenure_queue_commits_total",
        "tenure_queue_commit_seconds_bucket",
        "tenure_queue_position",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_cpu_seconds",
        "# EOF",
    ] {
        assert!(page.contains(name), "{name} is not in\n{page}");
    }
}

#[tokio::test]
async fn the_page_allows_nothing_from_elsewhere() {
    let broker = Broker::start().await;
    let response = broker.request(Method::GET, "/").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let policy = response.headers()["content-security-policy"]
        .to_str()
        .unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    let page = response.text().await.unwrap();
    assert!(page.contains("assets/main.js"), "{page}");
}
