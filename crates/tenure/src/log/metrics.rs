//! What a log counts: plain numbers, for a metrics page or a log line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::Wall;
use tenure_store::wrap::metered::BUCKET_BOUNDS;

use super::Position;

/// What a writer has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Commits that were done.
    pub commits: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes that they wrote.
    pub bytes: u64,
    /// Commits under way now: at most one.
    pub in_flight: u64,
    /// The most that ever were.
    pub in_flight_max: u64,
    /// Records that wait.
    pub waiting: u64,
    /// Records that were turned away because too many waited.
    pub turned_away: u64,
    /// Snapshots that were published.
    pub snapshots: u64,
}

/// What is counted, over all writers that are given the same.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) latency: LatencyCounter,
    /// The last record of the log.
    pub(crate) position: AtomicU64,
    /// The size of the log behind the last snapshot.
    pub(crate) log_bytes: AtomicU64,
    pub(crate) last_snapshot: Mutex<Option<SnapshotMetrics>>,
    pub(crate) commits: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
    pub(crate) turned_away: AtomicU64,
    pub(crate) snapshots: AtomicU64,
}

impl Counters {
    /// All but what waits, which only a writer knows.
    pub(crate) fn statistics(&self) -> Statistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            commits: load(&self.commits),
            records: load(&self.records),
            bytes: load(&self.bytes),
            in_flight: load(&self.in_flight),
            in_flight_max: load(&self.in_flight_max),
            waiting: 0,
            turned_away: load(&self.turned_away),
            snapshots: load(&self.snapshots),
        }
    }

    pub(crate) fn published(&self, snapshot: SnapshotMetrics) {
        let mut last = self
            .last_snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some(snapshot);
    }
}

/// Counts a commit for as long as it is under way.
pub(crate) struct Flight<'a>(&'a Counters);

impl<'a> Flight<'a> {
    pub(crate) fn begin(counters: &'a Counters) -> Self {
        let now = counters.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        counters.in_flight_max.fetch_max(now, Ordering::Relaxed);
        Self(counters)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// A snapshot that was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMetrics {
    /// The last record in it.
    pub position: Position,
    /// When it was published, on this host's wall clock.
    pub at: Wall,
    /// Its size.
    pub bytes: u64,
}

/// How long something took, each time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// How often.
    pub count: u64,
    /// How long together.
    pub total_nanoseconds: u64,
    /// How many took at most the bound of the same place in [`BUCKET_BOUNDS`] and more than the bound before;
    /// the last: more than every bound.
    pub buckets: [u64; BUCKET_BOUNDS.len() + 1],
}

/// Counts latencies without a lock.
#[derive(Debug, Default)]
pub(crate) struct LatencyCounter {
    total_nanoseconds: AtomicU64,
    buckets: [AtomicU64; BUCKET_BOUNDS.len() + 1],
}

impl LatencyCounter {
    pub(crate) fn add(&self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.total_nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
        let bucket = BUCKET_BOUNDS.partition_point(|bound| *bound < took);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Latency {
        let buckets = self
            .buckets
            .each_ref()
            .map(|bucket| bucket.load(Ordering::Relaxed));
        Latency {
            count: buckets.iter().sum(),
            total_nanoseconds: self.total_nanoseconds.load(Ordering::Relaxed),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_counted_once() {
        let counter = LatencyCounter::default();
        for took in [Duration::ZERO, BUCKET_BOUNDS[3], Duration::from_secs(3600)] {
            counter.add(took);
        }
        let latency = counter.snapshot();
        assert_eq!(latency.count, 3);
        let [first, .., last] = latency.buckets;
        assert_eq!((first, latency.buckets[3], last), (1, 1, 1));
        assert!(latency.total_nanoseconds >= 3_600_000_000_000);
    }
}
