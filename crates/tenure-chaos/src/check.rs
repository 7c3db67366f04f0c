//! Checks the history against the queue's promises. Calls with lost answers may or may not have been done: nothing is
//! reported that a correct broker could have done.
//!
//! - **kept**: at the end every acknowledged job is there and completed, and no job is unfinished.
//! - **not invented**: every job that is there, or was handed out, was submitted, and its submit was not answered
//!   "not done".
//! - **completed once**: at most one completion of a job is accepted, it belongs to the last attempt, and the job is
//!   not handed out after it. A completion that was answered "lost" did not count.
//! - **one holder**: a job is not handed out while the lease of an earlier claim certainly lasts; no attempt and no
//!   token is handed out twice; both only grow.
//! - **in order**: a job of a group is not handed out before the completion of the one before it was sent.
//! - **unique**: two jobs with the same unique key are never certainly unfinished at the same time.
//! - **linearizable**: submits, claims, ends and reads of a job have an order that fits all answers
//!   (`tenure-linear`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_client::Token;
use tenure_linear::job::Seen;

use self::calls::{Order, order};
use crate::history::{Moment, Outcome, Record, Span, Submit, What};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which promise was broken, and how.
    pub what: String,
    /// The job, if it concerns one.
    pub job: Option<String>,
}

/// The clocks of this process and of a broker run at the same rate, but not to the last millisecond.
const MARGIN: Duration = Duration::from_millis(50);

/// At most one job in this many may have too many overlapping calls to be checked.
const UNKNOWN_ONE_IN: usize = 100;

/// Everything the clients saw of one job.
#[derive(Debug, Default)]
struct Story<'a> {
    group: Option<&'a str>,
    key: Option<&'a str>,
    submits: Vec<(Span, &'a Submit)>,
    claims: Vec<Claim<'a>>,
    heartbeats: Vec<(Span, Token, Outcome)>,
    ends: Vec<End>,
    reads: Vec<(Span, &'a Seen)>,
}

#[derive(Debug, Clone, Copy)]
struct Claim<'a> {
    span: Span,
    worker: &'a str,
    attempt: u32,
    token: Token,
    lease: Duration,
}

#[derive(Debug, Clone, Copy)]
struct End {
    span: Span,
    attempt: u32,
    token: Token,
    is_success: bool,
    outcome: Outcome,
}

/// Returns every broken promise.
#[must_use]
pub fn check(record: &Record) -> Vec<Violation> {
    let stories = stories(record);
    let mut found: Vec<Violation> = record
        .broken
        .iter()
        .map(|what| Violation {
            what: what.clone(),
            job: None,
        })
        .collect();
    for (id, story) in &stories {
        let mut report = |what: String| {
            found.push(Violation {
                what: format!("job {id}: {what}"),
                job: Some((*id).to_owned()),
            });
        };
        kept(record, id, story, &mut report);
        not_invented(record, id, story, &mut report);
        completed_once(record, id, story, &mut report);
        one_holder(story, &mut report);
    }
    for id in record.listed.keys() {
        if !stories.contains_key(id.as_str()) {
            found.push(Violation {
                what: format!("job {id} is listed, and nobody knows it"),
                job: None,
            });
        }
    }
    one_after_the_other(record, &stories, &mut found);
    in_order(record, &stories, &mut found);
    unique(record, &stories, &mut found);
    found
}

fn stories(record: &Record) -> BTreeMap<&str, Story<'_>> {
    let mut stories: BTreeMap<&str, Story<'_>> = BTreeMap::new();
    for event in &record.events {
        let Some(id) = event.what.job() else { continue };
        let (span, story) = (event.span, stories.entry(id).or_default());
        match &event.what {
            What::Submit {
                group,
                key,
                outcome,
                ..
            } => {
                (story.group, story.key) = (group.as_deref(), key.as_deref());
                story.submits.push((span, outcome));
            }
            What::Claim {
                attempt,
                token,
                lease,
                ..
            } => story.claims.push(Claim {
                span,
                worker: &event.actor,
                attempt: *attempt,
                token: *token,
                lease: *lease,
            }),
            What::Heartbeat { token, outcome, .. } => {
                story.heartbeats.push((span, *token, *outcome));
            }
            What::End {
                attempt,
                token,
                is_success,
                outcome,
                ..
            } => story.ends.push(End {
                span,
                attempt: *attempt,
                token: *token,
                is_success: *is_success,
                outcome: *outcome,
            }),
            What::Read { seen, .. } => story.reads.push((span, seen)),
            What::Fault(_) => {}
        }
    }
    for story in stories.values_mut() {
        story.claims.sort_by_key(|claim| claim.span.invoked);
    }
    stories
}

impl Story<'_> {
    /// From when on it was certainly there.
    fn acknowledged(&self) -> Option<Moment> {
        let acknowledged = self.submits.iter();
        let acknowledged = acknowledged.filter(|(_, outcome)| **outcome == Submit::Acknowledged);
        acknowledged.map(|(span, _)| span.answered).min()
    }

    /// The completion that counted, if the job is listed as completed.
    fn completion(&self, record: &Record, id: &str) -> Option<End> {
        let attempt = record.listed.get(id)?.attempt;
        let mut ends = self.ends.iter().copied();
        ends.find(|end| end.is_success && end.attempt == attempt)
    }
}

fn kept(record: &Record, id: &str, story: &Story<'_>, report: &mut impl FnMut(String)) {
    match record.listed.get(id) {
        None if story.acknowledged().is_some() => {
            report("it was acknowledged, and is gone".to_owned());
        }
        None if !story.claims.is_empty() => {
            report("it was handed out, and is gone".to_owned());
        }
        Some(listed) if listed.state != "completed" => {
            report(format!("in the end it is {}", listed.state));
        }
        _ => {}
    }
}

fn not_invented(record: &Record, id: &str, story: &Story<'_>, report: &mut impl FnMut(String)) {
    for (_, outcome) in &story.submits {
        if let Submit::Wrong(answer) = outcome {
            report(format!("its submit was answered wrongly: {answer}"));
        }
    }
    let is_there = record.listed.contains_key(id) || !story.claims.is_empty();
    let may_be = story
        .submits
        .iter()
        .any(|(_, outcome)| !matches!(outcome, Submit::NotDone));
    if is_there && story.submits.is_empty() {
        report("it is there, and nobody submitted it".to_owned());
    } else if is_there && !may_be {
        report("it is there, though its submit was said not to be done".to_owned());
    }
}

fn completed_once(record: &Record, id: &str, story: &Story<'_>, report: &mut impl FnMut(String)) {
    let accepted: BTreeMap<Token, &End> = story
        .ends
        .iter()
        .filter(|end| end.is_success && end.outcome == Outcome::Done)
        .map(|end| (end.token, end))
        .collect();
    if accepted.len() > 1 {
        report(format!("{} completions were accepted", accepted.len()));
    }
    for end in accepted.values() {
        let again = |claim: &&Claim<'_>| claim.span.invoked > end.span.answered;
        if let Some(claim) = story.claims.iter().find(again) {
            report(format!(
                "attempt {} was handed out after attempt {} had completed it",
                claim.attempt, end.attempt
            ));
        }
    }
    let Some(listed) = record.listed.get(id) else {
        return;
    };
    if listed.state != "completed" {
        return;
    }
    let counted = story.completion(record, id);
    if !counted.is_some_and(|end| matches!(end.outcome, Outcome::Done | Outcome::Unknown)) {
        report(format!(
            "attempt {} has completed it, and no worker did so",
            listed.attempt
        ));
    }
    if let Some(end) = accepted.values().find(|end| end.attempt != listed.attempt) {
        report(format!(
            "the completion of attempt {} was accepted, but attempt {} counts",
            end.attempt, listed.attempt
        ));
    }
}

fn one_holder(story: &Story<'_>, report: &mut impl FnMut(String)) {
    let mut seen = BTreeSet::new();
    for claim in &story.claims {
        if !seen.insert(claim.token) {
            report(format!("token {} was handed out twice", claim.token));
        }
    }
    for (place, first) in story.claims.iter().enumerate() {
        for second in &story.claims[place + 1..] {
            if first.token == second.token {
                continue;
            }
            if first.attempt == second.attempt {
                report(format!("attempt {} was handed out twice", first.attempt));
            }
            let is_later = first.span.answered < second.span.invoked;
            let grows = first.attempt < second.attempt && first.token.number < second.token.number;
            if is_later && !grows {
                report(format!(
                    "attempt {} came after attempt {}",
                    second.attempt, first.attempt
                ));
            }
            let (older, newer) = if first.token.number < second.token.number {
                (first, second)
            } else {
                (second, first)
            };
            if newer.span.answered + MARGIN < held_until(story, older, newer.span.answered) {
                report(format!(
                    "attempt {} was handed out while attempt {} held its lease",
                    newer.attempt, older.attempt
                ));
            }
        }
    }
}

/// Until when a claim certainly held. Its lease counts from no earlier than the sending of the call that got or
/// renewed it. It counts as not held if its holder may have ended it before `seen`.
fn held_until(story: &Story<'_>, claim: &Claim<'_>, seen: Moment) -> Moment {
    let ended = |end: &End| end.token == claim.token && end.span.invoked <= seen;
    if story.ends.iter().any(ended) {
        return Moment::ZERO;
    }
    let kept = story.heartbeats.iter().filter(|(span, token, outcome)| {
        *token == claim.token && *outcome == Outcome::Done && span.answered <= seen
    });
    let kept = kept.map(|(span, ..)| span.invoked).max();
    kept.unwrap_or(claim.span.invoked) + claim.lease
}

fn one_after_the_other(
    record: &Record,
    stories: &BTreeMap<&str, Story<'_>>,
    found: &mut Vec<Violation>,
) {
    let mut unknown = 0;
    for (id, story) in stories {
        match order(story, record.listed.get(*id)) {
            Order::Fits => {}
            Order::Unknown => unknown += 1,
            Order::Broken(call) => found.push(Violation {
                what: format!(
                    "job {id}: whatever the order of its calls, this fits nowhere: {call}"
                ),
                job: Some((*id).to_owned()),
            }),
        }
    }
    // If too many jobs cannot be checked, the result means nothing.
    if unknown * UNKNOWN_ONE_IN > stories.len() {
        found.push(Violation {
            what: format!(
                "{unknown} of {} jobs have too many calls at once to be judged",
                stories.len()
            ),
            job: None,
        });
    }
}

fn in_order(record: &Record, stories: &BTreeMap<&str, Story<'_>>, found: &mut Vec<Violation>) {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (id, story) in stories {
        if let Some(group) = story.group {
            groups.entry(group).or_default().push(id);
        }
    }
    for members in groups.values() {
        for first in members {
            let Some(acknowledged) = stories[first].acknowledged() else {
                continue;
            };
            let Some(completion) = stories[first].completion(record, first) else {
                continue;
            };
            for second in members {
                let story = &stories[second];
                let sent = story.submits.iter().map(|(span, _)| span.invoked).min();
                let claimed = story.claims.iter().map(|claim| claim.span.answered).min();
                if sent.is_some_and(|sent| sent > acknowledged)
                    && claimed.is_some_and(|claimed| claimed < completion.span.invoked)
                {
                    found.push(Violation {
                        what: format!(
                            "job {second} was handed out before {first} of its group was done"
                        ),
                        job: Some((*second).to_owned()),
                    });
                }
            }
        }
    }
}

fn unique(record: &Record, stories: &BTreeMap<&str, Story<'_>>, found: &mut Vec<Violation>) {
    let mut keys: BTreeMap<&str, Vec<(&str, Moment, Moment)>> = BTreeMap::new();
    for (id, story) in stories {
        let (Some(key), Some(from)) = (story.key, story.acknowledged()) else {
            continue;
        };
        let to = story.completion(record, id);
        let to = to.map_or(Moment::MAX, |end| end.span.invoked);
        keys.entry(key).or_default().push((id, from, to));
    }
    for (key, lives) in keys {
        for (place, (first, from, to)) in lives.iter().enumerate() {
            for (second, other_from, other_to) in &lives[place + 1..] {
                if from.max(other_from) < to.min(other_to) {
                    found.push(Violation {
                        what: format!("jobs {first} and {second} were there with one key {key}"),
                        job: Some((*second).to_owned()),
                    });
                }
            }
        }
    }
}

mod calls;
#[cfg(test)]
mod tests;
