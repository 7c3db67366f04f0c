//! Events: what came of a command. They answer its caller, and feed whoever follows the queue.
//!
//! Each item of a batch has exactly one answer, and answers stand in the order of the items. Between and
//! after them stand consequences: jobs that became ready because time went on or their group moved on.
//! [`Event::is_answer`] tells them apart.

use serde::{Deserialize, Serialize};

use super::job::{Key, Payload, State, Token};
use super::trace::{Traceparent, Tracestate};
use crate::{JobId, JobType, QueueName, ScheduleName};

/// One thing that happened, or that was refused.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields named alike mean the same: see JobView")]
pub enum Event {
    /// The job was enqueued.
    Submitted {
        id: JobId,
        queue: QueueName,
        sequence: u64,
        state: State,
    },
    /// Nothing was enqueued, since `existing` is the same: the very job (same id, same content), or one
    /// that holds the unique key.
    Duplicate { id: JobId, existing: JobId },
    /// Nothing was done.
    Refused { id: JobId, refusal: Refusal },
    /// The caller holds the job now.
    Claimed(Box<Claimed>),
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
    /// The token is not, or no longer, the one that holds the job. Nothing was done.
    Lost { id: JobId, reason: Lost },
    /// The job runs again, or sooner.
    Retried { id: JobId, queue: QueueName },
    /// The job is gone.
    Forgotten { id: JobId },
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
    /// The schedule is gone, or never was.
    ScheduleDeleted {
        schedule: ScheduleName,
        existed: bool,
    },
    /// The schedule's slots were enqueued, or given up as its missed-run policy says.
    Fired {
        schedule: ScheduleName,
        slots: u64,
        next: Option<u64>,
    },
    /// The plan was made for another state of the schedule; nothing was done.
    FiringStale { schedule: ScheduleName },
    /// The settings are set.
    Configured,
    /// The queue's time is set.
    TimeSet { from: u64, to: u64 },
    /// Consequence: the job may be claimed from now on.
    Ready {
        id: JobId,
        queue: QueueName,
        job_type: JobType,
    },
    /// Consequence: a schedule's slot became a job, or found it there.
    SlotFired {
        schedule: ScheduleName,
        id: JobId,
        created: bool,
    },
}

impl Event {
    /// Whether this answers an item of the command.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        !matches!(self, Event::Ready { .. } | Event::SlotFired { .. })
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

/// A job as its worker gets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Claimed {
    /// The job.
    pub id: JobId,
    /// What ends, renews and proves the claim.
    pub token: Token,
    /// Where it waited.
    pub queue: QueueName,
    /// What kind of work it is.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// What was submitted.
    pub payload: Payload,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// After how many it is dead.
    pub max_attempts: u32,
    /// Its priority.
    pub priority: i8,
    /// Its ordering group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Key>,
    /// When it was submitted.
    pub created_at: u64,
    /// How long the claim lasts without a heartbeat.
    pub lease_ms: u32,
    /// The span that it was submitted in: the parent of what is done for it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Traceparent>,
    /// What goes with that span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<Tracestate>,
}

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Refusal {
    /// The id is that of a job with other content.
    Conflict,
    /// There are as many jobs as the settings allow.
    Full,
    /// There is no such job, or it was forgotten.
    NotFound,
    /// A job in this state cannot be cancelled, retried or forgotten.
    State {
        /// Its state.
        state: State,
    },
    /// Another job holds its unique key now.
    UniqueKey {
        /// That job.
        existing: JobId,
    },
}

/// Why a token holds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Lost {
    /// There is no such job, or it was forgotten.
    NotFound,
    /// The lease ran out. The attempt counts as failed.
    Expired,
    /// The job is not running: it waits for another attempt, or has finished.
    NotRunning {
        /// Its state.
        state: State,
    },
    /// Another claim holds the job.
    Superseded {
        /// Its attempt.
        attempt: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_flat_objects_that_name_themselves() {
        let claimed = Event::Claimed(Box::new(Claimed {
            id: JobId::new("a").unwrap(),
            token: Token {
                number: 1,
                nonce: 2,
            },
            queue: QueueName::new("q").unwrap(),
            job_type: JobType::new("t").unwrap(),
            payload: Payload::new("{\"n\":1.0}").unwrap(),
            attempt: 1,
            max_attempts: 2,
            priority: 0,
            group: None,
            created_at: 3,
            lease_ms: 4,
            traceparent: None,
            tracestate: None,
        }));
        assert_eq!(
            serde_json::to_string(&claimed).unwrap(),
            r#"{"event":"claimed","id":"a","token":"1-00000002","queue":"q","type":"t","payload":{"n":1.0},"attempt":1,"max_attempts":2,"priority":0,"created_at":3,"lease_ms":4}"#
        );
        let lost = Event::Lost {
            id: JobId::new("a").unwrap(),
            reason: Lost::Superseded { attempt: 2 },
        };
        assert_eq!(
            serde_json::to_string(&lost).unwrap(),
            r#"{"event":"lost","id":"a","reason":{"code":"superseded","attempt":2}}"#
        );
    }
}
