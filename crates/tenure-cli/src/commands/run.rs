//! `tenure run`: a program that runs only while this node leads.
//!
//! The program gets SIGTERM in good time before trust ends and SIGKILL before it does, it and everything
//! that descends from it; see [`guard`](super::guard) for how that holds even if this process is killed
//! or stopped. Leadership is released only after nothing of the program is left.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::process::Signal;
use tenure::core::session::Config;
use tenure::{Election, Leadership, Node, NodeOptions, cluster};
use tokio::time::{Instant, sleep, sleep_until};

use super::guard::message::{Order, Until, Why};
use crate::args::Run;
use crate::output::{self, Hinted};
use crate::signals::{Passed, Signals, Stop};

mod back_off;
mod daemon;
mod program;

use back_off::{BackOff, Next};
use program::{Ended, Program};

/// How long the guard may take to say that it has killed everything: when trust is over, and when nothing
/// presses. After that it counts as stopped or stuck, and the program is killed without it.
const KILL_PATIENCE: Duration = Duration::from_millis(100);
const STOP_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn run(arguments: Run) -> anyhow::Result<ExitCode> {
    if let Some(id) = arguments.daemon.daemon.clone() {
        return daemon::run(arguments, &id).await;
    }
    let mut session = Config::for_ttl(arguments.ttl);
    // The term goes on until the program is gone: the guard kills it before this is over.
    session.stop_within = arguments.kill_after + STOP_PATIENCE + session.grace;
    session.check()?;
    let place = super::election(&arguments.election)?;
    let node = super::node(arguments.node.node)?;
    find(&arguments.command[0])?;

    let mut options = NodeOptions::new(place.store.clone(), place.namespace.as_str());
    options.node = Some(node.to_string());
    options.session = session.clone();
    options.labels = arguments.daemon.label.iter().cloned().collect();
    let mut signals = Signals::new()?;
    let passed = Passed::new()?;
    let node = tokio::select! {
        node = Node::start(options) => node?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let name = place.election.as_str();
    let election = if name == "default" {
        // Whoever leads this election hands out the daemons of the namespace, should there be any.
        let cluster = node.cluster(cluster::Options {
            config: daemon::times(&session, arguments.kill_after),
            priority: Some(arguments.priority),
            follows: false,
            ..cluster::Options::default()
        });
        cluster.await?.election().clone()
    } else {
        node.join_with(name, Some(arguments.priority)).await?
    };
    output::note(&format!("{} stands in the election {name}", node.id()));
    let mut runner = Runner {
        kill_after: arguments.kill_after,
        namespace: place.namespace.to_string(),
        command: arguments.command,
        once: arguments.once,
        session,
        signals,
        passed,
        asked: None,
    };
    let code = runner.run(&node, &election).await;
    // A second signal means: at once. The program is gone by now; what is left expires.
    tokio::select! {
        () = node.shutdown() => {}
        _ = runner.signals.next() => output::warning("left without saying so: others wait until the session expires"),
    }
    code.map(ExitCode::from)
}

struct Runner {
    command: Vec<OsString>,
    namespace: String,
    session: Config,
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
                _ = self.signals.next() => return Ok(0),
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
                return Ok(0);
            }
            tokio::select! {
                () = leadership.ended().cancelled_owned() => {}
                _ = self.signals.next() => return Ok(0),
            }
            if let Err(stopped) = leadership.check() {
                output::note(&stopped.to_string());
            }
        }
    }

    /// Runs the program again and again for one term. Returns how it ended last, when nothing of it is
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
            let ended = self.supervise(node, leadership).await?;
            let is_over = leadership.stopping().is_cancelled() || self.asked.is_some();
            if self.once || is_over {
                return Ok(Some(ended));
            }
            let delay = match ended.why {
                // Trust was all but over, and then it was not: this process was slow, not the program.
                Why::Late | Why::Told => Duration::ZERO,
                Why::Itself => match back_off.next(ended.status, started.elapsed()) {
                    Next::After(delay) => delay,
                    Next::GiveUp(failures) => {
                        output::warning(&format!(
                            "the program {}, for the {failures}th time in a row: letting another node try",
                            ended.status
                        ));
                        leadership.resign();
                        return Ok(Some(ended));
                    }
                },
            };
            output::note(&format!(
                "the program {}, starting it again in {}",
                ended.status,
                crate::times::duration(delay)
            ));
            tokio::select! {
                () = sleep(delay) => {}
                () = leadership.stopping().cancelled_owned() => return Ok(Some(ended)),
                stop = self.signals.next() => {
                    self.asked = Some(stop);
                    return Ok(Some(ended));
                }
            }
        }
    }

    /// One run of the program, from its start to the certain end of all of it.
    async fn supervise(&mut self, node: &Node, leadership: &Leadership) -> anyhow::Result<Ended> {
        let mut deadline = leadership.deadline();
        let mut program = Program::start(
            &self.command,
            self.environment(node, leadership),
            until(deadline, &self.session),
            self.kill_after,
        )?;
        let (stopping, over) = (leadership.stopping(), leadership.ended());
        let mut watch = GuardWatch::new(self.trust_of(leadership));
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                ended = program.ended() => return ended,
                () = over.cancelled(), if !watch.killing => {
                    program.order(Order::Kill);
                    watch.kill_within(KILL_PATIENCE);
                }
                () = sleep_until(watch.late_at()) => return program.end_without_guard().await,
                () = stopping.cancelled(), if !told => {
                    told = true;
                    program.order(Order::Stop(Signal::TERM));
                    watch.end_within(self.kill_after + STOP_PATIENCE);
                }
                moved = leadership.deadline_after(deadline), if !watch.killing => {
                    deadline = moved;
                    program.order(Order::Until(until(deadline, &self.session)));
                    watch.trust(self.trust_of(leadership));
                }
                stop = self.signals.next() => match self.asked.replace(stop) {
                    None => {
                        told = true;
                        program.order(Order::Stop(stop.signal()));
                        watch.end_within(self.kill_after + STOP_PATIENCE);
                    }
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

    fn environment(&self, node: &Node, leadership: &Leadership) -> [(&'static str, String); 5] {
        [
            ("TENURE_TERM", leadership.term().to_string()),
            ("TENURE_TOKEN", leadership.token().to_string()),
            ("TENURE_NODE", node.id().to_string()),
            ("TENURE_NAMESPACE", self.namespace.clone()),
            ("TENURE_ELECTION", leadership.election().to_string()),
        ]
    }
}

/// When to tell the program to stop and when to kill it, before trust ends.
fn until(deadline: tenure::core::Moment, session: &Config) -> Until {
    Until {
        tell_at: deadline - session.grace,
        kill_at: deadline - session.grace / 4,
    }
}

/// When the guard must have ended the program. It is a second line: the guard has its own clock.
struct GuardWatch {
    trust_ends_at: Instant,
    end_at: Option<Instant>,
    /// The program is being killed; nothing extends that.
    killing: bool,
}

impl GuardWatch {
    fn new(trust: Duration) -> Self {
        Self {
            trust_ends_at: Instant::now() + trust,
            end_at: None,
            killing: false,
        }
    }

    fn trust(&mut self, trust: Duration) {
        self.trust_ends_at = Instant::now() + trust;
    }

    fn end_within(&mut self, patience: Duration) {
        self.end_at.get_or_insert(Instant::now() + patience);
    }

    fn kill_within(&mut self, patience: Duration) {
        self.killing = true;
        self.end_at = Some(Instant::now() + patience);
    }

    fn late_at(&self) -> Instant {
        match self.end_at {
            Some(end_at) if self.killing => end_at,
            Some(end_at) => end_at.min(self.trust_ends_at),
            None => self.trust_ends_at,
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
        return match can_run(path) {
            true => Ok(path.to_owned()),
            false => Err(Hinted::new(
                format!("{shown} is not a program that can be run"),
                "check the path, and that the file may be executed",
            )),
        };
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| folder.join(path))
        .find(|path| can_run(path))
        .ok_or_else(|| {
            Hinted::new(
                format!("there is no program {shown} in PATH"),
                "give its whole path, or set PATH",
            )
        })
}
