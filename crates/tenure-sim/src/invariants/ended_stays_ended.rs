//! A session that has ended (gone or evicted) is never written again by anyone.

use tenure_core::session::{Record, State};

use super::Violation;
use crate::store::Applied;

/// Checks a process's write of a session.
pub fn check(applied: &Applied) -> Result<(), Violation> {
    let before = applied.before.as_ref();
    let before = before.and_then(|object| Record::decode(&object.bytes).ok());
    match before {
        Some(before) if before.state != State::Alive => Err(Violation::new(
            "a session that has ended stays so",
            format!(
                "{:?} was {:?} and is written again",
                before.incarnation, before.state
            ),
        )),
        _ => Ok(()),
    }
}
