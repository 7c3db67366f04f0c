//! Jobs from end to end.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Broker, PATIENCE, answered, problem, until};

#[tokio::test]
async fn a_page_ends_at_a_few_mebibytes_and_says_where_to_go_on() {
    let broker = Broker::start().await;
    let large = json!({"type":"t","payload":"x".repeat(250_000)});
    let jobs: Vec<Value> = (0..4).map(|_| large.clone()).collect();
    for _ in 0..10 {
        let (status, _) = broker.post("/v1/jobs", json!({ "jobs": jobs })).await;
        assert_eq!(status, 201);
    }
    for query in [
        "limit=1000",
        "limit=1000&search=default",
        "limit=1000&order=newest",
    ] {
        let name = if query.ends_with("newest") {
            "before"
        } else {
            "after"
        };
        let mut from = String::new();
        let mut ids = std::collections::BTreeSet::new();
        loop {
            let request = broker.request(Method::GET, &format!("/v1/jobs?{query}{from}"));
            let text = request.send().await.unwrap().text().await.unwrap();
            assert!(text.len() < 5 << 20, "{} bytes", text.len());
            let page: Value = serde_json::from_str(&text).unwrap();
            for job in page["jobs"].as_array().unwrap() {
                assert!(ids.insert(job["id"].to_string()));
            }
            match page["next"].as_u64() {
                Some(next) => from = format!("&{name}={next}"),
                None => break,
            }
        }
        assert_eq!(ids.len(), 40, "{query}");
    }
    // Lines of a table have no payload, and the table is as long as was asked for.
    let (_, table) = broker.get("/v1/dashboard/jobs?limit=30").await;
    assert_eq!(table["jobs"].as_array().unwrap().len(), 30);
    for path in ["/osqueue/v1/jobs", "/osqueue/state"] {
        let (_, list) = broker.get(path).await;
        assert_eq!(list["jobs"].as_array().unwrap().len(), 16, "{path}");
    }
    // Many can be listed at once, however large they are.
    let retry = json!({"state":"scheduled","limit":1000});
    let jobs: Vec<Value> = (0..4)
        .map(|_| json!({"type":"t","payload":"x".repeat(250_000),"delay_ms":3_600_000}))
        .collect();
    for _ in 0..6 {
        broker.post("/v1/jobs", json!({ "jobs": jobs })).await;
    }
    let (_, retried) = broker.post("/v1/jobs/retry", retry).await;
    assert_eq!(retried["jobs"].as_array().unwrap().len(), 24);
}

#[tokio::test]
async fn a_job_goes_from_submit_to_completed() {
    let broker = Broker::start().await;
    let job = json!({ "id": "a", "type": "mail", "payload": { "to": "x", "n": 1.0 } });
    let (status, answer) = broker.post("/v1/jobs", job.clone()).await;
    assert_eq!(
        (status, answer),
        (201, json!({"jobs":[{"id":"a","status":"created"}]}))
    );
    let (status, answer) = broker.post("/v1/jobs", job).await;
    assert_eq!(
        (status, answer),
        (200, json!({"jobs":[{"id":"a","status":"duplicate"}]}))
    );

    let claimed = broker.claim().await;
    assert_eq!(claimed["id"], "a");
    assert_eq!(claimed["payload"].to_string(), r#"{"n":1.0,"to":"x"}"#);
    assert_eq!(
        (&claimed["attempt"], &claimed["lease_ms"]),
        (&json!(1), &json!(30_000))
    );
    let token = &claimed["token"];

    let beat = json!({ "token": token, "progress": { "percent": 50 } });
    let (status, answer) = broker.post("/v1/jobs/a/heartbeat", beat).await;
    assert_eq!((status, answer), (200, json!({"id":"a","status":"ok"})));
    let (_, job) = broker.get("/v1/jobs/a").await;
    assert_eq!(
        (&job["state"], &job["progress"]),
        (&json!("running"), &json!({"percent":50}))
    );

    let done = json!({ "token": token, "result": [1, 2] });
    let (status, answer) = broker.post("/v1/jobs/a/complete", done.clone()).await;
    assert_eq!((status, answer), (200, json!({"id":"a","status":"ok"})));
    let (_, job) = broker.get("/v1/jobs/a").await;
    assert_eq!(
        (&job["state"], &job["result"]),
        (&json!("completed"), &json!([1, 2]))
    );

    // A repeat is answered as before; with another result it is a different end.
    let again = broker.post("/v1/jobs/a/complete", done).await;
    assert_eq!(again, (200, json!({"id":"a","status":"ok"})));
    let other = json!({ "token": token, "result": [3] });
    let again = broker.post("/v1/jobs/a/complete", other).await;
    problem(&again, StatusCode::CONFLICT, "lost", None);
    assert_eq!(
        again.1["reason"],
        json!({"code":"ended","ended_as":"completed"})
    );
}

#[tokio::test]
async fn the_callers_trace_goes_with_its_jobs() {
    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const OWN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let broker = Broker::start().await;
    let submit = async |traceparent: &str, jobs: Value| {
        let request = broker.request(Method::POST, "/v1/jobs").json(&jobs);
        let request = request.header("traceparent", traceparent);
        answered(request.header("tracestate", "x=1")).await.0
    };
    let jobs =
        json!({"jobs": [{"id": "a", "type": "t"}, {"id": "b", "type": "t", "traceparent": OWN}]});
    assert_eq!(submit(CALLER, jobs).await, 201);
    let job = json!({"id": "c", "type": "t"});
    assert_eq!(submit("00-0-0-malformed", job).await, 201);
    for (id, parent, state) in [
        ("a", json!(CALLER), json!("x=1")),
        ("b", json!(OWN), Value::Null),
        ("c", Value::Null, Value::Null),
    ] {
        let (_, job) = broker.get(&format!("/v1/jobs/{id}")).await;
        let claimed = broker.claim().await;
        for shown in [job, claimed] {
            assert_eq!(shown["id"], id);
            assert_eq!(
                (&shown["traceparent"], &shown["tracestate"]),
                (&parent, &state)
            );
        }
    }
    // The trace in a job is checked like other fields.
    let wrong = json!({"type": "t", "traceparent": CALLER.to_uppercase()});
    let answer = broker.post("/v1/jobs", wrong).await;
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    problem(&answer, status, "invalid_field", Some("traceparent"));
}

#[tokio::test]
async fn jobs_are_found_by_their_words() {
    let broker = Broker::start().await;
    for batch in 0..50 {
        let jobs: Vec<Value> = (0..1_000)
            .map(|number| json!({"id": format!("job-{}", batch * 1_000 + number), "type": "t", "payload": "hay"}))
            .collect();
        assert_eq!(
            broker.post("/v1/jobs", json!({ "jobs": jobs })).await.0,
            201
        );
    }
    let needle = json!({"id": "found", "type": "t", "queue": "q", "payload": {"text": "a Needle"}});
    assert_eq!(broker.post("/v1/jobs", needle).await.0, 201);
    let (_, latest) = broker.get("/v1/jobs?search=NEEDLE&order=newest").await;
    assert_eq!(latest["jobs"][0]["id"], "found");
    // From the other end, one request cannot search everything: it returns where to continue.
    let (_, first) = broker.get("/v1/jobs?search=needle").await;
    assert_eq!(first["jobs"], json!([]));
    let next = first["next"].as_u64().unwrap();
    assert_eq!(next, 40_000);
    let path = format!("/v1/jobs?search=needle&after={next}");
    let (_, second) = broker.get(&path).await;
    assert_eq!(second["jobs"][0]["id"], "found");
    assert_eq!(second["next"], Value::Null);
    let (_, filtered) = broker.get("/v1/jobs?search=needle&queue=q").await;
    assert_eq!(filtered["jobs"][0]["id"], "found");
    let (_, some) = broker.get("/v1/jobs?search=job-123&limit=2").await;
    assert_eq!(some["jobs"][1]["id"], "job-1230");
    for (search, status) in [
        ("", StatusCode::UNPROCESSABLE_ENTITY),
        (&"x".repeat(201), StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let answer = broker.get(&format!("/v1/jobs?search={search}")).await;
        problem(&answer, status, "invalid_field", Some("search"));
    }
}

#[tokio::test]
async fn the_payload_is_kept_word_for_word() {
    let broker = Broker::start().await;
    let body = r#"{"type":"t","payload":{"b": 1.50, "a":[ 1e3 ], "s":"\u00e9"}}"#;
    let request = broker
        .request(Method::POST, "/v1/jobs")
        .header("content-type", "application/json; charset=utf-8")
        .body(body);
    assert_eq!(answered(request).await.0, 201);
    let request = broker
        .request(Method::POST, "/v1/jobs/claim")
        .json(&json!({"worker":"w"}));
    let text = request.send().await.unwrap().text().await.unwrap();
    assert!(
        text.contains(r#"{"b": 1.50, "a":[ 1e3 ], "s":"\u00e9"}"#),
        "{text}"
    );
}

#[tokio::test]
async fn each_item_of_a_batch_has_its_own_answer() {
    let broker = Broker::start().await;
    let (status, _) = broker.post("/v1/jobs", json!({"id":"a","type":"t"})).await;
    assert_eq!(status, 201);
    let batch = json!({"jobs":[
        {"id":"a","type":"t"},
        {"id":"a","type":"other"},
        {"id":"b","type":"t","unique_key":"k"},
        {"id":"c","type":"t","unique_key":"k"},
    ]});
    let (status, answer) = broker.post("/v1/jobs", batch.clone()).await;
    assert_eq!(status, 201);
    assert_eq!(
        answer["jobs"],
        json!([
            {"id":"a","status":"duplicate"},
            {"id":"a","status":"conflict"},
            {"id":"b","status":"created"},
            {"id":"c","status":"duplicate","existing":"b"},
        ])
    );
    assert_eq!(broker.post("/v1/jobs", batch).await.0, 200, "nothing new");
    let single = broker
        .post("/v1/jobs", json!({"id":"a","type":"other"}))
        .await;
    problem(&single, StatusCode::CONFLICT, "conflict", Some("id"));

    let claim = json!({"worker":"w","max":10});
    let (_, claimed) = broker.post("/v1/jobs/claim", claim).await;
    let jobs = claimed["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2);
    let claims = json!({"claims":[
        {"id":"a","token":jobs[0]["token"]},
        {"id":"b","token":"1-00000000"},
        {"id":"nobody","token":"1-00000000"},
    ]});
    let expected = json!([
        {"id":"a","status":"ok"},
        {"id":"b","status":"lost","reason":{"code":"superseded","attempt":1}},
        {"id":"nobody","status":"lost","reason":{"code":"not_found"}},
    ]);
    for call in ["heartbeat", "complete"] {
        let (status, answer) = broker
            .post(&format!("/v1/jobs/{call}"), claims.clone())
            .await;
        assert_eq!((status, &answer["claims"]), (200, &expected), "{call}");
    }
    let fail =
        json!({"claims":[{"id":"b","token":jobs[1]["token"],"error":"no","permanent":true}]});
    let (_, answer) = broker.post("/v1/jobs/fail", fail).await;
    assert_eq!(answer["claims"], json!([{"id":"b","status":"ok"}]));
    let (_, job) = broker.get("/v1/jobs/b").await;
    assert_eq!(
        (&job["state"], &job["error"]),
        (&json!("dead"), &json!("no"))
    );
}

/// Three claimed jobs, and their claims as items of a batch.
async fn held(broker: &Broker, named: &str, lease_ms: u32) -> [Value; 3] {
    let ids = ["a", "b", "c"].map(|id| format!("{named}-{id}"));
    let jobs = ids
        .each_ref()
        .map(|id| json!({"id": id, "type": "t", "queue": named}));
    let (status, _) = broker.post("/v1/jobs", json!({ "jobs": jobs })).await;
    assert_eq!(status, 201);
    let claim = json!({"worker": "w", "queues": [named], "max": 3, "lease_ms": lease_ms});
    let (_, claimed) = broker.post("/v1/jobs/claim", claim).await;
    let jobs = claimed["jobs"].as_array().unwrap();
    std::array::from_fn(|place| json!({"id": ids[place], "token": jobs[place]["token"]}))
}

fn with(item: &Value, field: &str, value: Value) -> Value {
    let mut item = item.clone();
    item[field] = value;
    item
}

/// The answer for each item: its id, its status, and the field that is wrong.
async fn said(broker: &Broker, call: &str, items: &[Value]) -> Value {
    let path = format!("/v1/jobs/{call}");
    let (status, answer) = broker.post(&path, json!({ "claims": items })).await;
    assert_eq!(status, 200, "{call}: {answer}");
    let claims = answer["claims"].as_array().unwrap();
    let said = claims
        .iter()
        .map(|each| json!([each["id"], each["status"], each["problem"]["field"]]));
    said.collect()
}

#[tokio::test]
async fn progress_that_cannot_be_shown_costs_no_claim() {
    let broker = Broker::start().await;
    let [a, b, c] = held(&broker, "q", 5_000).await;
    let large = json!("x".repeat(17 * 1024));
    let expected = json!([
        ["q-a", "ok", null],
        ["q-b", "ok", "claims[1].progress"],
        ["q-c", "ok", null],
    ]);
    // Together longer than the lease.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let beats = [
            with(&a, "progress", json!(1)),
            with(&b, "progress", large.clone()),
            c.clone(),
        ];
        assert_eq!(said(&broker, "heartbeat", &beats).await, expected);
    }
    let beats = json!({ "claims": [with(&b, "progress", large.clone())] });
    let (_, answer) = broker.post("/v1/jobs/heartbeat", beats).await;
    let hint = answer["claims"][0]["problem"]["hint"].as_str().unwrap();
    assert!(hint.contains("only the progress was left out"), "{hint}");
    let (_, job) = broker.get("/v1/jobs/q-a").await;
    assert_eq!(job["progress"], 1);
    let (_, job) = broker.get("/v1/jobs/q-b").await;
    let seen = (&job["state"], &job["progress"]);
    assert_eq!(seen, (&json!("running"), &Value::Null));
    // A single one is refused at once, and nothing is done.
    let single = json!({"token": b["token"], "progress": large});
    let answer = broker.post("/v1/jobs/q-b/heartbeat", single).await;
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    problem(&answer, status, "invalid_field", Some("progress"));
}

#[tokio::test]
async fn one_bad_item_keeps_no_other_from_being_done() {
    let broker = Broker::start().await;
    for (call, state) in [
        ("heartbeat", "running"),
        ("release", "ready"),
        ("fail", "scheduled"),
        ("complete", "completed"),
    ] {
        let [a, b, c] = held(&broker, call, 60_000).await;
        let items = [
            a.clone(),
            with(&b, "token", json!("x")),
            with(&b, "nobody", json!(1)),
            with(&b, "id", json!("a b")),
            json!(7),
            json!(["a"]),
            c.clone(),
        ];
        let expected = json!([
            [a["id"], "ok", null],
            [b["id"], "invalid", "claims[1].token"],
            [b["id"], "invalid", "claims[2].nobody"],
            [null, "invalid", "claims[3].id"],
            [null, "invalid", "claims[4]"],
            [null, "invalid", "claims[5]"],
            [c["id"], "ok", null],
        ]);
        assert_eq!(said(&broker, call, &items).await, expected, "{call}");
        for (item, state) in [(&a, state), (&b, "running"), (&c, state)] {
            let path = format!("/v1/jobs/{}", item["id"].as_str().unwrap());
            let (_, job) = broker.get(&path).await;
            assert_eq!(job["state"], state, "{path} after {call}");
        }
        // The unaffected claim can still be ended.
        let rest = said(&broker, "complete", std::slice::from_ref(&b)).await;
        assert_eq!(rest, json!([[b["id"], "ok", null]]), "{call}");
    }
    // Values that are well formed but too large.
    let [a, b, c] = held(&broker, "q", 60_000).await;
    let results = [
        with(&a, "result", json!("x".repeat(17 * 1024))),
        with(&b, "result", json!(2)),
    ];
    assert_eq!(
        said(&broker, "complete", &results).await,
        json!([["q-a", "invalid", "claims[0].result"], ["q-b", "ok", null]])
    );
    let failures = [
        with(&c, "retry_in_ms", json!(u64::MAX)),
        with(&a, "error", json!("no")),
    ];
    assert_eq!(
        said(&broker, "fail", &failures).await,
        json!([
            ["q-c", "invalid", "claims[0].retry_in_ms"],
            ["q-a", "ok", null]
        ])
    );
    // A list of only such items is answered as well.
    assert_eq!(
        said(&broker, "release", &[json!({})]).await,
        json!([[null, "invalid", "claims[0].id"]])
    );
    let (_, job) = broker.get("/v1/jobs/q-c").await;
    assert_eq!(job["state"], "running");
}

#[tokio::test]
async fn a_batch_with_a_wrong_job_is_refused_as_a_whole() {
    let broker = Broker::start().await;
    let jobs =
        json!({"jobs": [{"id": "a", "type": "t"}, {"id": "b", "type": "t", "delay_ms": u64::MAX}]});
    let answer = broker.post("/v1/jobs", jobs).await;
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    problem(&answer, status, "invalid_field", Some("jobs[1].delay_ms"));
    let (status, _) = broker.get("/v1/jobs/a").await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn a_claim_that_is_handed_back_costs_no_attempt() {
    let broker = Broker::start().await;
    let last = json!({"id":"a","type":"t","max_attempts":1});
    broker.post("/v1/jobs", last).await;
    let claimed = async || {
        let (_, claimed) = broker.post("/v1/jobs/claim", json!({"worker":"w"})).await;
        assert_eq!(claimed["jobs"][0]["attempt"], 1);
        claimed["jobs"][0]["token"].clone()
    };
    let single = json!({"token": claimed().await});
    let answer = broker.post("/v1/jobs/a/release", single.clone()).await;
    assert_eq!(answer, (200, json!({"id":"a","status":"ok"})));
    let (_, job) = broker.get("/v1/jobs/a").await;
    let seen = (&job["state"], &job["attempt"], &job["error"]);
    assert_eq!(seen, (&json!("ready"), &json!(0), &Value::Null));
    let again = broker.post("/v1/jobs/a/release", single.clone()).await;
    assert_eq!(again, answer);
    let other = broker.post("/v1/jobs/a/complete", single).await;
    problem(&other, StatusCode::CONFLICT, "lost", None);

    let batch = json!({"claims":[
        {"id":"a","token":claimed().await},
        {"id":"nobody","token":"1-00000000"},
    ]});
    broker.post("/v1/jobs/a/cancel", json!({})).await;
    let (status, answer) = broker.post("/v1/jobs/release", batch).await;
    let expected = json!([
        {"id":"a","status":"cancelled"},
        {"id":"nobody","status":"lost","reason":{"code":"not_found"}},
    ]);
    assert_eq!((status, &answer["claims"]), (200, &expected));
    let (_, job) = broker.get("/v1/jobs/a").await;
    assert_eq!(job["state"], "cancelled");
}

#[tokio::test]
async fn a_batch_that_is_too_large_for_the_log_says_so() {
    let broker = Broker::start_with(|config| config.limits.body_bytes_max = 4 * 1024 * 1024).await;
    let job = json!({"type":"t","payload":"x".repeat(200_000)});
    let batch = |count| json!({"jobs": vec![job.clone(); count]});
    let answer = broker.post("/v1/jobs", batch(6)).await;
    problem(
        &answer,
        StatusCode::PAYLOAD_TOO_LARGE,
        "too_large",
        Some("jobs"),
    );
    assert_eq!(answer.1["hint"], "send fewer at once");
    let (_, list) = broker.get("/v1/jobs").await;
    assert_eq!(list["jobs"], json!([]));
    assert_eq!(broker.post("/v1/jobs", batch(5)).await.0, 201);
}

#[tokio::test]
async fn a_full_queue_says_so() {
    let broker = Broker::start().await;
    let (status, _) = broker.put("/v1/settings", json!({"jobs_max":1})).await;
    assert_eq!(status, 200);
    broker.submit("t").await;
    let answer = broker.post("/v1/jobs", json!({"type":"t"})).await;
    problem(&answer, StatusCode::TOO_MANY_REQUESTS, "full", None);
    let (status, answer) = broker
        .post("/v1/jobs", json!({"jobs":[{"type":"t"}]}))
        .await;
    assert_eq!(
        (status, &answer["jobs"][0]["status"]),
        (200, &json!("full"))
    );
}

#[tokio::test]
async fn a_waiting_claim_gets_the_job_that_arrives() {
    let broker = Broker::start().await;
    let waiting = broker.post(
        "/v1/jobs/claim",
        json!({"worker":"w","types":["x"],"wait_ms":60_000}),
    );
    let submitting = async {
        broker.submit("y").await;
        broker.submit("x").await
    };
    let ((status, answer), id) = tokio::join!(waiting, submitting);
    assert_eq!(
        (status, answer["jobs"][0]["id"].as_str()),
        (200, Some(&*id))
    );
    let (status, answer) = broker
        .post(
            "/v1/jobs/claim",
            json!({"worker":"w","types":["x"],"wait_ms":10}),
        )
        .await;
    assert_eq!((status, answer), (200, json!({"jobs":[]})));
}

#[tokio::test]
async fn jobs_are_cancelled_retried_and_forgotten_by_hand() {
    let broker = Broker::start().await;
    let waiting = broker.submit("t").await;
    let (status, job) = broker
        .post(&format!("/v1/jobs/{waiting}/cancel"), json!({}))
        .await;
    assert_eq!((status, &job["state"]), (200, &json!("cancelled")));
    let retry = broker.request(Method::POST, &format!("/v1/jobs/{waiting}/retry"));
    let (status, job) = answered(retry).await;
    assert_eq!(
        (status, &job["state"]),
        (200, &json!("ready")),
        "no body is needed"
    );

    let running = broker.claim().await;
    let path = format!("/v1/jobs/{waiting}");
    let (_, job) = broker.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!(job["cancel_requested"], true);
    let token = json!({"token": running["token"]});
    let (_, beat) = broker
        .post(&format!("{path}/heartbeat"), token.clone())
        .await;
    assert_eq!(beat["status"], "cancelled");
    problem(
        &broker.delete(&path).await,
        StatusCode::CONFLICT,
        "state",
        None,
    );
    let (_, ended) = broker.post(&format!("{path}/fail"), token).await;
    assert_eq!(ended["status"], "cancelled");

    let unfinished = broker.submit("t").await;
    let bulk = json!({"ids":[waiting, "nobody"]});
    let (_, answer) = broker.post("/v1/jobs/retry", bulk).await;
    let expected = json!([{"id":waiting,"status":"retried"},{"id":"nobody","status":"not_found"}]);
    assert_eq!(answer["jobs"], expected);
    let (_, answer) = broker.post("/v1/jobs/retry", json!({"state":"dead"})).await;
    assert_eq!(answer["jobs"], json!([]));
    broker.post(&format!("{path}/cancel"), json!({})).await;
    for _ in 0..2 {
        assert_eq!(broker.delete(&path).await, (204, Value::Null));
        let (_, left) = broker.get(&path).await;
        assert_eq!(
            (&left["remnant"], &left["state"]),
            (&json!(true), &json!("cancelled"))
        );
    }
    let (_, list) = broker.get("/v1/jobs").await;
    assert_eq!(list["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(list["jobs"][0]["id"], *unfinished);
}

#[tokio::test]
async fn jobs_are_moved_to_another_queue_each_with_its_own_answer() {
    let broker = Broker::start().await;
    let running = broker.submit("t").await;
    broker.claim().await;
    let submit =
        |id: &str, queue: &str| json!({"id": id, "type": "t", "queue": queue, "unique_key": "k"});
    broker.post("/v1/jobs", submit("holder", "slow")).await;
    broker.post("/v1/jobs", submit("same-key", "bulk")).await;
    for id in ["first", "second"] {
        let job = json!({"id": id, "type": "t", "queue": "bulk"});
        broker.post("/v1/jobs", job).await;
    }
    // Out of order: in the other queue they keep their turn.
    let request =
        json!({"ids": ["second", "first", running, "nobody", "same-key"], "queue": "slow"});
    let expected = json!([
        {"id": "second", "status": "moved"},
        {"id": "first", "status": "moved"},
        {"id": running, "status": "state"},
        {"id": "nobody", "status": "not_found"},
        {"id": "same-key", "status": "unique_key", "existing": "holder"},
    ]);
    for _ in 0..2 {
        let (status, answer) = broker.post("/v1/jobs/move", request.clone()).await;
        assert_eq!((status, &answer["jobs"]), (200, &expected));
    }
    let (_, list) = broker.get("/v1/jobs?queue=slow").await;
    let ids: Vec<_> = list["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["id"])
        .collect();
    assert_eq!(ids, ["holder", "first", "second"]);
    for (request, field) in [
        (json!({"ids": [], "queue": "slow"}), "ids"),
        (json!({"ids": ["first"], "queue": "no queue"}), "queue"),
    ] {
        let answer = broker.post("/v1/jobs/move", request).await;
        problem(
            &answer,
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_field",
            Some(field),
        );
    }
}

#[tokio::test]
async fn jobs_are_listed_in_pages_both_ways() {
    let broker = Broker::start().await;
    let jobs: Vec<_> = (0..5)
        .map(|number| json!({"id":format!("j{number}"),"type":if number % 2 == 0 {"even"} else {"odd"}}))
        .collect();
    broker.post("/v1/jobs", json!({ "jobs": jobs })).await;
    let list = async |query: &str| {
        let (status, page) = broker.get(&format!("/v1/jobs?{query}")).await;
        assert_eq!(status, 200, "{page}");
        let ids: Vec<String> = page["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_str().unwrap().to_owned())
            .collect();
        (ids.join(" "), page["next"].as_u64())
    };
    assert_eq!(list("limit=2").await, ("j0 j1".to_owned(), Some(2)));
    assert_eq!(list("limit=3&after=2").await, ("j2 j3 j4".to_owned(), None));
    assert_eq!(
        list("limit=2&order=newest").await,
        ("j4 j3".to_owned(), Some(4))
    );
    assert_eq!(list("before=4").await, ("j2 j1 j0".to_owned(), None));
    assert_eq!(list("type=odd&state=ready&queue=default").await.0, "j1 j3");
    assert_eq!(list("queue=other").await, (String::new(), None));
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let broker = Broker::start().await;
    let id = broker.submit("t").await;
    let path = format!("/v1/jobs/{id}");
    let first = broker.request(Method::GET, &path).send().await.unwrap();
    let tag = first.headers()["etag"].clone();
    let ask = || {
        broker
            .request(Method::GET, &path)
            .header("if-none-match", tag.clone())
    };
    let second = ask().send().await.unwrap();
    assert_eq!(second.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(second.text().await.unwrap(), "");
    broker.claim().await;
    assert_eq!(ask().send().await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_stopping_server_answers_whoever_waits_and_keeps_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let store = crate::support::store_in(folder.path());
    let broker = Broker::start_with(|config| config.store = store.clone()).await;
    let request = broker
        .request(Method::POST, "/v1/jobs/claim")
        .json(&json!({"worker":"w","types":["never"],"wait_ms":60_000}));
    let waiting = tokio::spawn(answered(request));
    let id = broker.submit("t").await;
    // A claim from before the stop waits; a later one cannot connect.
    until(async || {
        let page = broker
            .request(Method::GET, "/metrics")
            .send()
            .await
            .unwrap();
        let page = page.text().await.unwrap();
        page.contains("tenure_http_requests_in_flight 2")
            .then_some(())
    })
    .await;
    tokio::time::timeout(PATIENCE, broker.handle.stop())
        .await
        .unwrap();
    assert_eq!(waiting.await.unwrap(), (200, json!({"jobs":[]})));

    let next = Broker::start_with(|config| config.store = store).await;
    assert_eq!(
        next.get(&format!("/v1/jobs/{id}")).await.1["state"],
        "ready"
    );
}

/// The job that a claim was woken for goes to its worker or stays ready; it is never lost.
#[tokio::test]
async fn a_stopping_server_answers_with_what_it_claims_just_then() {
    let broker =
        Broker::start_with(|config| config.log.commit_interval = Duration::from_millis(400)).await;
    let request = broker
        .request(Method::POST, "/v1/jobs/claim")
        .json(&json!({"worker":"w","wait_ms":60_000}));
    let waiting = tokio::spawn(answered(request));
    until(async || {
        let page = broker.request(Method::GET, "/metrics");
        let page = page.send().await.unwrap().text().await.unwrap();
        let waits = page.contains("tenure_http_requests_in_flight 2");
        waits.then_some(())
    })
    .await;
    // When this is answered, the claim is on its way to the next commit.
    let id = broker.submit("t").await;
    tokio::time::timeout(PATIENCE, broker.handle.stop())
        .await
        .unwrap();
    let (status, answer) = waiting.await.unwrap();
    assert_eq!((status, &answer["jobs"][0]["id"]), (200, &json!(id)));
}

#[tokio::test]
async fn what_is_left_of_a_deleted_job_cannot_be_retried_and_says_so() {
    let broker = Broker::start().await;
    let settings = json!({"cancelled":{"count":0},"jobs_max":100});
    assert_eq!(broker.put("/v1/settings", settings).await.0, 200);
    let job = json!({"id":"a","type":"t"});
    assert_eq!(broker.post("/v1/jobs", job).await.0, 201);
    assert_eq!(broker.post("/v1/jobs/a/cancel", json!({})).await.0, 200);
    until(async || (broker.get("/v1/jobs/a").await.1["remnant"] == true).then_some(())).await;
    let answer = broker.post("/v1/jobs/a/retry", json!({})).await;
    problem(&answer, StatusCode::CONFLICT, "state", None);
    let detail = answer.1["detail"].as_str().unwrap();
    assert!(detail.contains("only its id is left"), "{detail}");
    let answer = broker.post("/v1/jobs/a/cancel", json!({})).await;
    problem(&answer, StatusCode::CONFLICT, "state", None);
    let detail = answer.1["detail"].as_str().unwrap();
    assert!(detail.contains("only its id is left"), "{detail}");
    let many = json!({"ids":["a","b"]});
    let (_, answer) = broker.post("/v1/jobs/retry", many).await;
    assert_eq!(answer["jobs"][0]["status"], "state", "{answer}");
    assert_eq!(answer["jobs"][1]["status"], "not_found", "{answer}");
}
