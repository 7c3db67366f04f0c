//! A process is elected only after it has raised the fence to its own term itself.

use tenure_core::election::Term;
use tenure_core::{ElectionName, Incarnation};

use super::Violation;
use crate::oracle::Oracle;

/// Checks an election.
pub fn check(
    oracle: &Oracle,
    election: &ElectionName,
    term: Term,
    incarnation: Incarnation,
) -> Result<(), Violation> {
    let key = (election.clone(), term, incarnation);
    if oracle.installed.contains(&key) {
        return Ok(());
    }
    Err(Violation::new(
        "the fence is raised first",
        format!("{election}: {incarnation:?} is elected for term {term}, which it never installed"),
    ))
}
