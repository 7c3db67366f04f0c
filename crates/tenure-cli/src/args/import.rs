//! `tenure import`: jobs of another queue.

use clap::{Args, Subcommand};

use super::AtServer;

const OSQUEUE_AFTER: &str = "\
Reads queue.json, and submits every job in it to a broker. Ids, order, payloads, types and remaining
attempts are kept. A job that an osqueue worker was running is held back for 30 s, until that worker
has lost it. The bucket is not changed.

Stop osqueue's broker first: the import watches the file for a few seconds, and refuses it if it
changes. If the import is interrupted, run it again: no job is added twice, as long as Tenure knows
its id (at least an hour after the job has finished).

Examples:
  tenure import osqueue s3://my-queue-bucket/osqueue
  tenure import osqueue ./queue.json --server http://broker:8080
  tenure import osqueue gs://my-queue-bucket --json

Exit codes:
  0 all jobs are there    1 some were refused, or osqueue still runs    2 could not determine";

/// `tenure import`
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Import {
    /// Import the jobs of an osqueue bucket
    Osqueue(ImportOsqueue),
}

/// `tenure import osqueue`
#[derive(Debug, Args)]
#[command(after_help = OSQUEUE_AFTER)]
pub(crate) struct ImportOsqueue {
    // The value may hold a password: --help must not show it.
    /// The bucket and prefix, or a directory, or the file queue.json itself
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// Print one JSON document at the end, instead of text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}
