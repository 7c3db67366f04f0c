//! Claims that carry the ends of earlier ones.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Broker, answered, problem};

/// Submits this many jobs, and claims them all.
async fn claimed(broker: &Broker, jobs: usize) -> Vec<Value> {
    let batch: Vec<Value> = (0..jobs).map(|_| json!({"type":"t"})).collect();
    let (status, _) = broker.post("/v1/jobs", json!({ "jobs": batch })).await;
    assert_eq!(status, 201);
    let claim = json!({"worker":"w","max":jobs});
    let (_, answer) = broker.post("/v1/jobs/claim", claim).await;
    let claimed = answer["jobs"].as_array().unwrap().clone();
    assert_eq!(claimed.len(), jobs);
    claimed
}

fn held(job: &Value) -> Value {
    json!({"id": job["id"], "token": job["token"]})
}

async fn state(broker: &Broker, job: &Value) -> Value {
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    broker.get(&path).await.1["state"].clone()
}

#[tokio::test]
async fn each_end_is_answered_as_in_its_own_call() {
    // The same ends, once in a claim and once in separate calls.
    let mut told = Vec::new();
    for rides in [true, false] {
        let broker = Broker::start().await;
        let jobs = claimed(&broker, 7).await;
        let last = broker.submit("t").await;
        let mut large = held(&jobs[1]);
        large["result"] = json!("x".repeat(20_000));
        let mut odd = held(&jobs[2]);
        odd["error"] = json!("a completion has none");
        let mut stale = held(&jobs[4]);
        stale["token"] = json!("1-1");
        let mut late = held(&jobs[3]);
        late["retry_in_ms"] = json!(u64::MAX);
        let completed = json!([held(&jobs[0]), large, odd, 7, stale]);
        let failed = json!([late, held(&jobs[5])]);
        let released = json!([held(&jobs[6]), {"id":"nobody","token":"1-1"}]);
        let mut lists = if rides {
            let ends = json!({"completed":completed,"failed":failed,"released":released});
            // It does not wait, although only the release provides a job.
            let claim = json!({"worker":"w","max":9,"wait_ms":60_000,"ends":ends});
            let (status, answer) = broker.post("/v1/jobs/claim", claim).await;
            assert_eq!(status, 200, "{answer}");
            let ids: Vec<&Value> = answer["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|job| &job["id"])
                .collect();
            assert_eq!(ids, [&jobs[6]["id"], &json!(last)], "{answer}");
            answer["ends"].clone()
        } else {
            let mut lists = json!({});
            for (list, call, claims) in [
                ("completed", "complete", completed),
                ("failed", "fail", failed),
                ("released", "release", released),
            ] {
                let path = format!("/v1/jobs/{call}");
                let (status, answer) = broker.post(&path, json!({ "claims": claims })).await;
                assert_eq!(status, 200, "{answer}");
                lists[list] = answer["claims"].clone();
            }
            lists
        };
        for (job, expected) in [
            (0, "completed"),
            (1, "running"),
            (2, "running"),
            (4, "running"),
            (5, "scheduled"),
        ] {
            assert_eq!(state(&broker, &jobs[job]).await, expected, "{job}");
        }
        // The jobs have other names, and the fields are elsewhere.
        for list in ["completed", "failed", "released"] {
            for (place, outcome) in lists[list].as_array_mut().unwrap().iter_mut().enumerate() {
                outcome["id"] = jobs
                    .iter()
                    .position(|job| job["id"] == outcome["id"])
                    .into();
                if let Some(field) = outcome["problem"]["field"].as_str() {
                    let outer = if rides {
                        format!("ends.{list}[{place}]")
                    } else {
                        format!("claims[{place}]")
                    };
                    let inner = field
                        .strip_prefix(&outer)
                        .unwrap_or_else(|| panic!("{field}"));
                    outcome["problem"]["field"] = json!(inner);
                }
            }
        }
        told.push(lists);
    }
    assert_eq!(told[0], told[1]);
    let statuses = |list: &str| -> Vec<&str> {
        let outcomes = told[0][list].as_array().unwrap().iter();
        outcomes
            .map(|outcome| outcome["status"].as_str().unwrap())
            .collect()
    };
    assert_eq!(
        statuses("completed"),
        ["ok", "invalid", "invalid", "invalid", "lost"]
    );
    assert_eq!(statuses("failed"), ["invalid", "ok"]);
    assert_eq!(statuses("released"), ["ok", "lost"]);
}

#[tokio::test]
async fn ends_and_claim_are_one_commit_and_can_be_sent_again() {
    let broker = Broker::start().await;
    let jobs = claimed(&broker, 2).await;
    // The second of a group can be claimed when the first has ended.
    for id in ["g1", "g2"] {
        let job = json!({"id":id,"type":"t","group":"g"});
        assert_eq!(broker.post("/v1/jobs", job).await.0, 201);
    }
    let first = broker.claim().await;
    assert_eq!(first["id"], "g1");
    let before = broker.handle.queue().statistics().unwrap();
    let ends = json!({"completed":[held(&first), held(&jobs[0])],"failed":[held(&jobs[1])]});
    let claim = json!({"worker":"w","max":5,"ends":ends});
    let send = async || {
        let request = broker.request(Method::POST, "/v1/jobs/claim");
        answered(request.header("idempotency-key", "k").json(&claim)).await
    };
    let (status, answer) = send().await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["jobs"][0]["id"], "g2", "{answer}");
    let after = broker.handle.queue().statistics().unwrap();
    assert_eq!(
        (
            after.commits - before.commits,
            after.records - before.records
        ),
        (1, 3)
    );
    for _ in 0..2 {
        assert_eq!(send().await, (200, answer.clone()));
    }
    let (_, second) = broker.get("/v1/jobs/g2").await;
    assert_eq!(second["attempt"], 1, "{second}");
    // With empty ends, it is an ordinary claim.
    let plain = json!({"worker":"w","ends":{}});
    let (status, answer) = broker.post("/v1/jobs/claim", plain).await;
    assert_eq!((status, answer), (200, json!({"jobs":[]})));
}

#[tokio::test]
async fn too_many_ends_and_bad_claims_are_refused_and_nothing_is_done() {
    let broker = Broker::start().await;
    let jobs = claimed(&broker, 1).await;
    broker.submit("t").await;
    let one = held(&jobs[0]);
    let many: Vec<&Value> = (0..600).map(|_| &one).collect();
    let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
    for (claim, code, field) in [
        (
            json!({"worker":"w","ends":{"completed":many,"failed":many}}),
            "invalid_field",
            "ends",
        ),
        (
            json!({"worker":"w","max":0,"ends":{"completed":[one]}}),
            "invalid_field",
            "max",
        ),
        (
            json!({"worker":"w","ends":{"completed":[one],"done":[]}}),
            "unknown_field",
            "ends.done",
        ),
        (
            json!({"worker":"w","ends":{"completed":one}}),
            "invalid_field",
            "ends.completed",
        ),
    ] {
        let answer = broker.post("/v1/jobs/claim", claim).await;
        problem(&answer, unprocessable, code, Some(field));
    }
    assert_eq!(state(&broker, &jobs[0]).await, "running");
    let (_, stats) = broker.get("/v1/stats").await;
    assert_eq!(stats["counts"]["running"], 1, "{stats}");
}
