//! Group commit: one write in flight, and whatever arrives meanwhile is the next batch.
//!
//! A [`Writer`] owns the log and runs as a task; [`Handle`]s send it records. What waits is committed as one batch by
//! the [`committer`](super::committer); the writer lets the machine apply it record by record, and only then answers. So
//! a caller that is answered finds its record in the machine, and nobody ever sees a record that is not committed.
//!
//! Every caller is answered, whatever happens: with what the machine said, or with an error that says whether
//! its record can be in the log. A caller that goes away changes nothing: its record is committed as
//! if it had stayed.
//!
//! Snapshots are made in between. While a commit is in flight, or nothing is to do, the machine is asked for
//! the next piece, and another task writes the pieces to the store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::committer::{Committer, Done};
use super::handle::{Batch, Inbox};
use super::metrics::{Counters, SnapshotMetrics, add};
use super::snapshotter::{Outcome, Snapshotter};
use super::{Answered, Committed, Error, Handle, Log, Machine, policy};

/// The task that commits. See the module's documentation.
pub struct Writer<M: Machine> {
    log: Log,
    inbox: Arc<Inbox<M>>,
    snapshots: Snapshotter,
    stop: CancellationToken,
    /// The size of the log below which a snapshot that failed is not tried again.
    snapshot_floor: u64,
}

/// What happens next beside the commits.
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
        let inbox = Inbox::new(&log, machine, counters);
        let handle = Handle::new(&inbox);
        let writer = Self {
            log,
            inbox,
            snapshots: Snapshotter::default(),
            stop,
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
        let appender = self.log.take_appender().ok_or(Error::Stopped)?;
        let (inbox, stop) = (self.inbox.clone(), self.stop.clone());
        let config = self.log.config();
        let (interval, patience) = (config.commit_interval, config.stop_patience);
        let access = self.log.access();
        let mut committer = Committer::start(
            &access.runtime,
            appender,
            inbox.clone(),
            stop.clone(),
            interval,
            access.store.clone(),
        )?;
        // When leadership has been over for as long as a commit may still take.
        let given_up = async move {
            stop.cancelled().await;
            inbox.wake();
            sleep(patience).await;
        };
        tokio::pin!(given_up);
        let mut snapshot_first = false;
        loop {
            // In turns: a snapshot gets on, however fast batches come.
            snapshot_first = !snapshot_first;
            let step = self.snapshots.step(&self.inbox.machine);
            let next = if snapshot_first {
                tokio::select! {
                    biased;
                    outcome = step => Next::Snapshot(outcome),
                    done = committer.next() => Next::Done(done),
                    () = &mut given_up => Next::GivenUp,
                }
            } else {
                tokio::select! {
                    biased;
                    done = committer.next() => Next::Done(done),
                    () = &mut given_up => Next::GivenUp,
                    outcome = step => Next::Snapshot(outcome),
                }
            };
            match next {
                Next::Done(Some(done)) => self.done(done).await?,
                // Everything that was committed has come out, and nothing more will be.
                Next::Done(None) => {
                    self.log.close().await;
                    return Ok(());
                }
                Next::Snapshot(outcome) => self.snapshot_ended(outcome),
                Next::GivenUp => break,
            }
        }
        let in_flight = self.inbox.backlog().land();
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

    /// A batch has come out. An error means that the log has ended.
    async fn done(&mut self, done: Done<M>) -> Result<(), Error> {
        let result = done.result.map(|appended| self.log.appended(appended));
        match &result {
            Ok(_) => self.inbox.room.taken(done.bytes),
            Err(Error::Store(_)) => self.inbox.room.refused(done.bytes),
            Err(_) => {}
        }
        // Before anything in a new file is acknowledged.
        self.log.note_file().await;
        self.settle(done.batch, result, done.took)
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
                self.inbox.counters.latency.add(took);
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
                .inbox
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
        let counters = &self.inbox.counters;
        add(&counters.commits, 1);
        add(&counters.records, answers.len() as u64);
        add(&counters.bytes, committed.bytes);
        batch.answer(answers);
    }

    fn begin_snapshot_if_due(&mut self) {
        let growth = self.log.growth();
        let counters = &self.inbox.counters;
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
        self.inbox
            .machine
            .lock()
            .expect("only this task changes it")
            .begin_snapshot();
        self.snapshots.begin(&self.log);
    }

    fn snapshot_ended(&mut self, outcome: Option<Outcome>) {
        match outcome {
            None => {}
            Some(Ok(written)) => {
                self.log.published(written.bytes, written.growth);
                self.snapshot_floor = 0;
                add(&self.inbox.counters.snapshots, 1);
                self.inbox.counters.published(SnapshotMetrics {
                    position: written.position,
                    at: crate::clock::wall(),
                    bytes: written.bytes,
                });
                match written.swept {
                    Ok(swept) => self.log.swept(swept),
                    Err(error) => {
                        let error = crate::requests::Chain(&error);
                        tracing::warn!(%error, "clean-up after a snapshot failed; trying again with the next one");
                    }
                }
            }
            Some(Err(error)) => {
                let error = crate::requests::Chain(&error);
                tracing::warn!(%error, "a snapshot failed; trying again when the log has grown");
                if let Ok(mut machine) = self.inbox.machine.lock() {
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
            let mut backlog = self.inbox.backlog();
            (backlog.land(), backlog.end(Error::Stopped))
        };
        if let Some(mut batch) = in_flight {
            batch.refuse(&Error::Unknown { source: None });
        }
        for mut batch in waiting {
            batch.refuse(&Error::Stopped);
        }
        self.inbox.wake();
        self.inbox.ended.cancel();
    }
}
