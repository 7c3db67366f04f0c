//! What clients and servers of Tenure share: names, the HTTP interface as types, and problem codes.
//!
//! One definition for both sides, so they cannot drift apart. The queue keeps its commands in the log in the same
//! words. There is no state machine here, no I/O and no time zone.
//!
//! - **Requests refuse unknown fields**: a misspelt `priorty` is an error, never a silent default. The types
//!   ignore them; the server reads with [`strict`].
//! - **Answers ignore them**: a client reads what it knows from a server that is newer than itself. Fields
//!   are only ever added.
//! - Times are integers, milliseconds since 1970, and end in `_at`; where a request takes one, RFC 3339
//!   text is taken too. Durations end in `_ms`.
//! - Failures are a [`Problem`] with a stable [`Code`].
//!
//! The feature `openapi` adds a schema to every type. The feature `text-times` reads RFC 3339 text: what takes requests needs
//! it, a client does not.

pub mod apart;
mod backoff;
mod claims;
mod cluster;
mod elections;
mod events;
#[cfg(test)]
mod fuzz;
mod job;
mod jobs;
mod key;
mod name;
mod payload;
mod problem;
mod queues;
mod schedules;
#[cfg(feature = "openapi")]
mod schema;
mod settings;
mod stats;
pub mod strict;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod trace;
mod workers;

pub use backoff::Backoff;
pub use claims::{
    Claim, ClaimAnswer, ClaimCall, ClaimRequest, ClaimsAnswer, CompleteRequest, Completion,
    EndedAs, Ends, EndsAnswer, FailRequest, Failure, Heartbeat, HeartbeatRequest, LEASE_MS_DEFAULT,
    LostCode, LostReason, Outcome, OutcomeStatus, ReleaseRequest, WAIT_MS_MAX,
};
pub use cluster::{
    Cluster, ClusterElection, Daemon, DaemonShard, Decision, Leader, Node, PastTerm, Plan,
    ResignRequest, TransferRequest,
};
pub use elections::{
    Candidate, CandidateRequest, ElectAnswer, ElectRequest, Election, ElectionQuery, LeaderRequest,
    LeaderRequestKind, Secret, SecretError, WithdrawRequest,
};
pub use events::{EVENT_KINDS, Event, EventsQuery, RESET};
pub use job::{ATTEMPTS_DEFAULT, Claimed, Job, QUEUE_DEFAULT, State, Submission};
pub use jobs::{
    JobsAnswer, JobsQuery, LIMIT_DEFAULT, LIMIT_MAX, MoveAnswer, MoveRequest, Moved, MovedStatus,
    Order, Retried, RetriedStatus, RetryAnswer, RetryRequest, SubmitAnswer, SubmitRequest,
    SubmitStatus, Submitted,
};
pub use key::{Key, KeyError, Token, TokenError};
pub use name::{
    DaemonId, ElectionName, Incarnation, JobId, JobType, Lineage, NameError, Namespace, NodeId,
    Nonce, QueueName, ScheduleName,
};
pub use payload::Payload;
pub use problem::{CONTENT_TYPE as PROBLEM_CONTENT_TYPE, Code, Problem};
pub use queues::{
    ClockTrust, Counts, NamesQuery, Queue, QueueChange, QueueTime, QueuesAnswer, SetTime,
};
pub use schedules::{Missed, Schedule, ScheduleSpec, SchedulesAnswer};
#[cfg(feature = "openapi")]
pub use schema::{Complete, Fail, HeartbeatSingle, Release};
pub use settings::{Keep, KeepIds, QueueOptions, Rate, Settings, SettingsChange};
pub use stats::{Latency, LogStats, Rates, Stats};
pub use trace::{TRACESTATE_BYTES_MAX, Traceparent, TraceparentError, Tracestate, TracestateError};
pub use workers::{Worker, WorkerJob, WorkersAnswer};
