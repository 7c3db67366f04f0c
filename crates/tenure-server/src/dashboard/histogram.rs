//! Latencies in milliseconds, small enough to keep many of them, exact to about six percent.
//!
//! Buckets are spaced evenly within each power of two, eight to each. A histogram only takes the memory of the
//! largest value that it has seen.

use serde::Serialize;

/// Bits of a value that are kept behind its highest one.
const BITS: u32 = 3;

/// How many values fell where.
#[derive(Debug, Clone, Default)]
pub(super) struct Histogram {
    counts: Vec<u32>,
}

/// The usual three, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Histogram {
    pub(super) fn add(&mut self, value: u64) {
        let bucket = bucket(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// None if nothing was added.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let total: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        if total == 0 {
            return None;
        }
        let at = |percent: u64| {
            let wanted = (total * percent).div_ceil(100);
            let mut seen = 0;
            let bucket = self.counts.iter().position(|count| {
                seen += u64::from(*count);
                seen >= wanted
            });
            middle(bucket.unwrap_or(self.counts.len() - 1))
        };
        Some(Percentiles {
            p50_ms: at(50),
            p95_ms: at(95),
            p99_ms: at(99),
        })
    }
}

fn bucket(value: u64) -> usize {
    // Beyond 49 days the exact value says nothing.
    let value = u32::try_from(value).unwrap_or(u32::MAX);
    let magnitude = value.checked_ilog2().unwrap_or(0);
    let bucket = match magnitude.checked_sub(BITS) {
        None => value,
        Some(shift) => ((shift + 1) << BITS) + ((value >> shift) & ((1 << BITS) - 1)),
    };
    bucket as usize
}

/// The middle of what falls into a bucket.
fn middle(bucket: usize) -> f64 {
    let step = 1 << BITS;
    if bucket < step {
        return bucket as f64;
    }
    let shift = bucket / step - 1;
    let low = ((step + bucket % step) as u64) << shift;
    low as f64 + ((1_u64 << shift) - 1) as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_sixteenth() {
        let mut histogram = Histogram::default();
        for value in 1..=10_000 {
            histogram.add(value);
        }
        let found = histogram.percentiles().unwrap();
        for (found, exact) in [
            (found.p50_ms, 5_000.0),
            (found.p95_ms, 9_500.0),
            (found.p99_ms, 9_900.0),
        ] {
            assert!((found - exact).abs() <= exact / 16.0, "{found} {exact}");
        }
    }

    #[test]
    fn every_value_lies_in_a_bucket_that_contains_it() {
        for value in (0..5_000).chain([u64::from(u32::MAX) - 1, u64::MAX]) {
            let middle = middle(bucket(value));
            let value = value.min(u64::from(u32::MAX)) as f64;
            assert!((middle - value).abs() <= value / 16.0, "{value} {middle}");
        }
    }

    #[test]
    fn nothing_has_no_percentiles() {
        assert!(Histogram::default().percentiles().is_none());
        let mut one = Histogram::default();
        one.add(7);
        let mut all = Histogram::default();
        all.merge(&one);
        assert_eq!(all.percentiles().unwrap().p99_ms, 7.0);
    }
}
