//! Claims: which jobs a worker gets, decided when the command is applied.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::command::ClaimRequest;
use super::event::{Claimed, Event, Lost};
use super::hash::Hash;
use super::job::{Key, Token};
use super::machine::Queue;
use super::record::Running;
use super::shelves::{Class, Shelf, Turn};
use super::slab::Handle;
use crate::mutation::{self, Mutation};
use crate::{JobId, JobType, QueueName};

/// One row of ready jobs that a claim may draw from: a queue, or one type of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    /// Its first job; the smallest turn of all sources is next.
    turn: Turn,
    queue: Handle,
    job_type: Option<Handle>,
}

impl Queue {
    /// From when on a claim would find a job: at or before the present if it would now, none if only
    /// another command can change it. Scheduled jobs count once they are ready: see [`Queue::due_at`].
    #[must_use]
    pub fn claimable_at(&self, queues: &[QueueName], types: &[JobType]) -> Option<u64> {
        self.sources(queues, types)
            .filter_map(|source| self.open_at(source.queue))
            .min()
    }

    /// How many jobs of a queue claims could take at this time. Whoever wakes waiting workers wakes no
    /// more of them than that.
    #[must_use]
    pub fn room(&self, queue: &QueueName, at: u64) -> u64 {
        let Some(handle) = self.queues.find(queue) else {
            return 0;
        };
        let queue = &self.queues[handle];
        if queue.paused {
            return 0;
        }
        let ready = queue.counts[Class::Ready as usize];
        let running = queue.counts[Class::Running as usize];
        let free = queue
            .options
            .concurrency
            .map_or(u64::MAX, |most| u64::from(most).saturating_sub(running));
        let rate = queue.options.rate;
        let let_through = rate.map_or(u64::MAX, |rate| queue.bucket.room(rate, at));
        ready.min(free).min(let_through)
    }

    pub(crate) fn claim(&mut self, request: &ClaimRequest, events: &mut Vec<Event>) {
        let mut sources: BinaryHeap<_> = self
            .sources(&request.queues, &request.types)
            .map(Reverse)
            .collect();
        let mut left = request.max;
        while left > 0
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
            events.push(self.claim_one(handle, request));
            left -= 1;
            sources.extend(self.refreshed(source).map(Reverse));
        }
    }

    fn claim_one(&mut self, handle: Handle, request: &ClaimRequest) -> Event {
        self.claims += 1;
        let token = Token {
            number: self.claims,
            nonce: nonce(request.nonce, self.claims),
        };
        let now = self.now;
        let job = self.edit(handle);
        job.attempt += 1;
        job.running = Some(Box::new(Running {
            token,
            worker: request.worker.clone(),
            lease_ms: request.lease_ms,
            cancel_requested: false,
        }));
        self.move_to(handle, Class::Running);
        let job = &self.jobs[handle];
        let queue = &mut self.queues[job.queue];
        if let Some(rate) = queue.options.rate {
            queue.bucket.take(rate, now);
        }
        Event::Claimed(Box::new(self.claimed(handle, token, request.lease_ms)))
    }

    fn claimed(&self, handle: Handle, token: Token, lease_ms: u32) -> Claimed {
        let job = &self.jobs[handle];
        let trace = job.trace();
        Claimed {
            id: job.id.clone(),
            token,
            queue: self.queues.name(job.queue).clone(),
            job_type: self.types.name(job.job_type).clone(),
            payload: job.payload.clone(),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            priority: job.priority,
            group: job.group_key().cloned(),
            created_at: job.created_at,
            lease_ms,
            traceparent: trace.map(|trace| trace.parent),
            tracestate: trace.and_then(|trace| trace.state.clone()),
        }
    }

    /// Whether a token holds its job, and whether the job is to be given up.
    pub fn claim_status(&self, id: &JobId, token: Token) -> Result<ClaimStatus, Lost> {
        let handle = self.holder(id, token)?;
        Ok(ClaimStatus {
            cancel_requested: self.jobs[handle].cancel_requested(),
        })
    }

    /// Who runs a job, and by which token; none if nobody does.
    #[must_use]
    pub fn running_claim(&self, id: &JobId) -> Option<(&Key, Token)> {
        let running = self.jobs[self.find(id)?].running.as_ref()?;
        Some((&running.worker, running.token))
    }

    /// The job that a token holds.
    pub(crate) fn holder(&self, id: &JobId, token: Token) -> Result<Handle, Lost> {
        let handle = self.find(id).ok_or(Lost::NotFound)?;
        let job = &self.jobs[handle];
        match &job.running {
            Some(running)
                if running.token == token || mutation::is(Mutation::StaleTokenAccepted) =>
            {
                Ok(handle)
            }
            Some(_) => Err(Lost::Superseded {
                attempt: job.attempt,
            }),
            None => Err(Lost::NotRunning {
                state: job.class.state(),
            }),
        }
    }

    /// From when on a queue lets a job be claimed; none if it is paused or full.
    fn open_at(&self, queue: Handle) -> Option<u64> {
        let queue = &self.queues[queue];
        let running = queue.counts[Class::Running as usize];
        let full = queue
            .options
            .concurrency
            .filter(|_| !mutation::is(Mutation::ConcurrencyIgnored))
            .is_some_and(|most| running >= u64::from(most));
        if queue.paused || full {
            return None;
        }
        Some(
            queue
                .options
                .rate
                .filter(|_| !mutation::is(Mutation::RateIgnored))
                .map_or(0, |rate| queue.bucket.open_at(rate)),
        )
    }

    /// The rows with at least one ready job. No queues, or no types, means all of them.
    fn sources(&self, queues: &[QueueName], types: &[JobType]) -> impl Iterator<Item = Source> {
        let every = queues
            .is_empty()
            .then(|| self.queues.iter().map(|(_, queue, _)| queue));
        let named = queues.iter().filter_map(|queue| self.queues.find(queue));
        let open = every.into_iter().flatten().chain(named);
        let with_jobs = open.filter(|&queue| !self.queues[queue].heads.is_empty());
        with_jobs.flat_map(move |queue| {
            let any = types.is_empty().then_some(None);
            let named = types
                .iter()
                .filter_map(|name| self.types.find(name))
                .map(Some);
            let start = move |job_type| {
                self.refreshed(Source {
                    turn: (0, 0),
                    queue,
                    job_type,
                })
            };
            any.into_iter().chain(named).filter_map(start)
        })
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
        let Source {
            turn: (rank, sequence),
            queue,
            job_type,
        } = source;
        let job_type = job_type.unwrap_or_else(|| self.queues[queue].heads[&(rank, sequence)]);
        let shelf = Shelf {
            queue,
            job_type,
            class: Class::Ready,
            rank,
        };
        self.shelves
            .get(shelf, sequence)
            .expect("the head of a shelf stands on it")
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
