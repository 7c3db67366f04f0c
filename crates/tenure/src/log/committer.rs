//! The part that commits, one batch after the other, whatever the form of the log.
//!
//! It takes what waits, [commits](super::appender) it, and goes on with what has arrived meanwhile. The
//! [`Writer`](super::Writer) applies and answers what comes out, in the same order: batch n while batch n + 1 is on its
//! way to the store.
//!
//! A commit to a file blocks its thread, and the next one must not wait for a turn among hundreds of other tasks. So it
//! has a thread of its own. A commit to an object store waits for an answer; the writer's own task drives it.
//!
//! # Why that is as good as one after the other
//!
//! - *One write is in flight.* There is one committer, and it has the only [`Appender`].
//! - *Nothing is applied or answered that is not committed.* A batch comes out behind its own sync and its own look
//!   at the fence, or its own place. A commit that failed comes out as an error; unless it certainly did nothing it is
//!   the last thing that does, and nothing is written behind it. What was committed before it stays committed, and is
//!   applied and answered first.
//! - *Nobody reads what is not committed.* The machine is changed by the writer alone, from what comes out.
//! - *A snapshot says where it belongs.* The writer's [`Log`](super::Log) counts what has come out, and is told of a
//!   batch together with the machine. However far ahead the committer is, the log's position is the machine's.
//! - *Every caller is answered.* While a batch is written it stays in the inbox, and is answered by the one that takes
//!   it out of there: the committer when it is done, or the writer when it gives up waiting. Then the committer
//!   finds it gone, and commits nothing more.
//! - *It waits for more only for a moment*, see below, and never when nothing more can come.
//! - *It is bounded.* So many batches may wait to be applied, and the committer waits for room.
//!
//! # Waiting for more
//!
//! Callers that were answered together come back together, one shortly after the other. A commit that takes only
//! the first of them costs as much as one that takes all, and lets all others wait for it. So a batch that is far
//! smaller than those before it waits for more, for a fraction of what a commit takes. A caller that is alone
//! never waits, nor do so many that the commit is worth it anyway.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_store::Store;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::appender::{Appended, Appender};
use super::frame::Lines;
use super::handle::{Batch, Inbox};
use super::metrics::Flight;
use super::{Error, Machine};
use crate::Runtime;

/// How many batches may be committed and not applied. Several, so that the disk need not wait while the writer waits
/// for its turn behind hundreds of callers.
const BATCHES_MAX: usize = 16;

/// So many records are worth a commit, however many there usually are.
const ENOUGH_MAX: usize = 16;

/// The longest wait, however long a commit took.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// Over about how many commits it is counted what is usual.
const COMMITS: usize = 16;

/// The writer's side.
pub(crate) struct Committer<M: Machine> {
    done: mpsc::Receiver<Done<M>>,
    runs: Runs,
}

/// What drives the other side.
enum Runs {
    /// A thread, since a disk blocks; a task, if it is simulated.
    Apart(Option<JoinHandle<()>>),
    /// The writer's task, while it waits for what comes out.
    Here(BoxFuture<'static, ()>),
    /// It has ended.
    No,
}

/// A batch, and its outcome.
pub(crate) struct Done<M: Machine> {
    pub(crate) batch: Batch<M>,
    pub(crate) result: Result<Appended, Error>,
    /// How many bytes its records have.
    pub(crate) bytes: usize,
    pub(crate) took: Duration,
}

/// The side that commits.
struct Commits<M: Machine> {
    appender: Box<Appender>,
    inbox: Arc<Inbox<M>>,
    done: mpsc::Sender<Done<M>>,
    stop: CancellationToken,
    interval: Duration,
    /// Says how much longer to wait, if requests have a ceiling.
    store: Arc<dyn Store>,
    last: Option<Instant>,
    gather: Gather,
}

impl<M: Machine> Committer<M> {
    /// Starts to commit. Ends when the inbox has, when `stop` is cancelled and it is woken, or when this is dropped.
    pub(crate) fn start(
        runtime: &Runtime,
        appender: Box<Appender>,
        inbox: Arc<Inbox<M>>,
        stop: CancellationToken,
        interval: Duration,
        store: Arc<dyn Store>,
    ) -> Result<Self, Error> {
        let (sender, done) = mpsc::channel(BATCHES_MAX);
        let (is_on_disk, blocks) = (appender.is_on_disk(), appender.blocks());
        let commits = Commits {
            appender,
            inbox,
            done: sender,
            stop,
            interval,
            store,
            last: None,
            gather: Gather::default(),
        };
        let runs = if is_on_disk {
            let thread = runtime.spawn_thread("tenure-commit", blocks, commits.run());
            Runs::Apart(thread.map_err(|error| tenure_store::Error::Unavailable {
                doing: "starting the thread that commits".to_owned(),
                source: error.into(),
            })?)
        } else {
            Runs::Here(Box::pin(commits.run()))
        };
        Ok(Self { done, runs })
    }

    /// The next batch that is done; `None` when there will be no more. May be dropped at any time.
    pub(crate) async fn next(&mut self) -> Option<Done<M>> {
        if let Runs::Here(commits) = &mut self.runs {
            tokio::select! {
                biased;
                done = self.done.recv() => return done,
                () = commits => self.runs = Runs::No,
            }
        }
        let done = self.done.recv().await;
        if done.is_none()
            && let Runs::Apart(thread) = &mut self.runs
            // It let go of its sender, so it is at its end.
            && let Some(thread) = thread.take()
            && let Err(panic) = thread.join()
        {
            resume_unwind(panic);
        }
        done
    }

    /// The next batch that is done already.
    pub(crate) fn try_next(&mut self) -> Option<Done<M>> {
        self.done.try_recv().ok()
    }
}

impl<M: Machine> Commits<M> {
    async fn run(mut self) {
        if self.appender.blocks() {
            // Records that are sent from now on wake this thread; what was sent before is in the backlog.
            let _ = self.inbox.thread.set(thread::current());
        }
        while let Some(records) = self.take().await {
            let (count, bytes) = (records.count(), records.bytes());
            let started = Instant::now();
            self.last = Some(started);
            let flight = Flight::begin(&self.inbox.counters);
            let span = tracing::debug_span!(parent: None, "commit", records = records.count());
            let result = self.appender.commit(records).instrument(span).await;
            drop(flight);
            let took = started.elapsed();
            self.gather.committed(count, took);
            let Some(batch) = self.inbox.backlog().land() else {
                return;
            };
            let is_over = result.as_ref().is_err_and(|error| !error.is_not_applied());
            let done = Done {
                batch,
                result,
                bytes,
                took,
            };
            // An error means that the writer is gone. What it would have answered is not known to its callers.
            if self.done.send(done).await.is_err() || is_over {
                return;
            }
        }
        self.appender.finish().await;
    }

    /// Waits for the next batch; `None` when there never will be one.
    async fn take(&self) -> Option<Lines> {
        let mut since = None;
        loop {
            if self.stop.is_cancelled() {
                return None;
            }
            let interval = self.last.map_or(Duration::ZERO, |last| {
                self.interval.saturating_sub(last.elapsed())
            });
            let wait = {
                let mut backlog = self.inbox.backlog();
                let waiting = backlog.len();
                // Here, where others can join the batch, and not in the request, which would count as lost in the end.
                let interval = if waiting == 0 || self.appender.is_on_disk() {
                    interval
                } else {
                    interval.max(self.store.pause_before_write())
                };
                // Callers of a disk come back within microseconds. A request to a store takes so long that they are in
                // the next one anyway.
                let gathering = match waiting {
                    1.. if self.appender.is_on_disk() => {
                        let since = since.get_or_insert_with(Instant::now);
                        self.gather.wait(waiting, since.elapsed())
                    }
                    _ => Duration::ZERO,
                };
                let wait = interval.max(gathering);
                if backlog.is_closed() || (waiting > 0 && wait.is_zero()) {
                    return backlog.launch();
                }
                backlog.want(match waiting {
                    0 => 1,
                    _ => self.gather.enough(),
                });
                (waiting > 0).then_some(wait)
            };
            self.rest(wait).await;
        }
    }

    /// Until someone sends something, or for so long.
    async fn rest(&self, most: Option<Duration>) {
        match (most, self.appender.blocks()) {
            (Some(most), true) => thread::park_timeout(most),
            (None, true) => thread::park(),
            (Some(most), false) => {
                let _ = tokio::time::timeout(most, self.inbox.arrived.notified()).await;
            }
            (None, false) => self.inbox.arrived.notified().await,
        }
    }
}

/// Whether it is worth a moment to wait for more records before a commit.
#[derive(Debug, Default)]
struct Gather {
    /// How many records were lately committed together, times [`COMMITS`].
    usual: usize,
    /// How long the last commit took.
    took: Duration,
}

impl Gather {
    fn committed(&mut self, records: usize, took: Duration) {
        self.usual = self.usual - self.usual / COMMITS + records;
        self.took = took;
    }

    /// So many records need not wait: half of what is usual.
    fn enough(&self) -> usize {
        (self.usual / COMMITS / 2).clamp(1, ENOUGH_MAX)
    }

    /// How much longer so many records are to wait, the first of which were seen so long ago.
    fn wait(&self, records: usize, waited: Duration) -> Duration {
        if records < self.enough() {
            (self.took / 2).min(WAIT_MAX).saturating_sub(waited)
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: Duration = Duration::from_micros(150);

    fn after(batches: &[(usize, usize)]) -> Gather {
        let mut gather = Gather::default();
        for &(times, records) in batches {
            (0..times).for_each(|_| gather.committed(records, COMMIT));
        }
        gather
    }

    #[test]
    fn a_caller_that_is_alone_never_waits() {
        assert_eq!(after(&[]).wait(1, Duration::ZERO), Duration::ZERO);
        assert_eq!(after(&[(100, 1)]).wait(1, Duration::ZERO), Duration::ZERO);
        // Not for long after there were others either.
        let gather = after(&[(100, 20), (40, 1)]);
        assert_eq!(gather.wait(1, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn the_first_of_many_wait_for_half_of_the_usual() {
        let gather = after(&[(100, 20)]);
        assert_eq!(gather.wait(1, Duration::ZERO), COMMIT / 2);
        assert_eq!(gather.wait(8, COMMIT / 3), COMMIT / 6);
        assert_eq!(gather.wait(8, COMMIT), Duration::ZERO);
        assert_eq!(gather.wait(10, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn neither_a_crowd_nor_a_slow_disk_makes_anyone_wait_for_long() {
        let mut gather = after(&[(100, 10_000)]);
        assert_eq!(gather.wait(ENOUGH_MAX, Duration::ZERO), Duration::ZERO);
        gather.committed(10_000, Duration::from_secs(30));
        assert_eq!(gather.wait(1, Duration::ZERO), WAIT_MAX);
    }
}
