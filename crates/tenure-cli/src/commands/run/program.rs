//! A program under its guard, as `tenure run` sees it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, Command};

use crate::commands::guard::THIS_PROGRAM;
use crate::commands::guard::message::{Order, Report, Status, Until, Why};

/// How often to look whether a group that was killed without its guard is gone.
const LOOK: Duration = Duration::from_millis(10);

/// A running program. Dropping it makes the guard kill the program.
pub(super) struct Program {
    guard: Child,
    /// The same socket twice. Orders do not go through the runtime, which would first have to find out that
    /// the socket can be written to: the first order could get lost.
    orders: UnixStream,
    reports: Lines<BufReader<tokio::net::UnixStream>>,
    /// The program's process group; `None` until the guard has started it.
    group: Option<Pid>,
    /// What the guard has said of the end: kept here, since waiting for the guard's own end may be
    /// cancelled.
    reported: Option<Ended>,
}

/// A program whose end is certain: nothing of it is left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) status: Status,
    pub(super) why: Why,
}

impl Program {
    /// Starts a guard, which starts the program.
    pub(super) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        until: Until,
        kill_after: Duration,
    ) -> anyhow::Result<Self> {
        const FAILED: &str = "cannot start the guard of the program";
        let (ours, theirs) = UnixStream::pair().context(FAILED)?;
        let mut guard = std::process::Command::new(THIS_PROGRAM);
        guard
            .arg0("tenure")
            .arg("__guard")
            .arg(kill_after.as_millis().to_string())
            .arg("--")
            .args(command)
            .envs(environment)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Out of reach of Ctrl-C and Ctrl-Z, which the terminal sends to the group of `tenure run`.
            .process_group(0);
        let guard = Command::from(guard).spawn().context(FAILED)?;
        ours.set_nonblocking(true).context(FAILED)?;
        let orders = ours.try_clone().context(FAILED)?;
        let reports = tokio::net::UnixStream::from_std(ours).context(FAILED)?;
        let program = Self {
            guard,
            orders,
            reports: BufReader::new(reports).lines(),
            group: None,
            reported: None,
        };
        program.order(Order::Until(until));
        Ok(program)
    }

    /// Gives an order without waiting. One that does not fit into the socket is lost: the guard is stopped
    /// then, and [`Program::end_without_guard`] is what helps.
    pub(super) fn order(&self, order: Order) {
        let _ = (&self.orders).write(format!("{order}\n").as_bytes());
    }

    /// Waits for the end of the program, and of its guard. A cancelled wait loses nothing.
    pub(super) async fn ended(&mut self) -> anyhow::Result<Ended> {
        loop {
            if let Some(ended) = self.reported {
                self.guard
                    .wait()
                    .await
                    .context("cannot wait for the guard")?;
                return Ok(ended);
            }
            let line = match self.reports.next_line().await {
                Ok(Some(line)) => line,
                // The guard is gone, and has not said how the program ended.
                Ok(None) | Err(_) => return self.end_without_guard().await,
            };
            match Report::parse(&line) {
                Some(Report::Started(pid)) => self.group = Pid::from_raw(pid),
                Some(Report::Ended { status, why }) => self.reported = Some(Ended { status, why }),
                None => return self.end_without_guard().await,
            }
        }
    }

    /// The guard was killed, is stopped, or talks nonsense: does its work, as far as the process group
    /// goes. The kernel kills the program itself together with the guard.
    pub(super) async fn end_without_guard(&mut self) -> anyhow::Result<Ended> {
        self.hear_of_the_start().await;
        let _ = self.guard.start_kill();
        if let Some(group) = self.group {
            // An error means that it is gone.
            while kill_process_group(group, Signal::KILL).is_ok()
                && test_kill_process_group(group).is_ok()
            {
                tokio::time::sleep(LOOK).await;
            }
        }
        let status = self
            .guard
            .wait()
            .await
            .context("cannot wait for the guard")?;
        match status.code() {
            Some(0) | None => Ok(Ended {
                status: Status::Killed(Signal::KILL.as_raw()),
                why: Why::Late,
            }),
            // It has said why on stderr.
            Some(_) => Err(io::Error::other("the guard of the program failed").into()),
        }
    }

    /// A guard that died right after it started the program may have said so.
    async fn hear_of_the_start(&mut self) {
        while self.group.is_none() {
            let line = tokio::time::timeout(LOOK, self.reports.next_line()).await;
            match line.map(|line| line.map(|line| line.as_deref().map(Report::parse))) {
                Ok(Ok(Some(Some(Report::Started(pid))))) => self.group = Pid::from_raw(pid),
                _ => return,
            }
        }
    }
}
