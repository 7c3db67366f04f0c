//! `tenure run --daemon`: a program for each shard that this node is given.
//!
//! Each runs under its own guard, like a program that runs only while its node leads. It is told to stop well before
//! trust ends and killed before it ends, with all its descendants, even if this process is killed or stopped. A shard
//! counts as ended only when nothing of its program is left.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tenure::cluster::{
    Cluster, Config, Count, Definition, Event, Events, Generation, Options, Shard,
};
use tenure::core::{DaemonId, NodeId, session};
use tenure::daemon::{Context, Daemon, DaemonError, Work};
use tenure::{Node, Working};
use tokio::sync::{broadcast, oneshot, watch};
use tokio::time::sleep_until;

use super::{Begun, GuardWatch, KILL_PATIENCE, STOP_PATIENCE, leave_behind, until};
use crate::args::{AsDaemon, Run};
use crate::commands::guard::message::{Order, Why};
use crate::commands::guarded::{self, Complaint, Ended, Program, ProgramEvent, Start};
use crate::output;
use crate::signals::{Passed, Signals};

/// How many signals may wait to be passed on to a program whose task is slow.
const SIGNALS_WAITING_MAX: usize = 16;

/// The error of a shard whose program was stopped too early.
const STOPPED_LATE: &str = "its node, or the guard of its program, was stopped or too slow for so long that the program was ended";

/// The times as set. Otherwise they are derived from the session, and leave a program the time to stop that it was
/// promised.
fn times(arguments: &Run, session: &session::Config) -> Config {
    let fitting = Config::for_session(session);
    let usual = fitting.drain_timeout.max(promised(arguments.kill_after));
    let set = &arguments.daemon;
    Config {
        acknowledge_timeout: set
            .acknowledge_timeout
            .unwrap_or(fitting.acknowledge_timeout),
        drain_timeout: set.drain_timeout.unwrap_or(usual),
        ..fitting
    }
}

/// The drain timeout that leaves a program the time to stop that it was promised: a node ends a shard that does not
/// drain after nine tenths of the timeout.
fn promised(kill_after: Duration) -> Duration {
    kill_after.saturating_add(STOP_PATIENCE).saturating_mul(5) / 4
}

/// All that is wrong with the times and the definition of the daemon.
fn violations(
    arguments: &Run,
    id: &str,
    times: &Config,
    session: &session::Config,
) -> Vec<anyhow::Error> {
    let mut violations: Vec<anyhow::Error> = Vec::new();
    violations.extend(DaemonId::new(id).err().map(Into::into));
    violations.extend(definition(&arguments.daemon).check().err().map(Into::into));
    violations.extend(times.check(session).err().map(Into::into));
    let (kill_after, drain) = (arguments.kill_after, times.drain_timeout);
    if drain < promised(kill_after) {
        violations.push(anyhow::anyhow!(
            "drain_timeout {drain:?} is shorter than (kill_after {kill_after:?} + {STOP_PATIENCE:?}) * 5/4 = {:?}, so a \
             program would be killed before its time to stop is over",
            promised(kill_after)
        ));
    }
    violations
}

pub(super) async fn run(arguments: Run, id: &str) -> anyhow::Result<ExitCode> {
    let session = super::session(&arguments);
    let times = times(&arguments, &session);
    let definition = definition(&arguments.daemon);
    let violations = violations(&arguments, id, &times, &session);
    let begun = super::begin(&arguments, &session, violations).await?;
    let Some(Begun {
        place,
        node,
        signals,
        passed,
        ..
    }) = begun
    else {
        return Ok(ExitCode::SUCCESS);
    };
    let cluster = node.cluster(Options {
        config: times,
        capacity: arguments.daemon.capacity,
        version: Some(format!("tenure {}", env!("CARGO_PKG_VERSION"))),
        priority: Some(arguments.priority),
        ..Options::default()
    });
    let cluster: Cluster = cluster.await?;
    let (kill, killed) = watch::channel(false);
    let (pass, _) = broadcast::channel(SIGNALS_WAITING_MAX);
    let programs = Programs {
        id: id.to_owned(),
        command: arguments.command.into(),
        namespace: place.namespace.to_string(),
        session,
        kill_after: arguments.kill_after,
        pass: pass.clone(),
        killed,
        stuck: StuckShards::default(),
        begun: BegunShards::default(),
    };
    output::note(&format!("{} can run {id}", node.id()));
    let (stuck, begun) = (programs.stuck.clone(), programs.begun.clone());
    tokio::spawn(tell(node.id().clone(), cluster.subscribe(), stuck, begun));
    cluster.register(programs, definition)?;
    drop(cluster);
    wait(&node, signals, passed, &pass, &kill).await;
    Ok(ExitCode::SUCCESS)
}

fn definition(arguments: &AsDaemon) -> Definition {
    let count = match (arguments.replicas, arguments.shards) {
        (Some(replicas), _) => Count::Replicas(replicas),
        (None, shards) => Count::Shards(shards.unwrap_or(1)),
    };
    Definition {
        count,
        weight: arguments.weight,
        requires: arguments.require.iter().cloned().collect(),
        revision: arguments.revision,
    }
}

/// Waits for a signal to stop. The first one stops everything in order, a second one at once.
async fn wait(
    node: &Node,
    mut signals: Signals,
    mut passed: Passed,
    pass: &broadcast::Sender<Signal>,
    kill: &watch::Sender<bool>,
) {
    loop {
        tokio::select! {
            _ = signals.next() => break,
            // An error means that no program runs.
            signal = passed.next() => drop(pass.send(signal)),
        }
    }
    let stopped = node.shutdown();
    tokio::pin!(stopped);
    tokio::select! {
        () = &mut stopped => return,
        _ = signals.next() => {}
    }
    kill.send_replace(true);
    tokio::select! {
        () = stopped => {}
        stop = signals.next() => if guarded::is_any_left() {
            // What is still left may not be killed.
            leave_behind(stop);
        } else {
            output::warning("stopped without releasing the session: other nodes wait until it expires");
        },
    }
}

/// Prints what happens to the shards of this process, and not to those of an earlier process of the same name.
async fn tell(me: NodeId, mut events: Events, stuck: StuckShards, begun: BegunShards) {
    let is_own = |shard: &Shard, generation: Generation| {
        let first = lock(&begun).get(shard).copied();
        first.is_some_and(|first| generation >= first)
    };
    while let Some(event) = events.next().await {
        match event {
            Event::Started {
                shard,
                generation,
                node,
            } if node == me && is_own(&shard, generation) => {
                output::note(&format!("{shard} is running, generation {generation}"));
            }
            // The shard is no longer this node's. A process that may not be killed keeps running.
            Event::Stopped {
                shard,
                generation,
                node,
                ..
            } if node == me && is_own(&shard, generation) => {
                let what = if lock(&stuck).contains(&shard) {
                    "is lost, and its program still runs"
                } else {
                    "has stopped"
                };
                output::note(&format!("{shard} {what}"));
            }
            Event::Failed {
                shard, error, node, ..
            } if node == me => output::warning(&format!("{shard} has failed: {error}")),
            _ => {}
        }
    }
}

/// The daemon: starts a program for each shard.
struct Programs {
    id: String,
    command: Arc<[OsString]>,
    namespace: String,
    session: session::Config,
    kill_after: Duration,
    /// Signals for all programs.
    pass: broadcast::Sender<Signal>,
    /// Whether everything has to be killed at once.
    killed: watch::Receiver<bool>,
    stuck: StuckShards,
    begun: BegunShards,
}

/// The shards whose programs cannot be ended.
type StuckShards = Arc<Mutex<BTreeSet<Shard>>>;

/// The shards that this process was told to start, with the first generation of each: older ones belong to another
/// process.
type BegunShards = Arc<Mutex<BTreeMap<Shard, Generation>>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon for Programs {
    fn id(&self) -> &str {
        &self.id
    }

    async fn start(&self, context: Context) -> Result<Work, DaemonError> {
        // While this lives, the shard is assigned to no other node. Dropping the work must not end it, since killing
        // takes a moment.
        let working = context.begin_work()?;
        lock(&self.begun)
            .entry(context.shard().clone())
            .or_insert(context.generation());
        let program = Program::start(Start {
            name: &context.shard().to_string(),
            command: &self.command,
            environment: self.environment(&context),
            // Nothing is hidden, since the program may have to reach the store.
            hides: |_, _| false,
            until: until(context.deadline(), &self.session),
            kill_after: self.kill_after,
            stdin: None,
        })?;
        let grace = self.session.grace;
        let supervisor = Supervisor {
            program,
            grace,
            session: self.session.clone(),
            kill_after: self.kill_after,
            pass: self.pass.subscribe(),
            killed: self.killed.clone(),
            stuck: self.stuck.clone(),
        };
        let (sender, ended) = oneshot::channel();
        tokio::spawn(async move {
            let ended: Result<(), DaemonError> = match supervisor.run(&context, working).await {
                Ok(Ended {
                    why: Why::Itself,
                    status,
                    ..
                }) => Err(format!("the program {status}").into()),
                Ok(Ended {
                    why: Why::Short, ..
                }) => Err("the program could not be started".into()),
                Ok(Ended { why: Why::Told, .. }) => Ok(()),
                Ok(Ended {
                    why: Why::Unguarded,
                    ..
                }) => Err(guarded::UNGUARDED.into()),
                Ok(Ended { why: Why::Late, .. }) => {
                    if trust_ends(&context, grace).await {
                        Ok(())
                    } else {
                        Err(STOPPED_LATE.into())
                    }
                }
                Err(error) => Err(error.into()),
            };
            let _ = sender.send(ended);
        });
        Ok(Box::pin(async move { ended.await? }))
    }
}

/// Whether a program that was stopped by its deadline, or lost its guard, ended because trust ended: then the program
/// has not failed. If trust was renewed after all, or was never short, the shard has to start again at once.
async fn trust_ends(context: &Context, grace: Duration) -> bool {
    let (deadline, over) = (context.deadline(), context.ended());
    if context.check().is_ok_and(|remaining| remaining > grace) {
        return false;
    }
    // One of the two must happen. When the shard is over, the deadline also moves back.
    tokio::select! {
        biased;
        () = over.cancelled() => true,
        moved = context.deadline_after(deadline) => moved < deadline,
    }
}

impl Programs {
    fn environment(&self, context: &Context) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("TENURE_DAEMON", Some(self.id.clone())),
            ("TENURE_SHARD", Some(context.shard().index.to_string())),
            // The count that is in force, not the one that this node was started with: all shards must divide the
            // work in the same way.
            ("TENURE_SHARDS", Some(context.count().to_string())),
            ("TENURE_GENERATION", Some(context.generation().to_string())),
            ("TENURE_NODE", Some(context.node().to_string())),
            ("TENURE_NAMESPACE", Some(self.namespace.clone())),
        ]
    }
}

/// Supervises one program, from its start until nothing of it is left.
struct Supervisor {
    program: Program,
    grace: Duration,
    session: session::Config,
    kill_after: Duration,
    pass: broadcast::Receiver<Signal>,
    killed: watch::Receiver<bool>,
    stuck: StuckShards,
}

impl Supervisor {
    async fn run(mut self, context: &Context, _working: Working) -> anyhow::Result<Ended> {
        let (stopping, over) = (context.stopping(), context.ended());
        let mut deadline = context.deadline();
        let mut watch = GuardWatch::new(self.trust_of(context));
        let mut complaint = Complaint::default();
        let mut told = false;
        loop {
            let late_at = watch.late_at(self.program.is_started());
            tokio::select! {
                biased;
                became = watch.next(&mut self.program) => match became? {
                    ProgramEvent::Ended(ended) => {
                        lock(&self.stuck).remove(context.shard());
                        return Ok(ended);
                    }
                    ProgramEvent::Heard(kill_at) => watch.heard(kill_at),
                    ProgramEvent::Stuck(stuck) => {
                        lock(&self.stuck).insert(context.shard().clone());
                        context.cannot_end(Some(stuck.to_string()));
                        complaint.say(stuck, &kept(context));
                    }
                },
                () = complaint.is_due() => complaint.say_again(&kept(context)),
                () = over.cancelled(), if !watch.killing => {
                    self.program.order(Order::Kill);
                    watch.kill_within(KILL_PATIENCE);
                    complaint.say_again(&kept(context));
                }
                () = is_set(&mut self.killed), if !watch.killing => {
                    self.program.order(Order::Kill);
                    watch.kill_within(STOP_PATIENCE);
                }
                () = stopping.cancelled(), if !told => {
                    told = true;
                    self.program.order(Order::Stop(Signal::TERM));
                    watch.end_within(self.kill_after + STOP_PATIENCE);
                }
                moved = context.deadline_after(deadline), if !watch.killing => {
                    deadline = moved;
                    let until = until(deadline, &self.session);
                    self.program.order(Order::Until(until));
                    let is_started = self.program.is_started();
                    watch.offer(is_started, until, self.trust_of(context));
                }
                // Checked after the branches that may extend trust: this process may have been slow to run them.
                () = sleep_until(late_at), if !self.program.is_stuck() => watch.check(self.program.is_started()),
                Ok(signal) = self.pass.recv() => self.program.order(Order::Pass(signal)),
            }
        }
    }

    /// How long the guard may let the program live, and a little more: by then it has killed it.
    fn trust_of(&self, context: &Context) -> Duration {
        let remaining = context.check().unwrap_or_default();
        remaining.saturating_sub(self.grace / 8)
    }
}

/// How a process that may not be killed affects its shard.
fn kept(context: &Context) -> String {
    let shard = context.shard();
    match context.check() {
        Ok(_) => format!("{shard} is kept until it ends. End it"),
        Err(_) => format!(
            "{shard} is no longer this node's, and another node may start it beside it. End it; it is not started here \
             before that"
        ),
    }
}

/// Waits until the flag is set; for ever if its sender is gone.
async fn is_set(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|is_set| *is_set).await.is_err() {
        std::future::pending::<()>().await;
    }
}
