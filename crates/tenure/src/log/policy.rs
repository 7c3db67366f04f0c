//! When to write a snapshot, and what may go then. Pure: numbers in, a decision out.

use std::ops::{AddAssign, SubAssign};

/// How far the log has grown behind the last snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) bytes: u64,
    /// How many objects have to be read for them; none where they are in files.
    pub(crate) objects: u64,
}

impl Growth {
    /// What it costs to read, in bytes that could be read meanwhile. Each object is a request: small commits
    /// would make a log that is small and slow to recover.
    pub(crate) fn cost(self, object_cost_bytes: u64) -> u64 {
        let requests = self.objects.saturating_mul(object_cost_bytes);
        self.bytes.saturating_add(requests)
    }
}

impl AddAssign for Growth {
    fn add_assign(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.objects += more.objects;
    }
}

impl SubAssign for Growth {
    fn sub_assign(&mut self, less: Self) {
        self.bytes -= less.bytes;
        self.objects -= less.objects;
    }
}

/// Whether reading the log costs as much as the last snapshot. So all snapshots together cost no more than the
/// log itself, however large the state is; below the least size the log alone is as good.
pub(crate) fn is_snapshot_due(log_cost: u64, snapshot_bytes: u64, bytes_min: u64) -> bool {
    log_cost >= snapshot_bytes.max(bytes_min)
}

/// What is behind the last two snapshots. The newest alone would do to recover; the one before it, and the log
/// from there on, stay for readers that have begun with it and are slow.
///
/// `published` are the places of all snapshots, in order. Returns the place up to which nothing is needed.
pub(crate) fn horizon(published: &[u64]) -> u64 {
    published.iter().rev().nth(1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_cost_no_more_than_the_log() {
        let (mut log, mut snapshot, mut written, mut since) = (0_u64, 0_u64, 0_u64, 0_u64);
        for _ in 0..100_000 {
            log += 100;
            since += 100;
            if is_snapshot_due(since, snapshot, 10_000) {
                // Nothing is ever completed: the state is as large as all of the log.
                (snapshot, since) = (log, 0);
                written += snapshot;
            }
        }
        assert!(written <= 2 * log, "{written} of {log}");
        // What recovery reads is never more than twice the state.
        assert!(since <= snapshot.max(10_000));
    }

    #[test]
    fn small_commits_in_objects_count_for_more_than_their_bytes() {
        let mut growth = Growth::default();
        for _ in 0..1_000 {
            growth += Growth {
                bytes: 100,
                objects: 1,
            };
        }
        assert_eq!(growth.cost(4_096), 1_000 * 4_196);
        growth -= growth;
        assert_eq!(growth, Growth::default());
    }

    #[test]
    fn the_last_two_snapshots_stay() {
        assert_eq!(horizon(&[]), 0);
        assert_eq!(horizon(&[7]), 0);
        assert_eq!(horizon(&[7, 20]), 7);
        assert_eq!(horizon(&[7, 20, 31]), 20);
    }
}
