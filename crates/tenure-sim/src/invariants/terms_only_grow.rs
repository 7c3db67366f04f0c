//! A term belongs to one incarnation, and within a lineage each term is higher than the one before.

use tenure_core::election::Term;
use tenure_core::{ElectionName, Incarnation, Lineage};

use super::Violation;
use crate::oracle::Oracle;

/// Checks an election.
pub fn check(
    oracle: &Oracle,
    election: &ElectionName,
    lineage: Lineage,
    term: Term,
    incarnation: Incarnation,
) -> Result<(), Violation> {
    let before = oracle.elected.get(&(election.clone(), lineage));
    match before {
        Some(&(last, other)) if term <= last => Err(Violation::new(
            "elected terms only grow",
            format!("{election}: {incarnation:?} leads term {term} after {other:?} led {last}"),
        )),
        _ => Ok(()),
    }
}
