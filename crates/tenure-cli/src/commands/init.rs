//! Process 1 of a container: nothing but that.
//!
//! A process that loses its parent in a container becomes a child of process 1, which has to let go of it when it has
//! ended; and process 1 is sent the signals that are for the work. So where `tenure run` or `tenure worker` would
//! be process 1, that process starts it once more as its child, passes signals on, lets go of whatever ends, and
//! ends as its child does.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitCode, ExitStatus};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::guard::THIS_PROGRAM;
use crate::args::Command;
use crate::signals::is_ignored;

/// What is passed on. Where it was ignored from the start, the child is to find it so (`nohup`), and process 1 leaves it
/// alone; but not what the child acts on in any case.
const PASSED: [Signal; 6] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// What `tenure run` and `tenure worker` act on whether or not it was ignored, as a shell has it for what it starts in the
/// background.
const ACTED_ON: [Signal; 2] = [Signal::TERM, Signal::INT];

/// What `tenure run` passes on to its program in any case.
const ACTED_ON_BY_RUN: [Signal; 2] = [Signal::USR1, Signal::USR2];

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let is_run = matches!(command, Command::Run(_));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot listen for signals")?;
    runtime.block_on(serve(is_run))
}

async fn serve(is_run: bool) -> anyhow::Result<ExitCode> {
    const FAILED: &str = "cannot listen for signals";
    let (sender, mut signals) = tokio::sync::mpsc::unbounded_channel();
    // Before the child is there: its end is not missed.
    let mut ended = signal(SignalKind::child()).context(FAILED)?;
    let is_acted_on = |it| ACTED_ON.contains(&it) || (is_run && ACTED_ON_BY_RUN.contains(&it));
    let is_wanted = |&it: &Signal| is_acted_on(it) || !is_ignored(it);
    for passed in PASSED.into_iter().filter(is_wanted) {
        let mut listener = signal(SignalKind::from_raw(passed.as_raw())).context(FAILED)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while listener.recv().await.is_some() && sender.send(passed).is_ok() {}
        });
    }
    let child = std::process::Command::new(THIS_PROGRAM)
        .arg0("tenure")
        .args(std::env::args_os().skip(1))
        // Of its own, or what the terminal sends to the group would reach the child twice.
        .process_group(0)
        .spawn()
        .context("cannot start the process that does the work")?;
    let child = Pid::from_child(&child);
    // Ctrl-C is for the child. Without a terminal there is nothing to give away.
    let _ = rustix::termios::tcsetpgrp(io::stdin(), child);
    loop {
        tokio::select! {
            Some(passed) = signals.recv() => drop(kill_process(child, passed)),
            _ = ended.recv() => {}
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == child {
                return Ok(code(ExitStatus::from_raw(status.as_raw())));
            }
        }
    }
}

/// As a shell reports it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(u8::try_from(code.unwrap_or(1) & 0xff).unwrap_or(u8::MAX))
}
