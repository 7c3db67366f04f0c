//! Which queues have a job that can be claimed, over all queues: what a claim of every queue looks at.
//!
//! A queue stands here with the job whose turn it is, and with that of each of its types, while it lets jobs be
//! claimed. One that is paused, full or empty does not stand here at all, so nobody has to pass it by; one that
//! only its rate holds back stands with the time at which it opens. So a claim of every queue costs the jobs that
//! it gets and the types that it names, however many queues there are.
//!
//! The price: a queue that opens or closes costs as many steps as it has types with ready jobs.
//!
//! All of it follows from the rest of the state. It decides nothing, and no snapshot has it.

use std::collections::BTreeSet;

use super::machine::Queue;
use super::shelves::Turn;
use super::slab::Handle;

/// What can be claimed, over all queues.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// The first job of each queue that is open.
    first: BTreeSet<(Turn, Handle)>,
    /// The same of each type: the type, the turn, the queue.
    by_type: BTreeSet<(Handle, Turn, Handle)>,
    /// Queues with ready jobs that open by themselves.
    opening: BTreeSet<(u64, Handle)>,
}

/// Whether jobs of a queue can be claimed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not before another command: it has no ready jobs, is paused, or runs as many as it may.
    #[default]
    Shut,
    /// From this time on: its rate holds it back.
    Opens(u64),
    Open,
}

const FIRST: Turn = (0, 0);

impl Board {
    /// The queue whose first job is next.
    pub(crate) fn first(&self) -> Option<(Turn, Handle)> {
        self.first.first().copied()
    }

    /// The same among the jobs of one type.
    pub(crate) fn first_of(&self, job_type: Handle) -> Option<(Turn, Handle)> {
        let least = (job_type, FIRST, Handle::LEAST);
        let &(found, turn, queue) = self.by_type.range(least..).next()?;
        (found == job_type).then_some((turn, queue))
    }

    /// The queues that open by themselves, the next one first.
    pub(crate) fn opening(&self) -> impl Iterator<Item = (u64, Handle)> {
        self.opening.iter().copied()
    }

    /// A queue that opens by itself, and does so by now.
    fn opened(&self, now: u64) -> Option<Handle> {
        let &(opens, queue) = self.opening.first()?;
        (opens <= now).then_some(queue)
    }

    /// When a queue next opens by itself, after a time.
    pub(crate) fn opens_after(&self, time: u64) -> Option<u64> {
        let from = (time.checked_add(1)?, Handle::LEAST);
        self.opening.range(from..).next().map(|&(opens, _)| opens)
    }

    fn set(&mut self, job_type: Handle, queue: Handle, before: Option<Turn>, after: Option<Turn>) {
        if let Some(before) = before {
            self.by_type.remove(&(job_type, before, queue));
        }
        if let Some(after) = after {
            self.by_type.insert((job_type, after, queue));
        }
    }

    #[cfg(test)]
    pub(crate) fn lengths(&self) -> (usize, usize, usize) {
        (self.first.len(), self.by_type.len(), self.opening.len())
    }
}

impl Queue {
    /// Queues whose time has come open.
    pub(crate) fn open_queues(&mut self) {
        while let Some(queue) = self.board.opened(self.now) {
            self.post(queue);
        }
    }

    /// The first ready job of a type of a queue may be another one.
    pub(crate) fn post_type(&mut self, queue: Handle, job_type: Handle) {
        let after = self.shelves.turn(queue, job_type);
        let entry = &mut self.queues[queue];
        let before = match after {
            Some(turn) => entry.turns.insert(job_type, turn),
            None => entry.turns.remove(&job_type),
        };
        if entry.standing == Standing::Open && before != after {
            self.board.set(job_type, queue, before, after);
        }
    }

    /// Whether a queue is open, or which of its jobs is first, may have changed.
    pub(crate) fn post(&mut self, queue: Handle) {
        let standing = self.standing(queue);
        let entry = &mut self.queues[queue];
        let before = std::mem::replace(&mut entry.standing, standing);
        let shown = entry.shown;
        if standing != before {
            match before {
                Standing::Shut => {}
                Standing::Opens(opens) => {
                    self.board.opening.remove(&(opens, queue));
                }
                Standing::Open => {
                    for (&job_type, &turn) in &entry.turns {
                        self.board.set(job_type, queue, Some(turn), None);
                    }
                }
            }
            match standing {
                Standing::Shut => {}
                Standing::Opens(opens) => {
                    self.board.opening.insert((opens, queue));
                }
                Standing::Open => {
                    for (&job_type, &turn) in &entry.turns {
                        self.board.set(job_type, queue, None, Some(turn));
                    }
                }
            }
        }
        let first = match standing {
            Standing::Open => entry.heads.first_key_value().map(|(&turn, _)| turn),
            _ => None,
        };
        if shown != first {
            entry.shown = first;
            if let Some(shown) = shown {
                self.board.first.remove(&(shown, queue));
            }
            if let Some(first) = first {
                self.board.first.insert((first, queue));
            }
        }
    }

    pub(crate) fn standing(&self, queue: Handle) -> Standing {
        if self.queues[queue].heads.is_empty() {
            return Standing::Shut;
        }
        match self.open_at(queue) {
            None => Standing::Shut,
            Some(opens) if opens > self.now => Standing::Opens(opens),
            Some(_) => Standing::Open,
        }
    }
}
