//! Claims over HTTP: taking jobs, keeping them, and ending them.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::apart::Apart;
use crate::problem::Problem;
use crate::{Claimed, JobId, JobType, Key, Payload, QueueName, State, Token};

/// How long a claim lasts without a heartbeat when it does not say.
pub const LEASE_MS_DEFAULT: u32 = 30_000;

/// The longest that a claim waits for a job.
pub const WAIT_MS_MAX: u32 = 60_000;

/// What a worker would take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimRequest {
    /// The worker's name, which people see.
    pub worker: Key,
    // Their order means nothing: priority, then the order of the log decides across all of them.
    /// From these queues; from every queue if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueName>,
    /// Of these types; of every type if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<JobType>,
    /// At most this many jobs. Default 1.
    #[serde(default = "one")]
    pub max: u32,
    /// How long each claim lasts without a heartbeat. Default 30 s.
    #[serde(default = "lease_default")]
    pub lease_ms: u32,
    /// How long to wait for a job if there is none, up to a minute. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wait_ms: u32,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

const fn one() -> u32 {
    1
}

const fn lease_default() -> u32 {
    LEASE_MS_DEFAULT
}

impl ClaimRequest {
    /// One job of any queue and type, now.
    #[must_use]
    pub fn new(worker: Key) -> Self {
        Self {
            worker,
            queues: Vec::new(),
            types: Vec::new(),
            max: 1,
            lease_ms: LEASE_MS_DEFAULT,
            wait_ms: 0,
        }
    }

    /// The same, waiting for so long.
    #[must_use]
    pub fn waiting(mut self, wait: Duration) -> Self {
        self.wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        self
    }
}

/// `POST /v1/jobs/claim`: what to claim, and the ends of earlier claims to report with it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimCall<E = Ends> {
    /// What to claim.
    #[serde(flatten)]
    pub request: ClaimRequest,
    /// Carried out before the claim, in the same commit. With any of them the claim does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<E>,
}

/// The fields of a claim, for who misspells one.
const CLAIM_FIELDS: &[&str] = &[
    "worker", "queues", "types", "max", "lease_ms", "wait_ms", "ends",
];

// By hand: flattened by serde, every body would be read into a tree first, and unknown fields would pass.
impl<'de, E: Deserialize<'de>> Deserialize<'de> for ClaimCall<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("ClaimCall", CLAIM_FIELDS, Body(PhantomData))
    }
}

struct Body<E>(PhantomData<E>);

impl<'de, E: Deserialize<'de>> Visitor<'de> for Body<E> {
    type Value = ClaimCall<E>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a claim")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<ClaimCall<E>, A::Error> {
        let mut fields = Apart::new(fields, "ends");
        let request = ClaimRequest::deserialize(MapAccessDeserializer::new(&mut fields))?;
        Ok(ClaimCall {
            request,
            ends: fields.value,
        })
    }
}

/// Ends of claims that are reported along with another claim. Each item is what it is in its own call; up to 1,000 of all
/// kinds together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ends {
    /// Claims that end with success, as in `POST /v1/jobs/complete`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completed: Vec<Completion>,
    /// Claims that end without success, as in `POST /v1/jobs/fail`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Failure>,
    /// Claims to hand back, as in `POST /v1/jobs/release`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<Claim>,
}

impl Ends {
    /// How many there are, of all kinds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.completed.len() + self.failed.len() + self.released.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The jobs whose claims end.
    pub fn jobs(&self) -> impl Iterator<Item = &JobId> {
        let completed = self.completed.iter().map(|claim| &claim.id);
        let failed = self.failed.iter().map(|claim| &claim.id);
        let released = self.released.iter().map(|claim| &claim.id);
        completed.chain(failed).chain(released)
    }
}

/// The claimed jobs; none if there were none in time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimAnswer {
    /// In the order to run them.
    pub jobs: Vec<Claimed>,
    /// The outcome of each end that came along with the claim. Absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<EndsAnswer>,
}

/// The outcome of each end that came along with a claim, in the order of the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndsAnswer {
    /// One for each that was completed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completed: Vec<Outcome>,
    /// One for each that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Outcome>,
    /// One for each that was handed back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<Outcome>,
}

/// One claim of one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Claim {
    /// The job.
    pub id: JobId,
    /// The token from the answer to the claim.
    pub token: Token,
}

/// A claim that ends with success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Completion {
    /// The job.
    pub id: JobId,
    /// The token from the answer to the claim.
    pub token: Token,
    /// A small JSON value, kept as long as the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
}

/// A claim that ends without success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failure {
    /// The job.
    pub id: JobId,
    /// The token from the answer to the claim.
    pub token: Token,
    /// What went wrong; shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub error: Option<Box<str>>,
    /// Try again after this long, instead of what the job's back-off says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<u64>,
    /// Do not try again, whatever attempts are left: the job is dead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permanent: bool,
}

/// `POST /v1/jobs/heartbeat`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatRequest {
    /// The claims to keep.
    pub claims: Vec<Heartbeat>,
}

/// A claim to keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heartbeat {
    /// The job.
    pub id: JobId,
    /// The token from the answer to the claim.
    pub token: Token,
    /// How far the work is: any small JSON value, shown while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Payload>,
}

/// `POST /v1/jobs/complete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CompleteRequest {
    /// The claims that end with success.
    pub claims: Vec<Completion>,
}

/// `POST /v1/jobs/fail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailRequest {
    /// The claims that end without success.
    pub claims: Vec<Failure>,
}

/// `POST /v1/jobs/release`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReleaseRequest {
    /// The claims to hand back, as if they had never been made.
    pub claims: Vec<Claim>,
}

/// The outcome of each claim, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimsAnswer {
    /// One for each claim.
    pub claims: Vec<Outcome>,
}

/// The outcome of one claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// The job. Absent if the request had none that could be read: answers stand in the order of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// The outcome.
    pub status: OutcomeStatus,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// What is wrong with this item of the request, if it is `invalid`. To a heartbeat that is `ok`: why its progress
    /// is not shown. To an end that is `lost`, with the code `unknown_outcome`: the call was sent twice since its first
    /// answer was lost, and this end may have been done the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutcomeStatus {
    /// It was kept, or has ended as asked.
    Ok,
    /// The token does not hold the job, or no longer. Nothing was done.
    Lost,
    /// To a heartbeat: the claim was renewed, and the job is to be cancelled. Stop the work, renew the claim until it has
    /// ended, then end the claim as usual. To a fail or a release: the job was to be cancelled, and is now.
    Cancelled,
    /// This item of the request cannot be carried out, as `problem` says. Nothing was done about it: the claim
    /// stands as it stood.
    Invalid,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

impl Outcome {
    /// Done as asked.
    #[must_use]
    pub const fn ok(id: JobId) -> Self {
        Self {
            id: Some(id),
            status: OutcomeStatus::Ok,
            reason: None,
            problem: None,
        }
    }

    /// The job is given up.
    #[must_use]
    pub const fn cancelled(id: JobId) -> Self {
        Self {
            id: Some(id),
            status: OutcomeStatus::Cancelled,
            reason: None,
            problem: None,
        }
    }

    /// The claim does not hold.
    #[must_use]
    pub fn lost(id: JobId, reason: impl Into<LostReason>) -> Self {
        Self {
            id: Some(id),
            status: OutcomeStatus::Lost,
            reason: Some(reason.into()),
            problem: None,
        }
    }

    /// The request is wrong about it.
    #[must_use]
    pub fn invalid(id: Option<JobId>, problem: Problem) -> Self {
        Self {
            id,
            status: OutcomeStatus::Invalid,
            reason: None,
            problem: Some(Box::new(problem)),
        }
    }
}

/// Why a claim is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LostReason {
    /// The reason.
    pub code: LostCode,
    /// The job's state, if it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The attempt that runs now, if another one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How the claim was ended before, if it was ended in another way than is asked now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_as: Option<EndedAs>,
}

/// How a claim has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndedAs {
    /// The job is done, with the result that was given then.
    Completed,
    /// A failed attempt, and the job is tried again.
    Failed,
    /// A failed attempt that was the last.
    Dead,
    /// A job that was to be cancelled, and is.
    Cancelled,
    /// It was handed back, and the attempt does not count.
    Released,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

impl From<LostCode> for LostReason {
    fn from(code: LostCode) -> Self {
        Self {
            code,
            state: None,
            attempt: None,
            ended_as: None,
        }
    }
}

/// The reasons why a claim is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LostCode {
    /// There is no such job, or it was forgotten.
    NotFound,
    /// The lease ran out.
    Expired,
    /// The job waits for another attempt, or has finished.
    NotRunning,
    /// Another claim holds it.
    Superseded,
    /// The claim was ended before, in another way: as `ended_as` says.
    Ended,
    /// A reason that this version does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for LostReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.state, self.attempt) {
            (LostCode::NotFound, ..) => formatter.write_str("there is no such job"),
            (LostCode::Expired, ..) => formatter.write_str("its lease expired"),
            (LostCode::NotRunning, Some(state), _) => write!(formatter, "the job is {state}"),
            (LostCode::NotRunning, ..) => formatter.write_str("the job is not running"),
            (LostCode::Superseded, _, Some(attempt)) => {
                write!(formatter, "attempt {attempt} has claimed the job")
            }
            (LostCode::Superseded, ..) => {
                formatter.write_str("another attempt has claimed the job")
            }
            (LostCode::Ended, ..) => {
                formatter.write_str("it was ended before, in another way")?;
                formatter.write_str(match self.ended_as {
                    Some(EndedAs::Completed) => ": the job was completed",
                    Some(EndedAs::Failed) => ": the attempt failed, and the job is tried again",
                    Some(EndedAs::Dead) => ": the attempt failed, and was the last",
                    Some(EndedAs::Cancelled) => ": the job was cancelled",
                    Some(EndedAs::Released) => ": it was released",
                    Some(EndedAs::Other) | None => "",
                })
            }
            (LostCode::Other, ..) => formatter.write_str("the claim is not valid"),
        }
    }
}
