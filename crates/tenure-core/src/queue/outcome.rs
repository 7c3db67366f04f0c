//! How claims end, and what people do to jobs by hand.

use super::command::{Claim, Completion, Failure};
use super::event::{Event, Refusal};
use super::machine::Queue;
use super::shelves::Class;
use super::slab::Handle;
use crate::{JobId, QueueName};

impl Queue {
    pub(crate) fn complete(&mut self, claim: Completion, events: &mut Vec<Event>) {
        let handle = match self.holder(&claim.id, claim.token) {
            Ok(handle) => handle,
            Err(reason) => {
                return events.push(Event::Lost {
                    id: claim.id,
                    reason,
                });
            }
        };
        // Done is done, even if someone wanted it cancelled meanwhile.
        if let Some(result) = claim.result {
            self.edit(handle).extra_mut().result = Some(result);
        }
        let queue = self.queue_of(handle);
        events.push(Event::Completed {
            id: claim.id,
            token: claim.token,
            queue,
        });
        self.finish(handle, Class::Completed, events);
    }

    pub(crate) fn fail(&mut self, claim: Failure, events: &mut Vec<Event>) {
        match self.holder(&claim.id, claim.token) {
            Ok(handle) => self.end_attempt(handle, claim, events),
            Err(reason) => events.push(Event::Lost {
                id: claim.id,
                reason,
            }),
        }
    }

    pub(crate) fn expire(&mut self, claim: Claim, events: &mut Vec<Event>) {
        match self.holder(&claim.id, claim.token) {
            Ok(handle) => {
                let failure = Failure {
                    id: claim.id,
                    token: claim.token,
                    error: Some("the lease ran out".into()),
                    retry_in_ms: None,
                    permanent: false,
                };
                self.end_attempt(handle, failure, events);
            }
            Err(reason) => events.push(Event::Lost {
                id: claim.id,
                reason,
            }),
        }
    }

    pub(crate) fn release(&mut self, claim: Claim, events: &mut Vec<Event>) {
        let Claim { id, token } = claim;
        let handle = match self.holder(&id, token) {
            Ok(handle) => handle,
            Err(reason) => return events.push(Event::Lost { id, reason }),
        };
        let queue = self.queue_of(handle);
        let job = self.edit(handle);
        if job.cancel_requested() {
            events.push(Event::Cancelled {
                id,
                token: Some(token),
                queue,
            });
            return self.finish(handle, Class::Cancelled, events);
        }
        job.attempt -= 1;
        job.running = None;
        events.push(Event::Released { id, token, queue });
        self.make_ready(handle, events);
    }

    /// After a failed attempt: cancelled if asked for, dead if it was the last, otherwise tried again.
    fn end_attempt(&mut self, handle: Handle, failure: Failure, events: &mut Vec<Event>) {
        let Failure {
            id,
            token,
            error,
            retry_in_ms,
            permanent,
        } = failure;
        let queue = self.queue_of(handle);
        let now = self.now;
        let job = self.edit(handle);
        if error.is_some() || job.extra.is_some() {
            job.extra_mut().error = error;
        }
        let attempt = job.attempt;
        if job.cancel_requested() {
            events.push(Event::Cancelled {
                id,
                token: Some(token),
                queue,
            });
            self.finish(handle, Class::Cancelled, events);
        } else if permanent || attempt >= job.max_attempts {
            events.push(Event::Died {
                id,
                token,
                queue,
                attempt,
            });
            self.finish(handle, Class::Dead, events);
        } else {
            let backoff = job.backoff();
            let wait = retry_in_ms.unwrap_or_else(|| backoff.wait_ms(id.as_str(), attempt));
            let run_at = now.saturating_add(wait);
            job.run_at = run_at;
            job.running = None;
            events.push(Event::Failed {
                id,
                token,
                queue,
                attempt,
                run_at,
            });
            if run_at > now {
                self.move_to(handle, Class::Scheduled);
                if let Some(group) = self.jobs[handle].group() {
                    self.settle(group, events);
                }
            } else {
                self.make_ready(handle, events);
            }
        }
    }

    pub(crate) fn cancel(&mut self, id: JobId, events: &mut Vec<Event>) {
        let Some(handle) = self.find(&id) else {
            let refusal = match self.find_remnant(&id) {
                Some(remnant) => Refusal::State {
                    state: remnant.class.state(),
                },
                None => Refusal::NotFound,
            };
            return events.push(Event::Refused { id, refusal });
        };
        let class = self.jobs[handle].class;
        if class.is_finished() {
            let refusal = Refusal::State {
                state: class.state(),
            };
            events.push(Event::Refused { id, refusal });
        } else if let Some(running) = &mut self.edit(handle).running {
            running.cancel_requested = true;
            events.push(Event::CancelRequested { id });
        } else {
            events.push(Event::Cancelled {
                id,
                token: None,
                queue: self.queue_of(handle),
            });
            self.finish(handle, Class::Cancelled, events);
        }
    }

    pub(crate) fn retry(&mut self, id: JobId, events: &mut Vec<Event>) {
        let Some(handle) = self.find(&id) else {
            return events.push(Event::Refused {
                id,
                refusal: Refusal::NotFound,
            });
        };
        let queue = self.queue_of(handle);
        let now = self.now;
        let class = self.jobs[handle].class;
        match class {
            Class::Dead | Class::Cancelled => {
                if let Some(existing) = self.holder_of_key(&queue, self.jobs[handle].unique_key()) {
                    let existing = self.jobs[existing].id.clone();
                    let refusal = Refusal::UniqueKey { existing };
                    return events.push(Event::Refused { id, refusal });
                }
                events.push(Event::Retried { id, queue });
                self.hold_keys(handle);
                self.move_to(handle, Class::Blocked);
                let job = self.edit(handle);
                job.attempt = 0;
                job.finish = 0;
                job.run_at = now;
                self.make_ready(handle, events);
            }
            Class::Scheduled => {
                events.push(Event::Retried { id, queue });
                self.move_to(handle, Class::Blocked);
                self.edit(handle).run_at = now;
                self.make_ready(handle, events);
            }
            Class::Ready | Class::Blocked | Class::Running | Class::Completed => {
                let refusal = Refusal::State {
                    state: class.state(),
                };
                events.push(Event::Refused { id, refusal });
            }
        }
    }

    pub(crate) fn forget_by_hand(&mut self, id: JobId, events: &mut Vec<Event>) {
        let refusal = match self.find(&id) {
            None if self.forget_remnant_of(&id) => return events.push(Event::Forgotten { id }),
            None => Refusal::NotFound,
            Some(handle) => {
                let class = self.jobs[handle].class;
                if class.is_finished() {
                    self.forget(handle);
                    return events.push(Event::Forgotten { id });
                }
                Refusal::State {
                    state: class.state(),
                }
            }
        };
        events.push(Event::Refused { id, refusal });
    }

    fn queue_of(&self, handle: Handle) -> QueueName {
        self.queues.name(self.jobs[handle].queue).clone()
    }
}
