//! Where jobs and names live: places with small numbers, so that an index entry costs four bytes.
//!
//! Grows by whole blocks and never moves what it holds: no insert ever copies a million jobs. A place is
//! used again once it is free, so a handle says nothing about order and must not outlive its entry.

use std::ops::{Index, IndexMut};

/// A place in a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Handle(u32);

impl Handle {
    /// Where a range begins.
    pub(crate) const LEAST: Self = Self(0);
}

const BLOCK: usize = 1024;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    blocks: Vec<Vec<Option<T>>>,
    free: Vec<Handle>,
    used: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            blocks: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn insert(&mut self, value: T) -> Handle {
        self.used += 1;
        if let Some(handle) = self.free.pop() {
            *self.place(handle) = Some(value);
            return handle;
        }
        if self.blocks.last().is_none_or(|block| block.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let before = (self.blocks.len() - 1) * BLOCK;
        let block = self.blocks.last_mut().expect("one was just made sure of");
        let handle = u32::try_from(before + block.len()).expect("fewer entries than 2^32");
        block.push(Some(value));
        Handle(handle)
    }

    pub(crate) fn remove(&mut self, handle: Handle) -> T {
        let value = self.place(handle).take();
        self.used -= 1;
        self.free.push(handle);
        value.expect("a handle does not outlive its entry")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.blocks
            .iter()
            .flatten()
            .zip(0u32..)
            .filter_map(|(place, number)| Some((Handle(number), place.as_ref()?)))
    }

    fn place(&mut self, handle: Handle) -> &mut Option<T> {
        &mut self.blocks[handle.0 as usize / BLOCK][handle.0 as usize % BLOCK]
    }
}

impl<T> Index<Handle> for Slab<T> {
    type Output = T;
    fn index(&self, handle: Handle) -> &T {
        self.blocks[handle.0 as usize / BLOCK][handle.0 as usize % BLOCK]
            .as_ref()
            .expect("a handle does not outlive its entry")
    }
}

impl<T> IndexMut<Handle> for Slab<T> {
    fn index_mut(&mut self, handle: Handle) -> &mut T {
        self.place(handle)
            .as_mut()
            .expect("a handle does not outlive its entry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_others_stay() {
        let mut slab = Slab::new();
        let handles: Vec<_> = (0..3 * BLOCK).map(|number| slab.insert(number)).collect();
        for &handle in handles.iter().step_by(2) {
            slab.remove(handle);
        }
        assert_eq!(slab.len(), 3 * BLOCK / 2);
        let again = slab.insert(7);
        assert!(handles.contains(&again));
        assert_eq!(slab[handles[1]], 1);
        slab[again] = 8;
        assert_eq!(slab[again], 8);
        assert_eq!(slab.iter().count(), slab.len());
        assert!(slab.iter().all(|(handle, value)| slab[handle] == *value));
    }
}
