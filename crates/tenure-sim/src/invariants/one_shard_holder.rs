//! A shard is trusted by one process at most.
//!
//! Each is asked by its own clock. A paused process counts while its clock says so: it may already have checked.

use std::collections::BTreeMap;

use tenure_core::cluster::{Generation, Shard};

use super::Violation;

/// Judges all who trust themselves with something at one real time: what, in which generation, and who.
pub fn check<'a>(
    trusted: impl Iterator<Item = (&'a Shard, Generation, u64)>,
) -> Result<(), Violation> {
    let mut holders: BTreeMap<&Shard, (Generation, u64)> = BTreeMap::new();
    for (shard, generation, process) in trusted {
        if let Some((other, by)) = holders.insert(shard, (generation, process)) {
            let message = format!("{shard}: process {by} in {other}, {process} in {generation}");
            return Err(Violation::new("a shard is trusted by one process", message));
        }
    }
    Ok(())
}
