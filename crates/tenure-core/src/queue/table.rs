//! Finds the handle of a key in constant time; the key itself stays where it is.
//!
//! Never walked, so its order can decide nothing and a replay is exact whatever the seed. Split into
//! shards that grow one by one: the longest stop is the rehash of one shard, not of a million keys. An entry is a handle
//! and nothing else, five bytes with its mark: what grows asks for the hash of each key again. Shards are many, so that
//! one of them asks for ten thousand at most, of as many jobs as there may be by default.

use hashbrown::HashTable;

use super::slab::Handle;

const SHARDS: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Table {
    /// None before the first key: most tables of most queues have none.
    shards: Vec<HashTable<Handle>>,
}

impl Table {
    pub(crate) const fn new() -> Self {
        Self { shards: Vec::new() }
    }

    pub(crate) fn find(&self, hash: u64, is: impl Fn(Handle) -> bool) -> Option<Handle> {
        let shard = self.shards.get(shard(hash))?;
        shard.find(hash, |&handle| is(handle)).copied()
    }

    /// The key must not be in the table yet. `rehash` says the hash of any key that is.
    pub(crate) fn insert(&mut self, hash: u64, handle: Handle, rehash: impl Fn(Handle) -> u64) {
        if self.shards.is_empty() {
            self.shards.resize_with(SHARDS, HashTable::new);
        }
        let rehash = |&handle: &Handle| rehash(handle);
        self.shards[shard(hash)].insert_unique(hash, handle, rehash);
    }

    pub(crate) fn remove(&mut self, hash: u64, handle: Handle) {
        let found = self
            .shards
            .get_mut(shard(hash))
            .and_then(|shard| shard.find_entry(hash, |&entry| entry == handle).ok());
        found.expect("what is removed was inserted").remove();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(HashTable::len).sum()
    }
}

/// From the middle of the hash: a shard takes its places from the low bits and its marks from the high ones.
const fn shard(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::hash::Hash;
    use crate::queue::slab::Slab;

    fn hash(key: &str) -> u64 {
        let mut hash = Hash::new(1);
        hash.text(key);
        hash.finish()
    }

    #[test]
    fn keys_are_found_until_removed_even_if_hashes_meet() {
        let mut keys = Slab::new();
        let mut table = Table::new();
        let mut handles = Vec::new();
        for number in 0..10_000 {
            let key = format!("key-{number}");
            // Every tenth key shares the hash of the first.
            let hash = if number % 10 == 0 {
                hash("key-0")
            } else {
                hash(&key)
            };
            let handle = keys.insert((key, hash));
            table.insert(hash, handle, |handle| keys[handle].1);
            handles.push((hash, handle));
        }
        assert_eq!(table.len(), 10_000);
        for (number, &(hash, handle)) in handles.iter().enumerate() {
            let key = format!("key-{number}");
            assert_eq!(table.find(hash, |found| keys[found].0 == key), Some(handle));
            if number % 3 == 0 {
                table.remove(hash, handle);
                assert_eq!(table.find(hash, |found| keys[found].0 == key), None);
            }
        }
        assert_eq!(table.find(hash("absent"), |_| true), None);
    }
}
