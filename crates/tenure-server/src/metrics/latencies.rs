//! How long jobs waited and ran, by queue. The follower of the queue feeds it, over all terms of this process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tenure_api::QueueName;

/// The most queues with their own histograms: their names come from clients.
const QUEUES_MAX: usize = 50;

/// The name that all other queues are counted under.
const OTHER: &str = "other";

/// Histogram bounds in seconds: from a job that an idle worker takes at once to a night in a queue.
const BOUNDS: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: String,
}

type Histograms = Family<QueueLabels, Histogram, fn() -> Histogram>;

/// Both histograms of every queue.
#[derive(Debug)]
pub(crate) struct Latencies {
    pickup: Histograms,
    run: Histograms,
    /// The histograms of queues that have their own.
    known: Mutex<HashMap<QueueName, Pair>>,
    other: Pair,
}

#[derive(Debug, Clone)]
struct Pair {
    pickup: Histogram,
    run: Histogram,
}

impl Latencies {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let make = || Histograms::new_with_constructor(|| Histogram::new(BOUNDS));
        let (pickup, run) = (make(), make());
        for (name, help, family) in [
            (
                "tenure_queue_pickup",
                "How long jobs waited for a worker, from when they could be claimed",
                &pickup,
            ),
            (
                "tenure_queue_run",
                "How long attempts took, from the claim to its end",
                &run,
            ),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        }
        let other = pair(&pickup, &run, OTHER);
        Self {
            pickup,
            run,
            known: Mutex::default(),
            other,
        }
    }

    /// Records how long after it became ready a job was claimed.
    pub(crate) fn picked_up(&self, queue: &QueueName, after_ms: u64) {
        self.of(queue).pickup.observe(seconds(after_ms));
    }

    /// Records how long after its claim an attempt ended.
    pub(crate) fn ran(&self, queue: &QueueName, for_ms: u64) {
        self.of(queue).run.observe(seconds(for_ms));
    }

    fn of(&self, queue: &QueueName) -> Pair {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = known.get(queue) {
            return pair.clone();
        }
        if known.len() >= QUEUES_MAX {
            return self.other.clone();
        }
        let pair = pair(&self.pickup, &self.run, queue.as_str());
        known.insert(queue.clone(), pair.clone());
        pair
    }
}

fn pair(pickup: &Histograms, run: &Histograms, queue: &str) -> Pair {
    let queue = queue.to_owned();
    let labels = QueueLabels { queue };
    Pair {
        pickup: pickup.get_or_create(&labels).clone(),
        run: run.get_or_create(&labels).clone(),
    }
}

fn seconds(milliseconds: u64) -> f64 {
    Duration::from_millis(milliseconds).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_queues_have_their_own() {
        let mut registry = Registry::default();
        let latencies = Latencies::new(&mut registry);
        for number in 0..QUEUES_MAX + 10 {
            let queue = QueueName::new(format!("queue-{number}")).unwrap();
            latencies.picked_up(&queue, 7);
            latencies.ran(&queue, 90_000);
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let counts = |name: &str| {
            let name = format!("{name}_count{{");
            text.lines().filter(|line| line.starts_with(&name)).count()
        };
        assert_eq!(counts("tenure_queue_pickup_seconds"), QUEUES_MAX + 1);
        assert_eq!(counts("tenure_queue_run_seconds"), QUEUES_MAX + 1);
        for line in [
            "tenure_queue_pickup_seconds_count{queue=\"other\"} 10",
            "tenure_queue_pickup_seconds_bucket{le=\"0.005\",queue=\"queue-0\"} 0",
            "tenure_queue_pickup_seconds_bucket{le=\"0.01\",queue=\"queue-0\"} 1",
            "tenure_queue_run_seconds_sum{queue=\"queue-0\"} 90.0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
