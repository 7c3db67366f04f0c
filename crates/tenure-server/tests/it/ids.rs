//! Ids that are also words in the interface's paths.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::support::{Broker, answered, problem};

/// `POST /v1/jobs/claim` is a call, and `GET /v1/jobs/claim` is a job, if there is one.
#[tokio::test]
async fn a_job_can_be_called_what_a_call_is_called() {
    let broker = Broker::start().await;
    for word in [
        "claim",
        "heartbeat",
        "complete",
        "fail",
        "release",
        "retry",
        "cancel",
    ] {
        let path = format!("/v1/jobs/{word}");
        let missing = broker.get(&path).await;
        problem(&missing, StatusCode::NOT_FOUND, "not_found", None);
        let job = json!({"type":"t","id":word});
        assert_eq!(broker.post("/v1/jobs", job).await.0, 201, "{word}");
        let (status, job) = broker.get(&path).await;
        assert_eq!((status, &job["id"]), (200, &json!(word)), "{job}");
        let claimed = broker.claim().await;
        let end = json!({ "token": claimed["token"] });
        let beat = broker.post(&format!("{path}/heartbeat"), end.clone()).await;
        assert_eq!(beat.0, 200, "{beat:?}");
        let failed = json!({ "token": claimed["token"], "permanent": true });
        let failed = broker.post(&format!("{path}/fail"), failed).await;
        assert_eq!(failed.0, 200, "{failed:?}");
        let again = broker.post(&format!("{path}/retry"), json!({})).await;
        assert_eq!((again.0, &again.1["state"]), (200, &json!("ready")));
        let end = json!({ "token": broker.claim().await["token"] });
        let done = broker.post(&format!("{path}/complete"), end).await;
        assert_eq!(done.0, 200, "{done:?}");
        let (_, job) = broker.get(&path).await;
        assert_eq!(job["state"], "completed", "{job}");
        let deleted = answered(broker.request(Method::DELETE, &path)).await;
        assert_eq!(deleted.0, 204, "{deleted:?}");
    }
    // The calls still work.
    let put = answered(broker.request(Method::PUT, "/v1/jobs/claim")).await;
    problem(
        &put,
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        None,
    );
}
