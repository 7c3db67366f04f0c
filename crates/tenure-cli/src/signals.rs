//! Being asked to stop: Ctrl-C and SIGTERM, as something to wait for.

use std::process::ExitCode;

use anyhow::Context;
use rustix::process::Signal as Number;
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

/// Signals that ask for nothing of this process, and are passed on to the program that it runs.
#[derive(Debug)]
pub(crate) struct Passed {
    hang_up: Signal,
    user_1: Signal,
    user_2: Signal,
}

fn install(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot listen for signals")
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
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

impl Passed {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            hang_up: install(SignalKind::hangup())?,
            user_1: install(SignalKind::user_defined1())?,
            user_2: install(SignalKind::user_defined2())?,
        })
    }

    /// The next signal. Cancelling loses none.
    pub(crate) async fn next(&mut self) -> Number {
        tokio::select! {
            _ = self.hang_up.recv() => Number::HUP,
            _ = self.user_1.recv() => Number::USR1,
            _ = self.user_2.recv() => Number::USR2,
        }
    }
}

impl Stop {
    pub(crate) fn signal(self) -> Number {
        match self {
            Stop::Interrupt => Number::INT,
            Stop::Terminate => Number::TERM,
        }
    }

    /// 128 plus the number of the signal, as shells report it.
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Stop::Interrupt => 130,
            Stop::Terminate => 143,
        })
    }
}
