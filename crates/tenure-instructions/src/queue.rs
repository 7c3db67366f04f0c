//! The queue machine: what each job costs at a depth, what falls due, and snapshots.

use std::time::Duration;

use tenure_core::queue::{
    Action, Answer, ClaimRequest, Claimed, Command, Completion, Event, Failure, HeartbeatAnswer,
    Key, Leases, LoggedClaim, Missed, Payload, Queue, Restore, Schedule, ScheduleSpec, Submission,
};
use tenure_core::{JobId, JobType, Moment, ScheduleName};

use crate::{count, report};

const JOBS: usize = 2_000;
const SCHEDULES: usize = 200;
const MINUTE_MS: u64 = 60_000;

/// One job per command, as 64 independent callers would send them.
pub(crate) fn run(depth: usize) {
    let mut world = World::new();
    world.fill(depth);
    // Tables have grown and names are known before anything is counted.
    world.fill(JOBS);
    for claimed in world.claim(JOBS) {
        world.apply(completion(claimed));
    }
    let path = |name: &str| format!("queue/{name} depth {depth}");

    let submits = world.submissions(JOBS);
    for submit in submits {
        world.count(submit);
    }
    report(&path("submit"), JOBS);

    let mut claimed = Vec::new();
    for nonce in 0..JOBS {
        let answer = world.count(claim(nonce));
        claimed.extend(answer.claimed());
    }
    report(&path("claim"), claimed.len());
    assert_eq!(claimed.len(), JOBS);

    for job in &claimed {
        world.heartbeat(job);
    }
    report(&path("heartbeat"), JOBS);

    let failed = claimed.split_off(JOBS / 2);
    for job in claimed {
        world.count(completion(job));
    }
    report(&path("complete"), JOBS / 2);

    for job in failed {
        world.count(failure(job));
    }
    report(&path("fail"), JOBS / 2);

    // Past the back-off of all that failed.
    world.at += 3_600_000;
    let before = world.queue.counts().ready;
    world.count(Action::Tick);
    let due = world.queue.counts().ready - before;
    report(&path("tick, per job due"), usize::try_from(due).unwrap());
}

/// Schedules of which each fires once: from the look at what is due to the new job.
pub(crate) fn schedules() {
    let mut world = World::new();
    for number in 0..SCHEDULES {
        let spec = ScheduleSpec {
            cron: "* * * * *".to_owned(),
            timezone: "Europe/Berlin".to_owned(),
            job: Submission::new(world.job_type.clone()),
            missed: Missed::Once,
            run_on_start: false,
        };
        let name = ScheduleName::new(format!("schedule-{number}")).unwrap();
        let set = Schedule::command(name, spec, world.at).unwrap();
        world.apply(set);
    }
    world.at += MINUTE_MS;
    let (queue, at) = (&world.queue, world.at);
    let firings = count(|| queue.due_firings(at));
    assert_eq!(firings.len(), SCHEDULES);
    world.count(Action::Fire(firings));
    report("queue/schedule tick, per firing", SCHEDULES);
}

/// Lines of a snapshot, written and read.
pub(crate) fn snapshot() {
    let mut world = World::new();
    world.fill(JOBS);
    let queue = &mut world.queue;
    queue.begin_snapshot();
    let mut chunks = Vec::new();
    while let Some(chunk) = count(|| queue.snapshot_chunk(256 * 1024)) {
        chunks.push(chunk);
    }
    report("queue/snapshot, per job written", JOBS);

    let mut restore = Restore::new(1);
    count(|| chunks.iter().try_for_each(|chunk| restore.feed(chunk))).unwrap();
    let restored = count(|| restore.finish()).unwrap();
    report("queue/snapshot, per job read", restored.len());
}

pub(crate) struct World {
    queue: Queue,
    leases: Leases,
    events: Vec<Event>,
    at: u64,
    job_type: JobType,
    submitted: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            queue: Queue::new(0x5eed),
            leases: Leases::default(),
            events: Vec::new(),
            at: 1_767_225_600_000,
            job_type: JobType::new("mail").unwrap(),
            submitted: 0,
        }
    }

    pub(crate) fn submission(&mut self) -> Submission {
        self.submitted += 1;
        // As long as a UUID, and as random in order.
        let mixed = self.submitted.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let id = format!("{mixed:016x}-0000-4000-a000-{:010}", self.submitted);
        Submission {
            id: Some(JobId::new(id).unwrap()),
            payload: payload(),
            ..Submission::new(self.job_type.clone())
        }
    }

    /// So many commands of one job each, made beforehand.
    pub(crate) fn submissions(&mut self, jobs: usize) -> Vec<Action> {
        let submissions = (0..jobs).map(|_| Action::Submit(vec![self.submission()]));
        submissions.collect()
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    fn fill(&mut self, jobs: usize) {
        for _ in 0..jobs {
            let submission = self.submission();
            self.apply(Action::Submit(vec![submission]));
        }
    }

    fn claim(&mut self, jobs: usize) -> Vec<Claimed> {
        let claims = (0..jobs).flat_map(|nonce| self.apply(claim(nonce)).claimed());
        claims.collect()
    }

    fn apply(&mut self, action: Action) -> Answer {
        let at = self.at;
        self.events.clear();
        let answer = self.queue.apply(Command { at, action }, &mut self.events);
        self.leases.follow(&self.events, moment(0));
        answer
    }

    /// Counted, with what the leases make of it.
    fn count(&mut self, action: Action) -> Answer {
        count(|| self.apply(action))
    }

    fn heartbeat(&mut self, job: &Claimed) {
        let (queue, leases) = (&self.queue, &mut self.leases);
        let answer = count(|| leases.heartbeat(queue, &job.id, job.token, None, moment(1)));
        assert!(matches!(answer, Ok(HeartbeatAnswer::Renewed(_))));
    }
}

/// Of a hundred bytes.
pub(crate) fn payload() -> Payload {
    let text = format!("{{\"to\":\"{}\"}}", "x".repeat(91));
    Payload::new(text).unwrap()
}

fn moment(seconds: u64) -> Moment {
    Moment::from_origin(Duration::from_secs(1_000 + seconds))
}

pub(crate) fn claim(nonce: usize) -> Action {
    Action::Claim(LoggedClaim {
        request: ClaimRequest::new(Key::new("worker-1").unwrap()),
        nonce: u32::try_from(nonce).unwrap(),
        key: None,
    })
}

fn completion(job: Claimed) -> Action {
    Action::Complete(vec![Completion {
        id: job.id,
        token: job.token,
        result: None,
    }])
}

fn failure(job: Claimed) -> Action {
    Action::Fail(vec![Failure {
        id: job.id,
        token: job.token,
        error: Some("connection refused".into()),
        retry_in_ms: None,
        permanent: false,
    }])
}

/// A job as a worker gets it.
pub(crate) fn claimed() -> Claimed {
    let mut world = World::new();
    world.fill(1);
    world.claim(1).pop().unwrap()
}
