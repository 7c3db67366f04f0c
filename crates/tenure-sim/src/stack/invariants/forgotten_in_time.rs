//! A finished job vanishes when nothing keeps it any more, not earlier; one that has not finished never does.

use tenure_core::JobId;
use tenure_core::queue::{Keep, Queue, Settings};

use super::super::jobs::{Ending, Job, Jobs, Phase};
use crate::invariants::Violation;

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
