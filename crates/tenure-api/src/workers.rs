//! Who works: `GET /v1/workers`.

use serde::{Deserialize, Serialize};

use crate::{JobId, JobType, Key, QueueName};

/// `GET /v1/workers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkersAnswer {
    /// Workers that run jobs, or wait for some, by name: at most 1,000.
    pub workers: Vec<Worker>,
    /// There are more workers, or more running jobs, than were looked at.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
}

/// One worker. It is known by what it claims: one that neither runs a job nor waits for one is not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Worker {
    /// The name that it claims by.
    pub worker: Key,
    /// How many of its claims wait for a job.
    pub waiting: u32,
    /// How many jobs it runs, of those that were looked at.
    pub running: u32,
    /// At most 100 of its jobs, those that it has had for longest first.
    pub jobs: Vec<WorkerJob>,
}

/// A job that a worker runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerJob {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// The attempt.
    pub attempt: u32,
    /// When the attempt started, on the broker's clock.
    pub since_at: u64,
    /// How long ago its worker was last heard from, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ago_ms: Option<u64>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}
