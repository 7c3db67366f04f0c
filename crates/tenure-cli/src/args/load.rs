//! The verbs that work jobs off, and that make a server sweat.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::broker::AtServer;
use crate::times::parse_duration;

const WORKER_AFTER: &str = "\
The program gets the job's payload on its standard input, and in its environment TENURE_JOB_ID,
TENURE_JOB_TYPE, TENURE_QUEUE, TENURE_ATTEMPT and TENURE_MAX_ATTEMPTS, and TRACEPARENT and
TRACESTATE if it was submitted as part of a trace. The worker's own secrets are not there: tokens,
TENURE_STORE and the headers of OTEL_EXPORTER_OTLP. If it exits with 0 the job is completed; the
last line that it printed is the job's result if it is JSON of at most 16 KiB, and nothing is
otherwise. With any other exit code the attempt has failed, and the last lines of its standard
error are kept with the job. Its standard error is shown, its standard output is not.

When a job is cancelled or its claim is lost, the program and its process group get SIGTERM, and
SIGKILL after --kill-after; so does whatever the program has started. SIGTERM, SIGINT and SIGHUP
make the worker claim no more and let programs finish for as long as --drain says; then they are
stopped and their jobs handed back. A second signal hands them back at once. If the worker is
killed, so are the programs that it runs. A program must not go into the background by itself: when
it exits, all that it has started is killed. Only what runs as another user (sudo) may not be
killed: the worker says so, shows it as the job's progress, and does not hand the job back before
it has ended. A third signal ends the worker all the same.

Examples:
  tenure worker --type mail --exec './send-mail'
  tenure worker --type mail --type sms --queue bulk --concurrency 20 -- ./send --verbose
  tenure worker --type echo --exec cat

Exit codes:
  0 asked to stop, and stopped    2 it could not work";

const BENCH_AFTER: &str = "\
Runs against a server that is there, in a queue of its own, and works off what is left at the end.
With --concurrency every caller sends its next call when the last is answered; with --rate calls
start at their times whatever the server does, and how late they are counts as latency.

Workloads:
  submit  submit jobs
  work    submit jobs, claim and complete them, with --workers claiming at once

Examples:
  tenure bench
  tenure bench --workload work --rate 500 --duration 30s
  tenure bench --concurrency 128 --batch 100 --json | jq .jobs_per_second

Exit codes:
  0 measured    1 measured, but some calls failed    2 it could not be measured";

/// `tenure worker`
#[derive(Debug, Args)]
#[command(after_help = WORKER_AFTER)]
#[command(group = clap::ArgGroup::new("program").required(true))]
pub(crate) struct Worker {
    /// Take jobs of this type; may be given more than once
    #[arg(long = "type", value_name = "TYPE", required = true)]
    pub(crate) types: Vec<String>,

    /// Take jobs of this queue; may be given more than once [default: of every queue]
    #[arg(long = "queue", value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,

    /// The program to run for each job, as a line for the shell
    #[arg(long, value_name = "LINE", group = "program")]
    pub(crate) exec: Option<OsString>,

    /// How many programs run at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// How long a job is this worker's without a sign of life
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) lease: Duration,

    /// How long programs may go on when the worker is asked to stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) drain: Duration,

    /// How long a program may take to stop after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) kill_after: Duration,

    /// What the server shows for its jobs [default: host and process]
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

    /// Start this many submits per second, whatever becomes of them
    #[arg(long, value_name = "N", conflicts_with = "concurrency")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,

    /// How many callers claim at once, with --workload work
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

    /// How large the payload of each job is
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=200_000))]
    pub(crate) payload_bytes: u32,

    /// Leave the jobs that were not worked off where they are
    #[arg(long)]
    pub(crate) keep: bool,

    /// Print one JSON document, at the end, instead of text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}
