//! Looking at the queue: jobs, pages, counts. Reading changes nothing and needs no command.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::job::{Key, Payload, State};
use super::limits::{QueueOptions, Settings};
use super::machine::Queue;
use super::named_queue::NamedQueue;
use super::retry::Backoff;
use super::schedule::Schedule;
use super::shelves::{Class, Shelf};
use super::slab::Handle;
use super::trace::{Traceparent, Tracestate};
use crate::{JobId, JobType, QueueName};

/// A job as it is shown, and as a snapshot keeps it. Times are milliseconds since 1970 on brokers'
/// clocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobView {
    /// Its place among all jobs ever accepted: the order of the log.
    pub sequence: u64,
    /// Its id.
    pub id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Its payload.
    pub payload: Payload,
    /// Its state.
    pub state: State,
    /// Ready, but another job of its group comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocked: bool,
    /// Its priority.
    pub priority: i8,
    /// How many attempts were started.
    pub attempt: u32,
    /// After how many it is dead.
    pub max_attempts: u32,
    /// When it was submitted.
    pub created_at: u64,
    /// When it may run, or might have.
    pub run_at: u64,
    /// When it entered its state.
    pub changed_at: u64,
    /// Its unique key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<Key>,
    /// Its ordering group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Key>,
    /// Its own wait between attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// The span that it was submitted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Traceparent>,
    /// What goes with that span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<Tracestate>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<str>>,
    /// What its worker answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// Who runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Key>,
    /// How long its claim lasts without a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u32>,
    /// Its worker is to give it up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// What its worker last said of its progress. Kept with the lease, so the broker fills it in and
    /// no snapshot has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Payload>,
    /// The job was forgotten. Only its id, queue, type, state, the time it finished and its result are left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remnant: bool,
}

impl JobView {
    /// About how many bytes it has as JSON: rather more than fewer.
    #[must_use]
    pub fn json_bytes(&self) -> usize {
        let payload = |payload: Option<&Payload>| payload.map_or(0, Payload::bytes);
        let key = |key: Option<&Key>| key.map_or(0, |key| escaped_bytes(key.as_str()));
        let state = self.tracestate.as_ref();
        FIELDS_BYTES
            + self.id.as_str().len()
            + self.queue.as_str().len()
            + self.job_type.as_str().len()
            + self.payload.bytes()
            + payload(self.result.as_ref())
            + payload(self.progress.as_ref())
            + key(self.unique_key.as_ref())
            + key(self.group.as_ref())
            + key(self.worker.as_ref())
            + state.map_or(0, |state| escaped_bytes(state.as_str()))
            + self.error.as_deref().map_or(0, escaped_bytes)
    }
}

/// The most bytes of a job's names of fields, numbers and punctuation as JSON.
const FIELDS_BYTES: usize = 640;

/// How many bytes a text has within quotes.
fn escaped_bytes(text: &str) -> usize {
    let bytes = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(bytes).sum()
}

/// Which jobs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this state.
    pub state: Option<State>,
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// Of this type.
    pub job_type: Option<JobType>,
}

/// Where a page starts. Pages are stable: jobs that come or go meanwhile shift nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the order of the log, after this sequence number; 0 for the first page.
    After(u64),
    /// The newest first, before this sequence number; `u64::MAX` for the first page.
    Before(u64),
}

/// Some jobs, and the sequence number to go on from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page {
    /// In the order asked for.
    pub jobs: Vec<JobView>,
    /// Where the next page starts; none if this is the last.
    pub next: Option<u64>,
}

/// A page that is being made, a portion at a time: see [`Queue::read_on`].
#[derive(Debug)]
pub struct Reading {
    filter: Filter,
    /// Where to look next.
    from: Place,
    limit: usize,
    bytes_max: usize,
    bytes: usize,
    looked: u64,
    pub(crate) portion: usize,
    page: Page,
}

impl Reading {
    /// The most jobs that are looked at in one portion: a millisecond or so of work.
    pub const PORTION: usize = 2_000;

    /// Nothing was looked at yet. The page ends at `limit` jobs, or `bytes_max` bytes of JSON: it has at least one job,
    /// however large that is, so that the next page starts further on.
    #[must_use]
    pub fn new(filter: Filter, from: Place, limit: usize, bytes_max: usize) -> Self {
        Self {
            filter,
            from,
            limit,
            bytes_max,
            bytes: 0,
            looked: 0,
            portion: Self::PORTION,
            page: Page {
                jobs: Vec::new(),
                next: None,
            },
        }
    }

    /// How many jobs were looked at so far.
    #[must_use]
    pub fn looked(&self) -> u64 {
        self.looked
    }

    /// What was found.
    #[must_use]
    pub fn into_page(self) -> Page {
        self.page
    }

    /// Puts a job on the page. Whether there was room.
    fn put(&mut self, job: impl FnOnce() -> JobView) -> bool {
        let last = self.page.jobs.last().map(|job| job.sequence);
        if self.page.jobs.len() >= self.limit {
            self.page.next = last;
            return false;
        }
        let job = job();
        self.bytes = self.bytes.saturating_add(job.json_bytes());
        if self.bytes > self.bytes_max && last.is_some() {
            self.page.next = last;
            return false;
        }
        self.page.jobs.push(job);
        true
    }
}

/// Jobs per state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
#[expect(missing_docs, reason = "named like the states")]
pub struct Counts {
    pub scheduled: u64,
    pub ready: u64,
    /// Those of the ready jobs that wait for their turn in a group.
    pub blocked: u64,
    pub running: u64,
    pub completed: u64,
    pub cancelled: u64,
    pub dead: u64,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueView {
    /// Its name.
    pub name: QueueName,
    /// No job of it is claimed.
    pub paused: bool,
    /// Its limits.
    pub options: QueueOptions,
    /// Its jobs.
    pub counts: Counts,
}

impl Queue {
    /// The latest time of any command.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// How many jobs there are, of all states.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What holds for all queues.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// One job; none if there never was one with this id, or it was forgotten.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<JobView> {
        self.find(id).map(|handle| self.view(handle))
    }

    /// Jobs in the order of the log, or backwards. Cost: the page; of one queue also its types, and of one type in all
    /// queues also the jobs of other types that are passed over.
    #[must_use]
    pub fn page(&self, filter: &Filter, from: Place, limit: usize) -> Page {
        let mut reading = Reading::new(filter.clone(), from, limit, usize::MAX);
        while self.read_on(&mut reading) {}
        reading.page
    }

    /// Goes on with a page: looks at one portion of the jobs, at most [`PORTION`](Reading::PORTION). Whether there is
    /// more to look at, so that others can be let in before this is called again.
    #[must_use]
    pub fn read_on(&self, reading: &mut Reading) -> bool {
        let Some(mut found) = self.candidates(&reading.filter, reading.from) else {
            return false;
        };
        for _ in 0..reading.portion {
            let Some((place, handle)) = found.next() else {
                return false;
            };
            reading.looked += 1;
            if found.mean(&self.jobs[handle]) && !reading.put(|| self.view(handle)) {
                return false;
            }
            reading.from = match reading.from {
                Place::After(_) => Place::After(place),
                Place::Before(_) => Place::Before(place),
            };
        }
        true
    }

    /// Every queue that has jobs or settings, by name.
    pub fn queues(&self) -> impl Iterator<Item = QueueView> {
        self.queues
            .iter()
            .filter(|(_, _, queue)| queue.is_shown())
            .map(|(name, _, queue)| view_of(name, queue))
    }

    /// One queue.
    #[must_use]
    pub fn queue(&self, name: &QueueName) -> Option<QueueView> {
        let handle = self.queues.find(name)?;
        let queue = &self.queues[handle];
        queue.is_shown().then(|| view_of(name, queue))
    }

    /// At most so many queues behind a name, by name, each with the time since when its oldest ready job could
    /// have been claimed. Cost: these queues.
    #[must_use]
    pub fn queues_behind(
        &self,
        name: Option<&QueueName>,
        most: usize,
    ) -> Vec<(QueueView, Option<u64>)> {
        let behind = self.queues.iter_behind(name);
        // One that is left only as the name of deleted jobs is not shown anywhere else either.
        let shown = behind.filter(|(_, _, queue)| queue.is_shown());
        shown
            .take(most)
            .map(|(name, handle, queue)| (view_of(name, queue), self.ready_since(handle)))
            .collect()
    }

    /// How many queues have jobs or settings.
    #[must_use]
    pub fn queues_len(&self) -> usize {
        self.queues.len()
    }

    /// How many types the jobs have.
    #[must_use]
    pub fn types_len(&self) -> usize {
        self.types.len()
    }

    /// Whether there is a queue of this name.
    #[must_use]
    pub fn has_queue(&self, name: &QueueName) -> bool {
        self.queues.find(name).is_some()
    }

    /// Whether there are jobs of this type.
    #[must_use]
    pub fn has_type(&self, name: &JobType) -> bool {
        self.types.find(name).is_some()
    }

    /// The queues that schedules submit to, all but one of them if it is named, and that are not there yet. Cost: the
    /// number of schedules.
    #[must_use]
    pub fn queues_to_come(&self, except: Option<&crate::ScheduleName>) -> BTreeSet<&QueueName> {
        let others = self
            .schedules()
            .filter(|schedule| Some(&schedule.name) != except);
        let named = others.map(|schedule| &schedule.spec.job.queue);
        named.filter(|name| !self.has_queue(name)).collect()
    }

    /// How many schedules there are, and the bytes of all their text.
    #[must_use]
    pub fn schedules_size(&self) -> (usize, usize) {
        (self.schedules.len(), self.schedules.bytes())
    }

    /// The jobs of all queues together, by state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        counts_of(&self.totals)
    }

    /// Since when the oldest ready job of a queue could have been claimed: a delayed or retried job waits from
    /// its time on.
    #[must_use]
    pub fn oldest_ready_since(&self, queue: &QueueName) -> Option<u64> {
        self.ready_since(self.queues.find(queue)?)
    }

    fn ready_since(&self, queue: Handle) -> Option<u64> {
        Some(self.jobs[self.oldest(queue)?].changed_at)
    }

    /// The claimable job of a queue that stands first in the log. Cost: the same however many there are.
    #[must_use]
    pub fn oldest_ready(&self, queue: &QueueName) -> Option<JobView> {
        let queue = self.queues.find(queue)?;
        self.oldest(queue).map(|handle| self.view(handle))
    }

    fn oldest(&self, queue: Handle) -> Option<Handle> {
        let (job_type, (rank, sequence)) = self.queues[queue].oldest()?;
        let shelf = Shelf {
            queue,
            job_type,
            class: Class::Ready,
            rank,
        };
        self.shelves.get(shelf, sequence)
    }

    /// At most so many schedules behind a name, by name, or fewer if they are large: one at least, and no more
    /// than about so many bytes.
    #[must_use]
    pub fn schedules_behind(
        &self,
        name: Option<&crate::ScheduleName>,
        most: usize,
        bytes_max: usize,
    ) -> Vec<Schedule> {
        let mut bytes = 0;
        let behind = self.schedules.behind(name).take(most);
        behind
            .take_while(|schedule| {
                let is_first = bytes == 0;
                bytes += schedule.bytes() + SCHEDULE_BYTES;
                is_first || bytes <= bytes_max
            })
            .cloned()
            .collect()
    }

    /// Every schedule, by name.
    pub fn schedules(&self) -> impl Iterator<Item = &Schedule> {
        self.schedules.values()
    }

    /// One schedule.
    #[must_use]
    pub fn schedule(&self, name: &crate::ScheduleName) -> Option<&Schedule> {
        self.schedules.get(name)
    }

    pub(crate) fn view(&self, handle: Handle) -> JobView {
        let job = &self.jobs[handle];
        let extra = job.extra.as_deref();
        let running = job.running.as_deref();
        let trace = job.trace();
        JobView {
            sequence: job.sequence,
            id: job.id.clone(),
            queue: self.queues.name(job.queue).clone(),
            job_type: self.types.name(job.job_type).clone(),
            payload: job.payload.clone(),
            state: job.class.state(),
            blocked: job.class == Class::Blocked,
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            created_at: job.created_at,
            run_at: job.run_at,
            changed_at: job.changed_at,
            unique_key: job.unique_key().cloned(),
            group: job.group_key().cloned(),
            backoff: extra.and_then(|extra| extra.backoff),
            traceparent: trace.map(|trace| trace.parent),
            tracestate: trace.and_then(|trace| trace.state.clone()),
            error: extra.and_then(|extra| extra.error.clone()),
            result: extra.and_then(|extra| extra.result.clone()),
            worker: running.map(|running| running.worker.clone()),
            lease_ms: running.map(|running| running.lease_ms),
            cancel_requested: job.cancel_requested(),
            progress: None,
            remnant: false,
        }
    }
}

/// About what a schedule has beside its text.
const SCHEDULE_BYTES: usize = 512;

fn view_of(name: &QueueName, queue: &NamedQueue) -> QueueView {
    QueueView {
        name: name.clone(),
        paused: queue.paused,
        options: queue.options,
        counts: counts_of(&queue.counts),
    }
}

fn counts_of(counts: &[u64; Class::COUNT]) -> Counts {
    let count = |class: Class| counts[class as usize];
    Counts {
        scheduled: count(Class::Scheduled),
        ready: count(Class::Ready) + count(Class::Blocked),
        blocked: count(Class::Blocked),
        running: count(Class::Running),
        completed: count(Class::Completed),
        cancelled: count(Class::Cancelled),
        dead: count(Class::Dead),
    }
}
