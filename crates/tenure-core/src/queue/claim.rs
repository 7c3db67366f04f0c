//! Claims: which jobs a worker gets, decided when the command is applied.
//!
//! # A claim that is asked for again
//!
//! The answer to a claim can be lost. A claim with a [`ClaimKey`] can be sent again: while it holds any
//! job, the same worker with the same key is given those jobs, with the same tokens, and no others. Nothing is counted
//! twice: no attempt, and nothing of a rate.
//!
//! Whose answer certainly reached nobody is handed back ([`Action::Abandon`](super::Action::Abandon)), unless it was
//! asked for again before that is applied: then somebody may work on it already. For the same reason an answer to a claim
//! that was asked for again is never handed back, whatever its outcome: an earlier one may have been read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::Submission;
use super::answer::Lost;
use super::command::LoggedClaim;
use super::event::Event;
use super::hash::Hash;
use super::kept::Running;
use super::machine::Queue;
use super::rules::Rules;
use super::shelves::{Class, Turn};
use super::slab::Handle;
use super::{Claimed, Key, Token};
use crate::{JobId, JobType, QueueName};

/// How many bytes of payloads one claim hands out; the first job comes whatever its size. A part of the second
/// rules. More than any worker needs at once, and well below what clients and proxies take as one answer.
const CLAIM_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What a claim is recognised by when it is asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClaimKey(u64);

impl ClaimKey {
    /// Of a worker's name, and of what it calls the claim: something random, another for each. A hash is kept of them, so
    /// two claims of one worker may have the same key by chance, once in 2⁶⁴.
    #[must_use]
    pub fn new(worker: &Key, name: &Key) -> Self {
        let mut hash = Hash::new(0);
        hash.text(worker.as_str());
        hash.text(name.as_str());
        Self(hash.finish())
    }
}

/// One row of ready jobs that a claim may draw from: a queue, or one type of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    /// Its first job; the smallest turn of all sources is next.
    turn: Turn,
    queue: Handle,
    job_type: Option<Handle>,
}

/// The types that a claim means.
enum Types {
    Every,
    /// Sorted, each once. Of none of them there is nothing to find.
    These(Vec<Handle>),
}

/// What a claim may still get.
struct Allowance {
    jobs: u32,
    bytes: usize,
    is_first: bool,
}

impl Allowance {
    fn new(rules: Rules, jobs: u32) -> Self {
        // The first rules bounded the number only, and an answer could be too large for the worker.
        let bytes = if rules < Rules::SECOND {
            usize::MAX
        } else {
            CLAIM_BYTES_MAX
        };
        Self {
            jobs,
            bytes,
            is_first: true,
        }
    }

    /// Whether a job of this size still fits; the first always does. If not, a smaller one must not overtake it,
    /// so that is the end of the claim.
    fn take(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes && !self.is_first {
            return false;
        }
        self.jobs -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        self.is_first = false;
        true
    }
}

impl Queue {
    /// From when on a claim would find a job: at or before the present if it would now, none if only
    /// another command can change it. Scheduled jobs count once they are ready: see [`Queue::due_at`].
    ///
    /// Cost: the names. Of every queue, the types, and queues that a rate holds back.
    #[must_use]
    pub fn claimable_at(&self, queues: &[QueueName], types: &[JobType]) -> Option<u64> {
        let types = self.meant(types);
        if !queues.is_empty() {
            return queues
                .iter()
                .filter_map(|name| self.queues.find(name))
                .filter(|&queue| self.has_ready(queue, &types))
                .filter_map(|queue| self.open_at(queue))
                .min();
        }
        let open = match &types {
            Types::Every => self.board.first(),
            Types::These(types) => types.iter().find_map(|&name| self.board.first_of(name)),
        };
        if let Some((_, queue)) = open {
            return self.open_at(queue);
        }
        let mut opening = self.board.opening();
        let first = opening.find(|&(_, queue)| self.has_ready(queue, &types));
        first.map(|(opens, _)| opens)
    }

    /// When a queue that has ready jobs, and a rate that lets none of them through at a time, next does.
    #[must_use]
    pub fn opens_after(&self, time: u64) -> Option<u64> {
        self.board.opens_after(time)
    }

    /// The types of these names that there are; no names mean every type.
    fn meant(&self, names: &[JobType]) -> Types {
        if names.is_empty() {
            return Types::Every;
        }
        let known = names.iter().filter_map(|name| self.types.find(name));
        let mut known: Vec<_> = known.collect();
        known.sort_unstable();
        known.dedup();
        Types::These(known)
    }

    /// Whether a queue has ready jobs of these types.
    fn has_ready(&self, queue: Handle, types: &Types) -> bool {
        match types {
            Types::Every => !self.queues[queue].turns.is_empty(),
            Types::These(types) => self.ready_types(queue, types).next().is_some(),
        }
    }

    /// Those of these types, which are sorted, that a queue has ready jobs of. Most queues have few, and most
    /// claims name few: only the smaller number is looked at.
    fn ready_types<'a>(
        &'a self,
        queue: Handle,
        types: &'a [Handle],
    ) -> impl Iterator<Item = Handle> + 'a {
        let turns = &self.queues[queue].turns;
        let few = turns.len() < types.len();
        let of_queue = few.then(|| {
            turns
                .keys()
                .filter(|name| types.binary_search(name).is_ok())
        });
        let of_claim = (!few).then(|| types.iter().filter(|name| turns.contains_key(name)));
        let of_queue = of_queue.into_iter().flatten();
        of_queue.chain(of_claim.into_iter().flatten()).copied()
    }

    /// How many jobs of a queue claims could take at this time. The broker wakes no
    /// more of them than that.
    #[must_use]
    pub fn room(&self, queue: &QueueName, at: u64) -> u64 {
        let ready = self.queues.find(queue).map_or(0, |handle| {
            self.queues[handle].counts[Class::Ready as usize]
        });
        ready.min(self.passes(queue, at))
    }

    /// How many jobs of a queue claims could take at this time if there were as many.
    #[must_use]
    pub fn passes(&self, queue: &QueueName, at: u64) -> u64 {
        // What a queue allows that is not there yet is not restricted.
        let Some(handle) = self.queues.find(queue) else {
            return u64::MAX;
        };
        let queue = &self.queues[handle];
        if queue.paused {
            return 0;
        }
        let running = queue.counts[Class::Running as usize];
        let free = queue
            .options
            .concurrency
            .map_or(u64::MAX, |most| u64::from(most).saturating_sub(running));
        let rate = queue.options.rate;
        let let_through = rate.map_or(u64::MAX, |rate| queue.bucket.room(rate, at));
        free.min(let_through)
    }

    /// Whether the end of this job lets another one of its queue through: there it is limited how many run at once.
    #[must_use]
    pub fn makes_room(&self, id: &JobId) -> bool {
        self.find(id).is_some_and(|handle| {
            let queue = self.jobs[handle].queue;
            self.queues[queue].options.concurrency.is_some()
        })
    }

    /// Whether a job that is submitted now would be claimable at once. A guess: what is committed before it may change
    /// that. Those of a group are told of when it is their turn.
    #[must_use]
    pub fn would_be_ready(&self, job: &Submission, at: u64) -> bool {
        let is_due = job.delay_ms.is_none_or(|delay| delay == 0)
            && job.run_at.is_none_or(|run_at| run_at <= at);
        let is_known = |id| self.find(id).is_some() || self.find_remnant(id).is_some();
        is_due
            && job.group.is_none()
            && !job.id.as_ref().is_some_and(is_known)
            && self
                .holder_of_key(&job.queue, job.unique_key.as_ref())
                .is_none()
            && !self.is_full()
    }

    pub(crate) fn claim(&mut self, claim: &LoggedClaim, events: &mut Vec<Event>) -> Vec<Claimed> {
        let held = self.asked_again(claim);
        if !held.is_empty() {
            return held;
        }
        let jobs = if claim.request.queues.is_empty() {
            self.claim_of_every_queue(claim)
        } else {
            self.claim_of_these_queues(claim)
        };
        events.extend(jobs.iter().map(Event::claimed));
        jobs
    }

    /// What a claim holds that is asked for again.
    fn asked_again(&mut self, claim: &LoggedClaim) -> Vec<Claimed> {
        // The older rules had no keys.
        let Some(key) = claim.key.filter(|_| self.rules >= Rules::THIRD) else {
            return Vec::new();
        };
        let held: Vec<Handle> = self.held(&claim.request.worker, key).collect();
        let again = held.into_iter().filter_map(|handle| {
            let running = self.edit(handle).running_mut()?;
            running.is_repeated = true;
            let (token, lease_ms) = (running.token, running.lease_ms);
            Some(self.claimed(handle, token, lease_ms))
        });
        again.collect()
    }

    /// Whether a worker's claim with this key holds a job: asked for again, it would be answered with it.
    #[must_use]
    pub fn is_held(&self, worker: &Key, key: ClaimKey) -> bool {
        self.held(worker, key).next().is_some()
    }

    /// The jobs that a worker's claim with this key holds, in the order in which they were claimed.
    fn held(&self, worker: &Key, key: ClaimKey) -> impl Iterator<Item = Handle> {
        let of_key = self.keyed.range((key, 0)..=(key, u64::MAX));
        let jobs = of_key.map(|(_, &handle)| handle);
        jobs.filter(move |&handle| {
            let running = self.jobs[handle].running();
            running.is_some_and(|running| running.worker == *worker)
        })
    }

    /// The claim of a job can be found by its key from now on, if it has one.
    pub(crate) fn note_key(&mut self, handle: Handle) {
        if let Some(running) = self.jobs[handle].running()
            && let Some(key) = running.key
        {
            self.keyed.insert((key, running.token.number), handle);
        }
    }

    /// A job is not claimed any more.
    pub(crate) fn drop_claim(&mut self, handle: Handle) {
        let course = self.edit(handle).course.as_mut();
        if let Some(running) = course.and_then(|course| course.running.take())
            && let Some(key) = running.key
        {
            self.keyed.remove(&(key, running.token.number));
        }
    }

    fn claim_of_these_queues(&mut self, claim: &LoggedClaim) -> Vec<Claimed> {
        let request = &claim.request;
        let mut jobs = Vec::with_capacity(1);
        let sources = self.sources(&request.queues, &request.types);
        let mut sources: BinaryHeap<_> = sources.into_iter().map(Reverse).collect();
        let mut allowance = Allowance::new(self.rules, request.max);
        while allowance.jobs > 0
            && let Some(Reverse(source)) = sources.pop()
        {
            let Some(source) = self.refreshed(source) else {
                continue;
            };
            // A request may name a queue or type twice; then what was first has been taken meanwhile.
            if sources
                .peek()
                .is_some_and(|Reverse(other)| other.turn < source.turn)
            {
                sources.push(Reverse(source));
                continue;
            }
            if self
                .open_at(source.queue)
                .is_none_or(|open_at| open_at > self.now)
            {
                continue;
            }
            let handle = self.job_of(source);
            if !allowance.take(self.jobs[handle].payload.bytes()) {
                break;
            }
            jobs.push(self.claim_one(handle, claim));
            sources.extend(self.refreshed(source).map(Reverse));
        }
        jobs
    }

    /// The same by the board, on which only those queues stand that are open.
    fn claim_of_every_queue(&mut self, claim: &LoggedClaim) -> Vec<Claimed> {
        let request = &claim.request;
        let mut jobs = Vec::with_capacity(1);
        // Without types there is one row of jobs, of all types.
        let types = match self.meant(&request.types) {
            Types::Every => vec![None],
            Types::These(types) => types.into_iter().map(Some).collect(),
        };
        let first = |queue: &Self, job_type: Option<Handle>| {
            let (turn, queue) = match job_type {
                Some(job_type) => queue.board.first_of(job_type)?,
                None => queue.board.first()?,
            };
            Some(Reverse(Source {
                turn,
                queue,
                job_type,
            }))
        };
        let mut rows: BinaryHeap<_> = types.iter().filter_map(|&name| first(self, name)).collect();
        let mut allowance = Allowance::new(self.rules, request.max);
        while allowance.jobs > 0
            && let Some(source) = rows.pop()
        {
            // Its queue may have closed meanwhile.
            let present = first(self, source.0.job_type);
            if present.as_ref() != Some(&source) {
                rows.extend(present);
                continue;
            }
            let handle = self.job_of(source.0);
            if !allowance.take(self.jobs[handle].payload.bytes()) {
                break;
            }
            jobs.push(self.claim_one(handle, claim));
            rows.extend(first(self, source.0.job_type));
        }
        jobs
    }

    fn claim_one(&mut self, handle: Handle, claim: &LoggedClaim) -> Claimed {
        let request = &claim.request;
        self.claims += 1;
        let token = Token {
            number: self.claims,
            nonce: nonce(claim.nonce, self.claims),
        };
        let (now, rules) = (self.now, self.rules);
        let course = self.edit(handle).course_mut();
        course.attempt += 1;
        course.running = Some(Box::new(Running {
            token,
            worker: request.worker.clone(),
            lease_ms: request.lease_ms,
            cancel_requested: false,
            is_repeated: false,
            key: claim.key.filter(|_| rules >= Rules::THIRD),
        }));
        self.note_key(handle);
        self.move_to(handle, Class::Running);
        let job = &self.jobs[handle];
        let queue = &mut self.queues[job.queue];
        if let Some(rate) = queue.options.rate {
            queue.bucket.take(rate, now);
            let queue = job.queue;
            self.post(queue);
        }
        self.claimed(handle, token, request.lease_ms)
    }

    /// Whether a token holds its job, and whether the job is to be given up. One that has completed it is told so: its worker may
    /// not know, since a row of an outbox can do that.
    pub fn claim_status(&self, id: &JobId, token: Token) -> Result<ClaimStatus, Lost> {
        let holder = self.holder(id, token);
        let handle = holder.map_err(|lost| self.completed_by(id, token).unwrap_or(lost))?;
        Ok(ClaimStatus {
            cancel_requested: self.jobs[handle].cancel_requested(),
        })
    }

    /// Who runs a job, and by which token; none if nobody does.
    #[must_use]
    pub fn running_claim(&self, id: &JobId) -> Option<(&Key, Token)> {
        let running = self.jobs[self.find(id)?].running()?;
        Some((&running.worker, running.token))
    }

    /// The job that a token holds.
    pub(crate) fn holder(&self, id: &JobId, token: Token) -> Result<Handle, Lost> {
        let Some(handle) = self.find(id) else {
            // A repeated end is told that there was one.
            return Err(match self.find_remnant(id) {
                Some(remnant) => Lost::NotRunning {
                    state: remnant.class.state(),
                },
                None => Lost::NotFound,
            });
        };
        let job = &self.jobs[handle];
        match job.running() {
            Some(running) if running.token == token => Ok(handle),
            Some(_) => Err(Lost::Superseded {
                attempt: job.course().attempt,
            }),
            None => Err(Lost::NotRunning {
                state: job.class.state(),
            }),
        }
    }

    /// From when on a queue lets a job be claimed; none if it is paused or full.
    pub(crate) fn open_at(&self, queue: Handle) -> Option<u64> {
        let queue = &self.queues[queue];
        let running = queue.counts[Class::Running as usize];
        let full = queue
            .options
            .concurrency
            .is_some_and(|most| running >= u64::from(most));
        if queue.paused || full {
            return None;
        }
        Some(
            queue
                .options
                .rate
                .map_or(0, |rate| queue.bucket.open_at(rate)),
        )
    }

    /// The rows of the named queues with at least one ready job. No types means all of them.
    fn sources(&self, queues: &[QueueName], types: &[JobType]) -> Vec<Source> {
        let mut sources = Vec::new();
        let types = self.meant(types);
        for queue in queues.iter().filter_map(|name| self.queues.find(name)) {
            let row = |job_type| {
                self.refreshed(Source {
                    turn: (0, 0),
                    queue,
                    job_type,
                })
            };
            match &types {
                Types::Every => sources.extend(row(None)),
                Types::These(types) => {
                    let named = self.ready_types(queue, types);
                    sources.extend(named.filter_map(|name| row(Some(name))));
                }
            }
        }
        sources
    }

    /// The row with its present first job; none if it is empty.
    fn refreshed(&self, source: Source) -> Option<Source> {
        let turn = match source.job_type {
            Some(job_type) => self.shelves.turn(source.queue, job_type)?,
            None => *self.queues[source.queue].heads.first_key_value()?.0,
        };
        Some(Source { turn, ..source })
    }

    fn job_of(&self, source: Source) -> Handle {
        let (_, sequence) = source.turn;
        self.orders[Class::Ready as usize]
            .get(sequence)
            .expect("the head of a shelf of ready jobs is in their order")
    }
}

/// A claim that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimStatus {
    /// The worker is to stop; whatever it answers, the job is not tried again.
    pub cancel_requested: bool,
}

pub(crate) fn nonce(seed: u32, claim: u64) -> u32 {
    let mut hash = Hash::new(seed.into());
    hash.number(claim);
    (hash.finish() >> 32) as u32
}
