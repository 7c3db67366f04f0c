//! `tenure run`: a program that runs only while this node leads.
//!
//! The program gets SIGTERM in good time before trust ends and SIGKILL before it does, it and everything
//! that descends from it; see [`guard`](super::guard) for how that holds even if this process is killed
//! or stopped. Leadership is released only after nothing of the program is left, however long that takes: a
//! program that changed its user may not be killed.

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

/// How long the guard may take to say that it has killed everything: when trust is over, and when nothing
/// presses. After that it counts as stopped or stuck, and the program is killed without it.
pub(super) const KILL_PATIENCE: Duration = Duration::from_millis(100);
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// How long a guard may take to start its program, where many start at once. One that has not by then is stopped: it has
/// nothing to acknowledge yet, and would be waited for for ever.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(5 * 60);

/// How long a term goes on while its program will not end: as good as for ever. The guard sees to its end, and
/// where it may not, nobody else may start the program.
const STOP_WITHIN: Duration = Duration::from_secs(365 * 24 * 3600);

/// How a program counts that could not be started, as in a shell.
const CANNOT_START: Status = Status::Exited(126);

/// The exit code of `--once` when it was asked to stop before the program ran: it could not be started.
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
    // A second signal means: at once. The program is gone by now; what is left expires.
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

/// The times of the session: as they were set, or in their usual proportion to the ttl.
fn session(arguments: &Run) -> Config {
    let usual = Config::for_ttl(arguments.ttl);
    Config {
        heartbeat: arguments.heartbeat.unwrap_or(usual.heartbeat),
        request_timeout: arguments.request_timeout.unwrap_or(usual.request_timeout),
        ..usual
    }
}

/// What is wrong, all of it in one message.
fn together(mut violations: Vec<anyhow::Error>) -> anyhow::Error {
    if violations.len() == 1 {
        // With its hint.
        return violations.remove(0);
    }
    let told: Vec<String> = violations.iter().map(|it| format!("{it:#}")).collect();
    anyhow::anyhow!(told.join("; "))
}

/// Begins, unless something is wrong with what was asked for, such as these; none if it is asked to stop before it runs.
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
    /// What this process was asked for first.
    asked: Option<Stop>,
}

impl Runner {
    /// One term after the other, until a signal or, with `--once`, the program ends it.
    async fn run(&mut self, node: &Node, election: &Election) -> anyhow::Result<u8> {
        loop {
            let leadership = tokio::select! {
                leadership = election.elected() => leadership?,
                _ = self.signals.next() => return Ok(stopped_before_it_ran(self.once)),
                // There is no program to pass it on to.
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

    /// Runs the program again and again for one term. Returns how it ended last, if it ran, when nothing of it is
    /// left and it is not to be started again.
    async fn lead(
        &mut self,
        node: &Node,
        leadership: &Leadership,
    ) -> anyhow::Result<Option<Ended>> {
        // For as long as this lives the lease is not released.
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
                // Too many processes or files, say: that passes, and is no reason to end.
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
                // Trust was all but over, and then it was not: this process was slow, not the program.
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
                // Its end may be told in the next moment.
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
                    // It was for a program that does not run.
                    _ = self.passed.next() => {}
                }
            }
        }
    }

    /// One run of the program, from its start to the certain end of all of it.
    async fn supervise(&mut self, node: &Node, leadership: &Leadership) -> anyhow::Result<Ended> {
        let mut deadline = leadership.deadline();
        let mut program = Program::start(Start {
            name: leadership.election().as_str(),
            command: &self.command,
            environment: self.environment(node, leadership),
            // It may have to reach the store.
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
                    // A guard that failed has ended the program, which must not count as never run.
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
                // Only when there is something to tell: this node's own session says it for as long as it lives.
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
                // After what may be news of trust: this process may have been slow.
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

    /// For how long the guard may let the program live, and a bit: it has killed it before that.
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

/// What a process that may not be killed means for the lease.
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

/// Ends this process although its program cannot be ended, since the user insists. Not in order: to give the lease
/// back is to say that the program has ended.
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

/// When the guard must have ended the program. It is a second line: the guard has its own clock. A guard that has not
/// acknowledged what it was told for as long as that lasts is stopped, and guards nothing: it is not waited for.
struct GuardWatch {
    /// When it counts as stopped if it has not started the program.
    start_by: Instant,
    trust_ends_at: Instant,
    /// What it was told and has not acknowledged, in order: when to kill, and when trust ends by that.
    offered: VecDeque<(Moment, Instant)>,
    end_at: Option<Instant>,
    /// The program is being killed; nothing extends that.
    killing: bool,
    /// It did not: this process does it.
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

    /// What happens to the program, with its guard or without. A cancelled wait loses nothing.
    async fn next(&self, program: &mut Program) -> anyhow::Result<ProgramEvent> {
        if self.is_late {
            program.end_without_guard(Why::Late).await
        } else {
            program.next().await
        }
    }

    /// The guard was told to let the program live for so long. Before the program runs, it need not say that it
    /// heard: many that start at once take their time.
    fn offer(&mut self, is_started: bool, until: Until, trust: Duration) {
        self.trust_ends_at = Instant::now() + trust;
        if is_started {
            self.offered.push_back((until.kill_at, self.trust_ends_at));
        }
    }

    /// It has heard this, and what came before it.
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

    /// It may be late. The program may have started since that was last thought of: its start is no event.
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

/// The program, as it would be found; an error if it could not be started anyway. To learn of it only after
/// winning the election would be late.
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
        // A lease that is renewed for as long as need be.
        watch.offer(false, until_in(1), START_PATIENCE * 2);
        let limit = Instant::now() + START_PATIENCE;
        assert!(watch.late_at(false) <= limit);
        // From its start on it has to acknowledge what it is told after that, and nothing else.
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
