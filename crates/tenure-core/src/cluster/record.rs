//! Assignments and drains as they are stored.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::report::{Count, Definition, SHARDS_MAX};
use crate::election::{Term, Writer};
use crate::record::{self, RecordError, milliseconds};
use crate::session::Holder;
use crate::{DaemonId, Incarnation, Lineage, NodeId, Wall};

/// The number of an assignment, and the fencing token of what it starts.
///
/// All daemons of a namespace draw from one counter, so a generation only grows for a daemon's whole life, even if the
/// daemon is removed and comes back, and nothing has to be kept about removed ones.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(#[serde(deserialize_with = "record::growing")] pub u64);

/// One shard, or one replica, of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    /// The daemon.
    pub daemon: DaemonId,
    /// Which of its shards, from 0.
    pub index: u32,
}

/// The desired state, at `<namespace>/cluster/assignments`. Written only by the leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Assignments {
    /// The lineage of the term; `None` in what older versions wrote. When an election is started over its terms begin
    /// at 1 again, and only the lineage tells that they are newer.
    pub lineage: Option<Lineage>,
    /// The leader's term.
    pub term: Term,
    /// Makes every write differ from every other, so that each can be recognised.
    pub writer: Writer,
    /// The highest generation ever given out.
    pub generation: Generation,
    /// The longest that a node may run a shard after a revoke. A node trusts what it has seen here for nine tenths of
    /// this time from the start of its look.
    pub drain_timeout: Duration,
    /// How long the leader waits before it takes a shard from a node that does not answer: the drain timeout, or a
    /// longer one for as long as a node may still go by it.
    pub force_after: Duration,
    /// Set if they were lost and made again: nodes may still run shards of the lost ones, so no free shard is given
    /// out. The next leader waits as well, from the start.
    pub recovering: bool,
    /// The sessions that shards are assigned to.
    pub holders: BTreeMap<Incarnation, Holder>,
    /// Every daemon that is offered by a live node or still assigned to some node.
    pub daemons: BTreeMap<DaemonId, Daemon>,
}

/// A daemon, and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Daemon {
    /// The definition in effect.
    pub definition: Definition,
    /// By shard; `None` is assigned to nobody. There are more than the definition says while a daemon shrinks.
    pub shards: Vec<Option<Assignment>>,
    /// What last went wrong, by shard, for a while: so that every node can report it.
    pub failures: BTreeMap<u32, Failure>,
}

/// What went wrong with a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Hash)]
pub struct Failure {
    /// Its generation.
    pub generation: Generation,
    /// The node.
    pub node: NodeId,
    /// When it was noted, on the clock of the leader that did.
    pub at: Wall,
    /// What went wrong.
    pub error: String,
    /// How often it has gone wrong since the shard last ran for a while, this time included. 1 in what older versions
    /// wrote.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub count: u32,
}

fn once() -> u32 {
    1
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde wants"
)]
fn is_once(count: &u32) -> bool {
    *count == 1
}

/// Which session has to run a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The fencing token.
    pub generation: Generation,
    /// The session.
    pub incarnation: Incarnation,
    /// Its state.
    pub state: AssignmentState,
    /// When it reached that state, on the clock of the leader that wrote it, for people.
    pub since: Wall,
    /// How many shards the daemon had when the shard was assigned, which is what its node goes by. If another number is
    /// in effect now, the shard is restarted.
    pub count: u32,
}

/// The state of an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Hash)]
#[serde(rename_all = "snake_case")]
pub enum AssignmentState {
    /// The node has to start it.
    Assigning,
    /// The node has reported it running.
    Active,
    /// The node has to end it and to report that.
    Revoking,
}

/// The nodes that operators keep free, at `<namespace>/cluster/drains`. It is a separate object, so that operators and
/// the leader never contend, and assignments keep one writer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Hash)]
pub struct Drains {
    /// Makes every write differ from every other.
    pub writer: Writer,
    /// By node.
    pub nodes: BTreeMap<NodeId, Drained>,
}

/// Why a node is kept free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Hash)]
pub struct Drained {
    /// Who asked for it.
    pub by: String,
    /// When, on the operator's clock, for people.
    pub since: Wall,
}

/// How long a node may trust what it saw of the assignments, from the start of its look: a tenth less
/// than the leader waits before it takes a shard away. The tenth covers clocks that run at different
/// rates, and the time it takes to end a daemon.
#[must_use]
pub(crate) fn look_trust(drain_timeout: Duration) -> Duration {
    drain_timeout - drain_timeout / 10
}

impl Assignments {
    /// One line of JSON; nodes are named once and referred to by number.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        record::encode(&Stored::from(self))
    }

    /// Reads stored assignments.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        record::decode::<Stored>(bytes)?.try_into()
    }

    /// The assignment of a shard.
    #[must_use]
    pub fn get(&self, shard: &Shard) -> Option<&Assignment> {
        let shards = &self.daemons.get(&shard.daemon)?.shards;
        shards.get(shard.index as usize)?.as_ref()
    }

    /// Every assignment, in the order of daemons and shards.
    pub fn iter(&self) -> impl Iterator<Item = (&DaemonId, u32, &Assignment)> {
        self.daemons.iter().flat_map(|(id, daemon)| {
            let numbered = (0..).zip(&daemon.shards);
            numbered.filter_map(move |(index, shard)| Some((id, index, shard.as_ref()?)))
        })
    }

    /// Keeps the sessions that something is assigned to, and no others.
    pub(crate) fn retain_holders(&mut self) {
        let used: std::collections::BTreeSet<Incarnation> =
            self.iter().map(|(_, _, held)| held.incarnation).collect();
        self.holders
            .retain(|incarnation, _| used.contains(incarnation));
    }
}

impl Daemon {
    /// Whether a shard was assigned when the daemon had another number of shards. It divides the work differently, so
    /// it must not run beside shards of the current number. Replicas divide nothing.
    #[must_use]
    pub(crate) fn is_former(definition: &Definition, assignment: &Assignment) -> bool {
        matches!(definition.count, Count::Shards(count) if count != assignment.count)
    }

    fn former_counts(&self) -> BTreeMap<u32, u32> {
        let count = self.definition.count.number();
        let numbered = (0..).zip(&self.shards);
        numbered
            .filter_map(|(index, shard)| Some((index, shard.as_ref()?.count)))
            .filter(|&(_, of_shard)| of_shard != count)
            .collect()
    }
}

impl Drains {
    /// One line of JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        record::encode(self)
    }

    /// Reads stored drains.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        record::decode(bytes)
    }
}

impl Generation {
    /// The next generation.
    #[must_use]
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.daemon, self.index)
    }
}

/// The stored form: about 40 bytes per shard, so ten thousand on a hundred nodes fit into half a megabyte.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lineage: Option<Lineage>,
    term: Term,
    writer: Writer,
    generation: Generation,
    #[serde(rename = "drain_timeout_ms", with = "milliseconds")]
    drain_timeout: Duration,
    #[serde(rename = "force_after_ms", with = "milliseconds")]
    force_after: Duration,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    recovering: bool,
    nodes: Vec<Holder>,
    daemons: BTreeMap<DaemonId, StoredDaemon>,
}

#[derive(Serialize, Deserialize)]
struct StoredDaemon {
    definition: Definition,
    shards: Vec<Option<StoredAssignment>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<u32, Failure>,
    /// The shards that were assigned when the daemon had another number of them than it has now, with that number. Not
    /// a part of [`StoredAssignment`]: older versions require its exact length.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    counts: BTreeMap<u32, u32>,
}

/// Generation, position in the table of nodes, state, since.
#[derive(Serialize, Deserialize)]
struct StoredAssignment(Generation, usize, AssignmentState, Wall);

impl From<&Assignments> for Stored {
    fn from(assignments: &Assignments) -> Self {
        let positions: BTreeMap<Incarnation, usize> =
            assignments.holders.keys().copied().zip(0..).collect();
        let shard = |assignment: &Assignment| {
            assert!(
                assignment.generation <= assignments.generation,
                "every generation is drawn from the counter"
            );
            StoredAssignment(
                assignment.generation,
                *positions
                    .get(&assignment.incarnation)
                    .expect("whoever assigns a shard names its holder"),
                assignment.state,
                assignment.since,
            )
        };
        let daemon = |daemon: &Daemon| StoredDaemon {
            definition: daemon.definition.clone(),
            shards: daemon
                .shards
                .iter()
                .map(|assignment| assignment.as_ref().map(shard))
                .collect(),
            failures: daemon.failures.clone(),
            counts: daemon.former_counts(),
        };
        Self {
            lineage: assignments.lineage,
            term: assignments.term,
            writer: assignments.writer,
            generation: assignments.generation,
            drain_timeout: assignments.drain_timeout,
            force_after: assignments.force_after,
            recovering: assignments.recovering,
            nodes: assignments.holders.values().cloned().collect(),
            daemons: assignments
                .daemons
                .iter()
                .map(|(id, stored)| (id.clone(), daemon(stored)))
                .collect(),
        }
    }
}

impl TryFrom<Stored> for Assignments {
    type Error = RecordError;

    fn try_from(stored: Stored) -> Result<Self, RecordError> {
        let damaged = |text: String| RecordError::Malformed(text);
        let mut daemons = BTreeMap::new();
        for (id, daemon) in stored.daemons {
            let mut shards = Vec::with_capacity(daemon.shards.len());
            for (index, assignment) in (0..).zip(daemon.shards) {
                let Some(StoredAssignment(generation, position, state, since)) = assignment else {
                    shards.push(None);
                    continue;
                };
                let Some(holder) = stored.nodes.get(position) else {
                    return Err(damaged(format!("{id} is assigned to node {position}")));
                };
                if generation > stored.generation {
                    return Err(damaged(format!(
                        "{id} has generation {generation}, the highest is {}",
                        stored.generation
                    )));
                }
                let former = daemon.counts.get(&index).copied();
                shards.push(Some(Assignment {
                    generation,
                    incarnation: holder.incarnation,
                    state,
                    since,
                    count: former.unwrap_or(daemon.definition.count.number()),
                }));
            }
            let definition = daemon.definition;
            // Every shard costs memory wherever the assignments are read.
            definition
                .check()
                .map_err(|error| damaged(format!("{id}: {error}")))?;
            if shards.len() > SHARDS_MAX as usize {
                return Err(damaged(format!("{id} has {} shards", shards.len())));
            }
            let daemon = Daemon {
                definition,
                shards,
                failures: daemon.failures,
            };
            daemons.insert(id, daemon);
        }
        Ok(Self {
            lineage: stored.lineage,
            term: stored.term,
            writer: stored.writer,
            generation: stored.generation,
            drain_timeout: stored.drain_timeout,
            force_after: stored.force_after,
            recovering: stored.recovering,
            holders: stored
                .nodes
                .into_iter()
                .map(|holder| (holder.incarnation, holder))
                .collect(),
            daemons,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignments(nodes: u32, shards: u32) -> Assignments {
        let holder = |number: u32| Holder {
            node: NodeId::new(format!("web-{number}")).unwrap(),
            incarnation: Incarnation(u128::from(number) + 10),
            ttl: Duration::from_secs(10),
        };
        let assigned = |index: u32| {
            Some(Assignment {
                generation: Generation(u64::from(index) + 1),
                incarnation: holder(index % nodes).incarnation,
                state: AssignmentState::Active,
                since: Wall(1_700_000_000_000),
                count: shards,
            })
        };
        Assignments {
            lineage: Some(Lineage(5)),
            term: Term(3),
            writer: Writer {
                incarnation: Incarnation(0xa),
                counter: 9,
                nonce: crate::Nonce::default(),
            },
            generation: Generation(u64::from(shards)),
            drain_timeout: Duration::from_secs(30),
            force_after: Duration::from_secs(30),
            recovering: false,
            holders: (0..nodes)
                .map(|number| (holder(number).incarnation, holder(number)))
                .collect(),
            daemons: [(
                DaemonId::new("indexer").unwrap(),
                Daemon {
                    definition: Definition::shards(shards),
                    shards: (0..shards).map(assigned).collect(),
                    failures: BTreeMap::new(),
                },
            )]
            .into(),
        }
    }

    #[test]
    fn the_stored_forms_are_stable() {
        let mut record = assignments(1, 2);
        let daemon = record.daemons.first_entry().unwrap().into_mut();
        daemon.shards[1] = None;
        let failure = Failure {
            generation: Generation(2),
            node: NodeId::new("web-0").unwrap(),
            at: Wall(1_700_000_000_001),
            error: "no such table".to_owned(),
            count: 3,
        };
        daemon.failures.insert(1, failure);
        let text = r#"{"format":1,"lineage":"00000000000000000000000000000005","term":3,"writer":{"incarnation":"0000000000000000000000000000000a","counter":9},"generation":2,"drain_timeout_ms":30000,"force_after_ms":30000,"nodes":[{"node":"web-0","incarnation":"0000000000000000000000000000000a","ttl_ms":10000}],"daemons":{"indexer":{"definition":{"count":{"shards":2}},"shards":[[1,0,"active",1700000000000],null],"failures":{"1":{"generation":2,"node":"web-0","at":1700000000001,"error":"no such table","count":3}}}}}"#;
        assert_eq!(String::from_utf8(record.encode()).unwrap(), text);
        assert_eq!(Assignments::decode(text.as_bytes()).unwrap(), record);

        let drains = Drains {
            writer: record.writer,
            nodes: [(
                NodeId::new("web-0").unwrap(),
                Drained {
                    by: "ops".to_owned(),
                    since: Wall(5),
                },
            )]
            .into(),
        };
        let text = r#"{"format":1,"writer":{"incarnation":"0000000000000000000000000000000a","counter":9},"nodes":{"web-0":{"by":"ops","since":5}}}"#;
        assert_eq!(String::from_utf8(drains.encode()).unwrap(), text);
        assert_eq!(Drains::decode(text.as_bytes()).unwrap(), drains);
    }

    #[test]
    fn a_shard_keeps_the_number_of_shards_it_was_assigned_under() {
        let mut record = assignments(1, 2);
        let daemon = record.daemons.first_entry().unwrap().into_mut();
        daemon.definition = Definition::shards(3);
        daemon.shards[1].as_mut().unwrap().count = 3;
        let text = String::from_utf8(record.encode()).unwrap();
        assert!(text.contains(r#""counts":{"0":2}"#), "{text}");
        assert_eq!(Assignments::decode(text.as_bytes()).unwrap(), record);
        // Written by an older version, it reads as if the number had never changed.
        let older = text.replace(r#","counts":{"0":2}"#, "");
        let older = Assignments::decode(older.as_bytes()).unwrap();
        assert!(older.iter().all(|(_, _, assignment)| assignment.count == 3));
    }

    #[test]
    fn ten_thousand_shards_on_a_hundred_nodes_fit_into_half_a_megabyte() {
        let record = assignments(100, 10_000);
        let bytes = record.encode();
        assert!(bytes.len() < 512 * 1024, "{} bytes", bytes.len());
        assert_eq!(Assignments::decode(&bytes).unwrap(), record);
    }

    #[test]
    fn damage_is_named() {
        let text = String::from_utf8(assignments(1, 2).encode()).unwrap();
        for (from, to, problem) in [
            ("[2,0,", "[2,7,", "indexer is assigned to node 7"),
            (
                "[2,0,",
                "[3,0,",
                "indexer has generation 3, the highest is 2",
            ),
            (
                "\"shards\":2",
                "\"shards\":4294967295",
                "indexer: a daemon must have 1 to 20000 shards",
            ),
        ] {
            let damaged = text.replace(from, to);
            let error = Assignments::decode(damaged.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
    }
}
