//! Every job stands on exactly one shelf: the jobs of one queue, one type and one class, in the order of
//! the log.
//!
//! That one index serves claims (the first of the ready shelves), and pages and searches of one queue (a merge of
//! the shelves that match), and costs a job one entry. Ready jobs have a shelf for each priority, so that the first
//! of a shelf is the one to run. What is asked of all queues together is in `order.rs`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::btree_map::{BTreeMap, Range};
use std::ops::Bound;

use super::State;
use super::order::Walk;
use super::slab::Handle;
use super::view::PageStart;

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
    pub(crate) const ALL: [Self; 7] = [
        Class::Scheduled,
        Class::Ready,
        Class::Blocked,
        Class::Running,
        Class::Completed,
        Class::Cancelled,
        Class::Dead,
    ];
    pub(crate) const COUNT: usize = Self::ALL.len();

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

    /// The jobs of the shelves of one queue that match, from a place on, in the order of the log or backwards.
    pub(crate) fn from(
        &self,
        place: PageStart,
        queue: Handle,
        matches: impl Fn(&Shelf) -> bool,
    ) -> Merge<'_> {
        let (range, newest_first) = match place {
            PageStart::After(place) => ((Bound::Excluded(place), Bound::Unbounded), false),
            PageStart::Before(place) => ((Bound::Unbounded, Bound::Excluded(place)), true),
        };
        let shelves = self.matching(queue, matches);
        Merge::new(
            shelves.map(|jobs| Row::Shelf(jobs.range(range))),
            newest_first,
        )
    }

    /// Every shelf behind one, in their order, with the first of its jobs.
    pub(crate) fn firsts(&self, behind: Option<Shelf>) -> impl Iterator<Item = (Shelf, u64)> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.shelves
            .range((from, Bound::Unbounded))
            .inspect(|_| look())
            .filter_map(|(&shelf, jobs)| Some((shelf, first(jobs)?)))
    }

    /// The first job of a shelf from a place on.
    pub(crate) fn next_of(&self, shelf: Shelf, from: u64) -> Option<(u64, Handle)> {
        look();
        let (&sequence, &handle) = self.shelves.get(&shelf)?.range(from..).next()?;
        Some((sequence, handle))
    }

    fn matching(
        &self,
        queue: Handle,
        matches: impl Fn(&Shelf) -> bool,
    ) -> impl Iterator<Item = &BTreeMap<u64, Handle>> {
        let from = Shelf {
            queue,
            job_type: Handle::LEAST,
            class: Class::Scheduled,
            rank: 0,
        };
        self.shelves
            .range(from..)
            .take_while(move |(shelf, _)| shelf.queue == queue)
            .inspect(|_| look())
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

/// A shelf was looked at, which tests count.
#[inline]
fn look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many shelves this thread has looked at so far.
#[cfg(test)]
pub(crate) fn looks() -> usize {
    LOOKS.get()
}

fn first(jobs: &BTreeMap<u64, Handle>) -> Option<u64> {
    jobs.first_key_value().map(|(&sequence, _)| sequence)
}

fn copied((&sequence, &handle): (&u64, &Handle)) -> (u64, Handle) {
    (sequence, handle)
}

/// Jobs in the order of the log, or backwards.
#[derive(Debug)]
pub(crate) enum Row<'a> {
    Shelf(Range<'a, u64, Handle>),
    /// Begun in the direction of the merge.
    Order(Walk<'a>),
}

/// Several rows as one, in the order of the log or backwards.
#[derive(Debug)]
pub(crate) struct Merge<'a> {
    rows: Vec<Row<'a>>,
    /// The next job of each row. Backwards, the place is counted down from the end, so that the
    /// smallest is always next.
    heads: BinaryHeap<Reverse<(u64, usize, Handle)>>,
    newest_first: bool,
}

impl<'a> Merge<'a> {
    pub(crate) fn new(rows: impl Iterator<Item = Row<'a>>, newest_first: bool) -> Self {
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
        let next = match &mut self.rows[row] {
            Row::Shelf(jobs) if self.newest_first => jobs.next_back().map(copied),
            Row::Shelf(jobs) => jobs.next().map(copied),
            Row::Order(jobs) => jobs.next(),
        };
        let next = next.map(|(place, handle)| {
            if self.newest_first {
                (u64::MAX - place, handle)
            } else {
                (place, handle)
            }
        });
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
