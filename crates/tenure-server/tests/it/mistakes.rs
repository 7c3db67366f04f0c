//! Bad input at every endpoint: a problem document that names the field, never a 500, never a change.

use std::io::{Read, Write};
use std::net::TcpStream;

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tenure_server::Tokens;

use crate::support::{Broker, answered, problem};

/// A wrong request, and what the answer says about it.
struct Mistake {
    call: &'static str,
    body: &'static str,
    status: u16,
    code: &'static str,
    field: Option<&'static str>,
}

const fn mistake(
    call: &'static str,
    body: &'static str,
    status: u16,
    code: &'static str,
    field: Option<&'static str>,
) -> Mistake {
    Mistake {
        call,
        body,
        status,
        code,
        field,
    }
}

const JOBS: &[Mistake] = &[
    mistake(
        "POST /v1/jobs",
        r#"{"type":"a","priorty":1}"#,
        422,
        "unknown_field",
        Some("priorty"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"payload":1}"#,
        422,
        "invalid_field",
        Some("type"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"type":"a/b"}"#,
        422,
        "invalid_field",
        Some("type"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"type":"a","id":"job:1"}"#,
        422,
        "invalid_field",
        Some("id"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"type":"a","priority":1.5}"#,
        422,
        "invalid_field",
        Some("priority"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"type":"a","run_at":"soon"}"#,
        422,
        "invalid_field",
        Some("run_at"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"type":"a","max_attempts":0}"#,
        422,
        "invalid_field",
        Some("max_attempts"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"type":"a","type":"b"}"#,
        422,
        "invalid_field",
        Some("type"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"type":"a","backoff":{"factor":0}}"#,
        422,
        "invalid_field",
        Some("backoff.factor"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"jobs":[]}"#,
        422,
        "invalid_field",
        Some("jobs"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"jobs":[{"type":"a"},{"type":"a","delay_ms":-1}]}"#,
        422,
        "invalid_field",
        Some("jobs[1].delay_ms"),
    ),
    mistake(
        "POST /v1/jobs",
        r#"{"jobs":[{"type":"a"},{"type":"a","max_attempts":0}]}"#,
        422,
        "invalid_field",
        Some("jobs[1].max_attempts"),
    ),
    mistake(
        "POST /v1/jobs/claim",
        r#"{}"#,
        422,
        "invalid_field",
        Some("worker"),
    ),
    mistake(
        "POST /v1/jobs/claim",
        r#"{"worker":""}"#,
        422,
        "invalid_field",
        Some("worker"),
    ),
    mistake(
        "POST /v1/jobs/claim",
        r#"{"worker":"w","max":0}"#,
        422,
        "invalid_field",
        Some("max"),
    ),
    mistake(
        "POST /v1/jobs/claim",
        r#"{"worker":"w","lease_ms":1}"#,
        422,
        "invalid_field",
        Some("lease_ms"),
    ),
    mistake(
        "POST /v1/jobs/claim",
        r#"{"worker":"w","wait_ms":60001}"#,
        422,
        "invalid_field",
        Some("wait_ms"),
    ),
    mistake(
        "POST /v1/jobs/claim",
        r#"{"worker":"w","queue":"q"}"#,
        422,
        "unknown_field",
        Some("queue"),
    ),
    mistake(
        "POST /v1/jobs/heartbeat",
        r#"{"claims":[]}"#,
        422,
        "invalid_field",
        Some("claims"),
    ),
    mistake(
        "POST /v1/jobs/heartbeat",
        r#"{"claims":{"id":"a"}}"#,
        422,
        "invalid_field",
        Some("claims"),
    ),
    mistake(
        "POST /v1/jobs/complete",
        r#"{"claims":[{"id":"a","token":"x"}],"all":true}"#,
        422,
        "unknown_field",
        Some("all"),
    ),
    mistake("POST /v1/jobs/complete", r#"[]"#, 400, "invalid_json", None),
    mistake(
        "POST /v1/jobs/fail",
        r#"{}"#,
        422,
        "invalid_field",
        Some("claims"),
    ),
    mistake(
        "POST /v1/jobs/release",
        r#"{"claims":[]}"#,
        422,
        "invalid_field",
        Some("claims"),
    ),
    mistake(
        "POST /v1/jobs/a/release",
        r#"{}"#,
        422,
        "invalid_field",
        Some("token"),
    ),
    mistake(
        "POST /v1/jobs/a/heartbeat",
        r#"{"token":7}"#,
        422,
        "invalid_field",
        Some("token"),
    ),
    mistake(
        "POST /v1/jobs/a/complete",
        r#"{}"#,
        422,
        "invalid_field",
        Some("token"),
    ),
    mistake(
        "POST /v1/jobs/a/fail",
        r#"{"token":"1-1","eror":"x"}"#,
        422,
        "unknown_field",
        Some("eror"),
    ),
    mistake(
        "POST /v1/jobs/a%2Fb/complete",
        r#"{"token":"1-1"}"#,
        422,
        "invalid_field",
        Some("id"),
    ),
    mistake(
        "POST /v1/jobs/a/complete",
        r#"{"token":"1-1"}"#,
        409,
        "lost",
        None,
    ),
    mistake(
        "POST /v1/jobs/a/cancel",
        r#"{"why":1}"#,
        422,
        "unknown_field",
        Some("why"),
    ),
    mistake("POST /v1/jobs/a/cancel", "", 404, "not_found", None),
    mistake("POST /v1/jobs/a/retry", "", 404, "not_found", None),
    mistake(
        "POST /v1/jobs/retry",
        r#"{}"#,
        422,
        "invalid_field",
        Some("ids"),
    ),
    mistake(
        "POST /v1/jobs/retry",
        r#"{"ids":[]}"#,
        422,
        "invalid_field",
        Some("ids"),
    ),
    mistake(
        "POST /v1/jobs/retry",
        r#"{"ids":["a"],"state":"dead"}"#,
        422,
        "invalid_field",
        Some("ids"),
    ),
    mistake(
        "POST /v1/jobs/retry",
        r#"{"state":"running"}"#,
        422,
        "invalid_field",
        Some("state"),
    ),
    mistake(
        "POST /v1/jobs/retry",
        r#"{"state":"dead","limit":0}"#,
        422,
        "invalid_field",
        Some("limit"),
    ),
    mistake("DELETE /v1/jobs/a", "", 404, "not_found", None),
    mistake("GET /v1/jobs/a%00b", "", 422, "invalid_field", Some("id")),
    mistake("GET /v1/jobs/%FF", "", 422, "invalid_field", Some("path")),
    mistake(
        "GET /v1/jobs?state=deaf",
        "",
        422,
        "invalid_field",
        Some("state"),
    ),
    mistake(
        "GET /v1/jobs?limit=0",
        "",
        422,
        "invalid_field",
        Some("limit"),
    ),
    mistake(
        "GET /v1/jobs?limit=1001",
        "",
        422,
        "invalid_field",
        Some("limit"),
    ),
    mistake(
        "GET /v1/jobs?after=1&before=2",
        "",
        422,
        "invalid_field",
        Some("after"),
    ),
    mistake(
        "GET /v1/jobs?colour=red",
        "",
        422,
        "unknown_field",
        Some("colour"),
    ),
];

const OTHERS: &[Mistake] = &[
    mistake(
        "PATCH /v1/queues/q",
        r#"{"concurrency":0}"#,
        422,
        "invalid_field",
        Some("concurrency"),
    ),
    mistake(
        "PATCH /v1/queues/q",
        r#"{"rate":{"jobs":1}}"#,
        422,
        "invalid_field",
        Some("rate.period_ms"),
    ),
    mistake(
        "PATCH /v1/queues/q",
        r#"{"paused":true}"#,
        422,
        "unknown_field",
        Some("paused"),
    ),
    mistake(
        "PUT /v1/queues/q",
        r#"{"concurency":1}"#,
        422,
        "unknown_field",
        Some("concurency"),
    ),
    mistake(
        "PUT /v1/queues/q",
        r#"{"concurrency":0}"#,
        422,
        "invalid_field",
        Some("concurrency"),
    ),
    mistake(
        "PUT /v1/queues/q",
        r#"{"rate":{"jobs":1}}"#,
        422,
        "invalid_field",
        Some("rate.period_ms"),
    ),
    mistake(
        "PUT /v1/queues/.q",
        r#"{}"#,
        422,
        "invalid_field",
        Some("queue"),
    ),
    mistake(
        "POST /v1/queues/q q/pause",
        "",
        422,
        "invalid_field",
        Some("queue"),
    ),
    mistake("POST /v1/queues/q/pause", "[]", 400, "invalid_json", None),
    mistake(
        "PUT /v1/schedules/s",
        r#"{"cron":"* * *","job":{"type":"a"}}"#,
        422,
        "invalid_field",
        Some("cron"),
    ),
    mistake(
        "PUT /v1/schedules/s",
        r#"{"cron":"@daily","timezone":"Mars/X","job":{"type":"a"}}"#,
        422,
        "invalid_field",
        Some("timezone"),
    ),
    mistake(
        "PUT /v1/schedules/s",
        r#"{"cron":"@daily","job":{"id":"x","type":"a"}}"#,
        422,
        "invalid_field",
        Some("job.id"),
    ),
    mistake(
        "PUT /v1/schedules/s",
        r#"{"cron":"@daily","job":{}}"#,
        422,
        "invalid_field",
        Some("job.type"),
    ),
    mistake(
        "PUT /v1/schedules/s",
        r#"{"cron":"@daily"}"#,
        422,
        "invalid_field",
        Some("job"),
    ),
    mistake("GET /v1/schedules/none", "", 404, "not_found", Some("name")),
    mistake(
        "POST /v1/schedules/none/pause",
        "",
        404,
        "not_found",
        Some("name"),
    ),
    mistake(
        "POST /v1/schedules/none/resume",
        "",
        404,
        "not_found",
        Some("name"),
    ),
    mistake(
        "PUT /v1/time",
        r#"{"to":"tomorrow"}"#,
        422,
        "invalid_field",
        Some("to"),
    ),
    mistake(
        "PUT /v1/time",
        r#"{"to":1000}"#,
        422,
        "invalid_field",
        Some("to"),
    ),
    mistake(
        "PUT /v1/settings",
        r#"{"completed":{"age":1}}"#,
        422,
        "unknown_field",
        Some("completed.age"),
    ),
    mistake(
        "PATCH /v1/settings",
        r#"{"completed":{"age":1}}"#,
        422,
        "unknown_field",
        Some("completed.age"),
    ),
    mistake(
        "PUT /v1/schedules/s",
        r#"{"cron":"@daily","job":{"type":"a"},"missed":null}"#,
        422,
        "invalid_field",
        Some("missed"),
    ),
    mistake(
        "GET /v1/events?queue=%20",
        "",
        422,
        "invalid_field",
        Some("queue"),
    ),
    mistake(
        "GET /v1/events?since=1",
        "",
        422,
        "unknown_field",
        Some("since"),
    ),
    mistake(
        "POST /v1/leader/resign",
        r#"{"now":true}"#,
        422,
        "unknown_field",
        Some("now"),
    ),
    mistake(
        "POST /v1/leader/transfer",
        r#"{}"#,
        422,
        "invalid_field",
        Some("node"),
    ),
    mistake(
        "POST /v1/leader/transfer",
        r#"{"node":"nobody"}"#,
        422,
        "invalid_field",
        Some("node"),
    ),
    mistake(
        "PUT /v1/elections/e/candidates/a",
        r#"{"ttl_ms":1}"#,
        422,
        "invalid_field",
        Some("ttl_ms"),
    ),
    mistake(
        "PUT /v1/elections/e/candidates/a",
        r#"{"ttl_ms":99999999999}"#,
        422,
        "invalid_field",
        Some("ttl_ms"),
    ),
    mistake(
        "PUT /v1/elections/tenure.queue/candidates/a",
        "{}",
        403,
        "forbidden",
        Some("election"),
    ),
    mistake(
        "POST /v1/elections/tenure.queue/elect",
        r#"{"candidate":"a"}"#,
        403,
        "forbidden",
        Some("election"),
    ),
    mistake(
        "DELETE /v1/elections/tenure.queue/candidates/a",
        "",
        403,
        "forbidden",
        Some("election"),
    ),
    mistake(
        "PUT /v1/elections/e/candidates/a%2F",
        "{}",
        422,
        "invalid_field",
        Some("id"),
    ),
    mistake(
        "POST /v1/elections/e/elect",
        r#"{}"#,
        422,
        "invalid_field",
        Some("candidate"),
    ),
    mistake(
        "GET /v1/elections/%2ee",
        "",
        422,
        "invalid_field",
        Some("election"),
    ),
    mistake(
        "GET /v1/elections/e/leader?candidate=",
        "",
        422,
        "invalid_field",
        Some("candidate"),
    ),
    mistake(
        "POST /osqueue/v1/jobs",
        r#"{"type":7}"#,
        422,
        "invalid_field",
        Some("type"),
    ),
    mistake(
        "POST /osqueue/v1/jobs",
        r#"{"maxAttempts":"3"}"#,
        422,
        "invalid_field",
        Some("maxAttempts"),
    ),
    mistake("POST /osqueue/v1/jobs", "[", 400, "invalid_json", None),
    mistake(
        "POST /osqueue/v1/jobs/claim",
        r#"{}"#,
        422,
        "invalid_field",
        Some("workerId"),
    ),
    mistake(
        "POST /osqueue/v1/jobs/a/complete",
        r#"{"workerId":"w"}"#,
        409,
        "lost",
        None,
    ),
    mistake(
        "POST /osqueue/v1/jobs/a%2Fb/heartbeat",
        r#"{"workerId":"w"}"#,
        422,
        "invalid_field",
        Some("id"),
    ),
    mistake("GET /nowhere", "", 404, "not_found", None),
    mistake("GET /v1/jobs/a/b/c", "", 404, "not_found", None),
    mistake("GET /v1/jobs/claim/", "", 404, "not_found", None),
    mistake("PATCH /v1/jobs", "{}", 405, "method_not_allowed", None),
    mistake("DELETE /v1/stats", "", 405, "method_not_allowed", None),
    mistake("POST /healthz", "", 405, "method_not_allowed", None),
];

#[tokio::test]
async fn every_mistake_is_named_and_changes_nothing() {
    let broker = Broker::start().await;
    for mistake in JOBS.iter().chain(OTHERS) {
        let (method, path) = mistake.call.split_once(' ').unwrap();
        let mut request = broker.request(method.parse().unwrap(), path);
        if !mistake.body.is_empty() {
            request = request
                .header("content-type", "application/json")
                .body(mistake.body);
        }
        let answer = answered(request).await;
        let shown = format!("{} {}: {}", mistake.call, mistake.body, answer.1);
        assert_eq!(answer.0, mistake.status, "{shown}");
        assert_eq!(answer.1["code"], mistake.code, "{shown}");
        assert_eq!(answer.1["field"].as_str(), mistake.field, "{shown}");
    }
    let (_, list) = broker.get("/v1/jobs").await;
    assert_eq!(list["jobs"], Value::Array(Vec::new()));
    let (_, queues) = broker.get("/v1/queues").await;
    assert_eq!(queues["queues"], Value::Array(Vec::new()));
}

/// Every call that takes a body.
const WITH_BODY: &[&str] = &[
    "POST /v1/jobs",
    "POST /v1/jobs/claim",
    "POST /v1/jobs/heartbeat",
    "POST /v1/jobs/complete",
    "POST /v1/jobs/fail",
    "POST /v1/jobs/a/heartbeat",
    "POST /v1/jobs/a/complete",
    "POST /v1/jobs/a/fail",
    "POST /v1/jobs/release",
    "POST /v1/jobs/a/release",
    "POST /v1/jobs/a/cancel",
    "POST /v1/jobs/a/retry",
    "POST /v1/jobs/retry",
    "PUT /v1/queues/q",
    "PATCH /v1/queues/q",
    "POST /v1/queues/q/pause",
    "POST /v1/queues/q/resume",
    "PUT /v1/schedules/s",
    "POST /v1/schedules/s/pause",
    "POST /v1/schedules/s/resume",
    "PUT /v1/settings",
    "PATCH /v1/settings",
    "PUT /v1/time",
    "POST /v1/leader/resign",
    "POST /v1/leader/transfer",
    "PUT /v1/elections/e/candidates/a",
    "POST /v1/elections/e/elect",
    "POST /osqueue/v1/jobs",
    "POST /osqueue/v1/jobs/claim",
    "POST /osqueue/v1/jobs/a/heartbeat",
    "POST /osqueue/v1/jobs/a/complete",
];

#[tokio::test]
async fn no_body_of_any_kind_makes_a_call_fail() {
    let broker = Broker::start_with(|config| config.limits.body_bytes_max = 4096).await;
    let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    let huge = "x".repeat(5000);
    for call in WITH_BODY {
        let (method, path) = call.split_once(' ').unwrap();
        let method: Method = method.parse().unwrap();
        let send = |kind: &'static str, body: Vec<u8>| {
            let request = broker.request(method.clone(), path);
            answered(request.header("content-type", kind).body(body))
        };
        for (body, status, code) in [
            (&b"{"[..], 400, "invalid_json"),
            (b"nul", 400, "invalid_json"),
            (b"{\"a\":\xff}", 400, "invalid_json"),
            (b"\xef\xbb\xbf{}", 400, "invalid_json"),
            (b"[]", 400, "invalid_json"),
            (deep.as_bytes(), 400, "invalid_json"),
            (huge.as_bytes(), 413, "too_large"),
        ] {
            let answer = send("application/json", body.to_vec()).await;
            let status = StatusCode::from_u16(status).unwrap();
            problem(&answer, status, code, None);
        }
        let answer = send("text/plain", b"{\"type\":\"a\"}".to_vec()).await;
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        problem(
            &answer,
            status,
            "unsupported_media_type",
            Some("content-type"),
        );
    }
}

/// Most clients send everything before they read the answer. A client that is cut off meanwhile takes that for a
/// network error.
#[tokio::test]
async fn a_refused_body_may_be_sent_to_its_end() {
    const BYTES: usize = 8 * 1024 * 1024;
    let tokens = Tokens::parse("read rrrrrrrrrrrrrrrr\n").unwrap();
    let open = Broker::start().await;
    let closed = Broker::start_with(|config| config.tokens = tokens).await;
    let told = format!("content-length: {BYTES}");
    for (broker, length, status) in [
        (&open, told.as_str(), "413"),
        (&open, "transfer-encoding: chunked", "413"),
        (&closed, told.as_str(), "401"),
    ] {
        let address = broker.handle.address();
        let head = format!(
            "POST /v1/jobs HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
        );
        let is_chunked = length.contains("chunked");
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            for _ in 0..BYTES / 65_536 {
                if is_chunked {
                    stream.write_all(b"10000\r\n").unwrap();
                }
                stream.write_all(&[b'x'; 65_536]).unwrap();
                if is_chunked {
                    stream.write_all(b"\r\n").unwrap();
                }
            }
            if is_chunked {
                stream.write_all(b"0\r\n\r\n").unwrap();
            }
            let mut start = [0; 12];
            stream.read_exact(&mut start).unwrap();
            String::from_utf8_lossy(&start).into_owned()
        });
        assert_eq!(answer.await.unwrap(), format!("HTTP/1.1 {status}"));
    }
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_ones() {
    let broker = Broker::start().await;
    let response = broker
        .request(Method::PATCH, "/v1/jobs/a")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    let allow = response.headers()["allow"].to_str().unwrap();
    assert!(
        ["GET", "HEAD", "DELETE"]
            .iter()
            .all(|method| allow.contains(method)),
        "{allow}"
    );
    let options = broker
        .request(Method::OPTIONS, "/v1/jobs")
        .send()
        .await
        .unwrap();
    assert_eq!(options.status(), StatusCode::NO_CONTENT);
    assert!(
        options.headers()["allow"]
            .to_str()
            .unwrap()
            .contains("POST")
    );
    let head = broker
        .request(Method::HEAD, "/v1/jobs")
        .send()
        .await
        .unwrap();
    assert_eq!(head.status(), StatusCode::OK);
    assert_ne!(head.headers()["content-length"], "0");
}
