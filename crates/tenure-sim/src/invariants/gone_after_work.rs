//! A session says that it is gone only after all its work has ended.

use tenure_core::session::{Record, State};

use super::Violation;
use crate::process::Process;

/// Checks a process's write of a session.
pub fn check<'a>(
    after: &Record,
    mut processes: impl Iterator<Item = &'a Process>,
) -> Result<(), Violation> {
    if after.state != State::Gone {
        return Ok(());
    }
    let process = processes.find(|process| process.incarnation == after.incarnation);
    match process.and_then(|process| process.work.first_key_value()) {
        Some((election, term)) => Err(Violation::new(
            "a session is gone after its work",
            format!(
                "{:?} still works for term {term} of {election}",
                after.incarnation
            ),
        )),
        None => Ok(()),
    }
}
