//! What a commit costs at a million pending jobs next to a thousand, and what a million jobs take of memory.

use std::sync::Arc;
use std::time::Instant;

use tenure::queue::Config;
use tenure::store::engine::file::File;

use crate::report::{Goal, Report};
use crate::rig::{
    CALLERS, Jobs, PAYLOAD_BYTES, Rig, folder, in_runtime, processor_seconds, resident_bytes,
    without_snapshots,
};

const CYCLES: usize = 64_000;
const ROUNDS: usize = 5;
const DEPTHS: [usize; 2] = [1_000, 1_000_000];

/// Bytes and processor seconds of a commit.
#[derive(Default, Clone, Copy)]
struct Cost {
    bytes: f64,
    seconds: f64,
}

pub(crate) fn measure(report: &Report) {
    memory(report);
    in_runtime(async {
        let mut rigs = Vec::new();
        for depth in DEPTHS {
            // Snapshots are amortised over the log, and counted by themselves below.
            let store = Arc::new(tenure::store::engine::memory::Memory::new());
            let rig = Rig::open(store, without_snapshots()).await;
            let mut jobs = Jobs::new(PAYLOAD_BYTES);
            rig.fill(&mut jobs, depth).await;
            rig.cycles(jobs.split(CYCLES, CALLERS)).await;
            rigs.push((rig, jobs));
        }
        // In turns, so that noise hits both alike.
        let mut costs = vec![Vec::new(); DEPTHS.len()];
        for _ in 0..ROUNDS {
            for ((rig, jobs), costs) in rigs.iter_mut().zip(&mut costs) {
                costs.push(commits(rig, jobs).await);
            }
        }
        let best = |costs: &[Cost], of: fn(&Cost) -> f64| {
            costs.iter().map(of).fold(f64::INFINITY, f64::min)
        };
        let [small, large] = [&costs[0], &costs[1]];
        let bytes = best(large, |cost| cost.bytes) / best(small, |cost| cost.bytes);
        let seconds = best(large, |cost| cost.seconds) / best(small, |cost| cost.seconds);
        report.row(
            "bytes of a commit, 1,000,000 pending to 1,000",
            bytes,
            "x",
            Goal::AtMost(1.2),
        );
        report.row(
            "processor time of a commit, the same",
            seconds,
            "x",
            Goal::AtMost(1.2),
        );
        let each = best(small, |cost| cost.seconds) * 1e6;
        report.row("  a commit at 1,000", each, "µs", Goal::None);
        for (rig, _) in rigs {
            rig.close().await;
        }
    });
}

async fn commits(rig: &Rig, jobs: &mut Jobs) -> Cost {
    let before = rig.queue.statistics().unwrap();
    let started = processor_seconds();
    rig.cycles(jobs.split(CYCLES, CALLERS)).await;
    let seconds = processor_seconds() - started;
    let after = rig.queue.statistics().unwrap();
    let commits = (after.commits - before.commits) as f64;
    Cost {
        bytes: (after.bytes - before.bytes) as f64 / commits,
        seconds: seconds / commits,
    }
}

/// On files, so that only the queue itself is in memory.
fn memory(report: &Report) {
    let folder = folder();
    in_runtime(async {
        let store = Arc::new(File::open(folder.path()).await.unwrap());
        let rig = Rig::open(store, Config::default()).await;
        let mut jobs = Jobs::new(100);
        rig.fill(&mut jobs, 1000).await;
        let before = resident_bytes();
        let started = Instant::now();
        rig.fill(&mut jobs, 1_000_000).await;
        let seconds = started.elapsed().as_secs_f64();
        let megabytes = (resident_bytes() - before) as f64 / 1e6;
        let what = "memory of 1,000,000 pending jobs of 100 bytes, resident";
        report.row(what, megabytes, "MB", Goal::AtMost(600.0));
        report.row(
            "  submitted in batches of 1,000, durably",
            1e6 / seconds,
            "/s",
            Goal::None,
        );
        let statistics = rig.queue.statistics().unwrap();
        report.row(
            "  snapshots meanwhile",
            statistics.snapshots as f64,
            "",
            Goal::None,
        );
        rig.close().await;
    });
}
