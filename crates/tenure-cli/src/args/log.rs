//! The verbs of a queue's log.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{InNamespace, STORES};
use crate::times::parse_duration;

const LOG_AFTER: &str = "\
Only reads, and is safe to use while a broker runs. Every commit of a queue has an index in its log,
and every record has a number. A store in a directory keeps the log in segments, with many commits
per file; other stores keep it in objects, one per commit. ARCHITECTURE.md describes the format.

Examples:
  tenure log                                  list what is stored
  tenure log show 7                           the commit at index 7
  tenure log show --follow                    every commit from now on
  tenure log diff 7 12                        what changed between two log indexes
  tenure log verify && echo ok

Exit codes:
  0 there is a queue    1 there is none    2 could not determine";

const SHOW_AFTER: &str = "\
WHAT is a log index, or a name as `tenure log` lists it. Each record is shown with its number, the
time when the broker accepted it, and what it does.

Examples:
  tenure log show 7
  tenure log show snapshot/00000000000000000007-4f0c2b7f3c1d9a55
  tenure log show 7 --json | jq .record
  tenure log show 7 --follow

Exit codes:
  0 shown    2 not found, or cannot be read";

const DIFF_AFTER: &str = "\
A and B are log indexes, or names of snapshots. Shows which jobs are new, gone or different in B,
and the same for queues, schedules and settings. For two snapshots it reads only those. Otherwise it
rebuilds the state at both indexes, as far back as the log is stored.

Examples:
  tenure log diff 7 12
  tenure log diff 7 12 --json | jq -r 'select(.change == \"removed\") | .job.id'

Exit codes:
  0 nothing changed    1 something changed    2 could not determine";

const VERIFY_AFTER: &str = "\
Reads everything and checks every checksum. Also checks that nothing is missing in between, and that
the lease and the fence of the brokers' election have the term of the last leader. What crashes and
replaced leaders left behind is mentioned, but does not count as damage.

Examples:
  tenure log verify
  tenure log verify --json | jq -r '.damage[].location'

Exit codes:
  0 everything is intact    1 something is damaged or missing    2 could not determine";

/// `tenure log`
#[derive(Debug, Args)]
#[command(after_help = format!("{LOG_AFTER}\n\n{STORES}"))]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Log {
    #[command(subcommand)]
    pub(crate) command: Option<LogCommand>,

    #[command(flatten)]
    pub(crate) list: LogList,
}

/// What can be done with a log.
#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Print a commit, a segment or a snapshot
    Show(LogShow),
    /// Show what changed between two log indexes or snapshots
    Diff(LogDiff),
    /// Check everything that is stored
    Verify(LogVerify),
}

/// `tenure log` itself
#[derive(Debug, Args)]
pub(crate) struct LogList {
    #[command(flatten)]
    pub(crate) place: InNamespace,

    /// Print a JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure log show`
#[derive(Debug, Args)]
#[command(after_help = format!("{SHOW_AFTER}\n\n{STORES}"))]
pub(crate) struct LogShow {
    /// A log index, or the name of an object, segment or snapshot
    #[arg(value_name = "WHAT", required_unless_present = "follow")]
    pub(crate) what: Option<String>,

    #[command(flatten)]
    pub(crate) place: InNamespace,

    /// Print every commit from log index WHAT on, or from now on, until interrupted
    #[arg(long)]
    pub(crate) follow: bool,

    /// How often to look for more
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) poll: Duration,

    /// Print a JSON document per record
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure log diff`
#[derive(Debug, Args)]
#[command(after_help = format!("{DIFF_AFTER}\n\n{STORES}"))]
pub(crate) struct LogDiff {
    /// The earlier log index or snapshot
    #[arg(value_name = "A")]
    pub(crate) before: String,

    /// The later one
    #[arg(value_name = "B")]
    pub(crate) after: String,

    #[command(flatten)]
    pub(crate) place: InNamespace,

    /// Print a JSON document per change
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure log verify`
#[derive(Debug, Args)]
#[command(after_help = format!("{VERIFY_AFTER}\n\n{STORES}"))]
pub(crate) struct LogVerify {
    #[command(flatten)]
    pub(crate) place: InNamespace,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
