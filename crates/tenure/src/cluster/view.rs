//! The cluster as the store has it, and what operators may ask for, without taking part.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tenure_core::cluster::assigner::plan;
use tenure_core::cluster::{
    Assignment, Assignments, Config, Decision, Definition, Drained, Drains, Failure, Part, RunState,
};
use tenure_core::election::Writer;
use tenure_core::session::{Holder, Record, State};
use tenure_core::{DaemonId, ElectionName, Incarnation, NodeId};
use tenure_store::{Expect, Version};

use super::Member;
use crate::inspect::{NamespaceView, Sessions, read};
use crate::{Error, clock, is_one_shot};

/// How often the drains are written again because they have changed meanwhile.
const ATTEMPTS_MAX: usize = 10;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// What it says of itself.
    pub member: Member,
    /// Whether it was heard of within its ttl, as far as the store can tell.
    pub is_heard_of: bool,
    /// Which of the product's own elections it leads: `tenure.queue` if it serves the queue, `tenure.cluster` if
    /// it hands out the daemons.
    pub leads: Vec<ElectionName>,
    /// How many shards are assigned to it.
    pub shards: usize,
    /// The sum of their weights.
    pub load: u64,
    /// Who wants it kept free, and since when.
    pub drained: Option<Drained>,
    /// It is about to leave, or to restart.
    pub is_going: bool,
}

/// A daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonStatus {
    /// Its name.
    pub id: DaemonId,
    /// What it asks for.
    pub definition: Definition,
    /// By number.
    pub shards: Vec<ShardStatus>,
}

/// A shard: where it is to run, and what its node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStatus {
    /// Which node has it, in which generation; `None` if none has.
    pub assigned: Option<(NodeId, Assignment)>,
    /// What the node reports of that generation; `None` if it has taken no notice yet.
    pub reported: Option<RunState>,
    /// Why the node cannot end it, if it says so.
    pub stuck: Option<String>,
    /// Whether the node was heard of within its ttl. If not, nobody may run the shard.
    pub has_node: bool,
    /// How it last failed, on whichever node, and how often; `None` once it has run for a minute since.
    pub failure: Option<Failure>,
}

/// Whether a request changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// It does now.
    Done,
    /// It was so already.
    Already,
}

/// Everything there is to know.
struct Stored {
    assignments: Option<Assignments>,
    drains: Option<Drains>,
    sessions: Sessions,
    /// Sessions that have stood for their whole ttl.
    silent: BTreeSet<Incarnation>,
    /// Who leads the product's own elections.
    leaders: Vec<(ElectionName, Holder)>,
}

impl NamespaceView {
    /// The nodes that have not left and were not evicted.
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>, Error> {
        Ok(self.stored().await?.nodes())
    }

    /// The daemons that some node offers, or that are assigned to some node.
    pub async fn daemons(&self) -> Result<Vec<DaemonStatus>, Error> {
        Ok(self.stored().await?.daemons())
    }

    /// Both at once, for the requests of one.
    pub async fn nodes_and_daemons(&self) -> Result<(Vec<NodeStatus>, Vec<DaemonStatus>), Error> {
        let stored = self.stored().await?;
        Ok((stored.nodes(), stored.daemons()))
    }

    /// What the leader would do now and why, as far as the store tells: timeouts, and where work has failed,
    /// are known to the leader alone. Empty if nobody has led yet.
    pub async fn plan(&self) -> Result<Vec<Decision>, Error> {
        let stored = self.stored().await?;
        let Some(assignments) = &stored.assignments else {
            return Ok(Vec::new());
        };
        let drained = stored.drains.iter().flat_map(|drains| drains.nodes.keys());
        let drained = drained.cloned().collect();
        let now = clock::HOST.moment();
        // A node that has not been heard from for its ttl is given nothing, and is not known to be dead either.
        let heard_of = stored.sessions.iter().map(|(record, _)| record);
        let heard_of = heard_of.filter(|it| !stored.silent.contains(&it.incarnation));
        let sessions = heard_of.cloned().collect();
        Ok(plan(
            now,
            &Config::default(),
            assignments,
            sessions,
            &drained,
        ))
    }

    /// Asks for a node to be kept free of daemons, by its name: also if it is not there, or starts anew.
    /// Everything on it moves away, a limited number at a time.
    pub async fn drain(&self, node: &NodeId, by: &str) -> Result<Drain, Error> {
        let since = self.runtime().clock.now().wall;
        let by: String = by.chars().filter(|it| !it.is_control()).take(200).collect();
        let drained = Drained { by, since };
        self.change_drains(|nodes| {
            if nodes.contains_key(node) {
                false
            } else {
                nodes.insert(node.clone(), drained.clone()).is_none()
            }
        })
        .await
    }

    /// Lets a node be given daemons again.
    pub async fn undrain(&self, node: &NodeId) -> Result<Drain, Error> {
        self.change_drains(|nodes| nodes.remove(node).is_some())
            .await
    }

    /// Writes the drains with a change, which says whether it is one.
    async fn change_drains(
        &self,
        change: impl Fn(&mut BTreeMap<NodeId, Drained>) -> bool,
    ) -> Result<Drain, Error> {
        // Names this very request, so that a lost answer can be recognised.
        let writer = Writer {
            incarnation: Incarnation(self.runtime().unique().as_u128()),
            counter: 1,
            nonce: tenure_core::Nonce::default(),
        };
        let key = self.keys().drains();
        for _ in 0..ATTEMPTS_MAX {
            let found = self.drains().await?;
            let expect = match &found {
                None => Expect::Absent,
                Some((_, version)) => Expect::Version(version.clone()),
            };
            let mut nodes = match found {
                Some((drains, _)) if drains.writer == writer => return Ok(Drain::Done),
                Some((drains, _)) => drains.nodes,
                None => BTreeMap::new(),
            };
            if !change(&mut nodes) {
                return Ok(Drain::Already);
            }
            let value = Bytes::from(Drains { writer, nodes }.encode());
            match self.store().put(&key, value, &expect).await {
                Ok(_) => return Ok(Drain::Done),
                Err(tenure_store::Error::Conflict { .. } | tenure_store::Error::Unknown { .. }) => {
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::DrainsContended)
    }

    async fn drains(&self) -> Result<Option<(Drains, Version)>, Error> {
        read(&**self.store(), &self.keys().drains(), Drains::decode).await
    }

    async fn stored(&self) -> Result<Stored, Error> {
        let key = self.keys().assignments();
        let assignments = read(&**self.store(), &key, Assignments::decode).await?;
        let drains = self.drains().await?;
        let mut leaders = Vec::new();
        for election in [ElectionName::queue(), ElectionName::cluster()] {
            if let Some((lease, _)) = self.lease(&election).await?
                && let Some(holder) = lease.holder()
            {
                leaders.push((election, holder.clone()));
            }
        }
        let mut silent = BTreeSet::new();
        let sessions = self.session_objects().await?;
        for (record, object) in &*sessions {
            let age = object.age.or(object.shown_age);
            if age.is_some_and(|age| age >= record.ttl) {
                silent.insert(record.incarnation);
            }
        }
        Ok(Stored {
            assignments: assignments.map(|(assignments, _)| assignments),
            drains: drains.map(|(drains, _)| drains),
            sessions,
            silent,
            leaders,
        })
    }
}

impl Stored {
    fn nodes(&self) -> Vec<NodeStatus> {
        let mut loads: BTreeMap<Incarnation, (usize, u64)> = BTreeMap::new();
        for (id, _, assignment) in self.assignments.iter().flat_map(Assignments::iter) {
            let daemons = &self.assignments.as_ref().expect("it has one").daemons;
            let (shards, load) = loads.entry(assignment.incarnation).or_default();
            *shards += 1;
            *load += u64::from(daemons[id].definition.weight);
        }
        let drained = |node: &NodeId| self.drains.as_ref()?.nodes.get(node).cloned();
        let leads = |it: &Record| {
            let own = self.leaders.iter();
            let own = own.filter(|(_, holder)| *holder == it.holder());
            own.map(|(election, _)| election.clone()).collect()
        };
        // A one-shot candidate is a caller, not a node.
        let nodes = self.live().filter(|record| !is_one_shot(record));
        let alive = nodes.map(|record| {
            let (shards, load) = loads.get(&record.incarnation).copied().unwrap_or_default();
            NodeStatus {
                member: Member::of(record),
                is_heard_of: !self.silent.contains(&record.incarnation),
                leads: leads(record),
                shards,
                load,
                drained: drained(&record.node),
                is_going: Part::of(&record.about).going.is_some(),
            }
        });
        alive.collect()
    }

    fn daemons(&self) -> Vec<DaemonStatus> {
        let mut reports: BTreeMap<(Incarnation, &DaemonId, u32), &tenure_core::cluster::Run> =
            BTreeMap::new();
        let mut daemons: BTreeMap<&DaemonId, DaemonStatus> = BTreeMap::new();
        let heard_of = self.live();
        let heard_of = heard_of.filter(|it| !self.silent.contains(&it.incarnation));
        let live: BTreeMap<Incarnation, &Record> = heard_of
            .map(|record| (record.incarnation, record))
            .collect();
        for record in self.live() {
            let part = Part::of(&record.about);
            for (id, runs) in &part.runs {
                let runs = runs
                    .iter()
                    .map(|run| ((record.incarnation, id, run.0), run));
                reports.extend(runs);
            }
            for (id, definition) in &part.offers {
                daemons.entry(id).or_insert_with(|| DaemonStatus {
                    id: id.clone(),
                    definition: definition.clone(),
                    shards: vec![ShardStatus::FREE; definition.count.number() as usize],
                });
            }
        }
        for (id, daemon) in self.assignments.iter().flat_map(|all| &all.daemons) {
            let holders = &self.assignments.as_ref().expect("it has one").holders;
            let shard = |(index, assignment): (u32, &Option<Assignment>)| {
                let failure = daemon.failures.get(&index).cloned();
                let Some(assignment) = assignment else {
                    return ShardStatus {
                        failure,
                        ..ShardStatus::FREE
                    };
                };
                let report = reports.get(&(assignment.incarnation, id, index));
                let report = report.filter(|run| run.1 == assignment.generation);
                let node = holders[&assignment.incarnation].node.clone();
                let holder = live.get(&assignment.incarnation);
                let part = holder.map(|record| Part::of(&record.about));
                let generation = assignment.generation;
                let stuck = part.and_then(|it| {
                    let earlier = it.blocked(id, index, generation);
                    it.stuck(id, index, generation).or(earlier)
                });
                ShardStatus {
                    assigned: Some((node, *assignment)),
                    reported: report.map(|run| run.2.clone()),
                    stuck: stuck.map(str::to_owned),
                    has_node: holder.is_some(),
                    failure,
                }
            };
            let status = DaemonStatus {
                id: id.clone(),
                definition: daemon.definition.clone(),
                shards: (0..).zip(&daemon.shards).map(shard).collect(),
            };
            daemons.insert(id, status);
        }
        daemons.into_values().collect()
    }

    fn live(&self) -> impl Iterator<Item = &Record> {
        let all = self.sessions.iter().map(|(record, _)| record);
        all.filter(|record| record.state == State::Alive)
    }
}

impl ShardStatus {
    const FREE: Self = Self {
        assigned: None,
        reported: None,
        stuck: None,
        has_node: false,
        failure: None,
    };

    /// Whether it fails again and again: what it does at this moment says little then.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failure.as_ref().is_some_and(|it| it.count > 1)
    }
}
