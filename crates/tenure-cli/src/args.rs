//! The command line's grammar: what users can type, not what it does.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{EXIT_BROKEN, output};

mod broker;
mod cluster;
mod elections;
#[cfg(test)]
mod fuzz;
mod groups;
mod import;
mod job;
mod load;
mod log;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod outbox;
mod program;
mod queue;
mod schedule;
mod serve;
mod tips;

pub(crate) use broker::{AskServer, AtServer, OrServer, SERVER_DEFAULT, Top};
pub(crate) use cluster::{AsDaemon, Daemons, Drain, Nodes, Plan, Undrain};
pub(crate) use elections::{
    Elect, History, InElection, InNamespace, OfElection, Resign, Run, Status, Transfer, Watch,
};
pub(crate) use import::{Import, ImportOsqueue};
pub(crate) use job::{
    Cancel, Delete, Get, Job, JobFilter, JobOptions, List, Move, NamedJobs, Retry, StateName,
    Submit,
};
pub(crate) use load::{Bench, Worker, Workload};
pub(crate) use log::{Log, LogCommand, LogDiff, LogList, LogShow, LogVerify};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) use outbox::{
    OneOutbox, Outbox, OutboxStatus, PurgeRows, RetryRows, RunOutbox, SqlEngine,
};
pub(crate) use program::{Completions, Help, Man, ShellName};
pub(crate) use queue::{OneQueue, Queue, QueueTime, SetQueue};
pub(crate) use schedule::{OneSchedule, Schedule, SetSchedule};
pub(crate) use serve::{LogFormat, Serve, Settings};

/// The default store.
pub(crate) const STORE_DEFAULT: &str = "file:./tenure-data";

const STORES: &str = "\
Stores:
  memory:                      this process only, for trying out
  file:DIR, or a plain path    a directory on a local file system
  s3://BUCKET/PREFIX           S3 and compatible servers, AWS_* variables
  gs://BUCKET/PREFIX           Google Cloud Storage, GOOGLE_* variables
  az://CONTAINER/PREFIX        Azure Blob Storage, AZURE_* variables
  postgres://USER@HOST/DB      PostgreSQL, PG* variables
  mysql://USER@HOST/DB         MySQL, MariaDB
  sqlite:PATH                  SQLite";

const TENURE_AFTER: &str = "\
Examples:
  tenure serve                                            a queue at http://127.0.0.1:8080
  tenure run --store s3://my-bucket/tenure -- ./reports   run it on one host at a time
  tenure status
  tenure job submit mail '{\"to\":\"you@example.com\"}'
  tenure worker --type mail --exec ./send-mail
  tenure store check s3://my-bucket/tenure

Environment:
  TENURE_STORE, TENURE_NAMESPACE, TENURE_ELECTION, TENURE_NODE
                  defaults for --store, --namespace, --election and --node
  TENURE_SERVER, TENURE_API_TOKEN
                  the default for --server, and the token to send to it
  TENURE_LOG      what to log on stderr: error, warn (default), info, debug, trace
  NO_COLOR        if set, no colours

Exit codes:
  0 yes    1 no    2 could not determine";

const STORE_AFTER: &str = "\
Examples:
  tenure store check file:./tenure-data
  tenure store check --help";

const CHECK_AFTER: &str = "\
Runs the conformance suite on your bucket, database or directory, including races between many
writers, and names every guarantee that does not hold. A full run makes about 3,500 requests.
It creates all objects under a new prefix, tenure-check/UUID/, and removes them at the end, even
after Ctrl-C. What a store consists of stays, as before a first use: the folder that you named, or
the table.

Examples:
  tenure store check file:./tenure-data
  tenure store check s3://my-bucket/tenure --quick
  tenure store check postgres://tenure@db.example/tenure --rounds 200
  tenure store check memory: --json | jq '.checks[] | select(.verdict != \"passed\")'

Exit codes:
  0 every guarantee holds    1 a guarantee is broken    2 could not determine";

/// Leader election, daemon coordination and a durable job queue on the storage you already have.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = TENURE_AFTER, max_term_width = 100)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program only while this node leads
    Run(Run),
    /// Run a one-shot election: does this node lead?
    Elect(Elect),
    /// Show the leader and the candidates
    Status(Status),
    /// Print every change of an election
    Watch(Watch),
    /// Ask the leader to step down
    Resign(Resign),
    /// Ask the leader to hand over to a candidate
    Transfer(Transfer),
    /// Show the past terms of an election
    History(History),
    /// Show the nodes of a cluster
    Nodes(Nodes),
    /// Show which node runs which shard of which daemon
    Daemons(Daemons),
    /// Show what the leader would do now, and why
    Plan(Plan),
    /// Move all shards off a node, and keep them off
    Drain(Drain),
    /// Let a node run shards again
    Undrain(Undrain),
    /// Serve the queue, elections and the dashboard over HTTP
    Serve(Box<Serve>),
    /// Inspect the log of a queue
    Log(Log),
    /// Submit, show, cancel, retry, move and delete jobs
    #[command(subcommand)]
    Job(Job),
    /// List and pause queues, and set their limits
    #[command(subcommand)]
    Queue(Queue),
    /// Schedule jobs
    #[command(subcommand)]
    Schedule(Schedule),
    /// Hand over jobs that commit with your own data
    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    #[command(subcommand)]
    Outbox(Outbox),
    /// Import jobs from another queue
    #[command(subcommand)]
    Import(Import),
    /// Watch leader, nodes and queues in this terminal
    Top(Top),
    /// Run a program for each job
    Worker(Worker),
    /// Measure how fast a broker is
    Bench(Bench),
    /// Check a store
    #[command(subcommand, after_help = STORE_AFTER, disable_help_subcommand = true)]
    Store(StoreCommand),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Write manual pages
    Man(Man),
    /// Explain a verb
    Help(Help),
}

/// What can be done with a store.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Check whether a store is safe to use
    Check(Check),
}

/// `tenure store check`
#[derive(Debug, Args)]
#[command(after_help = format!("{CHECK_AFTER}\n\n{STORES}"))]
pub(crate) struct Check {
    /// The store to check
    #[arg(value_name = "URL", env = "TENURE_STORE", hide_env_values = true)]
    pub(crate) url: Option<String>,

    /// Print one JSON document at the end, instead of text
    #[arg(long)]
    pub(crate) json: bool,

    /// Make only about 500 requests: fewer races, no multi-page listings
    #[arg(long)]
    pub(crate) quick: bool,

    /// How many writers race for one object [default: 16, or 8 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub(crate) writers: Option<u16>,

    /// How many times they race [default: 20, or 5 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) rounds: Option<u16>,
}

/// The whole command line.
pub(crate) fn command() -> clap::Command {
    groups::grouped(Cli::command())
}

/// Prints the help of this program as a whole.
pub(crate) fn print_help() -> ExitCode {
    // A closed pipe is not a failure.
    let _ = command().print_help();
    ExitCode::SUCCESS
}

/// Parses the command line. Help and mistakes are printed here; then the error is the exit code.
pub(crate) fn parse() -> Result<Command, ExitCode> {
    command()
        .try_get_matches_from(help_last(std::env::args_os()))
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map(|cli| cli.command)
        .map_err(tips::add)
        .map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                // A reader that has seen enough of the help is no failure.
                let _ = error.print();
                ExitCode::SUCCESS
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                let _ = error.print();
                ExitCode::from(EXIT_BROKEN)
            }
            _ => {
                let text = error.render().to_string();
                let safe = without_urls(&text);
                if safe == text {
                    let _ = error.print();
                } else {
                    output::raw_to_stderr(&safe);
                }
                ExitCode::from(EXIT_BROKEN)
            }
        })
}

/// `tenure help job submit` is `tenure job submit --help`, so what is said of a verb that does not exist is the same too.
fn help_last(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let asks = words.get(1).is_some_and(|word| word == "help");
    // A flag belongs to the verb `help` itself.
    let has_flag = words
        .get(2)
        .is_some_and(|word| word.to_string_lossy().starts_with('-'));
    if asks && !has_flag {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// Cuts off every URL after its scheme. The parser repeats what it did not understand, which may be a URL with a
/// password.
fn without_urls(text: &str) -> String {
    let mut pieces = text.split("://");
    let mut safe = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        // The parser puts quotes around what it repeats; a quote inside does not end it.
        let end = piece.find([' ', '\n']).map_or(piece.len(), |end| {
            end - usize::from(piece[..end].ends_with('\''))
        });
        safe.push_str("://…");
        safe.push_str(&piece[end..]);
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn urls_are_cut_off_behind_the_scheme() {
        for (text, safe) in [
            (
                "unexpected argument 'x' found",
                "unexpected argument 'x' found",
            ),
            (
                "argument 'pg://u:p@h/d' found\n",
                "argument 'pg://…' found\n",
            ),
            ("'pg://u:it's@h/d'", "'pg://…"),
            ("'a://b?c=d://e' f", "'a://…://…' f"),
        ] {
            assert_eq!(without_urls(text), safe);
        }
    }
}
