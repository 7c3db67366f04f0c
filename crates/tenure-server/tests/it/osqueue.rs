//! osqueue's calls, made like its client makes them.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_server::Tokens;

use crate::support::{Broker, answered, problem, until};

#[tokio::test]
async fn a_claim_of_the_empty_type_gets_jobs_without_one() {
    let broker = Broker::start().await;
    let typed = json!({"payload":1,"type":"other"});
    broker.post("/osqueue/v1/jobs", typed).await;
    let (_, untyped) = broker
        .post("/osqueue/v1/jobs", json!({"payload":2,"type":""}))
        .await;
    let claim = json!({"workerId":"w","types":[""]});
    let (status, claimed) = broker.post("/osqueue/v1/jobs/claim", claim.clone()).await;
    assert_eq!((status, &claimed["jobId"]), (200, &untyped["jobId"]));
    assert_eq!(
        broker.post("/osqueue/v1/jobs/claim", claim).await,
        (200, json!({}))
    );
}

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

#[tokio::test]
async fn what_was_completed_counts_for_ever_and_of_its_queue_only() {
    let broker = Broker::start().await;
    let retention = json!({"completed": {"count": 0}});
    let (status, answer) = answered(
        broker
            .request(Method::PATCH, "/v1/settings")
            .json(&retention),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    for _ in 0..3 {
        let (_, job) = broker.post("/osqueue/v1/jobs", json!({"payload":1})).await;
        let worker = json!({"workerId":"w"});
        broker.post("/osqueue/v1/jobs/claim", worker.clone()).await;
        let path = format!(
            "/osqueue/v1/jobs/{}/complete",
            job["jobId"].as_str().unwrap()
        );
        assert_eq!(broker.post(&path, worker).await.0, 204);
    }
    // Jobs of other queues are not counted, listed or claimed.
    let other = json!({"type":"x","queue":"other"});
    assert_eq!(broker.post("/v1/jobs", other).await.0, 201);
    let numbers = until(async || {
        let (_, stats) = broker.get("/v1/stats").await;
        let (_, numbers) = broker.get("/osqueue/v1/stats").await;
        (stats["counts"]["completed"] == 0).then_some(numbers)
    })
    .await;
    assert_eq!(
        (&numbers["total"], &numbers["completedTotal"]),
        (&json!(0), &json!(3))
    );
    let (_, list) = broker.get("/osqueue/v1/jobs").await;
    assert_eq!(
        (&list["jobs"], &list["truncated"]),
        (&json!([]), &json!(false))
    );
}

/// osqueue's clients have no paging: if jobs do not fit into a list, it says so.
#[tokio::test]
async fn a_list_that_is_not_whole_says_so() {
    let broker = Broker::start().await;
    for numbers in [0..1000, 1000..1001] {
        let jobs: Vec<_> = numbers.map(|n| json!({"type":"x","payload":n})).collect();
        let (status, answer) = broker.post("/v1/jobs", json!({ "jobs": jobs })).await;
        assert!(status < 300, "{status}: {answer}");
    }
    for path in ["/osqueue/v1/jobs", "/osqueue/state"] {
        let (_, list) = broker.get(path).await;
        let listed = list["jobs"].as_array().unwrap().len();
        assert_eq!((listed, &list["truncated"]), (1000, &json!(true)), "{path}");
    }
    let (_, stats) = broker.get("/osqueue/v1/stats").await;
    assert_eq!(stats["total"], 1001);
}

/// `untyped` is a type like any other.
#[tokio::test]
async fn a_type_called_untyped_is_kept() {
    let broker = Broker::start().await;
    for body in [json!({"payload":1}), json!({"payload":2,"type":"untyped"})] {
        assert_eq!(broker.post("/osqueue/v1/jobs", body).await.0, 200);
    }
    let claim = json!({"workerId":"w","types":["untyped"]});
    let (_, claimed) = broker.post("/osqueue/v1/jobs/claim", claim.clone()).await;
    assert_eq!(
        (&claimed["payload"], &claimed["type"]),
        (&json!(2), &json!("untyped"))
    );
    let (_, none) = broker.post("/osqueue/v1/jobs/claim", claim).await;
    assert_eq!(none, json!({}), "one without a type is not of that type");
}

/// Without ceilings nothing is throttled, but requests are still counted.
#[tokio::test]
async fn throttle_stats_count_what_the_store_was_asked() {
    let broker = Broker::start().await;
    let asked = async || broker.get("/osqueue/v1/throttle-stats").await.1;
    let before = asked().await;
    assert_eq!(
        (&before["throttling"], &before["dailyBudgetExceeded"]),
        (&json!(false), &json!(false))
    );
    broker.post("/osqueue/v1/jobs", json!({"payload":1})).await;
    let after = asked().await;
    assert!(
        after["totalWrites"].as_u64() > before["totalWrites"].as_u64(),
        "{before} {after}"
    );
}

#[tokio::test]
async fn whatever_refuses_a_call_says_so_in_osqueues_words() {
    let broker = Broker::start_with(|config| {
        config.tokens = Tokens::parse("worker wwwwwwwwwwwwwwww").unwrap();
    })
    .await;
    let is_tagged = |answer: &Value| answer["_tag"].is_string() && answer["message"].is_string();
    let (status, unknown) = broker.get("/osqueue/v1/stats").await;
    assert!(status == 401 && is_tagged(&unknown), "{unknown}");
    let (status, missing) = broker.get("/osqueue/v1/nothing").await;
    assert!(status == 404 && is_tagged(&missing), "{missing}");
    let (status, method) = broker.delete("/osqueue/v1/stats").await;
    assert!(status == 405 && is_tagged(&method), "{method}");
    // A standby that asks for a client gets the untranslated answer.
    let raw = broker
        .request(Method::GET, "/osqueue/v1/stats")
        .header("tenure-forwarded", "1");
    let (status, raw) = answered(raw).await;
    assert!(status == 401 && !is_tagged(&raw), "{raw}");
    let connect = broker
        .request(Method::POST, "/osqueue/osqueue.v1.QueueService/GetStats")
        .json(&json!({}));
    let (status, error) = answered(connect).await;
    assert_eq!((status, &error["code"]), (401, &json!("unauthenticated")));
}

#[tokio::test]
async fn connect_keeps_to_its_protocol() {
    let broker = Broker::start().await;
    let call = |name: &str| {
        let path = format!("/osqueue/osqueue.v1.QueueService/{name}");
        broker.request(Method::POST, &path)
    };
    let kind = "content-type";
    let (status, error) = answered(call("GetStats").header(kind, "text/plain").body("x")).await;
    assert_eq!((status, &error["code"]), (415, &json!("unknown")));
    let wrong = call("GetStats").header("connect-protocol-version", "2");
    let (status, error) = answered(wrong.json(&json!({}))).await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_argument")));
    let squeezed = call("GetStats").header("content-encoding", "gzip");
    let (status, error) = answered(squeezed.json(&json!({}))).await;
    assert_eq!((status, &error["code"]), (501, &json!("unimplemented")));
    let (status, error) = answered(
        call("GetStats")
            .header(kind, "application/proto")
            .body("\u{7}"),
    )
    .await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_argument")));
    // bnVsbA== is null, and bm8= is "no".
    let (status, answer) =
        answered(call("SubmitJob").json(&json!({"payload":"bnVsbA==","type":"t"}))).await;
    assert!(status == 200 && answer["jobId"].is_string(), "{answer}");
    let (status, error) = answered(call("SubmitJob").json(&json!({"payload":"bm8="}))).await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_argument")));
    let none = call("ClaimJob").header("connect-timeout-ms", "soon");
    let (status, error) = answered(none.json(&json!({"workerId":"w"}))).await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_argument")));
    let (status, answer) = answered(call("ClaimJob").json(&json!({"workerId":"w"}))).await;
    assert_eq!((status, &answer["payload"]), (200, &json!("bnVsbA==")));
    let (status, list) = answered(call("ListJobs").json(&json!({}))).await;
    assert_eq!(status, 200);
    assert!(
        list["jobs"][0]["heartbeat"].is_string(),
        "64 bits are text: {list}"
    );
    assert_eq!(
        broker
            .get("/osqueue/osqueue.v1.QueueService/GetStats")
            .await
            .0,
        405
    );
}
