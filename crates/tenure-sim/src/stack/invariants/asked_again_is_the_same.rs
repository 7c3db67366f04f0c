//! A claim that is asked for again is the same claim: while it holds jobs, the same worker with the same key gets those, by the
//! same tokens, and no others; no attempt is counted. What was asked for again is not handed back but by its worker.

use std::collections::BTreeSet;

use tenure_core::JobId;
use tenure_core::queue::{Action, Answer, ClaimKey, Command, Event, Key, Queue, Rules, Token};

use super::super::jobs::{Jobs, Phase};
use crate::invariants::Violation;

const PROPERTY: &str = "a claim that is asked for again is the same";

/// Who claims with which key, if a command is a claim that has one.
pub(crate) fn of(command: &Command) -> Option<(Key, ClaimKey)> {
    match &command.action {
        Action::Claim(claim) => Some((claim.request.worker.clone(), claim.key?)),
        _ => None,
    }
}

/// The jobs that are answered with again, if a command asks for a claim that holds some.
pub(crate) fn check(
    jobs: &Jobs,
    command: &Command,
    answer: &Answer,
    events: &[Event],
    queue: &Queue,
) -> Result<Vec<JobId>, Violation> {
    if matches!(command.action, Action::Abandon(_)) {
        return abandoned(jobs, events);
    }
    // The older rules knew no keys.
    let asked = of(command).filter(|_| queue.rules() >= Rules::THIRD);
    let (Some(asked), Answer::Claimed(got)) = (asked, answer) else {
        return Ok(Vec::new());
    };
    let held = jobs.jobs.iter().filter_map(|(id, job)| match job.phase {
        Phase::Running(token) if job.claimed_as.as_ref() == Some(&asked) => Some((id, token)),
        _ => None,
    });
    let held: BTreeSet<(&JobId, Token)> = held.collect();
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let again: BTreeSet<(&JobId, Token)> = got.iter().map(|job| (&job.id, job.token)).collect();
    let is_counted = events
        .iter()
        .any(|event| matches!(event, Event::Claimed { .. }));
    if again != held || is_counted {
        let message = format!("{asked:?} holds {held:?}, and asked for again it gets {again:?}");
        return Err(Violation::new(PROPERTY, message));
    }
    Ok(held.into_iter().map(|(id, _)| id.clone()).collect())
}

fn abandoned(jobs: &Jobs, events: &[Event]) -> Result<Vec<JobId>, Violation> {
    for event in events {
        if let Event::Released { id, .. } = event
            && jobs.jobs.get(id).is_some_and(|job| job.is_asked_again)
        {
            let message = format!("{id} was asked for again, and is handed back by the broker");
            return Err(Violation::new(PROPERTY, message));
        }
    }
    Ok(Vec::new())
}
