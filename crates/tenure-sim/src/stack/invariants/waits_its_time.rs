//! A job that is delayed, or that failed and is to wait, is not claimed before its time. The time that its submitter has named
//! is what was named, also when the queue's time is set back.

use tenure_core::JobId;
use tenure_core::queue::{Action, Command, Event, Queue};

use super::super::jobs::{Job, Jobs};
use crate::invariants::Violation;

pub(crate) fn check(
    jobs: &Jobs,
    event: &Event,
    command: &Command,
    queue: &Queue,
) -> Result<(), Violation> {
    let broken = |message| Err(Violation::new("a job waits for its time", message));
    let now = queue.now();
    match event {
        Event::Claimed { id, .. } => match jobs.jobs.get(id) {
            // It may not have been looked at since time was set back.
            Some(job) if job.is_given && queue.is_setting_back() => Ok(()),
            Some(job) if job.not_before > now => broken(format!(
                "{id} is claimed at {now}, {} ms before its time",
                job.not_before - now
            )),
            _ => Ok(()),
        },
        Event::Failed { id, run_at, .. } => {
            let wait = jobs.jobs.get(id).map(|job| wait_ms(job, id, command));
            let wait = wait.unwrap_or_default();
            if run_at.saturating_sub(now) < wait {
                return broken(format!(
                    "{id} is to wait for {wait} ms at least, and until {run_at} from {now}"
                ));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// How long a job that has just failed has to wait at least: as long as its worker says, or by its back-off.
pub(crate) fn wait_ms(job: &Job, id: &JobId, command: &Command) -> u64 {
    if let Action::Fail(failures) = &command.action
        && let Some(failure) = failures.iter().find(|failure| failure.id == *id)
        && let Some(retry_in_ms) = failure.retry_in_ms
    {
        return retry_in_ms;
    }
    let backoff = job.backoff;
    let mut whole = u64::from(backoff.first_ms);
    for _ in 1..job.attempts {
        whole = whole.saturating_mul(backoff.factor.into());
    }
    let whole = whole.min(backoff.max_ms.into());
    whole - whole * u64::from(backoff.jitter_percent.min(100)) / 100
}
