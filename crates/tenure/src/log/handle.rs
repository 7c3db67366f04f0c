//! The way to a [`Writer`](super::Writer): what its callers and it share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::backlog::{Backlog, Item, Refused};
use super::metrics::{Counters, Statistics, add};
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
