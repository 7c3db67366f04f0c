//! What the server is worth over HTTP, on a store in a folder, synced as always: `make bench-server`.
//!
//! - **Pick-up**: from the moment at which a job is sent until an idle worker that long-polls has it. Two
//!   durable commits are in it, one after the other.
//! - **Submits**: one job per call on 64 connections that are kept open, each with one call at a time, beside two
//!   bare axum servers that keep nothing: one takes the body and answers always the same, one also reads the job
//!   and writes the answer that fits. They take turns, in one process with the client, on the same processors.
//!
//! What the processor does per call, client included, is printed beside the speed and says more on a machine
//! that others use too. Prints the goals and whether they were met; never fails because of one. `SECONDS=N`
//! sets how long each turn takes, `ROUNDS=N` how many there are, `PICKUPS=N` how many jobs are picked up.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark talks, and may fail"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, post};
use serde::Serialize;
use tenure::queue::Latency;
use tenure_core::JobId;
use tenure_core::api::{
    ClaimAnswer, CompleteRequest, SubmitAnswer, SubmitRequest, SubmitStatus, Submitted,
};
use tenure_core::queue::Completion;
use tenure_server::{Config, Handle, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// That of the `tenure` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONNECTIONS: usize = 64;
const JOB: &str = r#"{"type":"mail","payload":{"to":"someone@example.com","subject":"hello"}}"#;
const CLAIM: &str = r#"{"worker":"idle","wait_ms":60000}"#;

const PICKUP_GOAL: Duration = Duration::from_millis(5);
const SHARE_GOAL: f64 = 0.6;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Beside the build output, which is on a real disk where a temporary folder may not be.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut config = Config::new(format!("file:{}", folder.path().display()));
        config.listen = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(config).await.unwrap();
        server.queue().serving().await.unwrap();
        pickup(&server, number("PICKUPS", 300)).await;
        submits(&server, number("ROUNDS", 5), number("SECONDS", 2)).await;
        server.stop().await;
    });
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

fn goal(what: &str, met: bool) {
    println!("goal: {what}: {}", if met { "met" } else { "missed" });
}

async fn pickup(server: &Handle, count: u64) {
    let mut worker = Connection::open(server.address()).await;
    let mut client = Connection::open(server.address()).await;
    let submit = client.request("/v1/jobs", JOB);
    let (mut submitted, mut picked_up) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let claim = worker.request("/v1/jobs/claim", CLAIM);
        let waits = tokio::spawn(async move {
            let length = worker.call(&claim).await;
            (Instant::now(), length, worker)
        });
        while server.queue().metrics().waiting_claims == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let sent = Instant::now();
        client.call(&submit).await;
        submitted.push(sent.elapsed());
        let (at, length);
        (at, length, worker) = waits.await.unwrap();
        picked_up.push(at - sent);
        let answer: ClaimAnswer = serde_json::from_slice(worker.body(length)).unwrap();
        let claims = answer.jobs.into_iter().map(|job| Completion {
            id: job.id,
            token: job.token,
            result: None,
        });
        let done = text(&CompleteRequest {
            claims: claims.collect(),
        });
        let done = client.request("/v1/jobs/complete", &done);
        client.call(&done).await;
    }
    tell("submit alone", submitted);
    let median = tell("pick-up", picked_up);
    goal(
        "an idle worker has a job in 5 ms, in the median",
        median < PICKUP_GOAL,
    );
}

/// The median.
fn tell(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let median = times[times.len() / 2];
    let most = times[times.len() * 99 / 100];
    println!("{what:<16} median {median:>9.1?}, 99 % within {most:.1?}");
    median
}

async fn submits(server: &Handle, rounds: u64, seconds: u64) {
    let constant = serve(post(constant)).await;
    let number = Arc::new(AtomicU64::new(1_000_000));
    let reading = serve(post(move |body| reading(body, number.clone()))).await;
    let (mut of_constant, mut of_reading) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let constant = measure("bare, constant", constant, seconds).await;
        let reading = measure("bare, reading", reading, seconds).await;
        let before = server.queue().metrics();
        let ours = measure("tenure, durable", server.address(), seconds).await;
        let after = server.queue().metrics();
        let records = (after.records - before.records) / (after.commits - before.commits).max(1);
        let commit = mean(&after.commit_latency, &before.commit_latency);
        println!(
            "round {round}: {:.0} % and {:.0} %, {records} jobs per commit of {commit:.0?}",
            100.0 * ours / constant,
            100.0 * ours / reading
        );
        of_constant.push(ours / constant);
        of_reading.push(ours / reading);
    }
    for (what, mut shares) in [
        ("that answers a constant", of_constant),
        ("that reads and writes JSON", of_reading),
    ] {
        shares.sort_by(f64::total_cmp);
        let median = shares[shares.len() / 2];
        println!("median: {:.0} % of a bare server {what}", 100.0 * median);
        goal(
            &format!("durable submits at 60 % of a bare server {what}"),
            median >= SHARE_GOAL,
        );
    }
}

/// How long each took that was not counted before.
fn mean(after: &Latency, before: &Latency) -> Duration {
    let nanoseconds = after.total_nanoseconds - before.total_nanoseconds;
    Duration::from_nanos(nanoseconds / (after.count - before.count).max(1))
}

async fn serve(submit: MethodRouter) -> SocketAddr {
    let router = Router::new().route("/v1/jobs", submit);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

const KIND: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// Takes a job, and gives the same answer as to all others.
async fn constant(_: bytes::Bytes) -> impl IntoResponse {
    let answer = r#"{"jobs":[{"id":"job:1000000","status":"created"}]}"#;
    (StatusCode::CREATED, KIND, answer)
}

/// Reads a job, makes up its answer, and forgets it.
async fn reading(body: bytes::Bytes, number: Arc<AtomicU64>) -> impl IntoResponse {
    let request: SubmitRequest = serde_json::from_slice(&body).unwrap();
    let (jobs, _) = request.into_jobs();
    let jobs = jobs.iter().map(|_| Submitted {
        id: JobId::new(format!("job:{}", number.fetch_add(1, Relaxed))).unwrap(),
        status: SubmitStatus::Created,
        existing: None,
    });
    let answer = text(&SubmitAnswer {
        jobs: jobs.collect(),
    });
    (StatusCode::CREATED, KIND, answer)
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

/// Calls per second.
async fn measure(name: &str, address: SocketAddr, seconds: u64) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let (started, used) = (Instant::now(), processor());
    let tasks: Vec<_> = (0..CONNECTIONS)
        .map(|_| tokio::spawn(submit(address, stop.clone(), calls.clone())))
        .collect();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    stop.store(true, Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let calls = calls.load(Relaxed) as f64;
    let rate = calls / started.elapsed().as_secs_f64();
    let microseconds = (processor() - used).as_secs_f64() * 1e6 / calls;
    println!("{name:<16} {rate:>8.0} calls/s, {microseconds:.1} µs of processor per call");
    rate
}

/// What this process has used of all processors.
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = text.rsplit_once(')').unwrap();
    let ticks = fields.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// One connection, one call at a time.
async fn submit(address: SocketAddr, stop: Arc<AtomicBool>, calls: Arc<AtomicU64>) {
    let mut connection = Connection::open(address).await;
    let request = connection.request("/v1/jobs", JOB);
    while !stop.load(Relaxed) {
        connection.call(&request).await;
        calls.fetch_add(1, Relaxed);
    }
}

/// As little of a client as there can be, so that it is the server that is measured.
struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            address,
            buffer: vec![0; 4096],
        }
    }

    fn request(&self, path: &str, body: &str) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
    }

    /// The length of the answer, once it is here.
    async fn call(&mut self, request: &str) -> usize {
        self.stream.write_all(request.as_bytes()).await.unwrap();
        let mut length = 0;
        // All answers end so, those to mistakes do not.
        while !self.buffer[..length].ends_with(b"}]}") {
            let more = self.stream.read(&mut self.buffer[length..]).await.unwrap();
            length += more;
            let answer = &self.buffer[..length];
            assert!(
                more > 0 && answer.starts_with(b"HTTP/1.1 20"),
                "{}",
                String::from_utf8_lossy(answer)
            );
        }
        length
    }

    /// The body of an answer of that length.
    fn body(&self, length: usize) -> &[u8] {
        let answer = &self.buffer[..length];
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n");
        &answer[head.unwrap() + 4..]
    }
}
