//! How callers send records to a [`Writer`](super::Writer), and what waits to be committed: bounded, in order, and never
//! forgotten.
//!
//! A record waits as it will be committed: it goes into the last batch if it fits, or begins the next.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::frame::Lines;
use super::metrics::{Counters, Statistics, add};
use super::room::Room;
use super::{Config, Error, Log, Machine, Position, Record};

/// Sends records to a [`Writer`](super::Writer). Cheap to clone; the writer ends when the last is dropped.
pub struct Handle<M: Machine> {
    inbox: Arc<Inbox<M>>,
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

/// What callers and the writer share: what waits to be committed, and the machine.
pub(crate) struct Inbox<M: Machine> {
    backlog: Mutex<Backlog<M>>,
    pub(crate) arrived: Notify,
    /// The thread that commits, if one does: woken instead.
    pub(crate) thread: OnceLock<Thread>,
    pub(crate) machine: Mutex<M>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) room: Room,
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
    pub(crate) fn new(inbox: &Arc<Inbox<M>>) -> Self {
        Self {
            inbox: inbox.clone(),
            closer: Arc::new(Closer(inbox.clone())),
        }
    }

    /// Commits a record without waiting for it. The answer goes to its sender.
    pub(crate) fn post(&self, item: Item<'_, M>) {
        self.post_all([item]);
    }

    /// The same for several, with none of another caller between them: they are one commit, if they fit into a batch.
    pub(crate) fn post_all<'a>(&self, items: impl IntoIterator<Item = Item<'a, M>>)
    where
        M: 'a,
    {
        let mut is_awaited = false;
        let mut refused = Vec::new();
        let mut backlog = self.inbox.backlog();
        for item in items {
            match backlog.push(item) {
                Ok(is_enough) => is_awaited |= is_enough,
                Err(refusal) => refused.push(refusal),
            }
        }
        drop(backlog);
        if is_awaited {
            self.inbox.wake();
        }
        for Refused { error, sender } in refused {
            if matches!(error, Error::Overloaded { .. }) {
                add(&self.inbox.counters.turned_away, 1);
            }
            let _ = sender.send(Err(error));
        }
    }

    /// The same, but all of them or none: if there is no room for one, each is refused. They are one commit, unless a
    /// batch is too small for them.
    pub(crate) fn post_together(&self, items: Vec<Item<'_, M>>) {
        let mut backlog = self.inbox.backlog();
        let sizes: Vec<usize> = items.iter().map(|item| item.line.len() + 1).collect();
        if let Err(error) = backlog.admit_together(&sizes) {
            drop(backlog);
            if matches!(error, Error::Overloaded { .. }) {
                add(&self.inbox.counters.turned_away, items.len() as u64);
            }
            for item in items {
                let _ = item.sender.send(Err(error.clone()));
            }
            return;
        }
        let mut is_awaited = false;
        for item in items {
            match backlog.push(item) {
                Ok(is_enough) => is_awaited |= is_enough,
                Err(_) => unreachable!("all were admitted, under the same lock"),
            }
        }
        drop(backlog);
        if is_awaited {
            self.inbox.wake();
        }
    }

    /// Changes what of the machine does not follow from the records. Keep it short, commits wait for it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut M) -> T) -> Result<T, Error> {
        self.inbox
            .machine
            .lock()
            .map(|mut machine| change(&mut machine))
            .map_err(|_| Error::Stopped)
    }

    /// Reads the machine: everything that is committed and nothing else. Keep it short, commits wait for it.
    /// Fails if the machine has panicked.
    pub fn read<T>(&self, read: impl FnOnce(&M) -> T) -> Result<T, Error> {
        self.inbox
            .machine
            .lock()
            .map(|machine| read(&machine))
            .map_err(|_| Error::Stopped)
    }

    /// What the writer has done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            waiting: self.inbox.backlog().len() as u64,
            ..self.inbox.counters.statistics()
        }
    }

    /// Whether the store takes records as large as those that it has refused last, and a disk has room for a megabyte.
    /// Asks the store only if it has refused any, and has taken none as large since.
    pub async fn check_room(&self) -> Result<(), Error> {
        self.inbox.room.check().await
    }

    /// Takes no more records, commits those that wait, and returns when the writer has ended.
    pub async fn shutdown(&self) {
        self.closer.close();
        self.inbox.ended.cancelled().await;
    }
}

impl<M: Machine> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Self {
            inbox: self.inbox.clone(),
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

struct Closer<M: Machine>(Arc<Inbox<M>>);

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

impl<M: Machine> Inbox<M> {
    pub(crate) fn new(log: &Log, machine: M, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            backlog: Mutex::new(Backlog::new(log.config())),
            arrived: Notify::new(),
            thread: OnceLock::new(),
            machine: Mutex::new(machine),
            counters,
            room: Room::new(log.access().clone()),
            ended: CancellationToken::new(),
        })
    }

    /// Makes the committer look at the backlog.
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
}

pub(crate) type Sender<A> = oneshot::Sender<Result<Answered<A>, Error>>;

pub(crate) struct Backlog<M: Machine> {
    waiting: VecDeque<(Lines, Batch<M>)>,
    /// How many records wait, and how large they are.
    records: usize,
    bytes: usize,
    /// How many records must wait before the committer is woken.
    wanted: usize,
    /// What is being committed just now.
    in_flight: Option<Batch<M>>,
    /// Why nothing more is taken.
    closed: Option<Error>,
    /// The records and bytes of the last batch: room that the next one is given.
    last: (usize, usize),
    records_max: usize,
    bytes_max: usize,
    batch_records_max: usize,
    batch_bytes_max: usize,
}

/// One record on its way.
pub(crate) struct Item<'a, M: Machine> {
    /// As it will be written. It has passed [`check_line`](super::frame::check_line).
    pub(crate) line: &'a [u8],
    /// What it was written from.
    pub(crate) command: M::Command,
    /// Who waits for the answer.
    pub(crate) sender: Sender<M::Answer>,
}

/// What is to be done when records have been committed together.
pub(crate) struct Batch<M: Machine> {
    commands: Vec<M::Command>,
    senders: Vec<Sender<M::Answer>>,
}

/// A record that was not taken: why, and where its caller waits.
#[derive(Debug)]
pub(crate) struct Refused<A> {
    pub(crate) error: Error,
    pub(crate) sender: Sender<A>,
}

impl<M: Machine> Backlog<M> {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            waiting: VecDeque::new(),
            records: 0,
            bytes: 0,
            wanted: 1,
            in_flight: None,
            closed: None,
            last: (0, 0),
            records_max: config.backlog_records_max,
            bytes_max: config.backlog_bytes_max,
            batch_records_max: config.batch_records_max,
            batch_bytes_max: config.batch_bytes_max,
        }
    }

    /// Takes a record, or says why not and gives its sender back. Returns whether enough wait now: only this record
    /// has to wake the committer, which looks here again before it sleeps.
    pub(crate) fn push(&mut self, item: Item<'_, M>) -> Result<bool, Refused<M::Answer>> {
        // With its newline.
        let bytes = item.line.len() + 1;
        if let Err(error) = self.admit(bytes) {
            return Err(Refused {
                error,
                sender: item.sender,
            });
        }
        let (lines, batch) = self.batch_for(1, bytes);
        lines.push(item.line);
        batch.commands.push(item.command);
        batch.senders.push(item.sender);
        self.records += 1;
        self.bytes += bytes;
        Ok(self.records == self.wanted)
    }

    /// Whether records of these sizes may all be taken. If so, they go into one batch, unless it is too small for them.
    fn admit_together(&mut self, sizes: &[usize]) -> Result<(), Error> {
        for &bytes in sizes {
            self.admit(bytes)?;
        }
        let bytes: usize = sizes.iter().sum();
        self.admit_room(sizes.len(), bytes)?;
        self.batch_for(sizes.len(), bytes);
        Ok(())
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        if bytes > self.batch_bytes_max {
            return Err(Error::TooLarge {
                bytes,
                bytes_max: self.batch_bytes_max,
            });
        }
        self.admit_room(1, bytes)
    }

    fn admit_room(&self, records: usize, bytes: usize) -> Result<(), Error> {
        if self.records + records > self.records_max || self.bytes + bytes > self.bytes_max {
            return Err(Error::Overloaded {
                records: self.records,
                bytes: self.bytes,
            });
        }
        Ok(())
    }

    /// The batch that so many more records and bytes go into, or the first of them.
    fn batch_for(&mut self, records: usize, bytes: usize) -> &mut (Lines, Batch<M>) {
        let fits = self.waiting.back().is_some_and(|(lines, _)| {
            lines.count() == 0
                || (lines.count() + records <= self.batch_records_max
                    && lines.bytes() + bytes <= self.batch_bytes_max)
        });
        if !fits {
            let (records, bytes) = self.last;
            let batch = Batch {
                commands: Vec::with_capacity(records),
                senders: Vec::with_capacity(records),
            };
            self.waiting.push_back((Lines::with_capacity(bytes), batch));
        }
        self.waiting.back_mut().expect("one was just made sure of")
    }

    pub(crate) fn len(&self) -> usize {
        self.records
    }

    /// Lets the committer sleep until so many records wait.
    pub(crate) fn want(&mut self, records: usize) {
        self.wanted = records;
    }

    /// Whether nothing more is taken.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// The next records, as many as fit, and what is to be done when they are committed; `None` if nothing waits.
    fn take(&mut self) -> Option<(Lines, Batch<M>)> {
        let (lines, batch) = self.waiting.pop_front()?;
        self.last = (lines.count(), lines.bytes());
        self.records -= lines.count();
        self.bytes -= lines.bytes();
        Some((lines, batch))
    }

    /// Begins to commit the next records: returns them, and keeps their callers.
    pub(crate) fn launch(&mut self) -> Option<Lines> {
        debug_assert!(self.in_flight.is_none(), "one write is in flight");
        let (lines, batch) = self.take()?;
        self.in_flight = Some(batch);
        Some(lines)
    }

    /// The batch that was begun, to answer it; `None` if it was taken before.
    pub(crate) fn land(&mut self) -> Option<Batch<M>> {
        self.in_flight.take()
    }

    /// Takes nothing more. What waits is still committed.
    pub(crate) fn close(&mut self, error: Error) {
        self.closed.get_or_insert(error);
    }

    /// Takes nothing more, and gives back what waits.
    pub(crate) fn end(&mut self, error: Error) -> Vec<Batch<M>> {
        self.close(error);
        std::iter::from_fn(|| self.take().map(|(_, batch)| batch)).collect()
    }
}

impl<M: Machine> Batch<M> {
    /// What is to be applied, once.
    pub(crate) fn commands(&mut self) -> Vec<M::Command> {
        std::mem::take(&mut self.commands)
    }

    /// Answers every caller. One that is gone has no use for it.
    pub(crate) fn answer(self, answers: Vec<Answered<M::Answer>>) {
        assert_eq!(
            answers.len(),
            self.senders.len(),
            "every caller is answered"
        );
        for (sender, answer) in self.senders.into_iter().zip(answers) {
            let _ = sender.send(Ok(answer));
        }
    }

    /// Answers every caller with an error.
    pub(crate) fn refuse(&mut self, error: &Error) {
        for sender in self.senders.drain(..) {
            let _ = sender.send(Err(error.clone()));
        }
    }
}
