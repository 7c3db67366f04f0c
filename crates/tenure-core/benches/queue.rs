//! What the queue machine alone costs: no log, no sockets, no server.
//!
//! For each depth: fills the queue, then runs submit + claim + complete cycles, one job per command as 64
//! independent callers would send them, and prints cycles per second of this thread's processor time. Also
//! prints the memory of a pending job, and what a snapshot costs. Run with
//! `cargo bench -p tenure-core --bench queue`; depths may be given as arguments.
#![allow(clippy::print_stdout, reason = "its output is the point")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it measures time"
)]
#![allow(clippy::unwrap_used, reason = "it stops at the first surprise")]

use std::fs::read_to_string;
use std::hint::black_box;
use std::process::Command as Program;
use std::time::Instant;

use tenure_core::queue::{
    Action, Answer, ClaimRequest, Command, Completion, Event, Key, LoggedClaim, Payload, Queue,
    Restore, Submission,
};
use tenure_core::{JobId, JobType};

const PAYLOAD_BYTES: usize = 94;
const CYCLES: u64 = 400_000;

fn main() {
    let depths: Vec<u64> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let depths = if depths.is_empty() {
        vec![0, 1_000, 50_000, 1_000_000]
    } else {
        depths
    };
    match depths[..] {
        [depth] => at_depth(depth),
        // Each depth runs in its own process: memory that was freed would hide what the next one takes.
        _ => depths.iter().for_each(|depth| {
            let program = std::env::current_exe().unwrap();
            let status = Program::new(program).arg(depth.to_string()).status();
            assert!(status.unwrap().success());
        }),
    }
}

fn at_depth(depth: u64) {
    let mut load = Load::new();
    let before = resident_bytes();
    let filling = Stopwatch::start();
    for _ in 0..depth {
        let job = load.submission();
        load.submit(job);
    }
    let fill = filling.seconds();
    let bytes = resident_bytes().saturating_sub(before);
    // Past the warm-up, retention deletes one job for every one that completes.
    let warm_up = load.submissions(150_000);
    load.cycles(warm_up);
    let submissions = load.submissions(CYCLES);
    let measured = Stopwatch::start();
    load.cycles(submissions);
    let seconds = measured.seconds();
    println!(
        "depth {depth:>9}: {:>9.0} cycles per second ({:.2} µs each)",
        CYCLES as f64 / seconds,
        seconds / CYCLES as f64 * 1e6
    );
    if depth >= 50_000 {
        println!(
            "{:>17} {:.0} bytes and {:.2} µs per pending job of {PAYLOAD_BYTES} bytes",
            "",
            bytes as f64 / depth as f64,
            fill / depth as f64 * 1e6
        );
        load.snapshot();
    }
}

struct Load {
    queue: Queue,
    events: Vec<Event>,
    at: u64,
    job_type: JobType,
    payload: String,
    submitted: u64,
}

impl Load {
    fn new() -> Self {
        Self {
            queue: Queue::new(0x5eed),
            events: Vec::new(),
            at: 1_700_000_000_000,
            job_type: JobType::new("mail").unwrap(),
            payload: format!("\"{}\"", "x".repeat(PAYLOAD_BYTES - 2)),
            submitted: 0,
        }
    }

    fn apply(&mut self, action: Action) -> Answer {
        self.at += u64::from(self.submitted.is_multiple_of(100));
        let at = self.at;
        self.events.clear();
        self.queue.apply(Command { at, action }, &mut self.events)
    }

    fn submission(&mut self) -> Submission {
        self.submitted += 1;
        // As long as a UUID, and as random in order.
        let mixed = self.submitted.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let id = format!("{mixed:016x}-0000-4000-a000-{:010}", self.submitted);
        Submission {
            id: Some(JobId::new(id).unwrap()),
            payload: Payload::new(self.payload.clone()).unwrap(),
            ..Submission::new(self.job_type.clone())
        }
    }

    fn submissions(&mut self, count: u64) -> Vec<Submission> {
        (0..count).map(|_| self.submission()).collect()
    }

    fn submit(&mut self, job: Submission) {
        black_box(self.apply(Action::Submit(vec![job])));
    }

    fn cycles(&mut self, submissions: Vec<Submission>) {
        let worker = Key::new("worker-1").unwrap();
        for (nonce, submission) in submissions.into_iter().enumerate() {
            self.submit(submission);
            let claim = Action::Claim(LoggedClaim {
                request: ClaimRequest::new(worker.clone()),
                nonce: u32::try_from(nonce).unwrap(),
                key: None,
            });
            let claimed = self.apply(claim).claimed().pop().expect("a job is ready");
            let completion = Completion {
                id: claimed.id,
                token: claimed.token,
                result: None,
            };
            black_box(self.apply(Action::Complete(vec![completion])));
        }
    }

    fn snapshot(&mut self) {
        let mut stops = Vec::new();
        let mut chunks = Vec::new();
        let whole = Stopwatch::start();
        let mut begin = Instant::now();
        self.queue.begin_snapshot();
        while let Some(bytes) = self.queue.snapshot_chunk(256 * 1024) {
            stops.push(begin.elapsed());
            chunks.push(bytes);
            begin = Instant::now();
        }
        stops.sort();
        let taken = whole.seconds();
        let bytes: usize = chunks.iter().map(Vec::len).sum();
        let reading = Stopwatch::start();
        let mut restore = Restore::new(1);
        for chunk in &chunks {
            restore.feed(chunk).unwrap();
        }
        let restored = restore.finish().unwrap();
        println!(
            "{:>17} snapshot of {} jobs: {} MB in {taken:.2} s, stops of {:.1} ms (99 of 100 below {:.1} ms); read back in {:.2} s",
            "",
            restored.len(),
            bytes / 1_000_000,
            stops[stops.len() / 2].as_secs_f64() * 1e3,
            stops[stops.len() * 99 / 100].as_secs_f64() * 1e3,
            reading.seconds()
        );
    }
}

/// Processor time of this thread: other programs on the machine do not count.
struct Stopwatch(u64);

impl Stopwatch {
    fn start() -> Self {
        Self(Self::nanoseconds())
    }

    fn seconds(&self) -> f64 {
        (Self::nanoseconds() - self.0) as f64 / 1e9
    }

    fn nanoseconds() -> u64 {
        let text = read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }
}

fn resident_bytes() -> u64 {
    let text = read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
