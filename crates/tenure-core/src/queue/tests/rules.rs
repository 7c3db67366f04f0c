//! What changed with each version of the rules, and that the older ones are still what they were.

use tenure_api::{LostCode, OutcomeStatus, SubmitStatus};

use super::stories::{Story, id, statuses};
use crate::ScheduleName;
use crate::queue::*;

fn story(rules: Rules) -> Story {
    let mut story = Story::new();
    story.queue.set_rules(rules);
    story
}

fn completed(story: &mut Story, job: &str) {
    story.submit(&[&format!(r#""id":"{job}""#)]);
    let claimed = story.claim(1);
    let result = Some(Payload::new(format!("[\"{job}\"]")).unwrap());
    story.act(Action::Complete(vec![Completion {
        id: claimed[0].id.clone(),
        token: claimed[0].token,
        result,
    }]));
}

fn keeps(count: u64, ids: KeepIds) -> Action {
    let keep = Keep {
        age_ms: None,
        count: Some(count),
    };
    Action::Configure(Settings {
        completed: keep,
        ids,
        ..Settings::default()
    })
}

#[test]
fn a_claim_ends_at_four_mebibytes_and_has_at_least_one_job() {
    const MEBIBYTE: usize = 1 << 20;
    for (rules, expected) in [(Rules::FIRST, [7, 0, 0, 0]), (Rules::SECOND, [3, 1, 2, 1])] {
        let mut story = story(rules);
        for (number, mebibytes) in [1, 1, 1, 6, 2, 2, 1].into_iter().enumerate() {
            let text = "x".repeat(mebibytes * MEBIBYTE - 2);
            story.submit(&[&format!(r#""id":"{number}","payload":"{text}""#)]);
        }
        let claims: [_; 4] = std::array::from_fn(|_| story.claim(10).len());
        assert_eq!(claims, expected, "rules {rules}");
    }
}

#[test]
fn slots_wait_while_the_queue_is_full() {
    let mut story = story(Rules::SECOND);
    let (name, plan) = three_slots(&mut story, 1);
    let slots = plan[0].slots.clone();
    // There is room for one.
    story.act(Action::Fire(plan));
    let fired = |next, slots| Event::Fired {
        schedule: name.clone(),
        slots,
        next: Some(next),
    };
    assert_eq!(story.events.len(), 2);
    assert_eq!(story.events[0], fired(slots[1], 1));
    let schedule = story.queue.schedule(&name).unwrap();
    assert_eq!(
        (schedule.next, schedule.last),
        (Some(slots[1]), Some(slots[0]))
    );
    // Nothing is planned as long as there is none, so nobody commits what comes to nothing.
    assert_eq!(story.queue.due_firings(story.at), []);
    let claimed = story.claim(1);
    story.complete(&claimed[0]);
    story.act(Action::Forget(vec![claimed[0].id.clone()]));
    // A plan from before finds the slot that it was made for gone on.
    let plan = story.queue.due_firings(story.at);
    assert_eq!(plan[0].slots, slots[1..]);
    story.act(Action::Fire(plan));
    assert_eq!(story.events[0], fired(slots[2], 1));
}

#[test]
fn a_slot_that_finds_its_job_counts_while_the_queue_is_full() {
    let mut story = story(Rules::SECOND);
    let (name, plan) = three_slots(&mut story, 1);
    let slots = plan[0].slots.clone();
    let taken = story.queue.schedule(&name).unwrap().slot(slots[0]);
    story.act(Action::Submit(vec![taken]));
    story.act(Action::Fire(plan));
    let schedule = story.queue.schedule(&name).unwrap();
    assert_eq!(
        (schedule.next, schedule.last),
        (Some(slots[1]), Some(slots[0]))
    );
}

#[test]
fn slots_were_lost_under_the_first_rules() {
    let mut story = story(Rules::FIRST);
    let (name, plan) = three_slots(&mut story, 1);
    let (last, next) = (plan[0].slots[2], plan[0].next);
    story.act(Action::Fire(plan));
    assert_eq!(story.events.len(), 4);
    let schedule = story.queue.schedule(&name).unwrap();
    assert_eq!((schedule.next, schedule.last), (next, Some(last)));
    assert_eq!(story.queue.len(), 1);
}

/// A schedule with three slots that are due, in a queue with so much room.
fn three_slots(story: &mut Story, jobs_max: u64) -> (ScheduleName, Vec<Firing>) {
    let spec = r#"{"cron":"* * * * *","job":{"type":"report"},"missed":{"all":3}}"#;
    let spec: ScheduleSpec = serde_json::from_str(spec).unwrap();
    let name = ScheduleName::new("minutely").unwrap();
    let set = Schedule::command(name.clone(), spec, story.at).unwrap();
    story.act(set);
    story.act(Action::Configure(Settings {
        jobs_max,
        ..Settings::default()
    }));
    story.at = story.queue.firing_due_at().unwrap() + 120_000;
    let plan = story.queue.due_firings(story.at);
    assert_eq!(plan[0].slots.len(), 3);
    (name, plan)
}

#[test]
fn an_id_outlives_its_job_for_an_hour() {
    let mut story = story(Rules::SECOND);
    story.act(keeps(1, KeepIds::default()));
    completed(&mut story, "a");
    let (same, other) = (r#""id":"a""#, r#""id":"a","payload":1"#);
    completed(&mut story, "b");
    assert_eq!(story.queue.job(&id("a")), None);
    // It does not count as a job, and is not listed.
    assert_eq!((story.queue.len(), story.queue.remnants().ids), (1, 1));
    let check = |story: &mut Story| {
        let answers = story.submit(&[same, other]);
        let expected = [SubmitStatus::Duplicate, SubmitStatus::Conflict];
        assert_eq!(statuses(&answers), expected);
        let left = story.queue.remnant(&id("a")).unwrap();
        assert!(left.remnant);
        assert_eq!(left.state, State::Completed);
        assert_eq!(left.result.unwrap().as_str(), r#"["a"]"#);
    };
    check(&mut story);
    // Also after a restart, and until the hour is over.
    let mut restore = Restore::new(1);
    restore.feed(&story.queue.encode()).unwrap();
    story.queue = restore.finish().unwrap();
    story.at += 3_599_999;
    check(&mut story);
    story.at += 1;
    story.act(Action::Tick);
    assert_eq!(story.queue.remnants().ids, 0);
    assert_eq!(statuses(&story.submit(&[same])), [SubmitStatus::Created]);
}

#[test]
fn what_is_left_of_a_job_answers_whoever_comes_late() {
    let mut story = story(Rules::SECOND);
    story.act(keeps(0, KeepIds::default()));
    completed(&mut story, "a");
    assert_eq!(story.queue.remnants().ids, 1);
    let claim = Claim {
        id: id("a"),
        token: Token {
            number: 1,
            nonce: 0,
        },
    };
    let state = State::Completed;
    assert_eq!(
        story.queue.claim_status(&claim.id, claim.token),
        Err(Lost::NotRunning { state })
    );
    let answer = story.act(Action::Cancel(vec![id("a")])).cancelled();
    assert_eq!(answer[0].outcome, Err(Refusal::State { state }));
    // Its payload is gone.
    let answer = story.act(Action::Retry(vec![id("a")])).retried();
    assert_eq!(answer[0].outcome, Err(Refusal::NotFound));
    let answer = story.act(Action::Forget(vec![id("a")])).forgotten();
    assert_eq!(answer[0].outcome, Ok(()));
    assert_eq!(story.queue.remnant(&id("a")), None);
}

#[test]
fn ids_are_bounded_in_bytes_and_the_oldest_goes_first() {
    let mut story = story(Rules::SECOND);
    let ids = KeepIds {
        bytes_max: 3 * 170,
        ..KeepIds::default()
    };
    story.act(keeps(0, ids));
    for number in 0..10 {
        completed(&mut story, &number.to_string());
        assert!(story.queue.remnants().bytes <= ids.bytes_max);
    }
    let counts = story.queue.remnants();
    assert_eq!((counts.ids, counts.dropped), (3, 7));
    let left = |number: u32| story.queue.remnant(&id(&number.to_string())).is_some();
    assert_eq!(
        [left(6), left(7), left(8), left(9)],
        [false, true, true, true]
    );
}

#[test]
fn an_id_went_with_its_job_under_the_first_rules() {
    let mut story = story(Rules::FIRST);
    story.act(keeps(1, KeepIds::default()));
    completed(&mut story, "a");
    completed(&mut story, "b");
    assert_eq!(story.queue.remnants().ids, 0);
    let again = story.submit(&[r#""id":"a""#]);
    assert_eq!(statuses(&again), [SubmitStatus::Created]);
}

#[test]
fn a_snapshot_of_the_first_rules_names_none_and_others_do() {
    for (rules, said) in [(Rules::FIRST, false), (Rules::SECOND, true)] {
        let story = story(rules);
        let text = String::from_utf8(story.queue.encode()).unwrap();
        assert_eq!(text.contains(r#""rules":2"#), said, "{text}");
        let mut restore = Restore::new(1);
        restore.feed(text.as_bytes()).unwrap();
        assert_eq!(restore.finish().unwrap().rules(), rules);
    }
    let story = story(Rules::SECOND);
    let text = String::from_utf8(story.queue.encode()).unwrap();
    let unknown = Rules::LATEST.0 + 1;
    let newer = text.replace(r#""rules":2"#, &format!(r#""rules":{unknown}"#));
    let error = Restore::new(1).feed(newer.as_bytes()).unwrap_err();
    let told = format!("rules {unknown}");
    assert!(error.to_string().contains(&told), "{error}");
}

#[test]
fn a_digest_tells_states_apart_and_is_the_same_after_a_restart() {
    let mut story = story(Rules::SECOND);
    let mut seen = std::collections::BTreeSet::new();
    story.act(keeps(1, KeepIds::default()));
    for job in ["a", "b", "c"] {
        completed(&mut story, job);
        assert!(seen.insert(story.queue.digest()), "{job}");
        let mut restore = Restore::new(1);
        restore.feed(&story.queue.encode()).unwrap();
        assert_eq!(restore.finish().unwrap().digest(), story.queue.digest());
    }
    let before = story.queue.digest();
    story.queue.set_rules(Rules::FIRST);
    assert_ne!(story.queue.digest(), before);
}

#[test]
fn the_id_of_a_job_that_is_deleted_by_hand_stays_as_well() {
    let delete = |story: &mut Story| {
        let answers = story.act(Action::Forget(vec![id("a")])).forgotten();
        answers[0].outcome.clone()
    };
    let same = [r#""id":"a""#];
    let mut new = story(Rules::THIRD);
    completed(&mut new, "a");
    // Sent again, since the answer was lost, it changes nothing.
    for events in [1, 0] {
        assert_eq!((delete(&mut new), new.events.len()), (Ok(()), events));
        assert_eq!(new.queue.job(&id("a")), None);
        let left = new.queue.remnant(&id("a")).unwrap();
        assert_eq!(left.result.unwrap().as_str(), r#"["a"]"#);
        assert_eq!(statuses(&new.submit(&same)), [SubmitStatus::Duplicate]);
    }
    new.at += 3_600_000;
    new.act(Action::Tick);
    assert_eq!(delete(&mut new), Err(Refusal::NotFound));
    assert_eq!(statuses(&new.submit(&same)), [SubmitStatus::Created]);
    // It ended so long ago that its id is not kept either.
    let mut old = story(Rules::THIRD);
    completed(&mut old, "a");
    old.at += 3_600_000;
    assert_eq!((delete(&mut old), old.queue.remnants().ids), (Ok(()), 0));
    let mut second = story(Rules::SECOND);
    completed(&mut second, "a");
    assert_eq!(delete(&mut second), Ok(()));
    assert_eq!(statuses(&second.submit(&same)), [SubmitStatus::Created]);
}

#[test]
fn the_last_slot_of_a_schedule_is_one_that_became_a_job() {
    for (rules, is_last) in [(Rules::SECOND, true), (Rules::THIRD, false)] {
        let mut story = story(rules);
        story.submit(&[r#""id":"holder","unique_key":"k""#]);
        let spec = r#"{"cron":"* * * * *","job":{"type":"report","unique_key":"k"}}"#;
        let name = ScheduleName::new("minutely").unwrap();
        let spec = serde_json::from_str(spec).unwrap();
        story.act(Schedule::command(name.clone(), spec, story.at).unwrap());
        let fire = |story: &mut Story| {
            story.at = story.queue.firing_due_at().unwrap();
            let plan = story.queue.due_firings(story.at);
            story.act(Action::Fire(plan));
            story.queue.schedule(&name).unwrap().last == Some(story.at)
        };
        assert_eq!(fire(&mut story), is_last, "rules {rules}");
        // The key is free.
        let claimed = story.claim(1);
        story.complete(&claimed[0]);
        assert!(fire(&mut story));
        assert_eq!(fire(&mut story), is_last, "rules {rules}");
    }
}

const DAY: u64 = 24 * 3_600_000;

fn restored(queue: &Queue) -> Queue {
    let mut restore = Restore::new(1);
    restore.feed(&queue.encode()).unwrap();
    restore.finish().unwrap()
}

/// So many jobs that were delayed by a minute while the clock was a day ahead; the time is right again.
fn delayed_by_a_wrong_clock(rules: Rules, jobs: usize) -> Story {
    let mut story = story(rules);
    story.at += DAY;
    let jobs = (0..jobs).map(|number| {
        let job = format!(r#"{{"type":"t","id":"{number}","delay_ms":60000}}"#);
        serde_json::from_str(&job).unwrap()
    });
    story.act(Action::Submit(jobs.collect()));
    story.at -= DAY;
    story
}

/// How many jobs wait for no longer than they should.
fn set_right(story: &Story) -> usize {
    let all = story
        .queue
        .page(&Filter::default(), PageStart::After(0), usize::MAX);
    let is_right = |job: &&Job| job.run_at <= story.at + 60_000;
    all.jobs.iter().filter(is_right).count()
}

#[test]
fn each_record_looks_at_so_many_jobs_when_time_was_set_back() {
    const JOBS: usize = 5_000;
    let mut story = delayed_by_a_wrong_clock(Rules::THIRD, JOBS);
    story.act(Action::SetTime(story.at));
    let mut seen = vec![set_right(&story)];
    while story.queue.is_setting_back() {
        assert!(story.queue.due_at().is_some_and(|due| due <= story.at));
        // A minute from when it is looked at.
        story.at += 10;
        story.act(Action::Tick);
        seen.push(set_right(&story));
    }
    assert_eq!(seen, [2_000, 4_000, JOBS]);
    // Nothing else is left of it.
    assert_eq!(story.queue.due_at(), Some(story.at - 20 + 60_000));
    let mut story = delayed_by_a_wrong_clock(Rules::SECOND, JOBS);
    story.act(Action::SetTime(story.at));
    assert_eq!(
        (set_right(&story), story.queue.is_setting_back()),
        (JOBS, false)
    );
}

#[test]
fn a_restart_in_the_middle_of_setting_jobs_back_changes_nothing() {
    let mut story = delayed_by_a_wrong_clock(Rules::THIRD, 4_500);
    story.act(Action::SetTime(story.at));
    let mut other = Story::new();
    (other.queue, other.at) = (restored(&story.queue), story.at);
    for _ in 0..3 {
        assert_eq!(other.queue.digest(), story.queue.digest());
        assert_eq!(other.queue.encode(), story.queue.encode());
        for story in [&mut story, &mut other] {
            story.at += 1_000;
            story.act(Action::Submit(Vec::new()));
            story.act(Action::Tick);
        }
    }
    assert_eq!(set_right(&other), 4_500);
}

#[test]
fn jobs_that_came_after_time_was_set_back_are_left_as_they_are() {
    let mut story = delayed_by_a_wrong_clock(Rules::THIRD, 2_500);
    story.act(Action::SetTime(story.at));
    story.submit(&[r#""id":"late","delay_ms":1000"#]);
    // Forward, and back again before all were looked at: it begins anew.
    story.act(Action::SetTime(story.at + 60_000));
    story.submit(&[r#""id":"later","delay_ms":1000"#]);
    story.act(Action::SetTime(story.at));
    while story.queue.is_setting_back() {
        story.act(Action::Tick);
    }
    let run_at = |name| story.queue.job(&id(name)).unwrap().run_at - story.at;
    assert_eq!((run_at("later"), set_right(&story)), (1_000, 2_502));
    assert_eq!(run_at("2499"), 60_000);
}

/// A queue that keeps one finished job, and ids for an hour, with the remnants of two that ended while the clock was a day
/// ahead.
fn remnants_of_a_wrong_clock() -> Story {
    let mut story = story(Rules::THIRD);
    story.act(keeps(1, KeepIds::default()));
    story.at += DAY;
    for job in ["a", "b", "c"] {
        completed(&mut story, job);
    }
    assert_eq!(story.queue.remnants().ids, 2);
    story.at -= DAY;
    story
}

fn ended_at(queue: &Queue, job: &str) -> u64 {
    queue.remnant(&id(job)).unwrap().changed_at
}

#[test]
fn ids_ended_no_later_than_the_time_that_was_set() {
    let mut story = remnants_of_a_wrong_clock();
    let first = story.at;
    story.act(Action::SetTime(first));
    assert_eq!(ended_at(&story.queue, "a"), first);
    // Set back again, to a later time than the first: a restart makes no difference.
    let mut other = Story::new();
    (other.queue, other.at) = (restored(&story.queue), story.at);
    for story in [&mut story, &mut other] {
        story.at += 10_000;
        completed(story, "d");
        story.act(Action::SetTime(first + 5_000));
        assert_eq!(ended_at(&story.queue, "a"), first);
        assert_eq!(ended_at(&story.queue, "c"), first);
    }
    assert_eq!(other.queue.encode(), story.queue.encode());
    // They go an hour after that, and not a day and an hour.
    story.at = first + 3_600_000;
    story.act(Action::Tick);
    assert_eq!(story.queue.remnants().ids, 0);
}

#[test]
fn time_may_be_set_back_ever_so_often() {
    let mut story = remnants_of_a_wrong_clock();
    for number in 0..200 {
        story.at += 2;
        completed(&mut story, &format!("job-{number}"));
        story.at -= 1;
        story.act(Action::SetTime(story.at));
        assert!(story.queue.remnants.ceilings().len() <= 64);
        assert_eq!(restored(&story.queue).encode(), story.queue.encode());
    }
    assert!(ended_at(&story.queue, "a") < story.at);
}

#[test]
fn a_snapshot_has_the_ids_as_they_were_when_it_was_begun() {
    let mut story = remnants_of_a_wrong_clock();
    let wrong = ended_at(&story.queue, "a");
    let before = story.queue.encode();
    story.queue.begin_snapshot();
    story.act(Action::SetTime(story.at));
    assert!(ended_at(&story.queue, "a") < wrong);
    let mut snapshot = Vec::new();
    while let Some(piece) = story.queue.snapshot_chunk(1) {
        snapshot.extend(piece);
    }
    assert_eq!(String::from_utf8(snapshot), String::from_utf8(before));
}

#[test]
fn what_was_completed_is_counted_from_the_third_rules_on() {
    let mut story = Story::new();
    story.queue.set_rules(Rules::SECOND);
    let complete = |story: &mut Story, job: &str| {
        story.submit(&[job]);
        let claimed = story.claim(1);
        story.complete(&claimed[0]).outcome.unwrap();
    };
    complete(&mut story, r#""id":"a""#);
    complete(&mut story, r#""id":"b","queue":"other""#);
    // An older broker reads this snapshot, which must not have what it does not know.
    assert!(
        !String::from_utf8(story.queue.encode())
            .unwrap()
            .contains(r#""completed":1"#)
    );
    assert_eq!(story.queue.completed_total(), 1, "what is retained");
    story.queue.set_rules(Rules::THIRD);
    complete(&mut story, r#""id":"c""#);
    complete(&mut story, r#""id":"d","queue":"other""#);
    assert_eq!(story.queue.completed_total(), 2);
    story.act(keeps(0, KeepIds::default()));
    story.act(Action::Tick);
    assert_eq!(story.queue.counts().completed, 0);
    assert_eq!(story.queue.completed_total(), 2, "retained or not");
    assert_eq!(restored(&story.queue).completed_total(), 2);
}

/// Ends of a claim, as its worker tells them.
struct Ends(Claim);

impl Ends {
    fn of(claimed: &Claimed) -> Self {
        Self(Claim {
            id: claimed.id.clone(),
            token: claimed.token,
        })
    }

    fn complete(&self, result: Option<&str>) -> Action {
        Action::Complete(vec![Completion {
            id: self.0.id.clone(),
            token: self.0.token,
            result: result.map(|text| Payload::new(text).unwrap()),
        }])
    }

    fn fail(&self, permanent: bool) -> Action {
        Action::Fail(vec![Failure {
            id: self.0.id.clone(),
            token: self.0.token,
            error: Some("no".into()),
            retry_in_ms: Some(500),
            permanent,
        }])
    }

    fn release(&self) -> Action {
        Action::Release(vec![self.0.clone()])
    }

    fn all(&self) -> [Action; 3] {
        [self.complete(Some("[1]")), self.fail(false), self.release()]
    }
}

/// What a worker is told of its end. When a failed job is to run is not for it, and may have changed.
fn told(answer: Answer) -> tenure_api::Outcome {
    match answer {
        Answer::Completed(mut items) => items.remove(0).into(),
        Answer::Failed(mut items) => items.remove(0).into(),
        Answer::Released(mut items) => items.remove(0).into(),
        other => panic!("{other:?}"),
    }
}

fn is_lost(answer: Answer) -> bool {
    told(answer).status == OutcomeStatus::Lost
}

/// What is there, but for the time.
fn state_of(story: &Story) -> String {
    let state = String::from_utf8(story.queue.encode()).unwrap();
    let (_, rest) = state.split_once('\n').unwrap();
    rest.to_owned()
}

#[test]
fn an_end_that_is_told_again_is_answered_as_before_and_does_nothing() {
    for rules in [Rules::SECOND, Rules::THIRD] {
        for (place, is_permanent, is_cancelled) in [
            (0, false, false),
            (1, false, false),
            (1, true, false),
            (1, false, true),
            (2, false, false),
            (2, false, true),
        ] {
            let mut story = story(rules);
            story.submit(&[r#""id":"a""#, r#""id":"b""#]);
            let claimed = story.claim(1).remove(0);
            if is_cancelled {
                story.act(Action::Cancel(vec![id("a")]));
            }
            let ends = Ends::of(&claimed);
            let end = match place {
                1 => ends.fail(is_permanent),
                _ => ends.all()[place].clone(),
            };
            let first = told(story.act(end.clone()));
            assert_ne!(first.status, OutcomeStatus::Lost);
            let check = |story: &mut Story, what: &str| {
                let before = state_of(story);
                story.at += 1;
                let again = told(story.act(end.clone()));
                if rules == Rules::SECOND {
                    assert_eq!(again.status, OutcomeStatus::Lost, "{what}");
                } else {
                    assert_eq!(again, first, "{what}");
                }
                // The same result with other white space is the same.
                if place == 0 && rules == Rules::THIRD {
                    assert_eq!(told(story.act(ends.complete(Some("[ 1 ]")))), first);
                }
                // Another end is not this one, nor is this one of another claim.
                for (other, end) in ends.all().into_iter().enumerate() {
                    assert!(other == place || is_lost(story.act(end)), "{what}");
                }
                let fail = |error: Option<&str>, retry_in_ms, permanent| {
                    let mut failure = ends.fail(permanent);
                    if let Action::Fail(items) = &mut failure {
                        items[0].error = error.map(Into::into);
                        items[0].retry_in_ms = retry_in_ms;
                    }
                    failure
                };
                for other in [
                    ends.complete(Some("2")),
                    ends.complete(None),
                    ends.fail(!is_permanent),
                    fail(Some("other"), Some(500), is_permanent),
                    fail(None, Some(500), is_permanent),
                    fail(Some("no"), Some(501), is_permanent),
                    fail(Some("no"), None, is_permanent),
                    fail(None, None, false),
                ] {
                    let other = told(story.act(other));
                    assert_eq!(other.status, OutcomeStatus::Lost, "{what}");
                    let code = other.reason.unwrap().code;
                    let is_named = code == LostCode::Ended;
                    assert_eq!(is_named, rules == Rules::THIRD, "{what}");
                }
                assert_eq!(story.events, [], "{what}");
                assert_eq!(state_of(story), before, "{what}");
            };
            check(&mut story, "at once");
            let mut restore = Restore::new(1);
            restore.feed(&story.queue.encode()).unwrap();
            story.queue = restore.finish().unwrap();
            check(&mut story, "after a restart");
            if story.queue.job(&id("a")).unwrap().state.is_finished() {
                story.act(Action::Forget(vec![id("a")]));
                assert_eq!(story.queue.job(&id("a")), None);
                check(&mut story, "when its id is left");
            } else {
                story.at += 1_000;
                let other = story.claim(1).remove(0);
                assert_eq!(other.id, claimed.id);
                check(&mut story, "while another claim has the job");
                // Neither of these is an end that a worker told.
                let expired = Ends::of(&other).0;
                story.act(Action::Expire(vec![expired]));
                assert!(is_lost(story.act(Ends::of(&other).fail(false))));
                check(&mut story, "when the lease of the other has run out");
                story.at += 100_000;
                let other = story.claim(1).remove(0);
                story.act(Ends::of(&other).release());
                assert!(is_lost(story.act(end.clone())), "only the last one counts");
            }
        }
    }
}

#[test]
fn a_plan_from_before_time_was_set_back_does_nothing_ahead_of_it() {
    const HOUR: u64 = 3_600_000;
    for missed in ["\"skip\"", "\"once\"", "{\"all\":9}"] {
        for rules in [Rules::SECOND, Rules::THIRD] {
            let mut story = story(rules);
            let spec = format!(r#"{{"cron":"0 * * * *","job":{{"type":"t"}},"missed":{missed}}}"#);
            let spec: ScheduleSpec = serde_json::from_str(&spec).unwrap();
            let name = ScheduleName::new("hourly").unwrap();
            let set = Schedule::command(name.clone(), spec, story.at).unwrap();
            story.act(set);
            let next = |story: &Story| story.queue.schedule(&name).unwrap().next.unwrap();
            let (right, first) = (story.at, next(&story));
            // Planned by a wrong time, and committed when it is right again.
            let plan = story.queue.due_firings(right + 50 * HOUR);
            story.act(Action::SetTime(right));
            story.act(Action::Fire(plan.clone()));
            if rules == Rules::SECOND {
                assert!(next(&story) > right + 49 * HOUR, "{missed}");
                continue;
            }
            assert_eq!((next(&story), story.queue.len()), (first, 0), "{missed}");
            assert_eq!(story.events, [], "{missed}");
            // Some of its slots have come, others have not: it is planned anew.
            story.at = first + HOUR;
            story.act(Action::Fire(plan));
            let is_skipped = missed == "\"skip\"";
            assert!(is_skipped || story.queue.is_empty(), "{missed}");
            let plan = story.queue.due_firings(story.at);
            story.act(Action::Fire(plan));
            assert!(next(&story) > story.at, "{missed}");
        }
    }
}
