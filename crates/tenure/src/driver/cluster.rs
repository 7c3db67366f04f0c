//! The driver's part in the cluster: the agent, the registry and, while this process leads, the assigner.
//! Like the driver itself it decides nothing.
//!
//! Daemons run on the runtime of the application; here they are only told what to do, so neither a daemon
//! nor the wait for its end holds up a heartbeat. What the machines ask of the store goes through tasks of
//! their own, which outlive a session, since the agent does too.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tenure_core::cluster::agent::{self, Agent};
use tenure_core::cluster::assigner::{self, Assigner};
use tenure_core::cluster::registry::{self, Registry};
use tenure_core::cluster::witness::What;
use tenure_core::cluster::{Config, Decision, Definition, Generation, Going, Part, Shard};
use tenure_core::election::Term;
use tenure_core::node::Input as NodeInput;
use tenure_core::session::record::About;
use tenure_core::session::{self, Holder};
use tenure_core::{DaemonId, ElectionName, Incarnation, Moment, NodeId, Now};
use tenure_store::{Hint, Store, Watch};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::Command;
use crate::Clock;
use crate::cluster::events::Hub;
use crate::daemon::AnyDaemon;
use crate::daemon::life::live;
use crate::daemon::state::ShardState;
use crate::keys::Keys;
use crate::metrics::Counters;

mod hooks;
mod requests;

use requests::{Ask, Requests, Told};

/// What handles and daemons ask of the driver.
#[derive(Debug)]
pub(crate) enum Order {
    /// Take part in the cluster. Changes nothing if this process does already.
    Take(Box<Taking>),
    Register(DaemonId, Registered, Definition),
    Withdraw(DaemonId),
    /// Drain everything and take nothing new; tell when that is done.
    Leave(Going, oneshot::Sender<()>),
    /// What this process would do as the leader; nothing if it does not lead.
    Plan(oneshot::Sender<Option<Vec<Decision>>>),
    Started(Shard, Generation),
    Ended {
        shard: Shard,
        generation: Generation,
        error: Option<String>,
    },
    /// A shard cannot be ended; or can, after all.
    Stuck {
        shard: Shard,
        generation: Generation,
        error: Option<String>,
    },
}

/// How to take part.
#[derive(Debug)]
pub(crate) struct Taking {
    pub(crate) config: Config,
    pub(crate) part: Part,
    pub(crate) runtime: Handle,
    pub(crate) follows: bool,
    pub(crate) hub: Arc<Hub>,
}

/// A daemon that this process can run.
pub(crate) struct Registered(pub(crate) Arc<dyn AnyDaemon>);

impl std::fmt::Debug for Registered {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Registered")
    }
}

/// What lives as long as the driver.
pub(crate) struct Coordination {
    config: Config,
    session: session::Config,
    node: NodeId,
    clock: Clock,
    hub: Arc<Hub>,
    counters: Arc<Counters>,
    /// Where daemons run.
    runtime: Handle,
    /// For daemons to tell of their ends.
    reports: mpsc::UnboundedSender<Command>,
    requests: Requests,
    agent: Agent,
    registry: Registry,
    /// Whether to know of the other nodes also while this one does not lead.
    follows: bool,
    /// The current session, and the assigner that belongs to it.
    current: Option<(Holder, Assigner)>,
    leads: Option<Term>,
    daemons: BTreeMap<DaemonId, Registered>,
    running: BTreeMap<Shard, Arc<ShardState>>,
    /// Inputs that wait for the step of the node machine, which has caused them, to be over.
    pending: VecDeque<Input>,
    /// What the node machine was told last about whether anything runs.
    held: bool,
    going: bool,
    leaving: Vec<oneshot::Sender<()>>,
    assignments_hints: Option<Watch>,
    /// Only a leader wants to know of every heartbeat.
    session_hints: Option<Watch>,
    silence: Silence,
}

/// Notices a leader that does not hand out work.
#[derive(Debug, Default)]
struct Silence {
    leader: Option<(Term, Moment)>,
    warned: Option<Term>,
}

/// An input for one of the machines.
pub(super) enum Input {
    Agent(agent::Input),
    Assigner(assigner::Input),
    Registry(registry::Input),
}

/// What wakes the driver for the cluster.
pub(super) enum Wake {
    Told(Box<Told>),
    Assignments(Hint),
    Session(Hint),
}

impl Coordination {
    pub(super) fn new(
        taking: Taking,
        node: NodeId,
        session: session::Config,
        clock: Clock,
        (store, keys): (Arc<dyn Store>, Keys),
        counters: Arc<Counters>,
        reports: mpsc::UnboundedSender<Command>,
    ) -> Self {
        let now = clock.moment();
        let seed = crate::task::unique().as_u64_pair().0;
        let assignments_hints = store.watch(&keys.cluster());
        let within = session.request_timeout;
        Self {
            agent: Agent::new(&session, now, seed),
            registry: Registry::new(&session, now, seed ^ 1),
            config: taking.config,
            follows: taking.follows,
            requests: Requests::new(store, keys, within),
            session,
            node,
            clock,
            hub: taking.hub,
            counters,
            runtime: taking.runtime,
            reports,
            current: None,
            leads: None,
            daemons: BTreeMap::new(),
            running: BTreeMap::new(),
            pending: VecDeque::new(),
            held: false,
            going: false,
            leaving: Vec::new(),
            assignments_hints,
            session_hints: None,
            silence: Silence::default(),
        }
    }

    pub(super) fn wake_at(&self) -> Moment {
        let Some((_, assigner)) = &self.current else {
            return Moment::NEVER;
        };
        let registry_at = match self.knows_nodes() {
            true => self.registry.wake_at(),
            false => Moment::NEVER,
        };
        let others = self.agent.wake_at().min(assigner.wake_at());
        registry_at.min(others)
    }

    /// Waits for whatever comes first. Nothing is lost if the wait is cancelled.
    pub(super) async fn next(&mut self) -> Wake {
        tokio::select! {
            biased;
            told = self.requests.next() => Wake::Told(Box::new(told)),
            hint = super::next_hint(&mut self.assignments_hints) => Wake::Assignments(hint),
            hint = super::next_hint(&mut self.session_hints) => Wake::Session(hint),
        }
    }

    /// One step of one machine. Returns what the node machine is to do about it.
    fn step(&mut self, now: Now, input: Input, about: &mut About) -> Vec<NodeInput> {
        let mut asked = Vec::new();
        match input {
            Input::Agent(input) => {
                let mut inputs = vec![input];
                while let Some(input) = self.next_of_agent() {
                    inputs.push(input);
                }
                for output in self.agent.step_all(now.moment, inputs) {
                    self.on_agent(output, about, &mut asked);
                }
                self.refresh_trust();
            }
            // Whoever does not want to know is not told, so that nothing is asked of the store.
            Input::Registry(input) if !self.knows_nodes() && !is_answer(&input) => {}
            Input::Registry(input) => {
                for output in self.registry.step(now.moment, input) {
                    self.on_registry(output);
                }
            }
            Input::Assigner(input) => {
                let Some((me, assigner)) = &mut self.current else {
                    return asked;
                };
                let (me, outputs) = (me.incarnation, assigner.step(now, input));
                for output in outputs {
                    self.on_assigner(me, output, &mut asked);
                }
            }
        }
        asked
    }

    // ---- what the machines ask for ------------------------------------------------------------------

    fn on_agent(&mut self, output: agent::Output, about: &mut About, asked: &mut Vec<NodeInput>) {
        match output {
            agent::Output::Look { known } => self.requests.send(self.me(), Ask::Look { known }),
            agent::Output::Start {
                shard,
                generation,
                count,
            } => self.start(shard, generation, count),
            agent::Output::Drain {
                shard,
                generation,
                until,
            } => {
                if let Some(state) = self.running_in(&shard, generation) {
                    let within = until.since(self.clock.moment());
                    tracing::info!(%shard, %generation, ?within, "draining");
                    self.revoked(&state);
                    state.tell_to_drain();
                }
            }
            agent::Output::Abort { shard, generation } => {
                if let Some(state) = self.running_in(&shard, generation) {
                    tracing::warn!(%shard, %generation, "aborting");
                    self.revoked(&state);
                    state.abort();
                }
            }
            agent::Output::Report(report) => {
                report.apply(about);
                asked.push(NodeInput::Labels(about.clone()));
            }
            // That nothing runs any more is seen without being told.
            agent::Output::Idle => {}
        }
    }

    fn start(&mut self, shard: Shard, generation: Generation, count: u32) {
        tracing::info!(%shard, %generation, "assigned, starting");
        let state = ShardState::new(
            shard.clone(),
            generation,
            count,
            self.node.clone(),
            self.clock.clone(),
            self.reports.clone(),
        );
        let trusted_until = self.agent.trusted_until(&shard, generation);
        state.trust_until(trusted_until.unwrap_or_default());
        let Some(daemon) = self.daemons.get(&shard.daemon) else {
            // The agent starts only what is offered, and both are told of a withdrawal at once.
            let error = Some("the daemon is not registered".to_owned());
            return self.push(Input::Agent(agent::Input::Ended {
                shard,
                generation,
                error,
            }));
        };
        self.hub.own(&shard, generation, What::Assigned);
        self.running.insert(shard, state.clone());
        // Should that runtime be gone, the task is dropped, and that tells of the end as well.
        let life = live(daemon.0.clone(), state);
        self.runtime.spawn(crate::task::scoped(life));
    }

    fn on_registry(&mut self, output: registry::Output) {
        match output {
            registry::Output::List => self.requests.send(self.me(), Ask::List),
            registry::Output::Read { node, incarnation } => {
                self.requests
                    .send(self.me(), Ask::Session { node, incarnation });
            }
            registry::Output::Delete { node, incarnation } => {
                tracing::info!(other = %node, %incarnation, "removing the remains of a dead session");
                self.counters.session_removed();
                self.requests
                    .send(self.me(), Ask::Delete { node, incarnation });
            }
            registry::Output::Joined(record) => {
                tracing::info!(other = %record.node, incarnation = %record.incarnation, "a node has joined");
                self.hub.joined(&record);
                self.push(Input::Assigner(assigner::Input::Session(record)));
            }
            registry::Output::Left(record) => {
                tracing::info!(other = %record.node, incarnation = %record.incarnation, "a node has left");
                self.hub.left(&record, false);
            }
            registry::Output::Evicted(record) => {
                tracing::warn!(other = %record.node, incarnation = %record.incarnation, "a node was evicted");
                self.hub.left(&record, true);
            }
            registry::Output::Sessions(records) => {
                self.push(Input::Assigner(assigner::Input::Sessions(records)));
            }
        }
    }

    fn on_assigner(
        &mut self,
        me: Incarnation,
        output: assigner::Output,
        asked: &mut Vec<NodeInput>,
    ) {
        match output {
            assigner::Output::Read { known } => {
                self.requests.send(me, Ask::Assignments { known });
            }
            assigner::Output::Write {
                assignments,
                expect,
            } => {
                let ask = Ask::Write {
                    assignments,
                    expect,
                };
                self.requests.send(me, ask);
            }
            assigner::Output::ReadDrains { known } => {
                self.requests.send(me, Ask::Drains { known });
            }
            // This process knows its own session.
            assigner::Output::Watch(holder) if holder.incarnation == me => {}
            assigner::Output::Forget(incarnation) if incarnation == me => {}
            assigner::Output::Watch(holder) => asked.push(NodeInput::Watch(holder)),
            assigner::Output::Forget(incarnation) => asked.push(NodeInput::Forget(incarnation)),
            assigner::Output::Installed { term } => {
                tracing::info!(%term, "this node assigns the shards");
            }
            assigner::Output::Decided(decisions) => {
                self.counters.decided(decisions.len());
                for decision in decisions {
                    tracing::info!("{decision}");
                }
            }
            assigner::Output::Superseded { by } => {
                tracing::warn!(%by, "a newer leader assigns the shards");
            }
            assigner::Output::Resign { term } => {
                tracing::info!(%term, "this node is drained; it lets another node assign the shards");
                asked.push(NodeInput::Resign(ElectionName::cluster()));
            }
            assigner::Output::Anomaly(anomaly) => {
                tracing::error!(?anomaly, "another process changed the cluster's objects");
                self.counters.cluster_anomaly();
            }
        }
    }

    // ---- small things -------------------------------------------------------------------------------

    /// The session that a request is made in; any will do for those who outlive it.
    fn me(&self) -> Incarnation {
        let current = self.current.as_ref();
        current.map_or(Incarnation(0), |(me, _)| me.incarnation)
    }

    fn knows_nodes(&self) -> bool {
        self.follows || self.leads.is_some()
    }

    fn push(&mut self, input: Input) {
        self.pending.push_back(input);
    }

    /// The next input, if it is one for the agent.
    fn next_of_agent(&mut self) -> Option<agent::Input> {
        let next = self
            .pending
            .pop_front_if(|input| matches!(input, Input::Agent(_)));
        match next? {
            Input::Agent(input) => Some(input),
            Input::Assigner(_) | Input::Registry(_) => None,
        }
    }

    fn running_in(&self, shard: &Shard, generation: Generation) -> Option<Arc<ShardState>> {
        let state = self.running.get(shard)?;
        (state.generation == generation).then(|| state.clone())
    }

    fn revoked(&self, state: &ShardState) {
        if !state.was_told() {
            self.hub.own(&state.shard, state.generation, What::Revoked);
        }
    }

    /// Takes the news of a shard's end; the agent is told of it by the caller.
    fn ended(&mut self, shard: &Shard, generation: Generation, error: Option<&str>) {
        if self.running_in(shard, generation).is_none() {
            return;
        }
        self.running.remove(shard);
        let error = error.map(str::to_owned);
        let what = error.map_or(What::Stopped, |error| What::Failed { error });
        self.hub.own(shard, generation, what);
        if self.going && self.running.is_empty() {
            self.tell_that_all_has_ended();
        }
    }

    fn tell_that_all_has_ended(&mut self) {
        for waiting in self.leaving.drain(..) {
            let _ = waiting.send(());
        }
    }

    /// What each shard's daemon reads at every check.
    fn refresh_trust(&self) {
        for (shard, state) in &self.running {
            let until = self.agent.trusted_until(shard, state.generation);
            state.trust_until(until.unwrap_or_default());
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }
}

fn is_answer(input: &registry::Input) -> bool {
    use registry::Input::{Leads, Listed, Read};
    matches!(input, Listed(_) | Read(..) | Leads(_))
}

impl Drop for Coordination {
    /// Also should this thread panic: nobody goes on working for a session that nobody renews.
    fn drop(&mut self) {
        for state in self.running.values() {
            state.abort();
        }
        self.hub.close();
    }
}
