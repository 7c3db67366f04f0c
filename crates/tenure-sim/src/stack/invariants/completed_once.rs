//! A job is completed once, by the claim that holds it; and so ends every other claim.

use tenure_core::queue::Event;

use super::super::jobs::{Jobs, Phase};
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event) -> Result<(), Violation> {
    let (Event::Completed { id, token, .. }
    | Event::Failed { id, token, .. }
    | Event::Died { id, token, .. }
    | Event::Released { id, token, .. }) = event
    else {
        return Ok(());
    };
    match jobs.jobs.get(id) {
        Some(job) if job.phase == Phase::Running(*token) => Ok(()),
        job => Err(Violation::new(
            "a claim is ended once, by whoever holds it",
            format!("{event:?}, while the job is {job:?}"),
        )),
    }
}
