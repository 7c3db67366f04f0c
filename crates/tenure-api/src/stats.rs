//! Numbers over HTTP.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::queues::{Counts, Queue};
use crate::{Namespace, NodeId};

/// `GET /v1/stats`: as the leader counts them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stats {
    /// The namespace.
    pub namespace: Namespace,
    /// Who answers.
    pub node: NodeId,
    /// Who leads.
    pub leader: Option<NodeId>,
    /// Its term.
    pub term: Option<u64>,
    /// Whether the node that answers serves the queue itself.
    pub serving: bool,
    /// Jobs of all queues.
    pub counts: Counts,
    /// How many queues there are.
    #[serde(default)]
    pub queues_total: u64,
    /// Each queue, by name: the first 1,000 of them. `GET /v1/queues` has all, in pages.
    #[serde(default)]
    pub queues: Vec<Queue>,
    /// What happens per second.
    #[serde(default)]
    pub rates: Rates,
    /// The log.
    #[serde(default)]
    pub log: LogStats,
    /// Requests to the storage since this node was started, by kind.
    #[serde(default)]
    pub store: BTreeMap<String, u64>,
}

/// Events per second, over the last seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Rates {
    /// Jobs accepted.
    pub submitted: f64,
    /// Attempts started.
    pub claimed: f64,
    /// Jobs done.
    pub completed: f64,
    /// Attempts that failed.
    pub failed: f64,
}

/// The log, since this process was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LogStats {
    /// The place of the last commit.
    pub position: u64,
    /// How many commits were made.
    pub commits: u64,
    /// How many commands they held.
    pub records: u64,
    /// How many bytes they had.
    pub bytes: u64,
    /// How long they took.
    pub commit_ms: Latency,
    /// Commands that wait for a commit.
    pub waiting: u64,
    /// Commands that were turned away because too many were waiting.
    pub turned_away: u64,
    /// How many snapshots were written.
    pub snapshots: u64,
    /// The place of the last one.
    pub snapshot_position: u64,
    /// How large the log has grown since.
    pub bytes_since_snapshot: u64,
}

/// How long something took, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Latency {
    /// Half were faster.
    pub p50: f64,
    /// All but one in twenty were faster.
    pub p95: f64,
    /// All but one in a hundred were faster.
    pub p99: f64,
}
