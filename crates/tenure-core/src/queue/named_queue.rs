//! One of the queues: its limits, its counts, and which of its jobs is next.

use std::collections::BTreeMap;

use super::limits::{Bucket, QueueOptions};
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
    /// Counts as a user of its own name, so that its settings outlive its jobs.
    kept: bool,
}

impl NamedQueue {
    /// Keeps `heads` in step with the first of a shelf.
    pub(crate) fn follow(&mut self, shelf: Shelf, change: FirstChange) {
        if shelf.class != Class::Ready || change.before == change.after {
            return;
        }
        if let Some(before) = change.before {
            self.heads.remove(&(shelf.rank, before));
        }
        if let Some(after) = change.after {
            self.heads.insert((shelf.rank, after), shelf.job_type);
        }
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
