//! The job queue: commands in, answers and events out.
//!
//! [`Queue`] is the whole state of a namespace's queues, in memory. [`Queue::apply`] carries one
//! [`Command`] out. Its [`Answer`] is for the caller, [`Event`]s are for followers. It reads no clock, uses no randomness and cannot fail; the same
//! commands in the same order give the same state, answers and events on every machine, in every process,
//! for ever. That is what the log is built on: it holds the commands, and a replay of it gives the queue.
//!
//! ```text
//!              run_at            claim              complete
//!  submit ──> scheduled ──> ready ──────> running ───────────> completed
//!                 ^           ^             │ │ │
//!                 │ back-off  └─────────────┘ │ └─ cancelled, then failed or expired ─> cancelled
//!                 └──────── failed, expired ──┘
//!                                             └─ the last attempt failed ─> dead ── retry by hand ─> ready
//! ```
//!
//! # When a command is applied
//!
//! **After its commit is durable, and not before.** Commands go into the log as they were asked: a claim
//! says who wants how many of what, not which jobs it gets. That is decided at its place in the log, when
//! it is applied. So nothing that could still be lost is ever visible: a reader, a waiting worker and the
//! next batch all see committed state only, a commit that fails needs no undoing, and a batch is formed
//! without looking at the one in flight. The price: a request whose answer depends on one in flight (a
//! claim of a job that is just being submitted) waits for the next commit; and two claims in one batch may
//! compete for one job, in which case the second comes back empty and its caller waits on.
//!
//! The broker asks before it spends a commit: [`Queue::claimable_at`] for claims, [`Queue::due_at`] and
//! [`Queue::retention_due_at`] for [`Action::Tick`], [`Queue::due_schedules`] for schedules.
//!
//! What a command does may change from one version to the next. [`Rules`] keep the histories apart.
//!
//! # What is guaranteed
//!
//! - **Order.** Higher priority first, then the order of the log, whatever any clock said. A job keeps its
//!   place when it is retried.
//! - **Claims.** At most one token holds a job. A call with another is answered [`Lost`], with the reason.
//!   Attempts are counted when they start, so a job that kills its workers is dead after `max_attempts`.
//!   The last end of a claim can be told again: it is answered as it was, and nothing is done twice.
//! - **Ids.** A job's id is known until the job is forgotten; until then the same submission is a
//!   duplicate and another one with its id a conflict. Unfinished and dead jobs are never forgotten by
//!   default; completed and cancelled ones after a day, or once 100,000 later ones have finished (see
//!   [`Settings`]). An id outlives its job until it is an hour since that finished, and its result does too.
//!   **That is the window in which a submit may be sent again**: an id that comes back later is a new job.
//! - **Groups.** Jobs of one group run one at a time in the order of the log. One that fails holds up its
//!   group for its attempts and no longer; a dead job holds up nothing.
//! - **Time** only moves forward, to the latest `at` of any command, unless an operator sets it. Which `at` a command
//!   gets when a broker's clock is wrong is decided above the core, in `tenure::queue`.
//! - **Cost.** Every item of a command costs a logarithm, whatever the depth. Time's own work (due jobs,
//!   retention) is done in portions along with other commands, so no command takes long.
//!
//! # What is not
//!
//! Exactly-once execution: a worker that finishes its work and dies before it says so is followed by
//! another attempt. Leases are kept apart, in [`Leases`], since they must not survive the broker.

mod answer;
mod board;
mod bucket;
mod claim;
mod command;
mod cron;
mod due;
mod end;
mod event;
mod groups;
mod hash;
mod kept;
mod leases;
mod machine;
mod moving;
mod named_queue;
mod names;
mod order;
mod outcome;
mod remnants;
mod retry;
mod rules;
mod schedule;
mod schedules;
mod search;
mod set_time;
mod shelves;
mod slab;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;
mod validate;
mod view;

pub use answer::{Answer, Cancelled, Changed, Ended, Failed, Item, Lost, Refusal, Released};
pub use claim::{ClaimKey, ClaimStatus};
pub use command::{Action, Command, LoggedClaim};
pub use event::Event;
pub use leases::{HeartbeatAnswer, Leases};
pub use machine::Queue;
pub use remnants::RemnantCounts;
pub use rules::Rules;
pub use schedule::{Due, Firing, Resumption, Schedule};
pub use snapshot::{Restore, SnapshotError};
pub use tenure_api::{
    Backoff, Claim, ClaimRequest, Claimed, Completion, Counts, EndedAs, Ends, Failure, Job, Keep,
    KeepIds, Key, Missed, Payload, QueueOptions, Rate, ScheduleSpec, Settings, State, Submission,
    SubmitStatus, Submitted, Token, Traceparent, Tracestate,
};
pub use tenure_api::{JobsAnswer as Page, Queue as QueueView};
pub use validate::{Invalid, Limits, RESULT_BYTES_MAX};
pub use view::{Filter, PageReader, PageStart};
