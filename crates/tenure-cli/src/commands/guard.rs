//! `tenure __guard`: stands between `tenure run` and its program, so that the program cannot outlive trust.
//!
//! # What is guaranteed
//!
//! The program and everything that descends from it are killed at the moment that `tenure run` was last
//! trusted until, whatever has become of `tenure run` by then: dead, stopped, or too busy. Killed means
//! the program's whole process group, and then every descendant that has left the group or the session:
//! the guard is the reaper of orphans below it, so none of them gets away. Only when nothing is left does
//! it report the end.
//!
//! # What is assumed
//!
//! - The guard itself runs. If it is killed, the kernel kills the program with it, and `tenure run` the
//!   rest of the group; if it is stopped, `tenure run` kills it. Only where both are killed or stopped at
//!   one moment do descendants other than the program itself live on.
//! - What the program has others start for it (cron, systemd, a container engine, another host) does not
//!   descend from it.
//! - A whole machine that is paused pauses the guard too. The fencing token is for that.
//!
//! # How
//!
//! One thread, no runtime: `poll` on the socket to `tenure run`, on the program's end, and on a timer that
//! counts suspend. Orders and reports are lines of text, see [`message`].

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, set_child_subreaper};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tenure::core::Moment;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Guard as Arguments;
use crate::output::Hinted;

mod family;
pub(crate) mod message;

use message::{Order, Report, Status, Until, Why};

/// The path of this very program, also after the file was replaced by a newer one.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// How many bytes of orders may wait: more than a socket holds, so that one look sees all of them, the
/// latest too, also after this process was stopped for long.
const ORDERS_BYTES_MAX: usize = 1024 * 1024;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let control = control()?;
    outlive_signals()?;
    set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the reaper of orphans")?;
    let mut guard = Guard::new(control, Duration::from_millis(arguments.kill_after_ms))?;
    let (status, why) = guard.run(&arguments.command)?;
    guard.report(&Report::Ended { status, why });
    Ok(ExitCode::SUCCESS)
}

/// The socket to `tenure run`, which is where the standard input would be.
fn control() -> Result<UnixStream, Hinted> {
    let misused = |_| {
        Hinted::new(
            "__guard is a part of `tenure run`, which starts it by itself",
            "see `tenure run --help`",
        )
    };
    let stdin = io::stdin();
    let kind = rustix::fs::fstat(stdin.as_fd()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match kind {
        Ok(FileType::Socket) => {}
        _ => return Err(misused(Errno::NOTSOCK)),
    }
    let control = stdin.as_fd().try_clone_to_owned();
    Ok(UnixStream::from(control.map_err(|_| misused(Errno::BADF))?))
}

/// Signals to everything of a service, as when a service manager stops it, are for `tenure run` to act on:
/// a guard that they end could guard no longer. Handlers, unlike ignored signals, are not handed down to
/// the program. SIGCHLD is in the list so that it interrupts `poll`.
fn outlive_signals() -> anyhow::Result<()> {
    const FAILED: &str = "cannot listen for signals";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(FAILED)?;
    let _entered = runtime.enter();
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
        SignalKind::child(),
    ] {
        // The handler stays when listener and runtime go; that is all that is wanted of it.
        drop(signal(kind).context(FAILED)?);
    }
    Ok(())
}

struct Guard {
    control: UnixStream,
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
            .context("cannot use the socket to `tenure run`")?;
        Ok(Self {
            control,
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
    fn run(&mut self, command: &[OsString]) -> anyhow::Result<(Status, Why)> {
        if !self.may_start()? {
            return Ok((Status::Killed(Signal::KILL.as_raw()), Why::Late));
        }
        let program = start(command)?;
        self.report(&Report::Started(program.as_raw_nonzero().get()));
        let watched = self.watch(program);
        // Whatever happened, and if this very program has a mistake in it: nothing is left running.
        let status = family::end_all(program)?;
        watched?;
        Ok((status, self.why))
    }

    /// Waits for the first order, which says until when.
    fn may_start(&mut self) -> anyhow::Result<bool> {
        loop {
            match self.next_order()? {
                Some(Order::Until(until)) => {
                    self.until = until;
                    return Ok(now() < until.tell_at);
                }
                Some(Order::Stop(_) | Order::Pass(_) | Order::Kill) => return Ok(false),
                None if self.closed => return Ok(false),
                None => {}
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
        family::tell_group(program, signal);
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
            match self.control.read(&mut bytes) {
                Ok(0) => self.closed = true,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A socket that was reset: the other end is gone.
                Err(_) => self.closed = true,
            }
        }
        // So much without an end is no order: whoever sends it is not `tenure run`.
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
            .with_context(|| format!("{line:?} is no order that this guard knows"))
            .map(Some)
    }

    /// Nobody may be left to hear it.
    fn report(&self, report: &Report) {
        let _ = (&self.control).write_all(format!("{report}\n").as_bytes());
    }
}

/// Starts the program in a process group of its own. It goes through this binary once more, which asks the
/// kernel to kill it if the guard dies; only the process itself can ask for that.
fn start(command: &[OsString]) -> anyhow::Result<Pid> {
    let child = Command::new(THIS_PROGRAM)
        .arg0("tenure")
        .arg("__exec")
        .arg(rustix::process::getpid().to_string())
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
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
