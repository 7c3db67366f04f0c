//! What waits to be committed: bounded, in order, and never forgotten.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::{Answered, Config, Error, Machine, Record};

pub(crate) type Sender<A> = oneshot::Sender<Result<Answered<A>, Error>>;

pub(crate) struct Backlog<M: Machine> {
    waiting: VecDeque<Item<M>>,
    bytes: usize,
    /// What a thread commits just now.
    in_flight: Option<Batch<M>>,
    /// Why nothing more is taken.
    closed: Option<Error>,
    records_max: usize,
    bytes_max: usize,
    batch_records_max: usize,
    batch_bytes_max: usize,
}

/// One record on its way.
pub(crate) struct Item<M: Machine> {
    pub(crate) record: Record,
    /// What it was written from.
    pub(crate) command: M::Command,
    /// Who waits for the answer.
    pub(crate) sender: Sender<M::Answer>,
}

/// What is committed together.
pub(crate) struct Batch<M: Machine> {
    pub(crate) records: Vec<Record>,
    commands: Vec<M::Command>,
    senders: Vec<Sender<M::Answer>>,
}

/// A record that was not taken, by the way to whoever sent it.
#[derive(Debug)]
pub(crate) struct Refused<A> {
    pub(crate) error: Error,
    pub(crate) sender: Sender<A>,
}

impl<M: Machine> Backlog<M> {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            in_flight: None,
            closed: None,
            records_max: config.backlog_records_max,
            bytes_max: config.backlog_bytes_max,
            batch_records_max: config.batch_records_max,
            batch_bytes_max: config.batch_bytes_max,
        }
    }

    /// Takes a record, or says why not and leaves it to whoever sent it. Returns whether it is the first that
    /// waits: whoever commits has to be woken for that one only, since it looks here again before it sleeps.
    pub(crate) fn push(&mut self, item: Item<M>) -> Result<bool, Refused<M::Answer>> {
        match self.admit(&item.record) {
            Ok(()) => {
                self.bytes += size_of(&item.record);
                self.waiting.push_back(item);
                Ok(self.waiting.len() == 1)
            }
            Err(error) => Err(Refused {
                error,
                sender: item.sender,
            }),
        }
    }

    fn admit(&self, record: &Record) -> Result<(), Error> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        let bytes = size_of(record);
        if bytes > self.batch_bytes_max {
            return Err(Error::TooLarge {
                bytes,
                bytes_max: self.batch_bytes_max,
            });
        }
        if self.waiting.len() >= self.records_max || self.bytes + bytes > self.bytes_max {
            return Err(Error::Overloaded {
                records: self.waiting.len(),
                bytes: self.bytes,
            });
        }
        Ok(())
    }

    /// Whether there is something to take, or there never will be.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.waiting.is_empty() || self.closed.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The next batch, as much as fits; `None` if nothing waits.
    pub(crate) fn take(&mut self) -> Option<Batch<M>> {
        let mut batch = Batch {
            records: Vec::new(),
            commands: Vec::new(),
            senders: Vec::new(),
        };
        let mut bytes = 0;
        while let Some(Item { record, .. }) = self.waiting.front() {
            bytes += size_of(record);
            if bytes > self.batch_bytes_max || batch.records.len() >= self.batch_records_max {
                break;
            }
            self.bytes -= size_of(record);
            let item = self.waiting.pop_front()?;
            batch.records.push(item.record);
            batch.commands.push(item.command);
            batch.senders.push(item.sender);
        }
        (!batch.records.is_empty()).then_some(batch)
    }

    /// Begins to commit the next batch elsewhere: returns its records, and keeps everything else.
    pub(crate) fn launch(&mut self) -> Option<Vec<Record>> {
        debug_assert!(self.in_flight.is_none(), "one write is in flight");
        let mut batch = self.take()?;
        let records = std::mem::take(&mut batch.records);
        self.in_flight = Some(batch);
        Some(records)
    }

    /// What was begun, for whoever answers it; `None` if that was done.
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
        std::iter::from_fn(|| self.take()).collect()
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

/// With its newline.
fn size_of(record: &Record) -> usize {
    record.as_bytes().len() + 1
}
