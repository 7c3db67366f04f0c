//! Jobs over HTTP: submitted, looked at, and run again by hand.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::queue::schedule::time_or_text;
use crate::queue::{
    Backoff, Filter, JobView, Key, Payload, Place, State, Submission, Traceparent, Tracestate,
};
use crate::{JobId, JobType, QueueName};

/// How many jobs a list has when it does not say.
pub const LIMIT_DEFAULT: u32 = 100;

/// The most jobs of one list.
pub const LIMIT_MAX: u32 = 1_000;

/// `POST /v1/jobs`: one job, or `{"jobs":[…]}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum SubmitRequest {
    /// Several; each is accepted or refused on its own, once all of them can be read and are within the limits.
    Batch {
        /// The jobs.
        jobs: Vec<Submission>,
    },
    /// One; a refusal is the answer's status.
    Single(Box<Submission>),
}

impl SubmitRequest {
    /// The jobs, and whether they came as a batch.
    #[must_use]
    pub fn into_jobs(self) -> (Vec<Submission>, bool) {
        match self {
            SubmitRequest::Batch { jobs } => (jobs, true),
            SubmitRequest::Single(job) => (vec![*job], false),
        }
    }
}

// By hand: an untagged enum would read the whole body into a tree first, which loses the payload's exact
// text and turns every mistake into "did not match any variant".
impl<'de> Deserialize<'de> for SubmitRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            jobs: Option<Vec<Submission>>,
            id: Option<JobId>,
            queue: Option<QueueName>,
            #[serde(rename = "type")]
            job_type: Option<JobType>,
            payload: Option<Payload>,
            priority: Option<i8>,
            #[serde(default, deserialize_with = "time_or_text")]
            run_at: Option<u64>,
            delay_ms: Option<u64>,
            max_attempts: Option<u32>,
            unique_key: Option<Key>,
            group: Option<Key>,
            backoff: Option<Backoff>,
            traceparent: Option<Traceparent>,
            tracestate: Option<Tracestate>,
        }
        let body = Body::deserialize(deserializer)?;
        if let Some(jobs) = body.jobs {
            let alone = body.id.is_none()
                && body.queue.is_none()
                && body.job_type.is_none()
                && body.payload.is_none()
                && body.priority.is_none()
                && body.run_at.is_none()
                && body.delay_ms.is_none()
                && body.max_attempts.is_none()
                && body.unique_key.is_none()
                && body.group.is_none()
                && body.backoff.is_none()
                && body.traceparent.is_none()
                && body.tracestate.is_none();
            return match alone {
                true => Ok(SubmitRequest::Batch { jobs }),
                false => Err(D::Error::custom(
                    "jobs cannot be combined with other fields: put them into its items",
                )),
            };
        }
        let job_type = body
            .job_type
            .ok_or_else(|| D::Error::missing_field("type"))?;
        let job = Submission::new(job_type);
        Ok(SubmitRequest::Single(Box::new(Submission {
            id: body.id,
            queue: body.queue.unwrap_or(job.queue),
            payload: body.payload.unwrap_or(job.payload),
            priority: body.priority.unwrap_or(job.priority),
            run_at: body.run_at,
            delay_ms: body.delay_ms,
            max_attempts: body.max_attempts,
            unique_key: body.unique_key,
            group: body.group,
            backoff: body.backoff,
            traceparent: body.traceparent,
            tracestate: body.tracestate,
            job_type: job.job_type,
        })))
    }
}

/// What became of each job, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubmitAnswer {
    /// One for each job.
    pub jobs: Vec<Submitted>,
}

/// What became of a submitted job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Submitted {
    /// Its id: the client's, or one made by the server.
    pub id: JobId,
    /// What became of it.
    pub status: SubmitStatus,
    /// The job that holds the unique key, if that is why nothing was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<JobId>,
}

/// What became of a submitted job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SubmitStatus {
    /// It was enqueued.
    Created,
    /// It is there already: sent before, or another job holds its unique key.
    Duplicate,
    /// Refused: a job with this id and other content is there.
    Conflict,
    /// Refused: there are as many jobs as the settings allow.
    Full,
}

/// A job as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Its state.
    pub state: State,
    /// Its payload.
    pub payload: Payload,
    /// Its place among all jobs ever accepted: the order of the log.
    pub sequence: u64,
    /// Ready, but another job of its group comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocked: bool,
    /// Its priority.
    pub priority: i8,
    /// How many attempts were started.
    pub attempt: u32,
    /// After how many it is dead.
    pub max_attempts: u32,
    /// When it was submitted.
    pub created_at: u64,
    /// When it may run, or might have.
    pub run_at: u64,
    /// When it entered its state.
    pub changed_at: u64,
    /// Its unique key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<Key>,
    /// Its ordering group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Key>,
    /// Its own wait between attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "super::tolerant::backoff_option")]
    pub backoff: Option<Backoff>,
    /// The span that it was submitted in, as W3C Trace Context writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Traceparent>,
    /// What goes with that span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<Tracestate>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub error: Option<Box<str>>,
    /// What its worker answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// Who runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Key>,
    /// How long its claim lasts without a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u32>,
    /// Its worker is to give it up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// What its worker said last of how far it is; only while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Payload>,
    /// The job was forgotten: of it only its id, queue, type, state, `changed_at` and result are left, so that its
    /// submit can be sent again. All else is shown as if it had never been set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remnant: bool,
}

impl From<JobView> for Job {
    fn from(view: JobView) -> Self {
        Self {
            id: view.id,
            queue: view.queue,
            job_type: view.job_type,
            state: view.state,
            payload: view.payload,
            sequence: view.sequence,
            blocked: view.blocked,
            priority: view.priority,
            attempt: view.attempt,
            max_attempts: view.max_attempts,
            created_at: view.created_at,
            run_at: view.run_at,
            changed_at: view.changed_at,
            unique_key: view.unique_key,
            group: view.group,
            backoff: view.backoff,
            traceparent: view.traceparent,
            tracestate: view.tracestate,
            error: view.error,
            result: view.result,
            worker: view.worker,
            lease_ms: view.lease_ms,
            cancel_requested: view.cancel_requested,
            progress: view.progress,
            remnant: view.remnant,
        }
    }
}

/// `GET /v1/jobs`: which jobs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema, utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields, default)]
pub struct JobsQuery {
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Of this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Of this type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub job_type: Option<JobType>,
    /// With this in their id, queue, type, keys, worker, error, payload or result, in lower or upper case. So many
    /// jobs are looked at for one answer: it may be short, or empty, and still have a `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(min_length = 1, max_length = 200))]
    pub search: Option<String>,
    /// At most this many, up to 1,000. Default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Oldest first, after this `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Newest first, before this `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Which end to start from when neither `after` nor `before` is given. Default oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
}

/// Which end of the log a list starts from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As they were submitted.
    #[default]
    Oldest,
    /// The latest first.
    Newest,
}

impl JobsQuery {
    /// What the queue is to look for.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter {
            state: self.state,
            queue: self.queue.clone(),
            job_type: self.job_type.clone(),
        }
    }

    /// Where the page starts; `None` if `after`, `before` and `order` contradict each other.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match (self.after, self.before, self.order) {
            (Some(_), Some(_), _) | (Some(_), _, Some(Order::Newest)) => None,
            (_, Some(_), Some(Order::Oldest)) => None,
            (Some(after), None, _) => Some(Place::After(after)),
            (None, Some(before), _) => Some(Place::Before(before)),
            (None, None, Some(Order::Newest)) => Some(Place::Before(u64::MAX)),
            (None, None, _) => Some(Place::After(0)),
        }
    }
}

/// Some jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobsAnswer {
    /// In the order asked for.
    pub jobs: Vec<Job>,
    /// What to give as `after` (or `before`) for the next page; none if this is the last.
    pub next: Option<u64>,
}

/// `POST /v1/jobs/retry`: these jobs, or as many of a state as `limit` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RetryRequest {
    /// These jobs. Excludes the other fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<JobId>>,
    /// Jobs in this state: dead, cancelled or scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Only of this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Only of this type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub job_type: Option<JobType>,
    /// The oldest so many, up to 1,000. Default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// What became of each job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetryAnswer {
    /// One for each job.
    pub jobs: Vec<Retried>,
}

/// What became of a job that was to run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Retried {
    /// The job.
    pub id: JobId,
    /// What became of it.
    pub status: RetriedStatus,
    /// The job that holds its unique key, if that is why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<JobId>,
}

/// What became of a job that was to run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RetriedStatus {
    /// It runs again.
    Retried,
    /// Refused: there is no such job.
    NotFound,
    /// Refused: a job in its state cannot be retried.
    State,
    /// Refused: another job holds its unique key now.
    UniqueKey,
}
