//! Where the driver and the cluster's machines meet.
//!
//! Events of the node machine become inputs of the cluster's machines, and these ask the node machine for
//! things in turn. Inputs wait until the step that caused them is over, so no machine is ever stepped from
//! within another's step.

use tenure_core::cluster::witness::What;
use tenure_core::cluster::{Going, agent, assigner, registry};
use tenure_core::election::machine::Leader;
use tenure_core::node::{Event as NodeEvent, Input as NodeInput};
use tenure_core::{ElectionName, Lineage, Moment, Read};
use tenure_store::Hint;

use super::requests::{ToAssigner, Told};
use super::{Assigner, Coordination, Input, Order, Silence, Taking, Wake};
use crate::driver::{Command, Driver, Run};
use crate::keys::Keys;

/// After how many heartbeats a leader that hands out no work is worth a warning.
const SILENCE_HEARTBEATS: u32 = 5;

impl Driver {
    /// When something is due.
    pub(in crate::driver) fn deadline(&self, run: &Run) -> Moment {
        let cluster = self.cluster.as_ref().map(|cluster| cluster.wake_at());
        run.deadline().min(cluster.unwrap_or(Moment::NEVER))
    }

    /// Carries out what waits for the cluster's machines, and what comes of that.
    pub(in crate::driver) fn settle(&mut self, run: &mut Run) {
        loop {
            let Some(cluster) = &mut self.cluster else {
                return;
            };
            let Some(input) = cluster.pending.pop_front() else {
                break;
            };
            let asked = cluster.step(self.clock.step(), input, &mut self.about);
            for input in asked {
                let is_report = matches!(input, NodeInput::Labels(_));
                self.step(run, input);
                if is_report {
                    self.tell_own_session(run);
                }
            }
        }
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let held = !cluster.is_idle();
        if cluster.held != held {
            cluster.held = held;
            self.step(run, NodeInput::Hold(held));
            // The session may have left, and that is all there is to it.
            self.settle(run);
        }
    }

    /// A leader knows what its own session says without reading it.
    fn tell_own_session(&mut self, run: &Run) {
        if let Some(cluster) = &mut self.cluster
            && cluster.leads.is_some()
        {
            let record = Box::new(run.machine.record().clone());
            cluster.push(Input::Registry(registry::Input::Seen(record.clone())));
            cluster.push(Input::Assigner(assigner::Input::Session(record)));
        }
    }

    /// A new session begins.
    pub(in crate::driver) fn cluster_begins(&mut self, run: &mut Run) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let seed = uuid::Uuid::from_u128(run.me.incarnation.0).as_u64_pair().1;
        let assigner = Assigner::new(
            cluster.config.clone(),
            &cluster.session,
            run.me.clone(),
            self.clock.moment(),
            seed,
        );
        cluster.current = Some((run.me.clone(), assigner));
        cluster.held = false;
        let joined = agent::Input::Joined(run.me.incarnation);
        cluster.push(Input::Agent(joined));
        self.settle(run);
    }

    pub(in crate::driver) fn on_order(&mut self, run: &mut Run, order: Order) {
        if let Order::Take(taking) = order {
            if self.cluster.is_none() {
                self.take_part(run, *taking);
            }
            return;
        }
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        match order {
            Order::Take(_) => unreachable!("handled above"),
            Order::Register(id, daemon, definition) => {
                cluster.daemons.insert(id.clone(), daemon);
                let part = self.about.cluster.get_or_insert_default();
                part.offers.insert(id.clone(), definition);
                cluster.push(Input::Agent(agent::Input::Offer(id)));
                self.tell_about(run);
            }
            Order::Withdraw(id) => {
                let part = self.about.cluster.get_or_insert_default();
                part.offers.remove(&id);
                // What runs goes on with what it has; nothing new is started.
                cluster.daemons.remove(&id);
                cluster.push(Input::Agent(agent::Input::Withdraw(id)));
                self.tell_about(run);
            }
            Order::Leave(going, waiting) => {
                cluster.leaving.push(waiting);
                self.cluster_leaves(going);
            }
            Order::Plan(answer) => {
                let assigner = cluster.current.as_ref().map(|(_, assigner)| assigner);
                let leads = assigner.filter(|assigner| assigner.assignments().is_some());
                let plan = leads.map(|assigner| assigner.plan(self.clock.moment()));
                let _ = answer.send(plan);
            }
            Order::Started(shard, generation) => {
                if cluster.running_in(&shard, generation).is_some() {
                    tracing::info!(%shard, %generation, "started");
                    cluster.hub.own(&shard, generation, What::Started);
                }
                let started = agent::Input::Started(shard, generation);
                cluster.push(Input::Agent(started));
            }
            Order::Stuck {
                shard,
                generation,
                error,
            } => cluster.push(Input::Agent(agent::Input::Stuck {
                shard,
                generation,
                error,
            })),
            Order::Ended {
                shard,
                generation,
                error,
            } => {
                tracing::info!(%shard, %generation, error, "ended");
                cluster.ended(&shard, generation, error.as_deref());
                cluster.push(Input::Agent(agent::Input::Ended {
                    shard,
                    generation,
                    error,
                }));
            }
        }
    }

    fn take_part(&mut self, run: &mut Run, taking: Taking) {
        self.about.cluster = Some(Box::new(taking.part.clone()));
        let place = (self.store.clone(), self.keys.clone());
        let (counters, reports) = (self.counters.clone(), self.reports.clone());
        let (node, session) = (self.node.clone(), self.config.clone());
        let clock = self.clock.clone();
        let cluster = Coordination::new(taking, node, session, clock, place, counters, reports);
        self.cluster = Some(Box::new(cluster));
        if run.left {
            return;
        }
        self.cluster_begins(run);
        self.tell_about(run);
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let trusted = agent::Input::Trusted(run.machine.trusted_until());
        cluster.push(Input::Agent(trusted));
        let election = ElectionName::cluster();
        if let Some((seat, _)) = self.elections.get(&election) {
            cluster.on_leader(self.clock.moment(), seat.leader().as_ref());
        }
        if let Some(term) = run.leading.get(&election) {
            cluster.elected(term.lineage(), term.term);
        }
        self.settle(run);
    }

    /// What this process says of itself has changed.
    pub(in crate::driver) fn tell_about(&mut self, run: &mut Run) {
        self.step(run, NodeInput::Labels(self.about.clone()));
        self.tell_own_session(run);
    }

    /// Everything is to be drained, and nothing new started. What was said first counts.
    pub(in crate::driver) fn cluster_leaves(&mut self, going: Going) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        if !cluster.going {
            cluster.going = true;
            cluster.push(Input::Agent(agent::Input::Leave(going)));
        }
        if cluster.is_idle() {
            cluster.tell_that_all_has_ended();
        }
    }

    /// The session is over, this process is stopping, and some daemons have not ended yet.
    pub(in crate::driver) async fn cluster_ends(&mut self) {
        while let Some(cluster) = &mut self.cluster
            && !cluster.is_idle()
        {
            match self.commands.recv().await {
                Some(Command::Cluster(Order::Ended {
                    shard,
                    generation,
                    error,
                })) => cluster.ended(&shard, generation, error.as_deref()),
                Some(Command::Shutdown(stopped)) => self.stopping.extend(stopped),
                Some(_) => {}
                None => return,
            }
        }
    }

    pub(in crate::driver) fn on_cluster(&mut self, run: &mut Run, wake: Wake) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        match wake {
            Wake::Told(told) => cluster.on_told(self.clock.moment(), *told),
            Wake::Assignments(hint) => cluster.on_assignments_hint(&hint),
            Wake::Session(Hint::Anything) => self.step(run, NodeInput::HintAll),
            Wake::Session(Hint::Changed(key)) => {
                if let Some((node, incarnation)) = Keys::session_of(&key)
                    && incarnation != run.me.incarnation
                {
                    let hint = registry::Input::Hint(node, incarnation);
                    cluster.push(Input::Registry(hint));
                    self.step(run, NodeInput::HintSession(incarnation));
                }
            }
        }
    }

    /// What of the node machine's events concerns the cluster.
    pub(in crate::driver) fn cluster_hears(&mut self, run: &Run, event: &NodeEvent) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        match event {
            NodeEvent::Trusted { until } => {
                cluster.push(Input::Agent(agent::Input::Trusted(*until)));
                self.tell_own_session(run);
            }
            NodeEvent::Over { .. } => {
                cluster.push(Input::Agent(agent::Input::SessionOver));
                cluster.deposed();
            }
            NodeEvent::Left => {
                cluster.deposed();
                cluster.current = None;
            }
            NodeEvent::Session(record) => {
                cluster.hub.reported(record);
                cluster.push(Input::Registry(registry::Input::Seen(record.clone())));
                cluster.push(Input::Assigner(assigner::Input::Session(record.clone())));
            }
            NodeEvent::SessionEnded { incarnation, end } => {
                cluster.hub.session_ended(*incarnation);
                let ended = registry::Input::SessionEnded(*incarnation, *end);
                cluster.push(Input::Registry(ended));
                let ended = assigner::Input::SessionEnded(*incarnation, *end);
                cluster.push(Input::Assigner(ended));
            }
            NodeEvent::Leader { election, leader } if is_clusters(election) => {
                cluster.on_leader(self.clock.moment(), leader.as_ref());
            }
            NodeEvent::Elected {
                election,
                term,
                lineage,
            } if is_clusters(election) => {
                cluster.elected(*lineage, *term);
            }
            NodeEvent::Ended { election, .. } if is_clusters(election) => {
                cluster.deposed();
            }
            _ => {}
        }
    }

    pub(in crate::driver) fn cluster_wakes(&mut self) {
        let now = self.clock.moment();
        if let Some(cluster) = &mut self.cluster
            && cluster.wake_at() <= now
        {
            cluster.push(Input::Agent(agent::Input::Wake));
            cluster.push(Input::Registry(registry::Input::Wake));
            cluster.push(Input::Assigner(assigner::Input::Wake));
        }
    }
}

/// Whether whoever leads this election hands out the work.
fn is_clusters(election: &ElectionName) -> bool {
    election.as_str() == ElectionName::CLUSTER
}

impl Coordination {
    fn elected(&mut self, lineage: Lineage, term: tenure_core::election::Term) {
        self.leads = Some(term);
        self.session_hints = self.requests.watch_sessions();
        self.push(Input::Assigner(assigner::Input::Elected(lineage, term)));
        self.push(Input::Registry(registry::Input::Leads(true)));
    }

    fn deposed(&mut self) {
        if self.leads.take().is_some() {
            self.session_hints = None;
            self.push(Input::Assigner(assigner::Input::Ended));
            self.push(Input::Registry(registry::Input::Leads(false)));
        }
    }

    fn on_leader(&mut self, now: Moment, leader: Option<&Leader>) {
        self.hub.leader_is(leader);
        self.silence.leader = leader.map(|leader| (leader.term, now));
    }

    fn on_assignments_hint(&mut self, hint: &Hint) {
        let is_of = |name: &str| match hint {
            Hint::Anything => true,
            Hint::Changed(key) => key.name() == name,
        };
        if is_of(Keys::ASSIGNMENTS) {
            self.push(Input::Agent(agent::Input::Hint));
        }
        if is_of(Keys::DRAINS) && self.leads.is_some() {
            self.push(Input::Assigner(assigner::Input::DrainsHint));
        }
    }

    fn on_told(&mut self, now: Moment, told: Told) {
        match told {
            Told::Looked(found) => {
                if let Read::Found { record, .. } = &found {
                    let holders = record.holders.values();
                    let named = holders.map(|holder| (holder.incarnation, holder.node.clone()));
                    let named = registry::Input::Holders(named.collect());
                    self.pending.push_back(Input::Registry(named));
                    self.silence.heard(record.term);
                    // Before the agent acts on it, so that what it does comes after what it was told.
                    self.hub.looked(record);
                }
                if !self.daemons.is_empty() && self.leads.is_none() {
                    self.silence
                        .check(now, self.session.heartbeat * SILENCE_HEARTBEATS);
                }
                self.push(Input::Agent(agent::Input::Looked(found)));
            }
            Told::Assigner(me, told) => {
                // An answer to the assigner of a session that is over.
                if !matches!(&self.current, Some((current, _)) if current.incarnation == me) {
                    return;
                }
                let input = match told {
                    ToAssigner::Assignments(found) => assigner::Input::Read(found),
                    ToAssigner::Drains(found) => assigner::Input::DrainsRead(found),
                    ToAssigner::Written(written) => {
                        self.counters.assignments_written(&written);
                        assigner::Input::Written(written)
                    }
                };
                self.push(Input::Assigner(input));
            }
            Told::Listed(listed) => self.push(Input::Registry(registry::Input::Listed(listed))),
            Told::Session(incarnation, found) => {
                self.push(Input::Registry(registry::Input::Read(incarnation, found)));
            }
            Told::Deleted => {}
        }
    }
}

impl Silence {
    /// The assignments carry this term.
    fn heard(&mut self, of: tenure_core::election::Term) {
        if self.leader.is_some_and(|(term, _)| term == of) {
            self.leader = None;
        }
    }

    /// Warns of a leader that does not hand out work.
    fn check(&mut self, now: Moment, patience: std::time::Duration) {
        if let Some((term, since)) = self.leader
            && now.since(since) >= patience
            && self.warned != Some(term)
        {
            self.warned = Some(term);
            tracing::warn!(
                %term,
                "the leader of the election tenure.cluster has not assigned any daemons yet: look at its log, or ask it \
                 to resign"
            );
        }
    }
}
