//! Claims that wait for a job: who is woken by what, in which order, and for how many.
//!
//! A claim that finds nothing waits here, with a ticket that says when it came. When jobs become claimable
//! the broker notes a *credit* for each: one job of this queue and type. Between two commits the credits are
//! given out, each to whoever of those that could take the job came first; nobody is looked at who could not.
//! Those who got one go into the next commit, each asking for its share, so that the first of a batch does
//! not take what the others were woken for.
//!
//! A credit is a hint. What a claim gets is decided when it is applied, and one that comes back empty waits
//! on with its old ticket. So that no job is left lying beside a worker that waits for it, everything that
//! may have made a hint wrong is looked at again: a claim that got all it asked for may have left something
//! ([`Waiting::left_over`]); a queue that was opened has jobs that nobody was told of ([`Waiting::opened`]);
//! a queue with a rate opens by itself ([`Waiting::wake_at`]).
//!
//! Cost: a logarithm per job and per claim, times the pairs of queue and type that the claim names.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::queue::{ClaimRequest, Event, Queue, Submission};
use tenure_core::{JobType, QueueName};

use super::backlog::Sender;
use super::broker::Answer;

/// When a claim came, among all of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// What a claim could take: of one queue or every, of one type or every.
type Want = (Option<QueueName>, Option<JobType>);

/// Claims that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    tickets: u64,
    waiters: BTreeMap<Ticket, Waiter>,
    /// Who wants what, the earliest first.
    wants: BTreeMap<Want, BTreeSet<Ticket>>,
    /// How many jobs may have become claimable, of which kind.
    credits: BTreeMap<Want, u64>,
    /// When queues with a rate open again.
    opening: BTreeSet<(u64, Option<QueueName>)>,
}

#[derive(Debug)]
struct Waiter {
    request: ClaimRequest,
    sender: Sender<Answer>,
}

/// A claim that is to go into the next commit.
#[derive(Debug)]
pub(crate) struct Woken {
    pub(crate) request: ClaimRequest,
    pub(crate) sender: Sender<Answer>,
}

impl Waiting {
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether someone is to be woken.
    pub(crate) fn is_credited(&self) -> bool {
        !self.credits.is_empty()
    }

    /// Lets a claim wait.
    pub(crate) fn wait(&mut self, ticket: Ticket, request: ClaimRequest, sender: Sender<Answer>) {
        for want in wants(&request) {
            self.wants.entry(want).or_default().insert(ticket);
        }
        self.waiters.insert(ticket, Waiter { request, sender });
    }

    /// Takes a claim out, if it still waits.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        self.take(ticket).is_some()
    }

    fn take(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        for want in wants(&waiter.request) {
            if let Some(tickets) = self.wants.get_mut(&want) {
                tickets.remove(&ticket);
                if tickets.is_empty() {
                    self.wants.remove(&want);
                }
            }
        }
        Some(waiter)
    }

    /// Everyone who waits.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sender<Answer>> {
        let waiting = std::mem::take(self);
        self.tickets = waiting.tickets;
        waiting.waiters.into_values().map(|waiter| waiter.sender)
    }

    /// Jobs are about to be submitted. Those of a group, and those that are delayed, are told of when they
    /// are ready; those that are refused are not there when it is looked.
    pub(crate) fn submitting(&mut self, jobs: &[Submission]) {
        for job in jobs.iter().filter(|job| job.group.is_none()) {
            self.credit(Some(job.queue.clone()), Some(job.job_type.clone()), 1);
        }
    }

    /// What came of a command.
    pub(crate) fn follow(&mut self, queue: &Queue, events: &[Event]) {
        for event in events {
            match event {
                Event::Ready {
                    queue, job_type, ..
                } => self.credit(Some(queue.clone()), Some(job_type.clone()), 1),
                Event::SlotFired {
                    schedule,
                    created: true,
                    ..
                } => {
                    if let Some(schedule) = queue.schedule(schedule) {
                        let job = &schedule.spec.job;
                        self.credit(Some(job.queue.clone()), Some(job.job_type.clone()), 1);
                    }
                }
                Event::QueueSet { queue } | Event::Resumed { queue } => self.opened(queue.clone()),
                // In a queue with limited concurrency the end of one is room for another.
                Event::Completed { queue, .. }
                | Event::Failed { queue, .. }
                | Event::Released { queue, .. }
                | Event::Died { queue, .. }
                | Event::Cancelled { queue, .. } => self.credit(Some(queue.clone()), None, 1),
                _ => {}
            }
        }
    }

    /// Jobs that nobody was told of may be claimable.
    fn opened(&mut self, queue: QueueName) {
        self.credits.insert((Some(queue), None), u64::MAX);
    }

    /// A claim got all it asked for, and there is more.
    pub(crate) fn left_over(&mut self) {
        self.credits.insert((None, None), 1);
    }

    /// A queue lets nothing through before `at`.
    pub(crate) fn wake_at(&mut self, at: u64, queue: Option<QueueName>) {
        self.opening.insert((at, queue));
    }

    /// When a queue with a rate opens next, if someone waits.
    pub(crate) fn next_opening(&self) -> Option<u64> {
        self.opening.first().map(|&(at, _)| at)
    }

    fn credit(&mut self, queue: Option<QueueName>, job_type: Option<JobType>, count: u64) {
        let credits = self.credits.entry((queue, job_type)).or_default();
        *credits = credits.saturating_add(count);
    }

    /// Gives the credits out. Returns who goes into the next commit, the earliest first.
    pub(crate) fn wake(&mut self, queue: &Queue, at: u64) -> Vec<Woken> {
        if self.waiters.is_empty() {
            self.credits.clear();
            self.opening.clear();
            return Vec::new();
        }
        while self.next_opening().is_some_and(|opens| opens <= at) {
            match self.opening.pop_first() {
                Some((_, Some(name))) => self.opened(name),
                _ => self.left_over(),
            }
        }
        let mut woken = Vec::new();
        let mut left = 0;
        for (kind, credits) in std::mem::take(&mut self.credits) {
            if self.is_open(queue, &kind, at) {
                let name = kind.0.as_ref();
                let credits = name.map_or(credits, |name| credits.min(queue.room(name, at)));
                let given = self.give(queue, &kind, credits, at, &mut woken);
                left += credits - given;
            }
        }
        woken.sort_unstable_by_key(|&(ticket, _)| ticket);
        // There are more jobs than workers: each may have so many more.
        let more = u32::try_from(left.div_ceil(woken.len().max(1) as u64)).unwrap_or(u32::MAX);
        let share = more.saturating_add(1);
        let shared = woken.into_iter().map(
            |(
                _,
                Waiter {
                    mut request,
                    sender,
                },
            )| {
                request.max = request.max.min(share);
                Woken { request, sender }
            },
        );
        shared.collect()
    }

    /// Whether jobs of this kind can be claimed. If only time can tell, it is looked at again then.
    fn is_open(&mut self, queue: &Queue, kind: &Want, at: u64) -> bool {
        let opens = queue.claimable_at(as_slice(&kind.0), as_slice(&kind.1));
        if let Some(opens) = opens.filter(|&opens| opens > at) {
            self.wake_at(opens, kind.0.clone());
        }
        opens.is_some_and(|opens| opens <= at)
    }

    /// Wakes at most so many of those who could take jobs of this kind. Returns how many.
    fn give(
        &mut self,
        queue: &Queue,
        kind: &Want,
        credits: u64,
        at: u64,
        woken: &mut Vec<(Ticket, Waiter)>,
    ) -> u64 {
        let wants = self.takers(queue, kind, at);
        let mut given = 0;
        while given < credits {
            let firsts = wants
                .iter()
                .filter_map(|want| self.wants.get(want)?.first());
            let Some(waiter) = firsts.min().copied().and_then(|ticket| {
                let waiter = self.take(ticket)?;
                Some((ticket, waiter))
            }) else {
                break;
            };
            // Whoever is gone has no use for a job.
            if !waiter.1.sender.is_closed() {
                woken.push(waiter);
                given += 1;
            }
        }
        given
    }

    /// What those want who could take jobs of this kind.
    fn takers(&self, queue: &Queue, kind: &Want, at: u64) -> Vec<Want> {
        if let (Some(name), Some(job_type)) = kind {
            let (name, job_type) = (Some(name.clone()), Some(job_type.clone()));
            return vec![
                (name.clone(), job_type.clone()),
                (name, None),
                (None, job_type),
                (None, None),
            ];
        }
        let is_claimable = |want: &Want| {
            let name = kind.0.as_ref().or(want.0.as_ref());
            let names = name.map_or(&[][..], std::slice::from_ref);
            let opens = queue.claimable_at(names, as_slice(&want.1));
            opens.is_some_and(|opens| opens <= at)
        };
        let of_kind = |want: &&Want| kind.0.is_none() || want.0.is_none() || want.0 == kind.0;
        let takers = self.wants.keys().filter(of_kind);
        takers.filter(|want| is_claimable(want)).cloned().collect()
    }
}

fn as_slice<T>(name: &Option<T>) -> &[T] {
    name.as_ref().map_or(&[], std::slice::from_ref)
}

/// Every pair of queue and type that a claim could take.
fn wants(request: &ClaimRequest) -> Vec<Want> {
    fn each<T: Clone>(names: &[T]) -> Vec<Option<T>> {
        match names {
            [] => vec![None],
            names => names.iter().cloned().map(Some).collect(),
        }
    }
    let types = each(&request.types);
    let pairs = each(&request.queues).into_iter().flat_map(|queue| {
        let types = types.iter();
        types.map(move |job_type| (queue.clone(), job_type.clone()))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests;
