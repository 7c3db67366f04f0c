//! Queues, schedules, retention: what is set by hand and what time does by itself.

use tenure_api::{SubmitStatus, Submitted};

use super::answer::Answer;
use super::bucket::Bucket;
use super::event::Event;
use super::machine::{Queue, finished_place};
use super::named_queue::NamedQueue;
use super::rules::Rules;
use super::schedule::{Due, Firing, Resumption, Schedule};
use super::shelves::Class;
use super::{Keep, QueueOptions, ScheduleSpec};
use crate::{QueueName, ScheduleName};

impl Queue {
    /// When [`Action::Tick`](super::Action::Tick) next has something to do: a scheduled job is due, or jobs are to be
    /// looked at since time was set back. At or before the present if it has now.
    #[must_use]
    pub fn due_at(&self) -> Option<u64> {
        if self.is_setting_back() {
            return Some(0);
        }
        self.scheduled
            .first_key_value()
            .map(|(&(run_at, _), _)| run_at)
    }

    /// When retention next has something to forget. Nothing waits for it, so it may be late.
    #[must_use]
    pub fn retention_due_at(&self) -> Option<u64> {
        self.retention()
            .into_iter()
            .filter_map(|(place, keep)| {
                let (_, &oldest) = self.finished[place].first_key_value()?;
                if keep
                    .count
                    .is_some_and(|count| self.finished[place].len() as u64 > count)
                {
                    return Some(self.now);
                }
                Some(self.jobs[oldest].changed_at.saturating_add(keep.age_ms?))
            })
            .chain(self.remnants_due_at())
            .min()
    }

    /// When a schedule is next due: at or before the present if one is now.
    #[must_use]
    pub fn firing_due_at(&self) -> Option<u64> {
        self.schedules.slot_from(0)
    }

    /// When a schedule is next due after a time.
    #[must_use]
    pub fn firing_due_after(&self, time: u64) -> Option<u64> {
        self.schedules.slot_from(time.checked_add(1)?)
    }

    /// At most so many schedules that are due, the longest due first, with what it takes to plan them. To
    /// go on, name the last of the answer.
    ///
    /// Planning is not done here: it takes a while, and needs nothing but the answer. A plan that was
    /// overtaken by a change of its schedule does nothing. None while the queue is full: their slots wait
    /// until there is room.
    #[must_use]
    pub fn due_schedules(&self, now: u64, behind: Option<&Due>, most: usize) -> Vec<Due> {
        if self.is_full() && self.rules >= Rules::SECOND {
            return Vec::new();
        }
        let behind = behind.map(|due| (due.due, due.schedule.clone()));
        let due = self.schedules.due(now, behind.as_ref());
        due.filter_map(Schedule::due).take(most).collect()
    }

    /// The plans for every schedule that is due. A broker cuts them into portions instead, see
    /// [`Queue::due_schedules`].
    #[must_use]
    pub fn due_firings(&self, now: u64) -> Vec<Firing> {
        let due = self.due_schedules(now, None, usize::MAX);
        let mut plans: Vec<_> = due.iter().filter_map(|due| due.plan(now)).collect();
        plans.sort_by(|one, other| one.schedule.cmp(&other.schedule));
        plans
    }

    pub(crate) fn set_queue(
        &mut self,
        name: QueueName,
        options: QueueOptions,
        events: &mut Vec<Event>,
    ) -> Answer {
        self.change_queue(&name, |queue| {
            // The same rate set again must not let another burst through.
            if queue.options.rate != options.rate {
                queue.bucket = Bucket::default();
            }
            queue.options = options;
        });
        events.push(Event::QueueSet { queue: name });
        Answer::Done
    }

    pub(crate) fn pause(
        &mut self,
        name: QueueName,
        paused: bool,
        events: &mut Vec<Event>,
    ) -> Answer {
        self.change_queue(&name, |queue| queue.paused = paused);
        events.push(if paused {
            Event::Paused { queue: name }
        } else {
            Event::Resumed { queue: name }
        });
        Answer::Done
    }

    /// A queue that has anything set holds its own name.
    pub(crate) fn change_queue(&mut self, name: &QueueName, change: impl FnOnce(&mut NamedQueue)) {
        let handle = self.queues.take(name);
        let queue = &mut self.queues[handle];
        change(queue);
        let keep = queue.paused || queue.options != QueueOptions::default();
        let kept = queue.keep(keep);
        self.post(handle);
        match (kept, keep) {
            (false, true) => {}
            (true, false) => {
                self.queues.release(handle);
                self.queues.release(handle);
            }
            _ => self.queues.release(handle),
        }
    }

    pub(crate) fn set_schedule(
        &mut self,
        name: ScheduleName,
        spec: ScheduleSpec,
        next: Option<u64>,
        events: &mut Vec<Event>,
    ) -> Answer {
        let unchanged = self
            .schedules
            .get(&name)
            .filter(|schedule| schedule.spec == spec);
        // Set again word for word, as every deployment does, it keeps a slot that is due.
        let mut next = unchanged.map_or(next, |schedule| schedule.next);
        if unchanged.is_none() {
            self.revision += 1;
            let old = self.schedules.get(&name);
            let last = old.and_then(|schedule| schedule.last);
            // A deployment does not end what an operator has paused.
            let paused = old.is_some_and(|schedule| schedule.paused);
            next = next.filter(|_| !paused);
            let schedule = Schedule {
                name: name.clone(),
                spec,
                revision: self.revision,
                next,
                last,
                paused,
            };
            self.schedules.insert(schedule);
        }
        events.push(Event::ScheduleSet {
            schedule: name,
            next,
        });
        Answer::ScheduleSet(next)
    }

    pub(crate) fn delete_schedule(
        &mut self,
        name: ScheduleName,
        events: &mut Vec<Event>,
    ) -> Answer {
        let existed = self.schedules.remove(&name).is_some();
        if existed {
            events.push(Event::ScheduleDeleted { schedule: name });
        }
        Answer::ScheduleDeleted(existed)
    }

    /// Takes the next slot from a schedule, so that no plan fires it.
    pub(crate) fn pause_schedule(&mut self, name: ScheduleName, events: &mut Vec<Event>) -> Answer {
        let Some(schedule) = self.schedules.get(&name) else {
            return Answer::SchedulePaused(false);
        };
        if !schedule.paused {
            self.revision += 1;
            let paused = Schedule {
                revision: self.revision,
                next: None,
                paused: true,
                ..schedule.clone()
            };
            self.schedules.insert(paused);
            events.push(Event::SchedulePaused { schedule: name });
        }
        Answer::SchedulePaused(true)
    }

    pub(crate) fn resume_schedule(
        &mut self,
        resumption: Resumption,
        events: &mut Vec<Event>,
    ) -> Answer {
        let Resumption {
            schedule: name,
            revision,
            next,
        } = resumption;
        let schedule = self.schedules.get(&name);
        // Its first slot was planned for the version that was seen: another one may have another cron.
        let Some(schedule) = schedule.filter(|schedule| schedule.revision == revision) else {
            return Answer::ScheduleResumed(false);
        };
        if schedule.paused {
            self.revision += 1;
            let resumed = Schedule {
                revision: self.revision,
                next,
                paused: false,
                ..schedule.clone()
            };
            self.schedules.insert(resumed);
            events.push(Event::ScheduleResumed {
                schedule: name,
                next,
            });
        }
        Answer::ScheduleResumed(true)
    }

    /// Fires the slots of a plan, if it was made for the schedule as it is.
    pub(crate) fn fire(&mut self, firing: Firing, events: &mut Vec<Event>) {
        let Firing {
            schedule: name,
            revision,
            due,
            slots,
            next,
        } = firing;
        let Some(schedule) = self
            .schedules
            .get(&name)
            .filter(|schedule| schedule.revision == revision && schedule.next == Some(due))
        else {
            return;
        };
        // Planned before time was set back: nothing happens ahead of it. What only brings the next slot forward is how that
        // is put right. The older rules took every plan.
        let is_ahead = slots.last().is_some_and(|&slot| slot > self.now)
            || due > self.now && next.is_none_or(|next| next >= due);
        if is_ahead && self.rules >= Rules::THIRD {
            return;
        }
        let jobs: Vec<_> = slots.iter().map(|&slot| schedule.slot(slot)).collect();
        let mut consequences = Vec::new();
        let (mut waits, mut last) = (None, None);
        for (job, &slot) in jobs.into_iter().zip(&slots) {
            let first = consequences.len();
            let Submitted {
                id,
                status,
                existing,
            } = self.submit(job, &mut consequences);
            // The first rules went on as if the job had been made.
            if self.rules >= Rules::SECOND && status == SubmitStatus::Full {
                waits = Some(slot);
                break;
            }
            // Another job has its unique key, so it became none. The older rules took it for the last all the same.
            if existing.is_none() || self.rules < Rules::THIRD {
                last = Some(slot);
            }
            let created = status == SubmitStatus::Created;
            let fired = Event::SlotFired {
                schedule: name.clone(),
                id,
                created,
            };
            // It stands for the submit, and before what followed from that.
            match consequences.get_mut(first) {
                Some(submitted) if created => *submitted = fired,
                _ => consequences.push(fired),
            }
        }
        // A slot for which there is no room stays due, and those behind it with it.
        let fired = match waits {
            Some(slot) => slots.partition_point(|&other| other < slot),
            None => slots.len(),
        };
        let next = waits.or(next);
        self.schedules.advance(&name, next, last);
        events.push(Event::Fired {
            schedule: name,
            slots: fired as u64,
            next,
        });
        events.append(&mut consequences);
    }

    /// Forgets what the settings no longer keep, the longest finished first.
    pub(crate) fn forget_expired(&mut self, portion: usize) {
        for (place, keep) in self.retention() {
            for _ in 0..portion {
                let Some((_, &oldest)) = self.finished[place].first_key_value() else {
                    break;
                };
                let age = self.now.saturating_sub(self.jobs[oldest].changed_at);
                let many = self.finished[place].len() as u64;
                let too_old = keep.age_ms.is_some_and(|most| age >= most);
                let too_many = keep.count.is_some_and(|most| many > most);
                if !too_old && !too_many {
                    break;
                }
                self.retire(oldest);
            }
        }
        // As many as may have come, and as many again.
        self.forget_remnants(portion * 6);
    }

    /// What is kept of each class, with its place in `finished`.
    fn retention(&self) -> [(usize, Keep); 3] {
        [
            (finished_place(Class::Completed), self.settings.completed),
            (finished_place(Class::Cancelled), self.settings.cancelled),
            (finished_place(Class::Dead), self.settings.dead),
        ]
    }
}
