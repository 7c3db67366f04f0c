//! Nothing is claimed from a queue that is paused, or beyond its concurrency.

use tenure_core::queue::Event;

use super::super::jobs::Jobs;
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event) -> Result<(), Violation> {
    let Event::Claimed(claimed) = event else {
        return Ok(());
    };
    let Some(limit) = jobs.queues.get(&claimed.queue) else {
        return Ok(());
    };
    let broken = |what: String| {
        let message = format!("{} is claimed from {}: {what}", claimed.id, claimed.queue);
        Err(Violation::new("a queue's limits are kept", message))
    };
    if limit.is_paused {
        return broken("it is paused".to_owned());
    }
    let of_queue = jobs.jobs.values().filter(|job| job.queue == claimed.queue);
    let running = of_queue.filter(|job| job.is_running()).count();
    match limit.concurrency {
        Some(most) if running >= most as usize => broken(format!("{running} of {most} run")),
        _ => Ok(()),
    }
}
