//! The elections of a node, in the order in which they want to wake.
//!
//! A process in a thousand elections wakes a thousand times per heartbeat: the next one must be found
//! without asking all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::election::{Election, Input, Output};
use crate::{ElectionName, Moment, Now};

#[derive(Debug, Clone, Default, Hash)]
pub(super) struct Elections {
    machines: BTreeMap<ElectionName, Election>,
    /// When each wants to wake, which only its own steps can change.
    agenda: BTreeSet<(Moment, ElectionName)>,
    /// How many have work that has not ended, and how many have something to give back: a process that leaves a
    /// thousand elections asks after every step.
    working: usize,
    holding: usize,
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

    /// Whether the work of any has not ended yet.
    pub(super) fn is_working(&self) -> bool {
        self.working > 0
    }

    /// Whether none has anything to give back.
    pub(super) fn hold_nothing(&self) -> bool {
        self.holding == 0
    }

    pub(super) fn add(&mut self, name: &ElectionName, new: impl FnOnce() -> Election) {
        if !self.machines.contains_key(name) {
            let election = new();
            self.agenda.insert((election.wake_at(), name.clone()));
            self.working += usize::from(election.is_working());
            self.holding += usize::from(!election.holds_nothing());
            self.machines.insert(name.clone(), election);
        }
    }

    pub(super) fn wake_at(&self) -> Moment {
        let first = self.agenda.first();
        first.map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// The elections that want to wake now, in the order of their names.
    pub(super) fn due(&self, now: Moment) -> BTreeSet<ElectionName> {
        let due = self.agenda.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, name)| name.clone()).collect()
    }

    pub(super) fn step(&mut self, now: Now, name: &ElectionName, input: Input) -> Vec<Output> {
        let Some(election) = self.machines.get_mut(name) else {
            return Vec::new();
        };
        let before = election.wake_at();
        let (worked, held) = (election.is_working(), !election.holds_nothing());
        let outputs = election.step(now, input);
        let after = election.wake_at();
        self.working = self.working + usize::from(election.is_working()) - usize::from(worked);
        self.holding = self.holding + usize::from(!election.holds_nothing()) - usize::from(held);
        if after != before {
            self.agenda.remove(&(before, name.clone()));
            self.agenda.insert((after, name.clone()));
        }
        outputs
    }
}
