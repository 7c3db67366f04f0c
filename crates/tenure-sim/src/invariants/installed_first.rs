//! Nobody is elected before the fence was raised to its very term, by itself.

use tenure_core::election::Term;
use tenure_core::{ElectionName, Incarnation};

use super::Violation;
use crate::oracle::Oracle;

/// A process was elected.
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
