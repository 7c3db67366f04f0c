//! Queues, schedules, settings.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Broker, problem};

#[tokio::test]
async fn a_queue_is_paused_limited_and_resumed() {
    let broker = Broker::start().await;
    problem(
        &broker.get("/v1/queues/mail").await,
        StatusCode::NOT_FOUND,
        "not_found",
        Some("queue"),
    );
    let jobs = json!({"jobs":[{"type":"t","queue":"mail"},{"type":"t","queue":"mail"}]});
    broker.post("/v1/jobs", jobs).await;
    let (status, queue) = broker.post("/v1/queues/mail/pause", json!({})).await;
    assert_eq!((status, &queue["paused"]), (200, &json!(true)));
    assert_eq!(broker.claim().await, Value::Null);
    let (status, queue) = broker
        .put("/v1/queues/mail", json!({"concurrency":1}))
        .await;
    assert_eq!(
        (status, &queue["options"]),
        (200, &json!({"concurrency":1}))
    );
    let (_, queue) = broker.post("/v1/queues/mail/resume", json!({})).await;
    assert_eq!(
        (&queue["paused"], &queue["counts"]["ready"]),
        (&json!(false), &json!(2))
    );
    assert!(queue["oldest_ready_at"].is_u64(), "{queue}");
    assert_ne!(broker.claim().await, Value::Null);
    assert_eq!(broker.claim().await, Value::Null, "one at a time");
    let (_, queues) = broker.get("/v1/queues").await;
    assert_eq!(queues["queues"].as_array().unwrap().len(), 1);
    let (_, one) = broker.get("/v1/queues/mail").await;
    assert_eq!(one["counts"]["running"], 1);
    let (status, fresh) = broker.post("/v1/queues/new/resume", json!({})).await;
    assert_eq!((status, &fresh["name"]), (200, &json!("new")));
}

#[tokio::test]
async fn a_schedule_is_set_shown_and_deleted() {
    let broker = Broker::start().await;
    let spec = json!({"cron":"0 3 * * *","timezone":"Europe/Berlin","job":{"type":"backup"}});
    let (status, schedule) = broker.put("/v1/schedules/nightly", spec).await;
    assert_eq!(status, 200, "{schedule}");
    assert_eq!(
        (&schedule["name"], &schedule["missed"]),
        (&json!("nightly"), &json!("once"))
    );
    assert!(
        schedule["next_at"].is_u64() && schedule["last_at"].is_null(),
        "{schedule}"
    );
    assert_eq!(
        broker.get("/v1/schedules/nightly").await,
        (200, schedule.clone())
    );
    let (_, all) = broker.get("/v1/schedules").await;
    assert_eq!(all["schedules"], json!([schedule]));
    assert_eq!(broker.delete("/v1/schedules/nightly").await.0, 204);
    let gone = broker.delete("/v1/schedules/nightly").await;
    problem(&gone, StatusCode::NOT_FOUND, "not_found", Some("name"));
}

#[tokio::test]
async fn a_schedule_fires_jobs() {
    let broker = Broker::start().await;
    let spec = json!({"cron":"* * * * * *","job":{"type":"tick"}});
    assert_eq!(broker.put("/v1/schedules/seconds", spec).await.0, 200);
    let claim = json!({"worker":"w","types":["tick"],"wait_ms":60_000});
    let (_, claimed) = broker.post("/v1/jobs/claim", claim).await;
    let id = claimed["jobs"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("schedule:seconds@"), "{id}");
}

#[tokio::test]
async fn settings_are_set_and_shown() {
    let broker = Broker::start().await;
    let (_, settings) = broker.get("/v1/settings").await;
    assert_eq!(settings["jobs_max"], 10_000_000);
    let new = json!({"completed":{"count":5},"jobs_max":100});
    let (status, settings) = broker.put("/v1/settings", new).await;
    assert_eq!((status, &settings["completed"]), (200, &json!({"count":5})));
    assert_eq!(broker.get("/v1/settings").await.1, settings);
    let none = broker.put("/v1/settings", json!({"jobs_max":0})).await;
    problem(
        &none,
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_field",
        Some("jobs_max"),
    );
}
