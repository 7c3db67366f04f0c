//! Latencies in milliseconds, small enough to keep many of them, exact to about three percent.
//!
//! A histogram takes no memory before its first value. After that, its size depends on the largest value: under a
//! kilobyte for a minute.

use serde::Serialize;

/// A histogram of latencies.
#[derive(Debug, Clone, Default)]
pub(super) struct Histogram(Option<Box<hdrhistogram::Histogram<u32>>>);

/// The usual three percentiles, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Histogram {
    pub(super) fn add(&mut self, value: u64) {
        let counts = self.0.get_or_insert_with(|| {
            let counts = hdrhistogram::Histogram::new(1);
            Box::new(counts.expect("one significant digit is allowed"))
        });
        // Beyond 49 days the exact value does not matter.
        let recorded = counts.record(value.min(u32::MAX.into()));
        recorded.expect("it grows with its values");
    }

    pub(super) fn merge(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            (_, None) => {}
            (None, theirs) => self.0.clone_from(theirs),
            (Some(mine), Some(theirs)) => {
                mine.add(&**theirs).expect("it grows with its values");
            }
        }
    }

    /// `None` if nothing was added.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let counts = self.0.as_ref()?;
        // The middle of the bucket.
        let at = |quantile| counts.median_equivalent(counts.value_at_quantile(quantile)) as f64;
        Some(Percentiles {
            p50_ms: at(0.50),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thirtieth() {
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
            assert!((found - exact).abs() <= exact / 30.0, "{found} {exact}");
        }
    }

    #[test]
    fn no_value_is_too_large() {
        let mut largest = Histogram::default();
        largest.add(u64::MAX);
        let p99_ms = largest.percentiles().unwrap().p99_ms;
        assert!((4.1e9..4.4e9).contains(&p99_ms), "{p99_ms}");
    }

    #[test]
    fn what_is_merged_counts_as_if_added() {
        let mut all = Histogram::default();
        for value in [7, 70_000, 9] {
            let mut one = Histogram::default();
            one.add(value);
            all.merge(&one);
            all.merge(&Histogram::default());
        }
        let found = all.percentiles().unwrap();
        assert_eq!(found.p50_ms, 9.0);
        assert!(found.p99_ms > 68_000.0, "{found:?}");
    }

    #[test]
    fn nothing_has_no_percentiles() {
        assert!(Histogram::default().percentiles().is_none());
    }
}
