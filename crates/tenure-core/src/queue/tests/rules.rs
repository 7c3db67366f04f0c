//! What changed with the second rules, and that the first are still what they were.

use tenure_api::SubmitStatus;

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
    let newer = text.replace(r#""rules":2"#, r#""rules":3"#);
    let error = Restore::new(1).feed(newer.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("rules 3"), "{error}");
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
