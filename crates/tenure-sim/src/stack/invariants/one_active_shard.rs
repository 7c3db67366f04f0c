//! A shard of a daemon is active on at most one trusted node, and its generations grow.

use std::collections::{BTreeMap, BTreeSet};

use tenure::cluster::{Generation, Shard};
use tenure::daemon::Context;

use super::super::host::{AGENT, LABELLED, SPECIAL};
use crate::invariants::Violation;

/// Every life of every shard that goes on.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    lives: BTreeMap<Shard, Vec<Context>>,
    newest: BTreeMap<Shard, Generation>,
    pub(crate) started: u64,
}

impl Shards {
    /// A node works for a shard no longer.
    pub(crate) fn end(&mut self, shard: &Shard, generation: Generation) {
        if let Some(lives) = self.lives.get_mut(shard) {
            lives.retain(|life| life.generation() != generation);
        }
    }

    /// A node begins to work for a shard. One whose clock stood still may believe that it is still its turn: then the
    /// generation tells receivers, and nothing else is promised.
    pub(crate) fn start(
        &mut self,
        context: &Context,
        doubted: &BTreeSet<&str>,
    ) -> Result<(), Violation> {
        self.started += 1;
        let (shard, generation) = (context.shard().clone(), context.generation());
        let lives = self.lives.entry(shard.clone()).or_default();
        lives.push(context.clone());
        let newest = self.newest.entry(shard.clone()).or_default();
        let before = std::mem::replace(newest, generation.max(*newest));
        if doubted.contains(context.node().as_str()) {
            return Ok(());
        }
        if shard.daemon.as_str() == SPECIAL && context.node().as_str() != LABELLED {
            return Err(Violation::new(
                "a daemon runs where its labels are",
                format!("{shard} starts on {}", context.node()),
            ));
        }
        if before >= generation {
            return Err(Violation::new(
                "generations grow",
                format!("{shard} starts in {generation} after {before}"),
            ));
        }
        self.check(doubted)
    }

    /// Looks at every clock that is not doubted.
    pub(crate) fn check(&self, doubted: &BTreeSet<&str>) -> Result<(), Violation> {
        for (shard, lives) in &self.lives {
            let promised = lives
                .iter()
                .filter(|life| !doubted.contains(life.node().as_str()));
            let trusted: Vec<_> = promised.filter(|life| life.is_trusted()).collect();
            if let [first, second, ..] = trusted[..] {
                return Err(Violation::new(
                    "a shard is active on one trusted node",
                    format!(
                        "{shard}: {} in {} and {} in {} both trust themselves",
                        first.node(),
                        first.generation(),
                        second.node(),
                        second.generation()
                    ),
                ));
            }
        }
        self.check_replicas(doubted)
    }

    /// No two replicas of a daemon are on one node.
    fn check_replicas(&self, doubted: &BTreeSet<&str>) -> Result<(), Violation> {
        let agents = self.lives.iter();
        let agents = agents.filter(|(shard, _)| shard.daemon.as_str() == AGENT);
        let mut nodes = BTreeMap::new();
        for (shard, life) in
            agents.flat_map(|(shard, lives)| lives.iter().map(move |life| (shard, life)))
        {
            let node = life.node().as_str();
            if doubted.contains(node) || !life.is_trusted() {
                continue;
            }
            if let Some(other) = nodes.insert(node, shard).filter(|other| *other != shard) {
                return Err(Violation::new(
                    "a node has one replica",
                    format!("{other} and {shard} both run on {node}"),
                ));
            }
        }
        Ok(())
    }

    /// How many shards have a trusted node.
    pub(crate) fn active(&self) -> usize {
        let lives = self.lives.values();
        lives
            .filter(|lives| lives.iter().any(|context| context.is_trusted()))
            .count()
    }
}
