//! The generations in which a shard is started only grow, over all processes: each is started once.

use std::collections::BTreeMap;

use tenure_core::cluster::{Generation, Shard};

use super::Violation;

/// Checks a shard that is about to be started.
pub fn check(
    highest: &mut BTreeMap<Shard, Generation>,
    shard: &Shard,
    generation: Generation,
) -> Result<(), Violation> {
    match highest.insert(shard.clone(), generation) {
        Some(before) if before >= generation => {
            let message = format!("{shard} starts in {generation} after {before}");
            Err(Violation::new("generations only grow", message))
        }
        _ => Ok(()),
    }
}
