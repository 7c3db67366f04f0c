//! `tenure __guard`: the process between `tenure run` or `tenure worker` and a program, so that the program cannot
//! outlive trust, nor the process that runs it.
//!
//! # What is guaranteed
//!
//! The program and everything that descends from it are killed at the moment that `tenure run` was last
//! trusted until, or just before the lease of the job that `tenure worker` claimed ends, whatever has become of either
//! by then: dead, stopped, or too busy. If it dies, they are killed at once. Killed means the program's whole process group, and then every descendant that
//! has left the group or the session: the guard is the reaper of orphans below it, so none of them gets away.
//! Only when nothing is left does it report the end.
//!
//! # What is assumed
//!
//! - The guard itself runs. If it is killed, the kernel kills the program with it, and its owner, which inherits
//!   whatever the program has left, kills that. It acknowledges each order that extends trust; if it does not
//!   for as long as trust lasts, it is stopped, and its owner kills it and what it guards. Only where both are
//!   killed or stopped at about the same time does something live on: what the program has started, and of a
//!   stopped guard the program too.
//! - The owner had no children when it started (a shell that starts something in the background and then
//!   becomes `tenure run` leaves it some). Else it inherits nothing, and if the guard is killed only the
//!   program's process group is killed.
//! - The guard may kill the program. If the program has changed its user (sudo, setuid), the guard says so, and
//!   the shard or lease is kept until the program has ended; if trust ends before, the program runs on.
//! - What the program has others start for it (cron, systemd, a container engine, another host) does not
//!   descend from it.
//! - A whole machine that is paused pauses the guard too. The fencing token is for that.
//!
//! # How
//!
//! One thread, no runtime: `poll` on the socket to its owner, on the program's end, and on a timer that
//! counts suspend. Orders and reports are lines of text, see [`message`]. There is one guard for each program:
//! a process that has lost its parent no longer shows which program it came from. So a guard is to be small, and reads
//! its arguments itself.

use std::ffi::OsString;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, set_child_subreaper};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tenure::core::Moment;
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::files;
use crate::output::{self, Hinted};
use crate::signals::is_ignored;

mod family;
pub(crate) mod message;

use message::{Order, Report, Status, Until, Why};

/// The path of this very program, also after the file was replaced by a newer one.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// Where the program's standard input comes from: nowhere, or with the first order.
pub(crate) const STDIN_NULL: &str = "null";
pub(crate) const STDIN_SENT: &str = "sent";

/// A variable for the allocator: without it, it takes huge pages, 4 MB for a guard that needs a hundredth of that. The
/// guard takes it from the program's environment again, and knows by its value that it was not the user's.
pub(crate) const EAGER_COMMIT: &str = "MIMALLOC_ARENA_EAGER_COMMIT";
pub(crate) const EAGER_COMMIT_OFF: &str = "00";

/// How many bytes of orders may wait: more than a socket holds, so that one look sees all of them, the
/// latest too, also after this process was stopped for long.
const ORDERS_BYTES_MAX: usize = 1024 * 1024;

/// What shells return for a program that cannot be started.
const EXIT_CANNOT_START: i32 = 126;

/// `__guard KILL_AFTER_MS FILES STDIN -- CMD...`
struct Arguments {
    /// How long a program that was told to stop gets.
    kill_after: Duration,
    /// How many files the program may have open, for `__exec`.
    files: OsString,
    is_stdin_sent: bool,
    command: Vec<OsString>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        let kill_after = words.next()?.to_str()?.parse().ok()?;
        let files = words.next()?;
        let stdin = words.next()?;
        (words.next()? == "--").then_some(())?;
        Some(Self {
            kill_after: Duration::from_millis(kill_after),
            files,
            is_stdin_sent: stdin == STDIN_SENT,
            command: words.collect(),
        })
    }
}

pub(crate) fn run(words: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let (control, arguments) = match (control(), Arguments::parse(words)) {
        (Some(control), Some(arguments)) => (control, arguments),
        _ => {
            return Err(Hinted::new(
                "__guard is an internal part of `tenure run` and `tenure worker`",
                "see `tenure run --help`",
            )
            .into());
        }
    };
    // Started by way of a link, it would be called `exe`.
    let _ = rustix::thread::set_name(c"tenure-guard");
    outlive_signals()?;
    set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the reaper of orphans")?;
    let mut guard = Guard::new(control, arguments.kill_after)?;
    let (status, why) = guard.run(&arguments)?;
    guard.report(&Report::Ended { status, why });
    Ok(ExitCode::SUCCESS)
}

/// The socket to the owner, which is where the standard input would be.
fn control() -> Option<UnixStream> {
    let stdin = io::stdin();
    let stat = rustix::fs::fstat(stdin.as_fd()).ok()?;
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    let control = stdin.as_fd().try_clone_to_owned().ok()?;
    is_socket.then(|| UnixStream::from(control))
}

/// Signals to everything of a service, as when a service manager stops it, are for `tenure run` to act on:
/// a guard that they end could guard no longer. Handlers, unlike ignored signals, are not handed down to
/// the program; so where the user has a signal ignored (`nohup`), it stays so. SIGCHLD is in the list so that
/// it interrupts `poll`.
fn outlive_signals() -> anyhow::Result<()> {
    const FAILED: &str = "cannot listen for signals";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context(FAILED)?;
    let _entered = runtime.enter();
    let hang_up_is_ignored = is_ignored(Signal::HUP);
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
        SignalKind::child(),
    ] {
        if kind == SignalKind::hangup() && hang_up_is_ignored {
            continue;
        }
        // The handler stays when listener and runtime go; that is all that is wanted of it.
        drop(signal(kind).context(FAILED)?);
    }
    Ok(())
}

struct Guard {
    control: UnixStream,
    /// The program's standard input, if its owner has sent one.
    stdin: Option<OwnedFd>,
    /// What has arrived and was not looked at yet, also a part of an order.
    received: Vec<u8>,
    /// There is nobody left to give orders.
    closed: bool,
    timer: OwnedFd,
    /// How long a program that was told to stop gets, if trust lasts.
    kill_after: Duration,
    until: Until,
    /// When the program was told to stop.
    told_at: Option<Moment>,
    why: Why,
}

impl Guard {
    fn new(control: UnixStream, kill_after: Duration) -> anyhow::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer =
            timerfd_create(TimerfdClockId::Boottime, flags).context("cannot make a timer")?;
        control
            .set_nonblocking(true)
            .context("cannot use the socket to the guard's owner")?;
        Ok(Self {
            control,
            stdin: None,
            received: Vec::new(),
            closed: false,
            timer,
            kill_after,
            until: Until::default(),
            told_at: None,
            why: Why::Itself,
        })
    }

    /// Runs the program and guards it to its end.
    fn run(&mut self, arguments: &Arguments) -> anyhow::Result<(Status, Why)> {
        if !self.may_start()? {
            return Ok((Status::Killed(Signal::KILL.as_raw()), Why::Late));
        }
        let stdin = self.stdin.take().filter(|_| arguments.is_stdin_sent);
        let program = match start(arguments, stdin) {
            Ok(program) => program,
            // Too many processes, say: that passes.
            Err(error) => {
                output::error(&error);
                let why = if files::is_shortage(&error) {
                    Why::Short
                } else {
                    Why::Itself
                };
                return Ok((Status::Exited(EXIT_CANNOT_START), why));
            }
        };
        self.report(&Report::Started(program.as_raw_nonzero().get()));
        let watched = self.watch(program);
        // Whatever happened, and if this very program has a mistake in it: nothing is left running.
        let status = family::end_all(program, |stuck| {
            self.report(&Report::Stuck(stuck.as_raw_nonzero().get()));
        });
        watched?;
        Ok((status, self.why))
    }

    /// Waits for the first order, which says until when. Where many programs start at once, later ones may have come
    /// by then.
    fn may_start(&mut self) -> anyhow::Result<bool> {
        let mut is_told = false;
        loop {
            while let Some(order) = self.next_order()? {
                match order {
                    Order::Until(until) => {
                        self.until = until;
                        is_told = true;
                    }
                    Order::Stop(_) | Order::Kill => return Ok(false),
                    // It was for a program that does not run.
                    Order::Pass(_) => {}
                }
            }
            if is_told || self.closed {
                return Ok(!self.closed && now() < self.until.tell_at);
            }
            poll(&mut [PollFd::new(&self.control, PollFlags::IN)], None)
                .or_else(interrupted)
                .context("cannot wait for orders")?;
            self.receive();
        }
    }

    /// Returns when the program has ended or is to be killed.
    fn watch(&mut self, program: Pid) -> anyhow::Result<()> {
        let ended = pidfd_open(program, PidfdFlags::empty()).context("cannot watch the program")?;
        while self.goes_on(program)? {
            self.set_timer()?;
            let mut files = [
                PollFd::new(&self.control, PollFlags::IN),
                PollFd::new(&ended, PollFlags::IN),
                PollFd::new(&self.timer, PollFlags::IN),
            ];
            poll(&mut files, None)
                .or_else(interrupted)
                .context("cannot wait for the program")?;
            let has_ended = !files[1].revents().is_empty();
            if has_ended {
                break;
            }
            family::reap_orphans(program);
            self.receive();
        }
        Ok(())
    }

    /// Obeys every order, then the clock: the order that extends trust may have waited while this process
    /// was stopped. Whether the program goes on.
    fn goes_on(&mut self, program: Pid) -> anyhow::Result<bool> {
        while let Some(order) = self.next_order()? {
            if !self.obey(order, program) {
                return Ok(false);
            }
        }
        let now = now();
        if self.closed || (now >= self.kill_at() && self.told_at.is_none()) {
            self.why = Why::Late;
        }
        if self.closed || now >= self.kill_at() {
            return Ok(false);
        }
        if now >= self.until.tell_at && self.told_at.is_none() {
            self.why = Why::Late;
            self.tell(program, Signal::TERM);
        }
        Ok(true)
    }

    /// Whether the program goes on.
    fn obey(&mut self, order: Order, program: Pid) -> bool {
        match order {
            Order::Until(until) => {
                self.until = until;
                self.report(&Report::Heard(until.kill_at));
                true
            }
            Order::Stop(signal) => {
                if self.told_at.is_none() {
                    self.why = Why::Told;
                    self.tell(program, signal);
                }
                true
            }
            Order::Pass(signal) => {
                // It may have ended just now.
                let _ = kill_process(program, signal);
                true
            }
            Order::Kill => {
                self.why = Why::Told;
                false
            }
        }
    }

    fn tell(&mut self, program: Pid, signal: Signal) {
        self.told_at = Some(now());
        if !family::tell_group(program, signal) {
            // As early as can be: the waiter for the end must not go by the clock.
            self.report(&Report::Stuck(program.as_raw_nonzero().get()));
        }
    }

    fn kill_at(&self) -> Moment {
        let told = self.told_at.map(|told_at| told_at + self.kill_after);
        told.map_or(self.until.kill_at, |at| at.min(self.until.kill_at))
    }

    fn set_timer(&self) -> anyhow::Result<()> {
        let next = match self.told_at {
            None => self.kill_at().min(self.until.tell_at),
            Some(_) => self.kill_at(),
        };
        let next = next.since_origin();
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(next.as_secs()).unwrap_or(i64::MAX),
                // A time of zero would turn the timer off.
                tv_nsec: i64::from(next.subsec_nanos()).max(1),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)
            .context("cannot set the timer")?;
        Ok(())
    }

    /// Takes in what has arrived. Never waits.
    fn receive(&mut self) {
        let mut bytes = [0; 1024];
        while !self.closed && self.received.len() < ORDERS_BYTES_MAX {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut sent = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(
                &self.control,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut sent,
                flags,
            );
            for message in sent.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    self.stdin = files.last();
                }
            }
            match received.map(|message| message.bytes) {
                Ok(0) => self.closed = true,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // A socket that was reset: the other end is gone.
                Err(_) => self.closed = true,
            }
        }
        // So much without an end is not an order: its sender is not `tenure run`.
        self.closed |= self.received.len() >= ORDERS_BYTES_MAX && !self.received.contains(&b'\n');
    }

    /// The next order that has arrived in full.
    fn next_order(&mut self) -> anyhow::Result<Option<Order>> {
        let Some(end) = self.received.iter().position(|&byte| byte == b'\n') else {
            return Ok(None);
        };
        let line: Vec<u8> = self.received.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line[..end]);
        let order = Order::parse(&line);
        order
            .with_context(|| format!("this guard does not know the order {line:?}"))
            .map(Some)
    }

    /// Nobody may be left to hear it.
    fn report(&self, report: &Report) {
        let _ = (&self.control).write_all(format!("{report}\n").as_bytes());
    }
}

/// Starts the program in a process group of its own. It goes through this binary once more, which asks the
/// kernel to kill it if the guard dies; only the process itself can ask for that.
fn start(arguments: &Arguments, stdin: Option<OwnedFd>) -> anyhow::Result<Pid> {
    let mut command = Command::new(THIS_PROGRAM);
    if std::env::var_os(EAGER_COMMIT).is_some_and(|value| value == EAGER_COMMIT_OFF) {
        command.env_remove(EAGER_COMMIT);
    }
    let child = command
        .arg0("tenure")
        .arg("__exec")
        .arg(rustix::process::getpid().to_string())
        .arg(&arguments.files)
        .arg("--")
        .args(&arguments.command)
        .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
        .process_group(0)
        .spawn()
        .context("cannot start the program")?;
    Ok(Pid::from_child(&child))
}

/// The clock that deadlines are told in: monotonic, and counting suspend.
fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Moment::from_origin(Duration::new(seconds, nanoseconds))
}

/// A signal is a reason to look around, no failure.
fn interrupted(error: Errno) -> Result<usize, Errno> {
    match error {
        Errno::INTR => Ok(0),
        error => Err(error),
    }
}
