//! Events: what happened, for everyone who follows the queue. What a caller is answered is an
//! [`Answer`](super::Answer); a command that changes nothing has an answer and no event.
//!
//! They stand in the order in which things happened. After what a command did to its own jobs stand the
//! consequences: jobs that became ready because time went on or their group moved on.

use super::{Claimed, State, Token};
use crate::{JobId, JobType, QueueName, ScheduleName};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "fields named alike mean the same: see tenure_api::Job"
)]
pub enum Event {
    /// The job was enqueued.
    Submitted {
        id: JobId,
        queue: QueueName,
        sequence: u64,
        state: State,
    },
    /// A worker holds the job now.
    Claimed {
        id: JobId,
        token: Token,
        queue: QueueName,
        job_type: JobType,
        attempt: u32,
        lease_ms: u32,
    },
    /// Done. The claim with this token has ended.
    Completed {
        id: JobId,
        token: Token,
        queue: QueueName,
    },
    /// An attempt failed; the next may start at `run_at`. The claim has ended.
    Failed {
        id: JobId,
        token: Token,
        queue: QueueName,
        attempt: u32,
        run_at: u64,
    },
    /// The last attempt failed. The claim has ended.
    Died {
        id: JobId,
        token: Token,
        queue: QueueName,
        attempt: u32,
    },
    /// Handed back: the attempt does not count. The claim has ended.
    Released {
        id: JobId,
        token: Token,
        queue: QueueName,
    },
    /// Given up. If it was running, that claim has ended.
    Cancelled {
        id: JobId,
        token: Option<Token>,
        queue: QueueName,
    },
    /// The job runs; its worker will be told.
    CancelRequested { id: JobId },
    /// The job runs again, or sooner.
    Retried { id: JobId, queue: QueueName },
    /// The job waits in the queue `to` from now on, or is kept there if it has finished.
    Moved {
        id: JobId,
        from: QueueName,
        to: QueueName,
    },
    /// The job is gone.
    Forgotten { id: JobId },
    /// The job may be claimed from now on.
    Ready {
        id: JobId,
        queue: QueueName,
        job_type: JobType,
    },
    /// The queue's limits are set.
    QueueSet { queue: QueueName },
    /// The queue is paused.
    Paused { queue: QueueName },
    /// The queue is open.
    Resumed { queue: QueueName },
    /// The schedule is set; it next fires at `next`.
    ScheduleSet {
        schedule: ScheduleName,
        next: Option<u64>,
    },
    /// The schedule is gone.
    ScheduleDeleted { schedule: ScheduleName },
    /// The schedule makes no jobs until it is resumed.
    SchedulePaused { schedule: ScheduleName },
    /// The schedule makes jobs again, the first one at `next`.
    ScheduleResumed {
        schedule: ScheduleName,
        next: Option<u64>,
    },
    /// The schedule's slots were enqueued, or given up as its missed-run policy says.
    Fired {
        schedule: ScheduleName,
        slots: u64,
        next: Option<u64>,
    },
    /// A schedule's slot became a job, or found it there.
    SlotFired {
        schedule: ScheduleName,
        id: JobId,
        created: bool,
    },
    /// The settings are set.
    Configured,
    /// The queue's time is set.
    TimeSet { from: u64, to: u64 },
}

impl Event {
    pub(crate) fn claimed(claimed: &Claimed) -> Self {
        Event::Claimed {
            id: claimed.id.clone(),
            token: claimed.token,
            queue: claimed.queue.clone(),
            job_type: claimed.job_type.clone(),
            attempt: claimed.attempt,
            lease_ms: claimed.lease_ms,
        }
    }

    /// The claim that ended with this, if one did.
    #[must_use]
    pub const fn ended_claim(&self) -> Option<Token> {
        match self {
            Event::Completed { token, .. }
            | Event::Released { token, .. }
            | Event::Failed { token, .. }
            | Event::Died { token, .. } => Some(*token),
            Event::Cancelled { token, .. } => *token,
            _ => None,
        }
    }
}
