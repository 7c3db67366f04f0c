//! Only the holder vacates a lease, and not before its work has ended or its term has lapsed.

use tenure_core::ElectionName;
use tenure_core::election::{EndReason, Lease};

use super::Violation;
use crate::process::Process;

const PROPERTY: &str = "a lease is vacated by its holder after its work";

/// Checks a process's write of a lease.
pub fn check<'a>(
    election: &ElectionName,
    before: &Lease,
    after: &Lease,
    mut processes: impl Iterator<Item = &'a Process>,
) -> Result<(), Violation> {
    let Some(holder) = before.holder() else {
        return Ok(());
    };
    if after.holder().is_some() {
        return Ok(());
    }
    let writer = after.writer.incarnation;
    if writer != holder.incarnation {
        let message = format!("{election}: {writer:?} vacated what {holder:?} held");
        return Err(Violation::new(PROPERTY, message));
    }
    let process = processes.find(|process| process.incarnation == writer);
    let working = process.and_then(|process| process.work.get(election));
    // Trust had ended before, which other invariants check.
    let lapsed = after.history.last().is_some_and(|past| {
        let reasons = [EndReason::Expired, EndReason::WorkDidNotStop];
        reasons
            .iter()
            .any(|reason| reason.to_string() == past.reason)
    });
    match working {
        Some(_) if lapsed => Ok(()),
        Some(term) => Err(Violation::new(
            PROPERTY,
            format!("{election}: {writer:?} still works for term {term}"),
        )),
        None => Ok(()),
    }
}
