//! `tenure __exec`: the last step before a program of `tenure run` or `tenure worker`. Asks the kernel to
//! kill this process if its guard, or the worker, dies, and becomes the program, which keeps that.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::args::Exec;
use crate::output::{self, Hinted};

/// What shells return for a program that is not there, and for one that cannot be started.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_CANNOT_START: u8 = 126;

pub(crate) fn run(arguments: &Exec) -> anyhow::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot bind the program to its guard")?;
    // It may have died before that was asked for.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != arguments.guard) {
        return Err(Hinted::new(
            "__exec is a part of `tenure run` and `tenure worker`, which start it by themselves",
            "see `tenure run --help`",
        )
        .into());
    }
    let [program, rest @ ..] = &arguments.command[..] else {
        return Err(Hinted::new("no program was named", "see `tenure run --help`").into());
    };
    let error = Command::new(program).args(rest).exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_CANNOT_START,
    };
    let program = program.to_string_lossy().into_owned();
    output::error(&anyhow::Error::from(error).context(format!("cannot start {program}")));
    Ok(ExitCode::from(code))
}
