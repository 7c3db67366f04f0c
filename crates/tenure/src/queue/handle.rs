//! The way to a [`Writer`](super::Writer): what its callers and it share.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::backlog::{Backlog, Item, Refused};
use super::metrics::{LatencyCounter, SnapshotMetrics};
use super::{Config, Error, Machine, Position, Record};

/// Sends records to a [`Writer`](super::Writer). Cheap to clone; the writer ends when the last is dropped.
pub struct Handle<M: Machine> {
    shared: Arc<Shared<M>>,
    /// Closes the backlog when the last handle goes.
    closer: Arc<Closer<M>>,
}

/// What a record was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered<A> {
    /// Its number in the log.
    pub position: Position,
    /// What the machine said.
    pub answer: A,
}

/// What a writer has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Commits that were done.
    pub commits: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes that they wrote.
    pub bytes: u64,
    /// Commits under way now: at most one.
    pub in_flight: u64,
    /// The most that ever were.
    pub in_flight_max: u64,
    /// Records that wait.
    pub waiting: u64,
    /// Records that were turned away because too many waited.
    pub turned_away: u64,
    /// Snapshots that were published.
    pub snapshots: u64,
}

pub(crate) struct Shared<M: Machine> {
    backlog: Mutex<Backlog<M>>,
    pub(crate) arrived: Notify,
    /// Woken instead, where a thread commits.
    pub(crate) thread: OnceLock<Thread>,
    pub(crate) machine: Mutex<M>,
    pub(crate) counters: Arc<Counters>,
    /// Cancelled when the writer has ended, in any way.
    pub(crate) ended: CancellationToken,
}

/// What is counted, over all writers that are given the same.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) latency: LatencyCounter,
    /// The last record of the log.
    pub(crate) position: AtomicU64,
    /// The size of the log behind the last snapshot.
    pub(crate) log_bytes: AtomicU64,
    pub(crate) last_snapshot: Mutex<Option<SnapshotMetrics>>,
    pub(crate) commits: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
    turned_away: AtomicU64,
    pub(crate) snapshots: AtomicU64,
    /// Terms that could not be served to their end.
    pub(crate) terms_failed: AtomicU64,
}

impl<M: Machine<Command = Record>> Handle<M> {
    /// Commits a record, and returns what the machine said to it.
    pub async fn commit(&self, line: impl Into<Bytes>) -> Result<Answered<M::Answer>, Error> {
        let record = Record::new(line)?;
        let (sender, receiver) = oneshot::channel();
        self.post(Item {
            line: record.clone().as_bytes(),
            command: record,
            sender,
        });
        // A writer that was dropped, or panicked, while this was under way says nothing.
        receiver
            .await
            .unwrap_or(Err(Error::Unknown { source: None }))
    }
}

impl<M: Machine> Handle<M> {
    pub(crate) fn new(shared: &Arc<Shared<M>>) -> Self {
        Self {
            shared: shared.clone(),
            closer: Arc::new(Closer(shared.clone())),
        }
    }

    /// Commits a record without waiting for it: whoever has the other end of its sender gets the answer.
    pub(crate) fn post(&self, item: Item<'_, M>) {
        let pushed = self.shared.backlog().push(item);
        match pushed {
            Ok(true) => self.shared.wake(),
            Ok(false) => {}
            Err(Refused { error, sender }) => {
                if matches!(error, Error::Overloaded { .. }) {
                    add(&self.shared.counters.turned_away, 1);
                }
                let _ = sender.send(Err(error));
            }
        }
    }

    /// Changes what of the machine does not follow from the records. Keep it short, commits wait for it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut M) -> T) -> Result<T, Error> {
        self.shared
            .machine
            .lock()
            .map(|mut machine| change(&mut machine))
            .map_err(|_| Error::Stopped)
    }

    /// Reads the machine: everything that is committed and nothing else. Keep it short, commits wait for it.
    /// Fails if the machine has panicked.
    pub fn read<T>(&self, read: impl FnOnce(&M) -> T) -> Result<T, Error> {
        self.shared
            .machine
            .lock()
            .map(|machine| read(&machine))
            .map_err(|_| Error::Stopped)
    }

    /// What the writer has done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            waiting: self.shared.backlog().len() as u64,
            ..self.shared.counters.statistics()
        }
    }

    /// Takes no more records, commits those that wait, and returns when the writer has ended.
    pub async fn shutdown(&self) {
        self.closer.close();
        self.shared.ended.cancelled().await;
    }
}

impl<M: Machine> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            closer: self.closer.clone(),
        }
    }
}

impl<M: Machine> fmt::Debug for Handle<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut handle = formatter.debug_struct("Handle");
        handle.field("statistics", &self.statistics()).finish()
    }
}

struct Closer<M: Machine>(Arc<Shared<M>>);

impl<M: Machine> Closer<M> {
    fn close(&self) {
        self.0.backlog().close(Error::Stopped);
        self.0.wake();
    }
}

impl<M: Machine> Drop for Closer<M> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<M: Machine> Shared<M> {
    pub(crate) fn new(config: &Config, machine: M, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            backlog: Mutex::new(Backlog::new(config)),
            arrived: Notify::new(),
            thread: OnceLock::new(),
            machine: Mutex::new(machine),
            counters,
            ended: CancellationToken::new(),
        })
    }

    /// Whoever commits is to look at the backlog.
    pub(crate) fn wake(&self) {
        match self.thread.get() {
            Some(thread) => thread.unpark(),
            None => self.arrived.notify_one(),
        }
    }

    /// Every change of the backlog is one step that cannot panic half way.
    pub(crate) fn backlog(&self) -> MutexGuard<'_, Backlog<M>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when there is something to commit, or there never will be.
    pub(crate) async fn wanted(&self) {
        while !self.backlog().is_wanted() {
            self.arrived.notified().await;
        }
    }
}

impl Counters {
    /// All but what waits, which only a writer knows.
    pub(crate) fn statistics(&self) -> Statistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            commits: load(&self.commits),
            records: load(&self.records),
            bytes: load(&self.bytes),
            in_flight: load(&self.in_flight),
            in_flight_max: load(&self.in_flight_max),
            waiting: 0,
            turned_away: load(&self.turned_away),
            snapshots: load(&self.snapshots),
        }
    }

    pub(crate) fn published(&self, snapshot: SnapshotMetrics) {
        let mut last = self
            .last_snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some(snapshot);
    }
}

/// Counts a commit for as long as it is under way.
pub(crate) struct Flight<'a>(&'a Counters);

impl<'a> Flight<'a> {
    pub(crate) fn begin(counters: &'a Counters) -> Self {
        let now = counters.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        counters.in_flight_max.fetch_max(now, Ordering::Relaxed);
        Self(counters)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
