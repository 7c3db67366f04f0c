//! A job as it is kept: small, since there may be millions. What few jobs have is kept apart.

use super::job::{Key, Payload, Token};
use super::retry::Backoff;
use super::shelves::{Class, Shelf};
use super::slab::Handle;
use super::trace::Trace;
use crate::JobId;

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) payload: Payload,
    /// Its place among all jobs ever accepted, from 1.
    pub(crate) sequence: u64,
    /// The hash of what was submitted.
    pub(crate) content: u64,
    pub(crate) created_at: u64,
    /// When it may run, or might have.
    pub(crate) run_at: u64,
    /// When it entered its state.
    pub(crate) changed_at: u64,
    /// Its place among all jobs that ever finished; zero if it has not.
    pub(crate) finish: u64,
    pub(crate) queue: Handle,
    pub(crate) job_type: Handle,
    /// The attempts that were started.
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    /// Exactly while it runs.
    pub(crate) running: Option<Box<Running>>,
    pub(crate) extra: Option<Box<Extra>>,
    pub(crate) priority: i8,
    pub(crate) class: Class,
}

/// The claim of a running job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) token: Token,
    pub(crate) worker: Key,
    pub(crate) lease_ms: u32,
    pub(crate) cancel_requested: bool,
}

/// What most jobs do not have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extra {
    pub(crate) unique_key: Option<Key>,
    pub(crate) group_key: Option<Key>,
    /// The group it stands in: until it has finished.
    pub(crate) group: Option<Handle>,
    pub(crate) backoff: Option<Backoff>,
    /// Why the last attempt failed.
    pub(crate) error: Option<Box<str>>,
    pub(crate) result: Option<Payload>,
    /// The span that it was submitted in.
    pub(crate) trace: Option<Box<Trace>>,
}

impl Job {
    pub(crate) fn shelf(&self) -> Shelf {
        let rank = match self.class {
            Class::Ready => rank(self.priority),
            _ => 0,
        };
        Shelf {
            queue: self.queue,
            job_type: self.job_type,
            class: self.class,
            rank,
        }
    }

    pub(crate) fn unique_key(&self) -> Option<&Key> {
        self.extra.as_ref()?.unique_key.as_ref()
    }

    pub(crate) fn group_key(&self) -> Option<&Key> {
        self.extra.as_ref()?.group_key.as_ref()
    }

    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.extra.as_ref()?.trace.as_deref()
    }

    pub(crate) fn group(&self) -> Option<Handle> {
        self.extra.as_ref()?.group
    }

    pub(crate) fn backoff(&self) -> Backoff {
        let own = self.extra.as_ref().and_then(|extra| extra.backoff);
        own.unwrap_or_default()
    }

    pub(crate) fn cancel_requested(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.cancel_requested)
    }

    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }
}

impl Extra {
    /// Nothing, if there is nothing in it.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        let Self {
            unique_key,
            group_key,
            group,
            backoff,
            error,
            result,
            trace,
        } = &self;
        let empty = unique_key.is_none()
            && group_key.is_none()
            && group.is_none()
            && backoff.is_none()
            && error.is_none()
            && result.is_none()
            && trace.is_none();
        (!empty).then(|| Box::new(self))
    }
}

/// The highest priority has rank 0.
const fn rank(priority: i8) -> u8 {
    i8::MAX.abs_diff(priority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_fits_in_two_cache_lines() {
        assert!(
            size_of::<Option<Job>>() <= 128,
            "{} bytes",
            size_of::<Option<Job>>()
        );
    }

    #[test]
    fn ranks_fall_as_priorities_rise() {
        assert_eq!(
            [rank(127), rank(1), rank(0), rank(-1), rank(-128)],
            [0, 126, 127, 128, 255]
        );
    }
}
