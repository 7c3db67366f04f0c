//! What each read costs while the queue's lock is held, with 1,000,000 jobs in 50,000 queues: no other call makes
//! progress during that time. Prints the worst of each kind, and what submits and claims cost beside them. Run with
//! `cargo bench -p tenure-core --bench reads`; jobs and queues may be given as arguments.
#![allow(clippy::print_stdout, reason = "its output is the point")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it measures time"
)]
#![allow(clippy::unwrap_used, reason = "it stops at the first surprise")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use tenure_core::queue::{
    Action, ClaimRequest, Command, Filter, Key, LoggedClaim, Missed, PageStart, Payload, Queue,
    Schedule, ScheduleSpec, State, Submission,
};
use tenure_core::{JobType, QueueName, ScheduleName};

/// No call may hold another one up for longer.
const GOAL: Duration = Duration::from_millis(50);

const ROUNDS: u64 = 200;

const NOW: u64 = 1_767_225_600_000;

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let [jobs, queues] = numbers[..] else {
        return run(1_000_000, 50_000);
    };
    run(jobs, queues);
}

fn run(jobs: u64, queues: u64) {
    let mut queue = filled(jobs, queues);
    println!("{jobs} jobs in {queues} queues; the worst of {ROUNDS}, and the median");
    let name = |number: u64| QueueName::new(format!("queue-{:06}", number % queues)).unwrap();
    let of_queue = |number| Filter {
        queue: Some(name(number)),
        ..Filter::default()
    };
    let dead = Filter {
        state: Some(State::Dead),
        ..Filter::default()
    };
    let all = Filter::default();
    let types = [JobType::new("rare").unwrap()];
    tell("page of all jobs", |number| {
        queue
            .page(&all, PageStart::After(number * 4_999), 1_000)
            .jobs
            .len()
    });
    tell("newest jobs", |_| {
        queue
            .page(&all, PageStart::Before(u64::MAX), 100)
            .jobs
            .len()
    });
    tell("page of one queue", |number| {
        queue
            .page(&of_queue(number), PageStart::After(0), 1_000)
            .jobs
            .len()
    });
    tell("page of one state", |_| {
        queue.page(&dead, PageStart::After(0), 1_000).jobs.len()
    });
    tell("search, one portion", |number| {
        queue
            .search(&all, "nowhere", PageStart::After(number * 4_999), 100)
            .jobs
            .len()
    });
    tell("page of queues", |number| {
        queue.queues_behind(Some(&name(number * 251)), 1_000).len()
    });
    tell("counts", |_| usize::try_from(queue.counts().ready).unwrap());
    tell("oldest of a queue", |number| {
        usize::from(queue.oldest_ready(&name(number)).is_some())
    });
    tell("what is due", |_| {
        queue.due_schedules(NOW + 60_000, None, 1_000).len()
    });
    tell("claimable, every queue", |_| {
        usize::from(queue.claimable_at(&[], &[]).is_some())
    });
    tell("claimable, one type", |_| {
        usize::from(queue.claimable_at(&[], &types).is_some())
    });
    let mut events = Vec::new();
    let mut apply = |action| {
        events.clear();
        let _ = queue.apply(Command { at: NOW, action }, &mut events);
        events.len()
    };
    tell("submit", |number| {
        apply(Action::Submit(vec![job(name(number), "mail")]))
    });
    tell("claim of every queue", |_| {
        apply(Action::Claim(claim(&[], &[])))
    });
    tell("claim of one type", |_| {
        apply(Action::Claim(claim(&[], &types)))
    });
    tell("claim of one queue", |number| {
        apply(Action::Claim(claim(&[name(number)], &[])))
    });
}

fn filled(jobs: u64, queues: u64) -> Queue {
    let mut queue = Queue::new(1);
    let mut events = Vec::new();
    let mut apply = |action| {
        events.clear();
        let _ = queue.apply(Command { at: NOW, action }, &mut events);
    };
    for number in 0..jobs {
        let name = QueueName::new(format!("queue-{:06}", number % queues)).unwrap();
        apply(Action::Submit(vec![job(
            name,
            ["mail", "report"][usize::from(number % 7 == 0)],
        )]));
    }
    for number in 0..10_000 {
        let spec = ScheduleSpec {
            cron: "* * * * *".to_owned(),
            timezone: "Europe/Berlin".to_owned(),
            job: Submission::new(JobType::new("mail").unwrap()),
            missed: Missed::Once,
            run_on_start: false,
        };
        let name = ScheduleName::new(format!("schedule-{number}")).unwrap();
        apply(Schedule::command(name, spec, NOW).unwrap());
    }
    // Every second queue is paused: claims must not have to skip them one by one.
    for number in (0..queues).step_by(2) {
        apply(Action::Pause(
            QueueName::new(format!("queue-{number:06}")).unwrap(),
        ));
    }
    queue
}

fn job(queue: QueueName, job_type: &str) -> Submission {
    let mut job = Submission::new(JobType::new(job_type).unwrap());
    job.queue = queue;
    job.payload = Payload::new(r#"{"to":"someone@example.com","subject":"hello"}"#).unwrap();
    job
}

fn claim(queues: &[QueueName], types: &[JobType]) -> LoggedClaim {
    let mut request = ClaimRequest::new(Key::new("bench").unwrap());
    (request.queues, request.types) = (queues.to_vec(), types.to_vec());
    LoggedClaim {
        request,
        nonce: 7,
        key: None,
    }
}

fn tell(what: &str, mut work: impl FnMut(u64) -> usize) {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|number| {
            let started = Instant::now();
            black_box(work(number));
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let met = if worst <= GOAL {
        ""
    } else {
        "  more than 50 ms"
    };
    println!("{what:<24} {worst:>10.1?} {median:>10.1?}{met}");
}
