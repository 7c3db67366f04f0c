//! Every job stands on exactly one shelf: the jobs of one queue, one type and one class, in the order of
//! the log.
//!
//! That one index serves claims (the first of the ready shelves), and pages and searches of one queue (a merge of
//! the shelves that match). It holds places only, a bit for each where many are side by side: which job stands there, the
//! order of its class says, and what is asked of all queues together is there too. Ready jobs have a shelf for each priority,
//! so that the first of a shelf is the one to run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

use super::State;
use super::order::{Jobs, Marks, Order, Places, Walk};
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
    shelves: BTreeMap<Shelf, Places>,
}

/// How the first of a shelf changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstChange {
    pub(crate) before: Option<u64>,
    pub(crate) after: Option<u64>,
}

impl Shelves {
    /// Puts a job on a shelf.
    pub(crate) fn put(&mut self, shelf: Shelf, sequence: u64) -> FirstChange {
        let places = self.shelves.entry(shelf).or_default();
        let before = places.first();
        places.put(sequence);
        FirstChange {
            before,
            after: Some(before.map_or(sequence, |first| first.min(sequence))),
        }
    }

    /// Takes a job from its shelf.
    pub(crate) fn take(&mut self, shelf: Shelf, sequence: u64) -> FirstChange {
        let places = self
            .shelves
            .get_mut(&shelf)
            .expect("a job stands on its shelf");
        let before = places.first();
        let was_there = places.take(sequence);
        assert!(was_there, "a job stands on its shelf");
        let after = places.first();
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
        let (shelf, places) = self.shelves.range(from..=to).next()?;
        Some((shelf.rank, places.first()?))
    }

    /// The jobs of the shelves of one queue that match, from a place on, in the order of the log or backwards.
    pub(crate) fn from<'a>(
        &'a self,
        place: PageStart,
        queue: Handle,
        matches: impl Fn(&Shelf) -> bool,
        orders: &'a [Order; Class::COUNT],
    ) -> Merge<'a> {
        let rows = self
            .matching(queue, matches)
            .map(|(shelf, places)| Row::Shelf {
                places: places.from(place),
                order: &orders[shelf.class as usize],
            });
        Merge::new(rows, matches!(place, PageStart::Before(_)))
    }

    /// Every shelf behind one, in their order, with the first of its jobs.
    pub(crate) fn firsts(&self, behind: Option<Shelf>) -> impl Iterator<Item = (Shelf, u64)> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.shelves
            .range((from, Bound::Unbounded))
            .inspect(|_| look())
            .filter_map(|(&shelf, places)| Some((shelf, places.first()?)))
    }

    /// The first place of a shelf behind another.
    pub(crate) fn next_of(&self, shelf: Shelf, behind: u64) -> Option<u64> {
        look();
        let mut places = self.shelves.get(&shelf)?.from(PageStart::After(behind));
        places.next().map(|(sequence, _)| sequence)
    }

    fn matching(
        &self,
        queue: Handle,
        matches: impl Fn(&Shelf) -> bool,
    ) -> impl Iterator<Item = (&Shelf, &Places)> {
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
    }

    #[cfg(test)]
    pub(crate) fn first_of(&self, shelf: Shelf) -> Option<u64> {
        self.shelves.get(&shelf)?.first()
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Shelf, u64)> {
        self.shelves.iter().flat_map(|(&shelf, places)| {
            let places = places.from(PageStart::After(0));
            places.map(move |(sequence, _)| (shelf, sequence))
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

/// Jobs in the order of the log, or backwards, as the merge.
#[derive(Debug)]
pub(crate) enum Row<'a> {
    Shelf {
        places: Walk<'a, Marks>,
        order: &'a Order,
    },
    Order(Jobs<'a>),
}

impl Iterator for Row<'_> {
    type Item = (u64, Handle);

    fn next(&mut self) -> Option<(u64, Handle)> {
        match self {
            Row::Order(jobs) => jobs.next(),
            Row::Shelf { places, order } => {
                let (sequence, _) = places.next()?;
                let handle = order.get(sequence);
                Some((
                    sequence,
                    handle.expect("what is on a shelf is in its order"),
                ))
            }
        }
    }
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
        let next = self.rows[row].next().map(|(place, handle)| {
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
