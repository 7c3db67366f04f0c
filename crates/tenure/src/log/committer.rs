//! The thread that commits to files.
//!
//! A commit to a file blocks, and the next one must not wait for a turn among hundreds of other tasks. So a thread
//! of its own takes what waits, writes it, syncs it, checks the fence, and goes on with what has arrived
//! meanwhile. The [`Writer`](super::Writer) applies and answers what comes out, in the same order: batch n while
//! batch n + 1 is being synced.
//!
//! # Why that is as good as one after the other
//!
//! - *One write is in flight.* There is one thread, and it has the only [`Appender`].
//! - *Nothing is applied or answered that is not committed.* A batch comes out behind its own sync and its own look
//!   at the fence. A commit that failed comes out as an error; unless it certainly did nothing it is the last
//!   thing that does, and nothing is written behind it. What was committed before it stays committed, and is applied
//!   and answered first.
//! - *Nobody reads what is not committed.* The machine is changed by the writer alone, from what comes out.
//! - *A snapshot says where it belongs.* The writer's [`Log`](super::Log) counts what has come out, and is told of a
//!   batch together with the machine. However far ahead the thread is, the log's position is the machine's.
//! - *Every caller is answered.* While a batch is written it stays in the backlog, and is answered by whoever takes
//!   it out of there: the thread when it is done, or the writer when it gives up waiting. Then the thread
//!   finds it gone, and commits nothing more.
//! - *It waits for more only for a moment*, see [`gather`](super::gather), and never when nothing more can come.
//! - *It is bounded.* So many batches may wait to be applied, and the thread waits for room.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::appender::{Appended, Appender};
use super::backlog::Batch;
use super::gather::Gather;
use super::handle::Shared;
use super::lines::Lines;
use super::metrics::Flight;
use super::{Error, Machine};
use crate::task::spawn_thread;

/// How many batches may be committed and not applied. Several, so that the disk need not wait while the writer waits
/// for its turn behind hundreds of callers.
const BATCHES_MAX: usize = 16;

/// Receives from the thread.
pub(crate) struct Committer<M: Machine> {
    done: mpsc::Receiver<Done<M>>,
    thread: Option<JoinHandle<()>>,
}

/// A batch, and what became of it.
pub(crate) struct Done<M: Machine> {
    pub(crate) batch: Batch<M>,
    pub(crate) result: Result<Appended, Error>,
    pub(crate) took: Duration,
}

/// The thread's side.
struct Commits<M: Machine> {
    appender: Box<Appender>,
    shared: Arc<Shared<M>>,
    done: mpsc::Sender<Done<M>>,
    stop: CancellationToken,
    interval: Duration,
    last: Option<Instant>,
    gather: Gather,
}

impl<M: Machine> Committer<M> {
    /// Starts the thread. It ends when the backlog has, when `stop` is cancelled and it is woken, or when this is
    /// dropped.
    pub(crate) fn start(
        appender: Box<Appender>,
        shared: Arc<Shared<M>>,
        stop: CancellationToken,
        interval: Duration,
    ) -> Result<Self, Error> {
        let (sender, done) = mpsc::channel(BATCHES_MAX);
        let commits = Commits {
            appender,
            shared,
            done: sender,
            stop,
            interval,
            last: None,
            gather: Gather::default(),
        };
        let blocks = commits.appender.blocks();
        let thread = spawn_thread("tenure-commit", blocks, commits.run()).map_err(|error| {
            tenure_store::Error::Unavailable {
                doing: "starting the thread that commits".to_owned(),
                source: error.into(),
            }
        })?;
        Ok(Self { done, thread })
    }

    /// The next batch that is done; `None` when the thread has ended. May be dropped at any time.
    pub(crate) async fn next(&mut self) -> Option<Done<M>> {
        let done = self.done.recv().await;
        if done.is_none()
            && let Some(thread) = self.thread.take()
            // It let go of its sender, so it is at its end.
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
            // Whoever sends something from now on wakes this thread; what was sent before is in the backlog.
            let _ = self.shared.thread.set(thread::current());
        }
        while let Some(records) = self.take().await {
            let count = records.count();
            let started = Instant::now();
            self.last = Some(started);
            let flight = Flight::begin(&self.shared.counters);
            let span = tracing::debug_span!(parent: None, "commit", records = records.count());
            let result = self.appender.commit(records).instrument(span).await;
            drop(flight);
            let took = started.elapsed();
            self.gather.committed(count, took);
            let Some(batch) = self.shared.backlog().land() else {
                return;
            };
            let is_over = result.as_ref().is_err_and(|error| !error.is_not_applied());
            let done = Done {
                batch,
                result,
                took,
            };
            // An error means that the writer is gone. What it would have answered is not known to its callers.
            if self.done.send(done).await.is_err() || is_over {
                return;
            }
        }
        self.appender.trim().await;
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
                let mut backlog = self.shared.backlog();
                let waiting = backlog.len();
                let gathering = match waiting {
                    0 => Duration::ZERO,
                    _ => {
                        let since = since.get_or_insert_with(Instant::now);
                        self.gather.wait(waiting, since.elapsed())
                    }
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

    /// Until someone wakes this thread, or for so long.
    async fn rest(&self, most: Option<Duration>) {
        match most {
            most if !self.appender.blocks() => {
                let most = most.unwrap_or(Duration::MAX);
                let _ = tokio::time::timeout(most, self.shared.arrived.notified()).await;
            }
            Some(most) => thread::park_timeout(most),
            None => thread::park(),
        }
    }
}
