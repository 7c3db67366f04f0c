//! Durable commits on the file store, next to a bare loop that appends as many bytes and syncs them, in the same
//! folder and in turns. The loop has one thread and nothing else to do; the queue has callers, each of which
//! waits for its own job, and shares the processors with them. What the loop makes if its file was filled with
//! zeros before is told as well: the queue fills its files, and that is a part of its speed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::core::queue::Submission;
use tenure::store::engine::file::File;
use tokio::sync::oneshot;

use crate::report::{Goal, Report};
use crate::rig::{
    CALLERS, Jobs, PAYLOAD_BYTES, Rig, folder, percentile, processor_seconds, without_snapshots,
};

const ROUNDS: usize = 20;
/// More than one caller can submit in a window, and more than all of them together can.
const JOBS_OF_CALLER: usize = 4000;
const JOBS_OF_ALL: usize = 256_000;
const WINDOW: Duration = Duration::from_millis(250);
/// As much as a file of the log.
const ZEROS_BYTES: usize = 16 * 1024 * 1024;

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
    let (mut rates, mut batches, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bare, mut over_zeros, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let each = JOBS_OF_CALLER.min(JOBS_OF_ALL / callers);
        let mine = jobs.split(each * callers, callers);
        let before = rig.queue.statistics().unwrap();
        let queue = rig.queue.clone();
        let submit = move |job| {
            let queue = queue.clone();
            async move { queue.submit(vec![job]).await.map(drop).unwrap() }
        };
        let (seconds, used) = saturate(submit, mine).await;
        let after = rig.queue.statistics().unwrap();
        let commits = (after.commits - before.commits) as f64;
        let records = (after.records - before.records) as f64;
        let bytes = (after.bytes - before.bytes) / (after.commits - before.commits);
        rates.push(commits / seconds);
        batches.push(records / commits);
        costs.push(used * 1e6 / records);
        alone.push(callers_alone(jobs.split(each * callers, callers)).await);
        // On a thread of its own kind: ours are, too.
        for (name, zeros, rates) in [
            ("bare", 0, &mut bare),
            ("zeros", ZEROS_BYTES, &mut over_zeros),
        ] {
            let path = folder.path().join(name);
            let append = move || append(&path, usize::try_from(bytes).unwrap(), zeros);
            rates.push(tokio::task::spawn_blocking(append).await.unwrap());
        }
    }
    let median = |mut values: Vec<f64>| percentile(&mut values, 50);
    let ratio = |bare: &[f64]| {
        median(
            rates
                .iter()
                .zip(bare)
                .map(|(ours, bare)| ours / bare)
                .collect(),
        )
    };
    let what = format!("commits per second to bare append and fdatasync, {callers} callers");
    report.row(&what, ratio(&bare), "x", Goal::AtLeast(0.8));
    report.row(
        "  to the same over zeros",
        ratio(&over_zeros),
        "x",
        Goal::None,
    );
    report.row("  bare appends", median(bare), "/s", Goal::None);
    report.row("  commits", median(rates.clone()), "/s", Goal::None);
    report.row(
        "  jobs in a commit",
        median(batches.clone()),
        "",
        Goal::None,
    );
    let jobs = rates.iter().zip(&batches).map(|(rate, batch)| rate * batch);
    report.row("  jobs submitted", median(jobs.collect()), "/s", Goal::None);
    report.row("  processor time of a job", median(costs), "µs", Goal::None);
    report.row("  of that, the callers'", median(alone), "µs", Goal::None);
    rig.close().await;
}

/// Callers that submit one job after the other, for a while: how long it took, and how much of the processors.
async fn saturate<S, F>(submit: S, jobs: Vec<Vec<Submission>>) -> (f64, f64)
where
    S: Fn(Submission) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let over = Arc::new(AtomicBool::new(false));
    let (started, used) = (Instant::now(), processor_seconds());
    let mut tasks = Vec::new();
    for mine in jobs {
        let (submit, over) = (submit.clone(), over.clone());
        tasks.push(tokio::spawn(async move {
            let mut mine = mine.into_iter();
            while !over.load(Ordering::Relaxed)
                && let Some(job) = mine.next()
            {
                submit(job).await;
            }
            mine
        }));
    }
    tokio::time::sleep(WINDOW).await;
    over.store(true, Ordering::Relaxed);
    let mut left = Vec::new();
    for task in tasks {
        left.push(task.await.unwrap());
    }
    let took = (started.elapsed().as_secs_f64(), processor_seconds() - used);
    // To let go of jobs that were not needed takes longer than the rest, where there are many callers.
    drop(left);
    took
}

/// What a job costs callers whom a thread answers at once, all who have come, and does nothing else: microseconds of
/// the processors. No queue can cost less.
async fn callers_alone(jobs: Vec<Vec<Submission>>) -> f64 {
    let waiting = Arc::new(Mutex::new(Vec::<oneshot::Sender<()>>::new()));
    let answered = Arc::new(AtomicU64::new(0));
    let thread = {
        let (waiting, answered) = (Arc::downgrade(&waiting), answered.clone());
        std::thread::spawn(move || {
            while let Some(waiting) = waiting.upgrade() {
                let all = std::mem::take(&mut *waiting.lock().unwrap());
                answered.fetch_add(all.len() as u64, Ordering::Relaxed);
                all.into_iter().for_each(|one| one.send(()).unwrap());
                drop(waiting);
                std::thread::park_timeout(Duration::from_millis(1));
            }
        })
    };
    let unparked = thread.thread().clone();
    let submit = move |job: Submission| {
        let (sender, receiver) = oneshot::channel();
        waiting.lock().unwrap().push(sender);
        unparked.unpark();
        async move {
            receiver.await.unwrap();
            drop(vec![job]);
        }
    };
    let (_, used) = saturate(submit, jobs).await;
    thread.join().unwrap();
    used * 1e6 / answered.load(Ordering::Relaxed) as f64
}

/// Appends and syncs for a while, to a new file that has so many zeros.
fn append(path: &Path, bytes: usize, zeros: usize) -> f64 {
    let frame = vec![b'x'; bytes];
    let file = fs::File::create(path).unwrap();
    file.write_all_at(&vec![0; zeros], 0).unwrap();
    file.sync_all().unwrap();
    let (started, mut appends) = (Instant::now(), 0);
    while started.elapsed() < WINDOW {
        file.write_all_at(&frame, (appends * bytes) as u64).unwrap();
        file.sync_data().unwrap();
        appends += 1;
    }
    appends as f64 / started.elapsed().as_secs_f64()
}
