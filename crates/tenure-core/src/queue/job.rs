//! What a job is: the words in which clients, the log and the snapshot speak of it.
//!
//! A [`Submission`] is the body of the submit call, an item of the submit command in the log, and the
//! template of a schedule: one form, so nothing is lost between them. Payloads are kept as the JSON text
//! that came in; nothing here ever looks inside one.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::hash::Hash;
use super::retry::Backoff;
use super::trace::{Traceparent, Tracestate};
use crate::text::as_text;
use crate::{JobId, JobType, QueueName};

/// How often a job is tried when its submission does not say.
pub const ATTEMPTS_DEFAULT: u32 = 20;

/// The queue of a submission that names none.
pub const QUEUE_DEFAULT: &str = "default";

/// Where a job stands. A finished job never leaves its state, except by a retry by hand.
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
    /// Finished: given up on request.
    Cancelled,
    /// Finished: every attempt failed. Kept, countable, and retried by hand.
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
#[serde(deny_unknown_fields)]
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
    #[serde(deserialize_with = "super::schedule::time_or_text")]
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::api::schema::time_or_text))]
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

pub(crate) fn queue_default() -> QueueName {
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

    /// What tells two submissions with one id apart. Taken of what the client sent, never of what was
    /// made of it: a delay sent twice is the same content though it ends at another time. The trace is
    /// left out: it is another each time that a job is sent.
    pub(crate) fn content(&self) -> u64 {
        let mut hash = Hash::new(0);
        hash.text(self.queue.as_str());
        hash.text(self.job_type.as_str());
        hash.text(self.payload.as_str());
        hash.number(self.priority.cast_unsigned().into());
        for number in [self.run_at, self.delay_ms, self.max_attempts.map(u64::from)] {
            hash.number(number.map_or(0, |number| number.wrapping_add(1)));
        }
        for key in [&self.unique_key, &self.group] {
            hash.text(key.as_ref().map_or("", Key::as_str));
        }
        if let Some(backoff) = &self.backoff {
            backoff.hash(&mut hash);
        }
        hash.finish()
    }
}

/// A JSON value as text, on one line, shared rather than copied.
#[derive(Clone)]
pub struct Payload(Arc<RawValue>);

impl Payload {
    /// Takes any JSON text.
    pub fn new(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text.into()).map(Self::from)
    }

    /// Takes any value that can be written as JSON.
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self::from)
    }

    /// Reads the value.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// The text's length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.get().len()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }
}

impl From<Box<RawValue>> for Payload {
    fn from(value: Box<RawValue>) -> Self {
        let text = value.get();
        if !text.bytes().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return Self(Arc::from(value));
        }
        // The log has one command per line. Inside a JSON string a line end is always escaped, so a
        // bare one is white space between tokens.
        let line = text.replace(['\n', '\r'], " ");
        Self(Arc::from(
            RawValue::from_string(line).expect("white space for white space"),
        ))
    }
}

impl Default for Payload {
    fn default() -> Self {
        static NULL: LazyLock<Payload> =
            LazyLock::new(|| Payload::new("null").expect("a constant that is JSON"));
        NULL.clone()
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.as_str() == other.as_str()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A user's own word: a unique key, a group, a worker. Any text of 1 to 200 bytes without control
/// characters; it reaches no path and no query.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

/// A text that cannot be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a key must have 1 to 200 bytes and no control characters; this one {0}")]
pub struct KeyError(String);

impl Key {
    /// Checks a key.
    pub fn new(text: impl AsRef<str>) -> Result<Self, KeyError> {
        let text = text.as_ref();
        if text.is_empty() {
            Err(KeyError("is empty".to_owned()))
        } else if text.len() > 200 {
            Err(KeyError(format!("has {} bytes", text.len())))
        } else if let Some(character) = text.chars().find(|character| character.is_control()) {
            Err(KeyError(format!("contains {character:?}")))
        } else {
            Ok(Self(text.into()))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::new(text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &*self.0)
    }
}

/// Names one claim of one job: whoever holds it holds that attempt, and nobody holds it twice.
///
/// The number counts every claim ever made here, so no two attempts share one. The nonce keeps a token
/// that was guessed, or that is left over from a queue whose storage was wiped, from fitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// Counts the claims.
    pub number: u64,
    /// From the claim command's seed.
    pub nonce: u32,
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}-{:08x}", self.number, self.nonce)
    }
}

/// A text that is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a token is the text from the answer to the claim, such as 1f-0a1b2c3d")]
pub struct TokenError;

impl FromStr for Token {
    type Err = TokenError;
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let (number, nonce) = text.split_once('-').ok_or(TokenError)?;
        Ok(Self {
            number: u64::from_str_radix(number, 16).map_err(|_| TokenError)?,
            nonce: u32::from_str_radix(nonce, 16).map_err(|_| TokenError)?,
        })
    }
}

as_text!(Key, Token);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_keep_their_text_on_one_line() {
        let payload = Payload::new("{\n  \"n\": 1.00,\r\n \"s\": \"a\\nb\"}").unwrap();
        assert_eq!(payload.as_str(), "{   \"n\": 1.00,   \"s\": \"a\\nb\"}");
        assert!(Payload::new("{oops").is_err());
        let numbers = Payload::of(&[1, 2]).unwrap();
        assert_eq!(numbers.read::<Vec<u8>>().unwrap(), [1, 2]);
        assert!(
            Payload::new("\"a\nb\"").is_err(),
            "a bare line end in a string"
        );
    }

    #[test]
    fn a_submission_reads_back_and_says_nothing_twice() {
        let text = r#"{"type":"mail","payload":{"to":  "x"},"delay_ms":5}"#;
        let submission: Submission = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&submission).unwrap(), text);
        let error = serde_json::from_str::<Submission>(r#"{"type":"mail","priorty":3}"#);
        assert!(error.unwrap_err().to_string().contains("priorty"));
        let error = serde_json::from_str::<Submission>(r#"{"type":""}"#).unwrap_err();
        assert!(
            error.to_string().contains("the job type \"\" is empty"),
            "{error}"
        );
    }

    #[test]
    fn every_field_but_the_id_and_the_trace_is_content() {
        let plain = Submission::new(JobType::new("a").unwrap());
        let with = |change: fn(&mut Submission)| {
            let mut other = plain.clone();
            change(&mut other);
            other.content()
        };
        assert_eq!(
            plain.content(),
            with(|job| job.id = Some(JobId::new("x").unwrap()))
        );
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut traced = plain.clone();
        traced.traceparent = Some(parent.parse().unwrap());
        traced.tracestate = Some("a=1".parse().unwrap());
        assert_eq!(plain.content(), traced.content());
        let contents = [
            plain.content(),
            with(|job| job.queue = QueueName::new("q").unwrap()),
            with(|job| job.job_type = JobType::new("b").unwrap()),
            with(|job| job.payload = Payload::new("1").unwrap()),
            with(|job| job.priority = 1),
            with(|job| job.run_at = Some(0)),
            with(|job| job.delay_ms = Some(0)),
            with(|job| job.max_attempts = Some(1)),
            with(|job| job.unique_key = Some(Key::new("k").unwrap())),
            with(|job| job.group = Some(Key::new("k").unwrap())),
            with(|job| job.backoff = Some(Backoff::default())),
        ];
        let distinct: std::collections::BTreeSet<_> = contents.iter().collect();
        assert_eq!(distinct.len(), contents.len());
    }

    #[test]
    fn tokens_and_keys_read_back_as_written() {
        let token = Token {
            number: 31,
            nonce: 0x0a1b_2c3d,
        };
        assert_eq!(token.to_string(), "1f-0a1b2c3d");
        assert_eq!("1f-0a1b2c3d".parse(), Ok(token));
        assert_eq!("1f".parse::<Token>(), Err(TokenError));
        assert!(Key::new("user 42/é").is_ok());
        assert!(
            Key::new("a\u{7}")
                .unwrap_err()
                .to_string()
                .contains("'\\u{7}'")
        );
    }
}
