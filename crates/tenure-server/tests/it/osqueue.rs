//! osqueue's calls as its client makes them.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Broker, problem};

#[tokio::test]
async fn a_client_and_a_worker_of_osqueue_find_what_they_expect() {
    let broker = Broker::start().await;
    assert_eq!(
        broker.get("/osqueue/healthz").await,
        (200, json!({"status":"ok"}))
    );
    let body = json!({"payload":{"to":"x"},"type":"email:send","maxAttempts":2});
    let (status, submitted) = broker.post("/osqueue/v1/jobs", body).await;
    assert_eq!(status, 200);
    let id = submitted["jobId"].as_str().unwrap().to_owned();

    let none = json!({"workerId":"w1","types":["other"]});
    assert_eq!(
        broker.post("/osqueue/v1/jobs/claim", none).await,
        (200, json!({}))
    );
    let claim = json!({"workerId":"w1","types":["email:send"]});
    let (status, claimed) = broker.post("/osqueue/v1/jobs/claim", claim).await;
    assert_eq!(
        (status, claimed),
        (
            200,
            json!({"jobId":id,"payload":{"to":"x"},"type":"email:send"})
        )
    );

    let (_, stats) = broker.get("/osqueue/v1/stats").await;
    let address = broker.handle.address().to_string();
    let expected =
        json!({"total":1,"unclaimed":0,"inProgress":1,"completedTotal":0,"brokerAddress":address});
    assert_eq!(stats, expected);
    let (_, list) = broker.get("/osqueue/v1/jobs").await;
    let job = &list["jobs"][0];
    assert_eq!(
        (&job["status"], &job["workerId"], &job["attempts"]),
        (&json!("in_progress"), &json!("w1"), &json!(1))
    );
    assert_eq!(
        (&list["total"], &job["maxAttempts"]),
        (&json!(1), &json!(2))
    );

    let path = format!("/osqueue/v1/jobs/{id}");
    let stranger = broker
        .post(&format!("{path}/complete"), json!({"workerId":"w2"}))
        .await;
    problem(&stranger, StatusCode::CONFLICT, "lost", None);
    assert!(
        stranger.1["_tag"].is_string() && stranger.1["message"].is_string(),
        "{}",
        stranger.1
    );
    let worker = json!({"workerId":"w1"});
    assert_eq!(
        broker
            .post(&format!("{path}/heartbeat"), worker.clone())
            .await,
        (204, Value::Null)
    );
    assert_eq!(
        broker
            .post(&format!("{path}/complete"), worker.clone())
            .await,
        (204, Value::Null)
    );
    assert_eq!(
        broker.post(&format!("{path}/complete"), worker).await.0,
        409
    );
    let (_, state) = broker.get("/osqueue/state").await;
    assert_eq!(
        (&state["jobs"], &state["completedTotal"]),
        (&json!([]), &json!(1))
    );
}

#[tokio::test]
async fn a_job_without_a_type_is_claimed_without_one() {
    let broker = Broker::start().await;
    let (_, submitted) = broker
        .post("/osqueue/v1/jobs", json!({"payload":[1]}))
        .await;
    let (_, claimed) = broker
        .post("/osqueue/v1/jobs/claim", json!({"workerId":"w"}))
        .await;
    assert_eq!(claimed, json!({"jobId":submitted["jobId"],"payload":[1]}));
    let (_, job) = broker
        .get(&format!(
            "/v1/jobs/{}",
            submitted["jobId"].as_str().unwrap()
        ))
        .await;
    assert_eq!(job["max_attempts"], 3, "as osqueue does");
}
