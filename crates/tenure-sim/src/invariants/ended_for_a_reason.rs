//! Nothing healthy is ended: a session or a term ends only for a reason that is really true.

use std::time::Duration;

use tenure_core::ElectionName;
use tenure_core::election::{EndReason, Term};
use tenure_core::session::{Reason, State};

use super::Violation;
use crate::oracle::Oracle;
use crate::process::Process;
use crate::store::Store;

const PROPERTY: &str = "nothing healthy is given up";

/// Checks the end of a session.
pub fn over(
    process: &Process,
    reason: &Reason,
    oracle: &Oracle,
    store: &Store,
    now: Duration,
) -> Result<(), Violation> {
    let is_so = match reason {
        // Trust is checked elsewhere.
        Reason::Expired => true,
        Reason::Deleted | Reason::Overwritten => oracle.hurt.contains(&process.incarnation),
        // For any cause: the process was blind, the store was down, or answers kept getting lost.
        Reason::CannotRead => process
            .unread_at
            .is_some_and(|at| now.saturating_sub(at) <= process.config.ttl),
        Reason::Evicted { .. } => {
            let record = store.session(process.incarnation);
            record.is_none_or(|record| matches!(record.state, State::Evicted { .. }))
        }
    };
    if is_so {
        return Ok(());
    }
    let message = format!("{} is over: {reason}, but it is not so", process.label);
    Err(Violation::new(PROPERTY, message))
}

/// Checks the end of a term.
pub fn ended(
    process: &Process,
    election: &ElectionName,
    term: Term,
    reason: &EndReason,
    oracle: &Oracle,
    store: &Store,
) -> Result<(), Violation> {
    let lost = matches!(
        reason,
        EndReason::LeaseTaken | EndReason::LeaseDeleted | EndReason::LeaseDamaged
    );
    let lease = store.lease(election);
    let holder = lease.as_ref().and_then(|lease| lease.holder());
    let holds = holder.is_some_and(|holder| holder.incarnation == process.incarnation);
    let has_term = lease.as_ref().is_some_and(|lease| lease.term == term);
    if !(lost && holds && has_term) || oracle.restored.contains(election) {
        return Ok(());
    }
    let message = format!(
        "{} ends term {term} of {election}: {reason}, but it holds the lease",
        process.label
    );
    Err(Violation::new(PROPERTY, message))
}
