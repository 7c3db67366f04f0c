//! Limits, schedules, retention, and what the model shows.

use std::collections::BTreeMap;

use super::{Model, ModelQueue};
use crate::queue::*;
use crate::{QueueName, ScheduleName};

impl Model {
    pub(super) fn is_open(&self, name: &QueueName) -> bool {
        let Some(queue) = self.queues.get(name) else {
            return true;
        };
        let running = self
            .jobs
            .iter()
            .filter(|job| job.view.queue == *name && job.view.state == State::Running);
        let full = queue
            .options
            .concurrency
            .is_some_and(|most| running.count() >= most as usize);
        let starved = queue
            .options
            .rate
            .is_some_and(|rate| self.level(queue, rate) < u64::from(rate.period_ms));
        !queue.paused && !full && !starved
    }

    /// Tokens trickle in at `jobs` per millisecond and each claim takes `period_ms` of them.
    fn level(&self, queue: &ModelQueue, rate: Rate) -> u64 {
        let burst = u64::from(rate.burst.unwrap_or(rate.jobs));
        let jobs = u64::from(rate.jobs);
        let brim = burst * u64::from(rate.period_ms) + jobs - 1;
        queue.level.map_or(brim, |(level, since)| {
            brim.min(level + (self.now - since) * jobs)
        })
    }

    pub(super) fn take_from_bucket(&mut self, place: usize) {
        let name = self.jobs[place].view.queue.clone();
        if let Some(queue) = self.queues.get(&name)
            && let Some(rate) = queue.options.rate
        {
            let level = self.level(queue, rate) - u64::from(rate.period_ms);
            let now = self.now;
            self.queues.get_mut(&name).unwrap().level = Some((level, now));
        }
    }

    pub(super) fn forget(&mut self) {
        let keeps = [
            (State::Completed, self.settings.completed),
            (State::Cancelled, self.settings.cancelled),
            (State::Dead, self.settings.dead),
        ];
        for (state, keep) in keeps {
            let mut finishes: Vec<u64> = self
                .jobs
                .iter()
                .filter(|job| job.view.state == state)
                .map(|job| job.finish)
                .collect();
            finishes.sort_unstable();
            let spare = keep.count.map_or(0, |count| {
                finishes
                    .len()
                    .saturating_sub(usize::try_from(count).unwrap())
            });
            let now = self.now;
            self.jobs.retain(|job| {
                let age = now - job.view.changed_at;
                job.view.state != state
                    || !finishes[..spare].contains(&job.finish)
                        && keep.age_ms.is_none_or(|most| age < most)
            });
        }
    }

    pub(super) fn set_schedule(
        &mut self,
        name: ScheduleName,
        spec: ScheduleSpec,
        next: Option<u64>,
        events: &mut Vec<Event>,
    ) {
        let old = self.schedules.get(&name);
        if let Some(old) = old
            && old.spec == spec
        {
            return events.push(Event::ScheduleSet {
                schedule: name,
                next: old.next,
            });
        }
        self.revision += 1;
        let last = old.and_then(|old| old.last);
        let schedule = Schedule {
            name: name.clone(),
            spec,
            revision: self.revision,
            next,
            last,
        };
        self.schedules.insert(name.clone(), schedule);
        events.push(Event::ScheduleSet {
            schedule: name,
            next,
        });
    }

    pub(super) fn fire(&mut self, firing: Firing, events: &mut Vec<Event>) {
        let name = firing.schedule;
        let jobs = match self.schedules.get_mut(&name) {
            Some(schedule)
                if schedule.revision == firing.revision && schedule.next == Some(firing.due) =>
            {
                schedule.next = firing.next;
                schedule.last = firing.slots.last().copied().or(schedule.last);
                let slots = firing.slots.len() as u64;
                events.push(Event::Fired {
                    schedule: name.clone(),
                    slots,
                    next: firing.next,
                });
                firing
                    .slots
                    .iter()
                    .map(|&slot| schedule.slot(slot))
                    .collect()
            }
            _ => {
                events.push(Event::FiringStale {
                    schedule: name.clone(),
                });
                Vec::new()
            }
        };
        let mut outcome = Vec::new();
        self.each(jobs, &mut outcome, Self::submit);
        events.extend(outcome.into_iter().map(|event| match event {
            Event::Submitted { id, .. } => Event::SlotFired {
                schedule: name.clone(),
                id,
                created: true,
            },
            Event::Duplicate { id, .. } | Event::Refused { id, .. } => Event::SlotFired {
                schedule: name.clone(),
                id,
                created: false,
            },
            consequence => consequence,
        }));
    }

    /// Every job as it is to be shown, in the order of the log.
    pub(in crate::queue::tests) fn views(&self) -> Vec<JobView> {
        let mut views: Vec<_> = self
            .jobs
            .iter()
            .map(|job| JobView {
                blocked: job.view.state == State::Ready && self.is_blocked(job),
                ..job.view.clone()
            })
            .collect();
        views.sort_by_key(|view| view.sequence);
        views
    }

    /// Every queue with jobs or settings.
    pub(in crate::queue::tests) fn queue_views(&self) -> Vec<QueueView> {
        let mut views: BTreeMap<QueueName, QueueView> = BTreeMap::new();
        let blank = |name: &QueueName| QueueView {
            name: name.clone(),
            paused: false,
            options: QueueOptions::default(),
            counts: Counts::default(),
        };
        for (name, queue) in &self.queues {
            if queue.paused || queue.options != QueueOptions::default() {
                let view = views.entry(name.clone()).or_insert_with(|| blank(name));
                view.paused = queue.paused;
                view.options = queue.options;
            }
        }
        for job in self.views() {
            let view = views
                .entry(job.queue.clone())
                .or_insert_with(|| blank(&job.queue));
            let counts = &mut view.counts;
            counts.blocked += u64::from(job.blocked);
            *match job.state {
                State::Scheduled => &mut counts.scheduled,
                State::Ready => &mut counts.ready,
                State::Running => &mut counts.running,
                State::Completed => &mut counts.completed,
                State::Cancelled => &mut counts.cancelled,
                State::Dead => &mut counts.dead,
            } += 1;
        }
        views.into_values().collect()
    }
}
