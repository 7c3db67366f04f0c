use tenure_core::queue::{QueueOptions, Token};

use super::*;

fn id(text: &str) -> JobId {
    JobId::new(text).unwrap()
}

fn queue(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn submitted(job: &str) -> Event {
    Event::Submitted {
        id: id(job),
        queue: queue("mail"),
        sequence: 1,
        state: State::Ready,
    }
}

fn claimed(job: &str, attempt: u32) -> Event {
    Event::Claimed {
        id: id(job),
        token: token(),
        queue: queue("mail"),
        job_type: JobType::new("send").unwrap(),
        attempt,
        lease_ms: 30_000,
    }
}

fn recorder(now: u64) -> Recorder {
    Recorder::new(now, crate::metrics::Metrics::new().latencies)
}

/// A second passes, with these queues.
fn ticked(recorder: &mut Recorder, now: u64, mut queues: Vec<Queue>) -> Summary {
    let mut counts = Counts::default();
    for view in &queues {
        counts.ready += view.counts.ready;
    }
    let total = queues.len();
    queues.truncate(QUEUES_MAX);
    recorder.tick(now, counts, total, queues);
    recorder.summary(now)
}

fn token() -> Token {
    "1-1".parse().unwrap()
}

fn view(counts: Counts) -> Queue {
    Queue {
        name: queue("mail"),
        paused: false,
        options: QueueOptions::default(),
        counts,
        oldest_ready_at: None,
    }
}

fn job(state: State, attempt: u32, error: Option<&str>) -> Job {
    let value = serde_json::json!({
        "sequence": 1, "id": "j", "queue": "mail", "type": "send", "payload": null,
        "state": state, "priority": 0, "attempt": attempt, "max_attempts": 3,
        "created_at": 0, "run_at": 0, "changed_at": 0, "error": error, "worker": "w-1",
    });
    serde_json::from_value(value).unwrap()
}

fn history(recorder: &Recorder) -> Vec<serde_json::Value> {
    let value = serde_json::to_value(recorder.history(&id("j"))).unwrap();
    value["entries"].as_array().unwrap().clone()
}

#[test]
fn latencies_run_from_ready_to_claimed_to_ended() {
    let mut recorder = recorder(0);
    let none = |_: &JobId| None;
    recorder.record(1_000, &[submitted("j")], &none);
    recorder.record(1_007, &[claimed("j", 1)], &none);
    let completed = Event::Completed {
        id: id("j"),
        token: token(),
        queue: queue("mail"),
    };
    recorder.record(1_012, &[completed], &none);
    let summary = ticked(&mut recorder, 2_000, vec![view(Counts::default())]);
    assert_eq!(summary.pickup.unwrap().p50_ms, 7.0);
    assert_eq!(summary.run.unwrap().p50_ms, 5.0);
    assert_eq!(summary.queues[0].rates.completed, 1.0);
    assert!(recorder.timed.is_empty());
}

#[test]
fn a_failure_says_what_and_why() {
    let mut recorder = recorder(0);
    let look = |_: &JobId| Some(job(State::Dead, 2, Some("no route")));
    let died = Event::Died {
        id: id("j"),
        token: token(),
        queue: queue("mail"),
        attempt: 2,
    };
    recorder.record(5, &[died], &look);
    let summary = ticked(&mut recorder, 1_000, Vec::new());
    let summary = serde_json::to_value(summary).unwrap();
    let failure = &summary["failures"][0];
    assert_eq!(failure["error"], "no route");
    assert_eq!(failure["type"], "send");
    assert_eq!(failure["dead"], true);
    assert_eq!(history(&recorder)[0]["error"], "no route");
}

#[test]
fn what_may_belong_to_a_later_attempt_is_left_out() {
    let mut recorder = recorder(0);
    let later = |_: &JobId| Some(job(State::Running, 3, Some("of attempt 2")));
    recorder.record(1, &[claimed("j", 2)], &later);
    let failed = Event::Failed {
        id: id("j"),
        token: token(),
        queue: queue("mail"),
        attempt: 1,
        run_at: 9,
    };
    recorder.record(2, &[failed], &later);
    let history = history(&recorder);
    assert!(history[0].get("worker").is_none());
    assert!(history[1].get("error").is_none());
}

#[test]
fn a_claim_names_its_worker() {
    let mut recorder = recorder(0);
    let look = |_: &JobId| Some(job(State::Running, 1, None));
    recorder.record(1, &[submitted("j"), claimed("j", 1)], &look);
    assert_eq!(history(&recorder)[1]["worker"], "w-1");
}

#[test]
fn a_queue_that_nobody_claims_from_is_idle_since_it_has_jobs() {
    let mut recorder = recorder(0);
    let counts = Counts {
        ready: 2,
        ..Counts::default()
    };
    let waiting = Queue {
        oldest_ready_at: Some(910_000),
        ..view(counts)
    };
    let summary = ticked(&mut recorder, 1_000_000, vec![waiting]);
    assert_eq!(
        summary.stuck[0].detail,
        "2 ready, none claimed for 1 m 30 s"
    );
}

#[test]
fn queues_that_are_gone_are_forgotten_and_many_are_only_counted() {
    let mut recorder = recorder(0);
    let queues = |number: usize| {
        let mut queues: Vec<_> = (0..number)
            .map(|each| {
                let mut view = view(Counts {
                    ready: 1,
                    ..Counts::default()
                });
                view.name = queue(&format!("q-{each:05}"));
                view
            })
            .collect();
        queues.sort_by(|one, other| one.name.cmp(&other.name));
        queues
    };
    let summary = ticked(&mut recorder, 1_000, queues(1_000));
    assert_eq!(summary.queues.len(), QUEUES_MAX);
    assert_eq!((summary.queues_total, summary.counts.ready), (1_000, 1_000));
    ticked(&mut recorder, 2_000, queues(2));
    assert_eq!(recorder.sparks().len(), 2);
}
