//! A machine that asks to be woken has something to do then, and no machine floods the store.

use super::Violation;
use crate::process::Process;

const PROPERTY: &str = "no hot loop";

/// The most requests per second of one process, for each part that sends its own requests, at a ttl of ten seconds.
/// Retries come every 0.3 s at the earliest, and each may be a read and a write.
const REQUESTS_PER_SECOND_MAX: u64 = 15;

/// Checks how often a process was woken for nothing at one moment.
pub fn woken(process: &Process) -> Result<(), Violation> {
    if process.idle_wakes < 3 {
        return Ok(());
    }
    Err(Violation::new(
        PROPERTY,
        format!(
            "{} wakes again and again, does nothing, and wants to wake at {} which is past",
            process.label,
            process.node.wake_at()
        ),
    ))
}

/// Checks how many requests a process sent in a second. Shorter ttls and more elections allow more.
pub fn sent(process: &Process, elections: usize, requests: u64) -> Result<(), Violation> {
    // The session, and for each election the lease and its holder.
    let parts = 1 + 2 * elections as u64;
    let ttl_millis = process.config.ttl.as_millis().max(1);
    let hurry = u64::try_from(10_000 / ttl_millis).unwrap_or(1).max(1);
    let limit = REQUESTS_PER_SECOND_MAX * parts * hurry;
    if requests <= limit {
        return Ok(());
    }
    Err(Violation::new(
        PROPERTY,
        format!(
            "{} sent {requests} requests within a second, {limit} are much already",
            process.label
        ),
    ))
}
