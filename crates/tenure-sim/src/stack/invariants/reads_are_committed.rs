//! A read shows what was committed, and not less than what was acknowledged before it began.

use tenure_core::JobId;
use tenure_core::queue::{Filter, Job};

use super::super::ledger::Ledger;
use super::results_are_kept;
use crate::invariants::Violation;

/// What a search finds is what it looks for.
pub(crate) fn found(filter: &Filter, job: &Job) -> Result<(), Violation> {
    let is_meant = filter.state.is_none_or(|state| state == job.state)
        && filter
            .queue
            .as_ref()
            .is_none_or(|queue| *queue == job.queue);
    if is_meant {
        Ok(())
    } else {
        let message = format!("{job:?} is found by {filter:?}");
        Err(Violation::new("a search finds what it looks for", message))
    }
}

pub(crate) fn check(
    ledger: &Ledger,
    id: &JobId,
    read: Option<&Job>,
    was_acknowledged: bool,
) -> Result<(), Violation> {
    let broken = |message| Err(Violation::new("a read shows what is committed", message));
    match read {
        None if was_acknowledged && !ledger.jobs.forgotten.contains_key(id) => {
            broken(format!("{id} was acknowledged, and is not there"))
        }
        // Only what is left of a job that was forgotten.
        Some(view) if view.remnant && ledger.jobs.forgotten.contains_key(id) => Ok(()),
        Some(view) if !ledger.looked(view) => broken(format!("{view:?} was never committed")),
        Some(view) => results_are_kept::check(&ledger.jobs, view),
        None => Ok(()),
    }
}
