//! A job is held once: however often it is sent, and no matter who takes it, it is enqueued one time.

use tenure_core::queue::Event;

use super::super::jobs::Jobs;
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event) -> Result<(), Violation> {
    let (Event::Submitted { id, .. }
    | Event::SlotFired {
        id, created: true, ..
    }) = event
    else {
        return Ok(());
    };
    if jobs.jobs.contains_key(id) {
        Err(Violation::new(
            "a job is held once",
            format!("{id} was enqueued a second time"),
        ))
    } else {
        Ok(())
    }
}
