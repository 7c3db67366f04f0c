//! What happens, as server-sent events: `GET /v1/events`.
//!
//! Less than the queue's own events: no payload, and never a token. A client that may read
//! what goes on must not be able to end the claims of others with it. What changed nothing is left out.

use serde::{Deserialize, Serialize};

use crate::{
    DaemonId, ElectionName, Incarnation, JobId, JobType, NodeId, QueueName, ScheduleName, State,
};

/// The name of the event that stands for others that were not told: after a reconnect (with `Last-Event-ID`) to a broker
/// that does not keep them any more or has just begun to lead, or since the follower was too slow. What was read before
/// may be out of date, so read it again.
pub const RESET: &str = "reset";

/// The kinds of events: the first three are of the queue, the others of the cluster.
pub const EVENT_KINDS: [&str; 6] = ["job", "queue", "schedule", "leader", "node", "daemon"];

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
    /// Only of these kinds, separated by commas: `job`, `queue`, `schedule`, `leader`, `node`, `daemon`. The
    /// default is the first three. Events of the last three kinds start with the current state (`initial`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<String>,
}

/// One thing that happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// What happened: `submitted`, `claimed`, `completed`, `failed`, `died`, `cancelled`, …; `leader_elected`, `leader_lost`,
    /// `node_joined`, `node_left`, `node_evicted`, `daemon_assigned`, `daemon_started`, `daemon_revoked`, `daemon_stopped`,
    /// `daemon_failed`; or `reset`.
    pub event: String,
    /// When, on the broker's clock; 0 in a `reset`.
    #[serde(default)]
    pub at: u64,
    /// The commit that made it so; absent if it is not about the queue.
    #[serde(default, skip_serializing_if = "is_zero")]
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
    /// Part of the current state that a stream starts with; it may have happened long ago.
    #[serde(default, skip_serializing_if = "is_false")]
    pub initial: bool,
    /// The election that has a leader, or lost it: `tenure.queue` or `tenure.cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub election: Option<ElectionName>,
    /// In which term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// The node that leads, joined, left or was evicted, or that has the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Which start of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// Where to reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<DaemonId>,
    /// Its shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// The shard's generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why there is a `reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(position: &u64) -> bool {
    *position == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}
