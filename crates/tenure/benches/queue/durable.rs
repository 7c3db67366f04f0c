//! Durable commits on the file store, next to a bare loop that appends as many bytes and syncs them.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure::core::queue::Submission;
use tenure::queue::Queue;
use tenure::store::engine::file::File;

use crate::report::{Goal, Report};
use crate::rig::{CALLERS, Jobs, PAYLOAD_BYTES, Rig, folder, without_snapshots};

const ROUNDS: usize = 20;
/// More than one caller can submit in a window.
const JOBS_OF_CALLER: usize = 3000;
const WINDOW: Duration = Duration::from_millis(250);

pub(crate) fn measure(report: &Report) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        for callers in [1, CALLERS, 1024] {
            against_bare_appends(report, callers).await;
        }
    });
}

async fn against_bare_appends(report: &Report, callers: usize) {
    let folder = folder();
    let store = Arc::new(File::open(&folder.path().join("store")).await.unwrap());
    let rig = Rig::open(store, without_snapshots()).await;
    let mut jobs = Jobs::new(PAYLOAD_BYTES);
    let (mut rates, mut bare, mut batches) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mine: Vec<_> = (0..callers).map(|_| jobs.take(JOBS_OF_CALLER)).collect();
        let before = rig.queue.statistics().unwrap();
        let seconds = saturate(&rig.queue, mine).await;
        let after = rig.queue.statistics().unwrap();
        let commits = (after.commits - before.commits) as f64;
        let bytes = (after.bytes - before.bytes) / (after.commits - before.commits);
        rates.push(commits / seconds);
        batches.push((after.records - before.records) as f64 / commits);
        // On a thread of its own kind: ours are, too.
        let path = folder.path().join("bare");
        let append = move || append(&path, usize::try_from(bytes).unwrap());
        bare.push(tokio::task::spawn_blocking(append).await.unwrap());
    }
    let median = |values: &mut Vec<f64>| crate::rig::percentile(values, 50);
    let ratios = rates.iter().zip(&bare).map(|(ours, bare)| ours / bare);
    let mut ratios: Vec<f64> = ratios.collect();
    let what = format!("commits per second to bare append and fdatasync, {callers} callers");
    report.row(&what, median(&mut ratios), "x", Goal::AtLeast(0.8));
    report.row("  commits", median(&mut rates), "/s", Goal::None);
    report.row("  bare appends", median(&mut bare), "/s", Goal::None);
    let jobs = median(&mut rates) * median(&mut batches);
    report.row("  jobs submitted", jobs, "/s", Goal::None);
    rig.close().await;
}

/// Callers that submit one job after the other, for a while.
async fn saturate(queue: &Queue, jobs: Vec<Vec<Submission>>) -> f64 {
    let over = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let mut tasks = Vec::new();
    for mine in jobs {
        let (queue, over) = (queue.clone(), over.clone());
        tasks.push(tokio::spawn(async move {
            for job in mine {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                queue.submit(vec![job]).await.unwrap();
            }
            assert!(over.load(Ordering::Relaxed), "there are jobs enough");
        }));
    }
    tokio::time::sleep(WINDOW).await;
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    started.elapsed().as_secs_f64()
}

fn append(path: &Path, bytes: usize) -> f64 {
    let frame = vec![b'x'; bytes];
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    let (started, mut appends) = (Instant::now(), 0.0);
    while started.elapsed() < WINDOW {
        file.write_all(&frame).unwrap();
        file.sync_data().unwrap();
        appends += 1.0;
    }
    appends / started.elapsed().as_secs_f64()
}
