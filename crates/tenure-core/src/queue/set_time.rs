//! The queue's time, set by an operator.
//!
//! Time in the queue does not go back by itself. If a wrong clock has carried it away, delays, back-offs and
//! retention would be off by as much until the clocks have caught up. So an operator can set it, and what was counted
//! from the wrong time is counted from the right one:
//!
//! - A delay, or the wait before another attempt, that began after the time that is set is as long from then on as it was to
//!   be. One that began before ends when it was to end.
//! - A job whose submitter has named the time at which it may run (`run_at`) keeps that time. If it had become ready by the
//!   time that was wrong and nobody has claimed it, it waits again; so does one that is handed back. What runs goes on.
//! - Nothing was made or finished in the future: such times become the time that is set, so retention counts from it.
//! - Rates count anew.
//! - Remnants, too, ended no later than that, see `remnants.rs`.
//! - Claims are not touched: their leases do not go by this time.
//! - Schedules keep their next slot here, since slots are planned outside the machine: see
//!   [`Queue::schedules_to_replan`].
//!
//! Forward, it is what a later command does by itself. Back, every job is looked at once. There may be millions, and
//! a submit must not wait for that: so the command looks at the first of them, in the order of the log, and the
//! [ticks](super::Action::Tick) that follow at so many more each. How far they have come is part of the state, so a
//! successor goes on from there. What lies ahead is measured when a job is looked at, by the time it is then: a wait that
//! began in the seconds that this takes counts as it is. Until a job was looked at it waits as before; nothing
//! becomes due by a time that was wrong. The [second rules](super::Rules::SECOND) looked at all of them at once, and took
//! every `run_at` for a wait.

use serde::{Deserialize, Serialize};

use super::bucket::Bucket;
use super::event::Event;
use super::machine::{PORTION_OF_TICK, Queue};
use super::named_queue::NamedQueue;
use super::rules::Rules;
use super::schedule::{Due, Schedule};
use super::shelves::Class;
use super::slab::Handle;
use super::view::PageStart;
use crate::ScheduleName;

/// Which jobs are still to be looked at: those after one place, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SettingBack {
    pub(crate) after: u64,
    /// The last job that was there when time was set. Later ones were made at the right time.
    pub(crate) last: u64,
}

impl Queue {
    /// At most so many schedules behind a name that have a next slot, in the order of names, with what it takes to
    /// [replan](Due::replan) them: when time was set back, the slots that were next may be far away.
    #[must_use]
    pub fn schedules_to_replan(&self, behind: Option<&ScheduleName>, most: usize) -> Vec<Due> {
        let behind = self.schedules.behind(behind);
        behind.filter_map(Schedule::due).take(most).collect()
    }

    /// Whether jobs are still to be looked at since time was set back.
    #[must_use]
    pub fn is_setting_back(&self) -> bool {
        self.setting_back.is_some()
    }

    pub(crate) fn set_time(&mut self, to: u64, events: &mut Vec<Event>) {
        let from = self.now;
        self.now = to;
        events.push(Event::TimeSet { from, to });
        if to < from {
            self.set_remnants_back(to);
            self.setting_back = Some(SettingBack {
                after: 0,
                last: self.sequence,
            });
            let portion = if self.rules < Rules::THIRD {
                usize::MAX
            } else {
                PORTION_OF_TICK
            };
            self.set_jobs_back(portion, events);
        }
        // Which queues a rate holds back has changed with it.
        let rated = |(_, handle, queue): (_, _, &NamedQueue)| queue.options.rate.map(|_| handle);
        let rated: Vec<_> = self.queues.iter().filter_map(rated).collect();
        for handle in rated {
            if to < from {
                self.queues[handle].bucket = Bucket::default();
            }
            self.post(handle);
        }
    }

    /// Looks at so many more jobs, if time was set back.
    pub(crate) fn set_jobs_back(&mut self, portion: usize, events: &mut Vec<Event>) {
        let Some(SettingBack { after, last }) = self.setting_back else {
            return;
        };
        let jobs = self.all_from(PageStart::After(after)).take(portion);
        let jobs: Vec<_> = jobs.take_while(|&(place, _)| place <= last).collect();
        let after = jobs.last().map_or(last, |&(place, _)| place);
        self.setting_back =
            (jobs.len() == portion && after < last).then_some(SettingBack { after, last });
        for (_, handle) in jobs {
            self.set_job_back(handle, events);
        }
    }

    fn set_job_back(&mut self, handle: Handle, events: &mut Vec<Event>) {
        let now = self.now;
        let job = &self.jobs[handle];
        if job.created_at <= now && job.changed_at <= now && job.run_at <= now {
            return;
        }
        self.keep_image(handle);
        let job = &mut self.jobs[handle];
        let is_early = job.is_early(now);
        match job.class {
            _ if job.is_run_at_given => {}
            Class::Scheduled if job.changed_at > now => {
                self.scheduled.remove(&(job.run_at, job.sequence));
                let wait = job.run_at.saturating_sub(job.changed_at);
                job.run_at = now.saturating_add(wait);
                self.scheduled.insert((job.run_at, job.sequence), handle);
            }
            Class::Scheduled => {}
            _ => job.run_at = job.run_at.min(now),
        }
        job.created_at = job.created_at.min(now);
        job.changed_at = job.changed_at.min(now);
        if is_early && matches!(job.class, Class::Ready | Class::Blocked) {
            self.put_off(handle, events);
        }
    }

    /// Lets a job wait for its time that is not claimed.
    pub(crate) fn put_off(&mut self, handle: Handle, events: &mut Vec<Event>) {
        self.move_to(handle, Class::Scheduled);
        if let Some(group) = self.jobs[handle].group() {
            self.settle(group, events);
        }
    }
}
