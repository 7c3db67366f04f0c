//! Rates per second, over the last few seconds.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_api as api;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::collector::number;

/// The length of the window, in seconds.
const WINDOW: usize = 10;

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What this server has done, counted.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    pub(crate) submitted: Count,
    pub(crate) claimed: Count,
    pub(crate) completed: Count,
    pub(crate) failed: Count,
    /// The counts, second by second.
    past: Mutex<VecDeque<(Instant, [u64; 4])>>,
}

impl Rates {
    /// Reads the counts every second until it is told to stop.
    pub(crate) async fn sample(&self, stop: &CancellationToken) {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = seconds.tick() => self.note(Instant::now()),
            }
        }
    }

    fn note(&self, now: Instant) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.push_back((now, self.totals()));
        if past.len() > WINDOW + 1 {
            past.pop_front();
        }
    }

    fn totals(&self) -> [u64; 4] {
        [
            &self.submitted,
            &self.claimed,
            &self.completed,
            &self.failed,
        ]
        .map(Count::total)
    }

    /// The rates per second over the window, or over as much of it as there is.
    pub(crate) fn now(&self) -> api::Rates {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some((first_at, first)), Some((last_at, last))) = (past.front(), past.back()) else {
            return api::Rates::default();
        };
        let seconds = last_at.duration_since(*first_at).as_secs_f64();
        if seconds <= 0.0 {
            return api::Rates::default();
        }
        let rate = |place: usize| number(last[place].saturating_sub(first[place])) / seconds;
        api::Rates {
            submitted: rate(0),
            claimed: rate(1),
            completed: rate(2),
            failed: rate(3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_window() {
        let rates = Rates::default();
        let start = Instant::now();
        assert_eq!(rates.now(), api::Rates::default());
        for second in 0..30 {
            rates.note(start + Duration::from_secs(second));
            rates.submitted.add(if second < 20 { 100 } else { 7 });
        }
        assert_eq!(rates.now().submitted, (9.0 * 7.0 + 100.0) / 10.0);
        assert_eq!(rates.past.lock().unwrap().len(), WINDOW + 1);
    }
}
