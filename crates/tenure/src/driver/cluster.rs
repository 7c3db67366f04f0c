//! The driver's part in the cluster: runs the shards that the node machine says, and tells it what they do.
//! What happens in the cluster is told to the handles, the log and the counters. Nothing is decided here.
//!
//! Daemons run on the runtime of the application; here they are only told what to do, so neither a daemon
//! nor the wait for its end holds up a heartbeat.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::cluster::member::{self, Event, Member, Membership};
use tenure_core::cluster::witness::What;
use tenure_core::cluster::{Decision, Definition, Generation, Going, Shard};
use tenure_core::node::Input;
use tenure_core::{DaemonId, ElectionName};
use tenure_store::{Hint, Watch};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::{Command, Driver, Run, next_hint};
use crate::cluster::events::Hub;
use crate::daemon::life::live;
use crate::daemon::{AnyDaemon, Context};
use crate::keys::Keys;
use crate::requests;
use crate::trust::{Of, Trust};

/// What handles and daemons ask of the driver.
#[derive(Debug)]
pub(crate) enum Order {
    /// Take part in the cluster. Changes nothing if this process does already.
    TakePart(Box<TakePart>),
    Register(DaemonId, Registered, Definition),
    Withdraw(DaemonId),
    /// Drain everything and take nothing new; tell when that is done.
    Leave(Going, oneshot::Sender<()>),
    /// Know of the other nodes also while this process does not lead; or no longer.
    Follow(bool),
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
pub(crate) struct TakePart {
    pub(crate) membership: Membership,
    pub(crate) runtime: Handle,
    pub(crate) hub: Arc<Hub>,
}

/// A daemon that this process can run.
pub(crate) struct Registered(pub(crate) Arc<dyn AnyDaemon>);

impl std::fmt::Debug for Registered {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Registered")
    }
}

/// The daemons of this process, and who hears of the cluster. Lives as long as the driver.
pub(crate) struct Daemons {
    pub(super) hub: Arc<Hub>,
    /// Where daemons run.
    runtime: Handle,
    registered: BTreeMap<DaemonId, Registered>,
    running: BTreeMap<Shard, Context>,
    /// A leader that is at rest does not know yet that there is something to hand out.
    must_ring: bool,
    leaving: Vec<oneshot::Sender<()>>,
    assignments_hints: Option<Watch>,
    /// Only a leader wants to know of every heartbeat.
    session_hints: Option<Watch>,
    hears_sessions: bool,
}

impl Daemons {
    /// Waits for the next hint. Nothing is lost if the wait is cancelled.
    pub(super) async fn next_hint(&mut self) -> Vec<Input> {
        tokio::select! {
            biased;
            hint = next_hint(&mut self.assignments_hints) => of_assignments(&hint),
            hint = next_hint(&mut self.session_hints) => of_sessions(&hint),
        }
    }

    fn running_in(&self, shard: &Shard, generation: Generation) -> Option<&Context> {
        let context = self.running.get(shard)?;
        (context.generation == generation).then_some(context)
    }
}

fn of_assignments(hint: &Hint) -> Vec<Input> {
    let is_of = |name: &str| match hint {
        Hint::Anything => true,
        Hint::Changed(key) => key.name() == name,
    };
    let assignments = is_of(Keys::ASSIGNMENTS).then_some(member::Input::HintAssignments);
    let drains = is_of(Keys::DRAINS).then_some(member::Input::HintDrains);
    let hints = assignments.into_iter().chain(drains);
    hints.map(Input::Cluster).collect()
}

fn of_sessions(hint: &Hint) -> Vec<Input> {
    match hint {
        Hint::Anything => vec![Input::HintAll],
        Hint::Changed(key) => {
            let session = Keys::session_of(key).into_iter();
            let hint = session.map(|(node, which)| member::Input::HintSession(node, which));
            hint.map(Input::Cluster).collect()
        }
    }
}

impl Driver {
    /// What the machine is told of an order.
    pub(super) fn on_order(&mut self, run: &Run, order: Order) -> Option<Input> {
        let order = match order {
            Order::TakePart(part) => return self.take_part(*part),
            order => order,
        };
        let daemons = self.daemons.as_mut()?;
        Some(Input::Cluster(match order {
            Order::TakePart(_) => unreachable!("handled above"),
            Order::Register(id, daemon, definition) => {
                daemons.must_ring |= daemons.registered.is_empty();
                daemons.registered.insert(id.clone(), daemon);
                member::Input::Offer(id, definition)
            }
            Order::Withdraw(id) => {
                daemons.registered.remove(&id);
                member::Input::Withdraw(id)
            }
            Order::Leave(going, waiting) => {
                daemons.leaving.push(waiting);
                member::Input::Leave(going)
            }
            Order::Follow(follows) => member::Input::Follow(follows),
            Order::Plan(answer) => {
                let member = run.machine.member();
                let _ = answer.send(member.and_then(|it| it.plan(self.runtime.clock.moment())));
                return None;
            }
            Order::Started(shard, generation) => {
                if daemons.running_in(&shard, generation).is_some() {
                    tracing::info!(%shard, %generation, "started");
                    self.counters.shard(&What::Started);
                }
                member::Input::Started(shard, generation)
            }
            Order::Stuck {
                shard,
                generation,
                error,
            } => member::Input::Stuck {
                shard,
                generation,
                error,
            },
            Order::Ended {
                shard,
                generation,
                error,
            } => {
                tracing::info!(%shard, %generation, error, "ended");
                if daemons.running_in(&shard, generation).is_some() {
                    daemons.running.remove(&shard);
                    let failed = error.clone().map(|error| What::Failed { error });
                    self.counters.shard(&failed.unwrap_or(What::Stopped));
                }
                member::Input::Ended {
                    shard,
                    generation,
                    error,
                }
            }
        }))
    }

    /// The session says what this process offers, for the first time. Where no hint tells that to the leader of the cluster,
    /// its lease does: written as it is, it makes the leader look who has come. If that fails, the leader sees it when it
    /// lists the sessions next, so it is tried once.
    pub(super) fn ring(&mut self, run: &Run) {
        let Some(daemons) = &mut self.daemons else {
            return;
        };
        let leads = run.machine.member().is_some_and(Member::leads);
        let has_hints = self.store.describe().capabilities.hints;
        if !std::mem::take(&mut daemons.must_ring) || leads || has_hints {
            return;
        }
        let (store, keys, within) = (
            self.store.clone(),
            self.keys.clone(),
            self.config.request_timeout,
        );
        let nonce = self.runtime.clock.now().nonce;
        let me = run.me.incarnation;
        let rung = async move {
            let rung = requests::ring(&*store, &keys, me, nonce);
            if let Ok(Err(error)) = tokio::time::timeout(within, rung).await {
                tracing::debug!(error = %requests::Chain(&error), "cannot ring at the lease of the cluster");
            }
        };
        self.runtime.spawn(rung.in_current_span());
    }

    fn take_part(&mut self, part: TakePart) -> Option<Input> {
        if self.daemons.is_some() {
            return None;
        }
        let election = self.elections.get(&ElectionName::cluster());
        part.hub
            .leader_is(election.and_then(|(seat, _)| seat.leader()).as_ref());
        self.daemons = Some(Box::new(Daemons {
            hub: part.hub,
            runtime: part.runtime,
            registered: BTreeMap::new(),
            running: BTreeMap::new(),
            must_ring: false,
            leaving: Vec::new(),
            assignments_hints: self.store.watch(&self.keys.cluster()),
            session_hints: None,
            hears_sessions: false,
        }));
        Some(Input::TakePart(Box::new(part.membership)))
    }

    pub(super) fn on_cluster_event(&mut self, run: &Run, event: Event) {
        let (Some(daemons), Some(member)) = (&mut self.daemons, run.machine.member()) else {
            return;
        };
        match event {
            Event::Start {
                shard,
                generation,
                count,
            } => self.start(member, shard, generation, count),
            Event::Drain {
                shard,
                generation,
                until,
            } => {
                if let Some(context) = daemons.running_in(&shard, generation) {
                    let within = until.since(self.runtime.clock.moment());
                    tracing::info!(%shard, %generation, ?within, "draining");
                    if !context.is_stopping() {
                        self.counters.shard(&What::Revoked);
                    }
                    context.stop();
                }
            }
            Event::Abort { shard, generation } => {
                if let Some(context) = daemons.running_in(&shard, generation) {
                    tracing::warn!(%shard, %generation, "aborting");
                    if !context.is_stopping() {
                        self.counters.shard(&What::Revoked);
                    }
                    context.abort();
                }
            }
            Event::TrustMoved => {
                for (shard, context) in &daemons.running {
                    let until = member.trusted_until(shard, context.generation);
                    context.trust_until(until.unwrap_or_default());
                }
            }
            Event::Turn(turn) => daemons.hub.turned(turn, member.shards()),
            Event::Joined(record) => {
                tracing::info!(other = %record.node, incarnation = %record.incarnation, "a node has joined");
                daemons.hub.joined(&record);
            }
            Event::Left(record) => {
                tracing::info!(other = %record.node, incarnation = %record.incarnation, "a node has left");
                daemons.hub.left(&record, false);
            }
            Event::Evicted(record) => {
                tracing::warn!(other = %record.node, incarnation = %record.incarnation, "a node was evicted");
                daemons.hub.left(&record, true);
            }
            Event::Installed { term } => tracing::info!(%term, "this node assigns the shards"),
            Event::Decided(decisions) => {
                self.counters.decided(decisions.len());
                for decision in decisions {
                    tracing::info!("{decision}");
                }
            }
            Event::Superseded { by } => tracing::warn!(%by, "a newer leader assigns the shards"),
            Event::Resigned { term } => {
                tracing::info!(%term, "this node is drained; it lets another node assign the shards");
            }
            Event::LeaderSilent { term } => tracing::warn!(
                %term,
                "the leader of the election tenure.cluster has not assigned any daemons yet: look at its log, or ask it \
                 to resign"
            ),
            Event::Anomaly(anomaly) => {
                tracing::error!(
                    ?anomaly,
                    "another process changed the cluster's objects: `tenure plan` says what waits for that"
                );
                self.counters.cluster_anomaly();
            }
        }
    }

    fn start(&mut self, member: &Member, shard: Shard, generation: Generation, count: u32) {
        let Some(daemons) = &mut self.daemons else {
            return;
        };
        tracing::info!(%shard, %generation, "assigned, starting");
        let trusted_until = member.trusted_until(&shard, generation);
        let trust = Trust::new(
            Of::Shard(shard.clone(), generation),
            trusted_until.unwrap_or_default(),
            self.runtime.clock.clone(),
            self.reports.clone(),
        );
        let context = Context {
            trust,
            shard: shard.clone(),
            generation,
            count,
            node: self.node.clone(),
        };
        let Some(daemon) = daemons.registered.get(&shard.daemon) else {
            // Withdrawn with this very step: what was started before the machine heard of it ends at once.
            let error = Some("the daemon is not registered".to_owned());
            let ended = Order::Ended {
                shard,
                generation,
                error,
            };
            let _ = self.reports.send(Command::Cluster(ended));
            return;
        };
        self.counters.shard(&What::Assigned);
        daemons.running.insert(shard, context.clone());
        // Should that runtime be gone, the task is dropped, and that tells of the end as well.
        let life = live(daemon.0.clone(), context);
        daemons.runtime.spawn(self.runtime.task(life));
    }

    /// The waiter for the end of all daemons hears of it, and a leader hears of every session.
    pub(super) fn follow_member(&mut self, run: &Run) {
        let (Some(daemons), Some(member)) = (&mut self.daemons, run.machine.member()) else {
            return;
        };
        if member.has_drained() {
            for waiting in daemons.leaving.drain(..) {
                let _ = waiting.send(());
            }
        }
        if daemons.hears_sessions != member.leads() {
            daemons.hears_sessions = member.leads();
            let hints = member.leads().then(|| self.store.watch(&self.keys.nodes()));
            daemons.session_hints = hints.flatten();
        }
    }
}

impl Drop for Daemons {
    /// Also should this thread panic: nobody goes on working for a session that nobody renews.
    fn drop(&mut self) {
        for context in self.running.values() {
            context.abort();
        }
        self.hub.close();
    }
}
