//! No shard is lost for ever: when nothing is wrong any more, every shard that some node can run is running.

use tenure_core::cluster::Shard;

use super::Violation;

/// Checks that no shard is idle when there was enough time for everything.
pub fn check(idle: &[Shard], message: impl FnOnce() -> String) -> Result<(), Violation> {
    match idle {
        [] => Ok(()),
        idle => {
            let idle: Vec<String> = idle.iter().map(ToString::to_string).collect();
            let message = format!("{} do not run: {}", idle.join(" "), message());
            Err(Violation::new("every shard runs when all is well", message))
        }
    }
}
