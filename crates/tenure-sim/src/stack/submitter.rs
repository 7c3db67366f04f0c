//! A client that submits jobs, and sends each again until it knows that it is there.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::queue::{Backoff, Key, Payload, Submission, SubmitStatus, Submitted};
use tenure_core::{JobId, JobType, QueueName};
use tenure_linear::job as seen;

use super::faults::Fault;
use super::invariants::acknowledged_is_kept;
use super::network::{Failed, Route};
use super::worker::{QUEUES, TYPES};
use super::world::World;
use crate::invariants::Violation;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a submit is sent before its client gives up.
const TRIES_MAX: u64 = 40;

/// Submits until the faults are over.
pub(crate) async fn run(world: Arc<World>, number: usize) {
    let mut route = Route::default();
    let mut count = 0;
    while !world.is_calm() {
        world.pause_about(world.plan.submit_every).await;
        let is_large = world.strikes(Fault::PayloadLarge, world.plan.large);
        // More than one claim may hand out.
        let (calls, size) = if is_large {
            (7, 3)
        } else {
            (1, 1 + world.random().below(3))
        };
        for _ in 0..calls {
            let jobs: Vec<Submission> = (0..size)
                .map(|_| {
                    count += 1;
                    let mut job = draw(&world, number, count);
                    if is_large {
                        enlarge(&mut job);
                    }
                    job
                })
                .collect();
            submit(&world, &mut route, number, &jobs).await;
        }
    }
}

/// As large as a job may be, and ready at once.
pub(crate) fn enlarge(job: &mut Submission) {
    let text = format!("\"{}\"", "x".repeat(250 * 1024));
    job.payload = Payload::new(text).expect("valid JSON");
    job.queue = QueueName::new("default").expect("a valid name");
    (job.group, job.unique_key) = (None, None);
    (job.delay_ms, job.run_at) = (None, None);
}

/// Sends jobs until they are acknowledged, or for a long while. Whether they were.
pub(crate) async fn submit(
    world: &Arc<World>,
    route: &mut Route,
    number: usize,
    jobs: &[Submission],
) -> bool {
    let who = format!("s{number}");
    let ids: Vec<JobId> = jobs.iter().filter_map(|job| job.id.clone()).collect();
    ids.iter().for_each(|id| world.history().sending(id));
    for _ in 0..TRIES_MAX {
        let sent = jobs.to_vec();
        let begun = world.calls().begin();
        let answer = route.call(world, PATIENCE, move |queue| {
            let sent = sent.clone();
            async move { queue.submit(sent).await }
        });
        let answer = answer.await;
        note(world, &ids, begun, answer.as_ref(), route.is_doubled);
        match answer {
            Ok(events) => {
                world.say(&who, &format!("submitted {ids:?}: {events:?}"));
                world.judge(acknowledge(world, &ids, &events));
                return true;
            }
            Err(failed) => {
                if !matches!(failed, Failed::NotSent) {
                    world.say(&who, &format!("submitting {ids:?} failed: {failed:?}"));
                }
                if !failed.is_not_applied() {
                    ids.iter().for_each(|id| world.history().lost(id));
                }
            }
        }
    }
    false
}

/// Keeps what was seen of each job.
pub(crate) fn note(
    world: &World,
    ids: &[JobId],
    begun: u64,
    answer: Result<&Vec<Submitted>, &Failed>,
    is_doubled: bool,
) {
    let mut calls = world.calls();
    for (number, id) in ids.iter().enumerate() {
        let told = answer.map(|answers| answers.get(number));
        match told {
            Ok(Some(told)) => {
                let told = match (told.status, &told.existing) {
                    (SubmitStatus::Created, _) => seen::Submitted::Created,
                    (SubmitStatus::Duplicate, None) => seen::Submitted::Known,
                    _ => seen::Submitted::Refused,
                };
                calls.ended(id, begun, seen::Call::Submit(Some(told)));
            }
            Err(failed) if failed.is_not_applied() => continue,
            _ => calls.lost(id, begun, seen::Call::Submit(None)),
        }
        if is_doubled {
            calls.lost(id, begun, seen::Call::Submit(None));
        }
    }
}

pub(crate) fn acknowledge(
    world: &World,
    ids: &[JobId],
    answers: &[Submitted],
) -> Result<(), Violation> {
    let broken = |message| {
        Err(Violation::new(
            "every job is answered as it should be",
            message,
        ))
    };
    if answers.len() != ids.len() {
        return broken(format!("{answers:?} for {ids:?}"));
    }
    for (id, answer) in ids.iter().zip(answers) {
        match (answer.status, &answer.existing) {
            _ if answer.id != *id => return broken(format!("{answer:?} for {id}")),
            (SubmitStatus::Created | SubmitStatus::Duplicate, None) => {}
            // Another holds its unique key; a late copy of the call may still find it free.
            (SubmitStatus::Duplicate, Some(_)) => {
                world.history().lost(id);
                continue;
            }
            // Another call with it may find room.
            (SubmitStatus::Full, _) => {
                world.count(Fault::BacklogFull);
                world.history().lost(id);
                continue;
            }
            _ => return broken(format!("{answer:?} for {id}")),
        }
        acknowledged_is_kept::acknowledged(&world.ledger(), id)?;
        world.history().acknowledged(id);
    }
    Ok(())
}

fn draw(world: &World, number: usize, count: u64) -> Submission {
    let mut random = world.random();
    let random = &mut *random;
    let job_type = JobType::new(random.pick(&TYPES)).expect("a valid type");
    let mut job = Submission::new(job_type);
    job.id = JobId::new(format!("j{number}-{count:05}")).ok();
    job.queue = QueueName::new(random.pick(&QUEUES)).expect("a valid name");
    job.payload = Payload::new(format!("{{\"n\":{count}}}")).expect("valid JSON");
    job.priority = *random.pick(&[0, 0, 0, 5, -5]);
    if random.chance(300) {
        job.group = Key::new(format!("g{}", random.below(3))).ok();
    }
    if random.chance(200) {
        job.unique_key = Key::new(format!("u{}", random.below(4))).ok();
    }
    match random.below(10) {
        0 | 1 => job.delay_ms = Some(random.below(60_000)),
        // A time of the client's own clock, which is right, or one that is over.
        2 => job.run_at = Some(world.wall_ms() + random.below(60_000)),
        3 => job.run_at = Some(world.wall_ms() - random.below(60_000)),
        _ => {}
    }
    job.max_attempts = Some(*random.pick(&[1, 3, 20]));
    job.backoff = Some(Backoff {
        first_ms: 500,
        factor: 2,
        max_ms: 8_000,
        jitter_percent: 20,
    });
    job
}
