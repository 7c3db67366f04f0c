//! `tenure import`: jobs of another queue.

use clap::{Args, Subcommand};

use super::AtServer;

const OSQUEUE_AFTER: &str = "\
Reads queue.json, and submits every job in it to a broker of Tenure. Ids, order, payloads, types and
the attempts that are left stay. A job that a worker of osqueue had is held back for 30 s, until
that worker has lost it there, too. What is in the bucket is not changed.

Stop osqueue's broker first: the import looks at the file for a few seconds, and refuses one that
still changes. If the import is interrupted, run it again: jobs that are there already are not
added twice, for as long as Tenure knows their ids (an hour after they have finished, at least).

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
    /// Take over the jobs of an osqueue bucket
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
