//! Where ends wait until it is clear how they travel: along with the next claim, or in a call of their own.
//!
//! A claim that is about to be sent takes along what has ended: one call and one commit for both. It then waits for no job,
//! so what ends meanwhile waits for one answer and goes along with the next. While a claim waits for jobs at the broker, or
//! none can be made, ends wait for nobody: they are passed on to the [outbox](super::outbox), which sends them at once.
//!
//! No end is lost on either way: an end stays here until its outcome is known, and whatever goes wrong with the claim, it
//! is told again in a call of its own, which is answered as the first one was. That is also what a broker of an older version is
//! dealt with by: it refuses a claim with ends, or does not look at them.

use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::handler::Ending;
use super::outbox::{BATCH_MAX, Letter, fitting};
use crate::claims::{Ended, EndedRound, Ends};

/// How long no end goes along with a claim after a broker would not have it: it may be of an older version, until it is
/// replaced.
const APART: Duration = Duration::from_secs(60);

/// The ends of a worker's jobs.
pub(crate) struct Desk {
    /// What comes in.
    letters: mpsc::Receiver<Letter>,
    /// To be sent in calls of their own.
    alone: mpsc::Sender<Letter>,
    /// To go along with the next claim, or under way with one.
    riding: Vec<Letter>,
    apart_until: Option<Instant>,
}

impl Desk {
    pub(crate) fn new(letters: mpsc::Receiver<Letter>, alone: mpsc::Sender<Letter>) -> Self {
        Self {
            letters,
            alone,
            riding: Vec::new(),
            apart_until: None,
        }
    }

    /// Whether ends may go along with claims.
    pub(crate) fn may_ride(&self) -> bool {
        self.apart_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Lets none go along for a while.
    pub(crate) fn stay_apart(&mut self) {
        self.apart_until = Some(Instant::now() + APART);
    }

    /// How many go along with the next claim.
    pub(crate) fn riding(&self) -> usize {
        self.riding.len()
    }

    /// Waits for an end. Those that are there, or come without any wait, go along with the next claim. Dropped at any time,
    /// it has lost none.
    pub(crate) async fn gather(&mut self) {
        if self.letters.recv_many(&mut self.riding, BATCH_MAX).await == 0 {
            // No job can end any more.
            std::future::pending::<()>().await;
        }
        loop {
            let before = self.riding.len();
            // Jobs that are about to end go along: without that, the first of many that were begun together would travel
            // alone, and the others a round later, for ever.
            yield_now().await;
            while self.riding.len() < BATCH_MAX
                && let Ok(letter) = self.letters.try_recv()
            {
                self.riding.push(letter);
            }
            if self.riding.len() == before {
                break;
            }
        }
        let fits = fitting(&self.riding);
        self.send_alone(fits).await;
    }

    /// Has everything sent in calls of its own, now and as it comes. Ends only if no job can end any more.
    pub(crate) async fn pass_on(&mut self) {
        self.send_alone(0).await;
        while let Some(letter) = self.letters.recv().await {
            // In here first: nothing that is dropped takes it along.
            self.riding.push(letter);
            self.send_alone(0).await;
        }
        std::future::pending::<()>().await;
    }

    /// Has all but so many sent in calls of their own.
    pub(crate) async fn send_alone(&mut self, but: usize) {
        while self.riding.len() > but
            && let Ok(place) = self.alone.reserve().await
            && let Some(letter) = self.riding.pop()
        {
            place.send(letter);
        }
    }

    /// What goes along, as the client has it.
    pub(crate) fn ends(&self) -> Ends {
        let mut ends = Ends::default();
        for letter in &self.riding {
            match letter.ending.clone() {
                Ending::Complete(completed) => ends.completed.push(completed),
                Ending::Fail(failed) => ends.failed.push(failed),
                Ending::Release(claim) => ends.released.push(claim),
            }
        }
        ends
    }

    /// What went along was answered. Returns the slots of those that are done. The others are told once more, alone: one that
    /// is lost may be the echo of itself, which is found out there, and one that is refused is told in other words.
    pub(crate) async fn answered(&mut self, ended: EndedRound) -> Option<OwnedSemaphorePermit> {
        let mut completed = ended.completed.into_iter();
        let mut failed = ended.failed.into_iter();
        let mut released = ended.released.into_iter();
        let mut slots: Option<OwnedSemaphorePermit> = None;
        for letter in std::mem::take(&mut self.riding) {
            let ended = match &letter.ending {
                Ending::Complete(_) => completed.next(),
                Ending::Fail(_) => failed.next(),
                Ending::Release(_) => released.next(),
            };
            match ended {
                Some(ended @ (Ended::Done | Ended::Cancelled)) => {
                    slots = merged(slots, letter.reply.send(ended));
                }
                _ => self.riding.push(letter),
            }
        }
        self.send_alone(0).await;
        slots
    }
}

/// Slots of one worker, together.
pub(crate) fn merged(
    some: Option<OwnedSemaphorePermit>,
    more: Option<OwnedSemaphorePermit>,
) -> Option<OwnedSemaphorePermit> {
    match (some, more) {
        (Some(mut some), Some(more)) => {
            some.merge(more);
            Some(some)
        }
        (some, more) => some.or(more),
    }
}
