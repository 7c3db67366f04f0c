//! Nothing is claimed from a queue that is paused, or beyond its concurrency or its rate.

use std::collections::VecDeque;

use tenure_core::queue::{Event, Rate};

use super::super::jobs::Jobs;
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event, now: u64) -> Result<(), Violation> {
    let Event::Claimed { id, queue, .. } = event else {
        return Ok(());
    };
    let Some(limit) = jobs.queues.get(queue) else {
        return Ok(());
    };
    let broken = |what: String| {
        let message = format!("{id} is claimed from {queue}: {what}");
        Err(Violation::new("a queue's limits are kept", message))
    };
    if limit.is_paused {
        return broken("it is paused".to_owned());
    }
    let of_queue = jobs.jobs.values().filter(|job| job.queue == *queue);
    let running = of_queue.filter(|job| job.is_running()).count();
    if let Some(most) = limit.concurrency
        && running >= most as usize
    {
        return broken(format!("{running} of {most} run"));
    }
    let Some(rate) = limit.rate else {
        return Ok(());
    };
    match overdrawn(rate, &limit.claims, now) {
        None => Ok(()),
        Some(since) => broken(format!("{rate:?}, at {now} and since {since}")),
    }
}

/// Whether one more claim now makes too many, and since when: in no time at all a burst may be claimed, and in any
/// other as much as the rate gives on top. A millisecond counts as a whole.
fn overdrawn(rate: Rate, claims: &VecDeque<u64>, now: u64) -> Option<u64> {
    let burst = u64::from(rate.burst.unwrap_or(rate.jobs));
    let most =
        |since: u64| burst + (now - since + 1) * u64::from(rate.jobs) / u64::from(rate.period_ms);
    let times = claims.iter().rev().zip(2..);
    let (&since, _) = times
        .into_iter()
        .find(|&(&since, count)| count > most(since))?;
    Some(since)
}
