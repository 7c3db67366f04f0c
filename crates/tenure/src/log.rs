//! A durable log of lines, on any store, and fenced: what was committed, in order.
//!
//! The log knows nothing of what a record means. It is a line: JSON, say. State follows from the records alone, in a
//! [`Machine`]. [`Log::take_over`] replays the log into it and fences off the leader that wrote before; a [`Writer`]
//! commits new records in batches and lets the machine apply them.
//!
//! # What is guaranteed
//!
//! - A record that was acknowledged is in every later replay, once, at the same position, whatever fails.
//! - A leader that has been replaced acknowledges nothing any more, however late it wakes up, and without any
//!   clock.
//! - What was not sent does not appear. What was sent and not acknowledged may appear, once, or not: its
//!   sender was told that the outcome is unknown.
//! - Damage is found and named, and nothing is skipped over.
//!
//! # How it is kept
//!
//! Under `<namespace>/queue/`, or another [folder](Config::folder) for another log:
//!
//! | key | what it is |
//! | --- | --- |
//! | `origin` | the form of the log, and who took over last: `log/origin.rs` |
//! | `reached` | how far the log is known to reach: `log/reached.rs` |
//! | `log/<place>` | one commit, in the form with objects: `log/objects.rs` |
//! | `segments/<takeover>-<number>` | many commits, in the form with files: `log/segment.rs` |
//! | `snapshot/<place>-<unique>/<part>` | the state at a place: `log/snapshot.rs` |
//! | `snapshot/<place>-<unique>/manifest` | what makes a snapshot count |
//! | `trial` | there for a moment, on a store that refuses commits: `log/room.rs` |
//!
//! and `<namespace>/logs/queue`, beside all of that: there was a log, `log/origin.rs`.
//!
//! Everything but the first two and the last is a frame: a header line, and lines (`log/frame.rs`). A *place* is the number of a
//! frame in the log, a *position* that of a record; every *take-over* has a number too. All of them only grow.
//!
//! The forms differ in how a replaced leader is kept from acknowledging. With objects, its next place is
//! taken. With files, it finds that the origin was replaced. The top of each file says why that is enough.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tenure_core::Incarnation;
pub use tenure_core::queue::Rules;

use crate::Token;

mod access;
mod appender;
mod cleanup;
mod committer;
mod config;
mod error;
mod frame;
mod handle;
pub mod inspect;
mod leader;
mod metrics;
mod objects;
mod origin;
mod policy;
mod reached;
mod recovery;
mod room;
mod segment;
mod snapshot;
mod snapshotter;
mod writer;

pub use config::Config;
pub use error::Error;
pub use handle::{Answered, Handle};
pub use leader::{Committed, Log, Record, replay};
pub use metrics::{Latency, SnapshotMetrics, Statistics};
pub use origin::Form;
pub use recovery::Progress;
pub use writer::Writer;

pub(crate) use frame::check_line;
pub(crate) use handle::{Item, Sender};
pub(crate) use leader::rules;
pub(crate) use metrics::Counters;

/// What the log is for: state that follows from the records alone.
///
/// Two machines that were given the same records in the same order are in the same state, whether by
/// [`apply`](Machine::apply), by [`replay`](Machine::replay), or by restoring a snapshot in between.
pub trait Machine: Send + 'static {
    /// What a record was written from, so that nothing is parsed that was known; [`Record`] if it is applied
    /// as it is.
    type Command: Send + 'static;

    /// What the sender of a record gets.
    type Answer: Send + 'static;

    /// Why something that is stored cannot be understood.
    type Error: std::error::Error;

    /// Applies what a record was written from, which is committed now. It cannot be refused any more.
    fn apply(&mut self, position: Position, command: Self::Command) -> Self::Answer;

    /// Applies a record from the log, with the same effect. An error ends recovery: the record counts as damaged.
    fn replay(&mut self, position: Position, record: &[u8]) -> Result<(), Self::Error>;

    /// The newest rules by which this machine can apply records; a log that follows later ones is not replayed. The
    /// first, if the meaning of its records never changes.
    fn rules_max(&self) -> Rules {
        Rules::FIRST
    }

    /// Applies what follows by these rules, which it knows. Replays do so at the same place.
    fn set_rules(&mut self, _rules: Rules) {}

    /// A small number for its state, so that a replay that comes to another state is noticed; `None` if it has none.
    /// Calculated for every commit, so it must cost next to nothing.
    fn digest(&self) -> Option<u64> {
        None
    }

    /// Forgets everything: a replay begins, perhaps not for the first time.
    fn reset(&mut self);

    /// Takes the next lines of a snapshot. They come in the order in which they were given, cut elsewhere.
    fn restore(&mut self, lines: &[u8]) -> Result<(), Self::Error>;

    /// The snapshot is complete.
    fn restored(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Begins a snapshot of the present state. Must return at once, and forget one that was begun before.
    fn begin_snapshot(&mut self);

    /// The next piece of the snapshot: whole lines, each with its newline, without zero bytes, and at most one
    /// line more than `bytes_max`; empty if there is more to do first; `None` when it is complete. Records are applied between two calls, and the
    /// lines must show the state as it was when the snapshot was begun.
    fn snapshot_chunk(&mut self, bytes_max: usize) -> Option<Bytes>;

    /// Forgets the snapshot that was begun: nobody asks for more of it.
    fn abandon_snapshot(&mut self) {}
}

/// The number of a record in the log. The first is 1.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// That of the next record.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Who takes the log over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The term of its leadership.
    pub token: Token,
    /// The process.
    pub incarnation: Incarnation,
}
