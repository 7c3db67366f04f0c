//! The history of every shard of the namespace, as one process sees it: each step reported once, and in order.
//!
//! A process learns about shards from three sources, none of which costs an extra request: the assignments, which it
//! looks at anyway; what it does with its own shards; and, if it leads, what other nodes report. They overlap, and none
//! of them shows everything, since a process that looks now and then misses what happened in between. So each source
//! only says how far a generation has come at least, and a generation only ever goes forward:
//!
//! ```text
//!   assigned ---> started ---> revoked ---> stopped or failed
//! ```
//!
//! # What is guaranteed
//!
//! - For every generation that is reported: `assigned` first, and once; `stopped` or `failed` last, and once.
//! - Between them `started` and `revoked`, each at most once, in this order. They are left out if they did not
//!   happen, or were missed.
//! - For one shard, one generation after the other, each higher than the one before: nothing is reported about a
//!   generation once a later one was assigned.
//! - A generation that began and ended between two looks is reported if it failed (and fewer than 256 shards did), and
//!   left out otherwise.
//!
//! # What is not
//!
//! - `stopped` means that nothing of the generation is trusted any more. A daemon that was cut off together with its
//!   node may still do something.
//! - After the assignments were replaced with an older copy nothing is reported twice, and nothing at all until they
//!   are as new as they were.

use std::collections::BTreeMap;

use super::record::{Assignment, AssignmentState, Assignments, Daemon, Failure, Generation, Shard};
use super::report::{Part, RunState};
use crate::session::Record;
use crate::{DaemonId, NodeId};

/// What was reported about every shard.
#[derive(Debug, Clone, Default)]
pub struct Witness {
    /// The highest generation that was seen in the assignments; `None` before the first look.
    seen: Option<Generation>,
    daemons: BTreeMap<DaemonId, Vec<Option<Known>>>,
}

#[derive(Debug, Clone)]
struct Known {
    generation: Generation,
    node: NodeId,
    stage: Stage,
    /// What went wrong, as noted by the leader.
    error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Assigned,
    Started,
    Revoked,
    Ended,
}

/// Something that happened to a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Turn {
    /// The shard.
    pub shard: Shard,
    /// Its generation.
    pub generation: Generation,
    /// The node.
    pub node: NodeId,
    /// What happened.
    pub what: What,
}

/// What happens to a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum What {
    /// The node has to run it.
    Assigned,
    /// It runs.
    Started,
    /// The node has to end it.
    Revoked,
    /// It has ended.
    Stopped,
    /// It could not start, ended on its own, or did not do in time what it was told.
    Failed {
        /// What went wrong.
        error: String,
    },
}

/// Nothing depends on what was reported, so two processes that differ only in this do the same from then on. The model
/// check need not tell them apart.
impl std::hash::Hash for Witness {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl Witness {
    /// Takes a look at the assignments.
    #[must_use]
    pub fn look(&mut self, assignments: &Assignments) -> Vec<Turn> {
        let before = self.seen;
        if before.is_some_and(|before| assignments.generation < before) {
            return Vec::new();
        }
        self.seen = Some(assignments.generation);
        let mut turns = Vec::new();
        for (id, daemon) in &assignments.daemons {
            if !self.daemons.contains_key(id) {
                self.daemons.insert(id.clone(), Vec::new());
            }
            let known = self.daemons.get_mut(id).expect("it was just put there");
            let length = known.len().max(daemon.shards.len());
            known.resize(length, None);
            for (index, known) in (0..).zip(&mut *known) {
                let mut teller = Teller {
                    daemon: id,
                    index,
                    turns: &mut turns,
                };
                teller.look(known, assignments, daemon, before.is_some());
            }
            known.truncate(daemon.shards.len());
        }
        // A daemon that is no longer in the assignments ended long before it was removed, or its end was missed.
        self.daemons.retain(|daemon, known| {
            let is_known = assignments.daemons.contains_key(daemon);
            if !is_known {
                for (index, known) in (0..).zip(known) {
                    let turns = &mut turns;
                    let mut teller = Teller {
                        daemon,
                        index,
                        turns,
                    };
                    teller.end(known.as_mut(), None);
                }
            }
            is_known
        });
        turns
    }

    /// Notes what this process has done with one of its own shards.
    #[must_use]
    pub fn own(&mut self, shard: &Shard, generation: Generation, what: What) -> Option<Turn> {
        let known = self.known(&shard.daemon, shard.index, generation)?;
        let mut turns = Vec::new();
        let mut teller = Teller {
            daemon: &shard.daemon,
            index: shard.index,
            turns: &mut turns,
        };
        teller.advance(known, what);
        turns.pop()
    }

    /// Notes what a node reports about its shards.
    #[must_use]
    pub fn report(&mut self, record: &Record) -> Vec<Turn> {
        let mut turns = Vec::new();
        for (daemon, runs) in &Part::of(&record.about).runs {
            for run in runs {
                let what = match &run.2 {
                    RunState::Starting => continue,
                    RunState::Running => What::Started,
                    RunState::Draining => What::Revoked,
                    RunState::Stopped => What::Stopped,
                    RunState::Failed { error } => What::Failed {
                        error: error.clone(),
                    },
                };
                if let Some(known) = self.known(daemon, run.0, run.1) {
                    let (index, turns) = (run.0, &mut turns);
                    let mut teller = Teller {
                        daemon,
                        index,
                        turns,
                    };
                    teller.advance(known, what);
                }
            }
        }
        turns
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.daemons.values().map(Vec::len).sum()
    }

    fn known(&mut self, id: &DaemonId, index: u32, of: Generation) -> Option<&mut Known> {
        let shards = self.daemons.get_mut(id)?;
        let known = shards.get_mut(index as usize)?.as_mut()?;
        (known.generation == of).then_some(known)
    }
}

/// Reports about one shard.
struct Teller<'a> {
    daemon: &'a DaemonId,
    index: u32,
    turns: &'a mut Vec<Turn>,
}

impl Teller<'_> {
    fn look(
        &mut self,
        known: &mut Option<Known>,
        assignments: &Assignments,
        daemon: &Daemon,
        looked_before: bool,
    ) {
        let assignment = daemon.shards.get(self.index as usize).copied().flatten();
        let failure = daemon.failures.get(&self.index);
        let failed = |generation| failure.filter(|failure| failure.generation == generation);
        let generation = known.as_ref().map(|known| known.generation);
        let still = assignment.filter(|assignment| Some(assignment.generation) == generation);
        if still.is_none() {
            self.end(known.as_mut(), generation.and_then(failed));
        }
        // A generation began and failed since the last look. At the first look such a failure is old.
        if let Some(failure) = failure
            && generation.is_none_or(|generation| generation < failure.generation)
            && assignment.is_none_or(|assignment| assignment.generation > failure.generation)
        {
            let generation = failure.generation;
            let node = failure.node.clone();
            if looked_before {
                self.begin(known, generation, node);
                self.end(known.as_mut(), Some(failure));
            } else {
                let (stage, error) = (Stage::Ended, None);
                *known = Some(Known {
                    generation,
                    node,
                    stage,
                    error,
                });
            }
        }
        let Some(assignment) = assignment else { return };
        if still.is_none() {
            let holder = assignments.holders.get(&assignment.incarnation);
            let holder = holder.expect("whoever assigns a shard names its holder");
            self.begin(known, assignment.generation, holder.node.clone());
        }
        if let Some(known) = known {
            let failure = failed(assignment.generation);
            known.error = failure.map(|failure| failure.error.clone());
            self.reaches(known, &assignment);
        }
    }

    fn begin(&mut self, known: &mut Option<Known>, generation: Generation, node: NodeId) {
        let begun = known.insert(Known {
            generation,
            node,
            stage: Stage::Assigned,
            error: None,
        });
        self.tell(begun, What::Assigned);
    }

    fn reaches(&mut self, known: &mut Known, assignment: &Assignment) {
        match assignment.state {
            AssignmentState::Assigning => {}
            AssignmentState::Active => self.advance(known, What::Started),
            AssignmentState::Revoking => self.advance(known, What::Revoked),
        }
    }

    fn end(&mut self, known: Option<&mut Known>, failure: Option<&Failure>) {
        let Some(known) = known else { return };
        let error = failure.map(|failure| failure.error.clone());
        let what = error.map_or(What::Stopped, |error| What::Failed { error });
        self.advance(known, what);
    }

    /// Goes forward only.
    fn advance(&mut self, known: &mut Known, what: What) {
        let stage = match what {
            What::Assigned => Stage::Assigned,
            What::Started => Stage::Started,
            What::Revoked => Stage::Revoked,
            What::Stopped | What::Failed { .. } => Stage::Ended,
        };
        if stage <= known.stage {
            return;
        }
        known.stage = stage;
        let what = match (what, known.error.take()) {
            // It ended because it was told to, but it was told to because something was wrong.
            (What::Stopped, Some(error)) => What::Failed { error },
            (what, error) => {
                known.error = error;
                what
            }
        };
        self.tell(known, what);
    }

    fn tell(&mut self, known: &Known, what: What) {
        self.turns.push(Turn {
            shard: Shard {
                daemon: self.daemon.clone(),
                index: self.index,
            },
            generation: known.generation,
            node: known.node.clone(),
            what,
        });
    }
}

#[cfg(test)]
mod tests;
