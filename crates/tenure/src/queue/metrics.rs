//! Numbers about a queue: plain data, for a metrics page or a log line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::Wall;
use tenure_store::wrap::metered::BUCKET_BOUNDS;

use super::Position;

/// What a queue has done in this process since it was opened, over all its terms, and how it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Commits that were done.
    pub commits: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes that they wrote.
    pub bytes: u64,
    /// How long they took.
    pub commit_latency: Latency,
    /// Records that wait to be committed.
    pub waiting: u64,
    /// Records that were turned away because too many waited.
    pub turned_away: u64,
    /// Claims that wait for a job.
    pub waiting_claims: u64,
    /// Jobs that run.
    pub leases: u64,
    /// Ids that are kept beyond their jobs, and what they take.
    #[serde(default)]
    pub ids: u64,
    /// What they take in memory.
    #[serde(default)]
    pub ids_bytes: u64,
    /// How many of them went before their time, for want of room, in this term.
    #[serde(default)]
    pub ids_dropped: u64,
    /// The last record of the log, while this process serves.
    pub position: Position,
    /// The size of the log behind the last snapshot, while this process serves.
    pub log_bytes: u64,
    /// Snapshots that were published.
    pub snapshots: u64,
    /// The last of them.
    pub last_snapshot: Option<SnapshotMetrics>,
    /// How often the log was read to serve it.
    pub recoveries: u64,
    /// How long the last time took.
    pub last_recovery: Option<Duration>,
    /// Terms that could not be served to their end: the log could not be read, or the queue's own work failed.
    pub terms_failed: u64,
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
