//! How a log is written and read.

use std::time::Duration;

use tenure_core::ElectionName;
use tenure_core::queue::Rules;
use tenure_store::VALUE_BYTES_MAX;

use super::Error;

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
    /// How large a part of a snapshot gets. A larger line has a part to itself.
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
                violations.push(format!("{name} is {value}, but must be from 1 to {max}"));
            }
        }
        let election = format!("{}{}", ElectionName::RESERVED, self.folder);
        if !ElectionName::new(election).is_ok_and(|name| name.is_of_queue()) {
            let folder: String = self.folder.chars().take(40).collect();
            violations.push(format!(
                "the folder is {folder:?}, but must be queue or a name below it, such as queue.3"
            ));
        }
        if self.backlog_bytes_max < self.batch_bytes_max {
            violations.push("backlog_bytes_max is less than batch_bytes_max".to_owned());
        }
        if self.segment_bytes_max == 0 || self.segment_bytes_max > SEGMENT_BYTES_LIMIT {
            let bytes = self.segment_bytes_max;
            violations.push(format!(
                "segment_bytes_max is {bytes}, but must be from 1 to {SEGMENT_BYTES_LIMIT}"
            ));
        }
        if self.request_timeout.is_zero() {
            violations.push("request_timeout must not be zero".to_owned());
        }
        if violations.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(
            format!(
                "the configuration of the log is not valid: {}",
                violations.join("; ")
            ),
            "leave out what you do not need to change",
        ))
    }
}
