//! A broker that begins to serve has the state that the log says, whatever snapshots and clean-up made of it.

use tenure::queue::{Error, Queue};
use tenure_core::Incarnation;
use tenure_core::queue::{Filter, PageStart};

use super::super::ledger::{Ledger, State};
use crate::invariants::Violation;

pub(crate) fn check(
    ledger: &Ledger,
    queue: &Queue,
    incarnation: Incarnation,
) -> Result<(), Violation> {
    // If it has gone on already, its next commands tell.
    let (Some(expected), Ok(found)) = (ledger.found(incarnation), state_of(queue)) else {
        return Ok(());
    };
    match difference(expected, &found) {
        None => Ok(()),
        Some(difference) => Err(Violation::new("what is recovered is committed", difference)),
    }
}

/// What a broker shows.
pub(crate) fn state_of(queue: &Queue) -> Result<State, Error> {
    let mut jobs = Vec::new();
    let mut after = 0;
    loop {
        let page = queue.page(&Filter::default(), PageStart::After(after), usize::MAX)?;
        jobs.extend(page.jobs.into_iter().map(|mut job| {
            job.progress = None;
            job
        }));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    Ok(State {
        jobs,
        queues: queue.queues()?,
        schedules: queue.schedules()?,
        settings: queue.settings()?,
    })
}

/// Where two states differ first.
pub(crate) fn difference(expected: &State, found: &State) -> Option<String> {
    if expected == found {
        return None;
    }
    let jobs = expected.jobs.iter().zip(&found.jobs);
    for (expected, found) in jobs {
        if expected != found {
            return Some(format!("{found:?}, where {expected:?} is committed"));
        }
    }
    Some(format!(
        "{} jobs, where {} are committed; {:?} and {:?}; {:?} and {:?}",
        found.jobs.len(),
        expected.jobs.len(),
        found.queues,
        expected.queues,
        found.schedules,
        expected.schedules
    ))
}
