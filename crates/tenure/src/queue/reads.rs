//! Looking at the queue: what is committed, and nothing else. No call waits for a commit.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tenure_core::queue::{Filter, JobView, Key, Page, Place, QueueView, Schedule, Settings, Token};
use tenure_core::{JobId, QueueName, ScheduleName};

use super::broker::Broker;
use super::{ClockState, Error, Metrics, Position, Queue, Statistics};

impl Queue {
    /// One job; none if there never was one with this id, or it was forgotten.
    pub fn job(&self, id: &JobId) -> Result<Option<JobView>, Error> {
        self.read(|broker| {
            let mut job = broker.queue.job(id)?;
            job.progress = broker.leases.progress(&broker.queue, id).cloned();
            Some(job)
        })
    }

    /// Who runs a job, and by which token; none if nobody does. For dialects without tokens: whoever has the
    /// token may end the claim.
    pub fn holder(&self, id: &JobId) -> Result<Option<(Key, Token)>, Error> {
        self.read(|broker| {
            let (worker, token) = broker.queue.running_claim(id)?;
            Some((worker.clone(), token))
        })
    }

    /// Jobs in the order of the log, or backwards: at most `limit`, and at most as many as a batch may have.
    pub fn page(&self, filter: &Filter, from: Place, limit: usize) -> Result<Page, Error> {
        let limit = limit.min(self.shared.limits().batch_max);
        self.read(|broker| broker.queue.page(filter, from, limit))
    }

    /// The jobs of a filter that have a text somewhere, in lower or upper case: one portion of the search, which
    /// holds up nobody for long. There may be fewer than `limit`, or none, and still a [`next`](Page::next).
    pub fn search(
        &self,
        filter: &Filter,
        text: &str,
        from: Place,
        limit: usize,
    ) -> Result<Page, Error> {
        let limit = limit.min(self.shared.limits().batch_max);
        self.read(|broker| broker.queue.search(filter, text, from, limit))
    }

    /// Every queue that has jobs or settings, by name.
    pub fn queues(&self) -> Result<Vec<QueueView>, Error> {
        self.read(|broker| broker.queue.queues().collect())
    }

    /// One queue; none if it has neither jobs nor settings.
    pub fn queue(&self, name: &QueueName) -> Result<Option<QueueView>, Error> {
        self.read(|broker| broker.queue.queue(name))
    }

    /// The claimable job of a queue that stands first in the log.
    pub fn oldest_ready(&self, name: &QueueName) -> Result<Option<JobView>, Error> {
        self.read(|broker| broker.queue.oldest_ready(name))
    }

    /// Every schedule, by name.
    pub fn schedules(&self) -> Result<Vec<Schedule>, Error> {
        self.read(|broker| broker.queue.schedules().cloned().collect())
    }

    /// One schedule.
    pub fn schedule(&self, name: &ScheduleName) -> Result<Option<Schedule>, Error> {
        self.read(|broker| broker.queue.schedule(name).cloned())
    }

    /// What holds for all queues.
    pub fn settings(&self) -> Result<Settings, Error> {
        self.read(|broker| *broker.queue.settings())
    }

    /// What was committed since the queue was opened, and what waits to be.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Ok(self.shared.service()?.handle.statistics())
    }

    /// The queue's time, in milliseconds since 1970.
    pub fn now_ms(&self) -> Result<u64, Error> {
        Ok(self.shared.service()?.time.at())
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
            let count = |broker: &Broker| (broker.waiting.len(), broker.leases.len());
            service.read(count).ok()
        });
        let (waiting_claims, leases) = now.unwrap_or_default();
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
            position: Position(counters.position.load(Ordering::Relaxed)),
            log_bytes: counters.log_bytes.load(Ordering::Relaxed),
            snapshots: done.snapshots,
            last_snapshot: *snapshot,
            recoveries: recoveries.0,
            last_recovery: recoveries.1,
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Broker) -> T) -> Result<T, Error> {
        let service = self.shared.service()?;
        self.shared.answer(service.read(read))
    }
}
