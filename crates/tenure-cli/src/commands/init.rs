//! Process 1 of a container, and nothing else.
//!
//! In a container, a process that loses its parent becomes a child of process 1, which has to reap it when it has
//! ended. Process 1 also receives the signals that are meant for the work. So if `tenure run` or `tenure worker` is
//! started as process 1, it starts itself once more as its child, passes signals on, reaps all processes that end,
//! and exits as its child does.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitCode, ExitStatus};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::guard::THIS_PROGRAM;
use crate::args::Command;
use crate::signals::is_ignored;

/// The signals that are passed on. Signals that were ignored from the start stay ignored, and the child inherits that
/// (`nohup`), except those that the child acts on in any case.
const PASSED: [Signal; 6] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// The signals that `tenure run` and `tenure worker` act on even if they were ignored, as shells do for processes in
/// the background.
const ACTED_ON: [Signal; 2] = [Signal::TERM, Signal::INT];

/// The signals that `tenure run` passes on to its program in any case.
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
    // Set up before the child starts, so that its end is not missed.
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
        // Its own group, or signals that the terminal sends to the group would reach the child twice.
        .process_group(0)
        .spawn()
        .context("cannot start the process that does the work")?;
    let child = Pid::from_child(&child);
    // Ctrl-C goes to the child. Without a terminal this fails, which does not matter.
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

/// The exit code as a shell reports it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(u8::try_from(code.unwrap_or(1) & 0xff).unwrap_or(u8::MAX))
}
