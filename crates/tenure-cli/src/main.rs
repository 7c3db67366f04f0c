//! The `tenure` command.
//!
//! stdout is data, stderr is everything else. The exit code answers the question that was asked: 0 is yes, 1 is no, 2
//! means that the answer could not be determined. A mistake on the command line is also 2: a script that asks whether
//! a bucket can be trusted must not take a mistyped flag for a no.

#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        reason = "what runs programs is for Linux, and its options are there all the same"
    )
)]

use std::ffi::OsString;
use std::io::IsTerminal;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use anyhow::Context;
use tokio::runtime::Runtime;

mod args;
mod commands;
mod log;
#[cfg(feature = "otel")]
mod otel;
mod output;
mod signals;
mod stderr;
mod times;

use args::{Command, LogFormat, StoreCommand};

/// The tests of this binary have their own allocator, which counts allocations.
#[cfg(all(not(test), target_os = "linux"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The answer is no.
const EXIT_NO: u8 = 1;

/// The question could not be answered.
const EXIT_BROKEN: u8 = 2;

fn main() -> ExitCode {
    stderr::tell_panics();
    let code = part(std::env::args_os().skip(1)).unwrap_or_else(|| {
        let command = match args::parse() {
            Ok(command) => command,
            Err(code) => return Ok(code),
        };
        run(command)
    });
    let code = code.unwrap_or_else(|error| {
        output::error(&error);
        ExitCode::from(EXIT_BROKEN)
    });
    stderr::finish(stderr::PATIENCE);
    code
}

/// The parts of `run` and `worker` that are separate processes. They have to stay small, since there is one for each
/// program, and they share the program's stderr. A slow reader must not delay them.
fn part<W: Iterator<Item = OsString>>(mut words: W) -> Option<anyhow::Result<ExitCode>> {
    let run: fn(W) -> anyhow::Result<ExitCode> = match words.next()?.to_str()? {
        "__guard" => commands::guard::run,
        "__exec" => commands::exec::run,
        _ => return None,
    };
    stderr::hurry();
    Some(run(words))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let runs_programs = matches!(command, Command::Run(_) | Command::Worker(_));
    if runs_programs && std::process::id() == 1 {
        return commands::init::run(&command);
    }
    // Started through a link, as the child of process 1 is, the process would be called `exe`.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"tenure");
    // A long-running process must not wait for the reader of its stderr.
    if runs_programs || matches!(command, Command::Serve(_)) {
        stderr::start();
    }
    let format = log_format(&command);
    if format == LogFormat::Json {
        output::tell_in_json();
    }
    let runtime = runtime()?;
    // Only verbs that run for long are traced; the others are over too soon to be worth it.
    let is_traced = matches!(command, Command::Serve(_) | Command::Worker(_));
    let export = log::start(format, is_traced, runtime.handle())?;
    let work = async {
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
            Command::Serve(options) => commands::serve::run(*options).await,
            Command::Log(options) => commands::log::run(options).await,
            Command::Job(verb) => commands::job::run(verb).await,
            Command::Queue(verb) => commands::queue::run(verb).await,
            Command::Schedule(verb) => commands::schedule::run(verb).await,
            #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
            Command::Outbox(verb) => Box::pin(commands::outbox::run(verb)).await,
            Command::Import(options) => commands::import::run(options).await,
            Command::Top(options) => commands::top::run(options).await,
            Command::Worker(options) => commands::worker::run(options).await,
            Command::Bench(options) => commands::bench::run(options).await,
            Command::Completions(options) => commands::completions::run(&options),
            Command::Man(options) => commands::man::run(&options),
            Command::Help(_) => Ok(args::print_help()),
            Command::Store(StoreCommand::Check(options)) => {
                commands::store_check::run(options).await
            }
        }
    };
    let code = with_threads(|| runtime.block_on(work)).flatten();
    let code = match code {
        Ok(_) if commands::replaced::is_over() => Ok(ExitCode::from(EXIT_BROKEN)),
        code => code,
    };
    export.finish();
    // A request that hangs must not delay the exit: every verb has finished its work by now, or reported that it
    // could not.
    runtime.shutdown_background();
    code
}

/// The runtime of all verbs.
fn runtime() -> anyhow::Result<Runtime> {
    let built = with_threads(|| {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
    });
    built?.context("cannot start the threads of this process")
}

/// Runs work and turns a panic of Tokio's for lack of threads into an error: it is not a bug of this program, and not
/// worth a backtrace.
fn with_threads<T>(work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    done.map_err(|panic| {
        if !stderr::is_shortage(&*panic) {
            std::panic::resume_unwind(panic);
        }
        output::Hinted::new(stderr::NO_THREADS, stderr::MORE_THREADS).into()
    })
}

/// A broker's log is for people on a terminal, and for programs elsewhere. Other verbs log about one call, for its
/// caller.
fn log_format(command: &Command) -> LogFormat {
    match command {
        Command::Serve(options) => options.log_format.unwrap_or_else(|| {
            if std::io::stderr().is_terminal() {
                LogFormat::Text
            } else {
                LogFormat::Json
            }
        }),
        _ => LogFormat::Text,
    }
}
