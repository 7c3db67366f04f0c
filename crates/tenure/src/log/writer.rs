//! Group commit: one write in flight, and whatever arrives meanwhile is the next batch.
//!
//! A [`Writer`] owns the log and runs as a task; [`Handle`]s send it records. It takes what is waiting, commits
//! it as one batch, lets the machine apply it record by record, and only then answers. So a caller that is
//! answered finds its record in the machine, and nobody ever sees a record that is not committed. Where the log
//! is kept in files a thread commits, and the writer does the rest: see [`committer`](super::committer).
//!
//! Every caller is answered, whatever happens: with what the machine said, or with an error that says whether
//! its record can be in the log. A caller that goes away changes nothing: its record is committed as
//! if it had stayed.
//!
//! Snapshotter are made by the way. While a commit is in flight, or nothing is to do, the machine is asked for
//! the next piece, and another task writes the pieces to the store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::appender::Appender;
use super::backlog::Batch;
use super::committer::{Committer, Done};
use super::handle::Shared;
use super::lines::Lines;
use super::metrics::{Counters, Flight, SnapshotMetrics, add};
use super::snapshotter::{Outcome, Snapshotter};
use super::{Answered, Committed, Error, Handle, Log, Machine, Position, policy};

/// The task that commits. See the module's documentation.
pub struct Writer<M: Machine> {
    log: Log,
    shared: Arc<Shared<M>>,
    snapshots: Snapshotter,
    stop: CancellationToken,
    last_commit: Option<Instant>,
    /// The last record in the snapshot that is under way.
    snapshot_position: Position,
    /// The size of the log below which a snapshot that failed is not tried again.
    snapshot_floor: u64,
}

/// What happens next beside the thread that commits.
enum Next<M: Machine> {
    Done(Option<Done<M>>),
    Snapshot(Option<Outcome>),
    GivenUp,
}

impl<M: Machine> fmt::Debug for Writer<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = formatter.debug_struct("Writer");
        writer.field("log", &self.log).finish_non_exhaustive()
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
        let shared = Shared::new(log.config(), machine, counters);
        let handle = Handle::new(&shared);
        let writer = Self {
            log,
            shared,
            snapshots: Snapshotter::default(),
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
        if self.log.has_damaged_snapshot() {
            self.begin_snapshot_if_due();
        }
        match self.log.take_appender() {
            Some(appender) => self.run_beside(appender).await,
            None => self.run_alone().await,
        }
    }

    /// Applies and answers what a thread commits.
    async fn run_beside(&mut self, appender: Box<Appender>) -> Result<(), Error> {
        let (shared, stop) = (self.shared.clone(), self.stop.clone());
        let config = self.log.config();
        let (interval, patience) = (config.commit_interval, config.stop_patience);
        let mut committer = Committer::start(appender, shared.clone(), stop.clone(), interval)?;
        let given_up = async move {
            stop.cancelled().await;
            shared.wake();
            sleep(patience).await;
        };
        tokio::pin!(given_up);
        let mut snapshot_first = false;
        loop {
            // In turns: a snapshot gets on, however fast batches come.
            snapshot_first = !snapshot_first;
            let step = self.snapshots.step(&self.shared.machine);
            let next = match snapshot_first {
                true => tokio::select! {
                    biased;
                    outcome = step => Next::Snapshot(outcome),
                    done = committer.next() => Next::Done(done),
                    () = &mut given_up => Next::GivenUp,
                },
                false => tokio::select! {
                    biased;
                    done = committer.next() => Next::Done(done),
                    () = &mut given_up => Next::GivenUp,
                    outcome = step => Next::Snapshot(outcome),
                },
            };
            match next {
                Next::Done(Some(done)) => self.done(done).await?,
                // Everything that was committed has come out, and the thread has ended.
                Next::Done(None) => {
                    self.log.close().await;
                    return Ok(());
                }
                Next::Snapshot(outcome) => self.snapshot_ended(outcome),
                Next::GivenUp => break,
            }
        }
        let in_flight = self.shared.backlog().land();
        while let Some(done) = committer.try_next() {
            self.done(done).await?;
        }
        let Some(mut batch) = in_flight else {
            return Ok(());
        };
        let error = Error::Unknown { source: None };
        batch.refuse(&error);
        Err(error)
    }

    /// A batch has come out of the thread. An error means that the log has ended.
    async fn done(&mut self, done: Done<M>) -> Result<(), Error> {
        let result = done.result.map(|appended| self.log.appended(appended));
        self.log.note_file().await;
        self.settle(done.batch, result, done.took)
    }

    /// Commits, applies and answers, one after the other.
    async fn run_alone(&mut self) -> Result<(), Error> {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.log.close().await;
                    return Ok(());
                }
                () = self.shared.wanted() => {}
                outcome = self.snapshots.step(&self.shared.machine) => {
                    self.snapshot_ended(outcome);
                    continue;
                }
            }
            self.pace().await;
            let taken = self.shared.backlog().take();
            let Some((records, batch)) = taken else {
                self.log.close().await;
                return Ok(());
            };
            let span = tracing::debug_span!(parent: None, "commit", records = records.count());
            self.commit(records, batch).instrument(span).await?;
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

    /// Commits records, applies what they say, and answers. An error means that the log has ended.
    async fn commit(&mut self, records: Lines, mut batch: Batch<M>) -> Result<(), Error> {
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
            let commit = log.write(records);
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
        self.settle(batch, result, started.elapsed())
    }

    /// Applies a batch and answers it, or says why not. An error means that the log has ended.
    fn settle(
        &mut self,
        mut batch: Batch<M>,
        result: Result<Committed, Error>,
        took: Duration,
    ) -> Result<(), Error> {
        match result {
            Ok(committed) => {
                self.shared.counters.latency.add(took);
                self.apply(batch, committed);
                self.begin_snapshot_if_due();
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
        let mut position = committed.first;
        let (answers, digest): (Vec<_>, _) = {
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
            let answers = batch.commands().into_iter().map(&mut apply).collect();
            (answers, machine.digest())
        };
        self.log.was_applied(committed.seq, digest);
        let counters = &self.shared.counters;
        add(&counters.commits, 1);
        add(&counters.records, answers.len() as u64);
        add(&counters.bytes, committed.bytes);
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
        // One that is damaged is made good at once, unless that has just failed.
        let is_wanted = self.log.has_damaged_snapshot() && cost >= self.snapshot_floor;
        let is_due = policy::is_snapshot_due(cost, self.log.snapshot_bytes(), bytes_min);
        if self.snapshots.is_active() || !(is_due || is_wanted) {
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
                        let error = crate::requests::Chain(&error);
                        tracing::warn!(%error, "clean-up behind a snapshot failed, trying again with the next");
                    }
                }
            }
            Some(Outcome::Failed(error)) => {
                let error = crate::requests::Chain(&error);
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
        let (in_flight, waiting) = {
            let mut backlog = self.shared.backlog();
            (backlog.land(), backlog.end(Error::Stopped))
        };
        if let Some(mut batch) = in_flight {
            batch.refuse(&Error::Unknown { source: None });
        }
        for mut batch in waiting {
            batch.refuse(&Error::Stopped);
        }
        self.shared.wake();
        self.shared.ended.cancel();
    }
}

/// Resolves when leadership has been over for as long as a commit may still take.
async fn given_up(stop: &CancellationToken, patience: Duration) {
    stop.cancelled().await;
    sleep(patience).await;
}
