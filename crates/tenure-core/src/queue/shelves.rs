//! Every job stands on exactly one shelf: the jobs of one queue, one type and one class, in the order of
//! the log.
//!
//! That one index serves claims (the first of the ready shelves), pages and searches (a merge of the
//! shelves that match) and counts (their lengths), and costs a job one entry. Ready jobs have a shelf
//! for each priority, so that the first of a shelf is the one to run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::btree_map::{BTreeMap, Range};
use std::ops::Bound;

use super::job::State;
use super::slab::Handle;

/// A state, and for ready jobs whether they may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Scheduled,
    /// Ready, and first in its group if it has one.
    Ready,
    /// Ready, but another job of its group comes first.
    Blocked,
    Running,
    Completed,
    Cancelled,
    Dead,
}

impl Class {
    pub(crate) const COUNT: usize = 7;

    pub(crate) const fn state(self) -> State {
        match self {
            Class::Scheduled => State::Scheduled,
            Class::Ready | Class::Blocked => State::Ready,
            Class::Running => State::Running,
            Class::Completed => State::Completed,
            Class::Cancelled => State::Cancelled,
            Class::Dead => State::Dead,
        }
    }

    pub(crate) const fn is_finished(self) -> bool {
        self.state().is_finished()
    }
}

/// Which shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shelf {
    pub(crate) queue: Handle,
    pub(crate) job_type: Handle,
    pub(crate) class: Class,
    /// Zero is the highest priority; zero for every class but ready.
    pub(crate) rank: u8,
}

/// Which of two ready jobs runs first: the smaller.
pub(crate) type Turn = (u8, u64);

#[derive(Debug, Default)]
pub(crate) struct Shelves {
    shelves: BTreeMap<Shelf, BTreeMap<u64, Handle>>,
}

/// How the first of a shelf changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstChange {
    pub(crate) before: Option<u64>,
    pub(crate) after: Option<u64>,
}

impl Shelves {
    /// Puts a job on a shelf.
    pub(crate) fn put(&mut self, shelf: Shelf, sequence: u64, handle: Handle) -> FirstChange {
        let jobs = self.shelves.entry(shelf).or_default();
        let before = first(jobs);
        jobs.insert(sequence, handle);
        FirstChange {
            before,
            after: Some(before.map_or(sequence, |first| first.min(sequence))),
        }
    }

    /// Takes a job from its shelf.
    pub(crate) fn take(&mut self, shelf: Shelf, sequence: u64) -> FirstChange {
        let jobs = self
            .shelves
            .get_mut(&shelf)
            .expect("a job stands on its shelf");
        let before = first(jobs);
        jobs.remove(&sequence).expect("a job stands on its shelf");
        let after = first(jobs);
        if after.is_none() {
            self.shelves.remove(&shelf);
        }
        FirstChange { before, after }
    }

    /// The job whose turn it is among the ready ones of a queue and type.
    pub(crate) fn turn(&self, queue: Handle, job_type: Handle) -> Option<Turn> {
        let from = Shelf {
            queue,
            job_type,
            class: Class::Ready,
            rank: 0,
        };
        let to = Shelf {
            rank: u8::MAX,
            ..from
        };
        let (shelf, jobs) = self.shelves.range(from..=to).next()?;
        Some((shelf.rank, first(jobs)?))
    }

    pub(crate) fn get(&self, shelf: Shelf, sequence: u64) -> Option<Handle> {
        self.shelves.get(&shelf)?.get(&sequence).copied()
    }

    /// The jobs of the shelves that match, in the order of the log, strictly after a place.
    pub(crate) fn after(&self, place: u64, matches: impl Fn(&Shelf) -> bool) -> Merge<'_> {
        let range = (Bound::Excluded(place), Bound::Unbounded);
        Merge::new(self.matching(matches).map(|jobs| jobs.range(range)), false)
    }

    /// The same backwards: the newest first, strictly before a place.
    pub(crate) fn before(&self, place: u64, matches: impl Fn(&Shelf) -> bool) -> Merge<'_> {
        Merge::new(self.matching(matches).map(|jobs| jobs.range(..place)), true)
    }

    fn matching(
        &self,
        matches: impl Fn(&Shelf) -> bool,
    ) -> impl Iterator<Item = &BTreeMap<u64, Handle>> {
        self.shelves
            .iter()
            .filter(move |(shelf, _)| matches(shelf))
            .map(|(_, jobs)| jobs)
    }

    #[cfg(test)]
    pub(crate) fn first_of(&self, shelf: Shelf) -> Option<u64> {
        self.shelves.get(&shelf).and_then(first)
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Shelf, u64, Handle)> {
        self.shelves.iter().flat_map(|(&shelf, jobs)| {
            jobs.iter()
                .map(move |(&sequence, &handle)| (shelf, sequence, handle))
        })
    }
}

fn first(jobs: &BTreeMap<u64, Handle>) -> Option<u64> {
    jobs.first_key_value().map(|(&sequence, _)| sequence)
}

/// Several shelves as one row, in the order of the log or backwards.
#[derive(Debug)]
pub(crate) struct Merge<'a> {
    rows: Vec<Range<'a, u64, Handle>>,
    /// The next job of each row. Backwards, the place is counted down from the end, so that the
    /// smallest is always next.
    heads: BinaryHeap<Reverse<(u64, usize, Handle)>>,
    newest_first: bool,
}

impl<'a> Merge<'a> {
    fn new(rows: impl Iterator<Item = Range<'a, u64, Handle>>, newest_first: bool) -> Self {
        let rows: Vec<_> = rows.collect();
        let heads = BinaryHeap::with_capacity(rows.len());
        let mut merge = Self {
            rows,
            heads,
            newest_first,
        };
        for row in 0..merge.rows.len() {
            merge.advance(row);
        }
        merge
    }

    fn advance(&mut self, row: usize) {
        let next = if self.newest_first {
            self.rows[row]
                .next_back()
                .map(|(&place, &handle)| (u64::MAX - place, handle))
        } else {
            self.rows[row]
                .next()
                .map(|(&place, &handle)| (place, handle))
        };
        if let Some((place, handle)) = next {
            self.heads.push(Reverse((place, row, handle)));
        }
    }
}

impl Iterator for Merge<'_> {
    type Item = (u64, Handle);

    fn next(&mut self) -> Option<(u64, Handle)> {
        let Reverse((place, row, handle)) = self.heads.pop()?;
        self.advance(row);
        let place = if self.newest_first {
            u64::MAX - place
        } else {
            place
        };
        Some((place, handle))
    }
}
