//! A session that was deleted is never made again by its process.

use tenure_core::Moment;
use tenure_core::session::Record;

use super::Violation;
use crate::process::Process;
use crate::store::Applied;

/// A session was written by a process.
pub fn check<'a>(
    applied: &Applied,
    after: &Record,
    mut processes: impl Iterator<Item = &'a Process>,
) -> Result<(), Violation> {
    let process = processes.find(|process| process.incarnation == after.incarnation);
    // Whoever still joins does not know that it was there; its first writes may also come late.
    let has_joined = |process: &Process| process.node.trusted_until() > Moment::default();
    if !applied.was_deleted || !process.is_some_and(has_joined) || after.counter == 1 {
        return Ok(());
    }
    Err(Violation::new(
        "a deleted session is not made again",
        format!("{:?} wrote #{}", after.incarnation, after.counter),
    ))
}
