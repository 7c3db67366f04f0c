//! The job queue, to embed: [`Queue`] is served by whichever process leads.
//!
//! The broker of a queue is the leader of its election, `tenure.queue`. Its state is in memory; what makes it durable is
//! a [log](crate::log) of the commands that it was given. The log knows records as lines; everything that knows of jobs
//! is here:
//!
//! | file | what it does |
//! | --- | --- |
//! | `calls.rs`, `reads.rs` | the calls of [`Queue`]: those that change something, and those that look |
//! | `serve.rs` | one term after the other, until the queue is closed |
//! | `service.rs` | one term: commits commands, and lets claims wait |
//! | `broker.rs` | the state of a term, behind one lock |
//! | `claims.rs` | the claims that wait, and which of them a job wakes |
//! | `due.rs` | what time brings: leases that run out, delayed jobs, schedules, retention |
//! | `time.rs` | the queue's own time |
//! | `readers.rs` | which rules a leader may write by |
//! | `crowd.rs` | how many queues, types and schedules there may be |

mod broker;
mod calls;
mod claims;
mod crowd;
mod due;
mod follow;
mod metrics;
mod options;
mod readers;
mod reads;
mod serve;
mod service;
mod time;

pub use broker::Unreadable;
pub use calls::{Queue, Round};
pub use follow::{Cut, Followed, Follower};
pub use metrics::Metrics;
pub use options::{Options, Serving};
pub use reads::PAGE_BYTES_MAX;
pub use time::ClockState;

// What the calls of a queue take and answer.
pub use tenure_core::queue::{
    Backoff, Cancelled, Changed, Claim, ClaimRequest, Claimed, Completion, Counts, Ended, Ends,
    Event, Failed, Failure, Filter, HeartbeatAnswer, Item, Job, Keep, KeepIds, Key, Limits, Lost,
    Missed, Page, PageReader, PageStart, Payload, QueueOptions, QueueView, Rate, Refusal, Released,
    Schedule, ScheduleSpec, Settings, SnapshotError, State, Submission, SubmitStatus, Submitted,
    Token,
};

pub use crate::log::{
    Config, Error, Latency, Position, Progress, Rules, SnapshotMetrics, Statistics,
};
