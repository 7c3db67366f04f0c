//! Rules: which version of its own behaviour a queue applies.
//!
//! Commands are decided when they are applied, so the log alone does not say what came of them: the code that
//! applies them does. If that code changes, an old log read by the new code would tell another history. So what
//! [`Queue::apply`](super::Queue::apply) decides has a version, and the version is part of the state. Each leader
//! writes it into the log before its first command, a snapshot carries it, and a replay of the log applies every
//! command by the rules under which it was applied the first time.
//!
//! # Changing what a command does
//!
//! 1. Released rules never change. Give the change the next number here, and raise [`Rules::LATEST`].
//! 2. Ask `self.rules` at the one place where the behaviour differs, and keep the old branch.
//! 3. A new command, or a new field of one, is sent by a leader only if the rules of its queue are new enough.
//! 4. What the digest covers belongs to the rules too: see `Queue::digest`.
//! 5. `crates/tenure/tests/data` has a log of each version. Add one; the old ones must still replay to the same state.
//!
//! What only costs less and decides the same needs none of this.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A version of what commands do. Higher is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rules(pub u32);

impl Rules {
    /// What logs, snapshots and sessions mean that name none.
    pub const FIRST: Self = Self(1);

    /// Claims are bounded in bytes, slots of a schedule wait while the queue is full, and ids outlive their jobs.
    pub const SECOND: Self = Self(2);

    /// Jobs are set right in portions, by ticks, when time was set back; the id of a job that is deleted by hand outlives
    /// it, too; the last slot of a schedule is the last that became a job; the completed jobs of the queue `default` are
    /// counted; a claim with a key can be asked for again, and so can the end of a claim, and another end of
    /// it is told apart; no schedule runs ahead of the queue's time, and a `run_at` stays what it is when that is set;
    /// schedules can be paused.
    pub const THIRD: Self = Self(3);

    /// Jobs can be moved to another queue.
    pub const FOURTH: Self = Self(4);

    /// The newest that this version knows.
    pub const LATEST: Self = Self::FOURTH;

    /// Whether this version can apply them.
    #[must_use]
    pub fn are_known(self) -> bool {
        (Self::FIRST..=Self::LATEST).contains(&self)
    }

    /// Whether they are what is meant where none are named.
    #[must_use]
    pub fn are_first(&self) -> bool {
        *self == Self::FIRST
    }
}

/// What is meant where none are named.
impl Default for Rules {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
