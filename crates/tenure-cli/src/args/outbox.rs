//! `tenure outbox`: what can be typed about outboxes.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::elections::AsNode;
use super::{AtServer, InNamespace};
use crate::times::parse_duration;

const OUTBOX_AFTER: &str = "\
An outbox is a table in your own database: a job that you insert there, in your own transaction,
is handed over to the queue if the transaction commits.

Examples:
  tenure outbox schema postgres > migrations/7_outbox.sql
  tenure serve --outbox postgres://app@db.example/shop
  tenure outbox status postgres://app@db.example/shop";

const SCHEMA_AFTER: &str = "\
The relay creates the tables if they are missing. Print them for migrations of your own, or when
the relay's user may not create tables.

Examples:
  tenure outbox schema postgres | psql shop
  tenure outbox schema mysql > migrations/7_outbox.sql

Exit codes:
  0 printed";

const RUN_AFTER: &str = "\
Runs the relay of an outbox as a daemon of the cluster in --store: start it on several hosts, and
one of them relays. Jobs go to --server. `tenure serve --outbox` does the same within a broker.

Examples:
  tenure outbox run postgres://app@db.example/shop --server http://10.0.0.5:8080
  tenure outbox run sqlite:./shop.db --store s3://my-bucket/tenure

Exit codes:
  0 stopped as asked    2 could not start";

const STATUS_AFTER: &str = "\
Examples:
  tenure outbox status postgres://app@db.example/shop
  tenure outbox status sqlite:./shop.db --json | jq .status.waiting

Exit codes:
  0 no row is dead    1 some rows are dead    2 could not determine";

const RETRY_AFTER: &str = "\
Retried rows go to the end of their groups.

Examples:
  tenure outbox retry postgres://app@db.example/shop --all
  tenure outbox retry postgres://app@db.example/shop order-7 order-8

Exit codes:
  0 some were put back    1 there were none    2 could not determine";

const PURGE_AFTER: &str = "\
Examples:
  tenure outbox purge postgres://app@db.example/shop --older-than 30d
  tenure outbox purge postgres://app@db.example/shop --claims-older-than 7d

Exit codes:
  0 some were deleted    1 there were none    2 could not determine";

const RELEASE_AFTER: &str = "\
An outbox is relayed by the cluster that came first, so that a test system cannot take the jobs of
another. Release it when that cluster is gone, or its store was replaced.

Examples:
  tenure outbox release postgres://app@db.example/shop

Exit codes:
  0 released    2 could not determine";

const DATABASE: &str = "The database: postgres://USER@HOST/DB, mysql://USER@HOST/DB or sqlite:PATH";

/// `tenure outbox`
#[derive(Debug, Subcommand)]
#[command(after_help = OUTBOX_AFTER, disable_help_subcommand = true)]
pub(crate) enum Outbox {
    /// Print the SQL that creates the tables
    Schema(Schema),
    /// Relay an outbox to a broker until stopped
    Run(Box<RunOutbox>),
    /// Show how many rows wait, and which are dead
    Status(OutboxStatus),
    /// Put dead rows back into the outbox
    Retry(RetryRows),
    /// Delete dead rows, or old claims
    Purge(PurgeRows),
    /// Let another cluster relay an outbox
    #[command(after_help = RELEASE_AFTER)]
    Release(OneOutbox),
}

/// `tenure outbox schema`
#[derive(Debug, Args)]
#[command(after_help = SCHEMA_AFTER)]
pub(crate) struct Schema {
    /// For which database
    #[arg(value_name = "ENGINE", value_enum)]
    pub(crate) engine: SqlEngine,
}

/// Which SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SqlEngine {
    // PostgreSQL 13 or later.
    Postgres,
    // MySQL 8.0.16, MariaDB 10.3.
    Mysql,
    // SQLite 3.37.
    Sqlite,
}

/// Which outbox.
#[derive(Debug, Args)]
pub(crate) struct OneOutbox {
    // The value may hold a password: --help must not show it.
    #[arg(help = DATABASE)]
    #[arg(value_name = "URL", env = "TENURE_OUTBOX", hide_env_values = true)]
    pub(crate) outbox: String,
}

/// `tenure outbox run`
#[derive(Debug, Args)]
#[command(after_help = RUN_AFTER)]
pub(crate) struct RunOutbox {
    #[command(flatten)]
    pub(crate) outbox: OneOutbox,

    /// The name of the outbox: its daemon is outbox:NAME
    #[arg(long, value_name = "NAME", default_value = "default")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) name: String,

    /// How often a row is tried before it is dead
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempts: u32,

    /// How long a node may be silent before another replaces it: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    #[command(flatten)]
    pub(crate) place: InNamespace,

    #[command(flatten)]
    pub(crate) node: AsNode,

    #[command(flatten)]
    pub(crate) server: AtServer,
}

/// `tenure outbox status`
#[derive(Debug, Args)]
#[command(after_help = STATUS_AFTER)]
pub(crate) struct OutboxStatus {
    #[command(flatten)]
    pub(crate) outbox: OneOutbox,

    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// How many dead rows to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) limit: u16,
}

/// `tenure outbox retry`
#[derive(Debug, Args)]
#[command(after_help = RETRY_AFTER)]
pub(crate) struct RetryRows {
    // Required, since the arguments after it are ids.
    #[arg(help = DATABASE)]
    #[arg(value_name = "URL")]
    pub(crate) outbox: String,

    /// The ids of the rows
    #[arg(
        value_name = "ID",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub(crate) ids: Vec<String>,

    /// All dead rows
    #[arg(long)]
    pub(crate) all: bool,
}

/// `tenure outbox purge`
#[derive(Debug, Args)]
#[command(after_help = PURGE_AFTER)]
// The one that is made would name the URL last, and it comes first.
#[command(
    override_usage = "tenure outbox purge <URL> <ID...|--all|--older-than <TIME>|--claims-older-than <TIME>>"
)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(false))]
pub(crate) struct PurgeRows {
    #[arg(help = DATABASE)]
    #[arg(value_name = "URL")]
    pub(crate) outbox: String,

    /// The ids of dead rows to delete
    #[arg(value_name = "ID", group = "which")]
    pub(crate) ids: Vec<String>,

    /// Delete all dead rows
    #[arg(long, group = "which")]
    pub(crate) all: bool,

    /// Delete rows that have been dead for longer than this: 12h, 30d
    #[arg(long, value_name = "TIME", group = "which", value_parser = parse_duration)]
    pub(crate) older_than: Option<Duration>,

    /// Delete records of claims that were last seen longer ago than this
    #[arg(long, value_name = "TIME", group = "which", value_parser = parse_duration)]
    pub(crate) claims_older_than: Option<Duration>,
}
