//! Of the jobs that a claim may have, it gets the one with the highest priority, and of those the one that was submitted
//! first.

use tenure_core::queue::{Action, Command, Event};

use super::super::jobs::{Job, Jobs, Phase};
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event, command: &Command) -> Result<(), Violation> {
    let (Event::Claimed { id, .. }, Action::Claim(claim)) = (event, &command.action) else {
        return Ok(());
    };
    let Some(job) = jobs.jobs.get(id) else {
        return Ok(());
    };
    let request = &claim.request;
    let is_meant = |other: &Job| {
        (request.queues.is_empty() || request.queues.contains(&other.queue))
            && (request.types.is_empty() || request.types.contains(&other.job_type))
    };
    if !is_meant(job) {
        let message = format!("{id} of {} is claimed by {request:?}", job.queue);
        return Err(Violation::new("a claim gets what it asks for", message));
    }
    let comes_first = |other: &Job| {
        let order = |job: &Job| (-i16::from(job.priority), job.sequence);
        order(other) < order(job)
    };
    let better = jobs.jobs.iter().find(|(_, other)| {
        other.is_ready
            && comes_first(other)
            && is_meant(other)
            && is_open(jobs, job, other)
            && is_first_of_group(jobs, other)
    });
    match better {
        None => Ok(()),
        Some((other, found)) => Err(Violation::new(
            "the highest priority comes first",
            format!("{id}, {job:?}, is claimed before {other}, {found:?}"),
        )),
    }
}

/// Whether the queue of another job lets it be claimed, for certain: it is that of the job which is claimed, or has no
/// limits.
fn is_open(jobs: &Jobs, job: &Job, other: &Job) -> bool {
    let is_free = || {
        jobs.queues.get(&other.queue).is_none_or(|limit| {
            !limit.is_paused && limit.concurrency.is_none() && limit.rate.is_none()
        })
    };
    other.queue == job.queue || is_free()
}

/// Whether nothing of its group is before it, or runs.
fn is_first_of_group(jobs: &Jobs, job: &Job) -> bool {
    let Some(group) = &job.group else {
        return true;
    };
    let mut others = jobs.jobs.values();
    !others.any(|other| {
        let is_same = other.group.as_ref() == Some(group) && other.queue == job.queue;
        let is_before = other.phase == Phase::Waiting && other.sequence < job.sequence;
        is_same && (is_before || other.is_running())
    })
}
