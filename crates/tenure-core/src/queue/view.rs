//! Looking at the queue: jobs, pages, counts. Reading changes nothing and needs no command.

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

    /// Jobs in the order of the log, or backwards. Cost: the page, and the number of queues times types.
    #[must_use]
    pub fn page(&self, filter: &Filter, from: Place, limit: usize) -> Page {
        let Some(mut found) = self.candidates(filter, from) else {
            return Page {
                jobs: Vec::new(),
                next: None,
            };
        };
        let jobs: Vec<_> = found
            .by_ref()
            .take(limit)
            .map(|(_, handle)| self.view(handle))
            .collect();
        let more = found.next().is_some();
        let next = jobs.last().map(|job| job.sequence).filter(|_| more);
        Page { jobs, next }
    }

    /// Every queue that has jobs or settings, by name.
    pub fn queues(&self) -> impl Iterator<Item = QueueView> {
        self.queues
            .iter()
            .map(|(name, _, queue)| view_of(name, queue))
    }

    /// One queue.
    #[must_use]
    pub fn queue(&self, name: &QueueName) -> Option<QueueView> {
        let handle = self.queues.find(name)?;
        Some(view_of(name, &self.queues[handle]))
    }

    /// The claimable job of a queue that stands first in the log. Cost: the queue's types times
    /// priorities.
    #[must_use]
    pub fn oldest_ready(&self, queue: &QueueName) -> Option<JobView> {
        let queue = self.queues.find(queue)?;
        let ready = move |shelf: &Shelf| shelf.queue == queue && shelf.class == Class::Ready;
        self.shelves
            .after(0, ready)
            .next()
            .map(|(_, handle)| self.view(handle))
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

    /// The shelves that a filter means; none if it names what does not exist.
    pub(crate) fn matches(&self, filter: &Filter) -> Option<impl Fn(&Shelf) -> bool + use<>> {
        let queue = match &filter.queue {
            Some(name) => Some(self.queues.find(name)?),
            None => None,
        };
        let job_type = match &filter.job_type {
            Some(name) => Some(self.types.find(name)?),
            None => None,
        };
        let state = filter.state;
        Some(move |shelf: &Shelf| {
            state.is_none_or(|state| shelf.class.state() == state)
                && queue.is_none_or(|queue| shelf.queue == queue)
                && job_type.is_none_or(|job_type| shelf.job_type == job_type)
        })
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
        }
    }
}

fn view_of(name: &QueueName, queue: &NamedQueue) -> QueueView {
    let count = |class: Class| queue.counts[class as usize];
    QueueView {
        name: name.clone(),
        paused: queue.paused,
        options: queue.options,
        counts: Counts {
            scheduled: count(Class::Scheduled),
            ready: count(Class::Ready) + count(Class::Blocked),
            blocked: count(Class::Blocked),
            running: count(Class::Running),
            completed: count(Class::Completed),
            cancelled: count(Class::Cancelled),
            dead: count(Class::Dead),
        },
    }
}
