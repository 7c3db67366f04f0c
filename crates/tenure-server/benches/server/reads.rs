//! What reads cost: a broker with many queues and jobs, first idle, then with each read repeated while another client
//! submits.
//!
//! Also measured: setting the queue's time forward by a day and back again, when all delayed jobs become due or have to
//! be checked.
//!
//! `JOBS=N` and `QUEUES=N` set how many there are (default: 1,000,000 in 50,000), `SECONDS=N` how long each read is
//! repeated.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::calls::Connection;
use super::servers::Servers;
use super::{goal, number};

const READ_GOAL: Duration = Duration::from_secs(1);
const SUBMIT_GOAL: Duration = Duration::from_millis(50);
const IDLE_GOAL: f64 = 0.02;

/// How long the idle broker is watched.
const IDLE: Duration = Duration::from_secs(10);

/// How often another client submits a job during the reads.
const EVERY: Duration = Duration::from_millis(5);

/// Every read whose cost may depend on how much is stored.
const READS: [(&str, &str); 29] = [
    ("jobs", "/v1/jobs?limit=1000"),
    ("jobs, newest", "/v1/jobs?limit=1000&order=newest"),
    ("jobs, in the middle", "/v1/jobs?limit=1000&after=500000"),
    ("ready", "/v1/jobs?limit=1000&state=ready&order=newest"),
    ("scheduled", "/v1/jobs?limit=1000&state=scheduled"),
    ("running", "/v1/jobs?limit=1000&state=running"),
    ("completed", "/v1/jobs?limit=1000&state=completed"),
    ("dead", "/v1/jobs?limit=1000&state=dead"),
    ("cancelled", "/v1/jobs?limit=1000&state=cancelled"),
    ("of a queue", "/v1/jobs?limit=1000&queue=queue-000777"),
    ("of a type", "/v1/jobs?limit=1000&type=type-3"),
    ("of a rare type", "/v1/jobs?limit=1000&type=rare"),
    (
        "of a rare type, dead",
        "/v1/jobs?limit=1000&type=rare&state=dead",
    ),
    ("search", "/v1/jobs?limit=100&search=nowhere"),
    (
        "search, dead, newest",
        "/v1/jobs?limit=100&search=nowhere&state=dead&order=newest",
    ),
    ("queues", "/v1/queues"),
    ("queues, further on", "/v1/queues?after=queue-030000"),
    ("a queue", "/v1/queues/queue-000777"),
    ("schedules", "/v1/schedules"),
    ("stats", "/v1/stats"),
    ("metrics", "/metrics"),
    ("cluster", "/v1/cluster"),
    ("dashboard, queues", "/v1/dashboard/queues"),
    ("dashboard, node", "/v1/dashboard/node"),
    ("dashboard, series", "/v1/dashboard/series"),
    ("dashboard, sparks", "/v1/dashboard/sparks"),
    ("dashboard, jobs", "/v1/dashboard/jobs?state=dead"),
    ("osqueue, jobs", "/osqueue/v1/jobs"),
    ("osqueue, state", "/osqueue/state"),
];

pub(crate) async fn run(servers: &mut Servers) {
    let (jobs, queues) = (number("JOBS", 1_000_000), number("QUEUES", 50_000));
    let started = Instant::now();
    servers.fill(jobs, queues);
    println!(
        "{jobs} jobs in {queues} queues, after {:.0?}; {} MiB",
        started.elapsed(),
        servers.figures().memory / (1 << 20),
    );
    idle(servers).await;
    let time = Duration::from_secs(number("SECONDS", 3));
    let (address, mut worst) = (servers.ours, Worst::default());
    let alone = submits_beside(address, time, None).await;
    println!(
        "{:<22} {:>17} | submit p99 {:>8.1?}, worst {:>8.1?}",
        "nothing", "", alone.p99, alone.worst
    );
    for (name, path) in READS {
        let beside = submits_beside(address, time, Some(path)).await;
        println!(
            "{name:<22} {:>4} reads, {:>8.1?} | submit p99 {:>8.1?}, worst {:>8.1?}",
            beside.reads.len(),
            beside.slowest(),
            beside.p99,
            beside.worst,
        );
        worst.note(name, &beside);
    }
    let worst_set = time_is_set_beside(address).await;
    let (name, read) = worst.read;
    let what = format!("every read in 1 s; the slowest, {name}, took {read:.1?}");
    goal(&what, read < READ_GOAL);
    let (name, submit) = worst.submit;
    let what = format!("no submit waits 50 ms beside a read; the slowest, {name}, {submit:.1?}");
    goal(&what, submit < SUBMIT_GOAL);
    let what = format!("no submit waits 50 ms while the time is set; the slowest, {worst_set:.1?}");
    goal(&what, worst_set < SUBMIT_GOAL);
}

/// Sets the queue's time while another client submits. Returns the longest time that a submit took.
async fn time_is_set_beside(address: SocketAddr) -> Duration {
    let second = |ahead: i64| {
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        i64::try_from(now.as_millis()).unwrap() + ahead * 1_000
    };
    let mut worst = Duration::default();
    // Back to before anything was due, then forward until everything is, then back to the present.
    for ahead in [-7_200, 90_000, 0] {
        let set = tokio::spawn(async move {
            let body = format!(r#"{{"to":{}}}"#, second(ahead));
            let sent = Instant::now();
            Connection::open(address).await.put("/v1/time", &body).await;
            sent.elapsed()
        });
        let beside = submits_beside(address, Duration::from_secs(10), None).await;
        println!(
            "time set by {ahead:>6} s, {:>8.1?} | submit p99 {:>8.1?}, worst {:>8.1?}",
            set.await.unwrap(),
            beside.p99,
            beside.worst,
        );
        worst = worst.max(beside.worst);
    }
    worst
}

#[derive(Default)]
struct Worst {
    read: (&'static str, Duration),
    submit: (&'static str, Duration),
}

impl Worst {
    fn note(&mut self, name: &'static str, beside: &Beside) {
        if beside.slowest() > self.read.1 {
            self.read = (name, beside.slowest());
        }
        if beside.worst > self.submit.1 {
            self.submit = (name, beside.worst);
        }
    }
}

/// Measures the idle broker.
async fn idle(servers: &mut Servers) {
    // A snapshot of the jobs that were just added may be under way.
    let mut used = servers.figures().processor;
    let mut share = 1.0;
    for _ in 0..6 {
        tokio::time::sleep(IDLE).await;
        let now = servers.figures().processor;
        share = (now - used).as_secs_f64() / IDLE.as_secs_f64();
        used = now;
        println!("idle: {:.2} % of a core", 100.0 * share);
        if share < IDLE_GOAL {
            break;
        }
    }
    goal("an idle broker takes 2 % of a core", share < IDLE_GOAL);
}

struct Beside {
    reads: Vec<Duration>,
    p99: Duration,
    worst: Duration,
}

impl Beside {
    fn slowest(&self) -> Duration {
        self.reads.iter().copied().max().unwrap_or_default()
    }
}

/// Submits a job every few milliseconds, while another client makes one read after the other.
async fn submits_beside(address: SocketAddr, time: Duration, path: Option<&'static str>) -> Beside {
    let end = Arc::new(AtomicBool::new(false));
    let reads = path.map(|path| {
        let end = end.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            while !end.load(Ordering::Relaxed) {
                let sent = Instant::now();
                let mut reader = Connection::open(address).await;
                reader.read(path).await;
                times.push(sent.elapsed());
            }
            times
        })
    });
    let mut connection = Connection::open(address).await;
    let request = connection.request("/v1/jobs", super::JOB);
    let mut ticks = tokio::time::interval(EVERY);
    let mut times = Vec::new();
    let until = Instant::now() + time;
    while Instant::now() < until {
        ticks.tick().await;
        let sent = Instant::now();
        connection.call(&request).await;
        times.push(sent.elapsed());
    }
    end.store(true, Ordering::Relaxed);
    let reads = match reads {
        Some(reads) => reads.await.unwrap(),
        None => Vec::new(),
    };
    times.sort_unstable();
    Beside {
        reads,
        p99: times[times.len() * 99 / 100],
        worst: times[times.len() - 1],
    }
}

/// Fills the broker; called in its own process.
pub(crate) async fn fill(queue: &tenure::queue::Queue, jobs: u64, queues: u64) {
    use tenure_core::queue::{Completion, Missed, ScheduleSpec, Submission};
    use tenure_core::{JobType, QueueName, ScheduleName};
    let job = |number: u64| {
        let job_type = match number % 10_007 {
            0 => "rare".to_owned(),
            _ => format!("type-{}", number / queues % 5),
        };
        let mut job = Submission::new(JobType::new(job_type).unwrap());
        job.queue = QueueName::new(format!("queue-{:06}", number % queues)).unwrap();
        let payload = format!(r#"{{"to":"user-{number}@example.com","subject":"hello"}}"#);
        job.payload = serde_json::from_str(&payload).unwrap();
        // A tenth is delayed, some have ended, most wait.
        job.delay_ms = (number % 10 == 7).then_some(86_400_000);
        job
    };
    let numbers: Vec<u64> = (0..jobs).collect();
    for (turn, numbers) in numbers.chunks(1_000).enumerate() {
        let events = queue.submit(numbers.iter().map(|&number| job(number)).collect());
        events.await.unwrap();
        if turn % 10 > 0 {
            continue;
        }
        // Some have ended in each way, and some run.
        let worker = tenure_core::queue::Key::new("bench").unwrap();
        let mut claim = tenure_api::ClaimRequest::new(worker);
        (claim.max, claim.lease_ms) = (500, 3_600_000);
        let claimed = queue.claim(claim).await.unwrap();
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for (place, job) in claimed.into_iter().enumerate() {
            let (id, token) = (job.id, job.token);
            match place % 10 {
                0 => {}
                1 => failed.push(tenure_core::queue::Failure {
                    id,
                    token,
                    error: Some("no".into()),
                    retry_in_ms: None,
                    permanent: true,
                }),
                _ => done.push(Completion {
                    id,
                    token,
                    result: None,
                }),
            }
        }
        queue.complete(done).await.unwrap();
        queue.fail(failed).await.unwrap();
    }
    for number in 0..1_000 {
        let name = ScheduleName::new(format!("schedule-{number:04}")).unwrap();
        let spec = ScheduleSpec {
            cron: format!("{} {} * * *", number % 60, number % 24),
            timezone: "UTC".to_owned(),
            missed: Missed::Skip,
            run_on_start: false,
            job: Submission::new(JobType::new("nightly").unwrap()),
        };
        queue.set_schedule(name, spec).await.unwrap();
    }
}

/// The memory of this process, in bytes.
pub(crate) fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text
        .split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    pages * rustix::param::page_size() as u64
}
