//! A job on its way in.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tenure_api::{
    Backoff, JobId, JobType, Key, Payload, QueueName, Submission, Traceparent, Tracestate,
};
use uuid::Uuid;

use crate::error::Error;

/// A job to submit. Mistakes, such as a name with a blank in it, are reported when it is.
///
/// ```
/// use std::time::Duration;
/// use tenure_client::NewJob;
///
/// let job = NewJob::new("mail", &serde_json::json!({"to": "you@example.com"}))
///     .queue("bulk")
///     .delay(Duration::from_secs(60))
///     .max_attempts(5);
/// ```
#[derive(Debug, Clone)]
pub struct NewJob {
    made: Result<Submission, Mistake>,
}

#[derive(Debug, Clone)]
struct Mistake {
    field: &'static str,
    detail: String,
}

impl NewJob {
    /// A job of this type, with a payload that handlers of that type read.
    #[must_use]
    pub fn new(job_type: &str, payload: &(impl Serialize + ?Sized)) -> Self {
        let made = JobType::new(job_type)
            .map(Submission::new)
            .map_err(|error| Mistake::new("type", &error));
        let payload = Payload::of(&payload);
        Self { made }.with("payload", payload, |job, payload| job.payload = payload)
    }

    /// Gives it an id of your own: submitted again with it, by anybody, it is enqueued once. Without one
    /// it gets a random id, so only this very call is safe to repeat.
    #[must_use]
    pub fn id(self, id: impl AsRef<str>) -> Self {
        self.with("id", JobId::new(id), |job, id| job.id = Some(id))
    }

    /// The queue to wait in. Default `default`.
    #[must_use]
    pub fn queue(self, queue: impl AsRef<str>) -> Self {
        self.with("queue", QueueName::new(queue), |job, queue| {
            job.queue = queue;
        })
    }

    /// Higher runs first. Default 0.
    #[must_use]
    pub fn priority(self, priority: i8) -> Self {
        self.set(|job| job.priority = priority)
    }

    /// Not before this long after the submit.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.set(|job| job.delay_ms = Some(delay_ms))
    }

    /// Not before this time.
    #[must_use]
    pub fn run_at(self, time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let run_at = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        self.set(|job| job.run_at = Some(run_at))
    }

    /// How often it is tried before it is dead. Default 20.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.set(|job| job.max_attempts = Some(attempts))
    }

    /// No second job of its queue with this key is accepted until this one has finished.
    #[must_use]
    pub fn unique_key(self, key: impl AsRef<str>) -> Self {
        self.with("unique_key", Key::new(key), |job, key| {
            job.unique_key = Some(key);
        })
    }

    /// Jobs of its queue with this key run one at a time, in order.
    #[must_use]
    pub fn group(self, group: impl AsRef<str>) -> Self {
        self.with("group", Key::new(group), |job, key| job.group = Some(key))
    }

    /// How long it waits between attempts.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.set(|job| job.backoff = Some(backoff))
    }

    /// The span that it belongs to, as W3C Trace Context writes it: its handler runs in the same trace. With
    /// the feature `opentelemetry` this is the current span, unless you name another.
    #[must_use]
    pub fn traceparent(self, parent: impl AsRef<str>) -> Self {
        let parent = parent.as_ref().parse::<Traceparent>();
        self.with("traceparent", parent, |job, parent| {
            job.traceparent = Some(parent);
        })
    }

    /// What goes with that span.
    #[must_use]
    pub fn tracestate(self, state: impl AsRef<str>) -> Self {
        let state = state.as_ref().parse::<Tracestate>();
        self.with("tracestate", state, |job, state| {
            job.tracestate = Some(state);
        })
    }

    fn set(mut self, change: impl FnOnce(&mut Submission)) -> Self {
        if let Ok(job) = &mut self.made {
            change(job);
        }
        self
    }

    fn with<V, E: ToString>(
        mut self,
        field: &'static str,
        value: Result<V, E>,
        change: impl FnOnce(&mut Submission, V),
    ) -> Self {
        match (&mut self.made, value) {
            (Ok(job), Ok(value)) => change(job, value),
            (Ok(_), Err(error)) => self.made = Err(Mistake::new(field, &error)),
            (Err(_), _) => {}
        }
        self
    }

    /// The job with an id, and whether the id was made here.
    pub(crate) fn finish(self) -> Result<(Submission, bool), Error> {
        let mut job = self
            .made
            .map_err(|mistake| Error::invalid(mistake.field, &mistake.detail))?;
        let is_fresh = job.id.is_none();
        if is_fresh {
            let id = Uuid::new_v4().to_string();
            job.id = Some(JobId::new(id).expect("a uuid has the characters of a name"));
        }
        crate::trace::add_current(&mut job);
        Ok((job, is_fresh))
    }

    /// What a schedule submits: without an id.
    pub(crate) fn template(self) -> Result<Submission, Error> {
        self.made
            .map_err(|mistake| Error::invalid(mistake.field, &mistake.detail))
    }
}

impl From<Submission> for NewJob {
    fn from(job: Submission) -> Self {
        Self { made: Ok(job) }
    }
}

impl Mistake {
    fn new(field: &'static str, error: &impl ToString) -> Self {
        Self {
            field,
            detail: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mistake_is_told_when_it_is_submitted() {
        let job = NewJob::new("mail", &1).queue("a b").group("");
        let error = job.finish().unwrap_err();
        assert_eq!(error.problem().unwrap().field.as_deref(), Some("queue"));
        assert!(error.to_string().contains("contains ' '"), "{error}");
    }

    #[test]
    fn every_job_has_an_id_before_it_is_sent() {
        let (first, is_fresh) = NewJob::new("mail", "x").finish().unwrap();
        let (second, _) = NewJob::new("mail", "x").finish().unwrap();
        assert!(is_fresh && first.id.is_some() && first.id != second.id);
        let (own, is_fresh) = NewJob::new("mail", &[1.5]).id("a").finish().unwrap();
        assert!(!is_fresh);
        assert_eq!(
            serde_json::to_string(&own).unwrap(),
            r#"{"id":"a","type":"mail","payload":[1.5]}"#
        );
    }
}
