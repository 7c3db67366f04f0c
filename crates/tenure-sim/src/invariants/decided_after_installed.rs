//! A leader decides only after its term was written to the assignments: from then on every older leader's write
//! fails.

use std::collections::BTreeSet;

use tenure_core::Incarnation;
use tenure_core::election::Term;

use super::Violation;

/// Checks a leader that starts to decide.
pub fn check(
    installed: &BTreeSet<(Term, Incarnation)>,
    term: Term,
    by: Incarnation,
) -> Result<(), Violation> {
    if installed.contains(&(term, by)) {
        return Ok(());
    }
    let message = format!("term {term} of {by} never stood on the assignments");
    Err(Violation::new(
        "a leader decides after its term is installed",
        message,
    ))
}
