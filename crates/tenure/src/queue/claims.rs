//! Claims that wait for a job: who is woken by what, in which order, and for how many.
//!
//! A claim that finds nothing waits here, with a ticket that says when it came. When jobs become claimable
//! the broker notes a *credit* for each: one job of this queue and type. Between two commits the credits are
//! given out, each to the first waiting claim that could take the job; no other claim is looked at.
//! Those who got one go into the next commit, each asking for its share, so that the first of a batch does
//! not take what the others were woken for.
//!
//! A job that is submitted while someone waits for it does not even need the next commit: the claim goes into the same
//! one, behind the submit ([`Waiting::ride`]). One sync makes both durable. Claims are decided when they are applied, so
//! it changes no rule; if the job is not there after all, the claim waits on.
//!
//! A credit is a hint. What a claim gets is decided when it is applied, and one that comes back empty waits
//! on with its old ticket. So that no job is left lying beside a worker that waits for it, everything that
//! may have made a hint wrong is looked at again: a claim that got all it asked for may have left something,
//! and one that was woken and could not be committed has ([`Waiting::left_over`]); a queue that was opened has
//! jobs that nobody was told of ([`Waiting::opened`]).
//!
//! A queue with a rate opens by itself. Its opening is noted for each such queue that someone waits for, by its
//! name, whatever other queues have to offer: when a claim begins to wait, when a credit finds the queue closed,
//! and when a claim has closed it ([`Waiting::opens`]). For those who wait for every queue the next opening of
//! any queue is noted; when it has come, the one after it is.
//!
//! Cost: what waits takes memory for each name that it waits for, not for each pair of queue and type, and
//! claims that want the same share it. A credit costs a logarithm, and a look at each distinct want that names
//! its queue. Credits of any type look at more; that is done in portions, each in its own turn at the lock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;
use std::sync::Arc;

use tenure_core::queue::{ClaimKey, ClaimRequest, Event, Key, Queue, Submission};
use tenure_core::{JobType, QueueName};

use super::broker::Answer;
use crate::log::Sender;

/// When a claim came, among all of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// What became claimable: jobs of one queue or any, of one type or any.
type Kind = (Option<QueueName>, Option<JobType>);

/// What a claim could take: of these queues or every, of these types or every. Sorted, each name once.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Want {
    queues: Vec<QueueName>,
    types: Vec<JobType>,
}

/// A want among those of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WantId(u64);

/// About what a name costs beside its bytes: in its want, and in an index.
const NAME_BYTES: usize = 128;

/// About what a claim that waits costs beside its want.
const WAITER_BYTES: usize = 256;

/// How many queues and types are looked up in one turn at the lock: a few milliseconds.
const LOOKS_MAX: usize = 20_000;

/// A claim of more queues than this looks for what it left over everywhere.
const LEFT_OVER_QUEUES_MAX: usize = 8;

/// Claims that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    tickets: u64,
    waiters: BTreeMap<Ticket, Waiter>,
    /// Those that can be asked for again, by their key: one of each.
    keys: BTreeMap<ClaimKey, Ticket>,
    /// Those that were asked for again while they waited, and have not been told so yet.
    replaced: BTreeSet<Ticket>,
    /// Those of which the same claim was answered elsewhere, while they waited.
    answered: Vec<Ticket>,
    /// Distinct wants, and who has them, the earliest first.
    wants: BTreeMap<WantId, (Arc<Want>, BTreeSet<Ticket>)>,
    ids: BTreeMap<Arc<Want>, WantId>,
    /// How many wants there ever were.
    last_id: u64,
    /// The wants that name queues, by each of them.
    by_queue: BTreeMap<QueueName, BTreeSet<WantId>>,
    /// The wants of every queue, by each type; by none if of every type too.
    by_type: BTreeMap<Option<JobType>, BTreeSet<WantId>>,
    /// The wants of every queue.
    any_queue: BTreeSet<WantId>,
    /// About how much memory all of it takes.
    bytes: usize,
    /// How many jobs may have become claimable, of which kind.
    credits: BTreeMap<Kind, u64>,
    /// Up to which want credits of a kind were offered, when there were too many to look at.
    offered: BTreeMap<Kind, WantId>,
    /// When queues with a rate open again; without a name, some queue.
    opening: BTreeSet<(u64, Option<QueueName>)>,
    /// An opening was noted that comes before all others.
    opens_sooner: bool,
}

#[derive(Debug)]
struct Waiter {
    /// Without the names, which are in its want.
    request: ClaimRequest,
    key: Option<ClaimKey>,
    want: WantId,
    sender: Sender<Answer>,
}

/// A claim that is to go into the next commit.
#[derive(Debug)]
pub(crate) struct Woken {
    pub(crate) request: ClaimRequest,
    pub(crate) key: Option<ClaimKey>,
    pub(crate) sender: Sender<Answer>,
}

impl Waiting {
    /// The workers of the claims that wait, one for each claim.
    pub(crate) fn workers(&self) -> impl Iterator<Item = &Key> {
        self.waiters.values().map(|waiter| &waiter.request.worker)
    }

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

    /// About how much memory those who wait take, and as much as one more would at most.
    pub(crate) fn bytes_with(&self, request: &ClaimRequest) -> usize {
        self.bytes + waiter_bytes(request) + names_bytes(&request.queues, &request.types)
    }

    /// Whether someone is to be woken.
    pub(crate) fn is_credited(&self) -> bool {
        !self.credits.is_empty() || !self.answered.is_empty()
    }

    /// Whether the next opening is earlier than when this was asked last.
    pub(crate) fn opens_sooner(&mut self) -> bool {
        std::mem::take(&mut self.opens_sooner)
    }

    /// Lets a claim wait. The same one that waits already, for somebody who has given up on it, waits no longer.
    pub(crate) fn wait(
        &mut self,
        queue: &Queue,
        at: u64,
        ticket: Ticket,
        mut request: ClaimRequest,
        key: Option<ClaimKey>,
        sender: Sender<Answer>,
    ) {
        if let Some(key) = key
            && let Some(&before) = self.keys.get(&key)
        {
            // The latest caller waits for both. Told that its outcome is unknown, the earlier one would ask again, and replace this.
            self.take(before);
            self.replaced.insert(before);
        }
        let want = Want::of(&mut request);
        for name in &want.queues {
            self.opens(queue, name, at);
        }
        if want.queues.is_empty()
            && let Some(opens) = queue.opens_after(at)
        {
            self.wake_at(opens, None);
        }
        let want = self.wanted(want);
        if let Some((_, tickets)) = self.wants.get_mut(&want) {
            tickets.insert(ticket);
        }
        self.bytes += waiter_bytes(&request);
        if let Some(key) = key {
            self.keys.insert(key, ticket);
        }
        let waiter = Waiter {
            request,
            key,
            want,
            sender,
        };
        self.waiters.insert(ticket, waiter);
    }

    /// The want of the same names, which is there from now on.
    fn wanted(&mut self, want: Want) -> WantId {
        if let Some(&id) = self.ids.get(&want) {
            return id;
        }
        self.last_id += 1;
        let id = WantId(self.last_id);
        self.bytes += names_bytes(&want.queues, &want.types);
        for name in &want.queues {
            self.by_queue.entry(name.clone()).or_default().insert(id);
        }
        if want.queues.is_empty() {
            self.any_queue.insert(id);
            for job_type in want.each_type() {
                self.by_type.entry(job_type).or_default().insert(id);
            }
        }
        let want = Arc::new(want);
        self.ids.insert(want.clone(), id);
        self.wants.insert(id, (want, BTreeSet::new()));
        id
    }

    /// Whether a claim waits no more because it was asked for again. Said once.
    pub(crate) fn was_replaced(&mut self, ticket: Ticket) -> bool {
        self.replaced.remove(&ticket)
    }

    /// Takes a claim out, if it still waits.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        self.take(ticket).is_some()
    }

    /// The same, with the names that it waited for.
    fn take(&mut self, ticket: Ticket) -> Option<Waiter> {
        let mut waiter = self.waiters.remove(&ticket)?;
        self.bytes = self.bytes.saturating_sub(waiter_bytes(&waiter.request));
        if let Some(key) = waiter.key {
            self.keys.remove(&key);
        }
        if let Some((want, tickets)) = self.wants.get_mut(&waiter.want) {
            waiter.request.queues.clone_from(&want.queues);
            waiter.request.types.clone_from(&want.types);
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.unwanted(waiter.want);
            }
        }
        Some(waiter)
    }

    /// Nobody has this want any more.
    fn unwanted(&mut self, id: WantId) {
        let Some((want, _)) = self.wants.remove(&id) else {
            return;
        };
        self.ids.remove(&want);
        self.any_queue.remove(&id);
        let names = names_bytes(&want.queues, &want.types);
        self.bytes = self.bytes.saturating_sub(names);
        for name in &want.queues {
            remove(&mut self.by_queue, name, id);
        }
        if want.queues.is_empty() {
            for job_type in want.each_type() {
                remove(&mut self.by_type, &job_type, id);
            }
        }
    }

    /// Everyone who waits.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sender<Answer>> {
        let waiting = std::mem::take(self);
        self.tickets = waiting.tickets;
        self.last_id = waiting.last_id;
        waiting.waiters.into_values().map(|waiter| waiter.sender)
    }

    /// Jobs are about to be submitted. Those of a group, and those that are delayed, are told of when they
    /// are ready; those that are refused are not there when it is looked.
    pub(crate) fn submitting(&mut self, jobs: &[Submission]) {
        for job in jobs.iter().filter(|job| job.group.is_none()) {
            self.credit(Some(job.queue.clone()), Some(job.job_type.clone()), 1);
        }
    }

    /// What a command did.
    pub(crate) fn follow(&mut self, queue: &Queue, events: &[Event]) {
        let mut claimed_of = None;
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
                Event::TimeSet { .. } => self.time_set(),
                // In a queue with limited concurrency the end of one is room for another.
                Event::Completed { queue, .. }
                | Event::Failed { queue, .. }
                | Event::Released { queue, .. }
                | Event::Died { queue, .. }
                | Event::Cancelled { queue, .. } => self.credit(Some(queue.clone()), None, 1),
                // That may have closed a queue with a rate, for those who still wait for it.
                Event::Claimed { queue: of, .. } if claimed_of != Some(of) => {
                    self.opens(queue, of, queue.now());
                    claimed_of = Some(of);
                }
                _ => {}
            }
        }
    }

    /// When queues open was noted by another time. Each that somebody waits for is looked at again, and noted anew.
    fn time_set(&mut self) {
        self.opening.clear();
        let names: Vec<QueueName> = self.by_queue.keys().cloned().collect();
        for name in names {
            self.opened(name);
        }
        if !self.any_queue.is_empty() {
            // Looked at now: it notes the next opening of any.
            self.wake_at(0, None);
        }
    }

    /// A claim was answered with jobs. If the same one waits, it is answered with them too: the first sender
    /// may be gone.
    pub(crate) fn answered(&mut self, key: ClaimKey) {
        self.answered.extend(self.keys.get(&key));
    }

    /// Jobs that nobody was told of may be claimable.
    fn opened(&mut self, queue: QueueName) {
        self.credits.insert((Some(queue), None), u64::MAX);
    }

    /// There may be more of what a claim could have taken: it got all that it asked for, or it was woken and
    /// could not be committed.
    pub(crate) fn left_over(&mut self, queues: &[QueueName]) {
        if queues.is_empty() || queues.len() > LEFT_OVER_QUEUES_MAX {
            self.credit_any();
        }
        for queue in queues.iter().take(LEFT_OVER_QUEUES_MAX) {
            self.credits.entry((Some(queue.clone()), None)).or_insert(1);
        }
    }

    fn credit_any(&mut self) {
        self.credits.entry((None, None)).or_insert(1);
    }

    /// Notes when a queue with a rate opens, if it is closed and someone waits for it.
    fn opens(&mut self, queue: &Queue, name: &QueueName, at: u64) {
        let opens = queue.claimable_at(std::slice::from_ref(name), &[]);
        if let Some(opens) = opens.filter(|&opens| opens > at) {
            self.wake_at(opens, Some(name.clone()));
        }
    }

    /// A queue lets nothing through before `at`.
    fn wake_at(&mut self, at: u64, queue: Option<QueueName>) {
        self.opens_sooner |= self.next_opening().is_none_or(|first| at < first);
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

    /// Gives the credits out. Returns who goes into the next commit, the earliest first. What it would take too
    /// long to look at is left for the next time: [`Waiting::is_credited`].
    pub(crate) fn wake(&mut self, queue: &Queue, at: u64) -> Vec<Woken> {
        if self.waiters.is_empty() {
            self.credits.clear();
            self.answered.clear();
            self.offered.clear();
            self.opening.clear();
            return Vec::new();
        }
        self.open(queue, at);
        let mut woken = Vec::new();
        let answered: BTreeSet<Ticket> = self.answered.drain(..).collect();
        let answered: Vec<Waiter> = answered
            .into_iter()
            .filter_map(|ticket| self.take(ticket))
            .collect();
        let mut left = 0;
        let mut looks = LOOKS_MAX;
        // Credits of several types of one queue share its room.
        let mut given_of: BTreeMap<Option<QueueName>, u64> = BTreeMap::new();
        for (kind, credits) in std::mem::take(&mut self.credits) {
            if looks == 0 {
                self.credits.insert(kind, credits);
            } else if self.is_open(queue, &kind, at) {
                let given_before = given_of.entry(kind.0.clone()).or_default();
                let room = kind.0.as_ref().map(|name| queue.room(name, at));
                let room = room.map_or(u64::MAX, |room| room.saturating_sub(*given_before));
                let credits = credits.min(room);
                let given = self.give(queue, &kind, credits, at, &mut looks, &mut woken);
                *given_before += given;
                left += credits - given;
            } else {
                self.offered.remove(&kind);
            }
        }
        let answered = answered.into_iter().map(Woken::from);
        answered.chain(shared(woken, left)).collect()
    }

    /// Takes out who could take jobs that are about to be submitted, to be committed behind them; the earliest first.
    pub(crate) fn ride(&mut self, queue: &Queue, jobs: &[Submission], at: u64) -> Vec<Woken> {
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let mut ready: BTreeMap<(&QueueName, &JobType), u64> = BTreeMap::new();
        for job in jobs.iter().filter(|job| queue.would_be_ready(job, at)) {
            *ready.entry((&job.queue, &job.job_type)).or_default() += 1;
        }
        let mut woken = Vec::new();
        let mut left = 0;
        let mut looks = LOOKS_MAX;
        // Types of one queue share its room.
        let mut given_of: BTreeMap<&QueueName, u64> = BTreeMap::new();
        for ((name, job_type), count) in ready {
            let given_before = given_of.entry(name).or_default();
            let room = queue.passes(name, at).saturating_sub(*given_before);
            let count = count.min(room);
            let kind = (Some(name.clone()), Some(job_type.clone()));
            let given = self.give(queue, &kind, count, at, &mut looks, &mut woken);
            *given_before += given;
            left += count - given;
        }
        shared(woken, left)
    }

    /// Queues whose time has come have opened.
    fn open(&mut self, queue: &Queue, at: u64) {
        while self.next_opening().is_some_and(|opens| opens <= at) {
            match self.opening.pop_first() {
                Some((_, Some(name))) => self.opened(name),
                _ => {
                    self.credit_any();
                    if !self.any_queue.is_empty()
                        && let Some(next) = queue.opens_after(at)
                    {
                        self.wake_at(next, None);
                    }
                }
            }
        }
    }

    /// Whether jobs of this kind can be claimed. If only time can tell, it is looked at again then.
    fn is_open(&mut self, queue: &Queue, kind: &Kind, at: u64) -> bool {
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
        kind: &Kind,
        credits: u64,
        at: u64,
        looks: &mut usize,
        woken: &mut Vec<(Ticket, Waiter)>,
    ) -> u64 {
        let takers = self.takers(queue, kind, at, looks);
        let first = |waiting: &Self, id: WantId| {
            let (_, tickets) = waiting.wants.get(&id)?;
            tickets.first().map(|&ticket| Reverse((ticket, id)))
        };
        let mut firsts: BinaryHeap<_> = takers.iter().filter_map(|&id| first(self, id)).collect();
        let mut given = 0;
        while given < credits
            && let Some(Reverse((ticket, id))) = firsts.pop()
        {
            let Some(waiter) = self.take(ticket) else {
                continue;
            };
            // A caller that is gone has no use for a job.
            if !waiter.sender.is_closed() {
                woken.push((ticket, waiter));
                given += 1;
            }
            firsts.extend(first(self, id));
        }
        if given == credits {
            self.offered.remove(kind);
        } else if self.offered.contains_key(kind) {
            self.credits.insert(kind.clone(), credits - given);
        }
        given
    }

    /// The wants that jobs of this kind fulfil, or as many of them as there is time to look at.
    fn takers(&mut self, queue: &Queue, kind: &Kind, at: u64, looks: &mut usize) -> Vec<WantId> {
        if let (Some(name), Some(job_type)) = kind {
            let named = self.by_queue.get(name).into_iter().flatten().copied();
            let named = named.filter(|id| {
                let want = self.wants.get(id);
                want.is_some_and(|(want, _)| want.takes(job_type))
            });
            let of_type = self.by_type.get(&Some(job_type.clone()));
            let any = of_type.into_iter().chain(self.by_type.get(&None));
            return named.chain(any.flatten().copied()).collect();
        }
        let behind = self.offered.remove(kind);
        let behind = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let range = (behind, Bound::Unbounded);
        let candidates: Vec<WantId> = match &kind.0 {
            None => self.wants.range(range).map(|(&id, _)| id).collect(),
            Some(name) => {
                let named = self.by_queue.get(name);
                let named = named.into_iter().flat_map(|ids| ids.range(range));
                let all = named.chain(self.any_queue.range(range)).copied();
                let all: BTreeSet<_> = all.collect();
                all.into_iter().collect()
            }
        };
        let mut takers = Vec::new();
        for id in candidates {
            let Some((want, _)) = self.wants.get(&id) else {
                continue;
            };
            let queues = match &kind.0 {
                Some(name) => std::slice::from_ref(name),
                None => &want.queues[..],
            };
            let opens = queue.claimable_at(queues, &want.types);
            if opens.is_some_and(|opens| opens <= at) {
                takers.push(id);
            }
            *looks = looks.saturating_sub(queues.len().max(1) * want.types.len().max(1));
            if *looks == 0 {
                self.offered.insert(kind.clone(), id);
                break;
            }
        }
        takers
    }
}

/// Who goes into the next commit, the earliest first, and how much each asks for when so many more jobs than workers are
/// there.
fn shared(mut woken: Vec<(Ticket, Waiter)>, left: u64) -> Vec<Woken> {
    woken.sort_unstable_by_key(|&(ticket, _)| ticket);
    let more = u32::try_from(left.div_ceil(woken.len().max(1) as u64)).unwrap_or(u32::MAX);
    let share = more.saturating_add(1);
    let shared = woken.into_iter().map(|(_, waiter)| {
        let mut woken = Woken::from(waiter);
        woken.request.max = woken.request.max.min(share);
        woken
    });
    shared.collect()
}

impl From<Waiter> for Woken {
    fn from(waiter: Waiter) -> Self {
        Self {
            request: waiter.request,
            key: waiter.key,
            sender: waiter.sender,
        }
    }
}

impl Want {
    /// Takes the names out of a request.
    fn of(request: &mut ClaimRequest) -> Self {
        let mut want = Self {
            queues: std::mem::take(&mut request.queues),
            types: std::mem::take(&mut request.types),
        };
        want.queues.sort_unstable();
        want.queues.dedup();
        want.types.sort_unstable();
        want.types.dedup();
        want
    }

    fn takes(&self, job_type: &JobType) -> bool {
        self.types.is_empty() || self.types.binary_search(job_type).is_ok()
    }

    fn each_type(&self) -> Vec<Option<JobType>> {
        match &self.types[..] {
            [] => vec![None],
            types => types.iter().cloned().map(Some).collect(),
        }
    }
}

fn waiter_bytes(request: &ClaimRequest) -> usize {
    // A key's place in its index is among them.
    WAITER_BYTES + request.worker.as_str().len()
}

fn names_bytes(queues: &[QueueName], types: &[JobType]) -> usize {
    let queues = queues.iter().map(|name| name.as_str().len() + NAME_BYTES);
    let types = types.iter().map(|name| name.as_str().len() + NAME_BYTES);
    queues.chain(types).sum()
}

fn as_slice<T>(name: &Option<T>) -> &[T] {
    name.as_ref().map_or(&[], std::slice::from_ref)
}

fn remove<K: Ord>(index: &mut BTreeMap<K, BTreeSet<WantId>>, key: &K, id: WantId) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
