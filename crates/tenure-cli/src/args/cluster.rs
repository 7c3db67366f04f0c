//! The verbs of the cluster.

use std::time::Duration;

use clap::Args;

use super::elections::{AsNode, InNamespace};
use super::{OrServer, STORES};
use crate::times::parse_duration;

const NODES_AFTER: &str = "\
A node is a process that takes part: `tenure run`, `tenure serve`, or your own program. LOAD is the
sum of the weights of its shards, and its capacity if it has one. With --server a broker is asked;
it shows a node as alive until it is evicted, even if the node has been silent for a while.

Examples:
  tenure nodes
  tenure nodes --server https://broker.example
  tenure nodes --json | jq -r '.nodes[] | select(.drained) | .node'

Exit codes:
  0 every node was heard from within its ttl (with --server: there are nodes)
  1 one was not, or there are none    2 error";

const DAEMONS_AFTER: &str = "\
NODE is where the leader has placed a shard, and STATE is what that node reports. Generations only
grow: send them to everything that can refuse an older one. A shard that has failed more than once
is `failing` until it has run for a minute; the number of failures and the last error are shown.
With --server a broker is asked, and STATE is what the leader wants, or failed if the node reports
that.

Examples:
  tenure daemons
  tenure daemons --json | jq '.daemons[].shards[] | select(.state != \"running\")'

Exit codes:
  0 every shard runs    1 one does not, or there are none    2 could not determine";

const PLAN_AFTER: &str = "\
Prints one line per decision, with its reason. It cannot know what only the leader knows: its
timeouts, and where work has failed. If assignments were lost, it says how long at most the leader
waits before it assigns shards again.

Examples:
  tenure plan
  tenure plan --server https://broker.example
  until tenure plan > /dev/null; do sleep 1; done     wait until nothing is left to do

Exit codes:
  0 nothing to do    1 something to do    2 could not determine";

const DRAIN_AFTER: &str = "\
Stops every shard on NODE cleanly and starts it on another node, a few at a time. NODE stays a
member but gets no shards, even after a restart, until `tenure undrain NODE`. This does not move
elections that it leads with `tenure run` without --daemon: `tenure transfer` does.

Examples:
  tenure drain web-2
  tenure drain web-2 --wait 0s
  tenure drain web-2 --server https://broker.example

Exit codes:
  0 NODE runs no shards (with --wait 0s: it was requested)    1 not in time    2 error";

const UNDRAIN_AFTER: &str = "\
Examples:
  tenure undrain web-2
  tenure undrain web-2 --server https://broker.example

Exit codes:
  0 NODE may run shards    2 error";

/// `tenure nodes`
#[derive(Debug, Args)]
#[command(after_help = format!("{NODES_AFTER}\n\n{STORES}"))]
pub(crate) struct Nodes {
    #[command(flatten)]
    pub(crate) place: InNamespace,

    #[command(flatten)]
    pub(crate) broker: OrServer,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure daemons`
#[derive(Debug, Args)]
#[command(after_help = format!("{DAEMONS_AFTER}\n\n{STORES}"))]
pub(crate) struct Daemons {
    #[command(flatten)]
    pub(crate) place: InNamespace,

    #[command(flatten)]
    pub(crate) broker: OrServer,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure plan`
#[derive(Debug, Args)]
#[command(after_help = format!("{PLAN_AFTER}\n\n{STORES}"))]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) place: InNamespace,

    #[command(flatten)]
    pub(crate) broker: OrServer,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure drain`
#[derive(Debug, Args)]
#[command(after_help = format!("{DRAIN_AFTER}\n\n{STORES}"))]
pub(crate) struct Drain {
    /// The node to move shards off
    #[arg(value_name = "NODE")]
    pub(crate) to_drain: String,

    #[command(flatten)]
    pub(crate) place: InNamespace,

    #[command(flatten)]
    pub(crate) broker: OrServer,

    #[command(flatten)]
    pub(crate) node: AsNode,

    /// Also if there is no such node now: it gets no shards when it joins
    #[arg(long)]
    pub(crate) absent: bool,

    /// How long to wait until no shard runs there
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    pub(crate) wait: Duration,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tenure undrain`
#[derive(Debug, Args)]
#[command(after_help = format!("{UNDRAIN_AFTER}\n\n{STORES}"))]
pub(crate) struct Undrain {
    /// The node that may run shards again
    #[arg(value_name = "NODE")]
    pub(crate) drained: String,

    #[command(flatten)]
    pub(crate) place: InNamespace,

    #[command(flatten)]
    pub(crate) broker: OrServer,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

const DAEMON_HEADING: &str = "As a daemon";

/// What of `tenure run` makes its program a daemon
#[derive(Debug, Args)]
pub(crate) struct AsDaemon {
    /// Run CMD as a daemon: the leader decides which node runs which shard
    #[arg(long, help_heading = DAEMON_HEADING, value_name = "NAME", conflicts_with = "once")]
    pub(crate) daemon: Option<String>,

    /// How many shards it has: CMD runs once for each, on some node [default: 1]
    #[arg(
        long,
        help_heading = DAEMON_HEADING,
        value_name = "N",
        requires = "daemon",
        conflicts_with = "replicas"
    )]
    pub(crate) shards: Option<u32>,

    /// How many replicas it has: CMD runs once on each of this many nodes
    #[arg(long, help_heading = DAEMON_HEADING, value_name = "N", requires = "daemon")]
    pub(crate) replicas: Option<u32>,

    /// The revision of this definition: the highest revision is used at once; if revisions are equal, the
    /// definition in use stays until no node offers it
    #[arg(
        long,
        help_heading = DAEMON_HEADING,
        value_name = "N",
        requires = "daemon",
        default_value_t = 0
    )]
    pub(crate) revision: u64,

    /// How much of a node's capacity each shard takes
    #[arg(
        long,
        help_heading = DAEMON_HEADING,
        value_name = "N",
        requires = "daemon",
        default_value_t = 1
    )]
    pub(crate) weight: u32,

    /// The maximum weight that this node takes [default: any]
    #[arg(long, help_heading = DAEMON_HEADING, value_name = "N", requires = "daemon")]
    pub(crate) capacity: Option<u32>,

    /// How long a node has to start a shard, while this node assigns them [default: 30s]
    #[arg(
        long,
        help_heading = DAEMON_HEADING,
        value_name = "TIME",
        requires = "daemon",
        value_parser = parse_duration
    )]
    pub(crate) acknowledge_timeout: Option<Duration>,

    /// How long a node has to stop a shard, while this node assigns them [default: 40s, or longer if --kill-after needs it]
    #[arg(
        long,
        help_heading = DAEMON_HEADING,
        value_name = "TIME",
        requires = "daemon",
        value_parser = parse_duration
    )]
    pub(crate) drain_timeout: Option<Duration>,

    /// A label of this node; repeat it for more
    #[arg(long, help_heading = DAEMON_HEADING, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub(crate) label: Vec<(String, String)>,

    /// A label that a node must have to run this daemon; repeat it for more
    #[arg(
        long,
        help_heading = DAEMON_HEADING,
        value_name = "KEY=VALUE",
        value_parser = parse_label,
        requires = "daemon"
    )]
    pub(crate) require: Vec<(String, String)>,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let is_plain = |text: &str| !text.is_empty() && !text.chars().any(char::is_control);
    match text.split_once('=') {
        Some((key, value)) if is_plain(key) && is_plain(value) => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("use KEY=VALUE, such as disk=fast".to_owned()),
    }
}
