//! A process does not start a shard while an older generation of it still runs there, trusted or not.

use tenure_core::cluster::{Generation, Shard};

use super::Violation;

/// Checks a shard that is about to be started, given the ones that have not ended in its process.
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
