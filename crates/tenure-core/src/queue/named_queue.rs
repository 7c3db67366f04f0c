//! One of the queues: its limits, its counts, and which of its jobs is next.

use std::collections::{BTreeMap, BTreeSet};

use super::QueueOptions;
use super::board::Standing;
use super::bucket::Bucket;
use super::shelves::{Class, FirstChange, Shelf, Turn};
use super::slab::Handle;

/// One of the queues.
#[derive(Debug, Default)]
pub(crate) struct NamedQueue {
    pub(crate) options: QueueOptions,
    pub(crate) paused: bool,
    pub(crate) bucket: Bucket,
    /// Jobs per class.
    pub(crate) counts: [u64; Class::COUNT],
    /// The first of every shelf of ready jobs, with its type.
    pub(crate) heads: BTreeMap<Turn, Handle>,
    /// The same by their place in the log, the oldest first.
    ages: BTreeSet<(u64, u8)>,
    /// For each type with ready jobs, the turn of the first.
    pub(crate) turns: BTreeMap<Handle, Turn>,
    /// How it stands on the board, and with which turn.
    pub(crate) standing: Standing,
    pub(crate) shown: Option<Turn>,
    /// Counts as a user of its own name, so that its settings outlive its jobs.
    kept: bool,
}

impl NamedQueue {
    /// Keeps `heads` in step with the first of a shelf. Returns whether that is another one.
    pub(crate) fn follow(&mut self, shelf: Shelf, change: FirstChange) -> bool {
        if shelf.class != Class::Ready || change.before == change.after {
            return false;
        }
        if let Some(before) = change.before {
            self.heads.remove(&(shelf.rank, before));
            self.ages.remove(&(before, shelf.rank));
        }
        if let Some(after) = change.after {
            self.heads.insert((shelf.rank, after), shelf.job_type);
            self.ages.insert((after, shelf.rank));
        }
        true
    }

    /// The place of the claimable job that stands first in the log.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.ages.first().map(|&(sequence, _)| sequence)
    }

    /// Whether it has jobs or settings. One that has neither is only the name of a job that was forgotten.
    pub(crate) fn is_shown(&self) -> bool {
        self.kept || self.counts.iter().any(|&count| count > 0)
    }

    /// Whether the queue's name is held by its settings; answers what it was before.
    pub(crate) fn keep(&mut self, keep: bool) -> bool {
        std::mem::replace(&mut self.kept, keep)
    }

    #[cfg(test)]
    pub(crate) const fn is_kept(&self) -> bool {
        self.kept
    }
}
