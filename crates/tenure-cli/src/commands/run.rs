//! `tenure run`: a program that runs only while this node leads.
//!
//! The program and all its descendants get SIGTERM well before trust ends, and SIGKILL before it ends; see
//! [`guard`](super::guard) for how this holds even if this process is killed or stopped. Leadership is released only
//! when nothing of the program is left, however long that takes: a program that has changed its user may not be
//! killed.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::process::Signal;
use tenure::core::Moment;
use tenure::core::session::Config;
use tenure::{Election, Leadership, Node, NodeOptions};
use tokio::time::{Instant, sleep_until};

use super::ElectionAddress;
use super::files;
use super::guard::message::{Order, Status, Until, Why};
use super::guarded::{self, Complaint, Ended, Program, ProgramEvent, Start};
use crate::args::Run;
use crate::output::{self, Hinted};
use crate::signals::{Passed, Signals, Stop};
use crate::stderr;

mod back_off;
mod daemon;
mod left_over;

use back_off::{BackOff, Next};
use left_over::LeftOver;

/// How long the guard may take to report that it has killed everything: when trust is over, and when there is no
/// hurry. After that it counts as stopped or stuck, and the program is killed without it.
pub(super) const KILL_PATIENCE: Duration = Duration::from_millis(100);
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// How long a guard may take to start its program, which can be slow when many start at once. After that it counts as
/// stopped. Before the start it has nothing to acknowledge, so without this limit a stopped guard would be waited for
/// for ever.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(5 * 60);

/// How long a term continues while its program does not end: practically for ever. The guard ends the program; if it
/// is not permitted to, no other node may start the program.
const STOP_WITHIN: Duration = Duration::from_secs(365 * 24 * 3600);

/// The status of a program that could not be started, as in a shell.
const CANNOT_START: Status = Status::Exited(126);

/// The exit code of `--once` if it was asked to stop before the program ran.
const HAS_NOT_RUN: u8 = 2;

pub(crate) async fn run(arguments: Run) -> anyhow::Result<ExitCode> {
    if let Some(id) = arguments.daemon.daemon.clone() {
        return daemon::run(arguments, &id).await;
    }
    let mut session = session(&arguments);
    session.stop_within = STOP_WITHIN;
    let begun = begin(&arguments, &session, Vec::new()).await?;
    let Some(Begun {
        place,
        node,
        options,
        signals,
        passed,
    }) = begun
    else {
        return Ok(ExitCode::from(stopped_before_it_ran(arguments.once)));
    };
    let name = place.election.as_str();
    let election = node.join_with(name, Some(arguments.priority)).await?;
    output::note(&format!(
        "{} is a candidate in the election {name}",
        node.id()
    ));
    let mut runner = Runner {
        kill_after: arguments.kill_after,
        namespace: place.namespace.to_string(),
        command: arguments.command,
        once: arguments.once,
        session,
        options,
        signals,
        passed,
        asked: None,
    };
    let code = runner.run(&node, &election).await;
    // A second signal means: stop at once. The program is gone by now; the session expires.
    tokio::select! {
        () = node.shutdown() => {}
        _ = runner.signals.next() => output::warning("stopped without releasing the session: other nodes wait until it expires"),
    }
    code.map(ExitCode::from)
}

/// A node that can run programs, and the signals for it and for them.
struct Begun {
    place: ElectionAddress,
    node: Node,
    options: NodeOptions,
    signals: Signals,
    passed: Passed,
}

/// The times of the session: as set, or in the usual proportion to the ttl.
fn session(arguments: &Run) -> Config {
    let usual = Config::for_ttl(arguments.ttl);
    Config {
        heartbeat: arguments.heartbeat.unwrap_or(usual.heartbeat),
        request_timeout: arguments.request_timeout.unwrap_or(usual.request_timeout),
        ..usual
    }
}

/// Combines all violations in one message.
fn together(mut violations: Vec<anyhow::Error>) -> anyhow::Error {
    if violations.len() == 1 {
        // A single violation keeps its hint.
        return violations.remove(0);
    }
    let told: Vec<String> = violations.iter().map(|it| format!("{it:#}")).collect();
    anyhow::anyhow!(told.join("; "))
}

/// Starts the node, unless something is wrong, such as these violations. `None` if it is asked to stop before that.
async fn begin(
    arguments: &Run,
    session: &Config,
    more: Vec<anyhow::Error>,
) -> anyhow::Result<Option<Begun>> {
    let place = super::election(&arguments.election);
    let node = super::node(arguments.node.node.clone());
    let program = find(&arguments.command[0]);
    let (place, node) = match (place, node, program, session.check()) {
        (Ok(place), Ok(node), Ok(_), Ok(())) if more.is_empty() => (place, node),
        (place, node, program, session) => {
            let mut violations: Vec<anyhow::Error> = Vec::new();
            violations.extend(session.err().map(Into::into));
            violations.extend(more);
            violations.extend(place.err());
            violations.extend(node.err());
            violations.extend(program.err().map(Into::into));
            return Err(together(violations));
        }
    };

    let mut options = NodeOptions::new(place.store.clone(), place.namespace.as_str());
    options.polls_only = arguments.poll_only;
    options.node = Some(node.to_string());
    options.session = session.clone();
    options.labels = arguments.daemon.label.iter().cloned().collect();
    files::raise();
    files::check_room_of_node()?;
    let mut signals = Signals::with_terminal()?;
    let passed = Passed::new()?;
    guarded::adopt()?;
    tokio::select! {
        node = Node::start(options.clone()) => {
            let node = node?;
            super::replaced::watch(&node, session.ttl);
            Ok(Some(Begun { place, node, options, signals, passed }))
        }
        _ = signals.next() => Ok(None),
    }
}

struct Runner {
    command: Vec<OsString>,
    namespace: String,
    session: Config,
    /// How this node was started.
    options: NodeOptions,
    kill_after: Duration,
    once: bool,
    signals: Signals,
    passed: Passed,
    /// The first request to stop.
    asked: Option<Stop>,
}

impl Runner {
    /// Leads one term after the other, until a signal or, with `--once`, the program's end.
    async fn run(&mut self, node: &Node, election: &Election) -> anyhow::Result<u8> {
        loop {
            let leadership = tokio::select! {
                leadership = election.elected() => leadership?,
                _ = self.signals.next() => return Ok(stopped_before_it_ran(self.once)),
                // There is no program to pass the signal on to.
                _ = self.passed.next() => continue,
            };
            let (name, term) = (election.name(), leadership.term());
            output::note(&format!("{} leads {name} in term {term}", node.id()));
            let ended = self.lead(node, &leadership).await?;
            if let Some(ended) = ended.filter(|_| self.once) {
                return Ok(ended.status.exit_code());
            }
            if self.asked.is_some() {
                return Ok(stopped_before_it_ran(self.once));
            }
            tokio::select! {
                () = leadership.ended().cancelled_owned() => {}
                _ = self.signals.next() => return Ok(stopped_before_it_ran(self.once)),
            }
            if let Err(stopped) = leadership.check() {
                output::note(&stopped.to_string());
            }
        }
    }

    /// Runs the program again and again during one term. Returns when nothing of it is left and it should not be
    /// started again, with its last end if it ran.
    async fn lead(
        &mut self,
        node: &Node,
        leadership: &Leadership,
    ) -> anyhow::Result<Option<Ended>> {
        // While this lives, the lease is not released.
        let Ok(_working) = leadership.begin_work() else {
            return Ok(None);
        };
        let mut back_off = BackOff::default();
        loop {
            let started = Instant::now();
            let supervised = self.supervise(node, leadership).await;
            let is_over = leadership.stopping().is_cancelled() || self.asked.is_some();
            let ended = match supervised {
                Ok(ended) => ended,
                // For example, too many processes or files: that may pass, so it is not a reason to exit.
                Err(error) => {
                    output::error(&error);
                    if is_over {
                        return Ok(None);
                    }
                    Ended {
                        status: CANNOT_START,
                        why: Why::Itself,
                        has_run: false,
                    }
                }
            };
            let has_run = ended.has_run;
            let of_this_run = has_run.then_some(ended);
            if (self.once && has_run) || is_over {
                return Ok(of_this_run);
            }
            let delay = match ended.why {
                // Trust was nearly over and then extended after all: this process was slow, not the program.
                Why::Late | Why::Told => Duration::ZERO,
                Why::Itself | Why::Short | Why::Unguarded => {
                    match back_off.next(ended.status, started.elapsed()) {
                        Next::After(delay) => delay,
                        Next::GiveUp(failures) => {
                            let what = if has_run {
                                how_it_ended(&ended)
                            } else {
                                "the program could not be started".to_owned()
                            };
                            let why = format!("{what}, {failures} times in a row");
                            output::warning(&format!("{why}: letting another node try"));
                            leadership.give_up(&why);
                            return Ok(of_this_run);
                        }
                    }
                }
            };
            let when = if delay.is_zero() {
                // The end of the term may be noticed in the next moment.
                "unless the lease ends".to_owned()
            } else {
                format!("in {}", crate::times::duration(delay))
            };
            output::note(&if has_run {
                format!("{}, starting it again {when}", how_it_ended(&ended))
            } else {
                format!("trying again {when}")
            });
            let again_at = Instant::now() + delay;
            loop {
                tokio::select! {
                    () = sleep_until(again_at) => break,
                    () = leadership.stopping().cancelled_owned() => return Ok(of_this_run),
                    stop = self.signals.next() => {
                        self.asked = Some(stop);
                        return Ok(of_this_run);
                    }
                    // There is no program to pass the signal on to.
                    _ = self.passed.next() => {}
                }
            }
        }
    }

    /// One run of the program, from its start until nothing of it is left.
    async fn supervise(&mut self, node: &Node, leadership: &Leadership) -> anyhow::Result<Ended> {
        let mut deadline = leadership.deadline();
        let mut program = Program::start(Start {
            name: leadership.election().as_str(),
            command: &self.command,
            environment: self.environment(node, leadership),
            // Nothing is hidden, since the program may have to reach the store.
            hides: |_, _| false,
            until: until(deadline, &self.session),
            kill_after: self.kill_after,
            stdin: None,
        })?;
        let (stopping, over) = (leadership.stopping(), leadership.ended());
        let mut watch = GuardWatch::new(self.trust_of(leadership));
        let mut complaint = Complaint::default();
        let mut left_over = LeftOver::default();
        let mut told = false;
        loop {
            let late_at = watch.late_at(program.is_started());
            tokio::select! {
                biased;
                event = watch.next(&mut program) => match event {
                    // A guard that failed after the start has ended the program, which must not count as never run.
                    Err(error) if program.is_started() => {
                        output::error(&error);
                        let (status, why) = (Status::Killed(Signal::KILL.as_raw()), Why::Unguarded);
                        return Ok(Ended { status, why, has_run: true });
                    }
                    Err(error) => return Err(error),
                    Ok(ProgramEvent::Ended(ended)) => {
                        if program.is_stuck() {
                            node.set_trouble(None);
                            left_over.end().await;
                        }
                        return Ok(ended);
                    }
                    Ok(ProgramEvent::Heard(kill_at)) => watch.heard(kill_at),
                    Ok(ProgramEvent::Stuck(stuck)) => {
                        node.set_trouble(Some(stuck.to_string()));
                        left_over.say(stuck.to_string());
                        complaint.say(stuck, kept(leadership));
                    }
                },
                // Only if a program is left over: while this node's own session lives, that session reports it.
                () = node.lost(), if left_over.is_waiting() => {
                    left_over.begin(node.store().clone(), self.options.clone());
                }
                () = complaint.is_due() => complaint.say_again(kept(leadership)),
                () = over.cancelled(), if !watch.killing => {
                    program.order(Order::Kill);
                    watch.kill_within(KILL_PATIENCE);
                    complaint.say_again(kept(leadership));
                }
                () = stopping.cancelled(), if !told => {
                    told = true;
                    program.order(Order::Stop(Signal::TERM));
                    watch.end_within(self.kill_after + STOP_PATIENCE);
                }
                moved = leadership.deadline_after(deadline), if !watch.killing => {
                    deadline = moved;
                    let until = until(deadline, &self.session);
                    program.order(Order::Until(until));
                    watch.offer(program.is_started(), until, self.trust_of(leadership));
                }
                // Checked after the branches that may extend trust: this process may have been slow to run them.
                () = sleep_until(late_at), if !program.is_stuck() => watch.check(program.is_started()),
                stop = self.signals.next() => match self.asked.replace(stop) {
                    None => {
                        told = true;
                        program.order(Order::Stop(stop.signal()));
                        watch.end_within(self.kill_after + STOP_PATIENCE);
                    }
                    Some(_) if program.is_stuck() => leave_behind(stop),
                    Some(_) => {
                        program.order(Order::Kill);
                        watch.kill_within(STOP_PATIENCE);
                    }
                },
                signal = self.passed.next() => program.order(Order::Pass(signal)),
            }
        }
    }

    /// How long the guard may let the program live, and a little more: by then it has killed it.
    fn trust_of(&self, leadership: &Leadership) -> Duration {
        let remaining = leadership.check().unwrap_or_default();
        remaining.saturating_sub(self.session.grace / 8)
    }

    fn environment(
        &self,
        node: &Node,
        leadership: &Leadership,
    ) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("TENURE_TERM", Some(leadership.term().to_string())),
            ("TENURE_TOKEN", Some(leadership.token().to_string())),
            ("TENURE_NODE", Some(node.id().to_string())),
            ("TENURE_NAMESPACE", Some(self.namespace.clone())),
            ("TENURE_ELECTION", Some(leadership.election().to_string())),
        ]
    }
}

/// The exit code of a process that is stopped while no program runs.
fn stopped_before_it_ran(once: bool) -> u8 {
    if once {
        output::warning("stopped before the program ran");
        HAS_NOT_RUN
    } else {
        0
    }
}

fn how_it_ended(ended: &Ended) -> String {
    match ended.why {
        Why::Unguarded => guarded::UNGUARDED.to_owned(),
        _ => format!("the program {}", ended.status),
    }
}

/// How a process that may not be killed affects the lease.
fn kept(leadership: &Leadership) -> &'static str {
    match leadership.check() {
        Ok(_) => {
            "the lease is kept until it ends. End it, or send the signal again to leave it running"
        }
        Err(_) => {
            "the lease is lost, and another node may start the program beside it. End it; nothing is started here \
             before it has ended"
        }
    }
}

/// Ends this process although its program cannot be ended, because the user insists. Does not release the lease: that
/// would mean that the program has ended.
fn leave_behind(stop: Stop) -> ! {
    output::warning(
        "left a program running: other nodes wait until the session expires, then start theirs",
    );
    stderr::finish(stderr::PATIENCE);
    std::process::exit(128 + stop.signal().as_raw())
}

/// When to tell the program to stop and when to kill it, before trust ends.
fn until(deadline: Moment, session: &Config) -> Until {
    Until {
        tell_at: deadline - session.grace,
        kill_at: deadline - session.grace / 4,
    }
}

/// When the guard must have ended the program. This is a second line of defence, since the guard has its own timer. A
/// guard that has not acknowledged an order by the time that the order's trust ends counts as stopped: the program is
/// killed without it.
struct GuardWatch {
    /// When the guard counts as stopped if it has not started the program.
    start_by: Instant,
    trust_ends_at: Instant,
    /// Orders that the guard has not acknowledged, oldest first: when to kill, and when trust ends accordingly.
    offered: VecDeque<(Moment, Instant)>,
    end_at: Option<Instant>,
    /// The program is being killed; nothing extends its time.
    killing: bool,
    /// The guard is late: this process kills the program.
    is_late: bool,
}

impl GuardWatch {
    fn new(trust: Duration) -> Self {
        Self {
            start_by: Instant::now() + START_PATIENCE,
            trust_ends_at: Instant::now() + trust,
            offered: VecDeque::new(),
            end_at: None,
            killing: false,
            is_late: false,
        }
    }

    /// Waits for the next event of the program, with its guard or without. A cancelled wait loses nothing.
    async fn next(&self, program: &mut Program) -> anyhow::Result<ProgramEvent> {
        if self.is_late {
            program.end_without_guard(Why::Late).await
        } else {
            program.next().await
        }
    }

    /// Notes that the guard was told to let the program live for this long. Before the program runs, no
    /// acknowledgement is expected: when many start at once, it may take a while.
    fn offer(&mut self, is_started: bool, until: Until, trust: Duration) {
        self.trust_ends_at = Instant::now() + trust;
        if is_started {
            self.offered.push_back((until.kill_at, self.trust_ends_at));
        }
    }

    /// Notes that the guard has acknowledged this order and all before it.
    fn heard(&mut self, kill_at: Moment) {
        while self
            .offered
            .pop_front_if(|(it, _)| *it <= kill_at)
            .is_some()
        {}
    }

    fn end_within(&mut self, patience: Duration) {
        self.end_at.get_or_insert(Instant::now() + patience);
    }

    fn kill_within(&mut self, patience: Duration) {
        self.killing = true;
        self.end_at = Some(Instant::now() + patience);
    }

    /// Checks whether the guard is late. The program may have started since the last check, since its start is not an
    /// event.
    fn check(&mut self, is_started: bool) {
        self.is_late |= Instant::now() >= self.late_at(is_started);
    }

    fn late_at(&self, is_started: bool) -> Instant {
        let unheard = if is_started {
            self.offered.front().map(|&(_, ends_at)| ends_at)
        } else {
            Some(self.start_by)
        };
        let silent_at = unheard.map_or(self.trust_ends_at, |at| at.min(self.trust_ends_at));
        match self.end_at {
            _ if self.is_late => Instant::now() + Duration::from_secs(3600),
            Some(end_at) if self.killing => end_at,
            Some(end_at) => end_at.min(silent_at),
            None => silent_at,
        }
    }
}

/// Finds the program's path; an error if it could not be started. Checked early: after winning the election would be
/// too late.
pub(super) fn find(program: &OsStr) -> Result<PathBuf, Hinted> {
    let can_run = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let shown = program.to_string_lossy();
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        return if can_run(path) {
            Ok(path.to_owned())
        } else {
            Err(Hinted::new(
                format!("{shown} is not a program that can be run"),
                "check the path, and that the file is executable",
            ))
        };
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| folder.join(path))
        .find(|path| can_run(path))
        .ok_or_else(|| {
            Hinted::new(
                format!("there is no program {shown} in PATH"),
                "give its full path, or set PATH",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUST: Duration = Duration::from_secs(10);

    fn until_in(seconds: u64) -> Until {
        let at = Moment::from_origin(Duration::from_secs(seconds));
        Until {
            tell_at: at,
            kill_at: at,
        }
    }

    #[test]
    fn a_guard_that_starts_nothing_counts_as_stopped_in_the_end() {
        let mut watch = GuardWatch::new(TRUST);
        // Trust that lasts longer than the patience for starts.
        watch.offer(false, until_in(1), START_PATIENCE * 2);
        let limit = Instant::now() + START_PATIENCE;
        assert!(watch.late_at(false) <= limit);
        // Once started, it has to acknowledge the orders given after that, and no others.
        assert!(watch.late_at(true) > limit);
        watch.start_by = Instant::now();
        watch.check(true);
        assert!(!watch.is_late);
        watch.offer(true, until_in(2), TRUST);
        watch.offer(true, until_in(3), START_PATIENCE * 2);
        assert!(watch.late_at(true) <= Instant::now() + TRUST);
        watch.heard(until_in(3).kill_at);
        assert!(watch.late_at(true) > limit);
        watch.check(false);
        assert!(watch.is_late);
        watch.check(true);
        assert!(watch.is_late, "it is ended, and that is that");
    }
}
