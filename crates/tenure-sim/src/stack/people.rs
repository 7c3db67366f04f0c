//! People: one who sets schedules and limits, cancels and retries; one who looks.

use std::sync::Arc;
use std::time::Duration;

use tenure::queue::Queue;
use tenure_core::queue::{QueueOptions, Rate, ScheduleSpec, Submission};
use tenure_core::{JobId, JobType, QueueName, ScheduleName};
use tenure_random::Random;

use super::invariants::reads_are_committed;
use super::invariants::schedules_keep_their_slots::{MANY, SCHEDULES};
use super::network::Route;
use super::submitter::enlarge;
use super::world::World;

const PATIENCE: Duration = Duration::from_secs(10);

/// Does one thing after the other until the faults are over, and leaves everything open.
pub(crate) async fn operate(world: Arc<World>) {
    let mut route = Route::default();
    for (name, cron, _, missed) in SCHEDULES {
        let mut job = Submission::new(JobType::new("a").expect("a valid type"));
        if world.plan.large > 0 {
            // What a firing makes is far larger than its record, and schedules fill several parts of a snapshot.
            enlarge(&mut job);
        }
        let spec = ScheduleSpec {
            cron: cron.to_owned(),
            timezone: "UTC".to_owned(),
            job,
            missed,
        };
        let name = ScheduleName::new(name).expect("a valid name");
        insist(&world, &mut route, move |queue| {
            let (name, spec) = (name.clone(), spec.clone());
            async move { queue.set_schedule(name, spec).await }
        })
        .await;
    }
    set_many(&world, &mut route).await;
    if let Some(settings) = world.plan.settings {
        insist(&world, &mut route, move |queue| async move {
            queue.configure(settings).await
        })
        .await;
    }
    while !world.is_calm() {
        world.pause_about(Duration::from_secs(15)).await;
        meddle(&world, &mut route).await;
    }
    for name in ["mail", "limited"] {
        let name = queue_name(name);
        insist(&world, &mut route, move |queue| {
            let name = name.clone();
            async move { queue.resume(name).await }
        })
        .await;
    }
    // What has piled up is to be gone soon.
    insist(&world, &mut route, |queue| async move {
        let options = QueueOptions::default();
        queue.set_queue(queue_name("limited"), options).await
    })
    .await;
}

/// Sets many schedules that fire in one moment. Nobody works for them: there are enough jobs without theirs.
async fn set_many(world: &Arc<World>, route: &mut Route) {
    let queue = queue_name("many");
    if world.plan.schedules == 0 {
        return;
    }
    insist(world, route, {
        let name = queue.clone();
        move |queue| {
            let name = name.clone();
            async move { queue.pause(name).await }
        }
    })
    .await;
    let (prefix, cron, _, missed) = MANY;
    let numbers: Vec<usize> = (0..world.plan.schedules).collect();
    for numbers in numbers.chunks(200) {
        let specs: Vec<_> = numbers
            .iter()
            .map(|number| {
                let name = ScheduleName::new(format!("{prefix}{number:0>90}"));
                let mut job = Submission::new(JobType::new("a").expect("a valid type"));
                job.queue = queue.clone();
                let spec = ScheduleSpec {
                    cron: cron.to_owned(),
                    timezone: "UTC".to_owned(),
                    job,
                    missed,
                };
                (name.expect("a valid name"), spec)
            })
            .collect();
        insist(world, route, move |queue| {
            let specs = specs.clone();
            async move {
                let set = specs
                    .into_iter()
                    .map(|(name, spec)| queue.set_schedule(name, spec));
                futures_util::future::try_join_all(set).await
            }
        })
        .await;
    }
}

fn draw_rate(random: &mut Random) -> Option<Rate> {
    let rate = Rate {
        jobs: *random.pick(&[1, 3, 7]),
        period_ms: *random.pick(&[1_000, 5_000]),
        burst: *random.pick(&[None, Some(1), Some(5)]),
    };
    random.chance(600).then_some(rate)
}

async fn meddle(world: &Arc<World>, route: &mut Route) {
    let (drawn, job, options) = {
        let number = usize::try_from(world.random().bits() >> 1).unwrap_or(0);
        let job = world.history().nth(number);
        let mut random = world.random();
        let options = QueueOptions {
            concurrency: *random.pick(&[Some(1), Some(2), None]),
            rate: draw_rate(&mut random),
        };
        (random.below(6), job, options)
    };
    let answer = match (drawn, job) {
        (0, _) => {
            ask(world, route, |queue| async move {
                queue.pause(queue_name("mail")).await
            })
            .await
        }
        (1 | 2, _) => {
            ask(world, route, |queue| async move {
                queue.resume(queue_name("mail")).await
            })
            .await
        }
        (3, _) => {
            ask(world, route, move |queue| async move {
                queue.set_queue(queue_name("limited"), options).await
            })
            .await
        }
        (4, Some(job)) => {
            ask(world, route, move |queue| {
                let jobs = vec![job.clone()];
                async move { queue.cancel(jobs).await.map(drop) }
            })
            .await
        }
        (_, Some(job)) if is_alone(world, &job) => {
            ask(world, route, move |queue| {
                let jobs = vec![job.clone()];
                async move { queue.retry(jobs).await.map(drop) }
            })
            .await
        }
        _ => return,
    };
    world.say("people", &format!("{answer:?}"));
}

/// Whether it is in no group, whose order a retry by hand would break, and has no unique key.
fn is_alone(world: &World, id: &JobId) -> bool {
    let ledger = world.ledger();
    let job = ledger.jobs.jobs.get(id);
    job.is_some_and(|job| job.group.is_none() && job.unique_key.is_none())
}

async fn ask<T: Send + 'static, W>(
    world: &Arc<World>,
    route: &mut Route,
    ask: impl Fn(Queue) -> W + Send + Sync + 'static,
) -> Option<T>
where
    W: Future<Output = Result<T, tenure::queue::Error>> + Send + 'static,
{
    route.call(world, PATIENCE, ask).await.ok()
}

/// Asks until it is done.
pub(crate) async fn insist<T: Send + 'static, W>(
    world: &Arc<World>,
    route: &mut Route,
    ask: impl Fn(Queue) -> W + Send + Sync + Clone + 'static,
) where
    W: Future<Output = Result<T, tenure::queue::Error>> + Send + 'static,
{
    while route.call(world, PATIENCE, ask.clone()).await.is_err() {}
}

fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).expect("a valid name")
}

/// Looks at jobs, for ever.
pub(crate) async fn look(world: Arc<World>) {
    let mut route = Route::default();
    loop {
        world.pause_about(Duration::from_secs(3)).await;
        let number = usize::try_from(world.random().bits() >> 1).unwrap_or(0);
        let Some(id) = world.history().nth(number) else {
            continue;
        };
        let was_acknowledged = world.history().is_acknowledged(&id);
        let asked = id.clone();
        let read = ask(&world, &mut route, move |queue| {
            let id = asked.clone();
            async move { queue.job(&id) }
        });
        if let Some(read) = read.await {
            // A broker whose clock stood still shows what was so before.
            let was_acknowledged = was_acknowledged && !route.is_doubted;
            let ledger = world.ledger();
            let verdict = reads_are_committed::check(&ledger, &id, read.as_ref(), was_acknowledged);
            drop(ledger);
            world.judge(verdict);
        }
    }
}
