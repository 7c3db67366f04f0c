//! No process ever lowers a fence, or moves it to another row of terms.

use tenure_core::ElectionName;
use tenure_core::election::Fence;

use super::Violation;

/// A fence was replaced by a process.
pub fn check(election: &ElectionName, before: &Fence, after: &Fence) -> Result<(), Violation> {
    if after.term > before.term && after.lineage == before.lineage {
        return Ok(());
    }
    Err(Violation::new(
        "a fence only grows",
        format!("{election}: {after:?} replaced {before:?}"),
    ))
}
