//! The queue's time, set by an operator.
//!
//! Time in the queue does not go back by itself. If a wrong clock has carried it away, delays, back-offs and
//! retention would be off by as much until the clocks have caught up. So an operator can set it, and what was counted
//! from the wrong time is counted from the right one:
//!
//! - Jobs whose wait began after the time that is set wait as long from then as they were to wait. Those whose wait began
//!   before keep their time.
//! - Nothing was made or finished in the future: such times become the time that is set, so retention counts from it.
//! - Rates count anew.
//! - Remnants keep the time at which their jobs ended, and so may stay for longer; they are bounded in bytes. A snapshot
//!   may be half written, and has no older image of them.
//! - Claims are not touched: their leases do not go by this time.
//! - Schedules keep their next slot here, since slots are planned outside the machine: see
//!   [`Queue::replanned`].
//!
//! Forward, it is what a later command does by itself. Costs a look at every job if it goes back.

use super::bucket::Bucket;
use super::event::Event;
use super::machine::Queue;
use super::schedule::Firing;
use super::shelves::Class;
use super::slab::Handle;

impl Queue {
    /// Plans that fire nothing and let every schedule go on after `now`, for
    /// [`Action::Fire`](super::Action::Fire): when time was set back, the slots that were next may be far away.
    #[must_use]
    pub fn replanned(&self, now: u64) -> Vec<Firing> {
        let schedules = self.schedules.values();
        schedules
            .filter_map(|schedule| schedule.replanned(now))
            .collect()
    }

    pub(crate) fn set_time(&mut self, to: u64, events: &mut Vec<Event>) {
        let from = self.now;
        if to < from {
            self.set_back(to);
        }
        self.now = to;
        // Which queues a rate holds back has changed with it.
        let names: Vec<_> = self.queues.iter().map(|(_, handle, _)| handle).collect();
        for handle in names {
            self.post(handle);
        }
        events.push(Event::TimeSet { from, to });
    }

    fn set_back(&mut self, to: u64) {
        let is_later = |(handle, job): (Handle, &super::kept::Kept)| {
            (job.created_at > to || job.changed_at > to || job.run_at > to).then_some(handle)
        };
        let later: Vec<Handle> = self.jobs.iter().filter_map(is_later).collect();
        for handle in later {
            self.keep_image(handle);
            let job = &mut self.jobs[handle];
            match job.class {
                Class::Scheduled if job.changed_at > to => {
                    self.scheduled.remove(&(job.run_at, job.sequence));
                    let wait = job.run_at.saturating_sub(job.changed_at);
                    job.run_at = to.saturating_add(wait);
                    self.scheduled.insert((job.run_at, job.sequence), handle);
                }
                Class::Scheduled => {}
                _ => job.run_at = job.run_at.min(to),
            }
            job.created_at = job.created_at.min(to);
            job.changed_at = job.changed_at.min(to);
        }
        self.set_remnants_back(to);
        let names: Vec<_> = self.queues.iter().map(|(_, handle, _)| handle).collect();
        for handle in names {
            self.queues[handle].bucket = Bucket::default();
        }
    }
}
