//! Puts load on a broker with Tenure's own client and worker for Rust, and holds elections with its library.
//!
//!     tenure-clients queue SECTION SPEC          SPEC is JSON, see bench/benchmark/drivers.py
//!     tenure-clients elections hold SPEC         leads `count` elections on the store `url`
//!
//! The work is the same as in `bench/clients/queue.mjs`. The client and the worker run as they come, on tokio's usual
//! runtime.

// The helpers are shared with the other driver, which needs a few more.
#[allow(dead_code)]
mod spec;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure::{Node, NodeOptions};
use tenure_client::{Client, Failure, Job, NewJob, Worker, WorkerEvent};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use spec::{Error, Harness, Spec, each, micros, quantiles, with};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, section, spec] = arguments.as_slice() else {
        return Err("use `tenure-clients queue SECTION SPEC`".into());
    };
    let spec = Spec::read(spec)?;
    match (kind.as_str(), section.as_str()) {
        ("queue", "submit") => submit(spec).await,
        ("queue", "preload") => preload_only(spec).await,
        ("queue", "workoff") => work_off(spec).await,
        ("queue", "pickup") => pick_up(spec).await,
        ("queue", "open") => open(spec).await,
        ("queue", "churn") => churn(spec).await,
        ("queue", "idle") => idle(spec).await,
        ("elections", "hold") => hold_elections(spec).await,
        _ => Err(format!("there is no section {kind} {section}").into()),
    }
}

fn client(spec: &Spec) -> Result<Client, Error> {
    Ok(Client::new([format!("http://{}", spec.text("url"))])?)
}

fn job(spec: &Spec) -> NewJob {
    let pad = (spec.number("payload_bytes") as usize).saturating_sub(30);
    let payload = json!({"at": micros(), "pad": "x".repeat(pad)});
    NewJob::new("bench", &payload).queue(spec.text("queue"))
}

fn jobs(spec: &Spec, count: u64) -> Vec<NewJob> {
    (0..count).map(|_| job(spec)).collect()
}

async fn submit(spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let (client, batch) = (client(&spec)?, spec.number("batch").max(1));
    client.queues().await?;
    harness.tell(json!({"ready": true})).await?;
    let began = Instant::now();
    let until = began + spec.seconds();
    let mut callers = JoinSet::new();
    for _ in 0..spec.number("callers") {
        let (client, spec) = (client.clone(), spec.clone());
        callers.spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let sent = Instant::now();
                if batch > 1 {
                    client.submit_all(jobs(&spec, batch)).await?;
                } else {
                    client.submit(job(&spec)).await?;
                }
                latencies.push(u64::try_from(sent.elapsed().as_micros())?);
            }
            Ok(latencies)
        });
    }
    let latencies = each(callers).await?.concat();
    let seconds = began.elapsed().as_secs_f64();
    let answer = json!({"jobs": latencies.len() as u64 * batch, "seconds": seconds});
    harness.tell(with(answer, quantiles(latencies, ""))).await
}

/// Submits jobs, as many as there is time for, and says how many.
async fn preload(client: &Client, spec: &Arc<Spec>, jobs_wanted: u64) -> Result<u64, Error> {
    let until = Instant::now() + Duration::from_secs(spec.number("preload_seconds"));
    let mut left = jobs_wanted;
    while left > 0 && Instant::now() < until {
        let mut callers = JoinSet::new();
        for _ in 0..4 {
            let count = left.min(1000);
            left -= count;
            let (client, spec) = (client.clone(), spec.clone());
            callers.spawn(async move {
                client.submit_all(jobs(&spec, count)).await?;
                Ok(())
            });
        }
        each(callers).await?;
    }
    Ok(jobs_wanted - left)
}

async fn preload_only(spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let client = client(&spec)?;
    harness.tell(json!({"ready": true})).await?;
    let began = Instant::now();
    let jobs = preload(&client, &spec, spec.number("jobs")).await?;
    let seconds = began.elapsed().as_secs_f64();
    harness
        .tell(json!({"jobs": jobs, "seconds": seconds}))
        .await
}

/// What the handler and the worker's events leave.
#[derive(Default)]
struct Noted {
    done: AtomicU64,
    last: AtomicU64,
    wanted: u64,
    pick_ups: Mutex<Vec<u64>>,
    picked: Notify,
    all_done: Notify,
}

/// A worker that runs, and what stops it.
struct Running {
    noted: Arc<Noted>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    fn start(client: &Client, spec: &Spec, concurrency: usize, wanted: u64) -> Result<Self, Error> {
        let noted = Arc::new(Noted {
            wanted,
            ..Noted::default()
        });
        let (seen, ended) = (noted.clone(), noted.clone());
        let worker = Worker::builder(client.clone())
            .queue(spec.text("queue"))
            .concurrency(concurrency)
            .drain(Duration::from_millis(100))
            .handle("bench", move |job: Job<Value>| {
                let made_at = job.payload["at"].as_u64().unwrap_or_default();
                let waited = micros().saturating_sub(made_at);
                seen.pick_ups.lock().expect("no panic").push(waited);
                seen.picked.notify_one();
                async { Ok::<(), Failure>(()) }
            })
            .on_event(move |event| {
                if let WorkerEvent::Completed(_) = event {
                    ended.last.store(micros(), Ordering::Relaxed);
                    if ended.done.fetch_add(1, Ordering::Relaxed) + 1 == ended.wanted {
                        ended.all_done.notify_one();
                    }
                }
            })
            .build()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = worker.run(stopped).await {
                eprintln!("the worker failed: {error}");
            }
        });
        Ok(Self { noted, stop, task })
    }

    fn done(&self) -> u64 {
        self.noted.done.load(Ordering::Relaxed)
    }

    fn pick_ups(&self) -> Vec<u64> {
        std::mem::take(&mut *self.noted.pick_ups.lock().expect("no panic"))
    }

    async fn stop(self) {
        self.stop.cancel();
        let _ = timeout(Duration::from_secs(2), self.task).await;
    }
}

async fn work_off(spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let client = client(&spec)?;
    let loaded = preload(&client, &spec, spec.number("preload")).await?;
    client.queues().await?;
    harness.tell(json!({"ready": true})).await?;
    let began = micros();
    let concurrency = spec.number("concurrency") as usize;
    let worker = Running::start(&client, &spec, concurrency, loaded)?;
    let _ = timeout(spec.seconds(), worker.noted.all_done.notified()).await;
    let last = worker.noted.last.load(Ordering::Relaxed);
    let seconds = last.saturating_sub(began) as f64 / 1e6;
    harness
        .tell(json!({"jobs": worker.done(), "seconds": seconds}))
        .await?;
    worker.stop().await;
    Ok(())
}

async fn pick_up(spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let client = client(&spec)?;
    let worker = Running::start(&client, &spec, 16, 0)?;
    sleep(Duration::from_millis(500)).await;
    harness.tell(json!({"ready": true})).await?;
    let (began, mut jobs) = (Instant::now(), 0);
    while jobs < spec.number("samples") && began.elapsed() < spec.seconds() {
        client.submit(job(&spec)).await?;
        jobs += 1;
        let _ = timeout(Duration::from_secs(5), worker.noted.picked.notified()).await;
        sleep(Duration::from_millis(spec.number("gap_ms"))).await;
    }
    let answer = json!({"jobs": jobs, "seconds": began.elapsed().as_secs_f64()});
    let answer = with(answer, quantiles(worker.pick_ups(), "pick_up_"));
    harness.tell(answer).await?;
    worker.stop().await;
    Ok(())
}

async fn open(spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let client = client(&spec)?;
    let worker = Running::start(&client, &spec, 64, 0)?;
    sleep(Duration::from_millis(500)).await;
    harness.tell(json!({"ready": true})).await?;
    let (began, rate) = (Instant::now(), spec.number("rate").max(1));
    let mut calls = JoinSet::new();
    let mut asked = 0;
    loop {
        let due = began + Duration::from_secs_f64(asked as f64 / rate as f64);
        if due >= began + spec.seconds() {
            break;
        }
        sleep_until(due.into()).await;
        asked += 1;
        let (client, spec) = (client.clone(), spec.clone());
        calls.spawn(async move {
            let sent = Instant::now();
            client.submit(job(&spec)).await?;
            Ok(u64::try_from(sent.elapsed().as_micros())?)
        });
    }
    let latencies = each(calls).await?;
    let seconds = began.elapsed().as_secs_f64();
    let end = Instant::now() + Duration::from_secs(2);
    while worker.done() < asked && Instant::now() < end {
        sleep(Duration::from_millis(10)).await;
    }
    let answer = json!({"jobs": latencies.len(), "asked": asked, "seconds": seconds});
    let answer = with(answer, quantiles(latencies, ""));
    let answer = with(answer, quantiles(worker.pick_ups(), "pick_up_"));
    harness.tell(answer).await?;
    worker.stop().await;
    Ok(())
}

async fn churn(spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let client = client(&spec)?;
    let worker = Running::start(&client, &spec, 64, 0)?;
    harness.tell(json!({"ready": true})).await?;
    let (began, until) = (Instant::now(), Instant::now() + spec.seconds());
    let mut callers = JoinSet::new();
    for _ in 0..spec.number("callers") {
        let (client, spec) = (client.clone(), spec.clone());
        callers.spawn(async move {
            while Instant::now() < until {
                client.submit_all(jobs(&spec, spec.number("batch"))).await?;
            }
            Ok(())
        });
    }
    let mut marks = Vec::new();
    for quarter in 1..=4 {
        sleep_until((began + spec.seconds() * quarter / 4).into()).await;
        marks.push(worker.done());
    }
    each(callers).await?;
    let per = spec.seconds().as_secs_f64() / 4.0;
    let answer = json!({
        "jobs": marks[3], "seconds": spec.seconds().as_secs_f64(),
        "first_per_second": marks[0] as f64 / per, "last_per_second": (marks[3] - marks[2]) as f64 / per,
    });
    harness.tell(answer).await?;
    worker.stop().await;
    Ok(())
}

async fn idle(spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let client = client(&spec)?;
    let worker = Running::start(&client, &spec, 16, 0)?;
    sleep(Duration::from_secs(1)).await;
    harness.tell(json!({"ready": true})).await?;
    sleep(spec.seconds()).await;
    harness
        .tell(json!({"jobs": 0, "seconds": spec.seconds().as_secs_f64()}))
        .await?;
    worker.stop().await;
    Ok(())
}

/// Leads `count` elections in one process, and holds them.
async fn hold_elections(spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let node = Node::start(NodeOptions::new(spec.text("url"), "bench")).await?;
    node.joined().await?;
    let began = Instant::now();
    let mut elections = Vec::new();
    for number in 0..spec.number("count") {
        elections.push(node.join(&format!("election-{number}")).await?);
    }
    let mut terms = Vec::new();
    for election in &elections {
        terms.push(election.elected().await?);
    }
    let all_led = began.elapsed().as_secs_f64();
    sleep(Duration::from_secs(1)).await;
    harness.tell(json!({"ready": true})).await?;
    sleep(spec.seconds()).await;
    let lost = terms.iter().filter(|term| term.check().is_err()).count();
    harness
        .tell(json!({
            "jobs": 0, "seconds": spec.seconds().as_secs_f64(), "all_led_seconds": all_led, "lost": lost,
        }))
        .await?;
    node.shutdown().await;
    Ok(())
}
