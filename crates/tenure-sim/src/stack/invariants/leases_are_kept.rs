//! A claim lasts as long as its lease: a worker that ends it in time is not told that it was lost.

use tenure_core::JobId;
use tenure_core::queue::{Lost, Token};
use tokio::time::Instant;

use super::super::ledger::Ledger;
use crate::invariants::Violation;

/// What a worker hears that has ended a claim.
pub(crate) fn check(
    ledger: &Ledger,
    (id, token): (&JobId, Token),
    lost: Option<Lost>,
    until: Option<Instant>,
) -> Result<(), Violation> {
    let Some(reason) = lost else {
        return Ok(());
    };
    // It may have been ended by an earlier try whose answer was lost, and is not remembered any more: somebody else had the
    // job since, or the rules were older. What is remembered is for another invariant.
    let is_own = ledger.jobs.ends.is_by_worker(token);
    match until {
        Some(until) if until > Instant::now() && !is_own => Err(Violation::new(
            "a claim stands as long as its lease",
            format!("{id} was held by {token}, and is lost: {reason:?}"),
        )),
        _ => Ok(()),
    }
}

/// A worker was told that it has completed a job.
pub(crate) fn completed(
    ledger: &Ledger,
    (id, token): (&JobId, Token),
    is_first: bool,
) -> Result<(), Violation> {
    let broken = |message| Err(Violation::new("a completion is accepted once", message));
    if !is_first {
        return broken(format!("{id} was completed by {token} a second time"));
    }
    if ledger.jobs.completed_by(id, token) {
        Ok(())
    } else {
        broken(format!(
            "{id} was completed by {token}, says the broker, and the log does not"
        ))
    }
}
