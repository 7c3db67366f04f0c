//! The jobs of one class in the order of the log, whatever queue and type they have.
//!
//! Shelves are as many as queues times types: to list all jobs by merging them costs every shelf, however short the
//! page. Here a page costs what is on it. Sixteen neighbours share an entry, so that a job costs a few bytes where many
//! of a class stand side by side, and at most one entry where they do not.

use std::collections::btree_map::{BTreeMap, Range};

use super::slab::Handle;
use super::view::PageStart;

/// How many neighbours share an entry: one bit of the mask for each.
const BLOCK_PLACES: usize = 16;
const BLOCK: u64 = BLOCK_PLACES as u64;

#[derive(Debug, Default)]
pub(crate) struct Order {
    /// By sequence number, divided by [`BLOCK`].
    blocks: BTreeMap<u64, Block>,
}

#[derive(Debug)]
struct Block {
    /// Which of the places are taken.
    mask: u16,
    handles: [Handle; BLOCK_PLACES],
}

impl Order {
    pub(crate) fn put(&mut self, sequence: u64, handle: Handle) {
        let block = self.blocks.entry(sequence / BLOCK).or_insert(Block {
            mask: 0,
            handles: [Handle::LEAST; BLOCK_PLACES],
        });
        block.mask |= bit(sequence);
        block.handles[within(sequence)] = handle;
    }

    pub(crate) fn take(&mut self, sequence: u64) {
        let number = sequence / BLOCK;
        let block = self.blocks.get_mut(&number);
        let block = block.expect("a job stands in its order");
        block.mask &= !bit(sequence);
        if block.mask == 0 {
            self.blocks.remove(&number);
        }
    }

    /// The jobs strictly after a place, or before it and backwards.
    pub(crate) fn from(&self, place: PageStart) -> Walk<'_> {
        let blocks = match place {
            PageStart::After(place) => self.blocks.range(place / BLOCK..),
            PageStart::Before(place) => self.blocks.range(..=place / BLOCK),
        };
        Walk {
            blocks,
            current: None,
            place,
        }
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> Walk<'_> {
        self.from(PageStart::After(0))
    }
}

/// Some of an order, one job after the other.
#[derive(Debug, Clone)]
pub(crate) struct Walk<'a> {
    blocks: Range<'a, u64, Block>,
    /// The entry that is being read, its number, and what is left of it.
    current: Option<(u64, u16, &'a Block)>,
    place: PageStart,
}

impl Walk<'_> {
    /// What of an entry is on this side of the place.
    fn wanted(&self, number: u64, mask: u16) -> u16 {
        match self.place {
            PageStart::After(place) if number == place / BLOCK => {
                mask & !(bit(place) - 1) & !bit(place)
            }
            PageStart::Before(place) if number == place / BLOCK => mask & (bit(place) - 1),
            _ => mask,
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = (u64, Handle);

    fn next(&mut self) -> Option<(u64, Handle)> {
        let newest_first = matches!(self.place, PageStart::Before(_));
        loop {
            if let Some((number, mask, block)) = &mut self.current
                && *mask != 0
            {
                let within = if newest_first {
                    u16::BITS - 1 - mask.leading_zeros()
                } else {
                    mask.trailing_zeros()
                };
                *mask &= !(1 << within);
                let sequence = *number * BLOCK + u64::from(within);
                return Some((sequence, block.handles[within as usize]));
            }
            let next = if newest_first {
                self.blocks.next_back()
            } else {
                self.blocks.next()
            };
            let (&number, block) = next?;
            self.current = Some((number, self.wanted(number, block.mask), block));
        }
    }
}

fn within(sequence: u64) -> usize {
    usize::try_from(sequence % BLOCK).expect("less than sixteen")
}

fn bit(sequence: u64) -> u16 {
    1 << within(sequence)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::slab::Slab;
    use super::*;

    #[test]
    fn every_place_is_a_place_to_go_on_from() {
        let mut slab = Slab::new();
        let handles: BTreeMap<u64, _> = (0..200).map(|n| (n, slab.insert(n))).collect();
        let mut order = Order::default();
        let mut there = BTreeSet::new();
        // Whole entries, holes, neighbours at the edges of entries, and an empty stretch.
        for sequence in (1..200).filter(|&n| n % 3 > 0 || (30..40).contains(&n)) {
            order.put(sequence, handles[&sequence]);
            there.insert(sequence);
        }
        for sequence in 64..130 {
            if there.remove(&sequence) {
                order.take(sequence);
            }
        }
        assert_eq!(order.blocks.len(), 9, "an empty entry is let go of");
        for place in (0..210).chain([u64::MAX]) {
            let after = order.from(PageStart::After(place));
            let before = order.from(PageStart::Before(place));
            let found: Vec<_> = after.map(|(sequence, _)| sequence).collect();
            let wanted = there.iter().filter(|&&it| it > place).copied();
            assert_eq!(found, wanted.collect::<Vec<_>>(), "after {place}");
            let found: Vec<_> = before.map(|(sequence, _)| sequence).collect();
            let wanted = there.iter().rev().filter(|&&it| it < place).copied();
            assert_eq!(found, wanted.collect::<Vec<_>>(), "before {place}");
        }
        for (sequence, handle) in order.iter() {
            assert_eq!(slab[handle], sequence);
        }
    }
}
