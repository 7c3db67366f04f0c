//! Histories that fit, and the same with one answer that does not fit.

use super::job::{Call, Cancelled, End, Ending, Job, Seen, State, Submitted};
use super::{Entry, Verdict, check};

fn call(begun: u64, ended: u64, call: Call) -> Entry<Call> {
    let ended = Some(ended);
    Entry { begun, ended, call }
}

fn lost(begun: u64, call: Call) -> Entry<Call> {
    Entry {
        begun,
        ended: None,
        call,
    }
}

fn created() -> Call {
    Call::Submit(Some(Submitted::Created))
}

fn claim(token: &str) -> Call {
    Call::Claim {
        token: token.to_owned(),
        worker: format!("worker of {token}"),
    }
}

fn ended(token: &str, end: End, held: Option<bool>) -> Call {
    Call::End {
        token: token.to_owned(),
        end,
        held,
    }
}

#[track_caller]
fn fits(history: &[Entry<Call>]) {
    let verdict = check(&Job::default(), State::ABSENT, history);
    assert_eq!(verdict, Verdict::Fits);
}

#[track_caller]
fn breaks(history: &[Entry<Call>], at: usize) {
    let verdict = check(&Job::default(), State::ABSENT, history);
    assert_eq!(verdict, Verdict::Broken(at));
}

#[test]
fn a_read_shows_what_was_acknowledged_before_it() {
    fits(&[call(1, 2, created()), call(3, 4, Call::Read(Seen::Waiting))]);
    // They overlap, so either may be first.
    fits(&[call(1, 4, created()), call(2, 3, Call::Read(Seen::Nothing))]);
    breaks(
        &[call(1, 2, created()), call(3, 4, Call::Read(Seen::Nothing))],
        1,
    );
}

#[test]
fn a_read_shows_nothing_older_than_the_read_before_it() {
    let job = [
        call(1, 2, created()),
        call(3, 4, claim("1")),
        lost(5, ended("1", End::Complete, None)),
        call(6, 7, Call::Read(Seen::Finished(Ending::Completed))),
    ];
    fits(&job);
    let stale = call(8, 9, Call::Read(Seen::Running("worker of 1".to_owned())));
    breaks(&[&job[..], &[stale]].concat(), 4);
}

#[test]
fn a_call_without_an_answer_happens_late_or_never() {
    let submit = || lost(1, Call::Submit(None));
    fits(&[submit(), call(2, 3, Call::Read(Seen::Nothing))]);
    fits(&[
        submit(),
        call(2, 3, Call::Read(Seen::Nothing)),
        call(4, 5, Call::Read(Seen::Waiting)),
        call(6, 7, Call::Submit(Some(Submitted::Known))),
    ]);
    // A job does not disappear before it has finished.
    breaks(
        &[
            submit(),
            call(2, 3, Call::Read(Seen::Waiting)),
            call(4, 5, Call::Read(Seen::Nothing)),
        ],
        2,
    );
}

#[test]
fn a_claim_ends_once_and_by_its_own_token() {
    let job = [
        call(1, 2, created()),
        call(3, 4, claim("1")),
        // Its lease ran out.
        call(5, 6, claim("2")),
    ];
    let complete = |token: &str, held| ended(token, End::Complete, Some(held));
    fits(&[&job[..], &[call(7, 8, complete("1", false))]].concat());
    breaks(&[&job[..], &[call(7, 8, complete("1", true))]].concat(), 3);
    let both = [
        call(7, 10, complete("2", true)),
        call(8, 9, ended("2", End::Release, Some(true))),
    ];
    breaks(&[&job[..], &both].concat(), 3);
}

#[test]
fn a_job_is_handed_out_while_it_waits() {
    let job = [
        call(1, 2, created()),
        call(3, 4, claim("1")),
        call(5, 6, ended("1", End::Complete, Some(true))),
    ];
    fits(&job);
    breaks(&[&job[..], &[call(7, 8, claim("2"))]].concat(), 3);
    let cancelled = call(3, 4, Call::Cancel(Some(Cancelled::Done)));
    fits(&[call(1, 2, created()), cancelled.clone()]);
    breaks(
        &[call(1, 2, created()), cancelled, call(5, 6, claim("1"))],
        2,
    );
}

#[test]
fn a_job_that_is_given_up_while_it_runs_ends_cancelled() {
    let job = [
        call(1, 2, created()),
        call(3, 4, claim("1")),
        call(5, 6, Call::Cancel(Some(Cancelled::Requested))),
        call(7, 8, ended("1", End::Release, Some(true))),
    ];
    let seen = |seen| [&job[..], &[call(9, 10, Call::Read(seen))]].concat();
    fits(&seen(Seen::Finished(Ending::Cancelled)));
    breaks(&seen(Seen::Waiting), 4);
}

#[test]
fn a_claim_that_nobody_heard_of_may_hold_the_job() {
    let job = [
        call(1, 2, created()),
        call(3, 4, Call::Read(Seen::Running("anyone".to_owned()))),
    ];
    breaks(&job, 1);
    let model = Job {
        claims_are_lost: true,
        ..Job::default()
    };
    assert_eq!(check(&model, State::ABSENT, &job), Verdict::Fits);
}

#[test]
fn many_calls_at_once_are_searched_in_bounds() {
    let mut history = vec![call(1, 2, created())];
    for number in 0..40 {
        history.push(call(3 + number, 1_000, Call::Read(Seen::Waiting)));
        history.push(lost(3 + number, Call::Cancel(None)));
    }
    fits(&history);
}

#[test]
fn an_end_may_be_told_again() {
    let history = |last: Call| {
        [
            call(1, 2, created()),
            call(3, 4, claim("a")),
            lost(5, ended("a", End::Release, None)),
            call(6, 7, claim("b")),
            call(8, 9, last),
        ]
    };
    fits(&history(ended("a", End::Release, Some(true))));
    // A different end does not get the same answer.
    breaks(&history(ended("a", End::Complete, Some(true))), 4);
    fits(&history(ended("a", End::Complete, Some(false))));
}

/// A client that sends a submit again learns that the job exists, not since when.
#[test]
fn a_submit_that_was_sent_again_leaves_a_job_behind() {
    let there = || Call::Submit(Some(Submitted::There));
    fits(&[
        call(1, 2, there()),
        call(3, 4, there()),
        call(5, 6, claim("a")),
    ]);
    breaks(
        &[call(1, 2, there()), call(3, 4, Call::Read(Seen::Nothing))],
        1,
    );
}
