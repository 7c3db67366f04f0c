//! Rates: when one more job of a queue may be claimed.

use serde::{Deserialize, Serialize};
use tenure_api::Rate;

/// A token bucket without tokens: the time at which the jobs claimed so far would have been due at a
/// steady rate. Counted in milliseconds times `jobs`, so that no division ever rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Bucket(u64);

impl Bucket {
    /// From when on one more job may be claimed.
    pub(crate) fn open_at(self, rate: Rate) -> u64 {
        let jobs = u64::from(rate.jobs.max(1));
        self.0.saturating_sub(credit(rate)).div_ceil(jobs)
    }

    pub(crate) fn take(&mut self, rate: Rate, now: u64) {
        self.0 = self.steady(rate, now).saturating_add(rate.period_ms.into());
    }

    /// How many jobs may be claimed at once.
    pub(crate) fn room(self, rate: Rate, now: u64) -> u64 {
        let jobs = u64::from(rate.jobs.max(1));
        let limit = now.saturating_mul(jobs).saturating_add(credit(rate));
        match limit.checked_sub(self.steady(rate, now)) {
            Some(left) => left / u64::from(rate.period_ms.max(1)) + 1,
            None => 0,
        }
    }

    /// Where the next job is counted from.
    fn steady(self, rate: Rate, now: u64) -> u64 {
        // The present is any moment of its millisecond: counted from the end of it, every claim would
        // lose the fraction by which it had to wait for the clock to tick.
        let jobs = u64::from(rate.jobs.max(1));
        self.0
            .max(now.saturating_mul(jobs).saturating_sub(jobs - 1))
    }
}

fn credit(rate: Rate) -> u64 {
    let burst = rate.burst.unwrap_or(rate.jobs).max(1);
    u64::from(burst - 1) * u64::from(rate.period_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of `jobs` claims is let through, asking as early as allowed.
    fn claims(rate: Rate, start: u64, jobs: usize) -> Vec<u64> {
        let mut bucket = Bucket::default();
        let mut now = start;
        (0..jobs)
            .map(|_| {
                now = now.max(bucket.open_at(rate));
                bucket.take(rate, now);
                now - start
            })
            .collect()
    }

    #[test]
    fn a_burst_passes_at_once_and_then_the_rate_holds() {
        let rate = Rate {
            jobs: 3,
            period_ms: 1_000,
            burst: None,
        };
        assert_eq!(claims(rate, 50, 7), [0, 0, 0, 333, 666, 1_000, 1_333]);
        let steady = Rate {
            burst: Some(1),
            ..rate
        };
        assert_eq!(claims(steady, 50, 4), [0, 333, 666, 1_000]);
    }

    #[test]
    fn room_is_what_can_be_taken_at_once() {
        for (jobs, period_ms, burst) in [(3, 1_000, None), (7, 10, Some(1)), (1_000, 7, Some(5))] {
            let rate = Rate {
                jobs,
                period_ms,
                burst,
            };
            let mut bucket = Bucket::default();
            for now in [50, 50, 51, 60, 400, 401, 10_000] {
                let room = bucket.room(rate, now);
                let mut taken = 0;
                // Half of it, so that something is left the next time.
                let mut all = bucket;
                while all.open_at(rate) <= now {
                    all.take(rate, now);
                    taken += 1;
                    if taken <= room.div_ceil(2) {
                        bucket = all;
                    }
                }
                assert_eq!(room, taken, "{rate:?} at {now}");
            }
        }
    }

    #[test]
    fn no_fraction_is_lost_in_the_long_run() {
        let rate = Rate {
            jobs: 7,
            period_ms: 1_000,
            burst: Some(1),
        };
        assert_eq!(claims(rate, 1_700_000_000_000, 7_001)[7_000], 1_000_000);
    }

    #[test]
    fn quiet_time_saves_no_more_than_a_burst() {
        let rate = Rate {
            jobs: 1,
            period_ms: 1_000,
            burst: Some(2),
        };
        let mut bucket = Bucket::default();
        bucket.take(rate, 1_000);
        let late = 1_000_000;
        for expected in [late, late, late + 1_000] {
            let open = bucket.open_at(rate).max(late);
            assert_eq!(open, expected);
            bucket.take(rate, open);
        }
    }
}
