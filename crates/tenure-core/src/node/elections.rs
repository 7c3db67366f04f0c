//! The elections of a node, in the order in which they want to wake.
//!
//! A process in a thousand elections wakes a thousand times per heartbeat: whoever is next must be found
//! without asking all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::election::Election;
use crate::election::machine::{Input, Output};
use crate::{ElectionName, Moment, Now};

#[derive(Debug, Clone, Default, Hash)]
pub(super) struct Elections {
    machines: BTreeMap<ElectionName, Election>,
    /// When each wants to wake, which only a step of its own can change.
    agenda: BTreeSet<(Moment, ElectionName)>,
}

impl Elections {
    pub(super) fn get(&self, name: &ElectionName) -> Option<&Election> {
        self.machines.get(name)
    }

    pub(super) fn len(&self) -> usize {
        self.machines.len()
    }

    pub(super) fn names(&self) -> Vec<ElectionName> {
        self.machines.keys().cloned().collect()
    }

    pub(super) fn machines(&self) -> impl Iterator<Item = &Election> {
        self.machines.values()
    }

    pub(super) fn add(&mut self, name: &ElectionName, new: impl FnOnce() -> Election) {
        if !self.machines.contains_key(name) {
            let election = new();
            self.agenda.insert((election.wake_at(), name.clone()));
            self.machines.insert(name.clone(), election);
        }
    }

    pub(super) fn wake_at(&self) -> Moment {
        let first = self.agenda.first();
        first.map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// Those that want to wake now, in the order of their names.
    pub(super) fn due(&self, now: Moment) -> BTreeSet<ElectionName> {
        let due = self.agenda.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, name)| name.clone()).collect()
    }

    pub(super) fn step(&mut self, now: Now, name: &ElectionName, input: Input) -> Vec<Output> {
        let Some(election) = self.machines.get_mut(name) else {
            return Vec::new();
        };
        let before = election.wake_at();
        let outputs = election.step(now, input);
        let after = election.wake_at();
        if after != before {
            self.agenda.remove(&(before, name.clone()));
            self.agenda.insert((after, name.clone()));
        }
        outputs
    }
}
