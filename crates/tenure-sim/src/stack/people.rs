//! People: one who sets schedules and limits, cancels and retries; one who looks.

use std::sync::Arc;
use std::time::Duration;

use tenure::queue::Queue;
use tenure_core::queue::{
    Cancelled, Filter, Job, PageStart, QueueOptions, Rate, Rules, ScheduleSpec, Settings, State,
    Submission,
};
use tenure_core::{JobId, JobType, QueueName, ScheduleName};
use tenure_linear::job as seen;
use tenure_random::Random;

use super::faults::Fault;
use super::invariants::reads_are_committed;
use super::invariants::schedules_keep_their_slots::{CHANGING, MANY, SCHEDULES};
use super::jobs::Ending;
use super::network::Route;
use super::submitter::enlarge;
use super::worker::LIMITED;
use super::world::World;

const PATIENCE: Duration = Duration::from_secs(10);

/// Does one thing after the other until the faults are over, and leaves everything open.
pub(crate) async fn operate(world: Arc<World>) {
    let mut route = Route::default();
    for (name, cron, timezone, missed) in SCHEDULES {
        let mut job = Submission::new(JobType::new("a").expect("a valid type"));
        if world.plan.large > 0 {
            // What a firing makes is far larger than its record, and schedules fill several parts of a snapshot.
            enlarge(&mut job);
        }
        let spec = ScheduleSpec {
            cron: cron.to_owned(),
            timezone: timezone.to_owned(),
            job,
            missed,
            run_on_start: false,
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
        let sets_time = world.random().chance(400);
        if sets_time {
            set_time(&world, &mut route).await;
        }
    }
    insist(&world, &mut route, |queue| async move {
        queue.resume(queue_name("mail")).await
    })
    .await;
    insist(&world, &mut route, |queue| async move {
        // While an older version takes part nobody could have set it.
        match queue.set_time(None).await {
            Err(error) if error.is_not_applied() && queue.rules()? < Rules::SECOND => Ok(()),
            done => done.map(drop),
        }
    })
    .await;
    // What has piled up is to be gone soon.
    for name in LIMITED {
        insist(&world, &mut route, move |queue| async move {
            let options = QueueOptions::default();
            queue.set_queue(queue_name(name), options).await
        })
        .await;
    }
    if world.plan.settings.is_some() {
        insist(&world, &mut route, |queue| async move {
            let change = |settings: &mut Settings| settings.jobs_max = Settings::default().jobs_max;
            let mut settings = queue.settings()?;
            change(&mut settings);
            queue.configure(settings).await
        })
        .await;
    }
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
    let (prefix, cron, missed) = MANY;
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
                    run_on_start: false,
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
    let (drawn, job, queue, options) = {
        let number = usize::try_from(world.random().bits() >> 1).unwrap_or(0);
        let job = world.history().nth(number);
        let mut random = world.random();
        let options = QueueOptions {
            concurrency: *random.pick(&[Some(1), Some(2), None]),
            rate: draw_rate(&mut random),
        };
        (random.below(13), job, *random.pick(&LIMITED), options)
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
        (3 | 4, _) => {
            ask(world, route, move |broker| async move {
                broker.set_queue(queue_name(queue), options).await
            })
            .await
        }
        (5, _) => change_schedule(world, route).await,
        (6 | 7, Some(job)) => change_job(world, route, &job, Change::Cancel).await,
        (8 | 9, Some(job)) => change_job(world, route, &job, Change::Retry).await,
        (10, Some(job)) => change_job(world, route, &job, Change::Forget).await,
        // One that has failed, so that there is something to do for it.
        (11, _) => match failed(world) {
            Some(job) => change_job(world, route, &job, Change::Retry).await,
            None => return,
        },
        (12, Some(job)) => {
            // To a queue with limits, or to one without.
            let to = if options.rate.is_some() {
                queue
            } else {
                "mail"
            };
            let moved = ask(world, route, move |broker| {
                let jobs = vec![job.clone()];
                async move { broker.move_jobs(jobs, queue_name(to)).await }
            });
            moved.await.map(drop)
        }
        _ => return,
    };
    world.say("people", &format!("{answer:?}"));
}

/// A job that died or was given up, and whose group has gone on, if there is one.
fn failed(world: &World) -> Option<JobId> {
    let ledger = world.ledger();
    let failed = ledger
        .jobs
        .jobs
        .iter()
        .filter(|(_, job)| job.is(Ending::Died) || job.is(Ending::Cancelled));
    let grouped = failed.filter(|(_, job)| job.group.is_some());
    grouped.map(|(id, _)| id).next_back().cloned()
}

/// How far the queue's time is set, forward or back: several slots of most schedules, and longer than most waits.
const SET_MAX: Duration = Duration::from_secs(120);

const SET_TRIES: usize = 5;

/// Sets the queue's time, or puts it right, and tries for a while: there may be no leader.
async fn set_time(world: &Arc<World>, route: &mut Route) {
    let (by, is_back, is_right) = {
        let mut random = world.random();
        let by = random.up_to(SET_MAX);
        (by, random.chance(600), random.chance(300))
    };
    let by = u64::try_from(by.as_millis()).unwrap_or(0);
    for _ in 0..SET_TRIES {
        let answer = ask(world, route, move |queue| async move {
            let now = queue.now_ms()?;
            let to = if is_back { now - by } else { now + by };
            queue.set_time((!is_right).then_some(to)).await
        });
        if let Some(time) = answer.await {
            world.count(Fault::TimeSet);
            world.say("people", &format!("the time is {time}"));
            return;
        }
        if world.is_calm() {
            return;
        }
    }
}

/// Sets the schedule to something else, pauses or resumes it, or deletes it.
async fn change_schedule(world: &Arc<World>, route: &mut Route) -> Option<()> {
    let name = ScheduleName::new(CHANGING).expect("a valid name");
    let (pause, spec) = {
        let mut random = world.random();
        let (_, cron, timezone, missed) = *random.pick(&SCHEDULES);
        let pauses = random.chance(400);
        let pause = pauses.then(|| random.chance(500));
        let spec = random.chance(700).then(|| ScheduleSpec {
            cron: cron.to_owned(),
            timezone: timezone.to_owned(),
            job: Submission::new(JobType::new("b").expect("a valid type")),
            missed,
            run_on_start: false,
        });
        (pause, spec)
    };
    ask(world, route, move |queue| {
        let (name, spec) = (name.clone(), spec.clone());
        async move {
            match (pause, spec) {
                (Some(true), _) => queue.pause_schedule(name).await.map(drop),
                (Some(false), _) => queue.resume_schedule(name).await.map(drop),
                (None, Some(spec)) => queue.set_schedule(name, spec).await.map(drop),
                (None, None) => queue.delete_schedule(name).await.map(drop),
            }
        }
    })
    .await
}

/// What people do to a job.
#[derive(Debug, Clone, Copy)]
enum Change {
    Cancel,
    Retry,
    Forget,
}

async fn change_job(
    world: &Arc<World>,
    route: &mut Route,
    job: &JobId,
    change: Change,
) -> Option<()> {
    let begun = world.calls().begin();
    let asked = job.clone();
    let answer = route.call(world, PATIENCE, move |queue| {
        let jobs = vec![asked.clone()];
        async move {
            Ok(match change {
                Change::Cancel => {
                    let done = queue.cancel(jobs).await?.pop();
                    let done = done.map(|item| match item.outcome {
                        Ok(Cancelled::Done) => seen::Cancelled::Done,
                        Ok(Cancelled::Requested) => seen::Cancelled::Requested,
                        Err(_) => seen::Cancelled::Refused,
                    });
                    seen::Call::Cancel(done)
                }
                Change::Retry => {
                    let done = queue.retry(jobs).await?.pop();
                    seen::Call::Retry(done.map(|item| item.outcome.is_ok()))
                }
                Change::Forget => {
                    let done = queue.forget(jobs).await?.pop();
                    seen::Call::Forget(done.map(|item| item.outcome.is_ok()))
                }
            })
        }
    });
    let answer = answer.await;
    let lost = match change {
        Change::Cancel => seen::Call::Cancel(None),
        Change::Retry => seen::Call::Retry(None),
        Change::Forget => seen::Call::Forget(None),
    };
    let mut calls = world.calls();
    match &answer {
        Ok(call) => calls.ended(job, begun, call.clone()),
        Err(failed) if failed.is_not_applied() => return None,
        Err(_) => calls.lost(job, begun, lost.clone()),
    }
    if route.is_doubled {
        calls.lost(job, begun, lost);
    }
    drop(calls);
    if let Ok(call) = &answer {
        world.say("people", &format!("{job}: {call:?}"));
    }
    answer.ok().map(drop)
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
        world.pause_about(Duration::from_secs(2)).await;
        let (number, searches) = {
            let mut random = world.random();
            (random.bits() >> 1, random.chance(100))
        };
        if searches {
            search(&world, &mut route).await;
            continue;
        }
        // Mostly at those that are being worked on.
        let number = usize::try_from(number).unwrap_or(0);
        let id = if number % 4 == 0 {
            world.history().nth(number)
        } else {
            world.history().recent(number)
        };
        let Some(id) = id else {
            continue;
        };
        let was_acknowledged = world.history().is_acknowledged(&id);
        let begun = world.calls().begin();
        let asked = id.clone();
        let read = ask(&world, &mut route, move |queue| {
            let id = asked.clone();
            async move { queue.job(&id) }
        });
        if let Some(read) = read.await {
            // A broker whose clock stood still shows what was so before.
            let was_acknowledged = was_acknowledged && !route.is_doubted;
            if !route.is_doubted {
                let call = seen::Call::Read(seen_of(read.as_ref()));
                world.calls().ended(&id, begun, call);
            }
            let ledger = world.ledger();
            let verdict = reads_are_committed::check(&ledger, &id, read.as_ref(), was_acknowledged);
            drop(ledger);
            world.judge(verdict);
        }
    }
}

fn seen_of(read: Option<&Job>) -> seen::Seen {
    let Some(job) = read.filter(|job| !job.remnant) else {
        return seen::Seen::Nothing;
    };
    match job.state {
        State::Scheduled | State::Ready => seen::Seen::Waiting,
        State::Running => {
            let worker = job.worker.as_ref().map(ToString::to_string);
            seen::Seen::Running(worker.unwrap_or_default())
        }
        State::Completed => seen::Seen::Finished(seen::Ending::Completed),
        State::Cancelled => seen::Seen::Finished(seen::Ending::Cancelled),
        State::Dead => seen::Seen::Finished(seen::Ending::Dead),
    }
}

/// Looks for jobs by their words.
async fn search(world: &Arc<World>, route: &mut Route) {
    let filter = {
        let mut random = world.random();
        Filter {
            state: *random.pick(&[None, Some(State::Completed), Some(State::Ready)]),
            queue: random.chance(300).then(|| queue_name("mail")),
            job_type: None,
        }
    };
    let asked = filter.clone();
    let page = ask(world, route, move |queue| {
        let filter = asked.clone();
        async move { queue.search(&filter, "\"n\":1", PageStart::Before(u64::MAX), 20) }
    });
    let Some(page) = page.await else {
        return;
    };
    world.count(Fault::Searched);
    let ledger = world.ledger();
    let verdict = page.jobs.iter().try_for_each(|job| {
        reads_are_committed::found(&filter, job)?;
        reads_are_committed::check(&ledger, &job.id, Some(job), false)
    });
    drop(ledger);
    world.judge(verdict);
}
