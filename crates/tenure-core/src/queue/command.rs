//! Commands: what the log holds, one JSON object per line.
//!
//! A command says what was asked and brings along everything that a replay could not repeat: the time,
//! ids, the nonce of tokens, the slots of a schedule. It does not say what came of it; that is decided
//! when it is applied, by the state alone.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tenure_api::apart::Apart;
use tenure_api::strict;

use super::claim::ClaimKey;
use super::schedule::{Firing, Resumption};
use super::{
    Claim, ClaimRequest, Completion, Failure, KeepIds, QueueOptions, ScheduleSpec, Settings,
    Submission,
};
use crate::{JobId, QueueName, ScheduleName};

/// One request of one caller, at a time of the broker's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Milliseconds since 1970 on the clock of the broker that took the request. Time in the queue goes back by
    /// [`Action::SetTime`] only: an earlier time than the last one counts as the last one.
    pub at: u64,
    /// What is asked.
    #[serde(rename = "do")]
    pub action: Action,
}

impl Command {
    /// Reads a record of the log. One with a field that this version does not know is refused: what it says would
    /// be lost.
    pub fn from_record(record: &[u8]) -> serde_json::Result<Self> {
        strict::from_slice(record)
    }
}

/// What is asked. Lists are batches: each item has an answer, in order, and one item's
/// failure is none of the others'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Enqueue jobs.
    Submit(Vec<Submission>),
    /// Take the jobs whose turn it is. Answered by as many claims as there are, possibly none.
    Claim(LoggedClaim),
    /// End claims with success.
    Complete(Vec<Completion>),
    /// End claims without success: the jobs are tried again, or are dead.
    Fail(Vec<Failure>),
    /// End claims whose lease ran out. To the job this is a failed attempt.
    Expire(Vec<Claim>),
    /// Hand claims back as if they had never been made: the attempt is not counted, and the jobs are ready
    /// again. For a worker that stops before it starts.
    Release(Vec<Claim>),
    /// Hand claims back whose answer reached nobody, unless they were asked for again since: then somebody may have
    /// been answered. Only under [`Rules::THIRD`](super::Rules::THIRD) and later ones.
    Abandon(Vec<Claim>),
    /// Give jobs up. Running ones are only marked; the worker hears it with its next heartbeat.
    Cancel(Vec<JobId>),
    /// Run dead or cancelled jobs again from the first attempt, or waiting ones now.
    Retry(Vec<JobId>),
    /// Move jobs that neither run nor are completed to another queue. Only under [`Rules::FOURTH`](super::Rules::FOURTH)
    /// and later ones.
    Move(Vec<JobId>, QueueName),
    /// Forget finished jobs before their time.
    Forget(Vec<JobId>),
    /// Set a queue's limits, all of them.
    SetQueue(QueueName, QueueOptions),
    /// Let no job of a queue be claimed. What runs goes on.
    Pause(QueueName),
    /// Let jobs be claimed again.
    Resume(QueueName),
    /// Create or replace a schedule. [`Schedule::command`](super::schedule::Schedule::command) makes it.
    SetSchedule(ScheduleName, Box<ScheduleSpec>, Option<u64>),
    /// Delete a schedule. Its jobs stay.
    DeleteSchedule(ScheduleName),
    /// Let a schedule make no jobs until it is resumed. Only under [`Rules::THIRD`](super::Rules::THIRD) and later ones.
    PauseSchedule(ScheduleName),
    /// Let a paused schedule make jobs again. [`Schedule::resumption`](super::schedule::Schedule::resumption) makes it.
    ResumeSchedule(Resumption),
    /// Enqueue what schedules have due. [`Due::plan`](super::Due::plan) makes it.
    Fire(Vec<Firing>),
    /// Set what holds for all queues.
    Configure(#[serde(serialize_with = "stored_settings")] Settings),
    /// Set the queue's time, back as well. Only under [`Rules::SECOND`](super::Rules::SECOND) and later ones.
    SetTime(u64),
    /// Nothing but the time: scheduled jobs that are due become ready, and what retention no longer
    /// keeps is forgotten. Every other command does so too, in smaller portions.
    Tick,
}

/// Settings as the log and the snapshot have them. `ids` came later than the others: at its default it is left out, so
/// that versions that do not know it read what is stored.
pub(super) fn stored_settings<S: Serializer>(
    settings: &Settings,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Settings {
        completed,
        cancelled,
        dead,
        jobs_max,
        ids,
    } = settings;
    let ids = Some(ids).filter(|ids| **ids != KeepIds::default());
    let mut fields = serializer.serialize_struct("Settings", 4 + usize::from(ids.is_some()))?;
    fields.serialize_field("completed", completed)?;
    fields.serialize_field("cancelled", cancelled)?;
    fields.serialize_field("dead", dead)?;
    fields.serialize_field("jobs_max", jobs_max)?;
    match ids {
        Some(ids) => fields.serialize_field("ids", ids)?,
        None => fields.skip_field("ids")?,
    }
    fields.end()
}

/// A claim as the log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoggedClaim {
    /// What a worker would take. How long it waits is none of the queue's business.
    #[serde(flatten)]
    pub request: ClaimRequest,
    /// Anything random: goes into the tokens.
    pub nonce: u32,
    /// What tells this claim from others of its worker: asked for again, it is the same one. Only under
    /// [`Rules::THIRD`](super::Rules::THIRD) and later ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<ClaimKey>,
}

// By hand: flattened by serde, every claim of the log would be read into a tree first.
impl<'de> Deserialize<'de> for LoggedClaim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = LoggedClaim;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a claim")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<LoggedClaim, A::Error> {
        let mut nonce = Apart::new(fields, "nonce");
        let mut key = Apart::new(&mut nonce, "key");
        let request = ClaimRequest::deserialize(MapAccessDeserializer::new(&mut key))?;
        let key = key.value;
        Ok(LoggedClaim {
            request,
            nonce: nonce
                .value
                .ok_or_else(|| A::Error::missing_field("nonce"))?,
            key,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn reads_back(line: &str) {
        let command = Command::from_record(line.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&command).unwrap(), line);
    }

    #[test]
    fn every_command_is_one_readable_line() {
        for line in [
            r#"{"at":1,"do":{"submit":[{"id":"a","type":"mail","payload":{"n":1.0}}]}}"#,
            r#"{"at":1,"do":{"submit":[{"queue":"q","type":"mail","priority":-3,"run_at":9,"max_attempts":2,"unique_key":"u v","group":"g","backoff":{"first_ms":1,"factor":1,"max_ms":1,"jitter_percent":0}}]}}"#,
            r#"{"at":1,"do":{"submit":[{"type":"mail","traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tracestate":"a=1"}]}}"#,
            r#"{"at":1,"do":{"claim":{"worker":"w","queues":["q"],"types":["mail"],"max":9,"lease_ms":30000,"nonce":7}}}"#,
            r#"{"at":1,"do":{"claim":{"worker":"w","max":9,"lease_ms":30000,"nonce":7,"key":18446744073709551615}}}"#,
            r#"{"at":1,"do":{"complete":[{"id":"a","token":"1-00000007","result":[true]}]}}"#,
            r#"{"at":1,"do":{"fail":[{"id":"a","token":"1-00000007","error":"no","retry_in_ms":0,"permanent":true}]}}"#,
            r#"{"at":1,"do":{"expire":[{"id":"a","token":"1-00000007"}]}}"#,
            r#"{"at":1,"do":{"release":[{"id":"a","token":"1-00000007"}]}}"#,
            r#"{"at":1,"do":{"abandon":[{"id":"a","token":"1-00000007"}]}}"#,
            r#"{"at":1,"do":{"cancel":["a","b"]}}"#,
            r#"{"at":1,"do":{"move":[["a","b"],"slow"]}}"#,
            r#"{"at":1,"do":{"set_queue":["q",{"concurrency":2,"rate":{"jobs":5,"period_ms":1000}}]}}"#,
            r#"{"at":1,"do":{"set_schedule":["s",{"cron":"0 3 * * *","timezone":"Europe/Berlin","job":{"type":"mail","payload":[1]},"missed":"once"},7]}}"#,
            r#"{"at":1,"do":{"fire":[{"schedule":"s","revision":3,"due":7,"slots":[7],"next":9}]}}"#,
            r#"{"at":1,"do":{"pause_schedule":"s"}}"#,
            r#"{"at":1,"do":{"resume_schedule":{"schedule":"s","revision":3,"next":9}}}"#,
            r#"{"at":1,"do":{"configure":{"completed":{"age_ms":1,"count":2},"cancelled":{},"dead":{},"jobs_max":9}}}"#,
            r#"{"at":1,"do":{"configure":{"completed":{},"cancelled":{},"dead":{},"jobs_max":9,"ids":{"age_ms":5,"bytes_max":6}}}}"#,
            r#"{"at":1,"do":{"set_time":1767225600000}}"#,
            r#"{"at":1,"do":"tick"}"#,
        ] {
            reads_back(line);
        }
    }

    #[test]
    fn unknown_options_are_named() {
        for (line, field) in [
            (r#"{"at":1,"to":2,"do":"tick"}"#, "to"),
            (
                r#"{"at":1,"do":{"set_queue":["q",{"concurency":2}]}}"#,
                "concurency",
            ),
            (
                r#"{"at":1,"do":{"submit":[{"type":"a","backoff":{"new":2}}]}}"#,
                "new",
            ),
            (
                r#"{"at":1,"do":{"claim":{"worker":"w","max":9,"lease_ms":9,"nonce":7,"new":1}}}"#,
                "new",
            ),
            (
                r#"{"at":1,"do":{"set_schedule":["s",{"cron":"@daily","job":{"type":"a","new":1}},7]}}"#,
                "new",
            ),
        ] {
            let error = Command::from_record(line.as_bytes()).unwrap_err();
            let expected = format!("unknown field `{field}`");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
