//! What happens, as it is told to whoever follows: `GET /v1/events`, server-sent events.
//!
//! Less than the queue's own [`Event`](queue::Event)s: no payload, and never a token. Whoever may read
//! what goes on must not be able to end the claims of others with it. What changed nothing is left out.

use serde::{Deserialize, Serialize};

use crate::queue::{self, State};
use crate::{JobId, JobType, QueueName, ScheduleName};

/// The name of the event that stands for others that were not told: after a reconnect (with `Last-Event-ID`),
/// or since the follower was too slow. What was read before may be out of date, so read it again.
pub const RESET: &str = "reset";

/// `GET /v1/events`: which events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema, utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields, default)]
pub struct EventsQuery {
    /// Only of this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Only events of this name.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// What happened: `submitted`, `claimed`, `completed`, `failed`, `died`, `cancelled`, …, or `reset`.
    pub event: String,
    /// When, on the broker's clock; 0 in a `reset`.
    #[serde(default)]
    pub at: u64,
    /// The commit that made it so; 0 in a `reset`.
    #[serde(default)]
    pub position: u64,
    /// The job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// Its queue, or the one that was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// The job's type, where it is known.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub job_type: Option<JobType>,
    /// The state that it was submitted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The attempt that started or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the next attempt may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<u64>,
    /// The schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleName>,
    /// The schedule's next slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<u64>,
}

impl Event {
    /// An event that says only that it happened.
    #[must_use]
    pub fn new(event: &str, at: u64, position: u64) -> Self {
        Self {
            event: event.to_owned(),
            at,
            position,
            id: None,
            queue: None,
            job_type: None,
            state: None,
            attempt: None,
            run_at: None,
            schedule: None,
            next_at: None,
        }
    }

    /// What followers are told of an event of the queue; nothing if it changed nothing.
    #[must_use]
    pub fn of(event: &queue::Event, at: u64, position: u64) -> Option<Self> {
        use queue::Event as Queue;
        let new = |name| Self::new(name, at, position);
        let job = |name, id: &JobId, queue: &QueueName| Self {
            id: Some(id.clone()),
            queue: Some(queue.clone()),
            ..new(name)
        };
        let queue = |name, queue: &QueueName| Self {
            queue: Some(queue.clone()),
            ..new(name)
        };
        let schedule = |name, schedule: &ScheduleName, next| Self {
            schedule: Some(schedule.clone()),
            next_at: next,
            ..new(name)
        };
        Some(match event {
            Queue::Submitted {
                id,
                queue,
                state,
                sequence: _,
            } => Self {
                state: Some(*state),
                ..job("submitted", id, queue)
            },
            Queue::Claimed(claimed) => Self {
                job_type: Some(claimed.job_type.clone()),
                attempt: Some(claimed.attempt),
                ..job("claimed", &claimed.id, &claimed.queue)
            },
            Queue::Completed { id, queue, .. } => job("completed", id, queue),
            Queue::Failed {
                id,
                queue,
                attempt,
                run_at,
                ..
            } => Self {
                attempt: Some(*attempt),
                run_at: Some(*run_at),
                ..job("failed", id, queue)
            },
            Queue::Died {
                id, queue, attempt, ..
            } => Self {
                attempt: Some(*attempt),
                ..job("died", id, queue)
            },
            Queue::Released { id, queue, .. } => job("released", id, queue),
            Queue::Cancelled { id, queue, .. } => job("cancelled", id, queue),
            Queue::CancelRequested { id } => Self {
                id: Some(id.clone()),
                ..new("cancel_requested")
            },
            Queue::Retried { id, queue } => job("retried", id, queue),
            Queue::Forgotten { id } => Self {
                id: Some(id.clone()),
                ..new("forgotten")
            },
            Queue::Ready {
                id,
                queue,
                job_type,
            } => Self {
                job_type: Some(job_type.clone()),
                ..job("ready", id, queue)
            },
            Queue::QueueSet { queue: name } => queue("queue_set", name),
            Queue::Paused { queue: name } => queue("paused", name),
            Queue::Resumed { queue: name } => queue("resumed", name),
            Queue::ScheduleSet {
                schedule: name,
                next,
            } => schedule("schedule_set", name, *next),
            Queue::ScheduleDeleted {
                schedule: name,
                existed: true,
            } => schedule("schedule_deleted", name, None),
            Queue::Fired {
                schedule: name,
                next,
                ..
            } => schedule("fired", name, *next),
            Queue::SlotFired {
                schedule: name,
                id,
                created: true,
            } => Self {
                id: Some(id.clone()),
                ..schedule("slot_fired", name, None)
            },
            Queue::Configured => new("configured"),
            Queue::TimeSet { .. } => new("time_set"),
            Queue::Duplicate { .. }
            | Queue::Refused { .. }
            | Queue::Lost { .. }
            | Queue::FiringStale { .. }
            | Queue::ScheduleDeleted { existed: false, .. }
            | Queue::SlotFired { created: false, .. } => return None,
        })
    }
}
