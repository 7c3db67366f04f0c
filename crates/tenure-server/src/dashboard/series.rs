//! The last hour, a point every five seconds, so that a newly opened page has something to plot.
//!
//! The number of points and of queues is bounded. Points are at multiples of the step on the wall clock; a page that
//! has some asks for later ones.

use std::collections::VecDeque;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::histogram::Percentiles;

/// The distance between points.
pub(super) const STEP_MS: u64 = 5_000;

/// How many points are kept: an hour.
pub(super) const POINTS_MAX: usize = 720;

/// How many bars a queue's small plot has: an hour in minutes.
pub(super) const SPARK_POINTS: usize = 60;

/// One queue, or all of them together, during one step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Point {
    pub(super) scheduled: u32,
    pub(super) ready: u32,
    pub(super) running: u32,
    pub(super) dead: u32,
    pub(super) oldest_ready_ms: u32,
    /// Per second.
    pub(super) submitted: f32,
    pub(super) completed: f32,
    pub(super) failed: f32,
    pub(super) died: f32,
    pub(super) pickup: Option<[f32; 3]>,
    pub(super) run: Option<[f32; 3]>,
}

/// Points, oldest first, the last at `until_at`.
#[derive(Debug, Default)]
pub(super) struct Series {
    points: VecDeque<Point>,
    until_at: u64,
}

impl Series {
    pub(super) fn push(&mut self, at: u64, point: Point) {
        // A pause of this process leaves no gap: the missed points repeat the one before.
        let missed = at.saturating_sub(self.until_at) / STEP_MS;
        if !self.points.is_empty() && missed > 1 {
            let before = self.points.back().copied().unwrap_or_default();
            let still = Point {
                submitted: 0.0,
                completed: 0.0,
                failed: 0.0,
                died: 0.0,
                pickup: None,
                run: None,
                ..before
            };
            for _ in 1..missed.min(POINTS_MAX as u64) {
                self.add(still);
            }
        }
        self.add(point);
        self.until_at = at;
    }

    fn add(&mut self, point: Point) {
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// The points after a given time.
    pub(super) fn after(&self, at: u64) -> Answer {
        let new = usize::try_from(self.until_at.saturating_sub(at) / STEP_MS).unwrap_or(POINTS_MAX);
        let length = new.min(self.points.len());
        let points = self.points.range(self.points.len() - length..).copied();
        Answer {
            step_ms: STEP_MS,
            until_at: self.until_at,
            length,
            columns: Columns(points.collect()),
        }
    }

    /// How many jobs waited or ran, in fewer points: the highest of each minute.
    pub(super) fn spark(&self) -> Vec<u32> {
        let per_bar = POINTS_MAX / SPARK_POINTS;
        let points: Vec<u32> = self
            .points
            .iter()
            .map(|point| point.ready.saturating_add(point.running))
            .collect();
        // From the newest backwards, so that the last bar is whole.
        let mut bars: Vec<u32> = points
            .rchunks(per_bar)
            .map(|bar| bar.iter().copied().max().unwrap_or(0))
            .collect();
        bars.reverse();
        bars
    }
}

/// A series, as a page gets it.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    step_ms: u64,
    until_at: u64,
    length: usize,
    columns: Columns,
}

/// Points by column, so that names are sent once and not with every point.
#[derive(Debug)]
struct Columns(Vec<Point>);

impl Serialize for Columns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(15))?;
        let points = &self.0;
        let mut whole = |name, of: fn(&Point) -> u32| {
            map.serialize_entry(name, &points.iter().map(of).collect::<Vec<_>>())
        };
        whole("scheduled", |point| point.scheduled)?;
        whole("ready", |point| point.ready)?;
        whole("running", |point| point.running)?;
        whole("dead", |point| point.dead)?;
        whole("oldest_ready_ms", |point| point.oldest_ready_ms)?;
        let mut broken = |name, of: &dyn Fn(&Point) -> Option<f32>| {
            let column = points.iter().map(|point| of(point).map(rounded));
            map.serialize_entry(name, &column.collect::<Vec<_>>())
        };
        broken("submitted", &|point| Some(point.submitted))?;
        broken("completed", &|point| Some(point.completed))?;
        broken("failed", &|point| Some(point.failed))?;
        broken("died", &|point| Some(point.died))?;
        for (place, name) in ["pickup_p50", "pickup_p95", "pickup_p99"]
            .into_iter()
            .enumerate()
        {
            broken(name, &|point| point.pickup.map(|all| all[place]))?;
        }
        for (place, name) in ["run_p50", "run_p95", "run_p99"].into_iter().enumerate() {
            broken(name, &|point| point.run.map(|all| all[place]))?;
        }
        map.end()
    }
}

/// Two digits are enough for a plot.
fn rounded(value: f32) -> f64 {
    (f64::from(value) * 100.0).round() / 100.0
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a picture needs no more digits"
)]
pub(super) fn three(percentiles: Percentiles) -> [f32; 3] {
    [
        percentiles.p50_ms as f32,
        percentiles.p95_ms as f32,
        percentiles.p99_ms as f32,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(ready: u32) -> Point {
        Point {
            ready,
            ..Point::default()
        }
    }

    fn column(answer: &Answer, name: &str) -> Vec<serde_json::Value> {
        let value = serde_json::to_value(answer).unwrap();
        value["columns"][name].as_array().unwrap().clone()
    }

    #[test]
    fn a_page_gets_what_is_behind_its_own_and_no_more() {
        let mut series = Series::default();
        for place in 1..=1_000_u32 {
            series.push(u64::from(place) * STEP_MS, ready(place));
        }
        let all = series.after(0);
        assert_eq!((all.length, all.until_at), (POINTS_MAX, 1_000 * STEP_MS));
        let new = series.after(998 * STEP_MS);
        assert_eq!(column(&new, "ready"), [999, 1_000]);
        assert_eq!(series.after(1_000 * STEP_MS).length, 0);
        // A page whose clock is wrong.
        assert_eq!(series.after(u64::MAX).length, 0);
    }

    #[test]
    fn a_pause_is_filled_with_what_was_before() {
        let mut series = Series::default();
        series.push(STEP_MS, ready(3));
        series.push(4 * STEP_MS, ready(5));
        assert_eq!(column(&series.after(0), "ready"), [3, 3, 3, 5]);
        // Even a pause longer than everything that is kept.
        series.push(4_000 * STEP_MS, ready(6));
        assert_eq!(series.after(0).length, POINTS_MAX);
    }

    #[test]
    fn a_step_without_samples_has_no_percentile() {
        let mut series = Series::default();
        let point = Point {
            run: Some([1.0, 2.0, 3.456]),
            ..Point::default()
        };
        series.push(STEP_MS, point);
        series.push(2 * STEP_MS, Point::default());
        let answer = series.after(0);
        assert_eq!(
            column(&answer, "run_p99"),
            [serde_json::json!(3.46), serde_json::Value::Null]
        );
        assert_eq!(column(&answer, "pickup_p50")[0], serde_json::Value::Null);
    }

    #[test]
    fn a_bar_is_the_highest_of_its_minute() {
        let mut series = Series::default();
        for place in 1..=24_u32 {
            series.push(u64::from(place) * STEP_MS, ready(place % 12));
        }
        assert_eq!(series.spark(), [11, 11]);
    }
}
