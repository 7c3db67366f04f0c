//! Makes the load and measures it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use tenure_client::api::{ClaimRequest, SubmitStatus};
use tenure_client::{
    Claim, Client, Completed, Ended, Error, JobId, Key, NewJob, Payload, QueueName,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::args::{Bench, Workload};

/// The type of the jobs.
const JOB_TYPE: &str = "bench";

/// How many jobs one claim takes.
const CLAIM: u32 = 100;

/// The most calls under way with `--rate`. Further ones wait, and their wait is measured.
const OUTSTANDING_MAX: usize = 4_096;

/// How many deletes are under way at once.
const DELETERS: usize = 64;

/// How long to wait until the remaining jobs are done.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest latency that is recorded exactly.
const LATENCY_MAX: Duration = Duration::from_secs(600);

/// The measurements. Latencies are in microseconds.
pub(super) struct Meter {
    submit: Mutex<Histogram<u64>>,
    pick_up: Mutex<Histogram<u64>>,
    whole: Mutex<Histogram<u64>>,
    jobs: AtomicU64,
    completed: AtomicU64,
    calls: AtomicU64,
    failed: AtomicU64,
    first_error: Mutex<Option<String>>,
    /// The number of ids made so far.
    ids: AtomicU64,
    /// When each job that was not worked off yet was submitted, or was to be.
    started: Mutex<HashMap<String, Instant>>,
}

/// Which latency.
#[derive(Debug, Clone, Copy)]
pub(super) enum Latency {
    /// From the start of a submit to its answer.
    Submit,
    /// From the start of a submit to the answer of the claim that has the job.
    PickUp,
    /// From the start of a submit to the answer of the completion.
    Whole,
}

impl Meter {
    pub(super) fn new() -> anyhow::Result<Self> {
        let longest = u64::try_from(LATENCY_MAX.as_micros())?;
        let histogram = || Ok::<_, anyhow::Error>(Mutex::new(Histogram::new_with_max(longest, 3)?));
        Ok(Self {
            submit: histogram()?,
            pick_up: histogram()?,
            whole: histogram()?,
            jobs: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            first_error: Mutex::new(None),
            ids: AtomicU64::new(0),
            started: Mutex::new(HashMap::new()),
        })
    }

    pub(super) fn jobs(&self) -> u64 {
        self.jobs.load(Ordering::Relaxed)
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn first_error(&self) -> Option<String> {
        lock(&self.first_error).clone()
    }

    pub(super) fn histogram(&self, latency: Latency) -> MutexGuard<'_, Histogram<u64>> {
        lock(match latency {
            Latency::Submit => &self.submit,
            Latency::PickUp => &self.pick_up,
            Latency::Whole => &self.whole,
        })
    }

    fn record(&self, latency: Latency, since: Instant) {
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.histogram(latency).saturating_record(micros);
    }

    fn fail(&self, error: &Error) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        lock(&self.first_error).get_or_insert_with(|| {
            let mut text = error.to_string();
            if let Some(source) = std::error::Error::source(error) {
                text += &format!(": {source}");
            }
            text
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What every caller needs.
#[derive(Clone)]
struct Caller {
    client: Client,
    queue: QueueName,
    payload: Payload,
    batch: u32,
    is_tracked: bool,
    meter: Arc<Meter>,
}

/// Makes the load, and returns for how long jobs were submitted.
pub(super) async fn run(
    client: &Client,
    queue: &QueueName,
    arguments: &Bench,
    meter: &Arc<Meter>,
) -> Duration {
    let text = "x".repeat(arguments.payload_bytes as usize - 2);
    let caller = Caller {
        client: client.clone(),
        queue: queue.clone(),
        payload: Payload::of(&text).unwrap_or_default(),
        batch: arguments.batch,
        is_tracked: arguments.workload == Workload::Work,
        meter: meter.clone(),
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    if caller.is_tracked {
        for number in 0..arguments.workers {
            workers.spawn(work(caller.clone(), number, is_over.clone()));
        }
    }
    let started = Instant::now();
    let until = started + arguments.duration;
    match arguments.rate {
        Some(rate) => at_rate(&caller, rate, until).await,
        None => at_concurrency(&caller, arguments.concurrency, until).await,
    }
    let elapsed = started.elapsed();
    let give_up = Instant::now() + PATIENCE;
    while caller.is_tracked && meter.completed() < meter.jobs() && Instant::now() < give_up {
        sleep(Duration::from_millis(20)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    workers.shutdown().await;
    elapsed
}

/// Each caller sends its next call when the last is answered.
async fn at_concurrency(caller: &Caller, concurrency: u32, until: Instant) {
    let mut callers = JoinSet::new();
    for _ in 0..concurrency {
        let caller = caller.clone();
        callers.spawn(async move {
            while Instant::now() < until {
                caller.submit(Instant::now()).await;
            }
        });
    }
    callers.join_all().await;
}

/// Calls start at fixed times, even if earlier ones are still under way.
async fn at_rate(caller: &Caller, rate: u32, until: Instant) {
    let started = Instant::now();
    let slots = Arc::new(Semaphore::new(OUTSTANDING_MAX));
    let mut calls = JoinSet::new();
    for number in 0_u64.. {
        let due = started + Duration::from_secs_f64(number as f64 / f64::from(rate));
        if due >= until {
            break;
        }
        sleep_until(due).await;
        let permit = slots.clone().acquire_owned().await;
        let caller = caller.clone();
        calls.spawn(async move {
            caller.submit(due).await;
            drop(permit);
        });
        while calls.try_join_next().is_some() {}
    }
    calls.join_all().await;
}

impl Caller {
    /// One submit, which should have started at `due`.
    async fn submit(&self, due: Instant) {
        let first = self
            .meter
            .ids
            .fetch_add(self.batch.into(), Ordering::Relaxed);
        let ids: Vec<String> = (first..first + u64::from(self.batch))
            .map(|number| id_of(&self.queue, number))
            .collect();
        let job = |id| {
            NewJob::new(JOB_TYPE, &self.payload)
                .queue(self.queue.as_str())
                .id(id)
        };
        let jobs: Vec<NewJob> = ids.iter().map(job).collect();
        if self.is_tracked {
            // Noted before the job is sent: a worker may finish it before the submit is answered.
            let marks = ids.iter().map(|id| (id.clone(), due));
            lock(&self.meter.started).extend(marks);
        }
        self.meter.calls.fetch_add(1, Ordering::Relaxed);
        match self.client.submit_all(jobs).await {
            Ok(submitted) => {
                self.meter.record(Latency::Submit, due);
                let is_there =
                    |status| matches!(status, SubmitStatus::Created | SubmitStatus::Duplicate);
                let there = submitted.iter().filter(|one| is_there(one.status));
                self.meter
                    .jobs
                    .fetch_add(there.count() as u64, Ordering::Relaxed);
            }
            Err(error) => self.meter.fail(&error),
        }
    }
}

/// Claims and completes jobs until the benchmark is over.
async fn work(caller: Caller, number: u32, is_over: Arc<AtomicBool>) {
    let mut request = claim_of(&caller.queue, &format!("bench-{number}"));
    request.wait_ms = 1_000;
    while !is_over.load(Ordering::Relaxed) {
        let jobs = match caller.client.claim(&request).await {
            Ok(jobs) => jobs,
            Err(error) => {
                caller.meter.fail(&error);
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let arrived = Instant::now();
        let ends: Vec<Completed> = jobs
            .iter()
            .map(|job| Completed {
                claim: Claim::from(job),
                result: None,
            })
            .collect();
        if ends.is_empty() {
            continue;
        }
        match caller.client.complete_all(ends).await {
            Ok(ended) => {
                for (job, ended) in jobs.iter().zip(ended) {
                    if ended == Ended::Done {
                        caller.finished(&job.id, arrived);
                    }
                }
            }
            Err(error) => caller.meter.fail(&error),
        }
    }
}

impl Caller {
    fn finished(&self, id: &JobId, arrived: Instant) {
        self.meter.completed.fetch_add(1, Ordering::Relaxed);
        let started = lock(&self.meter.started).remove(id.as_str());
        let Some(started) = started else {
            return;
        };
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.meter
            .histogram(Latency::PickUp)
            .saturating_record(micros(arrived.saturating_duration_since(started)));
        self.meter.record(Latency::Whole, started);
    }
}

fn claim_of(queue: &QueueName, worker: &str) -> ClaimRequest {
    let worker = Key::new(worker).expect("a constant and a number");
    let mut request = ClaimRequest::new(worker);
    request.queues = vec![queue.clone()];
    request.max = CLAIM;
    request
}

/// Claims and completes the remaining jobs.
pub(super) async fn clean(client: &Client, queue: &QueueName) -> Result<(), Error> {
    let request = claim_of(queue, "bench");
    loop {
        let jobs = client.claim(&request).await?;
        if jobs.is_empty() {
            return Ok(());
        }
        let ends = jobs.iter().map(|job| Completed {
            claim: Claim::from(job),
            result: None,
        });
        client.complete_all(ends.collect()).await?;
    }
}

/// Deletes the jobs, which have all ended: otherwise they would push real ones out of the limited number of finished
/// jobs that are kept. Returns how many are left; a token with the scope `worker` may not delete any.
pub(super) async fn delete(
    client: &Client,
    queue: &QueueName,
    meter: &Arc<Meter>,
) -> Result<u64, Error> {
    let next = Arc::new(AtomicU64::new(0));
    let made = meter.ids.load(Ordering::Relaxed);
    let mut callers = JoinSet::new();
    for _ in 0..DELETERS {
        let (client, queue, next) = (client.clone(), queue.clone(), next.clone());
        callers.spawn(async move {
            let mut left = 0;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= made {
                    return Ok(left);
                }
                let id = JobId::new(id_of(&queue, number)).expect("it was submitted");
                match client.forget(&id).await {
                    Ok(()) | Err(Error::NotFound(_)) => {}
                    // Someone else claimed it, or paused the queue.
                    Err(Error::State(_)) => left += 1,
                    Err(error) => return Err(error),
                }
            }
        });
    }
    let mut left = 0;
    while let Some(ended) = callers.join_next().await {
        left += ended.expect("it does not panic, and nobody aborts it")?;
    }
    Ok(left)
}

/// The id of a job.
fn id_of(queue: &QueueName, number: u64) -> String {
    format!("{queue}-{number:x}")
}
