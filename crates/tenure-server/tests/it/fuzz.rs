//! Every call of the interface, with damaged paths, queries and bodies: each is answered, none with an internal
//! error, and a refusal says what is wrong.

use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use tenure_fuzz::{Fuzz, corpus};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::support::Broker;

/// The first line is the call, the rest is the body.
const CALLS: &str = r#"POST /v1/jobs
{"id":"a","queue":"q","type":"mail","payload":{"n":1.0},"priority":-3,"delay_ms":9,"max_attempts":2,"unique_key":"u","group":"g"}
POST /v1/jobs
{"jobs":[{"type":"mail"},{"queue":"q","type":"mail","run_at":"2026-01-01T00:00:00Z"}]}
POST /v1/jobs/claim
{"worker":"w","queues":["q"],"types":["mail"],"max":9,"lease_ms":1000,"wait_ms":0}
POST /v1/jobs/heartbeat
{"claims":[{"id":"a","token":"1f-0a1b2c3d","progress":[1, 2]}]}
POST /v1/jobs/complete
{"claims":[{"id":"a","token":"1f-0a1b2c3d","result":1.0}]}
POST /v1/jobs/fail
{"claims":[{"id":"a","token":"1f-0a1b2c3d","error":"no","retry_in_ms":0,"permanent":true}]}
POST /v1/jobs/release
{"claims":[{"id":"a","token":"1f-0a1b2c3d"}]}
POST /v1/jobs/a/heartbeat
{"token":"1f-0a1b2c3d","progress":0.5}
POST /v1/jobs/a/complete
{"token":"1f-0a1b2c3d","result":{}}
POST /v1/jobs/a/fail
{"token":"1f-0a1b2c3d","error":"no"}
POST /v1/jobs/a/release
{"token":"1f-0a1b2c3d"}
POST /v1/jobs/a/cancel
{}
POST /v1/jobs/a/retry
{}
POST /v1/jobs/retry
{"state":"dead","queue":"q","type":"mail","limit":5}
GET /v1/jobs?state=ready&queue=q&type=mail&limit=5&before=7&order=newest
GET /v1/jobs?after=7&order=oldest
GET /v1/jobs/a
DELETE /v1/jobs/a
GET /v1/queues
GET /v1/queues/q
PUT /v1/queues/q
{"concurrency":2,"rate":{"jobs":5,"period_ms":1000,"burst":3}}
POST /v1/queues/q/pause
POST /v1/queues/q/resume
GET /v1/time
GET /v1/settings
PUT /v1/settings
{"completed":{"age_ms":60000,"count":10},"jobs_max":1000000}
PATCH /v1/settings
{"dead":{"count":10},"ids":{"age_ms":1000}}
GET /v1/schedules
GET /v1/schedules/s
PUT /v1/schedules/s
{"cron":"0 3 * * *","timezone":"Europe/Berlin","job":{"type":"mail","payload":[1]},"missed":{"all":5}}
POST /v1/schedules/s/pause
POST /v1/schedules/s/resume
DELETE /v1/schedules/s
GET /v1/stats
GET /v1/events?queue=q&type=ready
GET /v1/elections/e
GET /v1/elections/e/leader
PUT /v1/elections/e/candidates/c
{"ttl_ms":5000}
POST /v1/elections/e/elect
{"candidate":"c","ttl_ms":5000}
DELETE /v1/elections/e/candidates/c
GET /v1/cluster
GET /v1/cluster/plan
POST /v1/leader/transfer
{"node":"web-9"}
GET /metrics
GET /readyz
GET /assets/app.js
GET /v1/dashboard/node?node=web-1
GET /v1/dashboard/series?queue=q&range=hour
GET /v1/dashboard/jobs?state=dead&search=a
GET /v1/dashboard/jobs/a/history
POST /v1/nodes/web-9/drain
GET /osqueue/state
GET /osqueue/v1/jobs
POST /osqueue/v1/jobs
{"payload":{"n":1},"type":"mail","maxAttempts":3}
POST /osqueue/v1/jobs/claim
{"workerId":"w","types":["mail"]}
POST /osqueue/v1/jobs/job:1/heartbeat
{"workerId":"w"}
POST /osqueue/v1/jobs/job:1/complete
{"workerId":"w"}"#;

/// One call per input.
fn calls() -> Vec<String> {
    let mut calls: Vec<String> = Vec::new();
    for line in CALLS.lines() {
        match calls.last_mut().filter(|_| line.starts_with('{')) {
            Some(call) => *call += &format!("\n{line}"),
            None => calls.push(line.to_owned()),
        }
    }
    // Every call with the bodies of all others.
    calls.extend(
        corpus("requests")
            .iter()
            .map(|body| format!("POST /v1/jobs\n{body}")),
    );
    calls
}

/// The call that an input describes, if a client can send it at all.
fn call<'a>(base: &Url, input: &'a [u8]) -> Option<(Method, Url, &'a [u8])> {
    let end = input.iter().position(|&byte| byte == b'\n');
    let (line, body) = input.split_at(end.unwrap_or(input.len()));
    let line = String::from_utf8_lossy(line);
    let (method, path) = line.split_once(' ')?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let url = base.join(path).ok()?;
    // Skip other hosts, and calls that end the leader's term: without a leader there is nothing to test.
    let ours = url.origin() == base.origin() && !url.path().contains("resign");
    ours.then_some((method, url, body.strip_prefix(b"\n").unwrap_or(body)))
}

#[test]
fn every_call_is_answered() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let broker = runtime.block_on(Broker::start());
    let base: Url = broker.url.parse().unwrap();
    // The server runs in the same thread: so its panics are seen, and a snapshot's memory counts for the case in
    // which it is taken.
    let fuzz = Fuzz::new("calls", calls()).within(256 << 20, 256);
    fuzz.run(|input| {
        let Some((method, url, body)) = call(&base, input) else {
            return;
        };
        let request = broker
            .http
            .request(method, url)
            .header("content-type", "application/json")
            .body(body.to_vec());
        // A claim may wait for a job, and an unread body may break the connection: only answers are checked.
        let answered = async { timeout(Duration::from_millis(200), request.send()).await };
        let answered = runtime.block_on(answered);
        let Ok(Ok(answer)) = answered else {
            return;
        };
        let status = answer.status();
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_client_error() && status != StatusCode::NOT_FOUND {
            let problem = runtime.block_on(answer.bytes()).unwrap();
            let problem = String::from_utf8_lossy(&problem);
            let read: Result<Value, _> = serde_json::from_str(&problem);
            assert!(read.is_ok() || problem.is_empty(), "{status}: {problem}");
        }
    });
    runtime.block_on(broker.handle.stop());
}
