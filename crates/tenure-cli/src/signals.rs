//! Being asked to stop: Ctrl-C and SIGTERM, as something to wait for.

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// From the moment this exists the signals end nothing by themselves: whoever holds it waits for them.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// What the user or the system asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stop {
    Interrupt,
    Terminate,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let install = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: install(SignalKind::interrupt())?,
            terminate: install(SignalKind::terminate())?,
        })
    }

    /// The next signal. Cancelling loses none.
    pub(crate) async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
        }
    }
}

impl Stop {
    /// 128 plus the number of the signal, as shells report it.
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Stop::Interrupt => 130,
            Stop::Terminate => 143,
        })
    }
}
