//! Two servers: any of them answers any call, and one takes over from the other.

use reqwest::{Method, StatusCode};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::events::Stream;
use crate::support::{Broker, PATIENCE, answered, config, problem, store_in, until};

/// A leader and a standby that knows it.
async fn pair() -> (TempDir, Broker, Broker) {
    let folder = tempfile::tempdir().unwrap();
    let start = async |name: &str| {
        let mut config = config(&store_in(folder.path()));
        config.node = Some(name.to_owned());
        Broker::started(config).await
    };
    let leader = start("one").await;
    leader.serving().await;
    let standby = start("two").await;
    ready(&standby, "standby").await;
    (folder, leader, standby)
}

async fn ready(broker: &Broker, role: &str) {
    until(async || (broker.get("/readyz").await == (200, json!({ "status": role }))).then_some(()))
        .await;
}

#[tokio::test]
async fn a_standby_answers_what_the_leader_does() {
    let (_folder, leader, standby) = pair().await;
    let job = json!({"id":"a","type":"t","payload":"x".repeat(100_000)});
    assert_eq!(standby.post("/v1/jobs", job.clone()).await.0, 201);
    assert_eq!(
        leader.post("/v1/jobs", job).await.1["jobs"][0]["status"],
        "duplicate"
    );
    let claimed = standby.claim().await;
    assert_eq!(claimed["payload"].as_str().unwrap().len(), 100_000);
    let done = json!({ "token": claimed["token"] });
    assert_eq!(standby.post("/v1/jobs/a/complete", done).await.0, 200);
    assert_eq!(leader.get("/v1/jobs/a").await.1["state"], "completed");
    let (_, stats) = standby.get("/v1/stats").await;
    assert_eq!(
        (&stats["node"], &stats["serving"]),
        (&json!("one"), &json!(true))
    );
    let mistake = standby.post("/v1/jobs", json!({"type":""})).await;
    problem(
        &mistake,
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_field",
        Some("type"),
    );
    let (_, cluster) = standby.get("/v1/cluster").await;
    assert_eq!(cluster["leader"]["node"], "one");
    assert_eq!(cluster["nodes"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn long_polls_and_events_pass_through_a_standby() {
    let (_folder, leader, standby) = pair().await;
    let response = standby
        .request(Method::GET, "/v1/events")
        .send()
        .await
        .unwrap();
    let mut events = Stream::of(response);
    let claim = json!({"worker":"w","wait_ms":60_000});
    let (claimed, id) = tokio::join!(standby.post("/v1/jobs/claim", claim), leader.submit("t"));
    assert_eq!(claimed.1["jobs"][0]["id"], *id);
    assert_eq!(events.next().await.unwrap().0, "submitted");
    assert_eq!(events.next().await.unwrap().0, "claimed");
}

#[tokio::test]
async fn a_call_is_forwarded_once_at_most() {
    let (_folder, _leader, standby) = pair().await;
    let request = standby
        .request(Method::GET, "/v1/jobs")
        .header("tenure-forwarded", "1");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["retry-after"], "1");
    let answer = (response.status().as_u16(), response.json().await.unwrap());
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
}

#[tokio::test]
async fn a_standby_takes_over_and_has_everything() {
    let (_folder, leader, standby) = pair().await;
    let waiting = standby
        .request(Method::POST, "/v1/jobs/claim")
        .json(&json!({"worker":"w","types":["never"],"wait_ms":60_000}));
    let waiting = tokio::spawn(answered(waiting));
    let id = standby.submit("t").await;
    timeout(PATIENCE, leader.handle.stop()).await.unwrap();
    // Its leader stopped: it got no job, or was told to ask again.
    let (status, answer) = waiting.await.unwrap();
    assert!(
        (status, &answer["jobs"]) == (200, &json!([])) || status == 503,
        "{status} {answer}"
    );
    timeout(PATIENCE, standby.serving()).await.unwrap();
    ready(&standby, "leader").await;
    assert_eq!(
        standby.get(&format!("/v1/jobs/{id}")).await.1["state"],
        "ready"
    );
    standby.submit("t").await;
    let (_, cluster) = standby.get("/v1/cluster").await;
    assert_eq!(
        (&cluster["leader"]["node"], &cluster["history"][0]["node"]),
        (&json!("two"), &json!("one"))
    );
}

#[tokio::test]
async fn a_worker_of_osqueue_goes_on_through_a_failover() {
    let (_folder, leader, standby) = pair().await;
    let job = json!({"payload":1,"type":"t"});
    let (_, submitted) = standby.post("/osqueue/v1/jobs", job).await;
    let worker = json!({"workerId":"w"});
    let (_, claimed) = leader.post("/osqueue/v1/jobs/claim", worker.clone()).await;
    assert_eq!(claimed["jobId"], submitted["jobId"]);
    timeout(PATIENCE, leader.handle.stop()).await.unwrap();
    timeout(PATIENCE, standby.serving()).await.unwrap();
    let path = format!("/osqueue/v1/jobs/{}", claimed["jobId"].as_str().unwrap());
    let heartbeat = standby
        .post(&format!("{path}/heartbeat"), worker.clone())
        .await;
    assert_eq!(heartbeat.0, 204);
    assert_eq!(
        standby.post(&format!("{path}/complete"), worker).await.0,
        204
    );
}

#[tokio::test]
async fn leadership_is_handed_over_by_a_call_to_any_server() {
    let (_folder, leader, standby) = pair().await;
    let (status, _) = standby.post("/v1/leader/resign", json!({})).await;
    assert_eq!(status, 202);
    timeout(PATIENCE, standby.serving()).await.unwrap();
    let id = standby.submit("t").await;
    // The old leader has heard of it, and forwards.
    let path = format!("/v1/jobs/{id}");
    until(async || (leader.get(&path).await.0 == 200).then_some(())).await;
    // Back at once: who resigned stands back for a while, but not from what is reserved for it.
    let transfer = json!({"node":"one"});
    let (status, _) = leader.post("/v1/leader/transfer", transfer).await;
    assert_eq!(status, 202);
    timeout(PATIENCE, leader.serving()).await.unwrap();
    assert_eq!(leader.get(&path).await.0, 200);
}

#[tokio::test]
async fn a_standby_whose_leader_cannot_be_reached_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody listens there: the port was free a moment ago and is not 0.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let mut first = config(&store_in(folder.path()));
    first.advertise = Some(nowhere);
    let leader = Broker::started(first).await;
    leader.serving().await;
    let standby = Broker::started(config(&store_in(folder.path()))).await;
    ready(&standby, "standby").await;
    let answer = standby.post("/v1/jobs", json!({"type":"t"})).await;
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_may_have_been_done() {
    let folder = tempfile::tempdir().unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut first = config(&store_in(folder.path()));
    first.advertise = Some(format!("http://{}", mute.local_addr().unwrap()));
    // Takes every call, and hangs up instead of answering.
    tokio::spawn(async move {
        while let Ok((mut call, _)) = mute.accept().await {
            let _ = call.read(&mut [0; 1024]).await;
        }
    });
    let leader = Broker::started(first).await;
    leader.serving().await;
    let standby = Broker::started(config(&store_in(folder.path()))).await;
    ready(&standby, "standby").await;
    let change = standby.post("/v1/jobs", json!({"type":"t"})).await;
    problem(
        &change,
        StatusCode::SERVICE_UNAVAILABLE,
        "unknown_outcome",
        None,
    );
    let look = standby.get("/v1/jobs/a").await;
    problem(&look, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
}
