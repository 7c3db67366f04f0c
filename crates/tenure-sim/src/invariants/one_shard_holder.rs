//! At most one process trusts itself with a shard.
//!
//! Each process is judged by its own clock. A paused process counts as long as its clock allows: it may already have
//! checked its trust.

use std::collections::BTreeMap;

use tenure_core::cluster::{Generation, Shard};

use super::Violation;

/// Checks all processes that trust themselves with a shard at one real time: the shard, the generation, and the
/// process.
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
