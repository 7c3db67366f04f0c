//! `tenure __guard`: the process between `tenure run` or `tenure worker` and a program. It makes sure that the program
//! outlives neither trust nor the process that runs it.
//!
//! # What is guaranteed
//!
//! The program and all its descendants are killed when the trust of `tenure run` ends, as far as the guard was last
//! told, or just before the lease of the job that `tenure worker` claimed ends. That holds even if that process is
//! stopped or too busy by then; if it dies, they are killed at once. "Killed" means the program's whole process group,
//! and then every descendant that has left the group or the session: the guard is the reaper of orphans below it, so
//! none of them gets away. Only when nothing is left does the guard report the end.
//!
//! # What is assumed
//!
//! - The guard itself runs. If it is killed, the kernel kills the program with it, and its owner inherits and kills
//!   the program's remaining descendants. The guard acknowledges each order that extends trust. If it has not done so
//!   by the time trust ends, it counts as stopped, and its owner kills it and what it guards. Something survives only
//!   if both are killed or stopped at about the same time: the processes that the program started, and if the guard
//!   was stopped, the program too.
//! - The owner had no children when it started. (A shell that starts something in the background and then becomes
//!   `tenure run` leaves it some.) With children, it does not inherit orphans, and if the guard is killed, only the
//!   program's process group is killed.
//! - The guard may kill the program. If the program has changed its user (sudo, setuid), the guard reports this, and
//!   the shard or lease is kept until the program has ended. If trust ends first, the program runs on.
//! - The program does not start work through others (cron, systemd, a container engine, another host): those processes
//!   are not its descendants.
//! - The machine is not paused as a whole, since that pauses the guard too. Fencing tokens protect against that.
//!
//! # How
//!
//! One thread, no runtime: `poll` on the socket to its owner, on the program's end, and on a timer that counts
//! suspend. Orders and reports are lines of text, see [`message`]. Each program has its own guard, since a process
//! that has lost its parent no longer shows which program it came from. So a guard has to be small, and parses its own
//! arguments.

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

/// The path of this very program, even after the file was replaced by a newer one.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// Where the program's standard input comes from: `/dev/null`, or sent with the first order.
pub(crate) const STDIN_NULL: &str = "null";
pub(crate) const STDIN_SENT: &str = "sent";

/// A variable for the allocator, which would otherwise take huge pages: 4 MB for a guard that needs a hundredth of
/// that. The guard removes it from the program's environment again; the unusual value shows that the user did not set
/// it.
pub(crate) const EAGER_COMMIT: &str = "MIMALLOC_ARENA_EAGER_COMMIT";
pub(crate) const EAGER_COMMIT_OFF: &str = "00";

/// How many bytes of orders may wait: more than a socket holds, so that one reading gets all of them, including the
/// latest, even after this process was stopped for long.
const ORDERS_BYTES_MAX: usize = 1024 * 1024;

/// The exit code of shells for a program that cannot be started.
const EXIT_CANNOT_START: i32 = 126;

/// `__guard KILL_AFTER_MS FILES STDIN -- CMD...`
struct Arguments {
    /// How long a program may take to stop after it was told.
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
    // Started through a link, the process would be called `exe`.
    let _ = rustix::thread::set_name(c"tenure-guard");
    outlive_signals()?;
    set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the reaper of orphans")?;
    let mut guard = Guard::new(control, arguments.kill_after)?;
    let (status, why) = guard.run(&arguments)?;
    guard.report(&Report::Ended { status, why });
    Ok(ExitCode::SUCCESS)
}

/// The socket to the owner, which takes the place of standard input.
fn control() -> Option<UnixStream> {
    let stdin = io::stdin();
    let stat = rustix::fs::fstat(stdin.as_fd()).ok()?;
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    let control = stdin.as_fd().try_clone_to_owned().ok()?;
    is_socket.then(|| UnixStream::from(control))
}

/// Keeps signals from ending the guard. When a service manager stops a service, it signals all its processes; `tenure
/// run` acts on that, and the guard has to go on guarding. Handlers are used because the program does not inherit
/// them, unlike ignored signals; signals that the user had ignored (`nohup`) stay ignored. SIGCHLD is in the list so
/// that it interrupts `poll`.
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
        // The handler stays installed when listener and runtime are dropped, and that is all that is needed.
        drop(signal(kind).context(FAILED)?);
    }
    Ok(())
}

struct Guard {
    control: UnixStream,
    /// The program's standard input, if its owner has sent one.
    stdin: Option<OwnedFd>,
    /// Bytes that have arrived and were not parsed yet, possibly part of an order.
    received: Vec<u8>,
    /// The owner is gone.
    closed: bool,
    timer: OwnedFd,
    /// How long a program may take to stop after it was told, if trust lasts.
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
            // For example, too many processes; that may pass.
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
        // Even if watching failed through a bug, nothing is left running.
        let status = family::end_all(program, |stuck| {
            self.report(&Report::Stuck(stuck.as_raw_nonzero().get()));
        });
        watched?;
        Ok((status, self.why))
    }

    /// Waits for the first order, which sets the deadline. If many programs start at once, later orders may have
    /// arrived too.
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
                    // There is no program yet to pass it on to.
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

    /// Obeys all orders before looking at the clock: an order that extends trust may have waited while this process
    /// was stopped. Returns whether the program may go on.
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

    /// Obeys one order. Returns whether the program may go on.
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
                // An error means that it has just ended.
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
            // Reported as early as possible, so that the owner does not take the lack of an end for a stopped guard.
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

    /// Reads what has arrived. Never waits.
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
        // That many bytes without a line end are not an order, so the sender is not `tenure run`.
        self.closed |= self.received.len() >= ORDERS_BYTES_MAX && !self.received.contains(&b'\n');
    }

    /// The next complete order.
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

    /// An error means that the owner is gone.
    fn report(&self, report: &Report) {
        let _ = (&self.control).write_all(format!("{report}\n").as_bytes());
    }
}

/// Starts the program in its own process group. It starts through this binary, which first asks the kernel to kill the
/// process if the guard dies: only the process itself can request that.
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

/// The clock of the deadlines: monotonic, and counting time in suspend.
fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Moment::from_origin(Duration::new(seconds, nanoseconds))
}

/// A signal interrupts the wait, which is not an error.
fn interrupted(error: Errno) -> Result<usize, Errno> {
    match error {
        Errno::INTR => Ok(0),
        error => Err(error),
    }
}
