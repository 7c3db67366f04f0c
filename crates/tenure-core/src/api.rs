//! The HTTP interface as types: what the server takes and answers, and the client sends and reads.
//!
//! One definition for both sides, so they cannot drift apart. Where the queue's own types already have the
//! form that travels, they are used as they are.
//!
//! - **Requests refuse fields they do not know**: a misspelt `priorty` is an error, never a silent default.
//! - **Answers ignore them**: a client reads what it knows from a server that is newer than itself. Fields
//!   are only ever added.
//! - Times are integers, milliseconds since 1970, and end in `_at`; where a request takes one, RFC 3339
//!   text is taken too. Durations end in `_ms`.
//! - Failures are a [`Problem`] with a stable [`Code`].
//!
//! The feature `openapi` adds a schema to every type.

mod claims;
mod cluster;
mod elections;
mod events;
mod jobs;
mod problem;
mod queues;
#[cfg(feature = "openapi")]
pub(crate) mod schema;
mod stats;
#[cfg(test)]
mod tests;
mod tolerant;

pub use claims::{
    ClaimAnswer, ClaimRequest, ClaimsAnswer, Complete, CompleteRequest, Fail, FailRequest,
    Heartbeat, HeartbeatRequest, HeartbeatSingle, LEASE_MS_DEFAULT, LostCode, LostReason, Outcome,
    OutcomeStatus, Release, ReleaseRequest, WAIT_MS_MAX,
};
pub use cluster::{
    Cluster, ClusterElection, Daemon, DaemonShard, Leader, Node, PastTerm, ResignRequest,
    TransferRequest,
};
pub use elections::{
    Candidate, CandidateRequest, ElectAnswer, ElectRequest, Election, ElectionQuery, Secret,
    SecretError, WithdrawRequest,
};
pub use events::{Event, EventsQuery, RESET};
pub use jobs::{
    Job, JobsAnswer, JobsQuery, LIMIT_DEFAULT, LIMIT_MAX, Order, Retried, RetriedStatus,
    RetryAnswer, RetryRequest, SubmitAnswer, SubmitRequest, SubmitStatus, Submitted,
};
pub use problem::{CONTENT_TYPE as PROBLEM_CONTENT_TYPE, Code, Problem};
pub use queues::{
    ClockTrust, NamesQuery, Queue, QueueChange, QueueTime, QueuesAnswer, Schedule, SchedulesAnswer,
    SetTime, Settings, SettingsChange,
};
pub use stats::{Latency, LogStats, Rates, Stats};
