//! `tenure __exec`: the last step before a program of `tenure run` or `tenure worker`. Asks the kernel to kill this
//! process if its guard dies, and then becomes the program, for which that request stays in force.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::files;
use crate::output::{self, Hinted};

/// The exit codes of shells for a program that is not found, and for one that cannot be started.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_CANNOT_START: u8 = 126;

/// For how long to try again when memory or files are short, and how often.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// `__exec GUARD FILES -- CMD...`
pub(crate) fn run(mut words: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot bind the program to its guard")?;
    let mut number = || words.next()?.to_str()?.parse::<u64>().ok();
    let (guard, files) = (number(), number());
    let command: Vec<OsString> = words.skip(1).collect();
    // The guard may have died before that request.
    let parent = getppid().and_then(|parent| u64::try_from(parent.as_raw_nonzero().get()).ok());
    let (Some([program, rest @ ..]), Some(files), true) = (
        Some(&command[..]),
        files,
        guard.is_some() && guard == parent,
    ) else {
        return Err(Hinted::new(
            "__exec is an internal part of `tenure run` and `tenure worker`",
            "see `tenure run --help`",
        )
        .into());
    };
    files::limit(files);
    let error = become_program(program, rest);
    let code = match error.kind() {
        io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_CANNOT_START,
    };
    let program = program.to_string_lossy().into_owned();
    output::error(&anyhow::Error::from(error).context(format!("cannot start {program}")));
    Ok(ExitCode::from(code))
}

/// Becomes the program, or returns the error. Waits and tries again if a resource is short.
fn become_program(program: &OsString, arguments: &[OsString]) -> io::Error {
    let give_up_at = Instant::now() + PATIENCE;
    loop {
        let error = Command::new(program).args(arguments).exec();
        let is_short = Errno::from_io_error(&error).is_some_and(files::is_short);
        if !is_short || Instant::now() >= give_up_at {
            return error;
        }
        std::thread::sleep(PAUSE);
    }
}
