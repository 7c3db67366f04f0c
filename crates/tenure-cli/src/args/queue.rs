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
  0 here they are, if there are any    2 it could not be found out";

const PAUSE_AFTER: &str = "\
What runs goes on; what is submitted waits.

Examples:
  tenure queue pause bulk

Exit codes:
  0 it is paused    2 it could not be found out";

const RESUME_AFTER: &str = "\
Examples:
  tenure queue resume bulk

Exit codes:
  0 it is open    2 it could not be found out";

const SET_QUEUE_AFTER: &str = "\
What is not named stays as it is.

Examples:
  tenure queue set bulk --concurrency 5
  tenure queue set bulk --rate 100/1m --burst 10
  tenure queue set bulk --no-rate

Exit codes:
  0 it is set    1 it was refused    2 it could not be found out";

const TIME_AFTER: &str = "\
Delays, schedules and retention go by the queue's time, which follows the clock of the leading
broker's host: forward, and never back by itself. A clock that jumps far ahead is not followed.
If a wrong clock was believed all the same, correct the clock and set the time. It holds for all
queues. Jobs that were delayed meanwhile wait as long from now on, and claims are not touched.

Examples:
  tenure queue time
  tenure queue time --set now
  tenure queue time --set 2026-03-01T12:00:00Z

Exit codes:
  0 shown, or set    1 it was refused    2 it could not be found out";

/// `tenure queue time`
#[derive(Debug, Args)]
#[command(after_help = TIME_AFTER)]
pub(crate) struct QueueTime {
    /// Set it: now, as the broker's clock shows it, an RFC 3339 time, or milliseconds since 1970
    #[arg(long, value_name = "TIME")]
    pub(crate) set: Option<String>,

    #[command(flatten)]
    pub(crate) ask: AskServer,
}

/// `tenure queue`
#[derive(Debug, Subcommand)]
#[command(after_help = QUEUE_AFTER, disable_help_subcommand = true)]
pub(crate) enum Queue {
    /// List queues and how many jobs they have
    #[command(after_help = LIST_QUEUES_AFTER)]
    List(AskServer),
    /// Let no job of a queue start
    #[command(after_help = PAUSE_AFTER)]
    Pause(OneQueue),
    /// Let jobs of a queue start again
    #[command(after_help = RESUME_AFTER)]
    Resume(OneQueue),
    /// Set the limits of a queue
    Set(SetQueue),
    /// Show the time that jobs go by, or set it after a clock was wrong
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

    /// At most this many of its jobs run at once
    #[arg(long, value_name = "N", group = "limits")]
    pub(crate) concurrency: Option<u32>,

    /// Any number of its jobs run at once
    #[arg(long, group = "limits", conflicts_with = "concurrency")]
    pub(crate) no_concurrency: bool,

    /// At most this many of its jobs start per time: 100/1m
    #[arg(long, value_name = "JOBS/TIME", group = "limits")]
    pub(crate) rate: Option<String>,

    /// How many may start at once after a quiet time, with --rate [default: as many as JOBS]
    #[arg(long, value_name = "N", requires = "rate")]
    pub(crate) burst: Option<u32>,

    /// Its jobs start as fast as they can
    #[arg(long, group = "limits", conflicts_with = "rate")]
    pub(crate) no_rate: bool,

    #[command(flatten)]
    pub(crate) ask: AskServer,
}
