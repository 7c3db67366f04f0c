//! Jobs in the order of the log: those of a class, whatever queue and type they have, and which of them are on a shelf.
//!
//! Shelves are as many as queues times types: to list all jobs by merging them costs every shelf, however short the
//! page. With an [`Order`] a page costs what is on it. Neighbours share an entry, so that a job costs a few bytes where many
//! of a class stand side by side, and at most one entry where they do not. A shelf needs no more than the [`Places`] of its
//! jobs: a bit for each. What stands there, the order of its class says.

use std::collections::btree_map::{BTreeMap, Range};

use super::slab::Handle;
use super::view::PageStart;

/// Neighbours in the order of the log.
pub(crate) trait Block {
    /// How many they can be, at most 32.
    const PLACES: u32;

    /// Which of the places are taken.
    fn mask(&self) -> u32;
}

/// Places in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// By sequence number, divided by the places of a block.
    blocks: BTreeMap<u64, Marks>,
}

#[derive(Debug, Default)]
pub(crate) struct Marks(u32);

impl Block for Marks {
    const PLACES: u32 = u32::BITS;

    fn mask(&self) -> u32 {
        self.0
    }
}

impl Places {
    pub(crate) fn put(&mut self, sequence: u64) {
        let block = self.blocks.entry(number::<Marks>(sequence)).or_default();
        block.0 |= bit::<Marks>(sequence);
    }

    /// Whether it was there.
    pub(crate) fn take(&mut self, sequence: u64) -> bool {
        let number = number::<Marks>(sequence);
        let Some(block) = self.blocks.get_mut(&number) else {
            return false;
        };
        let before = block.0;
        block.0 &= !bit::<Marks>(sequence);
        let was_there = block.0 != before;
        if block.0 == 0 {
            self.blocks.remove(&number);
        }
        was_there
    }

    pub(crate) fn first(&self) -> Option<u64> {
        let (&number, block) = self.blocks.first_key_value()?;
        Some(number * u64::from(Marks::PLACES) + u64::from(block.0.trailing_zeros()))
    }

    /// Those strictly after a place, or before it and backwards.
    pub(crate) fn from(&self, place: PageStart) -> Walk<'_, Marks> {
        Walk::new(&self.blocks, place)
    }
}

/// The jobs of a class.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// By sequence number, divided by the places of a block.
    blocks: BTreeMap<u64, Handles>,
}

/// How many jobs share an entry. Where they are far apart, each costs an entry of this size.
const HANDLES: usize = 16;

#[derive(Debug)]
pub(crate) struct Handles {
    mask: u16,
    handles: [Handle; HANDLES],
}

impl Block for Handles {
    const PLACES: u32 = u16::BITS;

    fn mask(&self) -> u32 {
        self.mask.into()
    }
}

impl Handles {
    const EMPTY: Self = Self {
        mask: 0,
        handles: [Handle::LEAST; HANDLES],
    };

    fn at(&mut self, sequence: u64) -> &mut Handle {
        &mut self.handles[within::<Self>(sequence) as usize]
    }
}

impl Order {
    pub(crate) fn put(&mut self, sequence: u64, handle: Handle) {
        let number = number::<Handles>(sequence);
        let block = self.blocks.entry(number).or_insert(Handles::EMPTY);
        block.mask |= 1 << within::<Handles>(sequence);
        *block.at(sequence) = handle;
    }

    pub(crate) fn take(&mut self, sequence: u64) {
        let number = number::<Handles>(sequence);
        let block = self.blocks.get_mut(&number);
        let block = block.expect("a job stands in its order");
        block.mask &= !(1 << within::<Handles>(sequence));
        if block.mask == 0 {
            self.blocks.remove(&number);
        }
    }

    /// The job at a place, if it is of this class.
    pub(crate) fn get(&self, sequence: u64) -> Option<Handle> {
        let block = self.blocks.get(&number::<Handles>(sequence))?;
        let is_taken = block.mask() & bit::<Handles>(sequence) != 0;
        is_taken.then(|| block.handles[within::<Handles>(sequence) as usize])
    }

    /// The jobs strictly after a place, or before it and backwards.
    pub(crate) fn from(&self, place: PageStart) -> Jobs<'_> {
        Jobs(Walk::new(&self.blocks, place))
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> Jobs<'_> {
        self.from(PageStart::After(0))
    }
}

/// Some places, one block after the other.
#[derive(Debug)]
pub(crate) struct Walk<'a, B> {
    blocks: Range<'a, u64, B>,
    /// The entry that is being read, its number, and what is left of it.
    current: Option<(u64, u32, &'a B)>,
    place: PageStart,
}

impl<'a, B: Block> Walk<'a, B> {
    fn new(blocks: &'a BTreeMap<u64, B>, place: PageStart) -> Self {
        let blocks = match place {
            PageStart::After(place) => blocks.range(number::<B>(place)..),
            PageStart::Before(place) => blocks.range(..=number::<B>(place)),
        };
        Self {
            blocks,
            current: None,
            place,
        }
    }

    /// What of an entry is on this side of the place.
    fn wanted(&self, block: u64, mask: u32) -> u32 {
        match self.place {
            PageStart::After(place) if block == number::<B>(place) => {
                mask & !(bit::<B>(place) - 1) & !bit::<B>(place)
            }
            PageStart::Before(place) if block == number::<B>(place) => mask & (bit::<B>(place) - 1),
            _ => mask,
        }
    }
}

impl<'a, B: Block> Iterator for Walk<'a, B> {
    /// A place, and the block that it is in.
    type Item = (u64, &'a B);

    fn next(&mut self) -> Option<Self::Item> {
        let newest_first = matches!(self.place, PageStart::Before(_));
        loop {
            if let Some((number, mask, block)) = &mut self.current
                && *mask != 0
            {
                let within = if newest_first {
                    u32::BITS - 1 - mask.leading_zeros()
                } else {
                    mask.trailing_zeros()
                };
                *mask &= !(1 << within);
                let sequence = *number * u64::from(B::PLACES) + u64::from(within);
                return Some((sequence, *block));
            }
            let next = if newest_first {
                self.blocks.next_back()
            } else {
                self.blocks.next()
            };
            let (&number, block) = next?;
            self.current = Some((number, self.wanted(number, block.mask()), block));
        }
    }
}

/// Some of an order, one job after the other.
#[derive(Debug)]
pub(crate) struct Jobs<'a>(Walk<'a, Handles>);

impl Iterator for Jobs<'_> {
    type Item = (u64, Handle);

    fn next(&mut self) -> Option<(u64, Handle)> {
        let (sequence, block) = self.0.next()?;
        let within = within::<Handles>(sequence) as usize;
        Some((sequence, block.handles[within]))
    }
}

/// In which block a place is.
fn number<B: Block>(sequence: u64) -> u64 {
    sequence / u64::from(B::PLACES)
}

/// Where in its block it is.
fn within<B: Block>(sequence: u64) -> u32 {
    u32::try_from(sequence % u64::from(B::PLACES)).expect("at most 32")
}

fn bit<B: Block>(sequence: u64) -> u32 {
    1 << within::<B>(sequence)
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
        let mut places = Places::default();
        let mut there = BTreeSet::new();
        // Whole entries, holes, neighbours at the edges of entries, and an empty stretch.
        for sequence in (1..200).filter(|&n| n % 3 > 0 || (30..40).contains(&n)) {
            order.put(sequence, handles[&sequence]);
            places.put(sequence);
            there.insert(sequence);
        }
        for sequence in 64..130 {
            if there.remove(&sequence) {
                order.take(sequence);
                assert!(places.take(sequence));
            }
        }
        assert_eq!(order.blocks.len(), 9, "an empty entry is let go of");
        assert_eq!(places.blocks.len(), 5, "and so are empty marks");
        assert_eq!(places.first(), there.first().copied());
        for place in (0..210).chain([u64::MAX]) {
            let after = order.from(PageStart::After(place));
            let before = order.from(PageStart::Before(place));
            let found: Vec<_> = after.map(|(sequence, _)| sequence).collect();
            let wanted = there.iter().filter(|&&it| it > place).copied();
            assert_eq!(found, wanted.collect::<Vec<_>>(), "after {place}");
            let found: Vec<_> = before.map(|(sequence, _)| sequence).collect();
            let wanted = there.iter().rev().filter(|&&it| it < place).copied();
            assert_eq!(found, wanted.collect::<Vec<_>>(), "before {place}");
            let is_there = there.contains(&place);
            assert_eq!(order.get(place).is_some(), is_there, "{place}");
            for start in [PageStart::After(place), PageStart::Before(place)] {
                let marks = places.from(start).map(|(sequence, _)| sequence);
                let jobs = order.from(start).map(|(sequence, _)| sequence);
                assert!(marks.eq(jobs), "{start:?}");
            }
        }
        assert!(!places.take(64), "it is not there any more");
        for (sequence, handle) in order.iter() {
            assert_eq!(slab[handle], sequence);
            assert_eq!(order.get(sequence), Some(handle));
        }
    }
}
