//! The verbs of elections.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::{AsDaemon, OrServer, STORE_DEFAULT, STORES};
use crate::times::parse_duration;

const RUN_AFTER: &str = "\
Start it on as many hosts as you like: CMD runs on the host that leads. The environment of CMD has
TENURE_TERM, TENURE_TOKEN (send it to everything that can refuse an older leader), TENURE_NODE,
TENURE_NAMESPACE and TENURE_ELECTION. Its standard input is empty.

When leadership ends, CMD and its process group get SIGTERM, and SIGKILL before another node can
lead. So does everything that CMD has started. A guard process makes sure of this even if tenure
itself is killed or stopped. There are two gaps. If tenure and the guard are killed or stopped
together, or the guard is killed while tenure is stopped, what CMD has started may keep running. And
the guard cannot stop what cron, systemd or a container engine has started for CMD.

CMD must not put itself into the background: when it exits, everything that it has started is
killed.

If tenure may not kill a process of CMD because it runs as another user (sudo), it says so and keeps
the lease or shard until that process ends. `tenure status` or `tenure daemons` shows it. If tenure
is killed, or cannot reach the store for a --ttl, it loses the lease all the same, and another node
starts CMD while that process still runs. Until it ends, this tenure starts nothing and is not a
candidate.

When CMD exits, it is started again, after a longer wait each time. After 5 failures in a row,
another node gets its turn. SIGTERM and SIGINT are passed on to CMD and its group, and tenure exits
when CMD has exited; a second signal kills CMD. If a process of CMD may not be killed, the second
signal ends tenure and leaves that process running: after a --ttl another node starts CMD. SIGHUP,
SIGUSR1 and SIGUSR2 are passed on to CMD while it runs. When the terminal is closed, tenure stops as
after SIGTERM, unless it was started with nohup.

With --daemon, CMD runs once for each shard, on the nodes that the leader of the cluster chooses:
start the same command on every host. The environment of CMD then has TENURE_DAEMON, TENURE_SHARD
(from 0), TENURE_SHARDS (the same for every running shard: when it changes, all shards end before
the first one starts again), TENURE_GENERATION (it only grows; send it to everything that can refuse
an older one), TENURE_NODE and TENURE_NAMESPACE. If CMD exits without being asked to, that counts as
a failure, and it is started again, here or on another node.

Examples:
  tenure run -- ./reports --every 5m
  tenure run --store postgres://tenure@db.example/tenure --election reports -- ./reports
  tenure run --once --ttl 30s -- pg_dump -f backup.sql
  tenure run --daemon indexer --shards 12 -- ./indexer

Exit codes:
  0 stopped as asked    2 could not start
  with --once: the exit code of CMD, or 128 plus the number of the signal that killed it;
  2 if tenure was stopped before CMD ran, which it says on standard error";

const ELECT_AFTER: &str = "\
For scripts and cron jobs: every call is independent. The first node to call leads, and keeps
leading as long as it calls again within --ttl. No leader is pushed out.

Examples:
  tenure elect && ./nightly-job
  tenure elect --election mails --json | jq -r .leader
  tenure elect --release --term 7

When a leader is asked to resign or to hand over, its next call says that it no longer leads. With
--release it reports that its work has ended, and the next node leads at once.

Exit codes:
  0 this node leads, or has released
  1 another node leads, or leads next; with --release: not that term, or not by this command
  2 could not determine";

const STATUS_AFTER: &str = "\
With --server a broker is asked, so this host needs no access to the store. A broker does not show
priorities, pending requests and problems, and shows at most 20 elections.

Examples:
  tenure status
  tenure status --server https://broker.example
  tenure status --election reports --json | jq -r '.elections[0].leader.node'

Exit codes:
  0 every election shown has a leader    1 one has none    2 could not determine";

const WATCH_AFTER: &str = "\
Only reads; it is not a candidate. The first line shows the current state. The death of a leader is
reported when its successor is elected. Stops on Ctrl-C, or when its output is closed.

With --server, a broker reports on its own election, the nodes and their daemons: who leads, joined,
left or was evicted, and which shard was assigned, started, revoked, stopped or failed. The current
state comes first. After a lost connection it resumes where it was; if it cannot, because another
broker leads now, it prints `reset` and the current state again. With --server and --election, the
broker is asked about that election every --poll; it does not say why terms ended.

Examples:
  tenure watch --election reports
  tenure watch --server https://broker.example
  tenure watch --json | jq -r 'select(.event == \"elected\") | .node'
  tenure watch --server https://broker.example --kinds node,daemon

Exit codes:
  0 interrupted    2 could not start";

const RESIGN_AFTER: &str = "\
The leader first stops its work, then leaves the next term to others. If there is no other
candidate, it leads again after a while. If nobody leads because the lease is reserved after a
transfer, this ends the reservation. With --server, this works for the queue's election only.

Examples:
  tenure resign
  tenure resign --server https://broker.example
  tenure resign --election reports --wait 2m

Exit codes:
  0 it has resigned (with --wait 0s: it was asked)    1 nobody leads, or not in time    2 error";

const TRANSFER_AFTER: &str = "\
The lease is reserved for NODE, for its ttl and at most 30s: until then no other node can take it.
`tenure status` lists the candidates. A candidate that calls `tenure elect` or the HTTP interface
leads when it calls next; nobody leads until then. If the lease is already reserved, this reserves
it for NODE instead, and `tenure resign` ends the reservation. With --server, this works for the
queue's election only.

Examples:
  tenure transfer web-2
  tenure transfer web-2 --server https://broker.example
  tenure transfer web-2 --election reports --wait 0s

Exit codes:
  0 NODE leads (with --wait 0s: the transfer was requested)
  1 nobody leads, NODE is not a candidate, or not in time    2 error";

const HISTORY_AFTER: &str = "\
A lease keeps its last 20 terms. Times come from the clocks of the nodes that wrote them. Durations
are measured by one clock; `-` means that no node measured it. With --server, this shows the queue's
election only.

Examples:
  tenure history
  tenure history --election reports --json | jq '.terms[] | select(.node == null)'

Exit codes:
  0 there were terms    1 there were none    2 could not determine";

/// Which namespace of which store.
#[derive(Debug, Args)]
pub(crate) struct InNamespace {
    /// The store to use
    // The value may hold a password: --help must not show it.
    #[arg(long, value_name = "URL", env = "TENURE_STORE", hide_env_values = true)]
    #[arg(default_value = STORE_DEFAULT)]
    pub(crate) store: String,

    /// The namespace that holds everything of one cluster
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
    /// The name of this node [default: host name]
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

    /// How long a node may be silent before another replaces it: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    /// How often this node renews its session [default: 3/10 of --ttl]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) heartbeat: Option<Duration>,

    /// How long a heartbeat's request to the store may take [default: 2/10 of --ttl]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) request_timeout: Option<Duration>,

    /// From 0 to 100: when nobody leads, nodes with a higher priority go first
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) priority: u8,

    /// How long CMD may take to stop when this node steps down
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) kill_after: Duration,

    /// Run CMD once and exit with its exit code
    #[arg(long)]
    pub(crate) once: bool,

    /// Only poll the store: no LISTEN, no watching of files, no datagrams between nodes
    #[arg(long)]
    pub(crate) poll_only: bool,

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

    /// How long this node stays a candidate without another call: 200ms to 24h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    /// Withdraw this node, and release leadership if it leads
    #[arg(long)]
    pub(crate) release: bool,

    /// With --release: only if this node leads this term, so a late release cannot end a later term
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

    #[command(flatten)]
    pub(crate) broker: OrServer,

    /// The election [default: all in the namespace]
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

    #[command(flatten)]
    pub(crate) broker: OrServer,

    /// With --server: which events to print, of job, queue, schedule, leader, node, daemon
    #[arg(
        long,
        value_name = "KINDS",
        requires = "server",
        default_value = "leader,node,daemon"
    )]
    pub(crate) kinds: String,

    /// How often to look, on stores that do not announce changes
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
    pub(crate) broker: OrServer,

    #[command(flatten)]
    pub(crate) node: AsNode,

    /// How long to wait for it to happen
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
    /// The candidate that should lead: NODE, or NODE/INCARNATION (its first digits)
    #[arg(value_name = "NODE")]
    pub(crate) to: String,

    #[command(flatten)]
    pub(crate) election: OfElection,

    #[command(flatten)]
    pub(crate) broker: OrServer,

    #[command(flatten)]
    pub(crate) node: AsNode,

    /// How long to wait for it to happen
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

    #[command(flatten)]
    pub(crate) broker: OrServer,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
