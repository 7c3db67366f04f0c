//! A job as it is kept: small, since there may be millions. What few jobs have is kept apart.
//!
//! Everything that a job becomes, or is made of, is here too: a [`Submission`] on its way in, a [`Job`] that is shown,
//! [`Claimed`] for its worker, and its line in a snapshot, there and back.

use serde::{Deserialize, Serialize};
use tenure_api::ATTEMPTS_DEFAULT;

use super::claim::ClaimKey;
use super::end::{LastEnd, Said};
use super::hash::Hash;
use super::machine::Queue;
use super::rules::Rules;
use super::shelves::{Class, Shelf};
use super::slab::Handle;
use super::snapshot::{field, optional};
use super::{
    Backoff, Claimed, Job, Key, Payload, State, Submission, Token, Traceparent, Tracestate,
};
use crate::JobId;

#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) id: JobId,
    pub(crate) payload: Payload,
    /// Its place among all jobs ever accepted, from 1.
    pub(crate) sequence: u64,
    /// The hash of what was submitted.
    pub(crate) content: u64,
    pub(crate) created_at: u64,
    /// When it may run, or might have.
    pub(crate) run_at: u64,
    /// When it entered its state.
    pub(crate) changed_at: u64,
    pub(crate) queue: Handle,
    pub(crate) job_type: Handle,
    pub(crate) max_attempts: u32,
    /// What became of it. Most jobs that wait have none of it: that is what makes them small.
    pub(crate) course: Option<Box<Course>>,
    pub(crate) extra: Option<Box<Extra>>,
    pub(crate) priority: i8,
    pub(crate) class: Class,
    /// Whether its submitter has named the time at which it may run. Then that is no wait, and stays what it is when the
    /// queue's time is set; an attempt that failed, or a retry by hand, makes it one. Only under [`Rules::THIRD`].
    pub(crate) is_run_at_given: bool,
}

/// What a job has once it was claimed, or has finished.
#[derive(Debug, Clone, Default)]
pub(crate) struct Course {
    /// Exactly while it runs.
    pub(crate) running: Option<Box<Running>>,
    /// Its place among all jobs that ever finished; zero if it has not.
    pub(crate) finish: u64,
    /// The attempts that were started.
    pub(crate) attempt: u32,
    /// The last claim that its worker has ended.
    pub(crate) last_end: Option<LastEnd>,
}

/// Of a job that was neither claimed nor has finished.
static NO_COURSE: Course = Course {
    running: None,
    finish: 0,
    attempt: 0,
    last_end: None,
};

/// The claim of a running job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) token: Token,
    pub(crate) worker: Key,
    pub(crate) lease_ms: u32,
    pub(crate) cancel_requested: bool,
    /// The claim was asked for again, and answered again.
    pub(crate) is_repeated: bool,
    /// By which it is found when it is asked for again.
    pub(crate) key: Option<ClaimKey>,
}

/// What most jobs do not have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extra {
    pub(crate) unique_key: Option<Key>,
    pub(crate) group_key: Option<Key>,
    /// The group it stands in: until it has finished.
    pub(crate) group: Option<Handle>,
    pub(crate) backoff: Option<Backoff>,
    /// Why the last attempt failed.
    pub(crate) error: Option<Box<str>>,
    pub(crate) result: Option<Payload>,
    /// The span that it was submitted in.
    pub(crate) trace: Option<Box<Trace>>,
    /// What was said with its last end.
    pub(crate) said: Said,
}

impl Kept {
    pub(crate) fn shelf(&self) -> Shelf {
        let rank = match self.class {
            Class::Ready => rank(self.priority),
            _ => 0,
        };
        Shelf {
            queue: self.queue,
            job_type: self.job_type,
            class: self.class,
            rank,
        }
    }

    pub(crate) fn course(&self) -> &Course {
        self.course.as_deref().unwrap_or(&NO_COURSE)
    }

    pub(crate) fn course_mut(&mut self) -> &mut Course {
        self.course.get_or_insert_default()
    }

    /// Its claim, exactly while it runs.
    pub(crate) fn running(&self) -> Option<&Running> {
        self.course().running.as_deref()
    }

    pub(crate) fn running_mut(&mut self) -> Option<&mut Running> {
        self.course.as_mut()?.running.as_deref_mut()
    }

    pub(crate) fn unique_key(&self) -> Option<&Key> {
        self.extra.as_ref()?.unique_key.as_ref()
    }

    pub(crate) fn group_key(&self) -> Option<&Key> {
        self.extra.as_ref()?.group_key.as_ref()
    }

    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.extra.as_ref()?.trace.as_deref()
    }

    pub(crate) fn group(&self) -> Option<Handle> {
        self.extra.as_ref()?.group
    }

    pub(crate) fn backoff(&self) -> Backoff {
        let own = self.extra.as_ref().and_then(|extra| extra.backoff);
        own.unwrap_or_default()
    }

    pub(crate) fn cancel_requested(&self) -> bool {
        self.running()
            .is_some_and(|running| running.cancel_requested)
    }

    /// Whether the time that its submitter has named is still to come.
    pub(crate) const fn is_early(&self, now: u64) -> bool {
        self.is_run_at_given && self.run_at > now
    }

    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }
}

impl Course {
    /// Nothing, if there is nothing in it.
    fn boxed(self) -> Option<Box<Self>> {
        let Self {
            running,
            finish,
            attempt,
            last_end,
        } = &self;
        let is_empty = running.is_none() && *finish == 0 && *attempt == 0 && last_end.is_none();
        (!is_empty).then(|| Box::new(self))
    }
}

impl Extra {
    /// Nothing, if there is nothing in it.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        let Self {
            unique_key,
            group_key,
            group,
            backoff,
            error,
            result,
            trace,
            said,
        } = &self;
        let empty = unique_key.is_none()
            && group_key.is_none()
            && group.is_none()
            && backoff.is_none()
            && error.is_none()
            && result.is_none()
            && trace.is_none()
            && said.is_nothing();
        (!empty).then(|| Box::new(self))
    }
}

/// The span that a job was submitted in, and what goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) parent: Traceparent,
    pub(crate) state: Option<Tracestate>,
}

impl Trace {
    /// None without a parent: what goes with a span means nothing without it.
    pub(crate) fn of(parent: Option<Traceparent>, state: Option<Tracestate>) -> Option<Box<Self>> {
        parent.map(|parent| Box::new(Self { parent, state }))
    }
}

/// What tells two submissions with one id apart. Taken of what the client sent, never of what was
/// made of it: a delay sent twice is the same content though it ends at another time. The trace is
/// left out: it is another each time that a job is sent.
pub(crate) fn content(job: &Submission) -> u64 {
    let mut hash = Hash::new(0);
    hash.text(job.queue.as_str());
    hash.text(job.job_type.as_str());
    hash.text(job.payload.as_str());
    hash.number(job.priority.cast_unsigned().into());
    for number in [job.run_at, job.delay_ms, job.max_attempts.map(u64::from)] {
        hash.number(number.map_or(0, |number| number.wrapping_add(1)));
    }
    for key in [&job.unique_key, &job.group] {
        hash.text(key.as_ref().map_or("", Key::as_str));
    }
    if let Some(backoff) = &job.backoff {
        let (first, most) = (u64::from(backoff.first_ms), u64::from(backoff.max_ms));
        hash.number(first << 32 | most);
        let (factor, jitter) = (u64::from(backoff.factor), u64::from(backoff.jitter_percent));
        hash.number(factor << 8 | jitter);
    }
    hash.finish()
}

impl Queue {
    /// A job that was submitted, before it is taken in.
    pub(crate) fn new_job(&mut self, id: JobId, submission: Submission, content: u64) -> Kept {
        let now = self.now;
        let delayed = submission.delay_ms.map(|delay| now.saturating_add(delay));
        let run_at = submission.run_at.or(delayed).unwrap_or(now);
        let is_run_at_given = submission.run_at.is_some() && self.rules >= Rules::THIRD;
        let class = match &submission.group {
            _ if run_at > now => Class::Scheduled,
            Some(_) => Class::Blocked,
            _ => Class::Ready,
        };
        let extra = Extra {
            unique_key: submission.unique_key,
            group_key: submission.group,
            backoff: submission.backoff,
            trace: Trace::of(submission.traceparent, submission.tracestate),
            ..Extra::default()
        };
        self.sequence += 1;
        Kept {
            id,
            payload: submission.payload,
            sequence: self.sequence,
            content,
            created_at: now,
            run_at,
            changed_at: now,
            queue: self.queues.take(&submission.queue),
            job_type: self.types.take(&submission.job_type),
            max_attempts: submission.max_attempts.unwrap_or(ATTEMPTS_DEFAULT).max(1),
            course: None,
            extra: extra.boxed(),
            priority: submission.priority,
            class,
            is_run_at_given,
        }
    }

    /// A job as it is shown.
    pub(crate) fn shown(&self, handle: Handle) -> Job {
        let job = &self.jobs[handle];
        let extra = job.extra.as_deref();
        let running = job.running();
        let trace = job.trace();
        Job {
            sequence: job.sequence,
            id: job.id.clone(),
            queue: self.queues.name(job.queue).clone(),
            job_type: self.types.name(job.job_type).clone(),
            payload: job.payload.clone(),
            state: job.class.state(),
            blocked: job.class == Class::Blocked,
            priority: job.priority,
            attempt: job.course().attempt,
            max_attempts: job.max_attempts,
            created_at: job.created_at,
            run_at: job.run_at,
            changed_at: job.changed_at,
            unique_key: job.unique_key().cloned(),
            group: job.group_key().cloned(),
            backoff: extra.and_then(|extra| extra.backoff),
            traceparent: trace.map(|trace| trace.parent),
            tracestate: trace.and_then(|trace| trace.state.clone()),
            error: extra.and_then(|extra| extra.error.clone()),
            result: extra.and_then(|extra| extra.result.clone()),
            worker: running.map(|running| running.worker.clone()),
            lease_ms: running.map(|running| running.lease_ms),
            cancel_requested: job.cancel_requested(),
            progress: None,
            remnant: false,
        }
    }

    /// What is left of a job that was forgotten early: its id, queue, type, end and result. Everything else is
    /// shown as if it had never been set.
    #[must_use]
    pub fn remnant(&self, id: &JobId) -> Option<Job> {
        let remnant = self.find_remnant(id)?;
        let ended_at = self.remnants.ceilings().ended_at(remnant);
        Some(Job {
            sequence: 0,
            id: remnant.id.clone(),
            queue: self.queues.name(remnant.queue).clone(),
            job_type: self.types.name(remnant.job_type).clone(),
            payload: Payload::default(),
            state: remnant.class.state(),
            blocked: false,
            priority: 0,
            attempt: 0,
            max_attempts: 0,
            created_at: ended_at,
            run_at: ended_at,
            changed_at: ended_at,
            unique_key: None,
            group: None,
            backoff: None,
            traceparent: None,
            tracestate: None,
            error: None,
            result: remnant.result.clone(),
            worker: None,
            lease_ms: None,
            cancel_requested: false,
            progress: None,
            remnant: true,
        })
    }

    /// A job as its worker gets it.
    pub(crate) fn claimed(&self, handle: Handle, token: Token, lease_ms: u32) -> Claimed {
        let job = &self.jobs[handle];
        let trace = job.trace();
        Claimed {
            id: job.id.clone(),
            token,
            queue: self.queues.name(job.queue).clone(),
            job_type: self.types.name(job.job_type).clone(),
            payload: job.payload.clone(),
            attempt: job.course().attempt,
            max_attempts: job.max_attempts,
            priority: job.priority,
            group: job.group_key().cloned(),
            created_at: job.created_at,
            lease_ms,
            traceparent: trace.map(|trace| trace.parent),
            tracestate: trace.and_then(|trace| trace.state.clone()),
        }
    }

    /// Writes what a snapshot keeps of a job: what is shown, and [`Hidden`]. There may be millions, so nothing is
    /// cloned and no key is looked at.
    pub(crate) fn write_job(&self, handle: Handle, out: &mut Vec<u8>) {
        let job = &self.jobs[handle];
        let is_blocked = job.class == Class::Blocked;
        field(r#"{"job":[{"sequence":"#, &job.sequence, out);
        field(r#","id":"#, &job.id, out);
        field(r#","queue":"#, self.queues.name(job.queue), out);
        field(r#","type":"#, self.types.name(job.job_type), out);
        field(r#","payload":"#, &job.payload, out);
        field(r#","state":"#, &job.class.state(), out);
        optional(r#","blocked":"#, is_blocked.then_some(true), out);
        field(r#","priority":"#, &job.priority, out);
        field(r#","attempt":"#, &job.course().attempt, out);
        field(r#","max_attempts":"#, &job.max_attempts, out);
        field(r#","created_at":"#, &job.created_at, out);
        field(r#","run_at":"#, &job.run_at, out);
        field(r#","changed_at":"#, &job.changed_at, out);
        if let Some(extra) = job.extra.as_deref() {
            optional(r#","unique_key":"#, extra.unique_key.as_ref(), out);
            optional(r#","group":"#, extra.group_key.as_ref(), out);
            optional(r#","backoff":"#, extra.backoff, out);
            if let Some(trace) = &extra.trace {
                field(r#","traceparent":"#, &trace.parent, out);
                optional(r#","tracestate":"#, trace.state.as_ref(), out);
            }
            optional(r#","error":"#, extra.error.as_ref(), out);
            optional(r#","result":"#, extra.result.as_ref(), out);
        }
        let course = job.course();
        let running = course.running.as_deref();
        if let Some(running) = running {
            field(r#","worker":"#, &running.worker, out);
            field(r#","lease_ms":"#, &running.lease_ms, out);
            let is_requested = running.cancel_requested;
            optional(r#","cancel_requested":"#, is_requested.then_some(true), out);
        }
        field(r#"},{"content":"#, &job.content, out);
        optional(
            r#","finish":"#,
            (course.finish > 0).then_some(course.finish),
            out,
        );
        optional(r#","token":"#, running.map(|running| running.token), out);
        optional(r#","key":"#, running.and_then(|running| running.key), out);
        let is_repeated = running.is_some_and(|running| running.is_repeated);
        optional(r#","repeated":"#, is_repeated.then_some(true), out);
        optional(r#","given":"#, job.is_run_at_given.then_some(true), out);
        optional(r#","ended":"#, course.last_end, out);
        let said = job.extra.as_ref().and_then(|extra| extra.said.if_any());
        optional(r#","said":"#, said, out);
        out.extend_from_slice(b"}]}\n");
    }
}

/// What is kept of a job but not shown.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hidden {
    pub(crate) content: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) finish: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Token>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<ClaimKey>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) repeated: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) given: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<LastEnd>,
    #[serde(default, skip_serializing_if = "Said::is_nothing")]
    pub(crate) said: Said,
}

/// What [`Queue::write_job`] wrote.
pub(crate) fn rebuilt(job: Job, hidden: &Hidden, queue: &mut Queue) -> Result<Kept, String> {
    let running = match (job.state, hidden.token, job.worker, job.lease_ms) {
        (State::Running, Some(token), ..) if hidden.ended.is_some_and(|last| last.is_of(token)) => {
            return Err("runs by a claim that has ended".to_owned());
        }
        (State::Running, Some(token), Some(worker), Some(lease_ms)) => {
            let cancel_requested = job.cancel_requested;
            Some(Box::new(Running {
                token,
                worker,
                lease_ms,
                cancel_requested,
                is_repeated: hidden.repeated,
                key: hidden.key,
            }))
        }
        (State::Running, ..) => return Err("runs without a claim".to_owned()),
        (_, None, ..) => None,
        (state, ..) => return Err(format!("is {state} with a claim")),
    };
    let course = Course {
        running,
        finish: hidden.finish.unwrap_or(0),
        attempt: job.attempt,
        last_end: hidden.ended,
    };
    let extra = Extra {
        unique_key: job.unique_key,
        group_key: job.group,
        group: None,
        backoff: job.backoff,
        error: job.error,
        result: job.result,
        trace: Trace::of(job.traceparent, job.tracestate),
        said: hidden.said,
    };
    Ok(Kept {
        id: job.id,
        payload: job.payload,
        sequence: job.sequence,
        content: hidden.content,
        created_at: job.created_at,
        run_at: job.run_at,
        changed_at: job.changed_at,
        queue: queue.queues.take(&job.queue),
        job_type: queue.types.take(&job.job_type),
        max_attempts: job.max_attempts,
        course: course.boxed(),
        extra: extra.boxed(),
        priority: job.priority,
        is_run_at_given: hidden.given,
        class: match job.state {
            State::Scheduled => Class::Scheduled,
            State::Ready if job.blocked => Class::Blocked,
            State::Ready => Class::Ready,
            State::Running => Class::Running,
            State::Completed => Class::Completed,
            State::Cancelled => Class::Cancelled,
            State::Dead => Class::Dead,
        },
    })
}

/// The highest priority has rank 0.
const fn rank(priority: i8) -> u8 {
    i8::MAX.abs_diff(priority)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Action, Command};
    use crate::{JobType, QueueName};

    #[test]
    fn a_job_is_small() {
        assert_eq!(size_of::<Option<Kept>>(), 104);
        assert_eq!(size_of::<Course>(), 40);
    }

    #[test]
    fn a_job_that_waits_takes_little_beside_its_text() {
        const COUNT: u64 = 60_000;
        let mut queue = Queue::new(1);
        let payload = format!("\"{}\"", "x".repeat(88));
        let taken = allocation_counter::measure(|| {
            for number in 0..COUNT {
                let job = Submission {
                    id: Some(JobId::new(format!("{number:036}")).unwrap()),
                    payload: Payload::new(payload.clone()).unwrap(),
                    ..Submission::new(JobType::new("mail").unwrap())
                };
                let action = Action::Submit(vec![job]);
                queue.apply(Command { at: 1, action }, &mut Vec::new());
            }
        });
        assert_eq!(queue.len() as u64, COUNT);
        let taken = u64::try_from(taken.bytes_current).unwrap() / COUNT;
        // As asked for: the allocator rounds up.
        let beside = taken - (36 + 90);
        assert!(beside <= 180, "{beside} bytes");
    }

    #[test]
    fn ranks_fall_as_priorities_rise() {
        assert_eq!(
            [rank(127), rank(1), rank(0), rank(-1), rank(-128)],
            [0, 126, 127, 128, 255]
        );
    }

    #[test]
    fn every_field_but_the_id_and_the_trace_is_content() {
        let plain = Submission::new(JobType::new("a").unwrap());
        let with = |change: fn(&mut Submission)| {
            let mut other = plain.clone();
            change(&mut other);
            content(&other)
        };
        assert_eq!(
            content(&plain),
            with(|job| job.id = Some(JobId::new("x").unwrap()))
        );
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut traced = plain.clone();
        traced.traceparent = Some(parent.parse().unwrap());
        traced.tracestate = Some("a=1".parse().unwrap());
        assert_eq!(content(&plain), content(&traced));
        let contents = [
            content(&plain),
            with(|job| job.queue = QueueName::new("q").unwrap()),
            with(|job| job.job_type = JobType::new("b").unwrap()),
            with(|job| job.payload = Payload::new("1").unwrap()),
            with(|job| job.priority = 1),
            with(|job| job.run_at = Some(0)),
            with(|job| job.delay_ms = Some(0)),
            with(|job| job.max_attempts = Some(1)),
            with(|job| job.unique_key = Some(Key::new("k").unwrap())),
            with(|job| job.group = Some(Key::new("k").unwrap())),
            with(|job| job.backoff = Some(Backoff::default())),
        ];
        let distinct: std::collections::BTreeSet<_> = contents.iter().collect();
        assert_eq!(distinct.len(), contents.len());
    }
}
