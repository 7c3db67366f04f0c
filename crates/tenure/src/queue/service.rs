//! The queue in one term: what the calls of [`Queue`](super::Queue) are answered with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::queue::{Action, ClaimRequest, Command, Event, Limits};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::broker::{Answer, Bells, Broker};
use super::claims::{Ticket, Woken};
use super::time::Time;
use super::{Answered, Error, Handle, Record};
use crate::Leadership;

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) handle: Handle<Broker>,
    pub(crate) leadership: Leadership,
    pub(crate) time: Time,
    pub(crate) limits: Limits,
    pub(crate) waiting_max: usize,
    pub(crate) bells: Arc<Bells>,
    /// Where the nonces of claims come from.
    pub(crate) nonce: AtomicU32,
}

type Receiver = oneshot::Receiver<Result<Answered<Answer>, Error>>;

impl Service {
    /// Commits what is asked, and returns what came of it.
    pub(crate) async fn commit(&self, action: Action) -> Result<Vec<Event>, Error> {
        let line = self.line(action);
        let answered = self.handle.commit(line).await?;
        Ok(answered.answer.events)
    }

    fn line(&self, action: Action) -> Vec<u8> {
        let at = self.time.at();
        let mut line = Vec::with_capacity(256);
        serde_json::to_writer(&mut line, &Command { at, action })
            .expect("commands have no failing serializers, and memory takes them");
        line
    }

    /// Reads what is committed. Fails if leadership is over, also if nobody has noticed yet.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Broker) -> T) -> Result<T, Error> {
        self.check()?;
        let answer = self
            .handle
            .read(|broker| (!broker.is_over).then(|| read(broker)))?;
        answer.ok_or(Error::Stopped)
    }

    /// Changes what lives only as long as the broker.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Broker) -> T) -> Result<T, Error> {
        self.check()?;
        let answer = self
            .handle
            .change(|broker| (!broker.is_over).then(|| change(broker)))?;
        answer.ok_or(Error::Stopped)
    }

    fn check(&self) -> Result<(), Error> {
        self.leadership
            .check()
            .map(drop)
            .map_err(|_| Error::Stopped)
    }

    /// Lets no claim wait any longer.
    pub(crate) fn answer_waiting(&self, error: &Error) {
        let _ = self.handle.change(|broker| broker.answer_waiting(error));
    }

    /// The term is over: every claim that waits is answered, and the state is let go of.
    pub(crate) fn end(&self, error: &Error) {
        let _ = self.handle.change(|broker| broker.end(error));
    }

    /// Claims jobs, and waits for them if there are none.
    pub(crate) async fn claim(
        &self,
        mut request: ClaimRequest,
        wait: Duration,
    ) -> Result<Vec<Event>, Error> {
        let deadline = Instant::now() + wait;
        let mut place = None;
        loop {
            request.nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
            let answered = match self.begin_claim(&request, &mut place, deadline)? {
                Begun::Empty => return Ok(Vec::new()),
                Begun::Sent(receiver) => receiver.await,
                Begun::Waits(mut waits) => match timeout_at(deadline, &mut waits.receiver).await {
                    Ok(answered) => answered,
                    Err(_) if waits.leave() => return Ok(Vec::new()),
                    // It is being committed.
                    Err(_) => (&mut waits.receiver).await,
                },
            };
            let answered = answered.unwrap_or(Err(Error::Unknown { source: None }))?;
            let mut events = answered.answer.events;
            events.retain(|event| matches!(event, Event::Claimed(_)));
            if !events.is_empty() || Instant::now() >= deadline {
                return Ok(events);
            }
        }
    }

    /// Sends a claim if it would find something, and lets it wait otherwise.
    fn begin_claim(
        &self,
        request: &ClaimRequest,
        place: &mut Option<Ticket>,
        deadline: Instant,
    ) -> Result<Begun<'_>, Error> {
        let at = self.time.at();
        let begun = self.change(|broker| {
            // Whoever waits already comes first.
            let woken = match broker.waiting.is_credited() {
                true => broker.waiting.wake(&broker.queue, at),
                false => Vec::new(),
            };
            let (sender, receiver) = oneshot::channel();
            let opens = broker.queue.claimable_at(&request.queues, &request.types);
            if opens.is_some_and(|opens| opens <= at) {
                return Ok((woken, Some(sender), Begun::Sent(receiver)));
            }
            if Instant::now() >= deadline {
                return Ok((woken, None, Begun::Empty));
            }
            let waiting = &mut broker.waiting;
            if waiting.len() >= self.waiting_max {
                return Err(Error::Overloaded {
                    records: waiting.len(),
                    bytes: 0,
                });
            }
            if let Some(opens) = opens {
                waiting.wake_at(opens, None);
                self.bells.claimable.notify_one();
            }
            let ticket = *place.get_or_insert_with(|| waiting.ticket());
            waiting.wait(ticket, request.clone(), sender);
            let waits = Waits {
                service: self,
                ticket,
                receiver,
            };
            Ok((woken, None, Begun::Waits(waits)))
        });
        let (woken, sender, begun) = begun??;
        self.send(woken);
        if let Some(sender) = sender {
            let record = Record::new(self.line(Action::Claim(request.clone())))?;
            self.handle.post(record, sender);
        }
        Ok(begun)
    }

    /// Wakes claims for which there are jobs. Returns when the next queue opens by itself.
    pub(crate) fn wake_claims(&self) -> Result<Option<u64>, Error> {
        let at = self.time.at();
        let (woken, opens) = self.change(|broker| {
            let woken = broker.waiting.wake(&broker.queue, at);
            (woken, broker.waiting.next_opening())
        })?;
        self.send(woken);
        Ok(opens)
    }

    fn send(&self, woken: Vec<Woken>) {
        for Woken { request, sender } in woken {
            match Record::new(self.line(Action::Claim(request))) {
                Ok(record) => self.handle.post(record, sender),
                Err(error) => drop(sender.send(Err(error))),
            }
        }
    }
}

/// What became of a claim at first.
enum Begun<'a> {
    Empty,
    Sent(Receiver),
    Waits(Waits<'a>),
}

/// A claim that waits. Dropped, it waits no more.
struct Waits<'a> {
    service: &'a Service,
    ticket: Ticket,
    receiver: Receiver,
}

impl Waits<'_> {
    /// Whether it waited until now; otherwise it is being committed, or has been answered.
    fn leave(&self) -> bool {
        let ticket = self.ticket;
        let left = self
            .service
            .handle
            .change(|broker| broker.waiting.leave(ticket));
        left.unwrap_or(false)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
