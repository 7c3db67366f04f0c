//! A finished job vanishes when nothing keeps it any more, not earlier, and not much later; one that has not finished never
//! does.

use tenure_core::JobId;
use tenure_core::queue::{Keep, Queue, Settings};

use super::super::jobs::{Ending, Job, Jobs, Phase};
use crate::invariants::Violation;

/// How much longer than it is to be kept a job may stay when nothing is in the way: retention waits for nothing, and nothing
/// waits for it.
pub(crate) const LATE_MAX_MS: u64 = 120_000;

/// A job that should be gone, if there is one.
pub(crate) fn overdue(jobs: &Jobs, now: u64) -> Option<&JobId> {
    let mut kept = jobs.jobs.iter();
    let old = kept.find(|(_, job)| match job.phase {
        Phase::Finished(ending, at) => {
            let keep = keep_of(&jobs.settings, ending);
            keep.age_ms
                .is_some_and(|age_ms| now.saturating_sub(at) > age_ms + LATE_MAX_MS)
        }
        _ => false,
    });
    if let Some((id, _)) = old {
        return Some(id);
    }
    let endings = [Ending::Completed, Ending::Cancelled, Ending::Died];
    let too_many = endings.into_iter().find(|&ending| {
        let keep = keep_of(&jobs.settings, ending);
        keep.count
            .is_some_and(|most| jobs.ended(ending) as u64 > most)
    })?;
    let mut of_ending = jobs.jobs.iter().filter(|(_, job)| job.is(too_many));
    of_ending.next().map(|(id, _)| id)
}

/// Those that are gone from the queue since the last look, of which nobody is told.
pub(crate) fn check(jobs: &Jobs, queue: &Queue) -> Result<Vec<JobId>, Violation> {
    if queue.len() == jobs.jobs.len() {
        return Ok(Vec::new());
    }
    let gone = jobs.jobs.iter().filter(|(id, _)| queue.job(id).is_none());
    let gone: Vec<(&JobId, &Job)> = gone.collect();
    for (id, job) in &gone {
        let Phase::Finished(ending, at) = job.phase else {
            return broken(id, job, "it has not finished");
        };
        let keep = keep_of(&jobs.settings, ending);
        let is_old = keep
            .age_ms
            .is_some_and(|age_ms| queue.now().saturating_sub(at) >= age_ms);
        // Those that stay fill the room there is.
        let left = jobs.ended(ending) - gone.iter().filter(|(_, job)| job.is(ending)).count();
        let is_one_too_many = keep.count.is_some_and(|most| left as u64 >= most);
        if !is_old && !is_one_too_many {
            return broken(id, job, &format!("at {}, {left} are left", queue.now()));
        }
    }
    Ok(gone.into_iter().map(|(id, _)| id.clone()).collect())
}

fn broken<T>(id: &JobId, job: &Job, what: &str) -> Result<T, Violation> {
    let message = format!("{id} is gone: {what}; it was {job:?}");
    Err(Violation::new("a job is forgotten in its time", message))
}

fn keep_of(settings: &Settings, ending: Ending) -> Keep {
    match ending {
        Ending::Completed => settings.completed,
        Ending::Cancelled => settings.cancelled,
        Ending::Died => settings.dead,
    }
}
