//! A read shows what was committed, and not less than what was acknowledged before it began.

use tenure_core::JobId;
use tenure_core::queue::Job;

use super::super::ledger::Ledger;
use crate::invariants::Violation;

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
        _ => Ok(()),
    }
}
