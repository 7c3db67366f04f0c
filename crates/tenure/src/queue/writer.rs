//! Group commit: one write in flight, and whatever arrives meanwhile is the next batch.
//!
//! A [`Writer`] owns the log and runs as a task; [`Handle`]s send it records. It takes what is waiting, commits
//! it as one batch, lets the machine apply it record by record, and only then answers. So a caller that is
//! answered finds its record in the machine, and nobody ever sees a record that is not committed.
//!
//! Every caller is answered, whatever happens: with what the machine said, or with an error that says whether
//! its record can be in the log. A caller that goes away changes nothing: its record is committed as
//! if it had stayed.
//!
//! Snapshots are made by the way. While a commit is in flight, or nothing is to do, the machine is asked for
//! the next piece, and another task writes the pieces to the store.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::backlog::{Backlog, Batch, Item, Refused};
use super::metrics::{LatencyCounter, SnapshotMetrics};
use super::snapshots::{Outcome, Snapshots};
use super::{Committed, Error, Log, Machine, Position, Record, policy};

/// Sends records to a [`Writer`]. Cheap to clone; the writer ends when the last is dropped.
pub struct Handle<M: Machine> {
    shared: Arc<Shared<M>>,
    /// Closes the backlog when the last handle goes.
    closer: Arc<Closer<M>>,
}

/// The task that commits. See the module's documentation.
pub struct Writer<M: Machine> {
    log: Log,
    shared: Arc<Shared<M>>,
    snapshots: Snapshots,
    stop: CancellationToken,
    last_commit: Option<Instant>,
    /// The last record in the snapshot that is under way.
    snapshot_position: Position,
    /// The size of the log below which a snapshot that failed is not tried again.
    snapshot_floor: u64,
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
    arrived: Notify,
    machine: Mutex<M>,
    counters: Arc<Counters>,
    /// Cancelled when the writer has ended, in any way.
    ended: CancellationToken,
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
    commits: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
    turned_away: AtomicU64,
    snapshots: AtomicU64,
}

impl<M: Machine<Command = Record>> Handle<M> {
    /// Commits a record, and returns what the machine said to it.
    pub async fn commit(&self, line: impl Into<Bytes>) -> Result<Answered<M::Answer>, Error> {
        let record = Record::new(line)?;
        let (sender, receiver) = oneshot::channel();
        self.post(Item {
            command: record.clone(),
            record,
            sender,
        });
        // A writer that was dropped, or panicked, while this was under way says nothing.
        receiver
            .await
            .unwrap_or(Err(Error::Unknown { source: None }))
    }
}

impl<M: Machine> Handle<M> {
    /// Commits a record without waiting for it: whoever has the other end of its sender gets the answer.
    pub(crate) fn post(&self, item: Item<M>) {
        let pushed = self.shared.backlog().push(item);
        match pushed {
            Ok(()) => self.shared.arrived.notify_one(),
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

impl<M: Machine> fmt::Debug for Writer<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = formatter.debug_struct("Writer");
        writer.field("log", &self.log).finish_non_exhaustive()
    }
}

struct Closer<M: Machine>(Arc<Shared<M>>);

impl<M: Machine> Closer<M> {
    fn close(&self) {
        self.0.backlog().close(Error::Stopped);
        self.0.arrived.notify_one();
    }
}

impl<M: Machine> Drop for Closer<M> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<M: Machine> Writer<M> {
    /// A writer for a log and the machine that has replayed it. Nothing happens until it [runs](Writer::run).
    ///
    /// When `stop` is cancelled, leadership is over: the commit in flight gets a short while, and nothing that
    /// waits is committed.
    #[must_use]
    pub fn new(log: Log, machine: M, stop: CancellationToken) -> (Handle<M>, Self) {
        Self::counted(log, machine, stop, Arc::default())
    }

    /// The same, counting on.
    pub(crate) fn counted(
        log: Log,
        machine: M,
        stop: CancellationToken,
        counters: Arc<Counters>,
    ) -> (Handle<M>, Self) {
        let shared = Arc::new(Shared {
            backlog: Mutex::new(Backlog::new(log.config())),
            arrived: Notify::new(),
            machine: Mutex::new(machine),
            counters,
            ended: CancellationToken::new(),
        });
        let handle = Handle {
            shared: shared.clone(),
            closer: Arc::new(Closer(shared.clone())),
        };
        let writer = Self {
            log,
            shared,
            snapshots: Snapshots::default(),
            stop,
            last_commit: None,
            snapshot_position: Position(0),
            snapshot_floor: 0,
        };
        (handle, writer)
    }

    /// Commits until the handles are gone or shut it down, or `stop` is cancelled: `Ok`. Any error means that
    /// the log has ended, and so must leadership.
    pub async fn run(mut self) -> Result<(), Error> {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                () = self.shared.wanted() => {}
                outcome = self.snapshots.step(&self.shared.machine) => {
                    self.snapshot_ended(outcome);
                    continue;
                }
            }
            self.pace().await;
            let Some(batch) = self.shared.backlog().take() else {
                return Ok(());
            };
            self.commit(batch).await?;
            self.begin_snapshot_if_due();
        }
    }

    /// Waits until the interval since the last commit is over.
    async fn pace(&mut self) {
        let interval = self.log.config().commit_interval;
        let Some(last) = self.last_commit.filter(|_| !interval.is_zero()) else {
            return;
        };
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = sleep_until(last + interval) => return,
                outcome = self.snapshots.step(&self.shared.machine) => self.snapshot_ended(outcome),
            }
        }
    }

    /// Commits a batch, applies it, and answers it. An error means that the log has ended.
    async fn commit(&mut self, mut batch: Batch<M>) -> Result<(), Error> {
        if self.stop.is_cancelled() {
            batch.refuse(&Error::Stopped);
            return Ok(());
        }
        let started = Instant::now();
        self.last_commit = Some(started);
        let mut outcomes = Vec::new();
        let result = {
            let Self {
                log,
                snapshots,
                shared,
                stop,
                ..
            } = self;
            let _flight = Flight::begin(&shared.counters);
            let patience = log.config().stop_patience;
            let commit = log.commit(&batch.records);
            let given_up = given_up(stop, patience);
            tokio::pin!(commit, given_up);
            loop {
                tokio::select! {
                    biased;
                    result = &mut commit => break result,
                    () = &mut given_up => break Err(Error::Unknown { source: None }),
                    outcome = snapshots.step(&shared.machine) => outcomes.push(outcome),
                }
            }
        };
        outcomes
            .into_iter()
            .for_each(|outcome| self.snapshot_ended(outcome));
        match result {
            Ok(committed) => {
                self.shared.counters.latency.add(started.elapsed());
                self.apply(batch, committed);
                Ok(())
            }
            Err(error) => {
                batch.refuse(&error);
                if error.is_not_applied() {
                    Ok(())
                } else {
                    Err(error)
                }
            }
        }
    }

    /// The machine first, then the callers.
    fn apply(&mut self, mut batch: Batch<M>, committed: Committed) {
        let counters = &self.shared.counters;
        add(&counters.commits, 1);
        add(&counters.records, batch.records.len() as u64);
        add(&counters.bytes, committed.bytes);
        let mut position = committed.first;
        let answers: Vec<_> = {
            let mut machine = self
                .shared
                .machine
                .lock()
                .expect("only this task changes it");
            let mut apply = |command| {
                let answer = machine.apply(position, command);
                let answered = Answered { position, answer };
                position = position.next();
                answered
            };
            batch.commands().into_iter().map(&mut apply).collect()
        };
        batch.answer(answers);
    }

    fn begin_snapshot_if_due(&mut self) {
        let growth = self.log.growth();
        let counters = &self.shared.counters;
        counters.log_bytes.store(growth.bytes, Ordering::Relaxed);
        let position = self.log.position().0;
        counters.position.store(position, Ordering::Relaxed);
        let config = self.log.config();
        let bytes_min = config.snapshot_bytes_min.max(self.snapshot_floor);
        let cost = growth.cost(config.object_cost_bytes);
        if self.snapshots.is_active()
            || !policy::is_snapshot_due(cost, self.log.snapshot_bytes(), bytes_min)
        {
            return;
        }
        // Everything that is committed has been applied, so this is the state at the end of the log.
        self.shared
            .machine
            .lock()
            .expect("only this task changes it")
            .begin_snapshot();
        self.snapshot_position = self.log.position();
        self.snapshots.begin(&self.log);
    }

    fn snapshot_ended(&mut self, outcome: Option<Outcome>) {
        match outcome {
            None => {}
            Some(Outcome::Published {
                bytes,
                growth,
                swept,
            }) => {
                self.log.published(bytes, growth);
                self.snapshot_floor = 0;
                add(&self.shared.counters.snapshots, 1);
                self.shared.counters.published(SnapshotMetrics {
                    position: self.snapshot_position,
                    at: crate::clock::wall(),
                    bytes,
                });
                match swept {
                    Ok(swept) => self.log.swept(swept),
                    Err(error) => {
                        tracing::warn!(%error, "clean-up behind a snapshot failed, trying again with the next");
                    }
                }
            }
            Some(Outcome::Failed(error)) => {
                tracing::warn!(%error, "a snapshot failed, trying again when the log has grown");
                if let Ok(mut machine) = self.shared.machine.lock() {
                    machine.abandon_snapshot();
                }
                let config = self.log.config();
                let cost = self.log.growth().cost(config.object_cost_bytes);
                self.snapshot_floor = cost.saturating_add(config.snapshot_bytes_min);
            }
        }
    }
}

/// Also when the task is aborted or the machine panics: nobody waits for an answer that never comes.
impl<M: Machine> Drop for Writer<M> {
    fn drop(&mut self) {
        let left = self.shared.backlog().end(Error::Stopped);
        for mut batch in left {
            batch.refuse(&Error::Stopped);
        }
        self.shared.ended.cancel();
    }
}

/// Resolves when leadership has been over for as long as a commit may still take.
async fn given_up(stop: &CancellationToken, patience: Duration) {
    stop.cancelled().await;
    sleep(patience).await;
}

impl<M: Machine> Shared<M> {
    /// Every change of the backlog is one step that cannot panic half way.
    fn backlog(&self) -> MutexGuard<'_, Backlog<M>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when there is something to commit, or there never will be.
    async fn wanted(&self) {
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

    fn published(&self, snapshot: SnapshotMetrics) {
        let mut last = self
            .last_snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some(snapshot);
    }
}

/// Counts a commit for as long as it is under way.
struct Flight<'a>(&'a Counters);

impl<'a> Flight<'a> {
    fn begin(counters: &'a Counters) -> Self {
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

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
