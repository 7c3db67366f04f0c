//! A lease is taken over only from a session that has ended: gone, evicted, or missing for its whole ttl; or from a
//! one-shot caller that was asked to resign at least a ttl ago.

use std::time::Duration;

use tenure_core::ElectionName;
use tenure_core::election::Lease;

use super::Violation;
use crate::oracle::Oracle;
use crate::store::{Key, Store};

/// Checks a process's write of a lease, given when the previous one was written, in real time.
pub fn check(
    now: Duration,
    election: &ElectionName,
    before: (&Lease, Duration),
    after: &Lease,
    oracle: &Oracle,
    store: &Store,
) -> Result<(), Violation> {
    let (before, written_at) = before;
    let (Some(old), Some(new)) = (before.holder(), after.holder()) else {
        return Ok(());
    };
    if old.incarnation == new.incarnation || oracle.ended.contains(&old.incarnation) {
        return Ok(());
    }
    let stood = now.saturating_sub(written_at);
    if before.lapsing().is_some() && stood >= oracle.at_least(old.ttl) {
        return Ok(());
    }
    let key = Key::Session(old.incarnation);
    let free = match store.get(&key) {
        Some(_) => false,
        None => {
            let missing = store.missing_since(&key);
            missing.is_none_or(|since| now.saturating_sub(since) >= oracle.at_least(old.ttl))
        }
    };
    if free {
        return Ok(());
    }
    Err(Violation::new(
        "a lease is taken from ended sessions only",
        format!(
            "{election}: {:?} took it from {:?}",
            new.incarnation, old.incarnation
        ),
    ))
}
