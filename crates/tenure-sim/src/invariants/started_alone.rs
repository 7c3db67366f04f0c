//! A process starts no shard while an older generation of it has not ended there, trusted or not.

use tenure_core::cluster::{Generation, Shard};

use super::Violation;

/// A shard is about to be started in a process where these have not ended.
pub fn check<'a>(
    mut running: impl Iterator<Item = &'a (Shard, Generation)>,
    shard: &Shard,
    generation: Generation,
) -> Result<(), Violation> {
    match running.find(|(other, _)| other == shard) {
        Some((_, older)) => {
            let message = format!("{shard} starts in {generation} beside {older}");
            Err(Violation::new("a shard starts alone", message))
        }
        None => Ok(()),
    }
}
