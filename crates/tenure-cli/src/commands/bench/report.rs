//! The results, for people and for programs.

use std::time::Duration;

use serde::Serialize;

use super::load::{Latency, Meter};
use crate::args::{Bench, Workload};
use crate::output::{counted, table};

/// Fields are only ever added.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    workload: &'static str,
    /// The callers, with `--concurrency`.
    concurrency: Option<u32>,
    /// The calls per second that were asked for, with `--rate`.
    rate: Option<u32>,
    workers: Option<u32>,
    batch: u32,
    payload_bytes: u32,
    seconds: f64,
    pub(super) jobs: u64,
    jobs_per_second: f64,
    pub(super) completed: u64,
    calls: u64,
    pub(super) failed_calls: u64,
    submit_ms: Option<Quantiles>,
    pick_up_ms: Option<Quantiles>,
    whole_ms: Option<Quantiles>,
}

/// In milliseconds.
#[derive(Debug, Serialize)]
struct Quantiles {
    count: u64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Report {
    pub(super) fn of(meter: &Meter, arguments: &Bench, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        let is_work = arguments.workload == Workload::Work;
        Self {
            workload: if is_work { "work" } else { "submit" },
            concurrency: arguments.rate.is_none().then_some(arguments.concurrency),
            rate: arguments.rate,
            workers: is_work.then_some(arguments.workers),
            batch: arguments.batch,
            payload_bytes: arguments.payload_bytes,
            seconds: round(seconds),
            jobs: meter.jobs(),
            jobs_per_second: round(meter.jobs() as f64 / seconds.max(f64::MIN_POSITIVE)),
            completed: meter.completed(),
            calls: meter.calls(),
            failed_calls: meter.failed(),
            submit_ms: quantiles(meter, Latency::Submit),
            pick_up_ms: quantiles(meter, Latency::PickUp),
            whole_ms: quantiles(meter, Latency::Whole),
        }
    }

    pub(super) fn text(&self) -> String {
        let load = match (self.rate, self.concurrency) {
            (Some(rate), _) => format!("{} per second", counted(rate, "call")),
            (None, callers) => counted(callers.unwrap_or_default(), "caller"),
        };
        let mut rows = vec![
            row(["workload", self.workload]),
            row([
                "load",
                &format!(
                    "{load}, {} per call, {} each",
                    counted(self.batch, "job"),
                    counted(self.payload_bytes, "byte")
                ),
            ]),
            row(["time", &format!("{:.1} s", self.seconds)]),
            row([
                "submitted",
                &format!(
                    "{}, {:.0} per second",
                    counted(self.jobs, "job"),
                    self.jobs_per_second
                ),
            ]),
        ];
        if self.workers.is_some() {
            rows.push(row(["completed", &counted(self.completed, "job")]));
        }
        if self.failed_calls > 0 {
            let calls = counted(self.calls, "call");
            let failed = format!("{} of {calls}", self.failed_calls);
            rows.push(row(["failed", &failed]));
        }
        let mut text = table(&rows);
        let heading = ["ms", "p50", "p90", "p99", "p99.9", "max"].map(str::to_owned);
        let mut latencies = vec![heading];
        for (name, quantiles) in [
            ("submit", &self.submit_ms),
            ("pick-up", &self.pick_up_ms),
            ("submit to completion", &self.whole_ms),
        ] {
            if let Some(quantiles) = quantiles {
                let figures = [
                    quantiles.p50,
                    quantiles.p90,
                    quantiles.p99,
                    quantiles.p999,
                    quantiles.max,
                ];
                let [p50, p90, p99, p999, max] = figures.map(|figure| format!("{figure:.2}"));
                latencies.push([name.to_owned(), p50, p90, p99, p999, max]);
            }
        }
        text.push('\n');
        text += &table(&latencies);
        text
    }
}

fn row<const COLUMNS: usize>(cells: [&str; COLUMNS]) -> [String; COLUMNS] {
    cells.map(str::to_owned)
}

fn quantiles(meter: &Meter, latency: Latency) -> Option<Quantiles> {
    let histogram = meter.histogram(latency);
    if histogram.is_empty() {
        return None;
    }
    let at = |quantile: f64| round(histogram.value_at_quantile(quantile) as f64 / 1_000.0);
    Some(Quantiles {
        count: histogram.len(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: round(histogram.max() as f64 / 1_000.0),
    })
}

/// Three decimals are more than the measurement can tell.
fn round(figure: f64) -> f64 {
    (figure * 1_000.0).round() / 1_000.0
}
