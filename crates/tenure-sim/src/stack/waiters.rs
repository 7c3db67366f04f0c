//! Claims that wait for several queues with rates, when the faults are over: a queue that lets a job through has it
//! taken soon, as long as someone waits for it, whatever other queues have to offer.
//!
//! The rates are low and the work takes long, so that most jobs are let through when nothing is submitted or ended: only
//! the opening of their queue can wake those that wait. Beside them lies a job that nobody of them takes, in a queue that is open all the time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::queue::{ClaimRequest, Key, QueueOptions, Rate, Submission, SubmitStatus};
use tenure_core::{JobId, JobType, QueueName};
use tokio::time::Instant;

use super::network::Route;
use super::people::insist;
use super::worker::Worker;
use super::world::World;
use crate::invariants::Violation;

/// The queues with rates, and the one whose job nobody takes.
const QUEUES: [&str; 3] = ["rate-0", "rate-1", "rate-2"];
const OPEN: &str = "open";

/// The type that those who wait can do, and the one of the job that nobody takes.
const TYPE: &str = "rated";
const OTHER_TYPE: &str = "other";

const WAITERS: usize = 6;
const JOBS: usize = 10;

/// How long a claim waits: far longer than any queue is closed.
const WAIT: Duration = Duration::from_secs(30);
const LEASE_MS: u32 = 20_000;

/// How long a job may lie in a queue that lets it through while someone waits for it: a few commits.
const LATE_MAX: Duration = Duration::from_secs(3);

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long all of it may take: the slowest rate at half speed, and another leader.
const ALL_MAX: Duration = Duration::from_secs(5 * 60);

/// Who waits for which queues.
#[derive(Debug, Default)]
struct Waiting {
    claims: Mutex<BTreeMap<usize, Vec<QueueName>>>,
    is_over: AtomicBool,
}

/// Since when a queue has had a job that it lets through, while someone waited for it, and in which term.
type Idle = BTreeMap<QueueName, (Instant, u64)>;

/// Sets rates, lets workers wait, submits, and looks on until every job is done.
pub(crate) async fn check(world: &Arc<World>) -> Result<(), Violation> {
    let mut route = Route::default();
    for name in QUEUES {
        let options = draw(world);
        insist(world, &mut route, move |queue| async move {
            queue.set_queue(queue_name(name), options).await
        })
        .await;
    }
    submit(world, &mut route, vec![job("open", OPEN, OTHER_TYPE)]).await;
    let waiting = Arc::new(Waiting::default());
    for number in 0..WAITERS {
        world.run_client(wait(world.clone(), waiting.clone(), number));
    }
    let jobs: Vec<Submission> = (0..JOBS)
        .map(|number| {
            let queue = *world.random().pick(&QUEUES);
            job(&format!("rated-{number}"), queue, TYPE)
        })
        .collect();
    let ids: Vec<JobId> = jobs.iter().filter_map(|job| job.id.clone()).collect();
    let submits = {
        let world = world.clone();
        async move {
            let mut route = Route::default();
            let (first, second) = jobs.split_at(JOBS * 2 / 3);
            for jobs in [first, second] {
                world.pause_about(Duration::from_secs(1)).await;
                submit(&world, &mut route, jobs.to_vec()).await;
            }
        }
    };
    world.run_client(submits);
    let verdict = look(world, &waiting, &ids).await;
    waiting.is_over.store(true, Ordering::Relaxed);
    verdict?;
    world.say("calm", "every claim that waits is served");
    insist(world, &mut route, |queue| async move {
        queue.cancel(vec![job_id("open")]).await
    })
    .await;
    world.verdict()
}

/// A rate that lets one job through, or two, and the next a second or two later.
fn draw(world: &World) -> QueueOptions {
    let mut random = world.random();
    let rate = Rate {
        jobs: *random.pick(&[1, 2]),
        period_ms: *random.pick(&[1_000, 2_000]),
        burst: *random.pick(&[Some(1), Some(2), None]),
    };
    QueueOptions {
        concurrency: None,
        rate: Some(rate),
    }
}

/// Claims and works until all is over.
async fn wait(world: Arc<World>, waiting: Arc<Waiting>, number: usize) {
    let name = format!("r{number}");
    let mut worker = Worker::new(world.clone(), name.clone());
    while !waiting.is_over.load(Ordering::Relaxed) {
        let queues = some_queues(&world);
        let mut claim = ClaimRequest::new(Key::new(&name).expect("a valid key")).waiting(WAIT);
        claim.types = vec![job_type(TYPE)];
        (claim.lease_ms, claim.max) = (LEASE_MS, *world.random().pick(&[1, 1, 3]));
        claim.queues.clone_from(&queues);
        let wanted = if queues.is_empty() {
            QUEUES.map(queue_name).to_vec()
        } else {
            queues
        };
        waiting.claims().insert(number, wanted);
        let jobs = worker.ask(claim).await;
        waiting.claims().remove(&number);
        for job in jobs {
            // The end of a job is a reason to look at its queue: for a while there is none.
            let seconds = *world.random().pick(&[0, 5, 7]);
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            worker.work(job).await;
        }
    }
}

/// One queue, several, or whatever queue there is.
fn some_queues(world: &World) -> Vec<QueueName> {
    let mut random = world.random();
    if random.chance(100) {
        return Vec::new();
    }
    let count = *random.pick(&[1, 2, 2, 3]);
    let first = *random.pick(&[0, 1, 2]);
    let names = QUEUES.iter().cycle().skip(first).take(count);
    names.copied().map(queue_name).collect()
}

/// Looks on until every job is done.
async fn look(world: &Arc<World>, waiting: &Waiting, ids: &[JobId]) -> Result<(), Violation> {
    let until = Instant::now() + ALL_MAX;
    let mut idle = Idle::new();
    loop {
        if world.broken.is_cancelled() {
            return world.verdict();
        }
        serves_who_waits(world, waiting, &mut idle)?;
        let left: Vec<&JobId> = {
            let ledger = world.ledger();
            let is_done = |id: &&JobId| {
                let job = ledger.jobs.jobs.get(*id);
                job.map_or(ledger.jobs.forgotten.contains_key(*id), |job| {
                    job.is_finished()
                })
            };
            ids.iter().filter(|id| !is_done(id)).collect()
        };
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            let message = format!("{ALL_MAX:?} after the faults, jobs at a rate wait: {left:?}");
            return Err(Violation::new("what should happen does", message));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// No job lies in a queue that lets it through while someone has waited for it for long.
fn serves_who_waits(world: &World, waiting: &Waiting, idle: &mut Idle) -> Result<(), Violation> {
    let now = Instant::now();
    let mut serving = world.hosts.iter().filter_map(|host| {
        let queue = host.running()?.queue;
        let term = queue.election().leadership()?.term().0;
        Some((queue.now_ms().ok()?, term))
    });
    // Without a leader, or with one that has yet to notice that it is none, there is nothing to say.
    let (Some((at, term)), None) = (serving.next(), serving.next()) else {
        idle.clear();
        return Ok(());
    };
    let wanted: Vec<QueueName> = waiting.claims().values().flatten().cloned().collect();
    for name in QUEUES.map(queue_name) {
        let opens = world
            .ledger()
            .queue
            .claimable_at(std::slice::from_ref(&name), &[job_type(TYPE)]);
        let is_open = opens.is_some_and(|opens| opens <= at);
        if !is_open || !wanted.contains(&name) {
            idle.remove(&name);
            continue;
        }
        let (since, of) = *idle.entry(name.clone()).or_insert((now, term));
        if of != term {
            idle.insert(name, (now, term));
        } else if now - since > LATE_MAX {
            let message = format!(
                "{name} has had a job for {:?} that nobody was given, of {} who wait",
                now - since,
                wanted.iter().filter(|wanted| **wanted == name).count()
            );
            return Err(Violation::new("a claim that waits is served", message));
        }
    }
    Ok(())
}

impl Waiting {
    fn claims(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<QueueName>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Submits until all are taken: the queue may be full until the operator has set it right.
async fn submit(world: &Arc<World>, route: &mut Route, jobs: Vec<Submission>) {
    insist(world, route, move |queue| {
        let jobs = jobs.clone();
        async move {
            loop {
                let answers = queue.submit(jobs.clone()).await?;
                if answers.iter().all(|one| one.status != SubmitStatus::Full) {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    })
    .await;
}

fn job(id: &str, queue: &'static str, of: &str) -> Submission {
    let mut job = Submission::new(job_type(of));
    job.id = Some(job_id(id));
    job.queue = queue_name(queue);
    job
}

fn job_id(id: &str) -> JobId {
    JobId::new(id).expect("a valid id")
}

fn job_type(name: &str) -> JobType {
    JobType::new(name).expect("a valid type")
}

fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}
