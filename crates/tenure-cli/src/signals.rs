//! Waiting to be asked to stop: Ctrl-C, SIGTERM, and the end of the terminal.

use std::fs::File;
use std::process::ExitCode;

use anyhow::Context;
use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// While this exists, the signals do not end the process: the owner waits for them.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: HangUp,
}

/// SIGHUP, which has two meanings: the terminal is gone, or anything that the user decides.
#[derive(Debug)]
struct HangUp {
    /// `None` if it is not listened for: by default, and if it was ignored from the start (`nohup`). Then it stays
    /// ignored for this process and its programs.
    signal: Option<Signal>,
    /// Whether it asks to stop even if the terminal is still there.
    always_stops: bool,
    had_terminal: bool,
}

/// A request to stop, from the user or the system.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stop {
    Interrupt,
    Terminate,
}

/// Signals that are not for this process, and are passed on to the program that it runs.
#[derive(Debug)]
pub(crate) struct Passed {
    hang_up: HangUp,
    user_1: Signal,
    user_2: Signal,
}

fn install(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot listen for signals")
}

/// Whether this process ignores the signal, from its start or since.
pub(crate) fn is_ignored(signal: Number) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut ignored = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored
        .next()
        .map(|mask| u64::from_str_radix(mask.trim(), 16));
    ignored.is_some_and(|mask| mask.is_ok_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1))
}

/// Whether this process has a controlling terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

impl HangUp {
    fn none() -> Self {
        Self {
            signal: None,
            always_stops: false,
            had_terminal: false,
        }
    }

    fn new(always_stops: bool) -> anyhow::Result<Self> {
        let is_wanted = !is_ignored(Number::HUP);
        Ok(Self {
            signal: is_wanted
                .then(|| install(SignalKind::hangup()))
                .transpose()?,
            always_stops,
            had_terminal: has_terminal(),
        })
    }

    /// Waits for a SIGHUP that asks to stop, or for one that does not.
    async fn next(&mut self, stops: bool) {
        loop {
            match &mut self.signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
            let is_gone = self.had_terminal && !has_terminal();
            if (self.always_stops || is_gone) == stops {
                return;
            }
        }
    }
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: install(SignalKind::interrupt())?,
            terminate: install(SignalKind::terminate())?,
            hang_up: HangUp::none(),
        })
    }

    /// Like [`Signals::new`], but SIGHUP asks to stop as well.
    pub(crate) fn with_hang_up() -> anyhow::Result<Self> {
        Ok(Self {
            hang_up: HangUp::new(true)?,
            ..Self::new()?
        })
    }

    /// Like [`Signals::new`], but SIGHUP asks to stop if the terminal is gone. Otherwise it is one of [`Passed`].
    pub(crate) fn with_terminal() -> anyhow::Result<Self> {
        Ok(Self {
            hang_up: HangUp::new(false)?,
            ..Self::new()?
        })
    }

    /// The next signal. Cancelling loses none.
    pub(crate) async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            () = self.hang_up.next(true) => Stop::Terminate,
        }
    }
}

impl Passed {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            hang_up: HangUp::new(false)?,
            user_1: install(SignalKind::user_defined1())?,
            user_2: install(SignalKind::user_defined2())?,
        })
    }

    /// The next signal. Cancelling loses none.
    pub(crate) async fn next(&mut self) -> Number {
        tokio::select! {
            () = self.hang_up.next(false) => Number::HUP,
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
