//! Durable submits, one job per call, beside what a bare axum server answers to the same requests in the
//! same run: `cargo bench -p tenure-server --bench submits`.
//!
//! 64 connections are kept open, each with one call at a time. The store is a folder, synced as always.
//! What is waited for is the disk; what the processor does per call, client included, is printed beside it and
//! says more on a machine that others use too. `SECONDS=N` sets how long each part takes, `ROUNDS=N` how
//! often they take turns.

// It prints what it found, and ends if something does not work.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::post;
use tenure_server::{Config, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 64;
const BODY: &str = r#"{"type":"mail","payload":{"to":"someone@example.com","subject":"hello"}}"#;
const ANSWER: &str = r#"{"jobs":[{"id":"job:1234567","status":"created"}]}"#;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bare = bare().await;
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(format!("file:{}", folder.path().display()));
        config.listen = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(config).await.unwrap();
        server.queue().serving().await.unwrap();
        let seconds = number("SECONDS", 3);
        let mut shares = Vec::new();
        for round in 1..=number("ROUNDS", 3) {
            let bare = measure("bare axum", bare, seconds).await;
            let ours = measure("tenure, durable", server.address(), seconds).await;
            shares.push(ours / bare);
            println!("round {round}: {:.0} %", 100.0 * ours / bare);
        }
        shares.sort_by(f64::total_cmp);
        println!("median: {:.0} %", 100.0 * shares[shares.len() / 2]);
        server.stop().await;
    });
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

/// A server that reads a body and answers a constant.
async fn bare() -> SocketAddr {
    let answer = async |_: bytes::Bytes| {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (StatusCode::CREATED, kind, ANSWER)
    };
    let router = Router::new().route("/v1/jobs", post(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// Calls per second.
async fn measure(name: &str, address: SocketAddr, seconds: u64) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let (started, used) = (Instant::now(), processor());
    let tasks: Vec<_> = (0..CONNECTIONS)
        .map(|_| tokio::spawn(call(address, stop.clone(), calls.clone())))
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
    println!("{name:<16} {rate:>8.0} calls/s, {microseconds:.0} µs of processor per call");
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

/// One connection, one call at a time. As little of a client as there can be, so that it is the server that
/// is measured.
async fn call(address: SocketAddr, stop: Arc<AtomicBool>, calls: Arc<AtomicU64>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let request = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let mut buffer = vec![0; 4096];
    while !stop.load(Relaxed) {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut length = 0;
        loop {
            length += stream.read(&mut buffer[length..]).await.unwrap();
            if is_whole(&buffer[..length]) {
                break;
            }
        }
        assert!(
            buffer.starts_with(b"HTTP/1.1 201"),
            "{}",
            String::from_utf8_lossy(&buffer[..length])
        );
        calls.fetch_add(1, Relaxed);
    }
}

/// Whether an answer has arrived to its end: both servers end it so.
fn is_whole(answer: &[u8]) -> bool {
    answer.ends_with(b"}]}")
}
