//! A job has as many attempts as it may have: it is not claimed once more, and is dead no sooner, unless its worker says that
//! another attempt would help nothing.

use tenure_core::queue::{Action, Command, Event};

use super::super::jobs::Jobs;
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event, command: &Command) -> Result<(), Violation> {
    let (Event::Claimed { id, .. } | Event::Died { id, .. } | Event::Failed { id, .. }) = event
    else {
        return Ok(());
    };
    let Some(job) = jobs.jobs.get(id) else {
        return Ok(());
    };
    let is_permanent = match &command.action {
        Action::Fail(failures) => failures
            .iter()
            .any(|failure| failure.id == *id && failure.permanent),
        _ => false,
    };
    let (had, most) = (job.attempts, job.attempts_max);
    let is_right = match event {
        Event::Claimed { .. } => had < most,
        Event::Died { .. } => had == most || is_permanent,
        _ => had < most && !is_permanent,
    };
    if is_right {
        Ok(())
    } else {
        Err(Violation::new(
            "a job has the attempts that it may have",
            format!("{event:?} after {had} of {most} attempts"),
        ))
    }
}
