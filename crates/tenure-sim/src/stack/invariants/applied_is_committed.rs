//! What a broker applies is what stands in the log, record by record: nothing is applied, and so nothing is
//! acknowledged or shown, that is not committed.

use tenure::queue::Followed;
use tenure_core::queue::Event;

use super::super::ledger::Header;
use crate::invariants::Violation;

/// Positions have no gap either.
pub(crate) fn follows(header: &Header, records: usize) -> Result<(), Violation> {
    if header.position.0 == records as u64 + 1 {
        Ok(())
    } else {
        Err(Violation::new(
            "records are numbered without a gap",
            format!("record {} follows {records}", header.position),
        ))
    }
}

pub(crate) fn check(committed: &[Vec<Event>], followed: &Followed) -> Result<(), Violation> {
    let broken = |message| Err(Violation::new("what is applied is committed", message));
    let at = usize::try_from(followed.position.0 - 1).unwrap_or(usize::MAX);
    match committed.get(at) {
        Some(events) if events[..] == followed.events[..] => Ok(()),
        Some(events) => broken(format!(
            "record {} was applied as {:?}, and is {events:?}",
            followed.position, followed.events
        )),
        None => broken(format!(
            "record {} was applied, and the log has {}",
            followed.position,
            committed.len()
        )),
    }
}
