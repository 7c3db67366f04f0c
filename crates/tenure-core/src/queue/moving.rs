//! Jobs that are moved from one queue to another.
//!
//! A job keeps its place in the log, so among the jobs of its new queue and group it runs as if it had been submitted there.
//! One that runs stays where it is, since its claim counts against the limits of that queue; so does a completed one, which
//! is history. What was submitted stays what it was: the same submit again is still a duplicate.

use super::answer::{Changed, Item, Refusal};
use super::event::Event;
use super::machine::Queue;
use super::outcome::refused;
use super::shelves::Class;
use super::slab::Handle;
use crate::{JobId, QueueName};

impl Queue {
    pub(crate) fn move_all(
        &mut self,
        ids: Vec<JobId>,
        to: &QueueName,
        events: &mut Vec<Event>,
    ) -> Vec<Changed<()>> {
        let moved = ids.into_iter().map(|id| {
            let outcome = self.try_move_job(&id, to, events);
            Item { id, outcome }
        });
        moved.collect()
    }

    fn try_move_job(
        &mut self,
        id: &JobId,
        to: &QueueName,
        events: &mut Vec<Event>,
    ) -> Result<(), Refusal> {
        let handle = self.find(id).ok_or(Refusal::NotFound)?;
        let class = self.jobs[handle].class;
        if matches!(class, Class::Running | Class::Completed) {
            return Err(refused(class));
        }
        let from = self.queue_of(handle);
        if from == *to {
            return Ok(());
        }
        // One that has finished holds its key no more; a retry asks for it again.
        if !class.is_finished()
            && let Some(existing) = self.holder_of_key(to, self.jobs[handle].unique_key())
        {
            let existing = self.jobs[existing].id.clone();
            return Err(Refusal::UniqueKey { existing });
        }
        let left = self.put_into(handle, to);
        let (id, to) = (id.clone(), to.clone());
        events.push(Event::Moved { id, from, to });
        if let Some(left) = left {
            self.settle(left, events);
        }
        match (self.jobs[handle].group(), class) {
            (Some(group), _) => self.settle(group, events),
            // Workers wait for jobs of their queues, and this one is new to them.
            (None, Class::Ready) => events.push(self.ready_event(handle)),
            (None, _) => {}
        }
        Ok(())
    }

    /// Takes a job that does not run out of every index of its queue, and into those of another. Answers the group that it
    /// has left, if that has other members: one of them may be next.
    fn put_into(&mut self, handle: Handle, to: &QueueName) -> Option<Handle> {
        self.keep_image(handle);
        // While it still has its group, which may have been waiting for it.
        self.displace(handle);
        let is_waiting = !self.jobs[handle].class.is_finished();
        let mut left = None;
        if is_waiting {
            if self.jobs[handle].unique_key().is_some() {
                let hash = self.hash_of_unique(handle);
                self.unique.remove(hash, handle);
            }
            if let Some(group) = self.jobs[handle].group() {
                self.jobs[handle].extra_mut().group = None;
                let has_others = self.groups.leave(group, self.jobs[handle].sequence);
                left = has_others.then_some(group);
            }
        }
        let new = self.queues.take(to);
        let old = std::mem::replace(&mut self.jobs[handle].queue, new);
        if is_waiting {
            self.hold_keys(handle);
            // In its new group it waits until its turn has been found out.
            let job = &mut self.jobs[handle];
            if job.class == Class::Ready && job.group().is_some() {
                job.class = Class::Blocked;
            }
        }
        self.place(handle);
        // The last: with its last user a queue is gone, and so are its indexes.
        self.queues.release(old);
        left
    }
}
