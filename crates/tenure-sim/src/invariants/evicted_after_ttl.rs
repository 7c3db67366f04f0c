//! A session is evicted no earlier than a whole ttl of its record after its last write was begun, in real time.

use std::time::Duration;

use tenure_core::session::{Record, State};

use super::Violation;
use crate::oracle::Oracle;
use crate::store::Applied;

/// Checks a process's write of a session.
pub fn check(now: Duration, applied: &Applied, oracle: &Oracle) -> Result<(), Violation> {
    let Ok(after) = Record::decode(&applied.after.bytes) else {
        return Ok(());
    };
    let (State::Evicted { by }, Some(before)) = (&after.state, &applied.before) else {
        return Ok(());
    };
    // The process's real ttl, which its own trust is based on.
    let Some(config) = oracle.configs.get(&after.incarnation) else {
        return Ok(());
    };
    let stood = now.saturating_sub(before.begun_at);
    if stood >= oracle.at_least(config.ttl) {
        return Ok(());
    }
    Err(Violation::new(
        "evicted after a whole ttl",
        format!(
            "{by} evicted {:?} {stood:?} after it was written, of {:?}",
            after.incarnation, config.ttl
        ),
    ))
}
