//! Leases: how long claims last. They live in the broker's memory, on its own monotonic clock.
//!
//! A heartbeat changes nothing that must survive the broker, so it is no command and costs no storage
//! request. What survives is the claim; a new broker gives every running job one fresh full lease
//! ([`Leases::resume`]), since it cannot know how much of the old one was left. A job whose worker died
//! during the takeover is therefore late by at most one lease, and a living worker never loses a claim to
//! a takeover.
//!
//! Progress is kept with the lease: shown while the job runs, and gone with it or with the broker.
//!
//! A lease that ran out becomes an [`Action::Expire`](super::Action::Expire) that goes through the log:
//! [`Leases::expired`] names each claim once, and from then on its heartbeats are answered
//! [`Lost::Expired`] whatever the log still has to say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::answer::Lost;
use super::event::Event;
use super::machine::Queue;
use super::shelves::Class;
use super::view::PageStart;
use super::{Claim, Payload, Token};
use crate::{JobId, Moment};

/// The leases of all running jobs.
#[derive(Debug, Default)]
pub struct Leases {
    /// By the number of the claim's token.
    leases: BTreeMap<u64, Lease>,
    /// Those that can still run out.
    deadlines: BTreeSet<(Moment, u64)>,
}

#[derive(Debug)]
struct Lease {
    id: JobId,
    token: Token,
    length: Duration,
    /// None once it was reported as expired.
    deadline: Option<Moment>,
    progress: Option<Payload>,
}

/// A claim that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    /// It lasts this much longer.
    Renewed(Duration),
    /// The claim was renewed, and the job is to be given up. As long as its worker says that it still stops, nobody else
    /// may have the job, its key or its turn.
    Cancelled,
}

impl Leases {
    /// Gives every running job a fresh full lease: what a new broker starts with.
    #[must_use]
    pub fn resume(queue: &Queue, now: Moment) -> Self {
        let mut leases = Self::default();
        for (_, handle) in queue.orders[Class::Running as usize].from(PageStart::After(0)) {
            let job = &queue.jobs[handle];
            let running = job.running().expect("a running job has a claim");
            leases.grant(job.id.clone(), running.token, running.lease_ms, now);
        }
        leases
    }

    /// Claims start leases, and their ends end them: to be called with the events of every command.
    pub fn follow(&mut self, events: &[Event], now: Moment) {
        for event in events {
            if let Event::Claimed {
                id,
                token,
                lease_ms,
                ..
            } = event
            {
                self.grant(id.clone(), *token, *lease_ms, now);
            } else if let Some(token) = event.ended_claim()
                && let Some(lease) = self.leases.remove(&token.number)
                && let Some(deadline) = lease.deadline
            {
                self.deadlines.remove(&(deadline, token.number));
            }
        }
    }

    /// Claims were asked for again, and are answered now: their leases start again, since their worker counts from here.
    /// Returns those that were reported as expired: they have ended, whatever the log still has to say, and their worker must
    /// not be told that it holds them.
    #[must_use]
    pub fn claimed_again(
        &mut self,
        tokens: impl IntoIterator<Item = Token>,
        now: Moment,
    ) -> Vec<Token> {
        let mut expired = Vec::new();
        for token in tokens {
            let number = token.number;
            let lease = self.leases.get_mut(&number);
            match lease.and_then(|lease| Some((lease.deadline?, lease))) {
                None => expired.push(token),
                Some((deadline, lease)) => {
                    let renewed = now + lease.length;
                    lease.deadline = Some(renewed);
                    self.deadlines.remove(&(deadline, number));
                    self.deadlines.insert((renewed, number));
                }
            }
        }
        expired
    }

    /// Renews a lease, and notes progress.
    pub fn heartbeat(
        &mut self,
        queue: &Queue,
        id: &JobId,
        token: Token,
        progress: Option<Payload>,
        now: Moment,
    ) -> Result<HeartbeatAnswer, Lost> {
        let status = queue.claim_status(id, token)?;
        // A claim without a lease cannot be; it would never expire. Called lost, its worker stops.
        let lease = self.leases.get_mut(&token.number).ok_or(Lost::Expired)?;
        let deadline = lease.deadline.filter(|&deadline| deadline > now);
        let deadline = deadline.ok_or(Lost::Expired)?;
        if progress.is_some() {
            lease.progress = progress;
        }
        let renewed = now + lease.length;
        lease.deadline = Some(renewed);
        self.deadlines.remove(&(deadline, token.number));
        self.deadlines.insert((renewed, token.number));
        Ok(if status.cancel_requested {
            HeartbeatAnswer::Cancelled
        } else {
            HeartbeatAnswer::Renewed(lease.length)
        })
    }

    /// When the next lease runs out.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// The claims whose lease has run out, at most so many, each of them once. They are to be sent through
    /// the log; if that fails for good, the broker has lost its queue and these leases with it.
    #[must_use]
    pub fn expired(&mut self, now: Moment, most: usize) -> Vec<Claim> {
        let mut claims = Vec::new();
        while claims.len() < most
            && let Some(&(deadline, number)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            let lease = self
                .leases
                .get_mut(&number)
                .expect("a deadline has its lease");
            lease.deadline = None;
            claims.push(Claim {
                id: lease.id.clone(),
                token: lease.token,
            });
        }
        claims
    }

    /// What the worker that runs a job last said of its progress.
    #[must_use]
    pub fn progress(&self, queue: &Queue, id: &JobId) -> Option<&Payload> {
        let running = queue.jobs[queue.find(id)?].running()?;
        self.leases.get(&running.token.number)?.progress.as_ref()
    }

    /// How long ago the worker that runs a job was heard from.
    #[must_use]
    pub fn silence(&self, queue: &Queue, id: &JobId, now: Moment) -> Option<Duration> {
        let running = queue.jobs[queue.find(id)?].running()?;
        let lease = self.leases.get(&running.token.number)?;
        let left = lease.deadline?.since(now);
        Some(lease.length.saturating_sub(left))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn grant(&mut self, id: JobId, token: Token, lease_ms: u32, now: Moment) {
        let length = Duration::from_millis(lease_ms.into());
        let deadline = now + length;
        let lease = Lease {
            id,
            token,
            length,
            deadline: Some(deadline),
            progress: None,
        };
        self.leases.insert(token.number, lease);
        self.deadlines.insert((deadline, token.number));
    }
}

#[cfg(test)]
mod tests {
    use tenure_api::EndedAs;

    use super::*;
    use crate::queue::tests::stories::{Story, id};
    use crate::queue::{Action, Claimed};

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    /// A job whose lease of 30 s started at 0.
    fn running() -> (Story, Leases, Claimed) {
        let mut story = Story::new();
        story.submit(&[r#""id":"a""#]);
        let claimed = story.claim(1).remove(0);
        let mut leases = Leases::default();
        leases.follow(&[Event::claimed(&claimed)], at(0));
        (story, leases, claimed)
    }

    #[test]
    fn a_heartbeat_renews_and_silence_expires_once() {
        let (story, mut leases, claimed) = running();
        let beat = |leases: &mut Leases, now| {
            leases.heartbeat(&story.queue, &id("a"), claimed.token, None, at(now))
        };
        assert_eq!(
            beat(&mut leases, 20),
            Ok(HeartbeatAnswer::Renewed(Duration::from_secs(30)))
        );
        assert_eq!(leases.next_deadline(), Some(at(50)));
        assert_eq!(leases.expired(at(49), 10), []);
        let claim = Claim {
            id: id("a"),
            token: claimed.token,
        };
        assert_eq!(leases.expired(at(50), 10), [claim]);
        assert_eq!(leases.expired(at(99), 10), [], "once");
        // The command is under way: the queue still says running, the worker must not hear that.
        assert_eq!(beat(&mut leases, 51), Err(Lost::Expired));
    }

    #[test]
    fn a_heartbeat_that_comes_late_does_not_bring_a_lease_back() {
        let (story, mut leases, claimed) = running();
        let beat = leases.heartbeat(&story.queue, &id("a"), claimed.token, None, at(30));
        assert_eq!(beat, Err(Lost::Expired));
        assert_eq!(leases.expired(at(30), 10).len(), 1);
    }

    #[test]
    fn ended_claims_have_no_lease() {
        let (mut story, mut leases, claimed) = running();
        let _ = story.complete(&claimed);
        leases.follow(&story.events, at(1));
        assert!(leases.is_empty());
        assert_eq!(leases.next_deadline(), None);
        let beat = leases.heartbeat(&story.queue, &id("a"), claimed.token, None, at(1));
        let how = EndedAs::Completed;
        assert_eq!(beat, Err(Lost::Ended { how }));
    }

    #[test]
    fn a_cancelled_job_is_told_with_every_heartbeat_and_is_kept_while_it_stops() {
        let (mut story, mut leases, claimed) = running();
        let _ = story.act(Action::Cancel(vec![id("a")]));
        leases.follow(&story.events, at(1));
        for now in [20, 40, 60] {
            let beat = leases.heartbeat(&story.queue, &id("a"), claimed.token, None, at(now));
            assert_eq!(beat, Ok(HeartbeatAnswer::Cancelled));
            assert_eq!(leases.next_deadline(), Some(at(now + 30)));
        }
        assert_eq!(leases.expired(at(90), 10).len(), 1, "its worker is gone");
    }

    #[test]
    fn a_new_broker_gives_every_running_job_a_full_lease() {
        let (story, mut old, claimed) = running();
        let progress = Payload::new("50").unwrap();
        let beat = old.heartbeat(&story.queue, &id("a"), claimed.token, Some(progress), at(1));
        assert_eq!(beat, Ok(HeartbeatAnswer::Renewed(Duration::from_secs(30))));
        let shown = old.progress(&story.queue, &id("a")).map(Payload::as_str);
        assert_eq!(shown, Some("50"));
        // Its clock has nothing to do with the old one's.
        let mut new = Leases::resume(&story.queue, at(1_000));
        assert_eq!((new.len(), new.next_deadline()), (1, Some(at(1_030))));
        let beat = new.heartbeat(&story.queue, &id("a"), claimed.token, None, at(1_029));
        assert_eq!(beat, Ok(HeartbeatAnswer::Renewed(Duration::from_secs(30))));
    }

    #[test]
    fn a_claim_asked_for_again_lasts_from_then_on() {
        let (_, mut leases, claimed) = running();
        assert_eq!(leases.claimed_again([claimed.token], at(20)), []);
        assert_eq!(leases.expired(at(49), 10), []);
        assert_eq!(leases.expired(at(50), 10).len(), 1);
        // The command that ends it is under way, so it is not held any more.
        let expired = leases.claimed_again([claimed.token], at(51));
        assert_eq!(expired, [claimed.token]);
        assert_eq!(leases.next_deadline(), None);
    }
}
