//! The servers, in a separate process: ours, and two bare ones to compare it with.
//!
//! The process prints their addresses. For each input line it prints what it has done so far, and at the end of input
//! it stops. A line with two numbers first makes it put that many jobs into that many queues.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, post};
use serde::{Deserialize, Serialize};
use tenure_api::{SubmitAnswer, SubmitRequest, SubmitStatus, Submitted};
use tenure_core::JobId;
use tenure_server::{Config, Server};
use tokio::net::TcpListener;

use super::text;

/// With this argument, the process runs the servers.
pub(crate) const ARGUMENT: &str = "--servers";

/// The servers' process, seen from the client.
pub(crate) struct Servers {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) constant: SocketAddr,
    pub(crate) reading: SocketAddr,
    pub(crate) ours: SocketAddr,
}

/// What the process has done so far.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) records: u64,
    pub(crate) commits: u64,
    /// The time that all commits took together.
    pub(crate) commit_nanoseconds: u64,
    /// Claims that wait now.
    pub(crate) waiting_claims: u64,
    pub(crate) processor: Duration,
    /// In bytes.
    pub(crate) memory: u64,
}

impl Figures {
    pub(crate) fn since(self, before: &Self) -> Self {
        Self {
            records: self.records - before.records,
            commits: self.commits - before.commits,
            commit_nanoseconds: self.commit_nanoseconds - before.commit_nanoseconds,
            waiting_claims: self.waiting_claims,
            processor: self.processor - before.processor,
            memory: self.memory,
        }
    }
}

impl Servers {
    pub(crate) fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let questions = process.stdin.take().unwrap();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        let [constant, reading, ours] = serde_json::from_str(&line(&mut answers)).unwrap();
        Self {
            process,
            questions,
            answers,
            constant,
            reading,
            ours,
        }
    }

    pub(crate) fn figures(&mut self) -> Figures {
        self.ask("")
    }

    /// Puts jobs into our server. Takes a while.
    pub(crate) fn fill(&mut self, jobs: u64, queues: u64) {
        self.ask(&format!("{jobs} {queues}"));
    }

    fn ask(&mut self, question: &str) -> Figures {
        writeln!(self.questions, "{question}").unwrap();
        serde_json::from_str(&line(&mut self.answers)).unwrap()
    }

    pub(crate) fn stop(mut self) {
        drop(self.questions);
        assert!(self.process.wait().unwrap().success());
    }
}

fn line(answers: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    line
}

/// Runs the servers' process.
pub(crate) fn run() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // In the build folder, which is on a real disk; a temporary folder may not be.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut config = Config::new(format!("file:{}", folder.path().display()));
    config.listen = "127.0.0.1:0".parse().unwrap();
    let server = runtime.block_on(async {
        let server = Server::start(config).await.unwrap();
        server.queue().serving().await.unwrap();
        let number = Arc::new(AtomicU64::new(1_000_000));
        let addresses = [
            serve(post(constant)).await,
            serve(post(move |body| reading(body, number.clone()))).await,
            server.address(),
        ];
        println!("{}", text(&addresses));
        server
    });
    for question in std::io::stdin().lines() {
        let question = question.unwrap();
        if let Some((jobs, queues)) = question.split_once(' ') {
            let (jobs, queues) = (jobs.parse().unwrap(), queues.parse().unwrap());
            runtime.block_on(super::reads::fill(server.queue(), jobs, queues));
        }
        let metrics = server.queue().metrics();
        let figures = Figures {
            records: metrics.records,
            commits: metrics.commits,
            commit_nanoseconds: metrics.commit_latency.total_nanoseconds,
            waiting_claims: metrics.waiting_claims,
            processor: processor(),
            memory: super::reads::memory(),
        };
        println!("{}", text(&figures));
    }
    runtime.block_on(server.stop());
}

async fn serve(submit: MethodRouter) -> SocketAddr {
    let router = Router::new().route("/v1/jobs", submit);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

const KIND: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// Takes a job, and always gives the same answer.
async fn constant(_: bytes::Bytes) -> impl IntoResponse {
    let answer = r#"{"jobs":[{"id":"job:1000000","status":"created"}]}"#;
    (StatusCode::CREATED, KIND, answer)
}

/// Parses a job and writes a matching answer, but stores nothing.
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

/// The processor time that this process has used.
pub(crate) fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = text.rsplit_once(')').unwrap();
    let ticks = fields.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
