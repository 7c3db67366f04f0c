//! What flows through one queue, or through all of them: rates of the last seconds, latencies of the last minute, and
//! every few seconds a point for the plots.

use std::collections::VecDeque;

use serde::Serialize;
use tenure_core::queue::Counts;

use super::histogram::{Histogram, Percentiles};
use super::series::{Point, STEP_MS, Series, three};

/// Rates cover the last ten seconds: short enough to be current, long enough to be readable.
const RATE_MS: u64 = 10_000;

/// Latencies cover the last minute.
const LATENCY_STEPS: usize = 12;

/// What happened since the last tick.
#[derive(Debug, Default)]
pub(super) struct Happened {
    pub(super) submitted: u32,
    pub(super) claimed: u32,
    pub(super) completed: u32,
    pub(super) failed: u32,
    pub(super) died: u32,
    pub(super) pickup: Histogram,
    pub(super) run: Histogram,
}

/// Per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) submitted: f64,
    pub(super) claimed: f64,
    pub(super) completed: f64,
    pub(super) failed: f64,
    pub(super) died: f64,
}

#[derive(Debug, Default)]
pub(super) struct Flow {
    pub(super) now: Happened,
    pub(super) claimed_at: Option<u64>,
    pub(super) series: Series,
    /// The last seconds, each with the time at which it ended and how long it was.
    seconds: VecDeque<(u64, u64, [u32; 5])>,
    /// The step that is under way, then the ones before it.
    step: Step,
    steps: VecDeque<(Histogram, Histogram)>,
    ticked_at: Option<u64>,
}

#[derive(Debug, Default)]
struct Step {
    number: u64,
    milliseconds: u64,
    counts: [u32; 5],
    pickup: Histogram,
    run: Histogram,
}

impl Flow {
    /// Notes that some time has passed, about a second.
    pub(super) fn tick(&mut self, now: u64, counts: &Counts, oldest_ready_at: Option<u64>) {
        let happened = std::mem::take(&mut self.now);
        // If the clock was set back, no time has passed.
        let length = now.saturating_sub(self.ticked_at.unwrap_or(now.saturating_sub(1_000)));
        self.ticked_at = Some(now);
        let counted = [
            happened.submitted,
            happened.claimed,
            happened.completed,
            happened.failed,
            happened.died,
        ];
        self.seconds.push_back((now, length, counted));
        while let Some((at, ..)) = self.seconds.front()
            && (now.saturating_sub(*at) >= RATE_MS || *at > now)
        {
            self.seconds.pop_front();
        }
        self.step.milliseconds += length;
        for (sum, count) in self.step.counts.iter_mut().zip(counted) {
            *sum = sum.saturating_add(count);
        }
        self.step.pickup.merge(&happened.pickup);
        self.step.run.merge(&happened.run);
        let number = now / STEP_MS;
        if self.step.number != number {
            self.turn(now, number, counts, oldest_ready_at);
        }
    }

    /// Makes a point of a complete step.
    fn turn(&mut self, now: u64, number: u64, counts: &Counts, oldest_ready_at: Option<u64>) {
        let next = Step {
            number,
            ..Step::default()
        };
        let step = std::mem::replace(&mut self.step, next);
        let [submitted, _, completed, failed, died] = step
            .counts
            .map(|count| per_second(count.into(), step.milliseconds));
        let point = Point {
            scheduled: clipped(counts.scheduled),
            ready: clipped(counts.ready),
            running: clipped(counts.running),
            dead: clipped(counts.dead),
            oldest_ready_ms: clipped(oldest_ready_at.map_or(0, |at| now.saturating_sub(at))),
            submitted,
            completed,
            failed,
            died,
            pickup: step.pickup.percentiles().map(three),
            run: step.run.percentiles().map(three),
        };
        self.series.push(number * STEP_MS, point);
        self.steps.push_back((step.pickup, step.run));
        if self.steps.len() > LATENCY_STEPS {
            self.steps.pop_front();
        }
    }

    pub(super) fn rates(&self) -> Rates {
        let length: u64 = self.seconds.iter().map(|(_, length, _)| length).sum();
        let rate = |place: usize| {
            let count: u64 = self
                .seconds
                .iter()
                .map(|(.., each)| u64::from(each[place]))
                .sum();
            let rate = f64::from(per_second(count, length));
            (rate * 100.0).round() / 100.0
        };
        Rates {
            submitted: rate(0),
            claimed: rate(1),
            completed: rate(2),
            failed: rate(3),
            died: rate(4),
        }
    }

    pub(super) fn pickup(&self) -> Option<Percentiles> {
        let mut all = self.step.pickup.clone();
        self.steps.iter().for_each(|(pickup, _)| all.merge(pickup));
        all.percentiles()
    }

    pub(super) fn run(&self) -> Option<Percentiles> {
        let mut all = self.step.run.clone();
        self.steps.iter().for_each(|(_, run)| all.merge(run));
        all.percentiles()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded for a reader anyway"
)]
fn per_second(count: u64, milliseconds: u64) -> f32 {
    (count as f64 * 1_000.0 / milliseconds.max(1) as f64) as f32
}

fn clipped(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(flow: &mut Flow, at: u64, completed: u32) {
        flow.now.completed = completed;
        flow.tick(at, &Counts::default(), None);
    }

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let mut flow = Flow::default();
        for at in 1..=20 {
            second(&mut flow, at * 1_000, 50);
        }
        assert_eq!(flow.rates().completed, 50.0);
        for at in 21..=31 {
            second(&mut flow, at * 1_000, 0);
        }
        assert_eq!(flow.rates().completed, 0.0);
    }

    #[test]
    fn a_late_tick_does_not_look_like_a_burst() {
        let mut flow = Flow::default();
        second(&mut flow, 1_000, 10);
        second(&mut flow, 5_000, 40);
        assert_eq!(flow.rates().completed, 10.0);
    }

    #[test]
    fn a_clock_that_is_set_back_breaks_nothing() {
        let mut flow = Flow::default();
        second(&mut flow, 100_000, 10);
        second(&mut flow, 50_000, 10);
        second(&mut flow, 51_000, 10);
        assert!(flow.rates().completed.is_finite());
    }

    #[test]
    fn latencies_are_those_of_the_last_minute() {
        let mut flow = Flow::default();
        flow.now.run.add(40);
        second(&mut flow, 1_000, 1);
        assert_eq!(flow.run().unwrap().p50_ms, 41.0);
        for at in 2..=70 {
            second(&mut flow, at * 1_000, 0);
        }
        assert_eq!(flow.run(), None);
    }
}
