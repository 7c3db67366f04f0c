//! Who is woken, by what, and in which order.

use tenure_core::queue::{self, Action, Claimed, Command, Key, LoggedClaim, QueueOptions};
use tokio::sync::oneshot;

use super::*;
use crate::log::{Answered, Error};

const NOW: u64 = 1_700_000_000_000;

/// A queue, and claims that wait for its jobs.
struct World {
    queue: Queue,
    waiting: Waiting,
    /// Kept, so that nobody counts as gone.
    receivers: Vec<oneshot::Receiver<Result<Answered<Answer>, Error>>>,
}

fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn job_type(name: &str) -> JobType {
    JobType::new(name).unwrap()
}

fn job(queue: &str, kind: &str) -> Submission {
    Submission {
        queue: queue_name(queue),
        ..Submission::new(job_type(kind))
    }
}

fn request(worker: &str, queues: &[&str], types: &[&str], max: u32) -> ClaimRequest {
    ClaimRequest {
        worker: Key::new(worker).unwrap(),
        queues: queues.iter().map(|name| queue_name(name)).collect(),
        types: types.iter().map(|name| job_type(name)).collect(),
        max,
        lease_ms: 30_000,
        wait_ms: 0,
    }
}

impl World {
    fn new() -> Self {
        Self {
            queue: Queue::new(1),
            waiting: Waiting::default(),
            receivers: Vec::new(),
        }
    }

    fn wait(&mut self, request: ClaimRequest) -> Ticket {
        let ticket = self.waiting.ticket();
        let (sender, receiver) = oneshot::channel();
        self.receivers.push(receiver);
        self.waiting
            .wait(&self.queue, NOW, ticket, request, None, sender);
        ticket
    }

    fn apply(&mut self, action: Action) -> queue::Answer {
        self.apply_at(NOW, action)
    }

    fn apply_at(&mut self, at: u64, action: Action) -> queue::Answer {
        let mut events = Vec::new();
        let answer = self.queue.apply(Command { at, action }, &mut events);
        self.waiting.follow(&self.queue, &events);
        answer
    }

    fn claim(&mut self, at: u64, request: ClaimRequest) -> Vec<Claimed> {
        let claim = LoggedClaim {
            request,
            nonce: 0,
            key: None,
        };
        self.apply_at(at, Action::Claim(claim)).claimed()
    }

    fn submit(&mut self, jobs: Vec<Submission>) {
        self.waiting.submitting(&jobs);
        self.apply(Action::Submit(jobs));
    }

    /// Who is woken, and how many jobs each may take.
    fn wake(&mut self, at: u64) -> Vec<(String, u32)> {
        let woken = self.waiting.wake(&self.queue, at);
        let told = |woken: Woken| (woken.request.worker.to_string(), woken.request.max);
        woken.into_iter().map(told).collect()
    }
}

fn riders(world: &mut World, jobs: &[Submission]) -> Vec<(String, u32)> {
    let woken = world.waiting.ride(&world.queue, jobs, NOW);
    let told = |woken: Woken| (woken.request.worker.to_string(), woken.request.max);
    woken.into_iter().map(told).collect()
}

fn told(woken: &[(&str, u32)]) -> Vec<(String, u32)> {
    let told = |&(worker, max): &(&str, u32)| (worker.to_owned(), max);
    woken.iter().map(told).collect()
}

#[test]
fn whoever_came_first_of_those_who_could_take_it_is_woken() {
    let mut world = World::new();
    world.wait(request("other-queue", &["b"], &[], 1));
    world.wait(request("other-type", &[], &["y"], 1));
    world.wait(request("first", &["a"], &["x"], 1));
    world.wait(request("second", &[], &[], 1));
    world.submit(vec![job("a", "x")]);
    assert!(world.waiting.is_credited());
    assert_eq!(world.wake(NOW), told(&[("first", 1)]));
    assert!(!world.waiting.is_credited());
    world.submit(vec![job("a", "x")]);
    assert_eq!(world.wake(NOW), told(&[("second", 1)]));
    assert_eq!(world.waiting.len(), 2);
}

#[test]
fn many_jobs_wake_as_many_and_are_shared() {
    let mut world = World::new();
    for worker in ["1", "2", "3"] {
        world.wait(request(worker, &[], &[], 10));
    }
    world.submit(vec![job("a", "x"), job("a", "x")]);
    assert_eq!(world.wake(NOW), told(&[("1", 1), ("2", 1)]));
    // Six more for one: it may take all it asks for, and no more.
    world.submit((0..6).map(|_| job("a", "x")).collect());
    assert_eq!(world.wake(NOW), told(&[("3", 6)]));
    assert!(world.waiting.is_empty());
}

#[test]
fn whoever_leaves_or_is_gone_is_passed_over() {
    let mut world = World::new();
    let leaves = world.wait(request("leaves", &[], &[], 1));
    world.wait(request("gone", &[], &[], 1));
    world.wait(request("stays", &[], &[], 1));
    assert!(world.waiting.leave(leaves) && !world.waiting.leave(leaves));
    world.receivers.remove(1);
    world.submit(vec![job("a", "x")]);
    assert_eq!(world.wake(NOW), told(&[("stays", 1)]));
    assert!(world.waiting.is_empty());
}

#[test]
fn a_ticket_keeps_its_place() {
    let mut world = World::new();
    let early = world.wait(request("early", &[], &[], 1));
    world.wait(request("late", &[], &[], 1));
    world.submit(vec![job("a", "x")]);
    assert_eq!(world.wake(NOW), told(&[("early", 1)]));
    // It got nothing, and waits on.
    let (sender, receiver) = oneshot::channel();
    world.receivers.push(receiver);
    let again = request("early", &[], &[], 1);
    let World { queue, waiting, .. } = &mut world;
    waiting.wait(queue, NOW, early, again, None, sender);
    world.submit(vec![job("a", "x")]);
    assert_eq!(world.wake(NOW), told(&[("early", 1)]));
}

#[test]
fn a_delayed_job_wakes_nobody_before_it_is_ready() {
    let mut world = World::new();
    world.wait(request("one", &[], &[], 1));
    let later = Submission {
        delay_ms: Some(1000),
        ..job("a", "x")
    };
    world.submit(vec![later]);
    assert_eq!(world.wake(NOW), told(&[]));
    world.apply_at(NOW + 1000, Action::Tick);
    assert_eq!(world.wake(NOW + 1000), told(&[("one", 1)]));
}

#[test]
fn a_queue_that_is_resumed_has_jobs_that_nobody_was_told_of() {
    let mut world = World::new();
    world.apply(Action::Pause(queue_name("a")));
    world.submit(vec![job("a", "x"), job("a", "x")]);
    world.wait(request("one", &["a"], &[], 1));
    world.wait(request("two", &["b"], &[], 1));
    assert_eq!(world.wake(NOW), told(&[]));
    world.apply(Action::Resume(queue_name("a")));
    assert_eq!(world.wake(NOW), told(&[("one", 1)]));
}

#[test]
fn the_end_of_one_job_is_room_for_another_where_concurrency_is_limited() {
    let mut world = World::new();
    let options = QueueOptions {
        concurrency: Some(1),
        ..QueueOptions::default()
    };
    world.apply(Action::SetQueue(queue_name("a"), options));
    world.submit(vec![job("a", "x"), job("a", "x")]);
    let claimed = world.claim(NOW, request("runs", &[], &[], 1)).remove(0);
    world.wait(request("waits", &[], &[], 1));
    world.waiting.left_over(&[]);
    assert_eq!(world.wake(NOW), told(&[]), "there is no room");
    let done = queue::Completion {
        id: claimed.id.clone(),
        token: claimed.token,
        result: None,
    };
    world.apply(Action::Complete(vec![done]));
    assert_eq!(world.wake(NOW), told(&[("waits", 1)]));
}

#[test]
fn when_everyone_is_answered_nobody_waits_and_tickets_go_on() {
    let mut world = World::new();
    let first = world.wait(request("one", &[], &[], 1));
    world.wait(request("two", &["a"], &["x", "y"], 1));
    assert_eq!(world.waiting.drain().count(), 2);
    assert!(world.waiting.is_empty());
    world.submit(vec![job("a", "x")]);
    assert_eq!(world.wake(NOW), told(&[]));
    assert!(
        !world.waiting.is_credited(),
        "credits are for those who wait"
    );
    assert!(world.waiting.ticket() > first);
}

fn rate(jobs: u32, period_ms: u32) -> QueueOptions {
    let options = format!(r#"{{"rate":{{"jobs":{jobs},"period_ms":{period_ms},"burst":1}}}}"#);
    serde_json::from_str(&options).unwrap()
}

#[test]
fn a_queue_with_a_rate_wakes_one_after_the_other_whatever_lies_elsewhere() {
    let mut world = World::new();
    world.apply(Action::SetQueue(queue_name("a"), rate(1, 1_000)));
    // Nobody takes this one, and it can be taken at any time.
    world.submit(vec![job("b", "x")]);
    for worker in ["1", "2", "3", "4"] {
        world.wait(request(worker, &["a"], &[], 1));
    }
    world.submit((0..10).map(|_| job("a", "x")).collect());
    for second in 0..4 {
        let now = NOW + second * 1_000;
        let worker = (second + 1).to_string();
        assert_eq!(world.wake(now), told(&[(&worker, 1)]), "{second}");
        let claim = request(&worker, &["a"], &[], 1);
        assert_eq!(world.claim(now, claim).len(), 1);
        // Those who still wait are told when the queue opens again.
        assert!(world.waiting.opens_sooner() || second == 3);
        assert_eq!(world.wake(now), told(&[]), "{second}");
        let opens = (second < 3).then_some(now + 1_000);
        assert_eq!(world.waiting.next_opening(), opens);
    }
}

#[test]
fn a_queue_that_opens_since_time_was_set_back_wakes_who_waits() {
    for queues in [&["a"][..], &[]] {
        let mut world = World::new();
        world.apply(Action::SetQueue(queue_name("a"), rate(1, 1_000)));
        world.submit((0..3).map(|_| job("a", "x")).collect());
        // By a time that is wrong.
        let ahead = NOW + 1_000_000;
        assert_eq!(world.claim(ahead, request("0", &["a"], &[], 1)).len(), 1);
        world.wait(request("1", queues, &[], 1));
        assert_eq!(world.wake(ahead), told(&[]));
        world.apply_at(NOW, Action::SetTime(NOW));
        assert_eq!(world.wake(NOW), told(&[("1", 1)]), "{queues:?}");
    }
}

#[test]
fn each_closed_queue_that_is_waited_for_opens_by_itself() {
    let mut world = World::new();
    for (name, period) in [("a", 1_000), ("b", 5_000), ("c", 3_000)] {
        world.apply(Action::SetQueue(queue_name(name), rate(1, period)));
        world.submit(vec![job(name, "x"), job(name, "x")]);
        let claim = request("first", &[name], &[], 1);
        assert_eq!(world.claim(NOW, claim).len(), 1);
    }
    world.wait(request("both", &["a", "b"], &[], 1));
    assert_eq!(world.wake(NOW), told(&[]));
    assert_eq!(world.waiting.next_opening(), Some(NOW + 1_000));
    assert_eq!(world.wake(NOW + 1_000), told(&[("both", 1)]));
    // Somebody else was faster: it waits on, and the other queue still counts.
    let again = request("both", &["a", "b"], &[], 1);
    let faster = request("faster", &["a"], &[], 1);
    assert_eq!(world.claim(NOW + 1_000, faster).len(), 1);
    world.wait(again);
    assert_eq!(world.wake(NOW + 4_999), told(&[]));
    assert_eq!(world.waiting.next_opening(), Some(NOW + 5_000));
    assert_eq!(world.wake(NOW + 5_000), told(&[("both", 1)]));
}

#[test]
fn whoever_waits_for_every_queue_is_told_of_one_opening_after_the_other() {
    let mut world = World::new();
    for (name, period) in [("a", 1_000), ("b", 5_000), ("c", 3_000)] {
        world.apply(Action::SetQueue(queue_name(name), rate(1, period)));
        world.submit(vec![job(name, "x"), job(name, "x")]);
        let claim = request("first", &[name], &[], 1);
        assert_eq!(world.claim(NOW, claim).len(), 1);
    }
    // Nobody waited when they were closed.
    world.waiting = Waiting::default();
    for second in [1, 3, 5] {
        world.wait(request(&second.to_string(), &[], &["x"], 1));
    }
    for second in [1, 3, 5] {
        let at = NOW + second * 1_000;
        assert_eq!(world.wake(at - 1), told(&[]));
        assert_eq!(world.waiting.next_opening(), Some(at));
        let worker = second.to_string();
        assert_eq!(world.wake(at), told(&[(&worker, 1)]));
        let claim = request(&worker, &[], &["x"], 1);
        assert_eq!(world.claim(at, claim).len(), 1);
    }
}

#[test]
fn what_waits_costs_its_names_and_the_same_names_once() {
    let names: Vec<String> = (0..100).map(|number| format!("name-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::new();
    world.wait(request("first", &names, &names, 1));
    let one = world.waiting.bytes;
    assert!(one < 40_000, "{one} bytes for 200 names");
    let again = request("again", &names, &names, 1);
    world.wait(again.clone());
    assert!(world.waiting.bytes < one + 1_000, "the same names again");
    assert!(world.waiting.bytes_with(&again) >= world.waiting.bytes + 200 * 6);
    // Found by any of its pairs, the earliest first.
    world.submit(vec![job("name-99", "name-0")]);
    assert_eq!(world.wake(NOW), told(&[("first", 1)]));
    world.submit(vec![job("name-0", "other")]);
    assert_eq!(world.wake(NOW), told(&[]));
    world.submit(vec![job("name-0", "name-99")]);
    assert_eq!(world.wake(NOW), told(&[("again", 1)]));
    assert_eq!(world.waiting.bytes, 0);
    let indexes = (world.waiting.by_queue.len(), world.waiting.by_type.len());
    assert_eq!((indexes, world.waiting.wants.len()), ((0, 0), 0));
}

#[test]
fn many_different_wants_are_looked_at_in_portions() {
    let mut world = World::new();
    let names: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for number in 0..10 {
        // A hundred queues and types each, and no two the same.
        let mut queues = names.clone();
        let own = format!("own-{number}");
        queues[0] = &own;
        world.wait(request(&number.to_string(), &queues, &names, 1));
    }
    world.wait(request("takes it", &[], &["wanted"], 1));
    world.waiting.credits.clear();
    world.apply(Action::Submit(vec![job("somewhere", "wanted")]));
    world.waiting.left_over(&[]);
    let mut turns = 1;
    let woken = loop {
        let woken = world.wake(NOW);
        if !woken.is_empty() {
            break woken;
        }
        assert!(world.waiting.is_credited(), "it is not done");
        turns += 1;
    };
    assert_eq!(woken, told(&[("takes it", 1)]));
    assert_eq!(turns, 6, "two of the large ones in each");
}

#[test]
fn a_claim_rides_behind_the_submit_that_it_waits_for() {
    let mut world = World::new();
    world.wait(request("other-type", &["a"], &["y"], 1));
    world.wait(request("first", &["a"], &["x"], 5));
    world.wait(request("second", &[], &[], 5));
    world.wait(request("third", &[], &[], 5));
    let jobs = [job("a", "x"), job("a", "x"), job("a", "x"), job("b", "x")];
    assert_eq!(
        riders(&mut world, &jobs),
        told(&[("first", 2), ("second", 2), ("third", 2)])
    );
    assert_eq!(world.waiting.len(), 1);
    assert_eq!(riders(&mut world, &jobs), told(&[]));
}

#[test]
fn nobody_rides_for_a_job_that_would_not_be_ready() {
    let mut world = World::new();
    world.wait(request("w", &[], &[], 1));
    let known = Submission {
        id: Some(tenure_core::JobId::new("known").unwrap()),
        delay_ms: Some(1_000),
        ..job("a", "x")
    };
    world.apply(Action::Submit(vec![known.clone()]));
    let not_ready = [
        known,
        Submission {
            delay_ms: Some(1),
            ..job("a", "x")
        },
        Submission {
            run_at: Some(NOW + 1),
            ..job("a", "x")
        },
        Submission {
            group: Some(Key::new("g").unwrap()),
            ..job("a", "x")
        },
    ];
    assert_eq!(riders(&mut world, &not_ready), told(&[]));
    world.apply(Action::Pause(queue_name("a")));
    assert_eq!(riders(&mut world, &[job("a", "x")]), told(&[]));
    let now = Submission {
        run_at: Some(NOW),
        delay_ms: Some(0),
        ..job("b", "x")
    };
    assert_eq!(riders(&mut world, &[now]), told(&[("w", 1)]));
}

#[test]
fn no_more_ride_than_a_queue_lets_through() {
    let mut world = World::new();
    for worker in ["a", "b", "c", "d"] {
        world.wait(request(worker, &[], &[], 1));
    }
    let options = QueueOptions {
        concurrency: Some(2),
        ..QueueOptions::default()
    };
    world.apply(Action::SetQueue(queue_name("q"), options));
    let jobs = [job("q", "x"), job("q", "y"), job("q", "z")];
    assert_eq!(riders(&mut world, &jobs), told(&[("a", 1), ("b", 1)]));
}
