//! What a meter reports: plain data, for a metrics page or a log line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::{Error, Store, wrap::metered::Meter};

/// How many latency buckets have an upper bound. One more takes the rest.
pub(super) const BOUNDS: usize = 20;

/// The upper bound of the first bucket: fast local engines end here.
pub(super) const FIRST_BOUND_NANOSECONDS: u64 = 100_000;

/// The upper bounds of the latency buckets: 100 µs, doubling up to 52 s. The last bucket has none: it is for requests
/// that took longer.
pub const BUCKET_BOUNDS: [Duration; BOUNDS] = {
    let mut bounds = [Duration::ZERO; BOUNDS];
    let mut at = 0;
    while at < BOUNDS {
        bounds[at] = Duration::from_nanos(FIRST_BOUND_NANOSECONDS << at);
        at += 1;
    }
    bounds
};

/// The operations of a [`Store`] that send a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // Named after the methods.
pub enum Operation {
    Get,
    GetIfChanged,
    Put,
    Delete,
    List,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done; for a read: with an object.
    Done,
    /// A conditional read found the version that it named.
    Unchanged,
    /// A read found no object.
    Missing,
    /// [`Error::Conflict`].
    Conflict,
    /// [`Error::Unknown`].
    Unknown,
    /// [`Error::Unavailable`].
    Unavailable,
    /// [`Error::Refused`].
    Refused,
    /// [`Error::Invalid`].
    Invalid,
    /// [`Error::Corrupt`].
    Corrupt,
    /// The caller dropped the request before it was answered. A write may have been applied.
    Cancelled,
}

/// What a [`Meter`] has counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What has ended, by operation and outcome in their order. What never happened is left out.
    pub ended: Vec<Ended>,
    /// What is under way, by operation in their order.
    pub in_flight: Vec<(Operation, u64)>,
    /// The sizes of all values that were read.
    pub read_bytes: u64,
    /// The sizes of all values whose writes were done.
    pub written_bytes: u64,
}

/// The requests of one operation that ended in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// What was asked.
    pub operation: Operation,
    /// How it ended.
    pub outcome: Outcome,
    /// How many.
    pub count: u64,
    /// How long they took together.
    pub total_nanoseconds: u64,
    /// How many took at most the bound at the same index in [`BUCKET_BOUNDS`] and more than the bound before. The last
    /// entry counts those that took longer than every bound.
    pub buckets: [u64; BOUNDS + 1],
}

impl Operation {
    /// Every operation, in order.
    pub const ALL: [Self; 5] = [
        Self::Get,
        Self::GetIfChanged,
        Self::Put,
        Self::Delete,
        Self::List,
    ];

    /// Whether it is a [`Store::put`] or [`Store::delete`].
    #[must_use]
    pub fn is_write(self) -> bool {
        matches!(self, Self::Put | Self::Delete)
    }
}

impl Outcome {
    /// Every outcome, in order.
    pub const ALL: [Self; 10] = [
        Self::Done,
        Self::Unchanged,
        Self::Missing,
        Self::Conflict,
        Self::Unknown,
        Self::Unavailable,
        Self::Refused,
        Self::Invalid,
        Self::Corrupt,
        Self::Cancelled,
    ];
}

impl Snapshot {
    /// How many requests of `operation` ended as `outcome`.
    #[must_use]
    pub fn count(&self, operation: Operation, outcome: Outcome) -> u64 {
        let same = |ended: &&Ended| ended.operation == operation && ended.outcome == outcome;
        self.ended.iter().find(same).map_or(0, |ended| ended.count)
    }

    /// How many requests are under way.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight.iter().map(|(_, count)| count).sum()
    }
}
