//! This node's requests to its store, by kind: how many, how long they take, how they end.
//!
//! The meter only grows; rates and percentiles come from the difference to its reading about a minute ago.

use std::collections::VecDeque;

use serde::Serialize;
use tenure::queue::Metrics;
use tenure_store::Description;
use tenure_store::wrap::metered::{BUCKET_BOUNDS, Ended, Operation, Outcome, Snapshot};

use super::histogram::Percentiles;

/// How often the meter is read.
const STEP_MS: u64 = 5_000;

/// How many readings are kept: the last minute.
const READINGS_MAX: usize = 13;

/// Readings of a meter, oldest first.
#[derive(Debug, Default)]
pub(super) struct Readings {
    past: VecDeque<(u64, Snapshot)>,
}

/// The store in the summary.
#[derive(Debug, Serialize)]
pub(super) struct StoreSummary {
    engine: &'static str,
    /// Without user name, password or key.
    location: String,
    /// Whether requests cost money.
    billed: bool,
    read_bytes: u64,
    written_bytes: u64,
    operations: Vec<OperationSummary>,
}

#[derive(Debug, Serialize)]
struct OperationSummary {
    operation: Operation,
    count: u64,
    /// Requests that failed. Conflicts are part of the protocol, and not counted.
    failed: u64,
    per_second: f64,
    latency: Option<Percentiles>,
}

impl Readings {
    /// Adds a reading when it is time for one, and returns the summary.
    pub(super) fn summary(
        &mut self,
        now: u64,
        snapshot: Snapshot,
        store: &Description,
    ) -> StoreSummary {
        let before = self.past.front();
        let operations = Operation::ALL.map(|operation| match before {
            Some((at, before)) => summary(operation, before, &snapshot, now.saturating_sub(*at)),
            None => summary(operation, &nothing(), &snapshot, 0),
        });
        let summary = StoreSummary {
            engine: store.engine,
            location: store.location.clone(),
            billed: matches!(store.engine, "s3" | "gcs" | "azure"),
            read_bytes: snapshot.read_bytes,
            written_bytes: snapshot.written_bytes,
            operations: operations.into(),
        };
        self.add(now, snapshot);
        summary
    }

    fn add(&mut self, now: u64, snapshot: Snapshot) {
        // If the clock was set back, start again.
        if self.past.back().is_some_and(|(at, _)| *at > now) {
            self.past.clear();
        }
        if self.past.back().is_some_and(|(at, _)| now - at < STEP_MS) {
            return;
        }
        self.past.push_back((now, snapshot));
        if self.past.len() > READINGS_MAX {
            self.past.pop_front();
        }
    }
}

/// How the log grew over the last minute or so.
#[derive(Debug, Default)]
pub(super) struct CommitReadings {
    past: VecDeque<(u64, Metrics)>,
}

/// The commits of the last minute.
#[derive(Debug, Serialize)]
pub(super) struct Commits {
    commits_per_second: f64,
    /// `None` if there were no commits.
    commit_bytes_mean: Option<u64>,
    commit: Option<Percentiles>,
}

impl CommitReadings {
    /// The commits of the last minute.
    pub(super) fn read(&mut self, now: u64, log: &Metrics) -> Commits {
        // If the clock was set back, start again.
        if self.past.back().is_some_and(|(at, _)| *at > now) {
            self.past.clear();
        }
        if self.past.back().is_none_or(|(at, _)| now - at >= STEP_MS) {
            self.past.push_back((now, log.clone()));
        }
        if self.past.len() > READINGS_MAX {
            self.past.pop_front();
        }
        let (at, before) = self.past.front().expect("one was added if there was none");
        let new = log.commits - before.commits;
        let rate = new as f64 * 1_000.0 / (now - at).max(1) as f64;
        let mut buckets = log.commit_latency.buckets;
        for (new, before) in buckets.iter_mut().zip(before.commit_latency.buckets) {
            *new = new.saturating_sub(before);
        }
        Commits {
            commits_per_second: (rate * 100.0).round() / 100.0,
            commit_bytes_mean: log.bytes.saturating_sub(before.bytes).checked_div(new),
            commit: percentiles(&buckets),
        }
    }
}

fn nothing() -> Snapshot {
    Snapshot {
        ended: Vec::new(),
        in_flight: Vec::new(),
        read_bytes: 0,
        written_bytes: 0,
    }
}

fn summary(operation: Operation, before: &Snapshot, now: &Snapshot, ms: u64) -> OperationSummary {
    let (_, failed, _) = sum(operation, now, is_failure);
    let (_, count, buckets) = sum(operation, now, |_| true);
    let (_, count_before, buckets_before) = sum(operation, before, |_| true);
    let mut new = buckets;
    for (new, before) in new.iter_mut().zip(buckets_before) {
        *new = new.saturating_sub(before);
    }
    let rate = (count - count_before.min(count)) as f64 * 1_000.0 / ms.max(1) as f64;
    OperationSummary {
        operation,
        count,
        failed,
        per_second: if ms == 0 {
            0.0
        } else {
            (rate * 1_000.0).round() / 1_000.0
        },
        latency: percentiles(&new),
    }
}

pub(crate) type Buckets = [u64; BUCKET_BOUNDS.len() + 1];

fn sum(
    operation: Operation,
    snapshot: &Snapshot,
    counts: impl Fn(Outcome) -> bool,
) -> (Operation, u64, Buckets) {
    let mut total = 0;
    let mut buckets = [0; BUCKET_BOUNDS.len() + 1];
    let wanted = |ended: &&Ended| ended.operation == operation && counts(ended.outcome);
    for ended in snapshot.ended.iter().filter(wanted) {
        total += ended.count;
        for (sum, count) in buckets.iter_mut().zip(ended.buckets) {
            *sum += count;
        }
    }
    (operation, total, buckets)
}

fn is_failure(outcome: Outcome) -> bool {
    use Outcome::{Cancelled, Corrupt, Invalid, Refused, Unavailable, Unknown};
    matches!(
        outcome,
        Unknown | Unavailable | Refused | Invalid | Corrupt | Cancelled
    )
}

/// Values count as spread evenly within their bucket.
pub(crate) fn percentiles(buckets: &Buckets) -> Option<Percentiles> {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return None;
    }
    let at = |percent: u64| {
        let wanted = (total * percent).div_ceil(100);
        let mut below = 0;
        for (place, count) in buckets.iter().enumerate() {
            if below + count >= wanted {
                let bound = |place: usize| {
                    let bound = BUCKET_BOUNDS.get(place).or(BUCKET_BOUNDS.last());
                    bound.map_or(0.0, |bound| bound.as_secs_f64() * 1_000.0)
                };
                let low = if place == 0 { 0.0 } else { bound(place - 1) };
                let part = (wanted - below) as f64 / (*count).max(1) as f64;
                let value = low + (bound(place) - low) * part;
                return (value * 100.0).round() / 100.0;
            }
            below += count;
        }
        0.0
    };
    Some(Percentiles {
        p50_ms: at(50),
        p95_ms: at(95),
        p99_ms: at(99),
    })
}

#[cfg(test)]
mod tests {
    use tenure_store::wrap::metered::Metered;
    use tenure_store::{Expect, Key, Store};

    use super::*;

    #[tokio::test]
    async fn rates_are_differences_and_totals_are_not() {
        let store = Metered::new(tenure_store::open("memory:").await.unwrap());
        let key = Key::new("a").unwrap();
        let mut readings = Readings::default();
        let mut read = |at| {
            let summary = readings.summary(at, store.meter().snapshot(), &store.describe());
            serde_json::to_value(summary).unwrap()
        };
        store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
        store
            .put(&key, "1".into(), &Expect::Absent)
            .await
            .unwrap_err();
        read(10_000);
        for _ in 0..20 {
            store.get(&key).await.unwrap();
        }
        let summary = read(20_000);
        let of = |name: &str| {
            let operations = summary["operations"].as_array().unwrap();
            operations
                .iter()
                .find(|each| each["operation"] == name)
                .unwrap()
                .clone()
        };
        assert_eq!(of("get")["per_second"], 2.0);
        assert_eq!(of("get")["count"], 20);
        assert!(of("get")["latency"]["p50_ms"].as_f64().unwrap() >= 0.0);
        assert_eq!(of("put")["count"], 2);
        assert_eq!(of("put")["per_second"], 0.0);
        // A conflict is not a failure.
        assert_eq!(of("put")["failed"], 0);
        assert!(of("put")["latency"].is_null());
    }

    #[test]
    fn commits_are_those_of_the_last_minute() {
        let mut readings = CommitReadings::default();
        let log = |commits, bytes| {
            let mut log = Metrics {
                commits,
                bytes,
                ..Metrics::default()
            };
            log.commit_latency.buckets[3] = commits;
            log
        };
        let first = readings.read(1_000, &log(1_000, 9_000));
        assert_eq!(first.commit_bytes_mean, None);
        let next = readings.read(11_000, &log(1_020, 9_400));
        assert_eq!(
            (next.commits_per_second, next.commit_bytes_mean),
            (2.0, Some(20))
        );
        assert!(next.commit.unwrap().p50_ms > 0.4);
        let set_back = readings.read(0, &log(1_030, 9_500));
        assert_eq!(set_back.commits_per_second, 0.0);
    }

    #[test]
    fn percentiles_lie_within_their_bucket() {
        let mut buckets = [0; BUCKET_BOUNDS.len() + 1];
        // 99 requests of at most 0.1 ms, one of more than every bound.
        buckets[0] = 99;
        buckets[BUCKET_BOUNDS.len()] = 1;
        let found = percentiles(&buckets).unwrap();
        assert!(found.p50_ms > 0.0 && found.p50_ms <= 0.1);
        assert!(found.p99_ms <= 0.1);
    }
}
