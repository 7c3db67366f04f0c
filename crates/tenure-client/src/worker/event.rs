//! What happens to each job of a worker, for its listeners.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_api::{Claimed, JobId, JobType, QueueName};

/// One attempt at a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The job.
    pub id: JobId,
    /// Its type.
    pub job_type: JobType,
    /// Its queue.
    pub queue: QueueName,
    /// Which attempt, from 1.
    pub attempt: u32,
}

/// What has become of a job: see [`WorkerBuilder::on_event`](super::WorkerBuilder::on_event).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerEvent {
    /// Its handler is about to begin.
    Claimed(Attempt),
    /// The broker has noted that it is done.
    Completed(Attempt),
    /// The broker has noted that the attempt failed.
    Failed(Attempt),
    /// It was handed back: the worker stops, or has no room for it.
    Released(Attempt),
    /// The claim was lost, or its end was refused or could not be told: somebody else may run it.
    Lost(Attempt),
}

pub(super) type Listener = Box<dyn Fn(&WorkerEvent) + Send + Sync>;

impl From<&Claimed> for Attempt {
    fn from(claimed: &Claimed) -> Self {
        Self {
            id: claimed.id.clone(),
            job_type: claimed.job_type.clone(),
            queue: claimed.queue.clone(),
            attempt: claimed.attempt,
        }
    }
}

/// Tells all. A listener that panics is the user's code, and changes nothing about a job.
pub(super) fn tell(listeners: &[Listener], event: &WorkerEvent) {
    for listener in listeners {
        if catch_unwind(AssertUnwindSafe(|| listener(event))).is_err() {
            tracing::error!("a listener of the worker panicked");
        }
    }
}
