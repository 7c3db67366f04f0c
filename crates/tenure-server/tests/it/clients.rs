//! Clients that are slow, vanish, or are too many.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_server::Tokens;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::support::{Broker, PATIENCE, answered, client, problem, until};

/// How many requests a server is answering, not counting the one that asks.
async fn in_flight(broker: &Broker) -> u64 {
    let page = broker
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("tenure_http_requests_in_flight "));
    line.unwrap().parse::<u64>().unwrap() - 1
}

async fn raw(broker: &Broker, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(broker.handle.address()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

fn claim_text(types: &str) -> String {
    let body = format!(r#"{{"worker":"gone","types":["{types}"],"wait_ms":60000}}"#);
    format!(
        "POST /v1/jobs/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads everything until the connection is closed.
async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut text))
        .await
        .unwrap()
        .unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_worker_that_goes_away_while_it_waits_takes_no_job() {
    let broker = Broker::start().await;
    let stream = raw(&broker, &claim_text("t")).await;
    until(async || (in_flight(&broker).await == 1).then_some(())).await;
    drop(stream);
    until(async || (in_flight(&broker).await == 0).then_some(())).await;
    let id = broker.submit("t").await;
    assert_eq!(broker.claim().await["id"], *id);
}

#[tokio::test]
async fn a_client_that_sends_slowly_is_given_up() {
    let broker = Broker::start_with(|config| {
        config.limits.head_timeout = Duration::from_millis(300);
        config.limits.body_timeout = Duration::from_millis(300);
    })
    .await;
    let silent = raw(&broker, "").await;
    let slow_head = raw(&broker, "GET /healthz HTTP/1.1\r\nHost: loc").await;
    let head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let slow_body = raw(&broker, head).await;
    assert_eq!(rest(silent).await, "");
    let answer = rest(slow_head).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 408"),
        "{answer}"
    );
    let answer = rest(slow_body).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains(r#""code":"timeout""#), "{answer}");
    assert_eq!(broker.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up() {
    let broker = Broker::start_with(|config| {
        config.limits.write_timeout = Duration::from_millis(300);
    })
    .await;
    let large = json!({"type":"t","payload":"x".repeat(200_000)});
    let jobs: Vec<Value> = (0..4).map(|_| large.clone()).collect();
    for _ in 0..5 {
        assert_eq!(
            broker.post("/v1/jobs", json!({ "jobs": jobs })).await.0,
            201
        );
    }
    // Ten answers of 4 MB, and nobody reads any of them.
    let ask = "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(10);
    let stream = raw(&broker, &ask).await;
    until(async || (answered_reads(&broker).await > 0).then_some(())).await;
    until(async || (broker.handle.connections() == 1).then_some(())).await;
    assert!(answered_reads(&broker).await < 10);
    drop(stream);
}

/// How many times jobs were listed: calls of `/v1/jobs`, less the five submits.
async fn answered_reads(broker: &Broker) -> u64 {
    let page = broker
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let name = "tenure_http_requests_total{route=\"/v1/jobs\",status=\"2xx\"} ";
    let counts = page.lines().filter_map(|line| line.strip_prefix(name));
    counts
        .map(|count| count.parse::<u64>().unwrap())
        .sum::<u64>()
        - 5
}

#[tokio::test]
async fn idle_workers_are_many_and_further_ones_are_told_to_come_back() {
    let broker = Broker::start_with(|config| config.limits.waits_max = 200).await;
    let mut waiting = JoinSet::new();
    for _ in 0..200 {
        let claim = json!({"worker":"w","types":["t"],"wait_ms":60_000});
        let request = broker.request(Method::POST, "/v1/jobs/claim").json(&claim);
        waiting.spawn(answered(request));
    }
    until(async || (in_flight(&broker).await == 200).then_some(())).await;
    let one_more = json!({"worker":"w","types":["t"],"wait_ms":1});
    let answer = broker.post("/v1/jobs/claim", one_more).await;
    problem(&answer, StatusCode::TOO_MANY_REQUESTS, "overloaded", None);
    let now = json!({"worker":"w","types":["t"]});
    assert_eq!(
        broker.post("/v1/jobs/claim", now).await.0,
        200,
        "who does not wait is served"
    );

    let jobs: Vec<Value> = (0..200).map(|_| json!({"type":"t"})).collect();
    broker.post("/v1/jobs", json!({ "jobs": jobs })).await;
    let mut ids = std::collections::BTreeSet::new();
    while let Some(answer) = waiting.join_next().await {
        let (status, answer) = answer.unwrap();
        assert_eq!(status, 200, "{answer}");
        for job in answer["jobs"].as_array().unwrap() {
            assert!(
                ids.insert(job["id"].as_str().unwrap().to_owned()),
                "{job} twice"
            );
        }
    }
    assert_eq!(ids.len(), 200, "each got one");
}

#[tokio::test]
async fn more_than_can_be_done_is_turned_away_and_then_served() {
    let broker = Broker::start_with(|config| {
        config.log.backlog_records_max = 8;
        config.log.commit_interval = Duration::from_millis(50);
    })
    .await;
    let mut calls = JoinSet::new();
    for number in 0..400 {
        let job = json!({"id":format!("j{number}"),"type":"t"});
        calls.spawn(answered(
            broker.request(Method::POST, "/v1/jobs").json(&job),
        ));
    }
    let mut created = 0;
    let mut turned_away = 0;
    while let Some(answer) = calls.join_next().await {
        let answer = answer.unwrap();
        match answer.0 {
            201 => created += 1,
            _ => {
                problem(&answer, StatusCode::TOO_MANY_REQUESTS, "overloaded", None);
                turned_away += 1;
            }
        }
    }
    assert!(
        created > 0 && turned_away > 0,
        "{created} created, {turned_away} turned away"
    );
    let (_, stats) = broker.get("/v1/stats").await;
    assert_eq!(
        stats["counts"]["ready"], created,
        "what was answered is there, and nothing else"
    );
    broker.submit("t").await;
}

#[tokio::test]
async fn bodies_together_are_limited() {
    let broker = Broker::start_with(|config| {
        config.limits.body_bytes_max = 8 * 1024;
        config.limits.bodies_bytes_max = 32 * 1024;
    })
    .await;
    let body = format!("{{{}", " ".repeat(7998));
    let slow = raw(&broker, &announcing(8000, &body)).await;
    let other = raw(&broker, &announcing(8000, &body[..2000])).await;
    // The bytes that have arrived, and their buffers.
    until(async || (number(&broker, "tenure_http_body_bytes").await > 32_000).then_some(())).await;
    let job = json!({"type":"t","payload":"x".repeat(1000)});
    let answer = broker.post("/v1/jobs", job.clone()).await;
    problem(&answer, StatusCode::TOO_MANY_REQUESTS, "overloaded", None);
    // A client that sends nothing for a while loses its connection when others need the memory.
    until(async || (broker.post("/v1/jobs", job.clone()).await.0 == 201).then_some(())).await;
    let closed = [rest(slow).await, rest(other).await];
    assert!(closed.iter().any(String::is_empty), "{closed:?}");
}

/// The beginning of a submit that announces a body of this many bytes.
fn announcing(bytes: usize, body: &str) -> String {
    format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {bytes}\r\n\r\n{body}"
    )
}

/// One number of the page of metrics.
async fn number(broker: &Broker, name: &str) -> u64 {
    let page = broker.request(Method::GET, "/metrics");
    let page = page.send().await.unwrap().text().await.unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn who_announces_much_and_sends_little_takes_little() {
    let broker = Broker::start().await;
    let mut announced = Vec::new();
    for _ in 0..256 {
        announced.push(raw(&broker, &announcing(1024 * 1024, "{")).await);
    }
    until(async || (in_flight(&broker).await == 256).then_some(())).await;
    let job = json!({"type":"t","payload":"x".repeat(1000)});
    let answer = broker.post("/v1/jobs", job).await;
    assert_eq!(answer.0, 201, "{}", answer.1);
    let bytes = number(&broker, "tenure_http_body_bytes").await;
    assert!(bytes <= 256 * 8 * 1024, "{bytes}");
}

/// A broker with jobs with large payloads, this many megabytes in all.
async fn with_large_jobs(broker: &Broker, megabytes: usize) {
    let large = json!({"type":"t","payload":"x".repeat(250_000)});
    let jobs: Vec<Value> = (0..4).map(|_| large.clone()).collect();
    for _ in 0..megabytes {
        let (status, answer) = broker.post("/v1/jobs", json!({ "jobs": jobs })).await;
        assert_eq!(status, 201, "{answer}");
    }
}

/// The memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test]
async fn stalled_readers_of_large_pages_keep_little_memory() {
    let broker = Broker::start().await;
    with_large_jobs(&broker, 40).await;
    let before = resident();
    let ask = "GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(4);
    let mut readers = Vec::new();
    for _ in 0..24 {
        readers.push(raw(&broker, &ask).await);
    }
    let name = "tenure_http_requests_total{route=\"/v1/jobs\",status=\"2xx\"}";
    until(async || (number(&broker, name).await >= 40 + 24).then_some(())).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 300 << 20, "24 readers took {} MiB", grown >> 20);
    // Workers are not affected.
    broker.submit("t").await;
}

#[tokio::test]
async fn readers_that_stall_make_room_for_others() {
    let broker = Broker::start_with(|config| {
        config.limits.answers_bytes_max = 8 * 1024 * 1024;
    })
    .await;
    with_large_jobs(&broker, 5).await;
    let ask = "GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(4);
    let _stalled = [raw(&broker, &ask).await, raw(&broker, &ask).await];
    let used = async || number(&broker, "tenure_http_answer_bytes").await;
    until(async || (used().await > 5 << 20).then_some(())).await;
    let answer = timeout(
        Duration::from_secs(20),
        until(async || {
            let (status, answer) = broker.get("/v1/jobs?limit=1000").await;
            assert!(status == 200 || status == 429, "{status} {answer}");
            (status == 200).then_some(answer)
        }),
    );
    let answer = answer.await.expect("long before their 30 s are over");
    assert_eq!(answer["jobs"].as_array().unwrap().len(), 16);
    until(async || (used().await < 5 << 20).then_some(())).await;
}

#[tokio::test]
async fn when_all_connections_are_taken_health_is_still_told() {
    let broker = Broker::start_with(|config| config.limits.connections_max = 2).await;
    let first = raw(&broker, &claim_text("never")).await;
    let second = raw(&broker, &claim_text("never")).await;
    let health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let told = async || rest(raw(&broker, health).await).await;
    until(async || {
        let answer = broker.get("/v1/jobs").await;
        (answer.0 == 429).then_some(answer)
    })
    .await;
    assert!(told().await.starts_with("HTTP/1.1 200"));
    assert_eq!(broker.get("/readyz").await.0, 200);
    let answer = broker.post("/v1/jobs", json!({"type":"t"})).await;
    problem(&answer, StatusCode::TOO_MANY_REQUESTS, "overloaded", None);
    drop((first, second));
    until(async || (broker.get("/v1/jobs").await.0 == 200).then_some(())).await;
}

#[tokio::test]
async fn who_makes_room_before_a_call_was_looked_at_is_told() {
    let broker = Broker::start_with(|config| config.limits.connections_max = 1).await;
    let half = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n";
    let half = raw(&broker, half).await;
    until(async || (broker.get("/v1/jobs").await.0 == 200).then_some(())).await;
    let told = rest(half).await;
    assert!(told.starts_with("HTTP/1.1 429"), "{told}");
    assert!(told.contains(r#""code":"overloaded""#), "{told}");
}

#[tokio::test]
async fn strangers_keep_nobody_out() {
    let tokens = Tokens::parse("admin aaaaaaaaaaaaaaaa").unwrap();
    let broker = Broker::start_with(|config| {
        config.limits.connections_max = 4;
        config.tokens = tokens;
    })
    .await;
    let worker = claim_text("never").replace(
        "Host: localhost",
        "Host: localhost\r\nAuthorization: Bearer aaaaaaaaaaaaaaaa",
    );
    let mut worker = raw(&broker, &worker).await;
    let mut strangers = Vec::new();
    for _ in 0..20 {
        strangers.push(raw(&broker, "GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n").await);
        strangers.push(raw(&broker, "").await);
    }
    for _ in 0..3 {
        // Each has its own connection, opened when all places are taken.
        let request = client().get(format!("{}/v1/jobs", broker.url));
        let answer = request.bearer_auth("a".repeat(16)).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let health = client().get(format!("{}/healthz", broker.url)).send().await;
        assert_eq!(health.unwrap().status(), StatusCode::OK);
    }
    // The worker was connected all the time, and gets the next job.
    let job = json!({"id":"at-last","type":"never"});
    let submit = client().post(format!("{}/v1/jobs", broker.url)).json(&job);
    let submitted = submit.bearer_auth("a".repeat(16)).send().await.unwrap();
    assert_eq!(submitted.status(), StatusCode::CREATED);
    let mut told = String::new();
    let hears = async {
        while !told.contains("at-last") {
            let mut bytes = [0; 4096];
            let length = worker.read(&mut bytes).await.unwrap();
            assert_ne!(length, 0, "it was closed: {told}");
            told.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
    };
    timeout(PATIENCE, hears).await.unwrap();
    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
}

/// Strangers that connect faster than they are handled, and send nothing.
async fn storm(address: std::net::SocketAddr) {
    let mut held = std::collections::VecDeque::new();
    for _ in 0..1_500 {
        held.push_back(TcpStream::connect(address).await);
        if held.len() > 32 {
            held.pop_front();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_strangers_costs_no_health_check_its_answer() {
    let broker = Broker::start_with(|config| config.limits.connections_max = 8).await;
    let address = broker.handle.address();
    let mut storms: JoinSet<()> = (0..4).map(|_| storm(address)).collect();
    let (mut asked, mut unanswered) = (0, Vec::new());
    while storms.try_join_next().is_some() || !storms.is_empty() {
        for path in ["/healthz", "/readyz"] {
            let check =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let begun = Instant::now();
            let mut stream = raw(&broker, &check).await;
            // On a busy machine it may have sent its request too late.
            let was_slow = begun.elapsed() > Duration::from_millis(30);
            let mut text = Vec::new();
            let read = timeout(PATIENCE, stream.read_to_end(&mut text)).await;
            let text = String::from_utf8_lossy(&text);
            asked += usize::from(!was_slow);
            if !was_slow && !text.starts_with("HTTP/1.1 200 ") {
                unanswered.push(format!("{path}: {text} {read:?}"));
            }
        }
    }
    assert!(asked > 0);
    let few: Vec<_> = unanswered.iter().take(3).collect();
    assert!(
        unanswered.is_empty(),
        "{} of {asked}: {few:?}",
        unanswered.len()
    );
}
