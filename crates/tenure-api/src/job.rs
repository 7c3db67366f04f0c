//! What a job is: the words in which clients, the log and the snapshot speak of it.
//!
//! A [`Submission`] is the body of the submit call, an item of the submit command in the log, and the
//! template of a schedule: one form, so nothing is lost between them. A [`Job`] is what is shown of one, and
//! [`Claimed`] what its worker gets.

use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::key::{Key, Token};
use crate::payload::Payload;
use crate::trace::{Traceparent, Tracestate};
use crate::{JobId, JobType, QueueName};

/// How often a job is tried when its submission does not say.
pub const ATTEMPTS_DEFAULT: u32 = 20;

/// The queue of a submission that names none.
pub const QUEUE_DEFAULT: &str = "default";

/// The state of a job. A finished job keeps its state, unless it is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for its time: delayed, or between two attempts.
    Scheduled,
    /// May be claimed, or waits only for its turn in its ordering group.
    Ready,
    /// Claimed by a worker.
    Running,
    /// Finished: done.
    Completed,
    /// Finished: cancelled on request.
    Cancelled,
    /// Finished: every attempt failed. It is kept, and can be retried.
    Dead,
}

impl State {
    /// Every state, in the order of a job's life.
    pub const ALL: [State; 6] = [
        State::Scheduled,
        State::Ready,
        State::Running,
        State::Completed,
        State::Cancelled,
        State::Dead,
    ];

    /// Whether a job in this state is never run again of itself.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        matches!(self, State::Completed | State::Cancelled | State::Dead)
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            State::Scheduled => "scheduled",
            State::Ready => "ready",
            State::Running => "running",
            State::Completed => "completed",
            State::Cancelled => "cancelled",
            State::Dead => "dead",
        })
    }
}

/// A job as it is submitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Submission {
    /// Made by the client, so that a submit can be sent again. Without one the job is named after its
    /// place in the log, and sending it again enqueues it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// The queue to wait in.
    #[serde(default = "queue_default", skip_serializing_if = "is_queue_default")]
    pub queue: QueueName,
    /// What kind of work it is.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Any JSON value, kept word for word.
    #[serde(default, skip_serializing_if = "Payload::is_null")]
    pub payload: Payload,
    /// Higher runs first; equal priorities run in the order of the log.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i8,
    /// Not before this time, in milliseconds since 1970 (or RFC 3339 text).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::time::time_or_text")]
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::schema::time_or_text))]
    pub run_at: Option<u64>,
    /// Not before this long after the submit. At most one of this and `run_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// How often it is tried before it is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// No second job of this queue with this key is accepted until this one has finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<Key>,
    /// Jobs of this queue with this key run one at a time, in the order of the log. A job that waits for
    /// its time, or for its next attempt, holds its place and the rest of the group with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Key>,
    /// How long it waits between attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// The span that it was submitted in, as W3C Trace Context writes it: handed to its worker, so that the
    /// work shows in the same trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Traceparent>,
    /// What tracing systems say to each other about that span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<Tracestate>,
}

/// What a call that submits may have: `jobs`, or the fields of a [`Submission`].
#[rustfmt::skip]
pub(crate) const SUBMIT_FIELDS: &[&str] = &[
    "jobs", "id", "queue", "type", "payload", "priority", "run_at", "delay_ms", "max_attempts",
    "unique_key", "group", "backoff", "traceparent", "tracestate",
];

fn queue_default() -> QueueName {
    static NAME: LazyLock<QueueName> =
        LazyLock::new(|| QueueName::new(QUEUE_DEFAULT).expect("a constant that is a name"));
    NAME.clone()
}

fn is_queue_default(queue: &QueueName) -> bool {
    queue.as_str() == QUEUE_DEFAULT
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(priority: &i8) -> bool {
    *priority == 0
}

impl Submission {
    /// A job of this type with everything else at its default.
    #[must_use]
    pub fn new(job_type: JobType) -> Self {
        Self {
            id: None,
            queue: queue_default(),
            job_type,
            payload: Payload::default(),
            priority: 0,
            run_at: None,
            delay_ms: None,
            max_attempts: None,
            unique_key: None,
            group: None,
            backoff: None,
            traceparent: None,
            tracestate: None,
        }
    }

    /// The bytes of its text: what clients choose the length of.
    pub(crate) fn bytes(&self) -> usize {
        let key = |key: &Option<Key>| key.as_ref().map_or(0, |key| key.as_str().len());
        self.queue.as_str().len()
            + self.job_type.as_str().len()
            + self.payload.bytes()
            + key(&self.unique_key)
            + key(&self.group)
    }
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
    /// After this many attempts it is dead.
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
    /// Cancellation was requested; the worker has not ended the job yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// The progress that its worker reported last; only while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Payload>,
    /// The job was deleted: only its id, queue, type, state, `changed_at` and result are left, so that its submit can be
    /// repeated. All other fields look as if they had never been set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remnant: bool,
}

impl Job {
    /// About how many bytes it has as JSON: rather more than fewer.
    #[must_use]
    pub fn json_bytes(&self) -> usize {
        let payload = |payload: Option<&Payload>| payload.map_or(0, Payload::bytes);
        let key = |key: Option<&Key>| key.map_or(0, |key| escaped_bytes(key.as_str()));
        let state = self.tracestate.as_ref();
        FIELDS_BYTES
            + self.id.as_str().len()
            + self.queue.as_str().len()
            + self.job_type.as_str().len()
            + self.payload.bytes()
            + payload(self.result.as_ref())
            + payload(self.progress.as_ref())
            + key(self.unique_key.as_ref())
            + key(self.group.as_ref())
            + key(self.worker.as_ref())
            + state.map_or(0, |state| escaped_bytes(state.as_str()))
            + self.error.as_deref().map_or(0, escaped_bytes)
    }
}

/// The most bytes of a job's names of fields, numbers and punctuation as JSON.
const FIELDS_BYTES: usize = 640;

/// How many bytes a text has within quotes.
fn escaped_bytes(text: &str) -> usize {
    let bytes = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(bytes).sum()
}

/// A job as its worker gets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Claimed {
    /// The job.
    pub id: JobId,
    /// What ends, renews and proves the claim.
    pub token: Token,
    /// Where it waited.
    pub queue: QueueName,
    /// What kind of work it is.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// What was submitted.
    pub payload: Payload,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// After this many attempts it is dead.
    pub max_attempts: u32,
    /// Its priority.
    pub priority: i8,
    /// Its ordering group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Key>,
    /// When it was submitted.
    pub created_at: u64,
    /// How long the claim lasts without a heartbeat.
    pub lease_ms: u32,
    /// The span that it was submitted in: the parent of what is done for it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Traceparent>,
    /// What goes with that span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<Tracestate>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_reads_back_and_says_nothing_twice() {
        let text = r#"{"type":"mail","payload":{"to":  "x"},"delay_ms":5}"#;
        let submission: Submission = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&submission).unwrap(), text);
        let error = serde_json::from_str::<Submission>(r#"{"type":""}"#).unwrap_err();
        assert!(
            error.to_string().contains("the job type \"\" is empty"),
            "{error}"
        );
    }
}
