//! The `tenure` command.
//!
//! stdout is data, stderr is everything else. The exit code answers the question that was asked: 0 is
//! yes, 1 is no, 2 means that it could not be found out. A mistake on the command line is a 2 as well:
//! a script that asks whether a bucket can be trusted must not take a mistyped flag for a no.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

mod args;
mod commands;
mod output;
mod signals;
mod times;

use args::{Command, LogFormat, StoreCommand};

/// The answer is no.
const EXIT_NO: u8 = 1;

/// The question could not be answered.
const EXIT_BROKEN: u8 = 2;

fn main() -> ExitCode {
    let command = match args::parse() {
        Ok(command) => command,
        Err(code) => return code,
    };
    run(command).unwrap_or_else(|error| {
        output::error(&error);
        ExitCode::from(EXIT_BROKEN)
    })
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    // Parts of `run` that are to stay small, and whose stderr belongs to the program.
    match &command {
        Command::Guard(arguments) => return commands::guard::run(arguments),
        Command::Exec(arguments) => return commands::exec::run(arguments),
        _ => {}
    }
    start_log(log_format(&command))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads that do the work")?;
    let code = runtime.block_on(async {
        match command {
            Command::Run(options) => commands::run::run(options).await,
            Command::Elect(options) => commands::elect::run(options).await,
            Command::Status(options) => commands::status::run(options).await,
            Command::Watch(options) => commands::watch::run(options).await,
            Command::Resign(options) => commands::resign::run(options).await,
            Command::Transfer(options) => commands::transfer::run(options).await,
            Command::History(options) => commands::history::run(options).await,
            Command::Nodes(options) => commands::nodes::run(options).await,
            Command::Daemons(options) => commands::daemons::run(options).await,
            Command::Plan(options) => commands::plan::run(options).await,
            Command::Drain(options) => commands::drain::drain(options).await,
            Command::Undrain(options) => commands::drain::undrain(options).await,
            Command::Guard(_) | Command::Exec(_) => unreachable!("handled above"),
            Command::Serve(options) => commands::serve::run(*options).await,
            Command::Log(options) => commands::log::run(options).await,
            Command::Job(verb) => commands::job::run(verb).await,
            Command::Queue(verb) => commands::queue::run(verb).await,
            Command::Schedule(verb) => commands::schedule::run(verb).await,
            Command::Top(options) => commands::top::run(options).await,
            Command::Worker(options) => commands::worker::run(options).await,
            Command::Bench(options) => commands::bench::run(options).await,
            Command::Store(StoreCommand::Check(options)) => {
                commands::store_check::run(options).await
            }
        }
    });
    // A request that hangs must not hold up the exit: every verb has ended its work by now, or said
    // that it could not.
    runtime.shutdown_background();
    code
}

/// A server's log is read by people on a terminal, and by programs elsewhere. What other verbs log is about one
/// call, and for whoever made it.
fn log_format(command: &Command) -> LogFormat {
    match command {
        Command::Serve(options) => {
            options
                .log_format
                .unwrap_or_else(|| match std::io::stderr().is_terminal() {
                    true => LogFormat::Text,
                    false => LogFormat::Json,
                })
        }
        _ => LogFormat::Text,
    }
}

/// The log goes to stderr, at the level that `TENURE_LOG` names.
fn start_log(format: LogFormat) -> anyhow::Result<()> {
    let filter = std::env::var("TENURE_LOG")
        .ok()
        .filter(|filter| !filter.is_empty())
        .unwrap_or_else(|| "warn".to_owned());
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| {
            output::Hinted::new(
                error,
                "try TENURE_LOG=info, or TENURE_LOG=tenure_store=debug",
            )
        })
        .context("cannot read TENURE_LOG")?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(output::Paint::of(&std::io::stderr()).is_on());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}
