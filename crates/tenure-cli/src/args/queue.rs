//! `tenure queue`: what can be typed about queues.

use clap::{Args, Subcommand};

use super::AskServer;

const QUEUE_AFTER: &str = "\
Examples:
  tenure queue list
  tenure queue pause bulk
  tenure queue set bulk --concurrency 5 --rate 100/1m";

const LIST_QUEUES_AFTER: &str = "\
Examples:
  tenure queue list
  tenure queue list --json | jq '.queues[] | select(.counts.dead > 0) | .name'

Exit codes:
  0 listed, even if there are none    2 could not determine";

const PAUSE_AFTER: &str = "\
Running jobs continue; new jobs wait.

Examples:
  tenure queue pause bulk

Exit codes:
  0 paused    2 could not determine";

const RESUME_AFTER: &str = "\
Examples:
  tenure queue resume bulk

Exit codes:
  0 resumed    2 could not determine";

const SET_QUEUE_AFTER: &str = "\
Limits that you do not name stay as they are.

Examples:
  tenure queue set bulk --concurrency 5
  tenure queue set bulk --rate 100/1m --burst 10
  tenure queue set bulk --no-rate

Exit codes:
  0 set    1 refused    2 could not determine";

const TIME_AFTER: &str = "\
Delays, schedules and retention use the queue's time. It follows the clock of the leading broker's
host, but never goes back unless you set it, and does not follow a clock that jumps far ahead. If
the queue's time is wrong after all, correct the clock and then set the time. It applies to all
queues. Jobs that were delayed meanwhile wait just as long from now on. Claims are not changed.

Examples:
  tenure queue time
  tenure queue time --set now
  tenure queue time --set 2026-03-01T12:00:00Z

Exit codes:
  0 shown, or set    1 refused    2 could not determine";

/// `tenure queue time`
#[derive(Debug, Args)]
#[command(after_help = TIME_AFTER)]
pub(crate) struct QueueTime {
    /// Set the time: now (the broker's clock), an RFC 3339 time, or milliseconds since 1970
    #[arg(long, value_name = "TIME")]
    pub(crate) set: Option<String>,

    #[command(flatten)]
    pub(crate) ask: AskServer,
}

/// `tenure queue`
#[derive(Debug, Subcommand)]
#[command(after_help = QUEUE_AFTER, disable_help_subcommand = true)]
pub(crate) enum Queue {
    /// List queues with their numbers of jobs
    #[command(after_help = LIST_QUEUES_AFTER)]
    List(AskServer),
    /// Stop handing out the jobs of a queue
    #[command(after_help = PAUSE_AFTER)]
    Pause(OneQueue),
    /// Hand out the jobs of a paused queue again
    #[command(after_help = RESUME_AFTER)]
    Resume(OneQueue),
    /// Set the limits of a queue
    Set(SetQueue),
    /// Show the queue's time, or set it after a clock was wrong
    Time(QueueTime),
}

/// `tenure queue pause` and `resume`
#[derive(Debug, Args)]
pub(crate) struct OneQueue {
    /// The queue
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) ask: AskServer,
}

/// `tenure queue set`
#[derive(Debug, Args)]
#[command(after_help = SET_QUEUE_AFTER)]
#[command(group = clap::ArgGroup::new("limits").required(true).multiple(true))]
pub(crate) struct SetQueue {
    /// The queue
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: String,

    /// How many of its jobs may run at once
    #[arg(long, value_name = "N", group = "limits")]
    pub(crate) concurrency: Option<u32>,

    /// Let any number of its jobs run at once
    #[arg(long, group = "limits", conflicts_with = "concurrency")]
    pub(crate) no_concurrency: bool,

    /// How many of its jobs may start per time: 100/1m
    #[arg(long, value_name = "JOBS/TIME", group = "limits")]
    pub(crate) rate: Option<String>,

    /// With --rate: how many may start at once after a quiet time [default: JOBS]
    #[arg(long, value_name = "N", requires = "rate")]
    pub(crate) burst: Option<u32>,

    /// Let its jobs start as fast as they can
    #[arg(long, group = "limits", conflicts_with = "rate")]
    pub(crate) no_rate: bool,

    #[command(flatten)]
    pub(crate) ask: AskServer,
}
