//! The verbs of elections.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::{AsDaemon, STORE_DEFAULT, STORES};
use crate::times::parse_duration;

const RUN_AFTER: &str = "\
Start it on as many hosts as you like: CMD runs on the one that leads. Its environment has
TENURE_TERM, TENURE_TOKEN (pass it on to whatever can refuse an older leader), TENURE_NODE,
TENURE_NAMESPACE and TENURE_ELECTION; its standard input is empty.

When leadership is to end, CMD and its process group get SIGTERM, and SIGKILL before trust ends;
so does whatever CMD has started. This holds as well if the tenure process is killed or stopped.
It does not cover what CMD lets others start for it: cron, systemd, a container engine. Do not let
CMD go into the background by itself: when it exits, all that it has started is killed.

If a process of CMD may not be killed, since it runs as another user (sudo), tenure says so, keeps
the lease or shard until it ends, and shows it in `tenure status` or `tenure daemons`.

When CMD ends by itself it is started again, later each time; after 5 failures in a row another
node gets its turn. SIGTERM and SIGINT are passed on to CMD and its group, and tenure ends when
it has; a second one kills it. SIGHUP, SIGUSR1 and SIGUSR2 are passed on to CMD while it runs;
when the terminal is closed tenure ends as if by SIGTERM, and with nohup it does not.

With --daemon, CMD runs once for each shard, on whichever nodes the leader of the cluster gives them
to: start the same on every host. Its environment then has TENURE_DAEMON, TENURE_SHARD (from 0),
TENURE_SHARDS (the number that rules, the same for all that run: when it changes, all of them end
before the first starts anew), TENURE_GENERATION (a number that only grows, to be passed on),
TENURE_NODE and TENURE_NAMESPACE. A CMD that ends by itself has failed, and is started again, here
or elsewhere.

Examples:
  tenure run -- ./reports --every 5m
  tenure run --store postgres://tenure@db.example/tenure --election reports -- ./reports
  tenure run --once --ttl 30s -- pg_dump -f backup.sql
  tenure run --daemon indexer --shards 12 -- ./indexer

Exit codes:
  0 asked to stop, and stopped    2 it could not start
  with --once: that of CMD, 128 plus the number of the signal that killed it";

const ELECT_AFTER: &str = "\
For scripts and cron jobs: every call stands alone. The first to ask leads, and goes on leading
for as long as it asks again within --ttl. Nobody is pushed out.

Examples:
  tenure elect && ./nightly-job
  tenure elect --election mails --json | jq -r .leader
  tenure elect --release --term 7

A leader that is asked to resign, or to hand over, is told so by its next call: it leads no longer.
With --release it says that its work has ended, and the next one leads at once.

Exit codes:
  0 this node leads, or has released    1 another does, or not that term    2 it could not be found out";

const STATUS_AFTER: &str = "\
Examples:
  tenure status
  tenure status --election reports --json | jq -r '.elections[0].leader.node'

Exit codes:
  0 every election shown has a leader    1 one has none    2 it could not be found out";

const WATCH_AFTER: &str = "\
Only reads; it is no candidate. The first line says how things stand. A leader that died is told of
when its successor is elected. Ends by Ctrl-C, or when nobody reads its output.

Examples:
  tenure watch --election reports
  tenure watch --json | jq -r 'select(.event == \"elected\") | .node'

Exit codes:
  0 until it was interrupted    2 it could not start";

const RESIGN_AFTER: &str = "\
The leader stops its work first, and leaves the next term to others. Without another candidate it
leads again after a while.

Examples:
  tenure resign
  tenure resign --election reports --wait 2m

Exit codes:
  0 it has resigned (with --wait 0s: was asked)    1 nobody leads, or not in time    2 broken";

const TRANSFER_AFTER: &str = "\
The lease is reserved for NODE, so that nobody else slips in. `tenure status` lists the candidates.

Examples:
  tenure transfer web-2
  tenure transfer web-2 --election reports --wait 0s

Exit codes:
  0 NODE leads (with --wait 0s: it was asked for)
  1 nobody leads, NODE does not stand, or not in time    2 broken";

const HISTORY_AFTER: &str = "\
A lease remembers its last 20 terms. Times are those of the clocks of the nodes that wrote them.

Examples:
  tenure history
  tenure history --election reports --json | jq '.terms[] | select(.node == null)'

Exit codes:
  0 somebody was elected before    1 nobody ever was    2 it could not be found out";

/// Which namespace of which store.
#[derive(Debug, Args)]
pub(crate) struct InNamespace {
    /// The store to use
    // The value may hold a password: --help must not show it.
    #[arg(long, value_name = "URL", env = "TENURE_STORE", hide_env_values = true)]
    #[arg(default_value = STORE_DEFAULT)]
    pub(crate) store: String,

    /// The namespace: everything of one cluster is under it
    #[arg(
        long,
        value_name = "NS",
        env = "TENURE_NAMESPACE",
        default_value = "default"
    )]
    #[arg(hide_env_values = true)]
    pub(crate) namespace: String,
}

/// Which election of which namespace.
#[derive(Debug, Args)]
pub(crate) struct InElection {
    #[command(flatten)]
    pub(crate) place: InNamespace,

    /// The election
    #[arg(
        long,
        value_name = "NAME",
        env = "TENURE_ELECTION",
        default_value = "default"
    )]
    #[arg(hide_env_values = true)]
    pub(crate) election: String,
}

/// An election that is there already, of a namespace.
#[derive(Debug, Args)]
pub(crate) struct OfElection {
    #[command(flatten)]
    pub(crate) place: InNamespace,

    /// The election [default: the only one there is]
    #[arg(
        long,
        value_name = "NAME",
        env = "TENURE_ELECTION",
        hide_env_values = true
    )]
    pub(crate) election: Option<String>,
}

/// Who this is.
#[derive(Debug, Args)]
pub(crate) struct AsNode {
    /// The name of this node [default: the name of the host]
    #[arg(long, value_name = "ID", env = "TENURE_NODE", hide_env_values = true)]
    pub(crate) node: Option<String>,
}

/// `tenure run`
#[derive(Debug, Args)]
#[command(after_help = format!("{RUN_AFTER}\n\n{STORES}"))]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) election: InElection,

    #[command(flatten)]
    pub(crate) node: AsNode,

    /// How long until others replace a node that is not heard of: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    /// From 0 to 100: nodes with a higher one come first when nobody leads
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) priority: u8,

    /// How long CMD may take to stop when leadership is given up
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) kill_after: Duration,

    /// Run CMD once and end with its exit code
    #[arg(long)]
    pub(crate) once: bool,

    #[command(flatten)]
    pub(crate) daemon: AsDaemon,

    /// The program to run, and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `tenure elect`
#[derive(Debug, Args)]
#[command(after_help = format!("{ELECT_AFTER}\n\n{STORES}"))]
pub(crate) struct Elect {
    #[command(flatten)]
    pub(crate) election: InElection,

    #[command(flatten)]
    pub(crate) node: AsNode,

    /// How long this node stands without another call: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    /// Stand no longer, and give leadership back if this node has it
    #[arg(long)]
    pub(crate) release: bool,

    /// With --release: only if this node leads this term, so that a late release ends no later one
    #[arg(long, value_name = "TERM", requires = "release")]
    pub(crate) term: Option<u64>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure status`
#[derive(Debug, Args)]
#[command(after_help = format!("{STATUS_AFTER}\n\n{STORES}"))]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) place: InNamespace,

    /// The election [default: all of the namespace]
    #[arg(
        long,
        value_name = "NAME",
        env = "TENURE_ELECTION",
        hide_env_values = true
    )]
    pub(crate) election: Option<String>,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure watch`
#[derive(Debug, Args)]
#[command(after_help = format!("{WATCH_AFTER}\n\n{STORES}"))]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) election: OfElection,

    /// How often to look, on stores that do not tell of changes
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub(crate) poll: Duration,

    /// Print a JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure resign`
#[derive(Debug, Args)]
#[command(after_help = format!("{RESIGN_AFTER}\n\n{STORES}"))]
pub(crate) struct Resign {
    #[command(flatten)]
    pub(crate) election: OfElection,

    #[command(flatten)]
    pub(crate) node: AsNode,

    /// How long to wait until it has happened
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) wait: Duration,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure transfer`
#[derive(Debug, Args)]
#[command(after_help = format!("{TRANSFER_AFTER}\n\n{STORES}"))]
pub(crate) struct Transfer {
    /// The candidate that is to lead
    #[arg(value_name = "NODE")]
    pub(crate) to: String,

    #[command(flatten)]
    pub(crate) election: OfElection,

    #[command(flatten)]
    pub(crate) node: AsNode,

    /// How long to wait until it has happened
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) wait: Duration,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure history`
#[derive(Debug, Args)]
#[command(after_help = format!("{HISTORY_AFTER}\n\n{STORES}"))]
pub(crate) struct History {
    #[command(flatten)]
    pub(crate) election: OfElection,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
