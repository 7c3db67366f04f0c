//! The result of a job is what the worker reported that completed it, for as long as the job is kept.

use tenure_core::JobId;
use tenure_core::queue::{self, Action, Command, Payload, Queue, Token};

use super::super::jobs::{Ending, Jobs};
use crate::invariants::Violation;

/// What a command reports of a job.
pub(crate) fn of(command: &Command, id: &JobId, token: Token) -> Option<Payload> {
    let Action::Complete(completions) = &command.action else {
        return None;
    };
    let mut completions = completions.iter();
    let own = completions.find(|own| own.id == *id && own.token == token)?;
    own.result.clone()
}

/// Jobs were completed.
pub(crate) fn reported(jobs: &Jobs, command: &Command, queue: &Queue) -> Result<(), Violation> {
    let Action::Complete(completions) = &command.action else {
        return Ok(());
    };
    for completion in completions {
        if let Some(view) = queue.job(&completion.id) {
            check(jobs, &view)?;
        }
    }
    Ok(())
}

/// Somebody sees a job.
pub(crate) fn check(jobs: &Jobs, view: &queue::Job) -> Result<(), Violation> {
    let job = jobs.jobs.get(&view.id);
    let job = job.filter(|job| job.is(Ending::Completed) && view.state == queue::State::Completed);
    match job {
        Some(job) if job.result != view.result => Err(Violation::new(
            "a result is what was reported",
            format!(
                "{} shows {:?}, and {:?} was reported",
                view.id, view.result, job.result
            ),
        )),
        _ => Ok(()),
    }
}
