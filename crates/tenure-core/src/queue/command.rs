//! Commands: what the log holds, one JSON object per line.
//!
//! A command says what was asked and brings along everything that a replay could not repeat: the time,
//! ids, the nonce of tokens, the slots of a schedule. It does not say what came of it; that is decided
//! when it is applied, by the state alone.

use serde::{Deserialize, Serialize};

use super::job::{Key, Payload, Submission, Token};
use super::limits::{QueueOptions, Settings};
use super::schedule::{Firing, ScheduleSpec};
use crate::{JobId, JobType, QueueName, ScheduleName};

/// One request of one caller, at a time of the broker's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Milliseconds since 1970 on the clock of the broker that took the request. Time in the queue goes back by
    /// [`Action::SetTime`] only: an earlier time than the last one counts as the last one.
    pub at: u64,
    /// What is asked.
    #[serde(rename = "do")]
    pub action: Action,
}

/// What is asked. Lists are batches: each item is answered by one event, in order, and one item's
/// failure is none of the others'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Enqueue jobs.
    Submit(Vec<Submission>),
    /// Take the jobs whose turn it is. Answered by as many claims as there are, possibly none.
    Claim(ClaimRequest),
    /// End claims with success.
    Complete(Vec<Completion>),
    /// End claims without success: the jobs are tried again, or are dead.
    Fail(Vec<Failure>),
    /// End claims whose lease ran out. To the job this is a failed attempt.
    Expire(Vec<Claim>),
    /// Hand claims back as if they had never been made: the attempt is not counted, and the jobs are ready
    /// again. For a worker that stops before it starts, and for claims whose answer reached nobody.
    Release(Vec<Claim>),
    /// Give jobs up. Running ones are only marked; the worker hears it with its next heartbeat.
    Cancel(Vec<JobId>),
    /// Run dead or cancelled jobs again from the first attempt, or waiting ones now.
    Retry(Vec<JobId>),
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
    /// Enqueue what schedules have due. [`Due::plan`](super::Due::plan) makes it.
    Fire(Vec<Firing>),
    /// Set what holds for all queues.
    Configure(Settings),
    /// Set the queue's time, back as well. Only under [`Rules::SECOND`](super::Rules::SECOND) and later ones.
    SetTime(u64),
    /// Nothing but the time: scheduled jobs that are due become ready, and what retention no longer
    /// keeps is forgotten. Every other command does so too, in smaller portions.
    Tick,
}

impl Action {
    /// How many items it has: at least so many events answer it, but for a claim.
    pub(crate) const fn items(&self) -> usize {
        match self {
            Action::Submit(items) => items.len(),
            Action::Complete(items) => items.len(),
            Action::Fail(items) => items.len(),
            Action::Expire(items) | Action::Release(items) => items.len(),
            Action::Cancel(items) | Action::Retry(items) | Action::Forget(items) => items.len(),
            Action::Fire(items) => items.len(),
            Action::Tick => 0,
            _ => 1,
        }
    }
}

/// What a worker would take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Who asks; shown to people.
    pub worker: Key,
    /// From these queues; from every queue if empty. Their order means nothing: priority, then the
    /// order of the log decides across all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueName>,
    /// Of these types; of every type if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<JobType>,
    /// At most this many jobs.
    pub max: u32,
    /// How long each claim lasts without a heartbeat.
    pub lease_ms: u32,
    /// Anything random: goes into the tokens.
    pub nonce: u32,
}

/// One claim of one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The job.
    pub id: JobId,
    /// What the claim was answered with.
    pub token: Token,
}

/// A claim that ends with success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// The job.
    pub id: JobId,
    /// What the claim was answered with.
    pub token: Token,
    /// A small JSON value, kept as long as the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
}

/// A claim that ends without success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The job.
    pub id: JobId,
    /// What the claim was answered with.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn reads_back(line: &str) {
        let command: Command = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&command).unwrap(), line);
    }

    #[test]
    fn every_command_is_one_readable_line() {
        for line in [
            r#"{"at":1,"do":{"submit":[{"id":"a","type":"mail","payload":{"n":1.0}}]}}"#,
            r#"{"at":1,"do":{"submit":[{"queue":"q","type":"mail","priority":-3,"run_at":9,"max_attempts":2,"unique_key":"u v","group":"g","backoff":{"first_ms":1,"factor":1,"max_ms":1,"jitter_percent":0}}]}}"#,
            r#"{"at":1,"do":{"submit":[{"type":"mail","traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tracestate":"a=1"}]}}"#,
            r#"{"at":1,"do":{"claim":{"worker":"w","queues":["q"],"types":["mail"],"max":9,"lease_ms":30000,"nonce":7}}}"#,
            r#"{"at":1,"do":{"complete":[{"id":"a","token":"1-00000007","result":[true]}]}}"#,
            r#"{"at":1,"do":{"fail":[{"id":"a","token":"1-00000007","error":"no","retry_in_ms":0,"permanent":true}]}}"#,
            r#"{"at":1,"do":{"expire":[{"id":"a","token":"1-00000007"}]}}"#,
            r#"{"at":1,"do":{"release":[{"id":"a","token":"1-00000007"}]}}"#,
            r#"{"at":1,"do":{"cancel":["a","b"]}}"#,
            r#"{"at":1,"do":{"set_queue":["q",{"concurrency":2,"rate":{"jobs":5,"period_ms":1000}}]}}"#,
            r#"{"at":1,"do":{"set_schedule":["s",{"cron":"0 3 * * *","timezone":"Europe/Berlin","job":{"type":"mail","payload":[1]},"missed":"once"},7]}}"#,
            r#"{"at":1,"do":{"fire":[{"schedule":"s","revision":3,"due":7,"slots":[7],"next":9}]}}"#,
            r#"{"at":1,"do":{"set_time":1767225600000}}"#,
            r#"{"at":1,"do":"tick"}"#,
        ] {
            reads_back(line);
        }
    }

    #[test]
    fn unknown_options_are_named() {
        let line = r#"{"at":1,"do":{"set_queue":["q",{"concurency":2}]}}"#;
        let error = serde_json::from_str::<Command>(line).unwrap_err();
        assert!(error.to_string().contains("concurency"), "{error}");
    }
}
