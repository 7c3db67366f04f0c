//! Breaks each promise on purpose: a check that cannot fail is worthless.

use super::*;
use crate::history::{Event, Listed};

struct Build(Record);

fn token(number: u64) -> Token {
    Token { number, nonce: 7 }
}

impl Build {
    fn new() -> Self {
        Self(Record::default())
    }

    fn event(mut self, from: u64, to: u64, what: What) -> Self {
        let span = Span {
            invoked: Duration::from_millis(from),
            answered: Duration::from_millis(to),
        };
        let actor = "client".to_owned();
        self.0.events.push(Event { actor, span, what });
        self
    }

    fn submit(self, from: u64, to: u64, id: &str, outcome: Submit) -> Self {
        let what = What::Submit {
            id: id.to_owned(),
            group: id.starts_with('g').then(|| "g".to_owned()),
            key: id.starts_with('u').then(|| "u".to_owned()),
            outcome,
        };
        self.event(from, to, what)
    }

    fn claim(self, from: u64, to: u64, id: &str, attempt: u32, number: u64) -> Self {
        let what = What::Claim {
            id: id.to_owned(),
            attempt,
            token: token(number),
            lease: Duration::from_secs(1),
        };
        self.event(from, to, what)
    }

    fn complete(
        self,
        span: (u64, u64),
        id: &str,
        attempt: u32,
        number: u64,
        outcome: Outcome,
    ) -> Self {
        let what = What::End {
            id: id.to_owned(),
            attempt,
            token: token(number),
            is_success: true,
            outcome,
        };
        self.event(span.0, span.1, what)
    }

    fn kept(self, from: u64, to: u64, id: &str, number: u64) -> Self {
        let what = What::Heartbeat {
            id: id.to_owned(),
            token: token(number),
            outcome: Outcome::Done,
        };
        self.event(from, to, what)
    }

    fn read(self, from: u64, to: u64, id: &str, seen: Seen) -> Self {
        let id = id.to_owned();
        self.event(from, to, What::Read { id, seen })
    }

    fn listed(mut self, id: &str, state: &str, attempt: u32) -> Self {
        let state = state.to_owned();
        let listed = Listed { state, attempt };
        self.0.listed.insert(id.to_owned(), listed);
        self
    }

    fn holds(self) {
        assert_eq!(check(&self.0), []);
    }

    fn breaks(self, promise: &str) {
        let found = check(&self.0);
        let is_told = found
            .iter()
            .any(|violation| violation.what.contains(promise));
        assert!(is_told, "{promise:?} is not in {found:?}");
    }
}

/// A job that was submitted and run as usual.
fn usual(id: &str) -> Build {
    Build::new()
        .submit(0, 10, id, Submit::Acknowledged)
        .claim(10, 20, id, 1, 1)
        .complete((30, 40), id, 1, 1, Outcome::Done)
        .listed(id, "completed", 1)
}

#[test]
fn what_is_right_is_left_alone() {
    usual("a").holds();
    // The lease ran out, a second attempt came, and the first one's completion was refused.
    Build::new()
        .submit(0, 10, "a", Submit::Unknown)
        .claim(10, 20, "a", 1, 1)
        .claim(900, 1_100, "a", 2, 2)
        .complete((1_200, 1_210), "a", 1, 1, Outcome::Lost)
        .complete((1_200, 1_210), "a", 2, 2, Outcome::Unknown)
        .listed("a", "completed", 2)
        .holds();
    // The submit was never acknowledged, so the job may be missing.
    let maybe = Build::new().submit(0, 10, "a", Submit::Unknown);
    maybe.submit(0, 10, "b", Submit::NotDone).holds();
}

#[test]
fn a_lost_job_is_found() {
    let lost = Build::new().submit(0, 10, "a", Submit::Acknowledged);
    lost.breaks("it was acknowledged, and is gone");
    usual("a")
        .submit(50, 60, "b", Submit::Acknowledged)
        .listed("b", "ready", 0)
        .breaks("in the end it is ready");
}

#[test]
fn an_invented_job_is_found() {
    usual("a")
        .listed("x", "completed", 1)
        .breaks("nobody knows it");
    usual("a")
        .claim(50, 60, "x", 1, 2)
        .breaks("nobody submitted it");
    Build::new()
        .submit(0, 10, "a", Submit::NotDone)
        .listed("a", "ready", 0)
        .breaks("said not to be done");
}

#[test]
fn a_second_completion_is_found() {
    let twice = usual("a").claim(1_100, 1_110, "a", 2, 2);
    twice
        .complete((1_120, 1_130), "a", 2, 2, Outcome::Done)
        .breaks("2 completions were accepted");
    let again = usual("a").claim(1_100, 1_110, "a", 2, 2);
    again.breaks("handed out after attempt 1 had completed it");
    Build::new()
        .submit(0, 10, "a", Submit::Acknowledged)
        .claim(10, 20, "a", 1, 1)
        .complete((30, 40), "a", 1, 1, Outcome::Lost)
        .listed("a", "completed", 1)
        .breaks("no worker did so");
    usual("a")
        .listed("a", "completed", 2)
        .breaks("but attempt 2 counts");
}

#[test]
fn two_holders_are_found() {
    let both = |from, to| {
        Build::new()
            .submit(0, 10, "a", Submit::Acknowledged)
            .claim(10, 20, "a", 1, 1)
            .claim(from, to, "a", 2, 2)
            .complete((5_000, 5_010), "a", 2, 2, Outcome::Done)
            .listed("a", "completed", 2)
    };
    both(500, 510).breaks("while attempt 1 held its lease");
    both(500, 1_010).holds();
    both(1_500, 1_510)
        .kept(700, 710, "a", 1)
        .breaks("held its lease");
    both(1_800, 1_810).kept(700, 710, "a", 1).holds();
    let same = both(1_500, 1_510).claim(3_000, 3_010, "a", 2, 3);
    same.breaks("attempt 2 was handed out twice");
    let same = both(1_500, 1_510).claim(3_000, 3_010, "a", 3, 2);
    same.breaks("token 2-00000007 was handed out twice");
    let back = both(1_500, 1_510).claim(3_000, 3_010, "a", 4, 1);
    back.breaks("came after");
}

#[test]
fn a_group_out_of_order_is_found() {
    let group = |claimed| {
        usual("ga")
            .submit(12, 15, "gb", Submit::Acknowledged)
            .claim(16, claimed, "gb", 1, 9)
            .complete((100, 110), "gb", 1, 9, Outcome::Done)
            .listed("gb", "completed", 1)
    };
    group(25).breaks("handed out before ga of its group was done");
    group(35).holds();
}

#[test]
fn one_key_for_two_is_found() {
    let key = |acknowledged| {
        usual("ua")
            .submit(12, acknowledged, "ub", Submit::Acknowledged)
            .claim(50, 60, "ub", 1, 9)
            .complete((100, 110), "ub", 1, 9, Outcome::Done)
            .listed("ub", "completed", 1)
    };
    key(20).breaks("were there with one key");
    key(45).holds();
}

#[test]
fn answers_that_have_no_order_are_found() {
    let running = || Seen::Running("client".to_owned());
    let completed = Seen::Finished(tenure_linear::job::Ending::Completed);
    // Reads between calls, and during a call that changes what is seen.
    usual("a")
        .read(11, 12, "a", Seen::Waiting)
        .read(21, 29, "a", running())
        .read(31, 39, "a", running())
        .read(41, 49, "a", completed.clone())
        .holds();
    let fits_nowhere = |build: Build| build.breaks("fits nowhere");
    fits_nowhere(usual("a").read(11, 12, "a", Seen::Nothing));
    fits_nowhere(usual("a").read(41, 49, "a", running()));
    fits_nowhere(usual("a").read(21, 25, "a", completed));
    // Two reads in a row: the second must not show an older state.
    let back = usual("a").read(
        31,
        32,
        "a",
        Seen::Finished(tenure_linear::job::Ending::Completed),
    );
    fits_nowhere(back.read(33, 34, "a", running()));
    // Ended by a claim that was already followed by another one.
    let late = Build::new()
        .submit(0, 10, "a", Submit::Acknowledged)
        .claim(10, 20, "a", 1, 1)
        .claim(1_500, 1_510, "a", 2, 2)
        .complete((1_520, 1_530), "a", 1, 1, Outcome::Done)
        .listed("a", "completed", 1);
    fits_nowhere(late);
}
