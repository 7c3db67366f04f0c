//! `tenure job`: submit, show and change jobs.

use std::process::ExitCode;

use tenure_client::{JobType, QueueName, State, api};

use crate::args::{Job, JobFilter, StateName};
use crate::output::{printable, table};
use crate::times;
use tenure::core::Wall;

mod cancel;
mod get;
mod list;
mod moving;
mod retry;
mod submit;

pub(crate) async fn run(verb: Job) -> anyhow::Result<ExitCode> {
    match verb {
        Job::Submit(arguments) => submit::run(arguments).await,
        Job::Get(arguments) => get::run(arguments).await,
        Job::List(arguments) => list::run(arguments).await,
        Job::Cancel(arguments) => cancel::run(arguments).await,
        Job::Retry(arguments) => retry::run(arguments).await,
        Job::Move(arguments) => moving::run(arguments).await,
        Job::Delete(arguments) => cancel::delete(arguments).await,
    }
}

impl From<StateName> for State {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Scheduled => State::Scheduled,
            StateName::Ready => State::Ready,
            StateName::Running => State::Running,
            StateName::Completed => State::Completed,
            StateName::Cancelled => State::Cancelled,
            StateName::Dead => State::Dead,
        }
    }
}

impl JobFilter {
    fn names(&self) -> anyhow::Result<(Option<QueueName>, Option<JobType>)> {
        let queue = self.queue.as_ref().map(QueueName::new).transpose()?;
        let job_type = self.job_type.as_ref().map(JobType::new).transpose()?;
        Ok((queue, job_type))
    }
}

/// Everything about a job, for people.
pub(crate) fn text(job: &api::Job) -> String {
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
    let time = |at: u64| {
        format!(
            "{}, {}",
            times::rfc3339(Wall(at)),
            times::distance(Wall(at))
        )
    };
    row("id", job.id.to_string());
    row("type", job.job_type.to_string());
    row("queue", job.queue.to_string());
    row("state", state(job));
    if job.remnant {
        row(
            "remnant",
            "the job was deleted; only this is left of it".to_owned(),
        );
    } else {
        let attempts = format!("{} of {}", job.attempt, job.max_attempts);
        row("attempts", attempts);
    }
    if job.priority != 0 {
        row("priority", job.priority.to_string());
    }
    if !job.remnant {
        row("submitted", time(job.created_at));
    }
    if job.state == State::Scheduled {
        row("runs", time(job.run_at));
    } else if job.state != State::Ready {
        row(&job.state.to_string(), time(job.changed_at));
    }
    let words = [
        ("worker", job.worker.as_ref().map(ToString::to_string)),
        (
            "unique key",
            job.unique_key.as_ref().map(ToString::to_string),
        ),
        ("group", job.group.as_ref().map(ToString::to_string)),
        (
            "traceparent",
            job.traceparent.as_ref().map(ToString::to_string),
        ),
        (
            "tracestate",
            job.tracestate.as_ref().map(ToString::to_string),
        ),
        (
            "progress",
            job.progress.as_ref().map(|value| value.as_str().to_owned()),
        ),
        (
            "result",
            job.result.as_ref().map(|value| value.as_str().to_owned()),
        ),
    ];
    // A stack trace is shown line by line.
    let mut name = "error";
    for line in job.error.iter().flat_map(|error| error.lines()) {
        let indent = line.len() - line.trim_start().len();
        row(name, " ".repeat(indent) + &printable(line));
        name = "";
    }
    for (name, value) in words {
        if let Some(value) = value {
            row(name, printable(&value));
        }
    }
    if !job.remnant {
        row("payload", printable(job.payload.as_str()));
    }
    table(&rows)
}

/// The state, with its details.
fn state(job: &api::Job) -> String {
    match job.state {
        State::Ready if job.blocked => "ready, behind others of its group".to_owned(),
        State::Running if job.cancel_requested => "running, cancellation requested".to_owned(),
        state => state.to_string(),
    }
}
