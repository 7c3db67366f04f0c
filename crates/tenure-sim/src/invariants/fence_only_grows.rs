//! No process ever lowers a fence, or moves it to another lineage.

use tenure_core::ElectionName;
use tenure_core::election::Fence;

use super::Violation;

/// Checks a process's write of a fence.
pub fn check(election: &ElectionName, before: &Fence, after: &Fence) -> Result<(), Violation> {
    if after.term > before.term && after.lineage == before.lineage {
        return Ok(());
    }
    Err(Violation::new(
        "a fence only grows",
        format!("{election}: {after:?} replaced {before:?}"),
    ))
}
