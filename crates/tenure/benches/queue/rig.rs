//! A queue that is served, callers for it, and clocks.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::queue::{ClaimRequest, Completion, Key, Payload, Submission};
use tenure::core::{JobId, JobType};
use tenure::queue::{Config, Options, Queue};
use tenure::store::Store;
use tenure::{Node, NodeOptions};

pub(crate) const CALLERS: usize = 64;
pub(crate) const PAYLOAD_BYTES: usize = 94;

/// A queue, and the node that it is served by.
pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) queue: Queue,
}

impl Rig {
    pub(crate) async fn open(store: Arc<dyn Store>, log: Config) -> Self {
        let node = Node::start_with(store, NodeOptions::new("", "bench"))
            .await
            .unwrap();
        let options = Options {
            log,
            ..Options::default()
        };
        let queue = Queue::open(&node, options).await.unwrap();
        queue.serving().await.unwrap();
        Self { node, queue }
    }

    pub(crate) async fn close(self) {
        self.queue.close().await;
        self.node.shutdown().await;
    }

    /// Lets so many jobs wait, in batches.
    pub(crate) async fn fill(&self, jobs: &mut Jobs, count: usize) {
        let mut left = count;
        while left > 0 {
            let batch = left.min(1000);
            left -= batch;
            self.queue.submit(jobs.take(batch)).await.unwrap();
        }
    }

    /// Independent callers, each with its own jobs: submit one, claim one, complete it.
    pub(crate) async fn cycles(&self, jobs: Vec<Vec<Submission>>) {
        let mut callers = Vec::new();
        for (number, mine) in jobs.into_iter().enumerate() {
            let queue = self.queue.clone();
            let claim = ClaimRequest::new(Key::new(format!("worker-{number}")).unwrap());
            callers.push(tokio::spawn(async move {
                for job in mine {
                    queue.submit(vec![job]).await.unwrap();
                    let mut claimed = Vec::new();
                    while claimed.is_empty() {
                        let wait = Duration::from_secs(60);
                        claimed = queue.claim(claim.clone().waiting(wait)).await.unwrap();
                    }
                    let done = |job: tenure::core::queue::Claimed| Completion {
                        id: job.id,
                        token: job.token,
                        result: None,
                    };
                    let done = claimed.into_iter().map(done).collect();
                    queue.complete(done).await.unwrap();
                }
            }));
        }
        for caller in callers {
            caller.await.unwrap();
        }
    }
}

/// Makes jobs.
pub(crate) struct Jobs {
    made: u64,
    job_type: JobType,
    payload: Payload,
}

impl Jobs {
    pub(crate) fn new(payload_bytes: usize) -> Self {
        let payload = format!("\"{}\"", "x".repeat(payload_bytes - 2));
        Self {
            made: 0,
            job_type: JobType::new("mail").unwrap(),
            payload: Payload::new(payload).unwrap(),
        }
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<Submission> {
        (0..count).map(|_| self.one()).collect()
    }

    /// As many in all, for so many callers.
    pub(crate) fn split(&mut self, count: usize, callers: usize) -> Vec<Vec<Submission>> {
        (0..callers).map(|_| self.take(count / callers)).collect()
    }

    pub(crate) fn one(&mut self) -> Submission {
        self.made += 1;
        // As long as a UUID, and as unordered.
        let mixed = self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let id = format!("{mixed:016x}-0000-4000-a000-{:010}", self.made);
        Submission {
            id: Some(JobId::new(id).unwrap()),
            payload: self.payload.clone(),
            ..Submission::new(self.job_type.clone())
        }
    }
}

/// A configuration under which no snapshot is ever due.
pub(crate) fn without_snapshots() -> Config {
    Config {
        snapshot_bytes_min: u64::MAX,
        ..Config::default()
    }
}

/// A folder beside the build output, which is on a real disk where a temporary folder may not be.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap()
}

/// A runtime of one thread: what is measured is work, not how it is spread.
pub(crate) fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

/// The processor time of this process, all threads.
pub(crate) fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// What of this process is in memory.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// The value below which so many of a hundred are.
pub(crate) fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * percent / 100]
}
