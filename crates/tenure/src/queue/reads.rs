//! Looking at the queue: what is committed, and nothing else. No call waits for a commit.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::queue::{
    Counts, Filter, Job, Key, Page, PageReader, PageStart, QueueView, Rules, Schedule, Settings,
    Token,
};
use tenure_core::{JobId, QueueName, ScheduleName};

use super::broker::Broker;
use super::{ClockState, Error, Metrics, Position, Queue, Statistics};

/// The most bytes of a page of jobs as JSON, unless its only job is larger.
pub const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How many queues or schedules are read in one turn at the lock: a millisecond or so.
const PORTION: usize = 1_000;

/// How many bytes of schedules are handed out at once.
const SCHEDULES_BYTES_MAX: usize = 4 * 1024 * 1024;

impl Queue {
    /// One job, or what is left of it; none if there never was one with this id, or it was forgotten.
    pub fn job(&self, id: &JobId) -> Result<Option<Job>, Error> {
        self.read(|broker| {
            let Some(mut job) = broker.queue.job(id) else {
                return broker.queue.remnant(id);
            };
            job.progress = broker.leases.progress(&broker.queue, id).cloned();
            Some(job)
        })
    }

    /// Who runs a job, and by which token; none if nobody does. For dialects without tokens: the worker with the
    /// token may end the claim.
    pub fn holder(&self, id: &JobId) -> Result<Option<(Key, Token)>, Error> {
        self.read(|broker| {
            let (worker, token) = broker.queue.running_claim(id)?;
            Some((worker.clone(), token))
        })
    }

    /// How long ago each of these jobs' workers was heard from; none for a job that nobody runs.
    pub fn silences<'a>(
        &self,
        ids: impl Iterator<Item = &'a JobId>,
    ) -> Result<Vec<Option<Duration>>, Error> {
        let now = self.shared.service()?.time.clock().moment();
        self.read(|broker| {
            let ids = ids.take(PORTION);
            ids.map(|id| broker.leases.silence(&broker.queue, id, now))
                .collect()
        })
    }

    /// The workers whose claims wait for a job, by name, and how many claims each has: at most `limit` workers, and whether
    /// these are all.
    pub fn waiting_workers(&self, limit: usize) -> Result<(Vec<(Key, u32)>, bool), Error> {
        self.read(|broker| broker.waiting_workers(limit))
    }

    /// How many jobs of the queue `default` ever completed: this number never goes down.
    pub fn completed_total(&self) -> Result<u64, Error> {
        self.read(|broker| broker.queue.completed_total())
    }

    /// Jobs in the order of the log, or backwards: at most `limit`, at most as many as a batch may have, and at
    /// most [`PAGE_BYTES_MAX`] or one job. A shorter page that is not the last has a [`next`](Page::next). They are
    /// looked at in portions: others are served in between.
    pub fn page(&self, filter: &Filter, from: PageStart, limit: usize) -> Result<Page, Error> {
        let limit = limit.min(self.shared.limits().batch_max);
        let mut reading = PageReader::new(filter.clone(), from, limit, PAGE_BYTES_MAX);
        while self.read_on(&mut reading)? {
            // Let others take the lock: it is not handed over otherwise.
            std::thread::yield_now();
        }
        Ok(reading.into_page())
    }

    /// The same, one portion at a time, for callers who must not keep their thread for long. Whether there is more to
    /// look at.
    pub fn read_on(&self, reading: &mut PageReader) -> Result<bool, Error> {
        self.read(|broker| broker.queue.read_on(reading))
    }

    /// The jobs of a filter that have a text somewhere, in lower or upper case: one portion of the search, which
    /// holds up nobody for long. There may be fewer than `limit`, or none, and still a [`next`](Page::next).
    pub fn search(
        &self,
        filter: &Filter,
        text: &str,
        from: PageStart,
        limit: usize,
    ) -> Result<Page, Error> {
        let limit = limit.min(self.shared.limits().batch_max);
        self.read(|broker| broker.queue.search(filter, text, from, limit))
    }

    /// Every queue that has jobs or settings, by name. They are read in portions: others are served in between,
    /// and what they change may be in the rest.
    pub fn queues(&self) -> Result<Vec<QueueView>, Error> {
        let mut all: Vec<QueueView> = Vec::new();
        loop {
            let page = self.queues_behind(all.last().map(|view| &view.name), PORTION)?;
            let is_last = page.len() < PORTION;
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Some queues behind a name, by name: at most `limit`, and at most 1,000.
    pub fn queues_behind(
        &self,
        name: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueView>, Error> {
        let limit = limit.min(PORTION);
        self.read(|broker| broker.queue.queues_behind(name, limit))
    }

    /// The queues of these names that there are, at most 1,000.
    pub fn queues_named<'a>(
        &self,
        names: impl Iterator<Item = &'a QueueName>,
    ) -> Result<Vec<QueueView>, Error> {
        self.read(|broker| {
            let names = names.take(PORTION);
            names.filter_map(|name| broker.queue.queue(name)).collect()
        })
    }

    /// The jobs of all queues together by state, and how many queues there are.
    pub fn counts(&self) -> Result<(Counts, usize), Error> {
        self.read(|broker| (broker.queue.counts(), broker.queue.queues_len()))
    }

    /// One queue; none if it has neither jobs nor settings.
    pub fn queue(&self, name: &QueueName) -> Result<Option<QueueView>, Error> {
        self.read(|broker| broker.queue.queue(name))
    }

    /// The claimable job of a queue that stands first in the log.
    pub fn oldest_ready(&self, name: &QueueName) -> Result<Option<Job>, Error> {
        self.read(|broker| broker.queue.oldest_ready(name))
    }

    /// Every schedule, by name. They are read in portions, like the queues.
    pub fn schedules(&self) -> Result<Vec<Schedule>, Error> {
        let mut all: Vec<Schedule> = Vec::new();
        loop {
            let behind = all.last().map(|schedule| &schedule.name);
            let page = self.schedules_behind(behind, PORTION)?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// Some schedules behind a name, by name: at most `limit`, at most 1,000, and fewer if they have more than a
    /// few MiB. There are no more if there are none.
    pub fn schedules_behind(
        &self,
        name: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<Vec<Schedule>, Error> {
        let limit = limit.min(PORTION);
        let bytes_max = SCHEDULES_BYTES_MAX;
        self.read(|broker| broker.queue.schedules_behind(name, limit, bytes_max))
    }

    /// One schedule.
    pub fn schedule(&self, name: &ScheduleName) -> Result<Option<Schedule>, Error> {
        self.read(|broker| broker.queue.schedule(name).cloned())
    }

    /// What holds for all queues.
    pub fn settings(&self) -> Result<Settings, Error> {
        self.read(|broker| *broker.queue.settings())
    }

    /// The rules by which commands are applied: those that every process of the namespace can read.
    pub fn rules(&self) -> Result<Rules, Error> {
        self.read(|broker| broker.queue.rules())
    }

    /// What was committed since the queue was opened, and what waits to be.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Ok(self.shared.service()?.handle.statistics())
    }

    /// Whether the store takes commits as large as those that it has refused last. Asks the store, with a write, only if
    /// it has refused any, and has taken none as large since.
    pub async fn check_room(&self) -> Result<(), Error> {
        self.shared.service()?.handle.check_room().await
    }

    /// The queue's time, in milliseconds since 1970.
    pub fn now_ms(&self) -> Result<u64, Error> {
        Ok(self.shared.service()?.time.at())
    }

    /// What this host's wall clock shows, in milliseconds since 1970.
    pub fn wall_ms(&self) -> Result<u64, Error> {
        Ok(self.shared.service()?.time.wall())
    }

    /// What the queue makes of this host's wall clock.
    pub fn clock(&self) -> Result<ClockState, Error> {
        Ok(self.shared.service()?.time.clock_state())
    }

    /// What the queue has done in this process, over all its terms: also on a standby.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let counters = &self.shared.counters;
        let snapshot = counters
            .last_snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let recoveries = self
            .shared
            .recoveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let service = self.shared.service().ok();
        let waiting = service.as_ref().map(|service| service.handle.statistics());
        let now = service.and_then(|service| {
            let count = |broker: &Broker| {
                let remnants = broker.queue.remnants();
                (broker.waiting.len(), broker.leases.len(), remnants)
            };
            service.read(count).ok()
        });
        let (waiting_claims, leases, remnants) = now.unwrap_or_default();
        let done = counters.statistics();
        Metrics {
            commits: done.commits,
            records: done.records,
            bytes: done.bytes,
            commit_latency: counters.latency.snapshot(),
            waiting: waiting.map_or(0, |statistics| statistics.waiting),
            turned_away: done.turned_away,
            waiting_claims: waiting_claims as u64,
            leases: leases as u64,
            ids: remnants.ids,
            ids_bytes: remnants.bytes,
            ids_dropped: remnants.dropped,
            position: Position(counters.position.load(Ordering::Relaxed)),
            log_bytes: counters.log_bytes.load(Ordering::Relaxed),
            snapshots: done.snapshots,
            last_snapshot: *snapshot,
            recoveries: recoveries.0,
            last_recovery: recoveries.1,
            terms_failed: self.shared.terms_failed.load(Ordering::Relaxed),
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Broker) -> T) -> Result<T, Error> {
        let service = self.shared.service()?;
        self.shared.answer(service.read(read))
    }
}
