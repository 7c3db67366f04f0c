//! No fault of the store or of a process damages the log: what a broker finds, it can read, and it comes to the
//! state that the leader before it had.

use tenure::queue::{Error, Serving};

use crate::invariants::Violation;

pub(crate) fn check(host: &str, state: &Serving) -> Result<(), Violation> {
    match state {
        Serving::Failed(
            error @ (Error::Corrupt { .. }
            | Error::Invalid { .. }
            | Error::Newer { .. }
            | Error::Diverged { .. }),
        ) => Err(Violation::new(
            "nothing is damaged",
            format!("{host} says: {error}"),
        )),
        _ => Ok(()),
    }
}
