//! The verbs that run jobs and that put load on a broker.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::broker::AtServer;
use crate::times::parse_duration;

const WORKER_AFTER: &str = "\
The program gets the job's payload on standard input. Its environment has TENURE_JOB_ID,
TENURE_JOB_TYPE, TENURE_QUEUE, TENURE_ATTEMPT and TENURE_MAX_ATTEMPTS, and TRACEPARENT and
TRACESTATE if the job was submitted as part of a trace. It does not have the worker's own secrets:
tokens, TENURE_STORE and the headers of OTEL_EXPORTER_OTLP.

Exit code 0 completes the job. The last line that the program printed becomes the job's result if it
is JSON of at most 16 KiB; otherwise there is no result. Any other exit code fails the attempt, and
the last lines of standard error are kept with the job. Standard error is shown, standard output is
not.

When a job is cancelled, the program gets SIGTERM, and SIGKILL after --kill-after; so does
everything that it has started. If no heartbeat gets through, or the worker itself is stopped
(SIGSTOP), they get SIGTERM when a sixth of the lease is left, and SIGKILL just before it ends,
because another worker may get the job then. If the claim is lost earlier, they are killed at once.
If the worker is killed, its programs are killed too. A program must not put itself into the
background: when it exits, everything that it has started is killed.

On SIGTERM, SIGINT or SIGHUP the worker claims no more jobs and lets programs finish for up to
--drain; then it stops them and hands their jobs back. A second signal hands them back at once.

The worker may not be able to kill a process that runs as another user (sudo). It then says so,
shows it as the job's progress, and ends the job's claim only after that process has ended. A third
signal ends the worker anyway; after its lease the job runs again, even if that process still runs.

A cancelled job stays claimed until its program has ended: the next job of its group, or with its
unique key, waits for that. If a program cannot be started because the host is out of files,
processes or memory, its job is handed back and loses no attempt; the worker then claims fewer jobs
for a while. If the limit of open files is too low for --concurrency programs, fewer run at once.

Examples:
  tenure worker --type mail --exec './send-mail'
  tenure worker --type mail --type sms --queue bulk --concurrency 20 -- ./send --verbose
  tenure worker --type echo --exec cat

Exit codes:
  0 stopped as asked    2 could not start, or could not continue";

const BENCH_AFTER: &str = "\
Runs against a running broker, in a separate queue. At the end it completes the jobs that are left
and deletes all of them. A worker token may not delete: with one, the completed jobs stay there.
With --concurrency, each caller sends its next call when the last one is answered. With --rate,
calls start on time, however slow the broker is, and any delay counts as latency.

Workloads:
  submit  submit jobs
  work    submit, claim and complete jobs, with --workers callers claiming at once

Examples:
  tenure bench
  tenure bench --workload work --rate 500 --duration 30s
  tenure bench --concurrency 128 --batch 100 --json | jq .jobs_per_second

Exit codes:
  0 measured    1 measured, but some calls failed    2 could not measure";

/// `tenure worker`
#[derive(Debug, Args)]
#[command(after_help = WORKER_AFTER)]
#[command(group = clap::ArgGroup::new("program").required(true))]
pub(crate) struct Worker {
    /// Take jobs of this type; repeat it for more
    #[arg(long = "type", value_name = "TYPE", required = true)]
    pub(crate) types: Vec<String>,

    /// Take jobs from this queue; repeat it for more [default: every queue]
    #[arg(long = "queue", value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,

    /// The program to run for each job, as a shell command
    #[arg(long, value_name = "LINE", group = "program")]
    pub(crate) exec: Option<OsString>,

    /// How many programs run at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// How long the worker keeps a job without a heartbeat
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) lease: Duration,

    /// How long programs may keep running when the worker is asked to stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) drain: Duration,

    /// How long a program may take to stop after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) kill_after: Duration,

    /// The worker's name, shown with its jobs [default: host and process id]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) server: AtServer,

    /// The program to run for each job, and its arguments, without a shell
    #[arg(last = true, value_name = "CMD", group = "program")]
    pub(crate) command: Vec<OsString>,
}

/// What a benchmark does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    Submit,
    Work,
}

/// `tenure bench`
#[derive(Debug, Args)]
#[command(after_help = BENCH_AFTER)]
pub(crate) struct Bench {
    /// What to do
    #[arg(long, value_name = "NAME", default_value = "submit")]
    pub(crate) workload: Workload,

    /// How many callers submit, one call at a time each
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// Start this many submits per second, however long they take
    #[arg(long, value_name = "N", conflicts_with = "concurrency")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,

    /// With --workload work: how many callers claim at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) workers: u32,

    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    /// How many jobs are in each submit
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) batch: u32,

    /// The size of each job's payload
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=200_000))]
    pub(crate) payload_bytes: u32,

    /// Leave the jobs in the queue as they are
    #[arg(long)]
    pub(crate) keep: bool,

    /// Print one JSON document at the end, instead of text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}
