//! What happens, as it is told to whoever follows: `GET /v1/events`, server-sent events.
//!
//! Less than the queue's own events: no payload, and never a token. Whoever may read
//! what goes on must not be able to end the claims of others with it. What changed nothing is left out.

use serde::{Deserialize, Serialize};

use crate::{JobId, JobType, QueueName, ScheduleName, State};

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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
