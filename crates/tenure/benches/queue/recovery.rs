//! How long a new leader takes to have a million jobs back, from the log alone and from a snapshot.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::queue::{Config, Queue, Serving};
use tenure::store::engine::file::File;

use crate::report::{Goal, Report};
use crate::rig::{
    Jobs, PAYLOAD_BYTES, Rig, folder, in_runtime, processor_seconds, without_snapshots,
};

const JOBS: usize = 1_000_000;

pub(crate) fn measure(report: &Report) {
    let log_alone = folder();
    fill(log_alone.path(), without_snapshots());
    recover(report, log_alone.path(), "from the log alone");
    let with_snapshot = folder();
    fill(with_snapshot.path(), Config::default());
    recover(
        report,
        with_snapshot.path(),
        "from a snapshot and the log behind it",
    );
}

fn fill(folder: &Path, config: Config) {
    in_runtime(async {
        let store = Arc::new(File::open(folder).await.unwrap());
        let rig = Rig::open(store, config).await;
        let mut jobs = Jobs::new(PAYLOAD_BYTES);
        rig.fill(&mut jobs, JOBS).await;
        rig.close().await;
    });
}

fn recover(report: &Report, folder: &Path, from: &str) {
    in_runtime(async {
        let store = Arc::new(File::open(folder).await.unwrap());
        let options = tenure::NodeOptions::new("", "bench");
        let node = tenure::Node::start_with(store, options).await.unwrap();
        let options = tenure::queue::Options {
            log: without_snapshots(),
            ..tenure::queue::Options::default()
        };
        let started = (Instant::now(), processor_seconds());
        let queue = Queue::open(&node, options).await.unwrap();
        let recovery = watch(&queue);
        queue.serving().await.unwrap();
        let (whole, processor) = (started.0.elapsed(), processor_seconds() - started.1);
        let progress = recovery.await.unwrap();
        let pending = queue.queues().unwrap()[0].counts.ready;
        assert_eq!(pending, JOBS as u64);
        let what = format!("recovery of 1,000,000 jobs {from}, election included");
        report.row(&what, whole.as_secs_f64(), "s", Goal::AtMost(5.0));
        report.row("  processor time", processor, "s", Goal::None);
        report.row("  read", progress as f64 / 1e6, "MB", Goal::None);
        queue.close().await;
        node.shutdown().await;
    });
}

/// How many bytes were read in the end.
fn watch(queue: &Queue) -> tokio::task::JoinHandle<u64> {
    let mut state = queue.watch();
    tokio::spawn(async move {
        let mut bytes = 0;
        loop {
            match &*state.borrow_and_update() {
                Serving::Recovering(progress) => bytes = progress.bytes,
                Serving::Serving { .. } => return bytes,
                _ => {}
            }
            let _ = tokio::time::timeout(Duration::from_secs(60), state.changed()).await;
        }
    })
}
