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

/// How often to check whether processes that were killed without their guard are gone.
const LOOK: Duration = Duration::from_millis(10);

/// How often to repeat that a program cannot be ended.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// The error of a program whose guard was killed.
pub(crate) const UNGUARDED: &str = "the guard of the program was killed, and the program with it";

/// What to run, and how.
pub(crate) struct Start<'a> {
    /// The guard's name in `ps`, such as `indexer/3`.
    pub(crate) name: &'a str,
    pub(crate) command: &'a [OsString],
    /// Changes to its environment; `None` removes a variable.
    pub(crate) environment: Vec<(&'static str, Option<String>)>,
    /// Which of this process's variables are hidden from it, by name and value.
    pub(crate) hides: fn(&str, &OsStr) -> bool,
    pub(crate) until: Until,
    pub(crate) kill_after: Duration,
    /// Its standard input. If set, its output is piped as well; otherwise it writes to this process's output.
    pub(crate) stdin: Option<OwnedFd>,
}

/// A running program. Dropping it makes the guard kill the program.
pub(crate) struct Program {
    guard: Option<Child>,
    /// The same socket a second time. Orders do not go through the runtime, which would first have to learn that the
    /// socket is writable: the first order could get lost.
    orders: UnixStream,
    reports: Lines<BufReader<tokio::net::UnixStream>>,
    /// The program's process group; `None` until the guard has started it.
    group: Option<Pid>,
    /// The process that may not be killed, if there is one.
    stuck: Option<Pid>,
    /// The end as the guard reported it. Kept here, since waiting for the guard's own end may be cancelled.
    reported: Option<Ended>,
}

/// A program that has certainly ended: nothing of it is left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    pub(crate) why: Why,
    /// Whether the program was started. If not, it never ran.
    pub(crate) has_run: bool,
}

/// What happens to a program.
#[derive(Debug)]
pub(crate) enum ProgramEvent {
    /// The guard has acknowledged an order that extends trust, and will kill the program at this moment.
    Heard(Moment),
    /// One of its processes may not be killed: it keeps running, and whatever waits for its end keeps waiting.
    Stuck(Stuck),
    Ended(Ended),
}

/// A process that may not be killed. Displays as a message for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stuck(String);

impl Program {
    /// Starts a guard, which then starts the program.
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
            // Its own group, since the terminal sends Ctrl-C and Ctrl-Z to the group of `tenure run`.
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
        // The order is in the socket before the guard starts, so the guard does not wait for it.
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

    /// The pipes of the program's output, if it is piped. Can be taken once.
    pub(crate) fn take_output(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let guard = self.guard.as_mut();
        guard.map_or((None, None), |it| (it.stdout.take(), it.stderr.take()))
    }

    /// Gives an order without waiting. An order that does not fit into the socket is lost. That happens only to a
    /// stopped guard, for which [`Program::end_without_guard`] is used.
    pub(crate) fn order(&self, order: Order) {
        let _ = (&self.orders).write(format!("{order}\n").as_bytes());
    }

    /// Whether the guard has reported that the program runs. Before that, nothing could run for too long.
    pub(crate) fn is_started(&self) -> bool {
        self.group.is_some()
    }

    /// Whether the guard itself has reported how the program ended.
    pub(crate) fn is_reported(&self) -> bool {
        self.reported.is_some()
    }

    /// Whether one of its processes may not be killed. Then one can only wait, or a user with the permission has to
    /// kill it.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// Waits for the next event of the program. A cancelled wait loses nothing.
    pub(crate) async fn next(&mut self) -> anyhow::Result<ProgramEvent> {
        loop {
            if let Some(ended) = self.reported {
                self.wait_for_guard().await?;
                return Ok(ProgramEvent::Ended(ended));
            }
            let line = match self.reports.next_line().await {
                Ok(Some(line)) => line,
                // The guard is gone without reporting how the program ended.
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

    /// Does the work of a guard that was killed, is stopped, or sends invalid reports, and returns that the program has
    /// ended for this reason. The kernel kills the program itself together with the guard; this process inherits the
    /// rest. Waits until nothing is left. If something may not be killed, returns that first, and has to be called
    /// again. A cancelled wait loses nothing.
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
            // The guard has written the reason to stderr.
            Some(_) => Err(io::Error::other("the guard of the program failed").into()),
        }
    }

    /// All that a process can do that does not inherit the guard's orphans.
    fn kill_group(&self) -> Left {
        use rustix::io::Errno;
        match self
            .group
            .map(|group| (group, kill_process_group(group, Signal::KILL)))
        {
            None | Some((_, Err(Errno::SRCH))) => Left::Nothing,
            Some((group, Err(_))) => Left::Stuck(group),
            // Signals to zombies succeed as well. Their parent is gone, so they will soon be reaped.
            Some((_, Ok(()))) => Left::Dying,
        }
    }

    /// The event for a process that may not be killed, unless it was already reported.
    fn note_stuck(&mut self, process: Option<Pid>) -> Option<Stuck> {
        let process = process?;
        (self.stuck.replace(process) != Some(process)).then(|| {
            let name = family::name(process);
            Stuck(format!(
                "this user may not kill {name}, which keeps running"
            ))
        })
    }

    /// Reads a report of the start that a guard may have sent just before it died.
    async fn hear_of_the_start(&mut self) {
        while self.group.is_none() {
            let line = tokio::time::timeout(LOOK, self.reports.next_line()).await;
            match line.map(|line| line.map(|line| line.as_deref().map(Report::parse))) {
                Ok(Ok(Some(Some(Report::Started(pid))))) => self.group = Pid::from_raw(pid),
                _ => return,
            }
        }
    }

    /// Waits for the guard and returns its exit code, if it has one. Only then is it removed from the list of guards.
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
    /// The guard kills the program when its socket is closed. It is waited for, so that a later process with its id is
    /// not taken for a guard.
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

/// Warns that a program cannot be ended, at once and then now and then.
#[derive(Debug, Default)]
pub(crate) struct Complaint {
    about: Option<Stuck>,
    again_at: Option<Instant>,
}

impl Complaint {
    /// Warns now; `meaning` says what is kept because of this, and what to do.
    pub(crate) fn say(&mut self, about: Stuck, meaning: &str) {
        output::warning(&format!("{about}: {meaning}"));
        self.about = Some(about);
        self.again_at = Some(Instant::now() + SAY_AGAIN);
    }

    /// Repeats a warning, since its meaning has changed.
    pub(crate) fn say_again(&mut self, meaning: &str) {
        if let Some(about) = self.about.take() {
            self.say(about, meaning);
        }
    }

    /// Waits until it is time to repeat the warning; for ever without one. Its meaning may have changed by then.
    pub(crate) async fn is_due(&self) {
        match self.again_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

/// Sends the first order, with the program's standard input if it has one.
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
