//! The work, the same for every protocol: see `bench/clients/queue.mjs`, which does the same in Node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::peers::{Connection, Kind};
use crate::spec::{Error, Harness, Spec, each, micros, quantiles, with};

pub(crate) async fn submit(kind: Kind, spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let (callers, batch) = (spec.number("callers"), spec.number("batch").max(1));
    let mut connections = Vec::new();
    for _ in 0..callers {
        connections.push(kind.connect(&spec).await?);
    }
    harness.tell(json!({"ready": true})).await?;
    let began = Instant::now();
    let until = began + spec.seconds();
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        let spec = spec.clone();
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let payloads = spec.payloads(batch as usize);
                let sent = Instant::now();
                connection.submit(&spec, &payloads).await?;
                latencies.push(u64::try_from(sent.elapsed().as_micros())?);
            }
            Ok((latencies, connection))
        });
    }
    let ends = each(tasks).await?;
    let seconds = began.elapsed().as_secs_f64();
    let (latencies, connections): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    let latencies = latencies.concat();
    let jobs = latencies.len() as u64 * batch;
    let answer = json!({"jobs": jobs, "seconds": seconds});
    harness.tell(with(answer, quantiles(latencies, ""))).await?;
    // Open until the harness has counted what went through them.
    drop(connections);
    Ok(())
}

/// Submits jobs, as many as there is time for, and says how many.
async fn preload(kind: Kind, spec: &Arc<Spec>, jobs: u64) -> Result<u64, Error> {
    let until = Instant::now() + Duration::from_secs(spec.number("preload_seconds"));
    let left = Arc::new(AtomicU64::new(jobs));
    let mut tasks = JoinSet::new();
    let (callers, size) = kind.preloaders();
    for _ in 0..if jobs > 0 { callers } else { 0 } {
        let (spec, left) = (spec.clone(), left.clone());
        let mut connection = kind.connect(&spec).await?;
        tasks.spawn(async move {
            let take = |left: u64| left.checked_sub(left.min(size));
            let mut made = 0;
            while Instant::now() < until
                && let Ok(before @ 1..) =
                    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            {
                let payloads = spec.payloads(before.min(size) as usize);
                connection.submit(&spec, &payloads).await?;
                made += before.min(size);
            }
            Ok(made)
        });
    }
    Ok(each(tasks).await?.into_iter().sum())
}

pub(crate) async fn preload_only(kind: Kind, spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    harness.tell(json!({"ready": true})).await?;
    let began = Instant::now();
    let jobs = preload(kind, &spec, spec.number("jobs")).await?;
    let seconds = began.elapsed().as_secs_f64();
    harness
        .tell(json!({"jobs": jobs, "seconds": seconds}))
        .await
}

/// Workers on a connection each, that take one job at a time and end it.
struct Workers {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<(), Error>>,
}

#[derive(Default)]
struct Shared {
    done: AtomicU64,
    /// When the last job was done.
    last: AtomicU64,
    is_over: AtomicBool,
    /// From when a job was made until a worker had it.
    pick_ups: std::sync::Mutex<Vec<u64>>,
    /// Told of every job.
    picked: Notify,
    wanted: AtomicU64,
    all_done: Notify,
}

impl Workers {
    async fn connect(kind: Kind, spec: &Arc<Spec>, count: u64) -> Result<Vec<Connection>, Error> {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(kind.connect(spec).await?);
        }
        Ok(connections)
    }

    fn start(spec: &Arc<Spec>, connections: Vec<Connection>, wanted: u64) -> Self {
        let shared = Arc::new(Shared::default());
        shared.wanted.store(wanted, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        for connection in connections {
            tasks.spawn(worker(spec.clone(), connection, shared.clone()));
        }
        Self { shared, tasks }
    }

    fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    fn pick_ups(&self) -> Vec<u64> {
        std::mem::take(&mut *self.shared.pick_ups.lock().expect("no panic"))
    }

    /// Ends without a word if none of them has failed. Only after the harness has counted what went through their
    /// connections.
    async fn stop(mut self) -> Result<(), Error> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        while let Some(end) = self.tasks.try_join_next() {
            end??;
        }
        self.tasks.shutdown().await;
        Ok(())
    }
}

async fn worker(
    spec: Arc<Spec>,
    mut connection: Connection,
    shared: Arc<Shared>,
) -> Result<(), Error> {
    let mut held = None;
    while !shared.is_over.load(Ordering::Relaxed) {
        let had = held.is_some();
        let next = connection.end_and_take(&spec, held.take()).await?;
        if had {
            shared.last.store(micros(), Ordering::Relaxed);
            let done = shared.done.fetch_add(1, Ordering::Relaxed) + 1;
            if done == shared.wanted.load(Ordering::Relaxed) {
                shared.all_done.notify_one();
            }
        }
        if let Some(job) = &next {
            let waited = micros().saturating_sub(job.made_at);
            shared.pick_ups.lock().expect("no panic").push(waited);
            shared.picked.notify_one();
        }
        held = next;
    }
    Ok(())
}

pub(crate) async fn work_off(kind: Kind, spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let loaded = preload(kind, &spec, spec.number("preload")).await?;
    let connections = Workers::connect(kind, &spec, spec.number("concurrency")).await?;
    harness.tell(json!({"ready": true})).await?;
    let began = micros();
    let workers = Workers::start(&spec, connections, loaded);
    let _ = timeout(spec.seconds(), workers.shared.all_done.notified()).await;
    let seconds = workers
        .shared
        .last
        .load(Ordering::Relaxed)
        .saturating_sub(began) as f64
        / 1e6;
    harness
        .tell(json!({"jobs": workers.done(), "seconds": seconds}))
        .await?;
    workers.stop().await
}

pub(crate) async fn pick_up(kind: Kind, spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let connections = Workers::connect(kind, &spec, 1).await?;
    let workers = Workers::start(&spec, connections, 0);
    let mut caller = kind.connect(&spec).await?;
    sleep(Duration::from_millis(500)).await;
    harness.tell(json!({"ready": true})).await?;
    let (began, mut jobs) = (Instant::now(), 0);
    while jobs < spec.number("samples") && began.elapsed() < spec.seconds() {
        caller.submit(&spec, &spec.payloads(1)).await?;
        jobs += 1;
        let _ = timeout(Duration::from_secs(5), workers.shared.picked.notified()).await;
        sleep(Duration::from_millis(spec.number("gap_ms"))).await;
    }
    let answer = json!({"jobs": jobs, "seconds": began.elapsed().as_secs_f64()});
    let answer = with(answer, quantiles(workers.pick_ups(), "pick_up_"));
    harness.tell(answer).await?;
    workers.stop().await
}

pub(crate) async fn open(kind: Kind, spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let connections = Workers::connect(kind, &spec, 64).await?;
    let workers = Workers::start(&spec, connections, 0);
    let callers = Workers::connect(kind, &spec, 128).await?;
    sleep(Duration::from_millis(500)).await;
    harness.tell(json!({"ready": true})).await?;
    let (began, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let (until, rate) = (began + spec.seconds(), spec.number("rate").max(1) as f64);
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for mut caller in callers {
        let (spec, next, latencies) = (spec.clone(), next.clone(), latencies.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let due = began + Duration::from_secs_f64(number as f64 / rate);
                if due >= until {
                    return Ok(caller);
                }
                // Timers are a millisecond late, which is not the broker's doing: what counts is when all callers were
                // busy at its time.
                let sent = if Instant::now() < due {
                    sleep_until(due.into()).await;
                    Instant::now()
                } else {
                    due
                };
                caller.submit(&spec, &spec.payloads(1)).await?;
                latencies
                    .lock()
                    .await
                    .push(u64::try_from(sent.elapsed().as_micros())?);
            }
        });
    }
    let callers = each(tasks).await?;
    let seconds = began.elapsed().as_secs_f64();
    let asked = (spec.seconds().as_secs_f64() * rate) as u64;
    let end = Instant::now() + Duration::from_secs(2);
    while workers.done() < asked && Instant::now() < end {
        sleep(Duration::from_millis(10)).await;
    }
    let latencies = std::mem::take(&mut *latencies.lock().await);
    let answer = json!({"jobs": latencies.len(), "asked": asked, "seconds": seconds});
    let answer = with(answer, quantiles(latencies, ""));
    let answer = with(answer, quantiles(workers.pick_ups(), "pick_up_"));
    harness.tell(answer).await?;
    drop(callers);
    workers.stop().await
}

pub(crate) async fn churn(kind: Kind, spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let connections = Workers::connect(kind, &spec, 64).await?;
    let workers = Workers::start(&spec, connections, 0);
    let callers = Workers::connect(kind, &spec, spec.number("callers")).await?;
    harness.tell(json!({"ready": true})).await?;
    let (began, until) = (Instant::now(), Instant::now() + spec.seconds());
    let mut tasks = JoinSet::new();
    for mut caller in callers {
        let spec = spec.clone();
        tasks.spawn(async move {
            while Instant::now() < until {
                let payloads = spec.payloads(spec.number("batch") as usize);
                caller.submit(&spec, &payloads).await?;
            }
            Ok(caller)
        });
    }
    let mut marks = Vec::new();
    for quarter in 1..=4 {
        sleep_until((began + spec.seconds() * quarter / 4).into()).await;
        marks.push(workers.done());
    }
    let callers = each(tasks).await?;
    let per = spec.seconds().as_secs_f64() / 4.0;
    let answer = json!({
        "jobs": marks[3], "seconds": spec.seconds().as_secs_f64(),
        "first_per_second": marks[0] as f64 / per, "last_per_second": (marks[3] - marks[2]) as f64 / per,
    });
    harness.tell(answer).await?;
    drop(callers);
    workers.stop().await
}

pub(crate) async fn idle(kind: Kind, spec: Arc<Spec>) -> Result<(), Error> {
    let mut harness = Harness::new();
    let connections = Workers::connect(kind, &spec, 16).await?;
    let workers = Workers::start(&spec, connections, 0);
    sleep(Duration::from_secs(1)).await;
    harness.tell(json!({"ready": true})).await?;
    sleep(spec.seconds()).await;
    harness
        .tell(json!({"jobs": 0, "seconds": spec.seconds().as_secs_f64()}))
        .await?;
    workers.stop().await
}
