//! Finds the handle of a key in constant time; the key itself stays where it is.
//!
//! Never walked, so its order can decide nothing and a replay is exact whatever the seed. Split into
//! shards that grow one by one: the longest stop is the rehash of one shard, not of a million keys.

use hashbrown::HashTable;

use super::slab::Handle;

const SHARDS: usize = 64;

#[derive(Debug)]
pub(crate) struct Table {
    shards: Vec<HashTable<Entry>>,
}

/// Part of the hash is kept, so that growing and most misses never touch the keys.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u32,
    handle: Handle,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| HashTable::new()).collect(),
        }
    }

    pub(crate) fn find(&self, hash: u64, is: impl Fn(Handle) -> bool) -> Option<Handle> {
        let (shard, tag) = split(hash);
        self.shards[shard]
            .find(spread(tag), |entry| entry.tag == tag && is(entry.handle))
            .map(|entry| entry.handle)
    }

    /// The key must not be in the table yet.
    pub(crate) fn insert(&mut self, hash: u64, handle: Handle) {
        let (shard, tag) = split(hash);
        self.shards[shard].insert_unique(spread(tag), Entry { tag, handle }, |entry| {
            spread(entry.tag)
        });
    }

    pub(crate) fn remove(&mut self, hash: u64, handle: Handle) {
        let (shard, tag) = split(hash);
        let found = self.shards[shard].find_entry(spread(tag), |entry| entry.handle == handle);
        found.expect("what is removed was inserted").remove();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(HashTable::len).sum()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "parts of the hash are meant"
)]
const fn split(hash: u64) -> (usize, u32) {
    (hash as usize % SHARDS, (hash >> 32) as u32)
}

/// The table takes its places from the low bits and its marks from the high ones.
const fn spread(tag: u32) -> u64 {
    (tag as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
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
            let handle = keys.insert(key);
            table.insert(hash, handle);
            handles.push((hash, handle));
        }
        assert_eq!(table.len(), 10_000);
        for (number, &(hash, handle)) in handles.iter().enumerate() {
            let key = format!("key-{number}");
            assert_eq!(table.find(hash, |found| keys[found] == key), Some(handle));
            if number % 3 == 0 {
                table.remove(hash, handle);
                assert_eq!(table.find(hash, |found| keys[found] == key), None);
            }
        }
        assert_eq!(table.find(hash("absent"), |_| true), None);
    }
}
