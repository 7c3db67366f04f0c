//! An id is known for its time, whatever becomes of its job: until then nothing new is made of it.

use tenure_core::queue::Event;

use super::super::jobs::Jobs;
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event, now: u64) -> Result<(), Violation> {
    let (Event::Submitted { id, .. }
    | Event::SlotFired {
        id, created: true, ..
    }) = event
    else {
        return Ok(());
    };
    match jobs.ids.get(id) {
        Some(&at) if now.saturating_sub(at) < jobs.settings.ids.age_ms => Err(Violation::new(
            "an id is known for its time",
            format!("{id} finished at {at}, and at {now} a new job has its id"),
        )),
        _ => Ok(()),
    }
}
