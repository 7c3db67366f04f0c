//! What a node says about daemons in its own session: which it can run, and the state of the shards it was given.
//!
//! A report is a promise. A shard that is reported stopped or failed in some generation has ended there and will never
//! be started again in that generation, so a leader that reads it may give the shard away. If a shard is not mentioned,
//! nothing follows: the node may be about to start it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::Generation;
use crate::DaemonId;
use crate::record::milliseconds;
use crate::session::About;

/// The most shards of one daemon. A thousand daemons of ten shards and one of ten thousand cost the same.
pub const SHARDS_MAX: u32 = 20_000;

/// The largest weight of one shard; a sum over all shards fits easily.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// The longest error that a report carries: it travels with every heartbeat.
const ERROR_CHARACTERS_MAX: usize = 200;

/// A node's part in the cluster, as its session states it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// The software it runs, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The most work it takes, as a sum of weights; any amount if this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// The daemons it can run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub offers: BTreeMap<DaemonId, Definition>,
    /// The state of the shards that were assigned to it, in the order of their numbers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<DaemonId, Vec<Run>>,
    /// The shards that it cannot end, and why. It keeps them: something of them still runs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stuck: BTreeMap<DaemonId, Vec<Stuck>>,
    /// It is about to leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub going: Option<Going>,
    /// It has never assigned anything. A leader takes this back before it does, so the next leader can tell assignments
    /// that were lost from assignments that never existed. Absent in what older versions wrote, where it is not known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_assigned_none: bool,
}

/// What a daemon asks of the cluster.
///
/// Every node registers the daemons it can run, so during an upgrade two definitions of one daemon may be offered at
/// once. The one with the highest revision takes effect. Among equals the current one stays for as long as any live
/// node offers it, so a rolling upgrade without a new revision switches when the last old node is gone, once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Definition {
    /// How often it runs.
    pub count: Count,
    /// How much of a node's capacity each shard takes. At least 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// The labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requires: BTreeMap<String, String>,
    /// Raise it to make a changed definition take effect at once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub revision: u64,
}

/// How often a daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// This many parts of its work; a node may run any number of them.
    Shards(u32),
    /// This many identical replicas. A node runs at most one, and the surplus waits for more nodes.
    Replicas(u32),
}

/// A definition that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// No shard, or too many.
    #[error("a daemon must have 1 to {SHARDS_MAX} shards or replicas, not {0}")]
    Count(u32),
    /// No weight, or too much.
    #[error("the weight of a daemon must be 1 to {WEIGHT_MAX}, not {0}")]
    Weight(u32),
}

/// The state of a shard that was assigned to a node, stored as `[shard, generation, state]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run(pub u32, pub Generation, pub RunState);

/// A shard that its node cannot end, stored as `[shard, generation, reason]`. A promise like a report: the shard still
/// runs there, whether it is trusted or not, so no other node may start it while this one lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stuck(pub u32, pub Generation, pub String);

/// The state of a shard on its node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The assignment was seen; the daemon is starting, or waits for its older generation to end here.
    Starting,
    /// It runs.
    Running,
    /// It was told to end and has not yet.
    Draining,
    /// It has ended, or was never started, and never will be in this generation.
    Stopped,
    /// It could not start, or ended on its own, and will not start again in this generation.
    Failed {
        /// Why, for people.
        error: String,
    },
}

/// A node that is about to leave. It drains its daemons without being told and takes no new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Going {
    /// It will not come back.
    Leaving,
    /// It will come back under the same node id: its shards are kept for it this long after it has left.
    Restarting {
        /// How long, counted by the leader from when it learns that the session has ended.
        #[serde(rename = "within_ms", with = "milliseconds")]
        within: Duration,
    },
}

impl Part {
    /// The part that a session states; an empty one if it takes none.
    #[must_use]
    pub fn of(about: &About) -> &Part {
        static NONE: Part = Part {
            version: None,
            capacity: None,
            offers: BTreeMap::new(),
            runs: BTreeMap::new(),
            stuck: BTreeMap::new(),
            going: None,
            has_assigned_none: false,
        };
        about.cluster.as_deref().unwrap_or(&NONE)
    }

    /// Why the node cannot end a shard, if it reports that.
    #[must_use]
    pub fn stuck(&self, daemon: &DaemonId, index: u32, generation: Generation) -> Option<&str> {
        let mut stuck = self.stuck.get(daemon)?.iter();
        let found = stuck.find(|it| it.0 == index && it.1 == generation);
        found.map(|it| it.2.as_str())
    }

    /// Why a shard cannot start on the node, if something of an earlier generation cannot be ended there.
    #[must_use]
    pub fn blocked(&self, daemon: &DaemonId, index: u32, generation: Generation) -> Option<&str> {
        let mut stuck = self.stuck.get(daemon)?.iter();
        let found = stuck.find(|it| it.0 == index && it.1 < generation);
        found.map(|it| it.2.as_str())
    }

    /// Whether the node may be given work of this daemon, judging by its own offer and state.
    pub(crate) fn takes(&self, daemon: &DaemonId) -> bool {
        self.going.is_none() && self.offers.contains_key(daemon)
    }
}

impl Definition {
    /// This many shards of weight 1 that run anywhere.
    #[must_use]
    pub fn shards(count: u32) -> Self {
        Self {
            count: Count::Shards(count),
            weight: 1,
            requires: BTreeMap::new(),
            revision: 0,
        }
    }

    /// This many replicas of weight 1, no two on one node.
    #[must_use]
    pub fn replicas(count: u32) -> Self {
        Self {
            count: Count::Replicas(count),
            ..Self::shards(count)
        }
    }

    /// Checks what a user asks for. The leader ignores an offer that does not pass.
    pub fn check(&self) -> Result<(), DefinitionError> {
        let count = self.count.number();
        if !(1..=SHARDS_MAX).contains(&count) {
            return Err(DefinitionError::Count(count));
        }
        if !(1..=WEIGHT_MAX).contains(&self.weight) {
            return Err(DefinitionError::Weight(self.weight));
        }
        Ok(())
    }

    /// Whether a node with these labels may run it.
    #[must_use]
    pub fn allows(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requires
            .iter()
            .all(|(label, value)| labels.get(label) == Some(value))
    }
}

impl Count {
    /// The number of shards or replicas.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Count::Shards(count) | Count::Replicas(count) => count,
        }
    }
}

impl RunState {
    /// A failure, with its text shortened to fit on a line.
    #[must_use]
    pub fn failed(error: &str) -> Self {
        let error = short(error);
        RunState::Failed { error }
    }

    /// Whether nothing of this generation runs on the node, now or ever again.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self, RunState::Stopped | RunState::Failed { .. })
    }
}

/// Shortens text that travels with every heartbeat, so that it fits on a line.
pub(crate) fn short(text: &str) -> String {
    let line = text.chars().map(|character| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    });
    line.take(ERROR_CHARACTERS_MAX).collect()
}

fn one() -> u32 {
    1
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde wants"
)]
fn is_one(number: &u32) -> bool {
    *number == 1
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde wants"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Record, State};
    use crate::{Incarnation, NodeId, Wall};

    #[test]
    fn the_stored_form_in_a_session_is_stable() {
        let daemon = DaemonId::new("indexer").unwrap();
        let record = Record {
            node: NodeId::new("web-1").unwrap(),
            incarnation: Incarnation(0xabc),
            counter: 7,
            nonce: crate::Nonce::default(),
            ttl: Duration::from_secs(10),
            state: State::Alive,
            joined_at: Wall(5),
            about: Box::new(About {
                cluster: Some(Box::new(Part {
                    version: Some("1.2.3".to_owned()),
                    capacity: Some(40),
                    offers: [(daemon.clone(), Definition::shards(12))].into(),
                    runs: [(
                        daemon,
                        vec![
                            Run(0, Generation(17), RunState::Running),
                            Run(3, Generation(19), RunState::failed("no\nsuch table")),
                        ],
                    )]
                    .into(),
                    stuck: BTreeMap::new(),
                    going: Some(Going::Restarting {
                        within: Duration::from_secs(60),
                    }),
                    has_assigned_none: true,
                })),
                ..About::default()
            }),
        };
        let text = r#"{"format":1,"node":"web-1","incarnation":"00000000000000000000000000000abc","counter":7,"ttl_ms":10000,"state":"alive","joined_at":5,"cluster":{"version":"1.2.3","capacity":40,"offers":{"indexer":{"count":{"shards":12}}},"runs":{"indexer":[[0,17,"running"],[3,19,{"failed":{"error":"no such table"}}]]},"going":{"restarting":{"within_ms":60000}},"has_assigned_none":true}}"#;
        assert_eq!(String::from_utf8(record.encode()).unwrap(), text);
        assert_eq!(Record::decode(text.as_bytes()).unwrap(), record);
    }

    #[test]
    fn impossible_definitions_are_refused_with_the_reason() {
        assert_eq!(Definition::shards(SHARDS_MAX).check(), Ok(()));
        let error = Definition::replicas(0).check().unwrap_err().to_string();
        assert_eq!(
            error,
            "a daemon must have 1 to 20000 shards or replicas, not 0"
        );
        let heavy = Definition {
            weight: 0,
            ..Definition::shards(1)
        };
        assert_eq!(heavy.check(), Err(DefinitionError::Weight(0)));
    }
}
