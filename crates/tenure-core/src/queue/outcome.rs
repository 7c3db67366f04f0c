//! How claims end, and what people do to jobs by hand.

use super::answer::{Cancelled, Changed, Ended, Failed, Item, Refusal, Released};
use super::end::{End, Said};
use super::event::Event;
use super::machine::Queue;
use super::retry::wait_ms;
use super::rules::Rules;
use super::shelves::Class;
use super::slab::Handle;
use super::{Claim, Completion, Failure, Token};
use crate::{JobId, QueueName};

impl Queue {
    pub(crate) fn complete(&mut self, claim: Completion, events: &mut Vec<Event>) -> Ended<()> {
        let Completion { id, token, result } = claim;
        let outcome = match self.holder(&id, token) {
            Ok(handle) => {
                // Done is done, even if someone wanted it cancelled meanwhile.
                if let Some(result) = result {
                    self.edit(handle).extra_mut().result = Some(result);
                }
                events.push(Event::Completed {
                    id: id.clone(),
                    token,
                    queue: self.queue_of(handle),
                });
                self.note_end(handle, token, End::Completed, Said::NOTHING);
                self.finish(handle, Class::Completed, events);
                Ok(())
            }
            Err(lost) => self.completed_before(&id, token, result.as_ref(), lost),
        };
        Item { id, outcome }
    }

    pub(crate) fn fail(&mut self, claim: Failure, events: &mut Vec<Event>) -> Ended<Failed> {
        let (id, token) = (claim.id.clone(), claim.token);
        let said = Said::by(&claim);
        let outcome = match self.holder(&id, token) {
            Ok(handle) => {
                let failed = self.end_attempt(handle, claim, events);
                self.note_end(handle, token, failed.into(), said);
                Ok(failed)
            }
            Err(lost) => self.failed_before(&id, token, said, lost),
        };
        Item { id, outcome }
    }

    pub(crate) fn expire(&mut self, claim: Claim, events: &mut Vec<Event>) -> Ended<Failed> {
        let failure = Failure {
            id: claim.id,
            token: claim.token,
            error: Some("the lease ran out".into()),
            retry_in_ms: None,
            permanent: false,
        };
        // Its worker has not ended it, so an end that comes later is not this one.
        let id = failure.id.clone();
        let holder = self.holder(&id, failure.token);
        let outcome = holder.map(|handle| self.end_attempt(handle, failure, events));
        Item { id, outcome }
    }

    pub(crate) fn release(&mut self, claim: Claim, events: &mut Vec<Event>) -> Ended<Released> {
        let Claim { id, token } = claim;
        let outcome = match self.holder(&id, token) {
            Ok(handle) => {
                let released = self.hand_back(handle, token, events);
                self.note_end(handle, token, released.into(), Said::NOTHING);
                Ok(released)
            }
            Err(lost) => self.released_before(&id, token, lost),
        };
        Item { id, outcome }
    }

    fn hand_back(&mut self, handle: Handle, token: Token, events: &mut Vec<Event>) -> Released {
        let queue = self.queue_of(handle);
        let job = self.edit(handle);
        let id = job.id.clone();
        if job.cancel_requested() {
            let token = Some(token);
            events.push(Event::Cancelled { id, token, queue });
            self.finish(handle, Class::Cancelled, events);
            return Released::Cancelled;
        }
        job.course_mut().attempt -= 1;
        self.drop_claim(handle);
        events.push(Event::Released { id, token, queue });
        // It was claimed by a time that was wrong.
        if self.jobs[handle].is_early(self.now) {
            self.put_off(handle, events);
        } else {
            self.make_ready(handle, events);
        }
        Released::Ready
    }

    /// Hands a claim back whose answer reached nobody, unless it was asked for again.
    pub(crate) fn abandon(&mut self, claim: &Claim, events: &mut Vec<Event>) {
        let Ok(handle) = self.holder(&claim.id, claim.token) else {
            return;
        };
        let running = self.jobs[handle].running();
        if running.is_some_and(|running| !running.is_repeated) {
            self.hand_back(handle, claim.token, events);
        }
    }

    /// After a failed attempt: cancelled if asked for, dead if it was the last, otherwise tried again.
    fn end_attempt(&mut self, handle: Handle, failure: Failure, events: &mut Vec<Event>) -> Failed {
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
        let attempt = job.course().attempt;
        if job.cancel_requested() {
            let token = Some(token);
            events.push(Event::Cancelled { id, token, queue });
            self.finish(handle, Class::Cancelled, events);
            return Failed::Cancelled;
        }
        if permanent || attempt >= job.max_attempts {
            events.push(Event::Died {
                id,
                token,
                queue,
                attempt,
            });
            self.finish(handle, Class::Dead, events);
            return Failed::Died;
        }
        let backoff = job.backoff();
        let wait = retry_in_ms.unwrap_or_else(|| wait_ms(backoff, id.as_str(), attempt));
        let run_at = now.saturating_add(wait);
        job.run_at = run_at;
        job.is_run_at_given = false;
        self.drop_claim(handle);
        events.push(Event::Failed {
            id,
            token,
            queue,
            attempt,
            run_at,
        });
        if run_at > now {
            self.put_off(handle, events);
        } else {
            self.make_ready(handle, events);
        }
        Failed::Again { run_at }
    }

    pub(crate) fn cancel(&mut self, id: JobId, events: &mut Vec<Event>) -> Changed<Cancelled> {
        let outcome = self.try_cancel(&id, events);
        Item { id, outcome }
    }

    fn try_cancel(&mut self, id: &JobId, events: &mut Vec<Event>) -> Result<Cancelled, Refusal> {
        let Some(handle) = self.find(id) else {
            return Err(match self.find_remnant(id) {
                Some(remnant) => refused(remnant.class),
                None => Refusal::NotFound,
            });
        };
        let class = self.jobs[handle].class;
        if class.is_finished() {
            return Err(refused(class));
        }
        if let Some(running) = self.edit(handle).running_mut() {
            running.cancel_requested = true;
            events.push(Event::CancelRequested { id: id.clone() });
            return Ok(Cancelled::Requested);
        }
        events.push(Event::Cancelled {
            id: id.clone(),
            token: None,
            queue: self.queue_of(handle),
        });
        self.finish(handle, Class::Cancelled, events);
        Ok(Cancelled::Done)
    }

    pub(crate) fn retry(&mut self, id: JobId, events: &mut Vec<Event>) -> Changed<()> {
        let outcome = self.try_retry(&id, events);
        Item { id, outcome }
    }

    fn try_retry(&mut self, id: &JobId, events: &mut Vec<Event>) -> Result<(), Refusal> {
        let handle = self.find(id).ok_or(Refusal::NotFound)?;
        let queue = self.queue_of(handle);
        let now = self.now;
        let class = self.jobs[handle].class;
        match class {
            Class::Dead | Class::Cancelled => {
                if let Some(existing) = self.holder_of_key(&queue, self.jobs[handle].unique_key()) {
                    let existing = self.jobs[existing].id.clone();
                    return Err(Refusal::UniqueKey { existing });
                }
                self.hold_keys(handle);
            }
            Class::Scheduled => {}
            Class::Ready | Class::Blocked | Class::Running | Class::Completed => {
                return Err(refused(class));
            }
        }
        let id = id.clone();
        events.push(Event::Retried { id, queue });
        self.move_to(handle, Class::Blocked);
        let job = self.edit(handle);
        job.run_at = now;
        job.is_run_at_given = false;
        if class != Class::Scheduled {
            let course = job.course_mut();
            course.attempt = 0;
            course.finish = 0;
        }
        self.make_ready(handle, events);
        Ok(())
    }

    /// Drops a finished job before its time. Its id stays behind as if retention had dropped it: to send a submit again is
    /// safe, whatever is deleted by anyone. The older rules dropped the id as well.
    pub(crate) fn forget_by_hand(&mut self, id: JobId, events: &mut Vec<Event>) -> Changed<()> {
        let keeps_ids = self.rules >= Rules::THIRD;
        let outcome = match self.find(&id) {
            // It was deleted before.
            None if keeps_ids && self.find_remnant(&id).is_some() => {
                return Item {
                    id,
                    outcome: Ok(()),
                };
            }
            None if self.forget_remnant_of(&id) => Ok(()),
            None => Err(Refusal::NotFound),
            Some(handle) => match self.jobs[handle].class {
                class if class.is_finished() => {
                    if keeps_ids {
                        self.retire(handle);
                    } else {
                        self.forget(handle);
                    }
                    Ok(())
                }
                class => Err(refused(class)),
            },
        };
        if outcome.is_ok() {
            events.push(Event::Forgotten { id: id.clone() });
        }
        Item { id, outcome }
    }

    pub(super) fn queue_of(&self, handle: Handle) -> QueueName {
        self.queues.name(self.jobs[handle].queue).clone()
    }
}

pub(super) const fn refused(class: Class) -> Refusal {
    Refusal::State {
        state: class.state(),
    }
}
