//! What waits to be committed: bounded, in order, and never forgotten.
//!
//! It waits as it will be committed: a record goes into the last batch if it fits, or begins the next.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::lines::Lines;
use super::{Answered, Config, Error, Machine};

pub(crate) type Sender<A> = oneshot::Sender<Result<Answered<A>, Error>>;

pub(crate) struct Backlog<M: Machine> {
    waiting: VecDeque<(Lines, Batch<M>)>,
    /// How many records wait, and how large they are.
    records: usize,
    bytes: usize,
    /// How many records are to wait before whoever commits is woken.
    wanted: usize,
    /// What a thread commits just now.
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

    /// Takes a record, or says why not and leaves it to whoever sent it. Returns whether it makes enough of them:
    /// whoever commits has to be woken for that one only, since it looks here again before it sleeps.
    pub(crate) fn push(&mut self, item: Item<'_, M>) -> Result<bool, Refused<M::Answer>> {
        // With its newline.
        let bytes = item.line.len() + 1;
        if let Err(error) = self.admit(bytes) {
            return Err(Refused {
                error,
                sender: item.sender,
            });
        }
        let (lines, batch) = self.batch_for(bytes);
        lines.push(item.line);
        batch.commands.push(item.command);
        batch.senders.push(item.sender);
        self.records += 1;
        self.bytes += bytes;
        Ok(self.records == self.wanted)
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
        if self.records >= self.records_max || self.bytes + bytes > self.bytes_max {
            return Err(Error::Overloaded {
                records: self.records,
                bytes: self.bytes,
            });
        }
        Ok(())
    }

    /// The batch that so many more bytes go into.
    fn batch_for(&mut self, bytes: usize) -> &mut (Lines, Batch<M>) {
        let fits = self.waiting.back().is_some_and(|(lines, _)| {
            lines.count() < self.batch_records_max && lines.bytes() + bytes <= self.batch_bytes_max
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

    /// Whether there is something to take, or there never will be.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.waiting.is_empty() || self.closed.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.records
    }

    /// Lets whoever commits sleep until so many records wait.
    pub(crate) fn want(&mut self, records: usize) {
        self.wanted = records;
    }

    /// Whether nothing more is taken.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// The next records, as many as fit, and what is to be done when they are committed; `None` if nothing waits.
    pub(crate) fn take(&mut self) -> Option<(Lines, Batch<M>)> {
        let (lines, batch) = self.waiting.pop_front()?;
        self.last = (lines.count(), lines.bytes());
        self.records -= lines.count();
        self.bytes -= lines.bytes();
        Some((lines, batch))
    }

    /// Begins to commit the next records elsewhere: returns them, and keeps everything else.
    pub(crate) fn launch(&mut self) -> Option<Lines> {
        debug_assert!(self.in_flight.is_none(), "one write is in flight");
        let (lines, batch) = self.take()?;
        self.in_flight = Some(batch);
        Some(lines)
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
