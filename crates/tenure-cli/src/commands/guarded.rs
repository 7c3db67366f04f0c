//! A program under its guard, as `tenure run` and `tenure worker` see it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process_group};
use tenure::core::Moment;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::time::{Instant, sleep};

use super::family::{self, Left};
use super::files;
use super::guard::message::{Order, Report, Status, Until, Why};
use super::guard::{EAGER_COMMIT, EAGER_COMMIT_OFF, STDIN_NULL, STDIN_SENT, THIS_PROGRAM};
use crate::output;

mod orphans;

pub(crate) use orphans::{adopt, is_any_left};

/// How often to look whether what was killed without its guard is gone.
const LOOK: Duration = Duration::from_millis(10);

/// How often to say again that a program cannot be ended.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// How a program ended whose guard was killed.
pub(crate) const UNGUARDED: &str = "the guard of the program was killed, and the program with it";

/// What to run, and how.
pub(crate) struct Start<'a> {
    /// What the guard is called, for `ps`: `indexer/3`, say.
    pub(crate) name: &'a str,
    pub(crate) command: &'a [OsString],
    /// What its environment has; `None` is taken out of it.
    pub(crate) environment: Vec<(&'static str, Option<String>)>,
    /// Which of this process's variables it does not have, by name and value.
    pub(crate) hides: fn(&str, &OsStr) -> bool,
    pub(crate) until: Until,
    pub(crate) kill_after: Duration,
    /// Its standard input. Its output is then piped as well, and otherwise that of this process.
    pub(crate) stdin: Option<OwnedFd>,
}

/// A running program. Dropping it makes the guard kill the program.
pub(crate) struct Program {
    guard: Option<Child>,
    /// The same socket twice. Orders do not go through the runtime, which would first have to find out that
    /// the socket can be written to: the first order could get lost.
    orders: UnixStream,
    reports: Lines<BufReader<tokio::net::UnixStream>>,
    /// The program's process group; `None` until the guard has started it.
    group: Option<Pid>,
    /// Which process may not be killed, if one may not.
    stuck: Option<Pid>,
    /// What the guard has said of the end: kept here, since waiting for the guard's own end may be
    /// cancelled.
    reported: Option<Ended>,
}

/// A program whose end is certain: nothing of it is left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    pub(crate) why: Why,
    /// The program was started. Otherwise nothing of it ever ran.
    pub(crate) has_run: bool,
}

/// What happens to a program.
#[derive(Debug)]
pub(crate) enum ProgramEvent {
    /// The guard has acknowledged an order that extends trust, by when it will kill the program.
    Heard(Moment),
    /// A process of it may not be killed: it goes on, and so does what depends on its end.
    Stuck(Stuck),
    Ended(Ended),
}

/// A process that may not be killed. Shows as what to tell people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stuck(String);

impl Program {
    /// Starts a guard, which starts the program.
    pub(crate) fn start(start: Start<'_>) -> anyhow::Result<Self> {
        const FAILED: &str = "cannot start the guard of the program";
        files::check_room().context(FAILED)?;
        let (ours, theirs) = UnixStream::pair().context(FAILED)?;
        let stdin = match start.stdin {
            Some(_) => STDIN_SENT,
            None => STDIN_NULL,
        };
        let mut guard = std::process::Command::new(THIS_PROGRAM);
        guard
            .arg0(format!("tenure: guard of {}", start.name))
            .arg("__guard")
            .arg(start.kill_after.as_millis().to_string())
            .arg(files::inherited().to_string())
            .arg(stdin)
            .arg("--")
            .args(start.command)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Out of reach of Ctrl-C and Ctrl-Z, which the terminal sends to the group of `tenure run`.
            .process_group(0);
        if std::env::var_os(EAGER_COMMIT).is_none() {
            guard.env(EAGER_COMMIT, EAGER_COMMIT_OFF);
        }
        if start.stdin.is_some() {
            guard.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        for (name, value) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| (start.hides)(name, &value))
            {
                guard.env_remove(name);
            }
        }
        for (name, value) in start.environment {
            match value {
                Some(value) => guard.env(name, value),
                None => guard.env_remove(name),
            };
        }
        ours.set_nonblocking(true).context(FAILED)?;
        let orders = ours.try_clone().context(FAILED)?;
        let reports = tokio::net::UnixStream::from_std(ours).context(FAILED)?;
        // In the socket before the guard is there: it does not wait for it.
        first_order(&orders, start.until, start.stdin.as_ref()).context(FAILED)?;
        let guard = orphans::spawn(guard).context(FAILED)?;
        Ok(Self {
            guard: Some(guard),
            orders,
            reports: BufReader::new(reports).lines(),
            group: None,
            stuck: None,
            reported: None,
        })
    }

    /// What the program writes, if that is piped. Once.
    pub(crate) fn take_output(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let guard = self.guard.as_mut();
        guard.map_or((None, None), |it| (it.stdout.take(), it.stderr.take()))
    }

    /// Gives an order without waiting. One that does not fit into the socket is lost: the guard is stopped
    /// then, and [`Program::end_without_guard`] is what helps.
    pub(crate) fn order(&self, order: Order) {
        let _ = (&self.orders).write(format!("{order}\n").as_bytes());
    }

    /// Whether the guard has said that it runs. Before that there is nothing that could run for too long.
    pub(crate) fn is_started(&self) -> bool {
        self.group.is_some()
    }

    /// Whether the guard itself has said how the program ended.
    pub(crate) fn is_reported(&self) -> bool {
        self.reported.is_some()
    }

    /// Whether a process of it may not be killed. Then only time helps, or someone who may.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// Waits for the next thing that happens to the program. A cancelled wait loses nothing.
    pub(crate) async fn next(&mut self) -> anyhow::Result<ProgramEvent> {
        loop {
            if let Some(ended) = self.reported {
                self.wait_for_guard().await?;
                return Ok(ProgramEvent::Ended(ended));
            }
            let line = match self.reports.next_line().await {
                Ok(Some(line)) => line,
                // The guard is gone, and has not said how the program ended.
                Ok(None) | Err(_) => return self.end_without_guard(Why::Unguarded).await,
            };
            match Report::parse(&line) {
                Some(Report::Started(pid)) => self.group = Pid::from_raw(pid),
                Some(Report::Heard(kill_at)) => return Ok(ProgramEvent::Heard(kill_at)),
                Some(Report::Stuck(pid)) => {
                    if let Some(stuck) = self.note_stuck(Pid::from_raw(pid)) {
                        return Ok(ProgramEvent::Stuck(stuck));
                    }
                }
                Some(Report::Ended { status, why }) => {
                    let has_run = self.is_started();
                    self.reported = Some(Ended {
                        status,
                        why,
                        has_run,
                    });
                }
                None => return self.end_without_guard(Why::Unguarded).await,
            }
        }
    }

    /// The guard was killed, is stopped, or talks nonsense: does its work, and says that the program has ended for this
    /// reason. The kernel kills the program itself
    /// together with the guard; this process inherits the rest. Waits until nothing is left, but says first if
    /// something may not be killed; to be called again then. A cancelled wait loses nothing.
    pub(crate) async fn end_without_guard(&mut self, why: Why) -> anyhow::Result<ProgramEvent> {
        self.hear_of_the_start().await;
        if let Some(guard) = &mut self.guard {
            let _ = guard.start_kill();
        }
        let status = self.wait_for_guard().await?;
        loop {
            let mut left = orphans::kill();
            if !orphans::is_adopter() {
                left = self.kill_group();
            }
            match left {
                Left::Nothing => break,
                Left::Dying => {}
                Left::Stuck(process) => {
                    if let Some(stuck) = self.note_stuck(Some(process)) {
                        return Ok(ProgramEvent::Stuck(stuck));
                    }
                }
            }
            sleep(LOOK).await;
        }
        match status {
            Some(0) | None => Ok(ProgramEvent::Ended(Ended {
                status: Status::Killed(Signal::KILL.as_raw()),
                why,
                has_run: self.is_started(),
            })),
            // It has said why on stderr.
            Some(_) => Err(io::Error::other("the guard of the program failed").into()),
        }
    }

    /// All that can be done by a process that does not inherit what the guard leaves.
    fn kill_group(&self) -> Left {
        use rustix::io::Errno;
        match self
            .group
            .map(|group| (group, kill_process_group(group, Signal::KILL)))
        {
            None | Some((_, Err(Errno::SRCH))) => Left::Nothing,
            Some((group, Err(_))) => Left::Stuck(group),
            // Zombies may be killed, too. Their parent is gone, so they are about to be let go of.
            Some((_, Ok(()))) => Left::Dying,
        }
    }

    /// What to say of a process that may not be killed, unless that was said.
    fn note_stuck(&mut self, process: Option<Pid>) -> Option<Stuck> {
        let process = process?;
        (self.stuck.replace(process) != Some(process)).then(|| {
            let name = family::name(process);
            Stuck(format!(
                "this user may not kill {name}, which keeps running"
            ))
        })
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

    /// The guard's exit code, if it has one. It is let go of when it is certain to be gone.
    async fn wait_for_guard(&mut self) -> anyhow::Result<Option<i32>> {
        let Some(guard) = &mut self.guard else {
            return Ok(None);
        };
        let pid = guard.id();
        let status = guard.wait().await.context("cannot wait for the guard")?;
        orphans::let_go(pid);
        self.guard = None;
        Ok(status.code())
    }
}

impl Drop for Program {
    /// The guard kills the program when its socket is closed. It is waited for, so that its number is not taken
    /// for a guard's when another process has it.
    fn drop(&mut self) {
        if let (Some(mut guard), Ok(runtime)) =
            (self.guard.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move {
                let pid = guard.id();
                let _ = guard.wait().await;
                orphans::let_go(pid);
            });
        }
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Says that a program cannot be ended, once and then now and then.
#[derive(Debug, Default)]
pub(crate) struct Complaint {
    about: Option<Stuck>,
    again_at: Option<Instant>,
}

impl Complaint {
    /// Says it now, with what is kept because of it and what to do.
    pub(crate) fn say(&mut self, about: Stuck, meaning: &str) {
        output::warning(&format!("{about}: {meaning}"));
        self.about = Some(about);
        self.again_at = Some(Instant::now() + SAY_AGAIN);
    }

    /// Says it again, if it was said: what it means is another thing now.
    pub(crate) fn say_again(&mut self, meaning: &str) {
        if let Some(about) = self.about.take() {
            self.say(about, meaning);
        }
    }

    /// Waits until it is time to say it again; for ever, if it was not said. What it means may have changed.
    pub(crate) async fn is_due(&self) {
        match self.again_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

/// Sends the first order, and with it the program's standard input, if it has one.
fn first_order(orders: &UnixStream, until: Until, stdin: Option<&OwnedFd>) -> io::Result<()> {
    let line = format!("{}\n", Order::Until(until));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = stdin.iter().map(AsFd::as_fd).collect();
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::other("there is no room for a file"));
    }
    let line = [IoSlice::new(line.as_bytes())];
    sendmsg(orders, &line, &mut control, SendFlags::empty())?;
    Ok(())
}
