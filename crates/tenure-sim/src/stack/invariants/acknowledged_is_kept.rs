//! What was acknowledged is in the log; what was certainly not done is not; the rest may be either.

use tenure_core::JobId;

use super::super::history::{Acknowledged, History};
use super::super::ledger::Ledger;
use crate::invariants::Violation;

/// At the moment when a client is told.
pub(crate) fn acknowledged(ledger: &Ledger, id: &JobId) -> Result<(), Violation> {
    if ledger.jobs.knows(id) {
        Ok(())
    } else {
        Err(Violation::new(
            "what is acknowledged is committed",
            format!("{id} was acknowledged, and is not in the log"),
        ))
    }
}

/// At the end of a run.
pub(crate) fn check(ledger: &Ledger, history: &History) -> Result<(), Violation> {
    for (id, told) in &history.submitted {
        let is_there = ledger.queue.job(id).is_some();
        let message = match (told, is_there) {
            (Acknowledged::Yes, false) if !ledger.jobs.forgotten.contains_key(id) => {
                format!("{id} was acknowledged, and is gone")
            }
            (Acknowledged::No, true) => format!("{id} was said not to be done, and is there"),
            _ => continue,
        };
        return Err(Violation::new(
            "acknowledged jobs are kept, refused ones are not",
            message,
        ));
    }
    Ok(())
}
