//! Numbers about a queue: plain data, for a metrics page or a log line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Latency, Position, SnapshotMetrics};

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
