//! What the leader's dashboard knows about the queue beyond its present state: rates, latencies, failures, the past.
//!
//! It is fed the committed events in log order, and the counts once a second. It holds no lock of the queue and
//! decides nothing. It starts empty with each term: jobs that waited before are counted, but their latencies are
//! unknown and left out.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use tenure_api::{Counts, Job, JobId, JobType, Queue, QueueName};
use tenure_core::queue::{Event, State};

use super::flow::{Flow, Rates};
use super::history::{self, Entry, Histories, shortened};
use super::series;
use super::stuck::{Facts, Level, judge};
use crate::metrics::Latencies;

/// The most queues with their own past and a line in the summary; all others are counted in the total only.
pub(super) const QUEUES_MAX: usize = 200;

/// The most failures that are shown.
const FAILURES_MAX: usize = 20;

/// The most jobs whose times are tracked. Further ones are not measured.
const TIMED_MAX: usize = 50_000;

#[derive(Debug)]
pub(super) struct Recorder {
    since_at: u64,
    total: Flow,
    queues: BTreeMap<QueueName, Flow>,
    timed: HashMap<JobId, Timed>,
    failures: VecDeque<Failure>,
    histories: Histories,
    latencies: Arc<Latencies>,
    /// The state of the queues at the last look.
    seen: Seen,
}

/// The state of the queues: all of them together, and the listed ones by name.
#[derive(Debug, Default)]
struct Seen {
    counts: Counts,
    queues_total: usize,
    queues: Vec<Queue>,
}

/// When an unfinished job became ready, and when it was claimed.
#[derive(Debug, Clone, Copy, Default)]
struct Timed {
    ready_at: Option<u64>,
    claimed_at: Option<u64>,
}

/// An attempt that failed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Failure {
    at: u64,
    id: JobId,
    queue: QueueName,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    job_type: Option<JobType>,
    attempt: u32,
    dead: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Box<str>>,
}

/// One queue in the summary.
#[derive(Debug, Serialize)]
pub(super) struct QueueSummary {
    #[serde(flatten)]
    view: Queue,
    rates: Rates,
    pickup: Option<super::histogram::Percentiles>,
    run: Option<super::histogram::Percentiles>,
}

/// A queue that needs attention.
#[derive(Debug, Serialize)]
pub(super) struct Stuck {
    queue: QueueName,
    level: Level,
    kind: &'static str,
    detail: String,
}

/// The whole summary.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    counts: Counts,
    rates: Rates,
    pickup: Option<super::histogram::Percentiles>,
    run: Option<super::histogram::Percentiles>,
    queues: Vec<QueueSummary>,
    /// The number of all queues, including those not listed.
    queues_total: usize,
    stuck: Vec<Stuck>,
    failures: Vec<Failure>,
}

/// Looks a job up, to say who runs it or why it failed.
pub(super) type LookUp<'a> = &'a dyn Fn(&JobId) -> Option<Job>;

impl Recorder {
    pub(super) fn new(now: u64, latencies: Arc<Latencies>) -> Self {
        Self {
            since_at: now,
            total: Flow::default(),
            queues: BTreeMap::new(),
            timed: HashMap::new(),
            failures: VecDeque::new(),
            histories: Histories::default(),
            latencies,
            seen: Seen::default(),
        }
    }

    /// Records the events of one command.
    pub(super) fn record(&mut self, at: u64, events: &[Event], look_up: LookUp<'_>) {
        for event in events {
            self.event(at, event, look_up);
        }
    }

    fn event(&mut self, at: u64, event: &Event, look_up: LookUp<'_>) {
        match event {
            Event::Submitted {
                id, queue, state, ..
            } => {
                self.count(queue, |flow| flow.now.submitted += 1);
                self.histories.add(id, Entry::new(at, "submitted"));
                if *state == State::Ready {
                    self.ready(at, id);
                }
            }
            Event::Ready { id, .. } => {
                self.histories.add(id, Entry::new(at, "ready"));
                self.ready(at, id);
            }
            Event::Claimed {
                id, queue, attempt, ..
            } => self.claimed(at, (id, queue, *attempt), look_up),
            Event::Completed { id, queue, .. } => {
                self.count(queue, |flow| flow.now.completed += 1);
                self.ended(at, id, queue);
                self.histories.add(id, Entry::new(at, "completed"));
            }
            Event::Failed {
                id,
                queue,
                attempt,
                run_at,
                ..
            } => {
                self.count(queue, |flow| flow.now.failed += 1);
                let entry = Entry {
                    attempt: Some(*attempt),
                    run_at: Some(*run_at),
                    ..Entry::new(at, "failed")
                };
                self.failed(id, queue, entry, look_up);
            }
            Event::Died {
                id, queue, attempt, ..
            } => {
                self.count(queue, |flow| {
                    flow.now.failed += 1;
                    flow.now.died += 1;
                });
                let entry = Entry {
                    attempt: Some(*attempt),
                    ..Entry::new(at, "died")
                };
                self.failed(id, queue, entry, look_up);
            }
            Event::Cancelled { id, queue, .. } => {
                self.ended(at, id, queue);
                self.histories.add(id, Entry::new(at, "cancelled"));
            }
            Event::Released { id, queue, .. } => {
                self.ended(at, id, queue);
                self.histories.add(id, Entry::new(at, "released"));
            }
            Event::CancelRequested { id } => {
                self.histories.add(id, Entry::new(at, "cancel_requested"));
            }
            Event::Retried { id, .. } => self.histories.add(id, Entry::new(at, "retried")),
            Event::Moved { id, .. } => self.histories.add(id, Entry::new(at, "moved")),
            Event::Forgotten { id } => {
                self.histories.forget(at, id);
                self.timed.remove(id);
            }
            _ => {}
        }
    }

    fn ready(&mut self, at: u64, id: &JobId) {
        if self.timed.len() < TIMED_MAX || self.timed.contains_key(id) {
            let timed = Timed {
                ready_at: Some(at),
                claimed_at: None,
            };
            self.timed.insert(id.clone(), timed);
        }
    }

    fn claimed(
        &mut self,
        at: u64,
        (id, queue, attempt): (&JobId, &QueueName, u32),
        look_up: LookUp<'_>,
    ) {
        let has_room = self.timed.len() < TIMED_MAX;
        let mut waited = None;
        if let Some(timed) = self.timed.get_mut(id) {
            waited = timed.ready_at.take().map(|ready| at.saturating_sub(ready));
            timed.claimed_at = Some(at);
        } else if has_room {
            let timed = Timed {
                ready_at: None,
                claimed_at: Some(at),
            };
            self.timed.insert(id.clone(), timed);
        }
        if let Some(waited) = waited {
            self.latencies.picked_up(queue, waited);
        }
        self.count(queue, |flow| {
            flow.now.claimed += 1;
            flow.claimed_at = Some(at);
            if let Some(waited) = waited {
                flow.now.pickup.add(waited);
            }
        });
        // Only if the job is still in this attempt is the worker that runs it the one that claimed it here.
        let worker = look_up(id)
            .filter(|job| job.state == State::Running && job.attempt == attempt)
            .and_then(|job| job.worker);
        let entry = Entry {
            attempt: Some(attempt),
            worker,
            ..Entry::new(at, "claimed")
        };
        self.histories.add(id, entry);
    }

    /// Notes that a claim, or a job, has ended.
    fn ended(&mut self, at: u64, id: &JobId, queue: &QueueName) {
        let claimed_at = self.timed.remove(id).and_then(|timed| timed.claimed_at);
        if let Some(claimed_at) = claimed_at {
            let took = at.saturating_sub(claimed_at);
            self.latencies.ran(queue, took);
            self.count(queue, |flow| flow.now.run.add(took));
        }
    }

    fn failed(&mut self, id: &JobId, queue: &QueueName, mut entry: Entry, look_up: LookUp<'_>) {
        self.ended(entry.at, id, queue);
        let job = look_up(id);
        // The error of a later attempt may be another one.
        entry.error = job
            .as_ref()
            .filter(|job| Some(job.attempt) == entry.attempt)
            .and_then(|job| job.error.as_deref())
            .map(shortened);
        self.failures.push_front(Failure {
            at: entry.at,
            id: id.clone(),
            queue: queue.clone(),
            job_type: job.map(|job| job.job_type),
            attempt: entry.attempt.unwrap_or_default(),
            dead: entry.event == "died",
            error: entry.error.clone(),
        });
        self.failures.truncate(FAILURES_MAX);
        self.histories.add(id, entry);
    }

    fn count(&mut self, queue: &QueueName, add: impl Fn(&mut Flow)) {
        add(&mut self.total);
        if let Some(flow) = self.queues.get_mut(queue) {
            add(flow);
        } else if self.queues.len() < QUEUES_MAX {
            add(self.queues.entry(queue.clone()).or_default());
        }
    }

    /// The queues that are followed, by name.
    pub(super) fn names(&self) -> BTreeSet<QueueName> {
        self.queues.keys().cloned().collect()
    }

    /// Notes, once a second, the counts of all queues together, the number of queues, and the listed ones by name.
    pub(super) fn tick(
        &mut self,
        now: u64,
        counts: Counts,
        queues_total: usize,
        queues: Vec<Queue>,
    ) {
        self.queues
            .retain(|name, _| queues.binary_search_by(|view| view.name.cmp(name)).is_ok());
        let mut oldest = None;
        for view in queues.iter().take(QUEUES_MAX) {
            oldest = older(oldest, view.oldest_ready_at);
            let flow = self.queues.entry(view.name.clone()).or_default();
            flow.tick(now, &view.counts, view.oldest_ready_at);
        }
        self.total.tick(now, &counts, oldest);
        self.seen = Seen {
            counts,
            queues_total,
            queues,
        };
    }

    /// The whole summary, as last noted.
    pub(super) fn summary(&self, now: u64) -> Summary {
        let mut listed = Vec::with_capacity(self.seen.queues.len());
        let mut stuck = Vec::new();
        for view in &self.seen.queues {
            let Some(flow) = self.queues.get(&view.name) else {
                continue;
            };
            // If no job was ever claimed from this queue, count from when there was something to claim.
            let idle_since = self.since_at.max(view.oldest_ready_at.unwrap_or_default());
            let claimed_at = flow.claimed_at.unwrap_or(idle_since);
            let facts = facts(view, claimed_at);
            stuck.extend(judge(&facts, now).map(|finding| Stuck {
                queue: view.name.clone(),
                level: finding.level,
                kind: finding.kind,
                detail: finding.detail,
            }));
            listed.push(QueueSummary {
                view: view.clone(),
                rates: flow.rates(),
                pickup: flow.pickup(),
                run: flow.run(),
            });
        }
        // What cannot be intended comes first.
        stuck.sort_by_key(|each| each.level != Level::Bad);
        Summary {
            counts: self.seen.counts,
            rates: self.total.rates(),
            pickup: self.total.pickup(),
            run: self.total.run(),
            queues: listed,
            queues_total: self.seen.queues_total,
            stuck,
            failures: self.failures.iter().cloned().collect(),
        }
    }

    /// The past of a queue, or of all together, after a given time. `None` if the queue has none.
    pub(super) fn series(&self, queue: Option<&QueueName>, after: u64) -> Option<series::Answer> {
        let flow = match queue {
            Some(name) => self.queues.get(name)?,
            None => &self.total,
        };
        Some(flow.series.after(after))
    }

    /// The past hour of every queue, as few points.
    pub(super) fn sparks(&self) -> BTreeMap<QueueName, Vec<u32>> {
        self.queues
            .iter()
            .map(|(name, flow)| (name.clone(), flow.series.spark()))
            .collect()
    }

    /// The latest events of all jobs.
    pub(super) fn activity(&self) -> history::Activity {
        self.histories.latest(self.since_at)
    }

    pub(super) fn history(&self, id: &JobId) -> history::Answer {
        self.histories.of(id, self.since_at)
    }
}

fn facts(view: &Queue, claimed_at: u64) -> Facts {
    Facts {
        paused: view.paused,
        ready: view.counts.ready - view.counts.blocked,
        running: view.counts.running,
        concurrency: view.options.concurrency,
        has_rate: view.options.rate.is_some(),
        oldest_ready_at: view.oldest_ready_at,
        claimed_at,
    }
}

fn older(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
