//! Measures the server over HTTP, on a store in a folder, synced as in production: `make bench-server`.
//!
//! - **Pick-up**: the time from sending a job until an idle, long-polling worker has it. It includes two durable
//!   commits, one after the other.
//! - **Submits**: one job per call on 64 connections that are kept open, each with one call at a time, compared with
//!   two bare axum servers that store nothing: one takes the body and always gives the same answer, the other also
//!   parses the job and writes a matching answer. They take turns, on the same processors.
//! - **Reads**: what the broker costs with 1,000,000 jobs in 50,000 queues, how long each read takes, and how it
//!   slows the submits of other clients; see `reads.rs`. Runs only on request: `make bench-server ONLY=reads`.
//!
//! Servers and client are separate processes, as in production: see `servers.rs` and `calls.rs`.
//!
//! Processor time per call, client included, is printed beside the speed; on a shared machine it says more. Prints
//! the goals and whether they were met, and never fails because of one. `SECONDS=N` sets how long each turn takes,
//! `ROUNDS=N` how many there are, `PICKUPS=N` how many pick-ups are measured.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark talks, and may fail"
)]

mod calls;
mod reads;
mod servers;

use std::time::{Duration, Instant};

use serde::Serialize;
use tenure_api::{ClaimAnswer, CompleteRequest};
use tenure_core::queue::Completion;

use calls::Connection;
use servers::{Figures, Servers};

/// The same allocator as in the `tenure` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const JOB: &str = r#"{"type":"mail","payload":{"to":"someone@example.com","subject":"hello"}}"#;
const CLAIM: &str = r#"{"worker":"idle","wait_ms":60000}"#;

const PICKUP_GOAL: Duration = Duration::from_millis(5);
const SHARE_GOAL: f64 = 0.6;

fn main() {
    if std::env::args().any(|argument| argument == servers::ARGUMENT) {
        servers::run();
        return;
    }
    // One thread makes more calls than any of the servers can answer, and leaves the processors to them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let mut servers = Servers::start();
        if std::env::args().any(|argument| argument == "reads") {
            reads::run(&mut servers).await;
            servers.stop();
            return;
        }
        pickup(&mut servers, number("PICKUPS", 300)).await;
        submits(&mut servers, number("ROUNDS", 9), number("SECONDS", 2)).await;
        servers.stop();
    });
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

fn goal(what: &str, met: bool) {
    println!("goal: {what}: {}", if met { "met" } else { "missed" });
}

async fn pickup(servers: &mut Servers, count: u64) {
    let mut worker = Connection::open(servers.ours).await;
    let mut client = Connection::open(servers.ours).await;
    let submit = client.request("/v1/jobs", JOB);
    let (mut submitted, mut picked_up) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let claim = worker.request("/v1/jobs/claim", CLAIM);
        let waits = tokio::spawn(async move {
            let length = worker.call(&claim).await;
            (Instant::now(), length, worker)
        });
        while servers.figures().waiting_claims == 0 {
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

/// Prints the times, and returns the median.
fn tell(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let median = times[times.len() / 2];
    let most = times[times.len() * 99 / 100];
    println!("{what:<16} median {median:>9.1?}, 99 % within {most:.1?}");
    median
}

async fn submits(servers: &mut Servers, rounds: u64, seconds: u64) {
    let (mut of_constant, mut of_reading) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let (constant, _) = turn("bare, constant", servers.constant, servers, seconds).await;
        let (reading, _) = turn("bare, reading", servers.reading, servers, seconds).await;
        let (ours, done) = turn("tenure, durable", servers.ours, servers, seconds).await;
        println!(
            "round {round}: {:.0} % and {:.0} %, {} jobs per commit of {:.0?}",
            100.0 * ours / constant,
            100.0 * ours / reading,
            done.records / done.commits.max(1),
            Duration::from_nanos(done.commit_nanoseconds / done.commits.max(1)),
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

/// Calls one of the servers for a while. Returns calls per second, and what was done meanwhile.
async fn turn(
    name: &str,
    address: std::net::SocketAddr,
    servers: &mut Servers,
    seconds: u64,
) -> (f64, Figures) {
    let (before, used) = (servers.figures(), servers::processor());
    let started = Instant::now();
    let calls = calls::submit(address, Duration::from_secs(seconds)).await;
    let rate = calls / started.elapsed().as_secs_f64();
    let client = servers::processor() - used;
    let done = servers.figures().since(&before);
    let cost = |used: Duration| used.as_secs_f64() * 1e6 / calls;
    println!(
        "{name:<16} {rate:>8.0} calls/s, {:.1} µs of processor per call, and {:.1} µs the client's",
        cost(done.processor),
        cost(client)
    );
    (rate, done)
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}
