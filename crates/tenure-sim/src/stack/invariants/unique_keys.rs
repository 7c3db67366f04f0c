//! A unique key is held by one unfinished job, and by no finished one.

use tenure_core::queue::{Event, Submission, Submitted};

use super::super::jobs::Jobs;
use crate::invariants::Violation;

const PROPERTY: &str = "a unique key is held by one unfinished job";

pub(crate) fn check(
    jobs: &Jobs,
    event: &Event,
    submission: Option<&Submission>,
) -> Result<(), Violation> {
    let (id, queue, key) = match (event, submission) {
        (Event::Submitted { id, queue, .. }, Some(submission)) => {
            (id, queue, submission.unique_key.as_ref())
        }
        (Event::Retried { id, queue }, _) => {
            let job = jobs.jobs.get(id);
            (id, queue, job.and_then(|job| job.unique_key.as_ref()))
        }
        (Event::Moved { id, to, .. }, _) => {
            let job = jobs.jobs.get(id).filter(|job| !job.is_finished());
            (id, to, job.and_then(|job| job.unique_key.as_ref()))
        }
        _ => return Ok(()),
    };
    let Some(key) = key else {
        return Ok(());
    };
    let holder = jobs.jobs.iter().find(|(other, job)| {
        let is_same = job.unique_key.as_ref() == Some(key) && *other != id;
        is_same && job.queue == *queue && !job.is_finished()
    });
    match holder {
        None => Ok(()),
        Some((other, _)) => Err(Violation::new(
            PROPERTY,
            format!("{id} is enqueued with {key:?}, which {other} holds"),
        )),
    }
}

/// A job that was not enqueued, since another holds its key.
pub(crate) fn turned_away(
    jobs: &Jobs,
    answer: &Submitted,
    submission: &Submission,
) -> Result<(), Violation> {
    let Submitted {
        id,
        existing: Some(existing),
        ..
    } = answer
    else {
        return Ok(());
    };
    match jobs.jobs.get(existing) {
        Some(job) if !job.is_finished() && job.unique_key == submission.unique_key => Ok(()),
        job => Err(Violation::new(
            PROPERTY,
            format!("{id} was turned away because of {existing}, which is {job:?}"),
        )),
    }
}
