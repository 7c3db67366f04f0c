//! What users are promised, one story each. The model covers the combinations; these say what is meant.

use tenure_api::{EndedAs, SubmitStatus, Submitted};

use crate::queue::*;
use crate::{JobId, QueueName, ScheduleName};

/// A queue and its clock.
pub(in crate::queue) struct Story {
    pub(in crate::queue) queue: Queue,
    pub(super) at: u64,
    /// Of the last command.
    pub(in crate::queue) events: Vec<Event>,
}

impl Story {
    pub(in crate::queue) fn new() -> Self {
        Self {
            queue: Queue::new(0),
            at: 1_700_000_000_000,
            events: Vec::new(),
        }
    }

    pub(in crate::queue) fn act(&mut self, action: Action) -> Answer {
        let at = self.at;
        self.events.clear();
        let answer = self.queue.apply(Command { at, action }, &mut self.events);
        self.queue.check_invariants();
        answer
    }

    /// Submits jobs written as JSON; the id comes first.
    pub(in crate::queue) fn submit(&mut self, jobs: &[&str]) -> Vec<Submitted> {
        let jobs = jobs
            .iter()
            .map(|job| serde_json::from_str(&format!(r#"{{"type":"t",{job}}}"#)).unwrap())
            .collect();
        self.act(Action::Submit(jobs)).submitted()
    }

    /// Claims up to `max` jobs of every queue.
    pub(in crate::queue) fn claim(&mut self, max: u32) -> Vec<Claimed> {
        let request = ClaimRequest {
            worker: Key::new("w").unwrap(),
            queues: Vec::new(),
            types: Vec::new(),
            max,
            lease_ms: 30_000,
            wait_ms: 0,
        };
        self.claim_as(request, None)
    }

    /// The same for a claim that can be asked for again by this name.
    pub(in crate::queue) fn claim_named(
        &mut self,
        worker: &str,
        name: &str,
        max: u32,
    ) -> Vec<Claimed> {
        let mut request = ClaimRequest::new(Key::new(worker).unwrap());
        request.max = max;
        let key = ClaimKey::new(&request.worker, &Key::new(name).unwrap());
        self.claim_as(request, Some(key))
    }

    fn claim_as(&mut self, request: ClaimRequest, key: Option<ClaimKey>) -> Vec<Claimed> {
        let claim = LoggedClaim {
            request,
            nonce: 7,
            key,
        };
        self.act(Action::Claim(claim)).claimed()
    }

    fn claim_ids(&mut self, max: u32) -> Vec<String> {
        let claimed = self.claim(max);
        claimed
            .iter()
            .map(|claimed| claimed.id.to_string())
            .collect()
    }

    pub(in crate::queue) fn complete(&mut self, claimed: &Claimed) -> Ended<()> {
        let completion = Completion {
            id: claimed.id.clone(),
            token: claimed.token,
            result: None,
        };
        let answer = self.act(Action::Complete(vec![completion]));
        answer.completed().remove(0)
    }

    fn fail(&mut self, claimed: &Claimed) -> Ended<Failed> {
        let failure = Failure {
            id: claimed.id.clone(),
            token: claimed.token,
            error: Some("no".into()),
            retry_in_ms: Some(1_000),
            permanent: false,
        };
        self.act(Action::Fail(vec![failure])).failed().remove(0)
    }

    fn state(&self, job: &str) -> State {
        self.queue.job(&id(job)).unwrap().state
    }
}

pub(in crate::queue) fn id(text: &str) -> JobId {
    JobId::new(text).unwrap()
}

pub(super) fn statuses(jobs: &[Submitted]) -> Vec<SubmitStatus> {
    jobs.iter().map(|job| job.status).collect()
}

fn queue(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

#[test]
fn a_claim_asked_for_again_is_the_same_claim() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a","max_attempts":1"#, r#""id":"b""#]);
    story.submit(&[r#""id":"c""#]);
    let first = story.claim_named("w", "one", 2);
    assert_eq!(first.len(), 2);
    let claims = story.queue.claims;
    assert_eq!(story.claim_named("w", "one", 2), first);
    assert_eq!(story.claim_named("w", "one", 1), first, "all that it holds");
    assert!(story.events.is_empty(), "nothing has changed");
    assert_eq!(story.queue.claims, claims);
    // After a restart as well.
    let mut restore = Restore::new(1);
    restore.feed(&story.queue.encode()).unwrap();
    story.queue = restore.finish().unwrap();
    assert_eq!(story.claim_named("w", "one", 2), first);
    // What has ended is left out, and when all of it has, it is a new claim.
    assert_eq!(story.complete(&first[0]).outcome, Ok(()));
    assert_eq!(story.claim_named("w", "one", 2), first[1..]);
    assert_eq!(story.complete(&first[1]).outcome, Ok(()));
    let new = story.claim_named("w", "one", 2);
    assert_eq!((new.len(), new[0].id.as_str()), (1, "c"));
}

#[test]
fn a_claim_of_another_name_or_worker_is_another() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a""#, r#""id":"b""#, r#""id":"c""#]);
    let first = story.claim_named("w", "one", 1);
    let second = story.claim_named("w", "two", 1);
    let third = story.claim_named("v", "one", 1);
    let ids = [&first[0].id, &second[0].id, &third[0].id].map(JobId::as_str);
    assert_eq!(ids, ["a", "b", "c"]);
    assert_eq!(
        story.claim(1),
        [],
        "without a name there is nothing to ask for"
    );
}

#[test]
fn what_was_asked_for_again_is_not_handed_back_for_nobody() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a""#, r#""id":"b""#]);
    let nobody = |claimed: &Claimed| {
        Action::Abandon(vec![Claim {
            id: claimed.id.clone(),
            token: claimed.token,
        }])
    };
    let first = story.claim_named("w", "one", 1).remove(0);
    let _ = story.act(nobody(&first));
    assert_eq!(story.queue.job(&id("a")).unwrap().attempt, 0);
    // The worker asks again, and has begun to work when the broker hands back what nobody has read.
    let again = story.claim_named("w", "one", 1).remove(0);
    assert_eq!((&again.id, again.attempt), (&first.id, 1));
    assert_eq!(
        story.claim_named("w", "one", 1),
        std::slice::from_ref(&again)
    );
    let _ = story.act(nobody(&again));
    assert_eq!(story.queue.job(&id("a")).unwrap().state, State::Running);
    assert_eq!(story.complete(&again).outcome, Ok(()));
    // Without a name.
    let plain = story.claim(1).remove(0);
    let _ = story.act(nobody(&plain));
    assert_eq!(story.queue.job(&id("b")).unwrap().state, State::Ready);
}

#[test]
fn priority_comes_first_then_the_order_of_the_log() {
    let mut story = Story::new();
    story.submit(&[
        r#""id":"a""#,
        r#""id":"b","priority":5"#,
        r#""id":"c","queue":"other""#,
    ]);
    story.submit(&[r#""id":"d","priority":5"#, r#""id":"e","priority":-5"#]);
    assert_eq!(story.claim_ids(10), ["b", "d", "a", "c", "e"]);
}

#[test]
fn a_retried_job_keeps_its_place() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a""#, r#""id":"b""#]);
    let first = story.claim(1);
    story.fail(&first[0]);
    story.submit(&[r#""id":"c""#]);
    story.at += 1_000;
    assert_eq!(story.claim_ids(3), ["a", "b", "c"]);
}

#[test]
fn a_poison_job_is_dead_after_its_attempts_and_frees_its_group() {
    let mut story = Story::new();
    story.submit(&[
        r#""id":"poison","group":"g","max_attempts":3"#,
        r#""id":"next","group":"g""#,
    ]);
    story.submit(&[r#""id":"other","group":"h""#]);
    for attempt in 1..=3 {
        let claimed = story.claim(2);
        assert_eq!(
            (claimed[0].id.as_str(), claimed[0].attempt),
            ("poison", attempt)
        );
        // Other groups go on meanwhile.
        assert_eq!(
            claimed.get(1).map(|other| other.id.as_str()),
            (attempt == 1).then_some("other")
        );
        assert_eq!(story.claim_ids(9), [""; 0], "its group waits");
        let expired = Claim {
            id: claimed[0].id.clone(),
            token: claimed[0].token,
        };
        story.act(Action::Expire(vec![expired]));
        story.at += 10_000;
    }
    assert_eq!(story.state("poison"), State::Dead);
    assert_eq!(story.claim_ids(9), ["next"]);
}

#[test]
fn a_claim_that_is_handed_back_costs_no_attempt() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a","max_attempts":1"#, r#""id":"b""#]);
    for _ in 0..3 {
        let claimed = story.claim(1).remove(0);
        assert_eq!((claimed.id.as_str(), claimed.attempt), ("a", 1));
        let claim = Claim {
            id: claimed.id,
            token: claimed.token,
        };
        let released = story.act(Action::Release(vec![claim.clone()])).released();
        assert_eq!(released[0].outcome, Ok(Released::Ready));
        // It ends once, however often that is told.
        let released = story.act(Action::Release(vec![claim])).released();
        assert_eq!(released[0].outcome, Ok(Released::Ready));
        assert_eq!(story.events, []);
        assert_eq!(story.state("a"), State::Ready);
    }
}

#[test]
fn a_dead_job_retried_by_hand_starts_over_at_its_place() {
    let mut story = Story::new();
    let jobs = [
        r#""id":"a","group":"g","max_attempts":1"#,
        r#""id":"b","group":"g""#,
        r#""id":"c","group":"g""#,
    ];
    story.submit(&jobs);
    let claimed = story.claim(1);
    story.fail(&claimed[0]);
    let running = story.claim(1);
    assert_eq!(running[0].id.as_str(), "b");
    story.act(Action::Retry(vec![id("a")]));
    assert_eq!(story.claim_ids(9), [""; 0], "b still runs");
    story.complete(&running[0]);
    let again = story.claim(9);
    assert_eq!(
        (again[0].id.as_str(), again[0].attempt, again.len()),
        ("a", 1, 1)
    );
}

#[test]
fn a_moved_job_waits_for_the_workers_of_its_new_queue() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a""#, r#""id":"b","queue":"slow""#, r#""id":"c""#]);
    let jobs = vec![id("c"), id("a"), id("nobody")];
    let moved = story.act(Action::Move(jobs, queue("slow"))).moved();
    let outcomes: Vec<_> = moved.into_iter().map(|item| item.outcome).collect();
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Refusal::NotFound)]);
    // Those who wait for jobs of the queue hear of them.
    let told = story
        .events
        .iter()
        .filter(|event| matches!(event, Event::Ready { queue, .. } if queue.as_str() == "slow"));
    assert_eq!(told.count(), 2, "{:?}", story.events);
    // By when they were submitted, not by when they came.
    assert_eq!(story.claim_ids(9), ["a", "b", "c"]);
    let default = story.queue.queue(&queue("default"));
    assert!(default.is_none(), "nobody uses its name any more");
}

#[test]
fn a_job_that_is_moved_leaves_its_group_and_joins_the_one_of_its_new_queue() {
    let mut story = Story::new();
    story.submit(&[
        r#""id":"a","group":"g""#,
        r#""id":"b","group":"g""#,
        r#""id":"c","group":"g","queue":"slow""#,
    ]);
    let move_to =
        |story: &mut Story, job: &str, to: &str| story.act(Action::Move(vec![id(job)], queue(to)));
    move_to(&mut story, "a", "slow");
    // `b` is first of what is left; `a` is before `c`.
    let claimed = story.claim(9);
    let ids: Vec<_> = claimed.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    let refused = move_to(&mut story, "a", "default").moved().remove(0);
    let state = State::Running;
    assert_eq!(refused.outcome, Err(Refusal::State { state }));
    story.complete(&claimed[0]);
    assert_eq!(story.claim_ids(9), ["c"]);
}

#[test]
fn a_unique_key_is_held_in_the_queue_that_a_job_is_moved_to() {
    let mut story = Story::new();
    story.submit(&[
        r#""id":"a","unique_key":"k""#,
        r#""id":"b","unique_key":"k","queue":"slow""#,
    ]);
    let taken = story.act(Action::Move(vec![id("a")], queue("slow")));
    let existing = id("b");
    let refused = Err(Refusal::UniqueKey { existing });
    assert_eq!(taken.moved().remove(0).outcome, refused);
    story.act(Action::Move(vec![id("a")], queue("other")));
    let again = story.submit(&[
        r#""id":"c","unique_key":"k""#,
        r#""id":"d","unique_key":"k","queue":"other""#,
    ]);
    let statuses: Vec<_> = again.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [SubmitStatus::Created, SubmitStatus::Duplicate]);
    // What was submitted is what counts for the id.
    let repeated = story.submit(&[r#""id":"a","unique_key":"k""#]).remove(0);
    assert_eq!(repeated.status, SubmitStatus::Duplicate);
}

#[test]
fn a_stale_token_is_told_why() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a","max_attempts":3"#]);
    let not_running = |state| Lost::NotRunning { state };
    let late = story.claim(1).remove(0);
    story.act(Action::Expire(vec![Claim {
        id: late.id.clone(),
        token: late.token,
    }]));
    assert_eq!(
        story.complete(&late).outcome,
        Err(not_running(State::Scheduled))
    );
    story.at += 1_000;
    let old = story.claim(1).remove(0);
    let superseded = Err(Lost::Superseded { attempt: 2 });
    assert_eq!(story.complete(&late).outcome, superseded);
    // What its own worker has said of a claim counts, and is named to those who say otherwise.
    story.fail(&old);
    let failed = Err(Lost::Ended {
        how: EndedAs::Failed,
    });
    assert_eq!(story.complete(&old).outcome, failed);
    story.at += 2_000;
    let new = story.claim(1).remove(0);
    assert_ne!(new.token, old.token);
    assert_eq!(story.complete(&old).outcome, failed);
    story.complete(&new);
    let how = EndedAs::Completed;
    assert_eq!(story.fail(&new).outcome, Err(Lost::Ended { how }));
    assert_eq!(story.fail(&old).outcome, Err(not_running(State::Completed)));
    story.act(Action::Forget(vec![id("a")]));
    assert_eq!(story.fail(&new).outcome, Err(Lost::Ended { how }));
    assert_eq!(story.fail(&old).outcome, Err(not_running(State::Completed)));
    story.at += 3_600_000;
    story.act(Action::Tick);
    assert_eq!(story.fail(&new).outcome, Err(Lost::NotFound));
}

#[test]
fn a_cancelled_running_job_is_not_tried_again_but_done_is_done() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a""#, r#""id":"b""#, r#""id":"c""#]);
    let claimed = story.claim(2);
    let answer = story.act(Action::Cancel(vec![id("a"), id("b"), id("c"), id("d")]));
    let outcomes: Vec<_> = answer
        .cancelled()
        .into_iter()
        .map(|job| job.outcome)
        .collect();
    assert_eq!(
        outcomes,
        [
            Ok(Cancelled::Requested),
            Ok(Cancelled::Requested),
            Ok(Cancelled::Done),
            Err(Refusal::NotFound),
        ]
    );
    let status = story.queue.claim_status(&claimed[0].id, claimed[0].token);
    assert!(status.unwrap().cancel_requested);
    story.fail(&claimed[0]);
    story.complete(&claimed[1]);
    assert_eq!(
        (story.state("a"), story.state("b")),
        (State::Cancelled, State::Completed)
    );
}

#[test]
fn sending_a_submit_again_is_a_duplicate_and_other_content_a_conflict() {
    let mut story = Story::new();
    let job = r#""id":"a","delay_ms":50"#;
    story.submit(&[job]);
    story.at += 1_000;
    assert_eq!(statuses(&story.submit(&[job])), [SubmitStatus::Duplicate]);
    let other = story.submit(&[r#""id":"a","delay_ms":51"#]);
    assert_eq!(statuses(&other), [SubmitStatus::Conflict]);
    // Also while it runs, and after it has finished, until its id is forgotten.
    let claimed = story.claim(1);
    story.complete(&claimed[0]);
    assert_eq!(statuses(&story.submit(&[job])), [SubmitStatus::Duplicate]);
    let keep = Keep {
        age_ms: Some(10),
        count: None,
    };
    let settings = |age_ms| Settings {
        completed: keep,
        ids: KeepIds {
            age_ms,
            ..KeepIds::default()
        },
        ..Settings::default()
    };
    story.act(Action::Configure(settings(1_000)));
    story.at += 10;
    story.act(Action::Tick);
    assert_eq!(story.queue.job(&id("a")), None);
    assert_eq!(statuses(&story.submit(&[job])), [SubmitStatus::Duplicate]);
    story.at += 990;
    story.act(Action::Tick);
    assert_eq!(statuses(&story.submit(&[job])), [SubmitStatus::Created]);
}

#[test]
fn a_trace_goes_with_its_job_and_is_not_asked_whether_it_is_the_same() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut story = Story::new();
    let traced = format!(r#""id":"a","traceparent":"{PARENT}","tracestate":"x=1""#);
    story.submit(&[&traced]);
    // Sent again, from another span.
    let again = story.submit(&[&traced.replace("00f067aa", "99f067aa"), r#""id":"a""#]);
    assert_eq!(statuses(&again), [SubmitStatus::Duplicate; 2]);
    let claimed = &story.claim(1)[0];
    assert_eq!(claimed.traceparent.unwrap().to_string(), PARENT);
    assert_eq!(claimed.tracestate.as_ref().unwrap().as_str(), "x=1");
    story.fail(claimed);
    story.at += 1_000;
    // The next attempt is in the same trace, also after a restart.
    let mut restore = Restore::new(1);
    restore.feed(&story.queue.encode()).unwrap();
    story.queue = restore.finish().unwrap();
    let claimed = &story.claim(1)[0];
    assert_eq!(claimed.traceparent.unwrap().to_string(), PARENT);
    assert_eq!(claimed.tracestate.as_ref().unwrap().as_str(), "x=1");
}

#[test]
fn a_job_without_a_trace_says_nothing_of_it() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a""#]);
    let snapshot = String::from_utf8(story.queue.encode()).unwrap();
    assert!(!snapshot.contains("trace"), "{snapshot}");
}

#[test]
fn a_unique_key_names_its_holder_until_it_has_finished() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a","unique_key":"k","max_attempts":1"#]);
    let duplicate = story.submit(&[r#""id":"b","unique_key":"k""#]);
    assert_eq!(statuses(&duplicate), [SubmitStatus::Duplicate]);
    assert_eq!(duplicate[0].existing, Some(id("a")));
    // The key belongs to the queue.
    let other = story.submit(&[r#""id":"c","queue":"q","unique_key":"k""#]);
    assert_eq!(statuses(&other), [SubmitStatus::Created]);
    let claimed = story.claim(1);
    story.fail(&claimed[0]);
    let other = story.submit(&[r#""id":"b","unique_key":"k""#]);
    assert_eq!(statuses(&other), [SubmitStatus::Created]);
    let retried = story.act(Action::Retry(vec![id("a")])).retried();
    let refusal = Refusal::UniqueKey { existing: id("b") };
    assert_eq!(retried[0].outcome, Err(refusal));
}

#[test]
fn limits_hold_per_queue_and_say_when_they_open() {
    let mut story = Story::new();
    let jobs: Vec<_> = (0..6)
        .map(|number| format!(r#""id":"j{number}""#))
        .collect();
    story.submit(&jobs.iter().map(String::as_str).collect::<Vec<_>>());
    let rate = Rate {
        jobs: 2,
        period_ms: 1_000,
        burst: None,
    };
    let options = QueueOptions {
        concurrency: Some(3),
        rate: Some(rate),
    };
    story.act(Action::SetQueue(queue("default"), options));
    assert_eq!(story.claim(9).len(), 2, "the burst");
    let opens = story.at + 500;
    assert_eq!(story.queue.claimable_at(&[], &[]), Some(opens));
    assert_eq!(story.queue.opens_after(story.at), Some(opens));
    assert_eq!(story.queue.opens_after(opens), None, "later than that");
    story.act(Action::SetQueue(queue("default"), options));
    assert_eq!(
        story.claim(9).len(),
        0,
        "set again, it lets no second burst through"
    );
    story.at += 500;
    assert_eq!(story.claim(9).len(), 1, "the rate");
    story.at += 10_000;
    assert_eq!(story.claim(9).len(), 0, "three are running");
    assert_eq!(story.queue.claimable_at(&[], &[]), None);
    story.act(Action::SetQueue(queue("default"), QueueOptions::default()));
    story.act(Action::Pause(queue("default")));
    assert_eq!(story.claim(9).len(), 0, "paused");
    story.act(Action::Resume(queue("default")));
    assert_eq!(story.claim(9).len(), 3);
}

#[test]
fn a_million_due_jobs_do_not_stop_a_command() {
    let mut story = Story::new();
    let job: Submission = serde_json::from_str(r#"{"type":"t","delay_ms":10}"#).unwrap();
    story.act(Action::Submit(vec![job; 5_000]));
    story.at += 10;
    let ready = |story: &Story| story.queue.queues().next().unwrap().counts.ready;
    story.act(Action::Pause(queue("q")));
    assert_eq!(ready(&story), 100);
    story.act(Action::Tick);
    assert_eq!(ready(&story), 2_100);
    // What becomes ready does so in order.
    assert_eq!(story.claim_ids(1), ["job:1"]);
    let ids = (2..=5_000)
        .map(|number| id(&format!("job:{number}")))
        .collect();
    story.act(Action::Cancel(ids));
    let keep = Keep {
        age_ms: None,
        count: Some(0),
    };
    story.act(Action::Configure(Settings {
        cancelled: keep,
        ..Settings::default()
    }));
    assert_eq!(story.queue.len(), 4_900);
    while story
        .queue
        .retention_due_at()
        .is_some_and(|at| at <= story.at)
    {
        story.act(Action::Tick);
    }
    assert_eq!(story.queue.len(), 1);
}

#[test]
fn a_slot_fires_once_however_often_its_plan_is_sent() {
    let mut story = Story::new();
    let spec = r#"{"cron":"0 * * * *","timezone":"Europe/Berlin","job":{"type":"report"}}"#;
    let spec: ScheduleSpec = serde_json::from_str(spec).unwrap();
    let name = ScheduleName::new("hourly").unwrap();
    let set = Schedule::command(name.clone(), spec.clone(), story.at).unwrap();
    story.act(set);
    let due = story.queue.firing_due_at().unwrap();
    assert_eq!(story.queue.due_firings(due - 1), []);
    story.at = due;
    let plan = story.queue.due_firings(due);
    // Another broker, with a clock a second ahead, makes its own plan from the same state.
    let rival = story.queue.due_firings(due + 1_000);
    story.act(Action::Fire(plan.clone()));
    assert_eq!(story.events.len(), 2);
    for stale in [plan, rival] {
        story.act(Action::Fire(stale));
        assert_eq!(story.events, []);
    }
    assert_eq!(story.queue.len(), 1);
    // Set again word for word it goes on; changed, plans for its old form are void.
    let plan = story.queue.due_firings(due + 3_600_000);
    story.act(Schedule::command(name.clone(), spec.clone(), due).unwrap());
    assert_eq!(story.queue.due_firings(due + 3_600_000), plan);
    let mut changed = spec;
    changed.job.payload = Payload::new("1").unwrap();
    story.act(Schedule::command(name, changed, due).unwrap());
    assert_eq!(
        story.queue.firing_due_at(),
        Some(plan[0].due),
        "only what it submits has changed"
    );
    story.act(Action::Fire(plan));
    assert_eq!(story.events, []);
}

#[test]
fn a_paused_schedule_makes_no_jobs_and_skips_the_slots_of_the_pause() {
    const HOUR: u64 = 3_600_000;
    let mut story = Story::new();
    let spec = r#"{"cron":"0 * * * *","job":{"type":"report"},"missed":{"all":100}}"#;
    let spec: ScheduleSpec = serde_json::from_str(spec).unwrap();
    let name = ScheduleName::new("hourly").unwrap();
    let pause = Action::PauseSchedule(name.clone());
    assert_eq!(story.act(pause.clone()), Answer::SchedulePaused(false));
    assert_eq!(story.events, []);
    story.act(Schedule::command(name.clone(), spec.clone(), story.at).unwrap());
    let due = story.queue.firing_due_at().unwrap();
    let planned_before = story.queue.due_firings(due);
    assert_eq!(story.act(pause.clone()), Answer::SchedulePaused(true));
    let paused = Event::SchedulePaused {
        schedule: name.clone(),
    };
    assert_eq!(story.events, [paused]);
    assert_eq!(story.act(pause), Answer::SchedulePaused(true));
    assert_eq!(story.events, [], "it was paused before");

    story.at = due + 5 * HOUR;
    assert_eq!(story.queue.firing_due_at(), None);
    assert_eq!(story.queue.schedules_to_replan(None, 9), []);
    story.act(Action::Fire(planned_before));
    assert_eq!((story.events.len(), story.queue.len()), (0, 0));
    // A deployment sets it again, as it is or to something else, to run at once.
    let resumption = |story: &Story| {
        let schedule = story.queue.schedule(&name).unwrap();
        schedule.resumption(story.at).unwrap()
    };
    let planned_before = resumption(&story);
    let changed = ScheduleSpec {
        cron: "30 * * * *".to_owned(),
        run_on_start: true,
        ..spec.clone()
    };
    for spec in [spec, changed] {
        let set = Schedule::command(name.clone(), spec, story.at).unwrap();
        assert_eq!(story.act(set), Answer::ScheduleSet(None));
    }
    let mut restore = Restore::new(1);
    restore.feed(&story.queue.encode()).unwrap();
    story.queue = restore.finish().unwrap();
    assert!(story.queue.schedule(&name).unwrap().paused);

    let answer = story.act(planned_before);
    assert_eq!(answer, Answer::ScheduleResumed(false), "of another cron");
    assert_eq!(story.events, []);
    let resume = resumption(&story);
    let next = due + 5 * HOUR + HOUR / 2;
    assert_eq!(story.act(resume), Answer::ScheduleResumed(true));
    let resumed = Event::ScheduleResumed {
        schedule: name.clone(),
        next: Some(next),
    };
    assert_eq!(story.events, [resumed]);
    let again = resumption(&story);
    assert_eq!(story.act(again), Answer::ScheduleResumed(true));
    assert_eq!(story.events, [], "it was resumed before");
    assert_eq!(story.queue.due_firings(story.at), []);
    story.at = next;
    let plan = story.queue.due_firings(story.at);
    story.act(Action::Fire(plan));
    assert_eq!(story.queue.len(), 1);
}

#[test]
fn all_text_of_a_schedule_counts_and_an_old_log_may_have_more_of_it() {
    let mut story = Story::new();
    let spec = |cron: String| ScheduleSpec {
        cron,
        timezone: "UTC".to_owned(),
        job: serde_json::from_str(
            r#"{"queue":"mail","type":"t","unique_key":"key","group":"group","payload":[1]}"#,
        )
        .unwrap(),
        missed: Missed::Once,
        run_on_start: false,
    };
    // From before there was a bound.
    let long = format!("{}1 * * * *", "1,".repeat(50_000));
    for name in ["a", "b", "c"] {
        let name = ScheduleName::new(name).unwrap();
        let set = Schedule::command(name, spec(long.clone()), story.at).unwrap();
        story.act(set);
    }
    let text = "a".len() + long.len() + "UTC".len() + "mailtkeygroup[1]".len();
    assert_eq!(story.queue.schedules_size(), (3, 3 * text));
    let page = |behind: Option<&ScheduleName>, bytes_max| {
        let page = story.queue.schedules_behind(behind, 1_000, bytes_max);
        page.into_iter().map(|one| one.name).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 250_000).len(), 2);
    assert_eq!(page(None, 1).len(), 1);
    assert_eq!(page(ScheduleName::new("b").ok().as_ref(), 250_000).len(), 1);

    let mut restore = Restore::new(1);
    restore.feed(&story.queue.encode()).unwrap();
    let restored = restore.finish().unwrap();
    assert_eq!(restored.schedules_size(), (3, 3 * text));
    story.act(Action::DeleteSchedule(ScheduleName::new("a").unwrap()));
    let short = spec("@daily".to_owned());
    let name = ScheduleName::new("b").unwrap();
    story.act(Schedule::command(name, short, story.at).unwrap());
    let (count, bytes) = story.queue.schedules_size();
    assert_eq!((count, bytes), (2, 2 * text - long.len() + "@daily".len()));
}

#[test]
fn time_never_goes_back() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a","delay_ms":50"#]);
    story.at += 50;
    story.act(Action::Tick);
    story.at -= 10_000;
    story.submit(&[r#""id":"b","delay_ms":50"#]);
    assert_eq!(story.queue.job(&id("b")).unwrap().run_at, story.at + 10_050);
    assert_eq!(story.state("a"), State::Ready);
}

#[test]
fn a_damaged_snapshot_is_refused_with_its_line() {
    let mut story = Story::new();
    story.submit(&[r#""id":"a""#, r#""id":"b","unique_key":"k""#, r#""id":"c""#]);
    story.claim(1);
    let whole = String::from_utf8(story.queue.encode()).unwrap();
    let restore = |text: &str| {
        let mut restore = Restore::new(0);
        restore.feed(text.as_bytes())?;
        restore.finish().map(drop)
    };
    restore(&whole).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    for (text, line, problem) in [
        (whole.replace("\"format\":1", "\"format\":9"), 1, "format 9"),
        (
            whole.replace("\"jobs\":3", "\"jobs\":4"),
            6,
            "ends 4 jobs after 3",
        ),
        (
            whole.replace("\"id\":\"b\"", "\"id\":\"a\""),
            4,
            "has the job a again",
        ),
        (
            whole.replace("\"sequence\":2", "\"sequence\":9"),
            4,
            "impossible sequence number 9",
        ),
        (
            whole.replace("\"worker\":\"w\",", ""),
            3,
            "runs without a claim",
        ),
        (
            whole.replace("\"state\":\"ready\"", "\"state\":\"dead\""),
            4,
            "finishing order",
        ),
        (
            whole.replace("\"priority\"", "\"priorty\""),
            3,
            "cannot be read",
        ),
        (whole.clone() + lines[2] + "\n", 7, "after the end"),
        (lines[2..].join("\n") + "\n", 1, "header"),
        (
            lines[..5].join("\n") + "\n",
            6,
            "is missing: it ends too early",
        ),
        (
            whole.trim_end().to_owned(),
            6,
            "is missing: it ends too early",
        ),
    ] {
        let error = restore(&text).unwrap_err();
        assert_eq!(error.line, line, "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn time_that_is_set_back_undoes_what_a_wrong_clock_did_to_waits() {
    const DAY: u64 = 24 * 3_600_000;
    let mut story = Story::new();
    let right = story.at;
    story.submit(&[r#""id":"before","delay_ms":60000"#]);
    let far = format!(r#""id":"far","run_at":{}"#, right + 300 * DAY);
    story.submit(&[&far]);
    // A clock that is 200 days ahead is believed for a while.
    story.at += 200 * DAY;
    story.submit(&[
        r#""id":"delayed","delay_ms":60000"#,
        r#""id":"failed","max_attempts":9"#,
    ]);
    let claimed = story.claim(9);
    let failed = claimed
        .iter()
        .find(|claimed| claimed.id.as_str() == "failed");
    let failed = failed.unwrap();
    story.act(Action::Fail(vec![Failure {
        id: failed.id.clone(),
        token: failed.token,
        error: None,
        retry_in_ms: Some(5_000),
        permanent: false,
    }]));
    let before = claimed
        .iter()
        .find(|claimed| claimed.id.as_str() == "before");
    story.complete(before.unwrap());
    story.at = right + 1_000;
    story.act(Action::SetTime(story.at));
    let (from, to) = (right + 200 * DAY, story.at);
    assert_eq!(story.events, [Event::TimeSet { from, to }]);
    assert_eq!(story.queue.now(), story.at);
    let view = |story: &Story, id: &str| story.queue.job(&JobId::new(id).unwrap()).unwrap();
    assert_eq!(view(&story, "delayed").run_at, story.at + 60_000);
    assert_eq!(view(&story, "failed").run_at, story.at + 5_000);
    assert_eq!(view(&story, "far").run_at, right + 300 * DAY);
    assert_eq!(view(&story, "before").changed_at, story.at);
    assert!(story.claim_ids(9).is_empty());
    story.at += 5_000;
    assert_eq!(story.claim_ids(9), ["failed"]);
    story.at += 55_000;
    assert_eq!(story.claim_ids(9), ["delayed"]);
    // What had ended is kept for a day from then on, not for 200.
    story.at += DAY;
    story.act(Action::Tick);
    assert!(story.queue.job(&JobId::new("before").unwrap()).is_none());
}

#[test]
fn a_time_that_was_named_stays_what_it_is_when_time_is_set() {
    const HOUR: u64 = 3_600_000;
    let mut story = Story::new();
    let right = story.at;
    let shown = |story: &Story, id: &str| {
        let job = story.queue.job(&JobId::new(id).unwrap()).unwrap();
        (job.state, job.run_at - right)
    };
    let at =
        |id: &str, at: u64, more: &str| format!(r#""id":"{id}","run_at":{}{more}"#, right + at);
    // While the clock is four hours ahead.
    story.at += 4 * HOUR;
    story.submit(&[
        &at("far", 10 * HOUR, ""),
        &at("soon", 5 * HOUR, ""),
        &at("past", 2 * HOUR, ""),
        &at("first", 3 * HOUR, r#","group":"g""#),
        r#""id":"second","group":"g""#,
        &at("taken", 2 * HOUR, r#","priority":9"#),
        &at("failed", 2 * HOUR, r#","priority":8"#),
        &at("retried", 9 * HOUR, ""),
    ]);
    story.at += 2 * HOUR;
    let taken = story.claim(2);
    story.act(Action::Fail(vec![Failure {
        id: taken[1].id.clone(),
        token: taken[1].token,
        error: None,
        retry_in_ms: Some(5_000),
        permanent: false,
    }]));
    story.act(Action::Retry(vec![id("retried")]));
    assert_eq!(shown(&story, "soon"), (State::Ready, 5 * HOUR));
    assert_eq!(shown(&story, "retried"), (State::Ready, 6 * HOUR));
    story.at = right;
    story.act(Action::SetTime(right));
    // What was ready by the time that was wrong waits again, and its group with it.
    for (id, run_at) in [
        ("far", 10 * HOUR),
        ("soon", 5 * HOUR),
        ("past", 2 * HOUR),
        ("first", 3 * HOUR),
        // No time that anybody has named.
        ("failed", 5_000),
    ] {
        assert_eq!(shown(&story, id), (State::Scheduled, run_at), "{id}");
    }
    assert_eq!(shown(&story, "taken"), (State::Running, 2 * HOUR));
    assert_eq!(shown(&story, "retried"), (State::Ready, 0));
    assert_eq!(story.claim_ids(9), ["retried"]);
    let mut restore = Restore::new(1);
    restore.feed(&story.queue.encode()).unwrap();
    story.queue = restore.finish().unwrap();
    // Handed back, it waits for its time as well.
    story.act(Action::Release(vec![Claim {
        id: taken[0].id.clone(),
        token: taken[0].token,
    }]));
    assert_eq!(shown(&story, "taken"), (State::Scheduled, 2 * HOUR));
    story.at = right + 2 * HOUR - 1;
    assert_eq!(story.claim_ids(9), ["failed"]);
    story.at += 1;
    assert_eq!(story.claim_ids(9), ["taken", "past"]);
    story.at += HOUR;
    assert_eq!(story.claim_ids(9), ["first"]);
    // Under the older rules it was a wait like any other.
    let mut story = Story::new();
    story.queue.set_rules(Rules::SECOND);
    let right = story.at;
    story.at += HOUR;
    story.submit(&[&format!(r#""id":"a","run_at":{}"#, right + 3 * HOUR)]);
    story.act(Action::SetTime(right));
    let job = story.queue.job(&id("a")).unwrap();
    assert_eq!(job.run_at, right + 2 * HOUR);
}

#[test]
fn schedules_go_on_when_time_was_set_back() {
    let mut story = Story::new();
    let spec = r#"{"cron":"0 * * * *","job":{"type":"t"}}"#;
    let spec: ScheduleSpec = serde_json::from_str(spec).unwrap();
    let name = ScheduleName::new("hourly").unwrap();
    let set = Schedule::command(name.clone(), spec, story.at).unwrap();
    story.act(set);
    let right = story.at;
    story.at += 200 * 24 * 3_600_000;
    let due = story.queue.due_firings(story.at);
    story.act(Action::Fire(due));
    story.act(Action::SetTime(right));
    let replanned = |story: &Story| -> Vec<Firing> {
        let due = story.queue.schedules_to_replan(None, 9);
        due.iter().filter_map(|due| due.replan(right)).collect()
    };
    let plans = replanned(&story);
    assert_eq!(plans.len(), 1);
    story.at = right;
    story.act(Action::Fire(plans));
    let next = story.queue.schedules().next().unwrap().next.unwrap();
    assert!(next > right && next <= right + 3_600_000, "{next}");
    assert_eq!(replanned(&story), []);
}
