//! A job is claimed when nobody holds it; one of a group, when all before it have finished and none of it runs.

use tenure_core::queue::Event;

use super::super::jobs::{Jobs, Phase};
use crate::invariants::Violation;

pub(crate) fn check(jobs: &Jobs, event: &Event) -> Result<(), Violation> {
    let Event::Claimed { id, .. } = event else {
        return Ok(());
    };
    let job = jobs.jobs.get(id);
    let Some(job) = job.filter(|job| job.phase == Phase::Waiting) else {
        return Err(Violation::new(
            "a job is claimed while it waits",
            format!("{id} is {job:?}"),
        ));
    };
    let Some(group) = &job.group else {
        return Ok(());
    };
    let before = jobs.jobs.iter().find(|(_, other)| {
        let is_same = other.group.as_ref() == Some(group) && other.queue == job.queue;
        let is_before = other.sequence < job.sequence && !other.is_finished();
        // One that people let run again comes next, though later ones have finished; never beside one of them.
        is_same && (is_before || other.is_running())
    });
    match before {
        None => Ok(()),
        Some((other, found)) => Err(Violation::new(
            "a group runs one at a time, in order",
            format!("{id} is claimed before or beside {other}, which is {found:?}"),
        )),
    }
}
