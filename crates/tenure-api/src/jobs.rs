//! Jobs over HTTP: submitted, looked at, and retried.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::apart::Apart;
use crate::job::{Job, SUBMIT_FIELDS, State, Submission};
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
        deserializer.deserialize_struct("SubmitRequest", SUBMIT_FIELDS, Body)
    }
}

struct Body;

impl<'de> Visitor<'de> for Body {
    type Value = SubmitRequest;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a job, or an object with jobs")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<SubmitRequest, A::Error> {
        let mut fields = Apart::new(fields, "jobs");
        let job = Submission::deserialize(MapAccessDeserializer::new(&mut fields));
        match fields.value {
            None => job.map(|job| SubmitRequest::Single(Box::new(job))),
            Some(jobs) if !fields.has_others => Ok(SubmitRequest::Batch { jobs }),
            Some(_) => Err(A::Error::custom(
                "jobs cannot be combined with other fields: put them into its items",
            )),
        }
    }
}

/// The outcome of each job, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubmitAnswer {
    /// One for each job.
    pub jobs: Vec<Submitted>,
}

/// The outcome of a submitted job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Submitted {
    /// Its id: the client's, or one made by the server.
    pub id: JobId,
    /// The outcome.
    pub status: SubmitStatus,
    /// The job that holds the unique key, if that is why nothing was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<JobId>,
}

/// The outcome of a submitted job.
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
    /// With this text in their id, queue, type, keys, worker, error, payload or result, ignoring case. Each call searches
    /// a limited number of jobs: the page may be short, or empty, and still have a `next`.
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

/// Some jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobsAnswer {
    /// In the order asked for.
    pub jobs: Vec<Job>,
    /// What to give as `after` (or `before`) for the next page; none if this is the last.
    pub next: Option<u64>,
}

/// `POST /v1/jobs/retry`: these jobs, or up to `limit` jobs in a state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
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
    /// At most this many, the oldest first, up to 1,000. Default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The outcome of each job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetryAnswer {
    /// One for each job.
    pub jobs: Vec<Retried>,
}

/// The outcome of a retried job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Retried {
    /// The job.
    pub id: JobId,
    /// The outcome.
    pub status: RetriedStatus,
    /// The job that holds its unique key, if that is why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<JobId>,
}

/// The outcome of a retried job.
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

/// `POST /v1/jobs/move`: these jobs, to another queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoveRequest {
    /// These jobs.
    pub ids: Vec<JobId>,
    /// The queue that they are moved to. It is created if it does not exist.
    pub queue: QueueName,
}

/// The outcome of each job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoveAnswer {
    /// One for each job.
    pub jobs: Vec<Moved>,
}

/// The outcome of a moved job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Moved {
    /// The job.
    pub id: JobId,
    /// The outcome.
    pub status: MovedStatus,
    /// The job of that queue that holds its unique key, if that is why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<JobId>,
}

/// The outcome of a moved job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MovedStatus {
    /// It is in that queue, now or since before.
    Moved,
    /// Refused: there is no such job.
    NotFound,
    /// Refused: a job that is running or completed cannot be moved.
    State,
    /// Refused: another job of that queue holds its unique key.
    UniqueKey,
}
