//! `tenure job`: what can be typed about jobs.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use tenure_client::NewJob;

use super::AtServer;
use crate::times::parse_duration;

const JOB_AFTER: &str = "\
Examples:
  tenure job submit mail '{\"to\":\"you@example.com\"}'
  tenure job list --state dead
  tenure job submit --help";

const SUBMIT_AFTER: &str = "\
Prints the id of the job once the job is durable. Submitting again with the same --id does not add
a second job; without --id every call adds one.

With --batch, jobs are read from standard input, one JSON object per line, with the fields of the
HTTP API: {\"type\":\"mail\",\"payload\":{…},\"queue\":\"bulk\"}.

Examples:
  tenure job submit mail '{\"to\":\"you@example.com\"}' --queue bulk --delay 10m
  tenure job submit report --id report-2026-02 --wait 5m
  jq -c '{type:\"mail\",payload:.}' people.ndjson | tenure job submit --batch

Exit codes:
  0 submitted    1 refused, or with --wait: did not complete    2 could not determine";

const GET_AFTER: &str = "\
Examples:
  tenure job get 3f0c5d34-8a0e-4c59-9f6e-6f1a2d9d3b11
  tenure job get report-2026-02 --json | jq .result

Exit codes:
  0 found    1 no such job    2 could not determine";

const LIST_AFTER: &str = "\
Examples:
  tenure job list --state dead --queue bulk
  tenure job list --search you@example.com
  tenure job list --oldest --limit 1000 --json | jq -r '.jobs[].id'

Exit codes:
  0 listed, even if there are none    2 could not determine";

const CANCEL_AFTER: &str = "\
A running job is only marked; its worker stops it at its next heartbeat.

Examples:
  tenure job cancel report-2026-02

Exit codes:
  0 all are cancelled    1 some could not be cancelled    2 could not determine";

const DELETE_AFTER: &str = "\
Only jobs that are completed, cancelled or dead can be deleted, with their payloads and results. The
id of a job that finished less than an hour ago is kept for the rest of that hour, so that a
repeated submit does not run it again.

Examples:
  tenure job delete report-2026-02
  tenure job list --state dead --json | jq -r '.jobs[].id' | xargs tenure job delete

Exit codes:
  0 all are deleted    1 some could not be deleted    2 could not determine";

const MOVE_AFTER: &str = "\
In the other queue each job keeps its turn: by priority, and then by when it was submitted. Jobs
that are running or completed cannot be moved. Dead and cancelled jobs can; they do not run until
they are retried.

Examples:
  tenure job move report-2026-02 --to slow
  tenure job list --state dead --json | jq -r '.jobs[].id' | xargs tenure job move --to slow

Exit codes:
  0 all are moved    1 some could not be moved    2 could not determine";

const RETRY_AFTER: &str = "\
Dead and cancelled jobs run again from their first attempt. Scheduled jobs run now.

Examples:
  tenure job retry report-2026-02
  tenure job retry --state dead --queue bulk --limit 1000

Exit codes:
  0 all run again    1 some cannot    2 could not determine";

/// `tenure job`
#[derive(Debug, Subcommand)]
#[command(after_help = JOB_AFTER, disable_help_subcommand = true)]
pub(crate) enum Job {
    /// Submit a job
    Submit(Submit),
    /// Show a job
    Get(Get),
    /// List jobs
    List(List),
    /// Cancel jobs
    Cancel(Cancel),
    /// Run dead or cancelled jobs again
    Retry(Retry),
    /// Move jobs to another queue
    Move(Move),
    /// Delete finished jobs
    Delete(Delete),
}

/// What a job is made of, besides its type and payload.
#[derive(Debug, Args)]
pub(crate) struct JobOptions {
    /// The queue to put the job in
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,

    /// From -128 to 127: higher priorities run first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i8>,

    /// How many attempts before the job is dead [default: 20]
    #[arg(long, value_name = "N")]
    pub(crate) max_attempts: Option<u32>,

    /// Refuse another job with this key until this one has finished
    #[arg(long, value_name = "KEY")]
    pub(crate) unique_key: Option<String>,

    /// Run jobs with this key one at a time, in order
    #[arg(long, value_name = "KEY")]
    pub(crate) group: Option<String>,
}

impl JobOptions {
    /// A job with these options.
    pub(crate) fn apply(&self, mut job: NewJob) -> NewJob {
        if let Some(queue) = &self.queue {
            job = job.queue(queue);
        }
        if let Some(priority) = self.priority {
            job = job.priority(priority);
        }
        if let Some(attempts) = self.max_attempts {
            job = job.max_attempts(attempts);
        }
        if let Some(key) = &self.unique_key {
            job = job.unique_key(key);
        }
        if let Some(group) = &self.group {
            job = job.group(group);
        }
        job
    }
}

/// `tenure job submit`
#[derive(Debug, Args)]
#[command(after_help = SUBMIT_AFTER)]
pub(crate) struct Submit {
    /// The type of the job: workers choose which types they take
    #[arg(
        value_name = "TYPE",
        required_unless_present = "batch",
        conflicts_with = "batch"
    )]
    pub(crate) job_type: Option<String>,

    /// Any JSON value, or - to read it from standard input
    #[arg(value_name = "PAYLOAD")]
    pub(crate) payload: Option<String>,

    /// The id of the job [default: a random one]
    #[arg(long, value_name = "ID", conflicts_with = "batch")]
    pub(crate) id: Option<String>,

    #[command(flatten)]
    pub(crate) options: JobOptions,

    /// Run the job after this time, not before
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "run_at")]
    pub(crate) delay: Option<Duration>,

    /// Run the job at this time, not before: 2026-02-28T09:05:03Z
    #[arg(long, value_name = "TIME")]
    pub(crate) run_at: Option<String>,

    /// The span that the job belongs to, in W3C Trace Context format [default: $TRACEPARENT]
    #[arg(long, value_name = "SPAN")]
    pub(crate) traceparent: Option<String>,

    /// Wait until the job has finished, but no longer than this
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "batch")]
    pub(crate) wait: Option<Duration>,

    /// Read jobs from standard input, one JSON object per line
    #[arg(long)]
    #[arg(conflicts_with_all = ["queue", "priority", "max_attempts", "unique_key", "group", "delay", "run_at"])]
    pub(crate) batch: bool,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}

/// `tenure job get`
#[derive(Debug, Args)]
#[command(after_help = GET_AFTER)]
pub(crate) struct Get {
    /// The job
    #[arg(value_name = "ID")]
    pub(crate) id: String,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}

/// The states of a job.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum StateName {
    Scheduled,
    Ready,
    Running,
    Completed,
    Cancelled,
    Dead,
}

/// Which jobs.
#[derive(Debug, Args)]
pub(crate) struct JobFilter {
    /// Only jobs in this state
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<StateName>,

    /// Only jobs in this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,

    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) job_type: Option<String>,
}

/// `tenure job list`
#[derive(Debug, Args)]
#[command(after_help = LIST_AFTER)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) filter: JobFilter,

    /// Only jobs with this text in their id, type, keys, worker, error, payload or result
    #[arg(long, value_name = "TEXT")]
    pub(crate) search: Option<String>,

    /// How many jobs to show at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,

    /// Show the oldest first, not the newest
    #[arg(long)]
    pub(crate) oldest: bool,

    /// Start where another list ended: its "next"
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u64>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}

/// Some jobs by their ids.
#[derive(Debug, Args)]
pub(crate) struct NamedJobs {
    /// The jobs
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}

/// `tenure job cancel`
#[derive(Debug, Args)]
#[command(after_help = CANCEL_AFTER)]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(crate) jobs: NamedJobs,
}

/// `tenure job delete`
#[derive(Debug, Args)]
#[command(after_help = DELETE_AFTER)]
pub(crate) struct Delete {
    #[command(flatten)]
    pub(crate) jobs: NamedJobs,
}

/// `tenure job move`
#[derive(Debug, Args)]
#[command(after_help = MOVE_AFTER)]
pub(crate) struct Move {
    /// The queue to move them to
    #[arg(long = "to", value_name = "QUEUE")]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) jobs: NamedJobs,
}

/// `tenure job retry`
#[derive(Debug, Args)]
#[command(after_help = RETRY_AFTER)]
pub(crate) struct Retry {
    /// The jobs
    #[arg(value_name = "ID", required_unless_present = "state")]
    #[arg(conflicts_with_all = ["state", "queue", "job_type", "limit"])]
    pub(crate) ids: Vec<String>,

    #[command(flatten)]
    pub(crate) filter: JobFilter,

    /// With --state: how many jobs to retry, oldest first [default: 100]
    #[arg(long, value_name = "N", requires = "state")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: Option<u32>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}
