//! Limits, schedules, retention, and what the model shows.

use std::collections::BTreeMap;

use tenure_api::{SubmitStatus, Submitted};

use super::{Model, ModelJob, ModelQueue};
use crate::queue::*;
use crate::{JobId, QueueName, ScheduleName};

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
            let (now, ids) = (self.now, self.settings.ids);
            let (mut gone, stay) = std::mem::take(&mut self.jobs)
                .into_iter()
                .partition::<Vec<_>, _>(|job| {
                    let age = now - job.view.changed_at;
                    job.view.state == state
                        && (finishes[..spare].contains(&job.finish)
                            || keep.age_ms.is_some_and(|most| age >= most))
                });
            self.jobs = stay;
            gone.sort_by_key(|job| job.finish);
            gone.retain(|job| now - job.view.changed_at < ids.age_ms);
            self.remnants.append(&mut gone);
        }
        self.forget_remnants();
    }

    /// The oldest goes while it is old, or all of them are too large.
    fn forget_remnants(&mut self) {
        while let Some(oldest) = self.remnants.first() {
            let age = self.now.saturating_sub(oldest.view.changed_at);
            let is_old = age >= self.settings.ids.age_ms;
            let bytes: usize = self.remnants.iter().map(remnant_bytes).sum();
            if !is_old && bytes as u64 <= self.settings.ids.bytes_max {
                return;
            }
            self.remnants.remove(0);
        }
    }

    pub(super) fn remnant_state(&self, id: &JobId) -> Option<State> {
        let left = self.remnants.iter().find(|left| left.view.id == *id);
        left.map(|left| left.view.state)
    }

    pub(super) fn is_full(&self) -> bool {
        self.jobs.len() as u64 >= self.settings.jobs_max
    }

    pub(super) fn set_schedule(
        &mut self,
        name: ScheduleName,
        spec: ScheduleSpec,
        next: Option<u64>,
        events: &mut Vec<Event>,
    ) -> Option<u64> {
        let old = self.schedules.get(&name);
        if let Some(old) = old
            && old.spec == spec
        {
            let next = old.next;
            events.push(Event::ScheduleSet {
                schedule: name,
                next,
            });
            return next;
        }
        self.revision += 1;
        let last = old.and_then(|old| old.last);
        let paused = old.is_some_and(|old| old.paused);
        let next = if paused { None } else { next };
        let schedule = Schedule {
            name: name.clone(),
            spec,
            revision: self.revision,
            next,
            last,
            paused,
        };
        self.schedules.insert(name.clone(), schedule);
        events.push(Event::ScheduleSet {
            schedule: name,
            next,
        });
        next
    }

    pub(super) fn pause_schedule(&mut self, name: ScheduleName, events: &mut Vec<Event>) -> bool {
        let Some(schedule) = self.schedules.get_mut(&name) else {
            return false;
        };
        if !schedule.paused {
            self.revision += 1;
            schedule.revision = self.revision;
            (schedule.paused, schedule.next) = (true, None);
            events.push(Event::SchedulePaused { schedule: name });
        }
        true
    }

    pub(super) fn resume_schedule(
        &mut self,
        resumption: Resumption,
        events: &mut Vec<Event>,
    ) -> bool {
        let (name, next) = (resumption.schedule, resumption.next);
        match self.schedules.get_mut(&name) {
            Some(schedule) if schedule.revision != resumption.revision => false,
            Some(schedule) if schedule.paused => {
                self.revision += 1;
                schedule.revision = self.revision;
                (schedule.paused, schedule.next) = (false, next);
                events.push(Event::ScheduleResumed {
                    schedule: name,
                    next,
                });
                true
            }
            Some(_) => true,
            None => false,
        }
    }

    pub(super) fn fire(&mut self, firing: Firing, events: &mut Vec<Event>) {
        let name = firing.schedule;
        let schedule = match self.schedules.get(&name) {
            Some(schedule)
                if schedule.revision == firing.revision && schedule.next == Some(firing.due) =>
            {
                schedule.clone()
            }
            _ => return,
        };
        // Time was set back since it was planned, and it is not how that is put right.
        let is_back = firing.next.is_some_and(|next| next < firing.due);
        if firing.due > self.now && !is_back || firing.slots.iter().any(|&slot| slot > self.now) {
            return;
        }
        let mut outcome = Vec::new();
        let (mut next, mut last, mut fired) = (firing.next, schedule.last, 0);
        for slot in firing.slots {
            let mut events = Vec::new();
            let answers = self.each(vec![schedule.slot(slot)], &mut events, Self::submit);
            let Submitted {
                id,
                status,
                existing,
            } = answers[0].clone();
            // For want of room it waits, and what comes after it with it.
            if status == SubmitStatus::Full {
                next = Some(slot);
                break;
            }
            outcome.push(Event::SlotFired {
                schedule: name.clone(),
                id,
                created: status == SubmitStatus::Created,
            });
            let is_other = |event: &Event| !matches!(event, Event::Submitted { .. });
            outcome.extend(events.into_iter().filter(is_other));
            fired += 1;
            // Unless another job has its unique key there is a job of this slot.
            if existing.is_none() {
                last = Some(slot);
            }
        }
        let schedule = self.schedules.get_mut(&name).unwrap();
        (schedule.next, schedule.last) = (next, last);
        events.push(Event::Fired {
            schedule: name.clone(),
            slots: fired,
            next,
        });
        events.extend(outcome);
    }

    /// Every job as it is to be shown, in the order of the log.
    pub(in crate::queue::tests) fn views(&self) -> Vec<Job> {
        let mut views: Vec<_> = self
            .jobs
            .iter()
            .map(|job| Job {
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
            oldest_ready_at: None,
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
            if job.state == State::Ready && !job.blocked {
                view.oldest_ready_at.get_or_insert(job.changed_at);
            }
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

/// What one is counted for.
fn remnant_bytes(left: &ModelJob) -> usize {
    let result = left.view.result.as_ref();
    160 + left.view.id.as_str().len() + result.map_or(0, |result| result.as_str().len())
}
