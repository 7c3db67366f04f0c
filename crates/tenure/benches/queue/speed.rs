//! Submit, claim and complete, by 64 independent callers on the memory store, at several depths.

use std::sync::Arc;

use tenure::queue::Config;
use tenure::store::engine::memory::Memory;

use crate::report::{Goal, Report};
use crate::rig::{
    CALLERS, Jobs, PAYLOAD_BYTES, Rig, in_runtime, processor_seconds, without_snapshots,
};

const CYCLES: usize = 320_000;
const WARM_UP: usize = 64_000;

pub(crate) fn measure(report: &Report) {
    for depth in [0, 10_000, 50_000] {
        at_depth(report, depth, Config::default());
    }
    // How much of it is snapshots.
    at_depth(report, 0, without_snapshots());
}

fn at_depth(report: &Report, depth: usize, config: Config) {
    in_runtime(async {
        let goal = if config == Config::default() {
            Goal::AtLeast(150_000.0)
        } else {
            Goal::None
        };
        let rig = Rig::open(Arc::new(Memory::new()), config).await;
        let mut jobs = Jobs::new(PAYLOAD_BYTES);
        rig.fill(&mut jobs, depth).await;
        rig.cycles(jobs.split(WARM_UP, CALLERS)).await;
        // Made before: they are the callers', not the engine's.
        let jobs = jobs.split(CYCLES, CALLERS);
        let started = processor_seconds();
        rig.cycles(jobs).await;
        let seconds = processor_seconds() - started;
        let what = format!("cycles per processor second, {CALLERS} callers, depth {depth}");
        let rate = CYCLES as f64 / seconds;
        report.row(&what, rate, "/s", goal);
        let statistics = rig.queue.statistics().unwrap();
        let batch = statistics.records as f64 / statistics.commits as f64;
        report.row("  records in a commit", batch, "", Goal::None);
        report.row("  snapshots", statistics.snapshots as f64, "", Goal::None);
        rig.close().await;
    });
}
