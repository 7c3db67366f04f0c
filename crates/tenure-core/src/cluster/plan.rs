//! What the leader decides, and why, in words.

use std::fmt;
use std::time::Duration;

use super::record::{Generation, Shard};
use super::report::{Count, Definition};
use crate::session::Holder;
use crate::session::observer::End;
use crate::{DaemonId, NodeId};

/// One decision. Displays as one line with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Decision {
    /// This definition takes effect.
    Define {
        /// The daemon.
        daemon: DaemonId,
        /// The definition.
        definition: Definition,
    },
    /// No node offers the daemon, and nothing of it is left.
    Forget {
        /// The daemon.
        daemon: DaemonId,
    },
    /// The shard is assigned to a node.
    Assign {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
        /// The node.
        to: Holder,
        /// Why there.
        reason: Reason,
    },
    /// The node has reported it running.
    Activate {
        /// The shard.
        shard: Shard,
        /// The node.
        on: NodeId,
    },
    /// The node has to end it.
    Revoke {
        /// The shard.
        shard: Shard,
        /// The node.
        from: NodeId,
        /// Why.
        reason: Reason,
    },
    /// The shard is free.
    Free {
        /// The shard.
        shard: Shard,
        /// The session that had it.
        from: Holder,
        /// Why.
        reason: Reason,
    },
    /// Nothing can be done yet.
    Wait {
        /// The shard.
        shard: Shard,
        /// Why.
        reason: Reason,
    },
}

/// Why something is decided.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No other node that may run it has less load.
    LeastLoaded {
        /// Its load before.
        load: u64,
    },
    /// Its node is back.
    Returned,
    /// Moving it brings the loads closer together.
    Balance {
        /// Where it goes, as far as can be said now.
        to: NodeId,
        /// The loads of both nodes before.
        loads: (u64, u64),
    },
    /// An operator wants the node free.
    Drained,
    /// The node did not acknowledge it in time.
    NotAcknowledged,
    /// The node acknowledged it, but the daemon did not start in time.
    NotStarted,
    /// The node does not offer the daemon.
    NotOffered,
    /// The node lacks a label that the daemon requires.
    LabelMissing,
    /// The daemon has fewer shards now.
    Surplus,
    /// The daemon has a different number of shards now.
    CountChanged,
    /// Shards of the former number have not all ended.
    FormerCount,
    /// The node cannot end it, and keeps it.
    Stuck {
        /// What the node says.
        error: String,
    },
    /// The session of the node has ended.
    SessionEnded(End),
    /// The node has ended it.
    Stopped,
    /// The daemon could not start, or ended on its own.
    Failed {
        /// What the node says.
        error: String,
    },
    /// The node did not confirm its end in time; it no longer trusts itself with it.
    Unanswered,
    /// The node has to drain it.
    Draining {
        /// Where it goes next, as far as can be said now.
        to: Option<NodeId>,
    },
    /// The node is restarting, and its shards are kept for it.
    Restarting,
    /// The node is leaving and drains it without being told.
    Leaving,
    /// It is not known yet whether the node is there.
    SessionUnknown,
    /// No live node offers the daemon.
    NoNode,
    /// No live node that offers the daemon has the labels it requires.
    NoLabels,
    /// An operator drains every node that offers the daemon and has the labels it requires.
    AllDrained,
    /// Every node that may run it has failed to recently.
    PassedOver,
    /// Every node that may run it has a replica.
    ReplicaEverywhere,
    /// Every node that may run it is full.
    NoRoom,
    /// The assignments were lost; whatever nodes still run from them has to end first.
    Lost {
        /// How long that takes at most.
        for_at_most: Duration,
    },
}

impl Decision {
    /// Whether this only records what is true already, and can wait for the next write.
    pub(crate) fn can_wait(&self) -> bool {
        matches!(self, Decision::Activate { .. })
    }

    /// Whether this changes anything.
    pub(crate) fn changes(&self) -> bool {
        !matches!(self, Decision::Wait { .. })
    }
}

/// As it is shown over HTTP and with `--json`.
impl From<&Decision> for tenure_api::Decision {
    fn from(of: &Decision) -> Self {
        let (decision, node, generation, reason) = match of {
            Decision::Define { .. } => ("define", None, None, None),
            Decision::Forget { .. } => ("forget", None, None, None),
            Decision::Assign {
                generation,
                to,
                reason,
                ..
            } => ("assign", Some(&to.node), Some(generation.0), Some(reason)),
            Decision::Activate { on, .. } => ("activate", Some(on), None, None),
            Decision::Revoke { from, reason, .. } => ("revoke", Some(from), None, Some(reason)),
            Decision::Free { from, reason, .. } => ("free", Some(&from.node), None, Some(reason)),
            Decision::Wait { reason, .. } => ("wait", None, None, Some(reason)),
        };
        let (daemon, shard) = match of {
            Decision::Define { daemon, .. } | Decision::Forget { daemon } => (daemon, None),
            Decision::Assign { shard, .. }
            | Decision::Activate { shard, .. }
            | Decision::Revoke { shard, .. }
            | Decision::Free { shard, .. }
            | Decision::Wait { shard, .. } => (&shard.daemon, Some(shard.index)),
        };
        Self {
            decision: decision.to_owned(),
            daemon: daemon.clone(),
            shard,
            node: node.cloned(),
            generation,
            reason: reason.map(ToString::to_string),
            text: of.to_string(),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Define { daemon, definition } => {
                let (count, kind) = match definition.count {
                    Count::Shards(1) => (1, "shard"),
                    Count::Shards(count) => (count, "shards"),
                    Count::Replicas(1) => (1, "replica"),
                    Count::Replicas(count) => (count, "replicas"),
                };
                let weight = definition.weight;
                write!(formatter, "{daemon}: {count} {kind} of weight {weight}")
            }
            Decision::Forget { daemon } => write!(formatter, "{daemon}: delete, no node offers it"),
            Decision::Assign {
                shard,
                generation,
                to,
                reason,
            } => {
                let node = &to.node;
                write!(
                    formatter,
                    "{shard}: assign to {node} in generation {generation}, {reason}"
                )
            }
            Decision::Activate { shard, on } => write!(formatter, "{shard}: running on {on}"),
            Decision::Revoke {
                shard,
                from,
                reason,
            } => write!(formatter, "{shard}: revoke from {from}, {reason}"),
            Decision::Free {
                shard,
                from,
                reason,
            } => write!(formatter, "{shard}: take from {}, {reason}", from.node),
            Decision::Wait { shard, reason } => write!(formatter, "{shard}: wait, {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Reason::LeastLoaded { load } => {
                return write!(formatter, "which has the least load, {load}");
            }
            Reason::Balance {
                to,
                loads: (from_load, to_load),
            } => {
                return write!(
                    formatter,
                    "whose load is {from_load}, while {to} has {to_load}"
                );
            }
            Reason::Stuck { error } => {
                return write!(formatter, "its node cannot end it: {error}");
            }
            Reason::Lost { for_at_most } => {
                // Whole seconds, rounded up so that it is never too few.
                let seconds = for_at_most.as_millis().div_ceil(1000);
                return write!(
                    formatter,
                    "the assignments were lost, and nodes may still run shards by them, for at most {seconds}s"
                );
            }
            Reason::Failed { error } => return write!(formatter, "where it failed: {error}"),
            Reason::Draining { to: Some(to) } => {
                return write!(formatter, "it is draining, then moves to {to}");
            }
            Reason::Draining { to: None } => "it is draining, and no node has room for it yet",
            Reason::Returned => "where it was before the restart",
            Reason::Drained => "which an operator is draining",
            Reason::NotAcknowledged => "which did not acknowledge it in time",
            Reason::NotStarted => "where it did not start in time",
            Reason::NotOffered => "which does not offer the daemon",
            Reason::LabelMissing => "which lacks a required label",
            Reason::Surplus => "the daemon has fewer shards now",
            Reason::CountChanged => "the daemon has a different number of shards now",
            Reason::FormerCount => "shards of the old number have to end first",
            Reason::SessionEnded(End::Gone) => "which has left",
            Reason::SessionEnded(End::Lost) => "which has lost its session",
            Reason::SessionEnded(End::Evicted) => "which was evicted",
            Reason::SessionEnded(End::Missing) => "whose session is missing",
            Reason::Stopped => "which has ended it",
            Reason::Unanswered => "which did not end it in time",
            Reason::Restarting => "it is reserved for its node, which is restarting",
            Reason::Leaving => "its node is leaving and is draining it",
            Reason::SessionUnknown => "it is not known yet whether its node is alive",
            Reason::NoNode => "no live node offers it",
            Reason::NoLabels => "no live node that offers it has the labels it requires",
            Reason::AllDrained => "every node that may run it is drained",
            Reason::PassedOver => "it failed recently on every node that may run it",
            Reason::ReplicaEverywhere => "every node that may run it has a replica",
            Reason::NoRoom => "every node that may run it is full",
        };
        formatter.write_str(words)
    }
}
