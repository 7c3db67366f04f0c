//! The job queue, to embed: [`Queue`] is served by whichever process leads. And what makes it durable, its log:
//! what was committed, in order, on any store, and fenced.
//!
//! The broker of a queue is the leader of its election, `tenure.queue`. Its state is in memory, in a [`Machine`]; what makes it
//! durable is a log of the records that the machine was given. [`Log::take_over`] replays it and fences off
//! whoever wrote before; a [`Writer`] commits new records in batches and lets the machine apply them.
//!
//! The log knows nothing of what a record means. It is a line: JSON, say.
//!
//! # What is guaranteed
//!
//! - A record that was acknowledged is in every later replay, once, at the same position, whatever fails.
//! - A leader that has been replaced acknowledges nothing any more, however late it wakes up, and without any
//!   clock.
//! - What was not sent does not appear. What was sent and not acknowledged may appear, once, or not: its
//!   sender was told that it does not know.
//! - Damage is found and named, and nothing is skipped over.
//!
//! # How it is kept
//!
//! Under `<namespace>/queue/`, or another [folder](Config::folder) for another queue:
//!
//! | key | what it is |
//! | --- | --- |
//! | `origin` | the form of the log, and who took over last: `queue/origin.rs` |
//! | `reached` | how far the log is known to reach: `queue/reached.rs` |
//! | `log/<place>` | one commit, in the form with objects: `queue/objects.rs` |
//! | `segments/<takeover>-<number>` | many commits, in the form with files: `queue/segment.rs` |
//! | `snapshot/<place>-<unique>/<part>` | the state at a place: `queue/snapshot.rs` |
//! | `snapshot/<place>-<unique>/manifest` | what makes a snapshot count |
//!
//! Everything but the first two is a frame: a header line, and lines (`queue/frame.rs`). A *place* is the number of a frame in the
//! log, a *position* that of a record; every *take-over* has a number too. All of them only grow.
//!
//! The forms differ in how a replaced leader is kept from acknowledging. With objects, its next place is
//! taken. With files, it finds that the origin was replaced. Why that is enough stands at the top of each file.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
pub use tenure_core::queue::{Heartbeat, Rules};
use tenure_core::{ElectionName, Incarnation};
use tenure_store::VALUE_BYTES_MAX;

use crate::Token;

mod access;
mod appender;
mod backlog;
mod broker;
mod calls;
mod claims;
mod cleanup;
mod committer;
mod crowd;
mod error;
mod follow;
mod frame;
mod gather;
mod handle;
pub mod inspect;
mod lines;
mod log;
mod maintenance;
mod metrics;
mod objects;
mod options;
mod origin;
mod policy;
mod reached;
mod readers;
mod reads;
mod recovery;
mod segment;
mod serve;
mod service;
mod snapshot;
mod snapshots;
mod time;
mod writer;

pub use calls::Queue;
pub use error::Error;
pub use follow::{Cut, Followed, Follower};
pub use handle::{Answered, Handle, Statistics};
pub use log::{Committed, Log, Record, replay};
pub use metrics::{Latency, Metrics, SnapshotMetrics};
pub use options::{Options, Serving};
pub use origin::Form;
pub use reads::PAGE_BYTES_MAX;
pub use recovery::Progress;
pub use time::ClockState;
pub use writer::Writer;

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

    /// Applies what a record was written from, which is committed now. It cannot be refused any more.
    fn apply(&mut self, position: Position, command: Self::Command) -> Self::Answer;

    /// Applies a record from the log, with the same effect. An error says why it cannot be understood, and
    /// ends recovery.
    fn replay(&mut self, position: Position, record: &[u8]) -> Result<(), String>;

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
    fn restore(&mut self, lines: &[u8]) -> Result<(), String>;

    /// The snapshot is complete.
    fn restored(&mut self) -> Result<(), String> {
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

/// How a log is written and read. The defaults are right for most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The folder of the namespace in which the log is kept: `queue`, or a name below it, such as `queue.3`.
    pub folder: String,
    /// The most bytes that are committed together, and so the largest record. Larger batches cost latency on
    /// slow networks, smaller ones throughput. Well below the limit of the store.
    pub batch_bytes_max: usize,
    /// The most records that are committed together.
    pub batch_records_max: usize,
    /// The least time between the starts of two commits. Zero commits as fast as the store can; more saves
    /// requests where they cost money, and each record waits up to that much longer.
    pub commit_interval: Duration,
    /// How many records may wait. Beyond that callers are turned away.
    pub backlog_records_max: usize,
    /// How many bytes may wait.
    pub backlog_bytes_max: usize,
    /// How long one request may take before its answer counts as lost.
    pub request_timeout: Duration,
    /// How long a request that certainly did nothing is tried again before its error is passed on.
    pub patience: Duration,
    /// How long the commit in flight may go on when leadership is over.
    pub stop_patience: Duration,
    /// How large a file of the log grows. It is deleted as a whole.
    pub segment_bytes_max: u64,
    /// How large a part of a snapshot gets. A line that is larger has a part of its own.
    pub part_bytes_max: usize,
    /// Below this size of the log there is no snapshot.
    pub snapshot_bytes_min: u64,
    /// For how many bytes an object of the log counts besides its own, since each is a request when the log is
    /// read. With the defaults there is a snapshot after about a thousand small commits, so that recovery takes
    /// some tens of times the latency of the store.
    pub object_cost_bytes: u64,
    /// The newest rules by which records are applied, if this process can. A log that already follows newer ones
    /// stays with those. Every process that may take the log over must know them.
    pub rules_max: Rules,
    /// How many objects of the log are read at once. Recovery takes the latency of the store for every so
    /// many commits.
    pub read_ahead: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            folder: "queue".to_owned(),
            batch_bytes_max: 1024 * 1024,
            batch_records_max: 10_000,
            commit_interval: Duration::ZERO,
            backlog_records_max: 100_000,
            backlog_bytes_max: 64 * 1024 * 1024,
            request_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(10),
            stop_patience: Duration::from_secs(1),
            segment_bytes_max: 16 * 1024 * 1024,
            part_bytes_max: 4 * 1024 * 1024,
            snapshot_bytes_min: 4 * 1024 * 1024,
            object_cost_bytes: 4 * 1024,
            rules_max: Rules::LATEST,
            read_ahead: 32,
        }
    }
}

/// The most that is left to the frame around records.
const BATCH_BYTES_LIMIT: usize = VALUE_BYTES_MAX - 64 * 1024;

/// A file is read whole.
const SEGMENT_BYTES_LIMIT: u64 = 256 * 1024 * 1024;

impl Config {
    /// Every violation at once.
    pub fn check(&self) -> Result<(), Error> {
        let mut violations = Vec::new();
        for (name, value, max) in [
            ("batch_bytes_max", self.batch_bytes_max, BATCH_BYTES_LIMIT),
            ("batch_records_max", self.batch_records_max, usize::MAX),
            ("backlog_records_max", self.backlog_records_max, usize::MAX),
            ("backlog_bytes_max", self.backlog_bytes_max, usize::MAX),
            ("part_bytes_max", self.part_bytes_max, BATCH_BYTES_LIMIT),
            ("read_ahead", self.read_ahead, 1024),
        ] {
            if value == 0 || value > max {
                violations.push(format!("{name} is {value}, not from 1 to {max}"));
            }
        }
        let election = format!("{}{}", ElectionName::RESERVED, self.folder);
        if !ElectionName::new(election).is_ok_and(|name| name.is_of_queue()) {
            let folder: String = self.folder.chars().take(40).collect();
            violations.push(format!(
                "the folder is {folder:?}, not queue or a name below it, such as queue.3"
            ));
        }
        if self.backlog_bytes_max < self.batch_bytes_max {
            violations.push("backlog_bytes_max is less than batch_bytes_max".to_owned());
        }
        if self.segment_bytes_max == 0 || self.segment_bytes_max > SEGMENT_BYTES_LIMIT {
            let bytes = self.segment_bytes_max;
            violations.push(format!(
                "segment_bytes_max is {bytes}, not from 1 to {SEGMENT_BYTES_LIMIT}"
            ));
        }
        if self.request_timeout.is_zero() {
            violations.push("request_timeout is zero".to_owned());
        }
        if violations.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(
            format!("the log cannot be configured so: {}", violations.join("; ")),
            "leave out what you do not need to change",
        ))
    }
}
