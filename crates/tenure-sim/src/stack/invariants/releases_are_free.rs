//! Attempts are counted from one, each once; one that was handed back does not count.

use tenure_core::queue::Event;

use super::super::jobs::Jobs;
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event) -> Result<(), Violation> {
    let Event::Claimed { id, attempt, .. } = event else {
        return Ok(());
    };
    match jobs.jobs.get(id) {
        Some(job) if job.attempts + 1 != *attempt => Err(Violation::new(
            "a release costs no attempt",
            format!(
                "{id} is claimed for attempt {attempt}, and had {} that count",
                job.attempts
            ),
        )),
        _ => Ok(()),
    }
}
