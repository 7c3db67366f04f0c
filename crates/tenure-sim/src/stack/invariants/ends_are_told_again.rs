//! A claim ends once, however often its worker tells it. The last end of a job that is told again is answered as it was, and
//! does nothing; another end of that claim is refused.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::JobId;
use tenure_core::queue::{
    Action, Answer, Command, Event, Failed, Lost, Payload, Queue, Released, Rules, Token,
};

use crate::invariants::Violation;

const PROPERTY: &str = "an end that is told again is answered as before";

/// What workers have ended.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// The last end of each job that its worker was told of.
    last: BTreeMap<JobId, (Told, Outcome)>,
    /// Every claim that a worker has ended.
    by_workers: BTreeSet<Token>,
    /// Every claim that has ended, in whatever way.
    ended: BTreeSet<Token>,
    /// How often one was told again.
    pub(crate) again: u64,
    /// How often a claim that had ended was ended in another way.
    pub(crate) otherwise: u64,
}

/// An end as a worker tells it.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    token: Token,
    how: How,
}

#[derive(Debug, Clone, PartialEq)]
enum How {
    Complete(Option<Payload>),
    /// With what was said, and whether it is for good.
    Fail(Option<Box<str>>, Option<u64>, bool),
    Release,
}

impl Ends {
    /// Whether this claim was ended by its worker.
    pub(crate) fn is_by_worker(&self, token: Token) -> bool {
        self.by_workers.contains(&token)
    }

    /// A command was committed, and this came of it.
    pub(crate) fn apply(
        &mut self,
        command: &Command,
        answer: &Answer,
        events: &[Event],
        queue: &Queue,
    ) -> Result<(), Violation> {
        for event in events {
            if let Event::Submitted { id, .. }
            | Event::SlotFired {
                id, created: true, ..
            } = event
            {
                self.last.remove(id);
            }
            if let Some(token) = event.ended_claim()
                && !self.ended.insert(token)
            {
                return broken(format!("{token} has ended a second time: {event:?}"));
            }
        }
        let done: BTreeSet<Token> = events.iter().filter_map(Event::ended_claim).collect();
        for ((id, told), outcome) in told(command).into_iter().zip(outcomes(answer)) {
            let is_lost = matches!(outcome, Outcome::Lost(_));
            if !is_lost && done.contains(&told.token) {
                self.by_workers.insert(told.token);
                // The older rules did not remember it.
                if queue.rules() >= Rules::THIRD {
                    self.last.insert(id, (told, outcome));
                }
                continue;
            }
            match self.last.get(&id) {
                Some((last, before)) if *last == told => {
                    self.again += 1;
                    // What this very command has forgotten may have been known to it.
                    let is_known = queue.job(&id).is_some() || queue.remnant(&id).is_some();
                    if outcome != *before && (is_known || !is_lost) {
                        return broken(format!(
                            "{told:?} of {id} was {before:?}, and told again it is {outcome:?}"
                        ));
                    }
                }
                // The same claim, ended in another way.
                Some((last, _)) if last.token == told.token && is_lost => {
                    self.otherwise += 1;
                    let is_named = matches!(outcome, Outcome::Lost(Lost::Ended { .. }));
                    let is_known = queue.job(&id).is_some() || queue.remnant(&id).is_some();
                    if is_known && !is_named {
                        return broken(format!(
                            "{told:?} of {id}, which was {last:?}, is only {outcome:?}"
                        ));
                    }
                }
                last if !is_lost => {
                    return broken(format!(
                        "{told:?} of {id} is {outcome:?}, and nothing was done; before, {last:?}"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn broken(message: String) -> Result<(), Violation> {
    Err(Violation::new(PROPERTY, message))
}

fn told(command: &Command) -> Vec<(JobId, Told)> {
    let told = |id: &JobId, token, how| (id.clone(), Told { token, how });
    match &command.action {
        Action::Complete(claims) => {
            let each = claims.iter();
            let each = each.map(|end| told(&end.id, end.token, How::Complete(end.result.clone())));
            each.collect()
        }
        Action::Fail(claims) => {
            let each = claims.iter().map(|end| {
                let how = How::Fail(end.error.clone(), end.retry_in_ms, end.permanent);
                told(&end.id, end.token, how)
            });
            each.collect()
        }
        Action::Release(claims) => {
            let each = claims.iter();
            each.map(|end| told(&end.id, end.token, How::Release))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// What a worker is told. When a failed job is to run is not for it, and may have changed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    Done,
    Died,
    Cancelled,
    Lost(Lost),
}

fn outcomes(answer: &Answer) -> Vec<Outcome> {
    match answer {
        Answer::Completed(items) => {
            let each = items.iter().map(|item| match item.outcome {
                Ok(()) => Outcome::Done,
                Err(lost) => Outcome::Lost(lost),
            });
            each.collect()
        }
        Answer::Failed(items) => {
            let each = items.iter().map(|item| match item.outcome {
                Ok(Failed::Again { .. }) => Outcome::Done,
                Ok(Failed::Died) => Outcome::Died,
                Ok(Failed::Cancelled) => Outcome::Cancelled,
                Err(lost) => Outcome::Lost(lost),
            });
            each.collect()
        }
        Answer::Released(items) => {
            let each = items.iter().map(|item| match item.outcome {
                Ok(Released::Ready) => Outcome::Done,
                Ok(Released::Cancelled) => Outcome::Cancelled,
                Err(lost) => Outcome::Lost(lost),
            });
            each.collect()
        }
        _ => Vec::new(),
    }
}
