//! The broker's state: the queue, and what lives only as long as the broker.
//!
//! The [`Queue`] follows from the log alone. Beside it are the leases of running jobs, the claims that wait and
//! those who follow. All of it is behind one lock, so that a waiting claim, a heartbeat and a commit see each
//! other whole; nothing under it waits or writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tenure_core::Moment;
use tenure_core::queue::{
    self, Action, Claim, ClaimRequest, Claimed, Command, Event, Key, Leases, Queue, Restore, Rules,
    SnapshotError,
};
use tokio::sync::{Notify, broadcast, mpsc};

use super::claims::Waiting;
use super::follow::{Followed, Follower, Past};
use super::{Error, Position};
use crate::Runtime;
use crate::clock::Clock;
use crate::log::Machine;

/// What came of a command. Dropped before it was [taken](Answer::take), it hands back what was claimed: its
/// caller is gone, and jobs must not wait for a worker that never heard of them.
#[derive(Debug)]
pub(crate) struct Answer {
    answer: queue::Answer,
    abandoned: Option<mpsc::UnboundedSender<Claim>>,
}

impl Answer {
    pub(crate) fn take(mut self) -> queue::Answer {
        self.abandoned = None;
        std::mem::replace(&mut self.answer, queue::Answer::Done)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let Some(abandoned) = self.abandoned.take() else {
            return;
        };
        for Claimed { id, token, .. } in jobs(&self.answer) {
            let (id, token) = (id.clone(), *token);
            // An error means that the term is over; then the lease runs out.
            let _ = abandoned.send(Claim { id, token });
        }
    }
}

/// What was claimed.
fn jobs(answer: &queue::Answer) -> &[Claimed] {
    match answer {
        queue::Answer::Claimed(jobs) => jobs,
        _ => &[],
    }
}

#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) queue: Queue,
    pub(crate) leases: Leases,
    pub(crate) waiting: Waiting,
    followers: Option<broadcast::Sender<Followed>>,
    /// What they may have missed, while somebody wants it kept.
    past: Option<Past>,
    /// The last command that was applied.
    position: Position,
    /// Of the command that is applied. Kept, so that each does not take memory of its own.
    events: Vec<Event>,
    clock: Clock,
    restore: Option<Restore>,
    seed: u64,
    pub(crate) alarm: Alarm,
    signals: Arc<Signals>,
    /// Where claims go whose caller is gone. Bounded by the claims that are under way.
    abandoned: mpsc::UnboundedSender<Claim>,
    /// The term is over, and what was here is gone.
    pub(crate) is_over: bool,
}

/// Why what a log holds is not the state of a queue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// A record is not a command.
    #[error("a command cannot be read")]
    Command(#[from] serde_json::Error),
    /// The lines of a snapshot are not a queue.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A snapshot has no lines.
    #[error("the snapshot is empty")]
    Empty,
}

/// What the task for what is due sleeps towards. Whatever is due earlier wakes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alarm {
    /// In the queue's time.
    pub(crate) due: u64,
    pub(crate) lease: Moment,
}

/// Wakes the tasks of a term.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// How many queues, types and schedules there are: whether it is worth the lock to look.
    pub(crate) queues: AtomicUsize,
    pub(crate) schedules: AtomicUsize,
    pub(crate) types: AtomicUsize,
    /// About how many claims wait, for the same reason.
    pub(crate) waiting: AtomicUsize,
    /// Something may be due earlier than it was.
    pub(crate) due: Notify,
    /// Claims that wait may be woken.
    pub(crate) claimable: Notify,
}

impl Alarm {
    /// Everything wakes it.
    pub(crate) const UNSET: Self = Self {
        due: u64::MAX,
        lease: Moment::NEVER,
    };
}

impl Broker {
    pub(crate) fn new(
        runtime: &Runtime,
        follow_max: usize,
        signals: Arc<Signals>,
        abandoned: mpsc::UnboundedSender<Claim>,
    ) -> Self {
        let seed = runtime.unique().as_u64_pair().0;
        Self {
            queue: Queue::new(seed),
            leases: Leases::default(),
            waiting: Waiting::default(),
            followers: Some(broadcast::Sender::new(follow_max)),
            past: None,
            position: Position::default(),
            events: Vec::new(),
            clock: runtime.clock.clone(),
            restore: None,
            seed,
            alarm: Alarm::UNSET,
            signals,
            abandoned,
            is_over: false,
        }
    }

    /// The log has been replayed: every running job gets a fresh lease.
    pub(crate) fn begin(&mut self) {
        self.leases = Leases::resume(&self.queue, self.clock.moment());
        self.count();
    }

    /// What is committed from now on, or behind a place; none if that is not kept, or the term is over.
    pub(crate) fn follow(&self, after: Option<Position>) -> Option<Follower> {
        let receiver = self.followers.as_ref()?.subscribe();
        let past = match after {
            Some(after) => self.past.as_ref()?.after(after, self.position)?,
            None => VecDeque::new(),
        };
        Some(Follower::new(past, receiver, self.position))
    }

    pub(crate) fn waiting_workers(&self, limit: usize) -> (Vec<(Key, u32)>, bool) {
        let mut found: BTreeMap<&Key, u32> = BTreeMap::new();
        let mut are_all = true;
        for worker in self.waiting.workers() {
            if found.len() < limit || found.contains_key(worker) {
                *found.entry(worker).or_default() += 1;
            } else {
                are_all = false;
            }
        }
        let found = found.into_iter();
        let found = found.map(|(worker, count)| (worker.clone(), count));
        (found.collect(), are_all)
    }

    pub(crate) fn keep_past(&mut self, is_kept: bool) {
        if !is_kept {
            self.past = None;
        } else if self.past.is_none() {
            self.past = Some(Past::behind(self.position));
        }
    }

    pub(crate) fn answer_waiting(&mut self, error: &Error) {
        for sender in self.waiting.drain() {
            let _ = sender.send(Err(error.clone()));
        }
    }

    /// The term is over: answers every claim that waits, and lets go of everything.
    pub(crate) fn end(&mut self, error: &Error) {
        self.is_over = true;
        self.followers = None;
        self.past = None;
        self.answer_waiting(error);
        self.leases = Leases::default();
        discard(std::mem::replace(&mut self.queue, Queue::new(0)));
    }

    fn claimed(&mut self, request: Option<&ClaimRequest>, got: usize) {
        let Some(request) = request else { return };
        if got == 0 {
            return;
        }
        let opens = self.queue.claimable_at(&request.queues, &request.types);
        // One that was cut short, for its bytes, has left some that can be claimed now.
        let is_cut = opens.is_some_and(|opens| opens <= self.queue.now());
        if opens.is_some() && (got as u64 >= u64::from(request.max) || is_cut) {
            self.waiting.left_over(&request.queues);
        }
    }

    fn ring(&mut self, is_schedule: bool) {
        let due = self.queue.due_at().is_some_and(|due| due < self.alarm.due);
        let lease = self.leases.next_deadline();
        if due || is_schedule || lease.is_some_and(|lease| lease < self.alarm.lease) {
            // Once is enough.
            self.alarm = Alarm {
                due: 0,
                lease: Moment::default(),
            };
            self.signals.due.notify_one();
        }
        if self.waiting.opens_sooner() || self.waiting.is_credited() {
            self.signals.claimable.notify_one();
        }
    }

    fn count(&self) {
        let (queues, types) = (self.queue.queues_len(), self.queue.types_len());
        self.signals.queues.store(queues, Ordering::Relaxed);
        self.signals.types.store(types, Ordering::Relaxed);
        let schedules = self.queue.schedules_size().0;
        self.signals.schedules.store(schedules, Ordering::Relaxed);
    }

    fn publish(&mut self, position: Position, at_ms: u64, events: &[Event]) {
        self.position = position;
        let followers = self.followers.as_ref();
        let followers = followers.filter(|followers| followers.receiver_count() > 0);
        if followers.is_none() && self.past.is_none() {
            return;
        }
        let followed = Followed {
            position,
            at_ms,
            events: events.into(),
        };
        if let Some(past) = &mut self.past {
            past.note(followed.clone());
        }
        if let Some(followers) = followers {
            // An error means that the last of them is just gone.
            let _ = followers.send(followed);
        }
    }
}

impl Machine for Broker {
    type Command = Command;
    type Answer = Answer;
    type Error = Unreadable;

    fn apply(&mut self, position: Position, command: Command) -> Answer {
        let at = command.at;
        let is_schedule = matches!(
            command.action,
            Action::SetSchedule(..)
                | Action::ResumeSchedule(_)
                | Action::Fire(_)
                | Action::Configure(_)
        );
        // Only claims start leases.
        let now = match command.action {
            Action::Claim(_) => self.clock.moment(),
            _ => Moment::default(),
        };
        let mut request = None;
        let key = match &command.action {
            Action::Claim(claim) => claim.key,
            _ => None,
        };
        if !self.waiting.is_empty() {
            match &command.action {
                Action::Submit(jobs) => self.waiting.submitting(jobs),
                Action::Claim(claim) => request = Some(claim.request.clone()),
                _ => {}
            }
        }
        let was_full = self.queue.is_full();
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let mut answer = self.queue.apply(command, &mut events);
        // Slots of schedules wait for room.
        let is_schedule = is_schedule || (was_full && !self.queue.is_full());
        self.leases.follow(&events, now);
        let is_new = |event: &Event| matches!(event, Event::Claimed { .. });
        let is_repeated = key.is_some() && !jobs(&answer).is_empty() && !events.iter().any(is_new);
        if is_repeated {
            let tokens = jobs(&answer).iter().map(|job| job.token);
            let expired = self.leases.claimed_again(tokens, now);
            // That their leases have run out is on its way to the log, and cannot be taken back.
            if let queue::Answer::Claimed(jobs) = &mut answer {
                jobs.retain(|job| !expired.contains(&job.token));
            }
        }
        if !self.waiting.is_empty() {
            if let Some(key) = key.filter(|_| !jobs(&answer).is_empty()) {
                self.waiting.answered(key);
            }
            self.waiting.follow(&self.queue, &events);
            self.claimed(request.as_ref(), jobs(&answer).len());
        }
        self.publish(position, at, &events);
        self.ring(is_schedule);
        self.count();
        self.events = events;
        // What was asked for again may have been read before, by who holds it now: it is not handed back.
        let is_handed_back = !jobs(&answer).is_empty() && !is_repeated;
        Answer {
            abandoned: is_handed_back.then(|| self.abandoned.clone()),
            answer,
        }
    }

    fn replay(&mut self, position: Position, record: &[u8]) -> Result<(), Unreadable> {
        self.position = position;
        let command = Command::from_record(record)?;
        self.events.clear();
        let _ = self.queue.apply(command, &mut self.events);
        Ok(())
    }

    fn rules_max(&self) -> Rules {
        Rules::LATEST
    }

    fn set_rules(&mut self, rules: Rules) {
        self.queue.set_rules(rules);
    }

    fn digest(&self) -> Option<u64> {
        Some(self.queue.digest())
    }

    fn reset(&mut self) {
        discard(std::mem::replace(&mut self.queue, Queue::new(self.seed)));
        self.restore = None;
    }

    fn restore(&mut self, lines: &[u8]) -> Result<(), Unreadable> {
        let seed = self.seed;
        let restore = self.restore.get_or_insert_with(|| Restore::new(seed));
        Ok(restore.feed(lines)?)
    }

    fn restored(&mut self) -> Result<(), Unreadable> {
        let restore = self.restore.take().ok_or(Unreadable::Empty)?;
        self.queue = restore.finish()?;
        Ok(())
    }

    fn begin_snapshot(&mut self) {
        self.queue.begin_snapshot();
    }

    fn snapshot_chunk(&mut self, bytes_max: usize) -> Option<Bytes> {
        self.queue.snapshot_chunk(bytes_max).map(Bytes::from)
    }

    fn abandon_snapshot(&mut self) {
        self.queue.abandon_snapshot();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        discard(std::mem::replace(&mut self.queue, Queue::new(0)));
    }
}

/// Above this many jobs it takes a while to let go of them.
const DISCARD_JOBS_MAX: usize = 10_000;

/// Lets go of a queue without holding anyone up.
fn discard(queue: Queue) {
    if queue.len() > DISCARD_JOBS_MAX {
        // Without a thread it is done here, when the error with the queue in it is dropped.
        let _ = std::thread::Builder::new()
            .name("tenure-discard".to_owned())
            .spawn(move || drop(queue));
    }
}

#[cfg(test)]
mod tests;
