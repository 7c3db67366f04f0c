//! Ordering groups: the unfinished jobs of one group key, in the order of the log.
//!
//! At most one job of a group is claimable or running, and it is the first, unless it was already
//! running when an earlier one came back (a retry by hand). A job that waits for its next attempt, or
//! for its time, holds its place: order is what a group is for. It does so only until it is dead.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use super::Key;
use super::machine::hash_of;
use super::slab::{Handle, Slab};
use super::table::Table;

#[derive(Debug)]
pub(crate) struct Groups {
    by_key: Table,
    groups: Slab<Group>,
    members: BTreeMap<(Handle, u64), Handle>,
    seed: u64,
}

#[derive(Debug)]
pub(crate) struct Group {
    queue: Handle,
    key: Key,
    members: u32,
    /// The member that may be claimed.
    pub(crate) open: Option<Handle>,
    pub(crate) running: Option<Handle>,
}

impl Groups {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            by_key: Table::new(),
            groups: Slab::new(),
            members: BTreeMap::new(),
            seed,
        }
    }

    /// The group of this key, if it has members.
    pub(crate) fn find(&self, queue: Handle, key: &Key) -> Option<Handle> {
        self.by_key.find(self.hash(key), |group| {
            let group = &self.groups[group];
            group.queue == queue && group.key == *key
        })
    }

    /// Adds a job to its group.
    pub(crate) fn join(&mut self, queue: Handle, key: &Key, sequence: u64, job: Handle) -> Handle {
        let group = self.find(queue, key).unwrap_or_else(|| {
            let (hash, seed) = (self.hash(key), self.seed);
            let group = self.groups.insert(Group {
                queue,
                key: key.clone(),
                members: 0,
                open: None,
                running: None,
            });
            let groups = &self.groups;
            let rehash = |group| hash_of(seed, groups[group].key.as_str());
            self.by_key.insert(hash, group, rehash);
            group
        });
        self.groups[group].members += 1;
        self.members.insert((group, sequence), job);
        group
    }

    /// Takes a job out. Returns whether the group still has members; if not, it is gone.
    pub(crate) fn leave(&mut self, group: Handle, sequence: u64) -> bool {
        self.members
            .remove(&(group, sequence))
            .expect("a member leaves");
        let entry = &mut self.groups[group];
        entry.members -= 1;
        if entry.members > 0 {
            return true;
        }
        let entry = self.groups.remove(group);
        self.by_key.remove(self.hash(&entry.key), group);
        false
    }

    pub(crate) fn first(&self, group: Handle) -> Option<Handle> {
        let mut range = self.members.range((group, 0)..=(group, u64::MAX));
        range.next().map(|(_, &job)| job)
    }

    fn hash(&self, key: &Key) -> u64 {
        hash_of(self.seed, key.as_str())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &Group)> {
        self.groups.iter()
    }

    #[cfg(test)]
    pub(crate) fn members(&self, group: Handle) -> impl Iterator<Item = Handle> {
        let range = self.members.range((group, 0)..=(group, u64::MAX));
        range.map(|(_, &job)| job)
    }
}

impl Index<Handle> for Groups {
    type Output = Group;
    fn index(&self, group: Handle) -> &Group {
        &self.groups[group]
    }
}

impl IndexMut<Handle> for Groups {
    fn index_mut(&mut self, group: Handle) -> &mut Group {
        &mut self.groups[group]
    }
}
