//! The cluster over HTTP: who is there, who leads, and who runs which daemon.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{DaemonId, ElectionName, Incarnation, Namespace, NodeId};

/// `GET /v1/cluster`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cluster {
    /// The namespace.
    pub namespace: Namespace,
    /// Who answers.
    pub node: NodeId,
    /// Who leads the queue.
    pub leader: Option<Leader>,
    /// For how long, by the store's clock or by that of the broker that answers, and not by the leader's. Absent if neither
    /// can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub led_for_ms: Option<u64>,
    /// Whether it may be longer: the broker counts from when it first saw this leader.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub led_for_at_least: bool,
    /// Every election that was ever held.
    #[serde(default)]
    pub elections: Vec<ClusterElection>,
    /// Every session that has not been removed yet.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// Every daemon that is offered or still runs.
    #[serde(default)]
    pub daemons: Vec<Daemon>,
    /// The last terms of the queue's election, oldest first.
    #[serde(default)]
    pub history: Vec<PastTerm>,
}

/// `GET /v1/cluster/plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Plan {
    /// The namespace.
    pub namespace: Namespace,
    /// What the leader would do; empty if there is nothing to do.
    pub decisions: Vec<Decision>,
}

/// One thing that the leader would do about daemons, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Decision {
    /// `define`, `forget`, `assign`, `activate`, `revoke`, `free` or `wait`.
    pub decision: String,
    /// The daemon.
    pub daemon: DaemonId,
    /// Its shard; none if it is about the whole daemon.
    pub shard: Option<u32>,
    /// Where to, or where from.
    pub node: Option<NodeId>,
    /// The shard's generation from then on.
    pub generation: Option<u64>,
    /// Why.
    pub reason: Option<String>,
    /// The whole decision, in words.
    pub text: String,
}

/// Who leads an election.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leader {
    /// The node.
    pub node: NodeId,
    /// The term.
    pub term: u64,
    /// The process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// Where it can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// When its term began, on its own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_at: Option<u64>,
}

/// An election of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterElection {
    /// Its name.
    pub name: ElectionName,
    /// Who leads.
    pub leader: Option<Leader>,
    /// The current term, or the last one.
    pub term: u64,
    /// The candidates, by priority.
    #[serde(default)]
    pub candidates: Vec<NodeId>,
}

/// One process of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    /// Its node.
    pub node: NodeId,
    /// Which start of this process it is.
    pub incarnation: Incarnation,
    /// `alive`, `gone` or `evicted`.
    pub state: String,
    /// Where it can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The software it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The most work it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// When it joined, on its own clock.
    pub joined_at: u64,
    /// How long it may be silent before others evict it.
    pub ttl_ms: u64,
    /// It is drained: it gets no daemons.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// It is about to leave.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub going: bool,
}

/// A daemon and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Daemon {
    /// Its name.
    pub daemon: DaemonId,
    /// What each of its shards takes of a node's capacity.
    pub weight: u32,
    /// By number; more than are wanted while it shrinks.
    pub shards: Vec<DaemonShard>,
}

/// One shard, or one replica, of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DaemonShard {
    /// Its number, from 0.
    pub index: u32,
    /// `unassigned`, `assigning`, `active` or `revoking`; `failing` if it has failed more than once and has not run for a
    /// minute since.
    pub state: String,
    /// Who is to run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The number of its assignment: its fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// When it entered its state, on the leader's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_at: Option<u64>,
    /// What the node reported, if it failed; if it keeps failing, the latest failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often it has failed since it last ran for a minute.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde wants"
)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A term that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PastTerm {
    /// Its number.
    pub term: u64,
    /// Who led.
    pub node: NodeId,
    /// When it began, on the leader's clock.
    pub since_at: u64,
    /// When its end was written, on the writer's clock.
    pub until_at: u64,
    /// Why it ended.
    pub reason: String,
    /// How long it lasted, measured by one clock; `since_at` and `until_at` may come from two hosts. Absent if the node that
    /// recorded its end did not see it begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasted_ms: Option<u64>,
    /// How long there was no leader after it, measured by one clock. Absent if the next leader did not see it end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vacant_ms: Option<u64>,
}

/// `POST /v1/leader/resign`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResignRequest {}

/// `POST /v1/leader/transfer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransferRequest {
    /// The new leader: a live candidate.
    pub node: NodeId,
}
