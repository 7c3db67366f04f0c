//! Checks that what clients saw of a job could have happened one call after the other. Calls whose answers were lost
//! take effect at any later time or never.

use tenure_linear::job::{Call, End, Ending, Job, Seen, State, Submitted};
use tenure_linear::{Entry, Verdict, check};

use super::Story;
use crate::history::{Listed, Moment, Outcome, Span, Submit};

/// The result of the search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// There is an order that fits.
    Fits,
    /// This call fits nowhere.
    Broken(String),
    /// Too many overlapping calls to tell.
    Unknown,
}

/// Looks for an order of a job's calls, with the final listing as the last one.
pub(super) fn order(story: &Story<'_>, listed: Option<&Listed>) -> Order {
    let mut calls = Vec::new();
    let mut note = |span: Span, is_answered: bool, call| {
        calls.push(Entry {
            begun: at(span.invoked),
            ended: is_answered.then(|| at(span.answered)),
            call,
        });
    };
    for (span, outcome) in &story.submits {
        match outcome {
            // The client sends it again if an answer is lost, so an earlier attempt of the same call may have created
            // it.
            Submit::Acknowledged => note(*span, true, Call::Submit(Some(Submitted::There))),
            Submit::KeyTaken(_) => note(*span, true, Call::Submit(Some(Submitted::Refused))),
            Submit::Unknown | Submit::Wrong(_) => note(*span, false, Call::Submit(None)),
            Submit::NotDone => {}
        }
    }
    for claim in &story.claims {
        let (token, worker) = (claim.token.to_string(), claim.worker.to_owned());
        note(claim.span, true, Call::Claim { token, worker });
    }
    for ended in &story.ends {
        let end = if ended.is_success {
            End::Complete
        } else {
            End::Fail
        };
        let (is_answered, held) = match ended.outcome {
            Outcome::Done => (true, Some(true)),
            // A failure that is sent again is answered "lost" if another attempt has ended since.
            Outcome::Lost if !ended.is_success => (true, None),
            Outcome::Lost => (true, Some(false)),
            Outcome::Unknown => (false, None),
            Outcome::NotDone => continue,
        };
        let token = ended.token.to_string();
        note(ended.span, is_answered, Call::End { token, end, held });
    }
    for (span, seen) in &story.reads {
        note(*span, true, Call::Read((*seen).clone()));
    }
    calls.push(Entry {
        begun: u64::MAX - 1,
        ended: Some(u64::MAX),
        call: Call::Read(last_seen(listed)),
    });
    let job = Job {
        // A claim is sent again too: an attempt whose answer was lost may have got any job.
        claims_are_lost: true,
        is_scheduled: false,
    };
    match check(&job, State::ABSENT, &calls) {
        Verdict::Fits => Order::Fits,
        Verdict::GaveUp => Order::Unknown,
        Verdict::Broken(at) => Order::Broken(format!("{:?}", calls[at].call)),
    }
}

fn at(moment: Moment) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX - 2)
}

fn last_seen(listed: Option<&Listed>) -> Seen {
    match listed.map(|listed| listed.state.as_str()) {
        None => Seen::Nothing,
        Some("completed") => Seen::Finished(Ending::Completed),
        Some("cancelled") => Seen::Finished(Ending::Cancelled),
        Some("dead") => Seen::Finished(Ending::Dead),
        Some("running") => Seen::Running(String::new()),
        Some(_) => Seen::Waiting,
    }
}
