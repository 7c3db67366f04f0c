//! One process's part in the cluster: agent, assigner, registry and witness as one machine.
//!
//! ```text
//!             node: session, observer, elections
//!      trusted, over │      ▲ report        │ elected, deposed
//!                    ▼      │               ▼
//!   assignments ──► agent ──┘   ┌──────► assigner ──► assignments
//!        │                      │ who is there   │
//!        └────► registry ───────┘  ◄─────────────┘ watch, forget
//!        └────► witness ──► what happens to shards, told in order
//! ```
//!
//! The agent, the registry and the witness live as long as the process. Each session has its own assigner: what one
//! leader had in memory means nothing to the next.
//!
//! Each of the four is stepped on its own, never from within the step of another. What one causes for another waits in
//! a queue until the current step is over. Inputs for the agent that follow each other make one step: ten thousand
//! shards that start make one report.

mod messages;
mod silence;

use std::collections::{BTreeMap, VecDeque};

use super::Config;
use super::agent::{self, Agent};
use super::assigner::{self, Assigner, Predecessors};
use super::plan::Decision;
use super::record::{Assignments, Generation, Shard};
use super::registry::{self, Registry};
use super::report::{Going, Part};
use super::witness::{Turn, What, Witness};
use crate::election::Term;
use crate::node::{Answer, Request};
use crate::session::{self, Holder};
use crate::{Incarnation, Lineage, Moment, NodeId, Now, Read};
pub use messages::{Event, Input};
pub(crate) use messages::{Heard, Output, Question};
use silence::Silence;

/// After how many heartbeats a leader that hands out no work is worth a warning.
const SILENCE_HEARTBEATS: u32 = 5;

/// How a process takes part.
#[derive(Debug, Clone, Hash)]
pub struct Membership {
    /// How work is handed out while this process leads.
    pub config: Config,
    /// What its session says about itself at first: the version it runs, its capacity.
    pub part: Part,
    /// Whether to follow the other nodes even while it does not lead, which costs one listing per heartbeat. Without
    /// it, a process sends almost no requests while no node has daemons.
    pub follows: bool,
    /// For jitter.
    pub seed: u64,
}

/// The machine. It outlives sessions; its [`Node`](crate::node::Node) does not, and passes it on.
#[derive(Debug, Clone, Hash)]
pub struct Member {
    config: Config,
    session: session::Config,
    follows: bool,
    /// What the session says about the cluster.
    part: Part,
    agent: Agent,
    registry: Registry,
    witness: Witness,
    /// The current session, if there is one.
    current: Option<Current>,
    /// Steps that wait for the current one to be over.
    queue: VecDeque<Step>,
    /// Requests of a session that has left. They will never be answered.
    unanswered: Vec<Question>,
    silence: Silence,
    is_going: bool,
    pace: Pace,
}

/// How often things are looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Pace {
    /// Nobody here needs assignments other than its own.
    agent_rests: bool,
    /// This process leads, and nothing depends on its looks.
    is_calm: bool,
}

/// What lives as long as a session.
#[derive(Debug, Clone, Hash)]
struct Current {
    me: Holder,
    assigner: Assigner,
    leads: bool,
}

/// An input for one of the machines.
#[derive(Debug, Clone, Hash)]
enum Step {
    Agent(agent::Input),
    Assigner(Box<assigner::Input>),
    Registry(registry::Input),
}

impl Member {
    /// Makes a member without a session.
    #[must_use]
    pub fn new(membership: Membership, session: &session::Config, now: Moment) -> Self {
        let Membership {
            config,
            mut part,
            follows,
            seed,
        } = membership;
        part.has_assigned_none = true;
        Self {
            config,
            session: session.clone(),
            follows,
            part,
            agent: Agent::new(session, now, seed),
            registry: Registry::new(session, now, seed ^ 1),
            witness: Witness::default(),
            current: None,
            queue: VecDeque::new(),
            unanswered: Vec::new(),
            silence: Silence::default(),
            is_going: false,
            pace: Pace::default(),
        }
    }

    /// Until when this process may act for a shard; `None` if it may not. Check it at every use.
    #[must_use]
    pub fn trusted_until(&self, shard: &Shard, generation: Generation) -> Option<Moment> {
        self.agent.trusted_until(shard, generation)
    }

    /// What this process would do now as the leader, and why; `None` if it does not hand out the work.
    #[must_use]
    pub fn plan(&self, now: Moment) -> Option<Vec<Decision>> {
        let assigner = &self.current.as_ref()?.assigner;
        let hands_out = assigner.assignments().is_some();
        hands_out.then(|| assigner.plan(now))
    }

    /// Whether this process leads the election of the cluster, so that it needs to know of every change of a session.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.leads)
    }

    /// Whether no shard runs here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.agent.is_idle()
    }

    /// Whether this process was told to leave, and everything has ended.
    #[must_use]
    pub fn has_drained(&self) -> bool {
        self.is_going && self.is_idle()
    }

    /// What the session says about the cluster.
    #[must_use]
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// How many shards there are in the cluster, as far as is known.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.witness.shards()
    }

    /// When its node must wake it next.
    pub(crate) fn wake_at(&self) -> Moment {
        let Some(current) = &self.current else {
            return Moment::NEVER;
        };
        let registry_at = if self.knows_nodes() {
            self.registry.wake_at()
        } else {
            Moment::NEVER
        };
        let others = self.agent.wake_at().min(current.assigner.wake_at());
        registry_at.min(others)
    }

    /// Whether no step is queued.
    pub(crate) fn is_settled(&self) -> bool {
        self.queue.is_empty()
    }

    /// Begins a new session.
    pub(crate) fn begin(&mut self, me: Holder, now: Moment, seed: u64) {
        // Answers belong to a session. A request of the previous session must not stay unanswered for ever.
        for question in std::mem::take(&mut self.unanswered) {
            match question {
                Question::Look => self.tell_agent(agent::Input::Looked(Read::Failed)),
                Question::List => self.tell_registry(registry::Input::Listed(None)),
                Question::Session(incarnation) => {
                    let failed = Box::new(Read::Failed);
                    self.tell_registry(registry::Input::Read(incarnation, failed));
                }
                // The assigner that asked is gone, and nothing waits for a delete.
                Question::Assignments | Question::Write | Question::Drains | Question::Delete => {}
            }
        }
        self.tell_agent(agent::Input::Joined(me.incarnation));
        let assigner = Assigner::new(self.config.clone(), &self.session, me.clone(), now, seed);
        self.current = Some(Current {
            me,
            assigner,
            leads: false,
        });
    }

    /// Ends the part of a session that has left. What still runs here is not trusted any more.
    pub(crate) fn rest(&mut self) {
        self.deposed();
        self.tell_agent(agent::Input::SessionOver);
        self.current = None;
    }

    /// Notes a request that was not answered before the session left.
    pub(crate) fn leave_unanswered(&mut self, question: Question) {
        self.unanswered.push(question);
    }

    /// Takes inputs that came together, and returns what to do.
    #[must_use]
    pub(crate) fn step_all(
        &mut self,
        now: Now,
        inputs: impl IntoIterator<Item = Heard>,
    ) -> Vec<Output> {
        let mut outputs = Vec::new();
        for input in inputs {
            self.hear(now.moment, input, &mut outputs);
        }
        loop {
            while let Some(step) = self.queue.pop_front() {
                match step {
                    Step::Agent(input) => self.step_agent(now.moment, input, &mut outputs),
                    Step::Registry(input) => self.step_registry(now.moment, input, &mut outputs),
                    Step::Assigner(input) => self.step_assigner(now, *input, &mut outputs),
                }
            }
            if !self.change_pace(&mut outputs) {
                return outputs;
            }
        }
    }

    /// Tells the machines when nothing depends on their looks, and when something does again. Returns whether that has
    /// changed.
    fn change_pace(&mut self, outputs: &mut Vec<Output>) -> bool {
        let assigner = self.current.as_ref().map(|current| &current.assigner);
        let is_calm = self.leads() && !self.follows && assigner.is_some_and(Assigner::is_at_rest);
        let pace = Pace {
            agent_rests: !self.follows && (is_calm || !self.leads()),
            is_calm,
        };
        let before = std::mem::replace(&mut self.pace, pace);
        if before.agent_rests != pace.agent_rests {
            self.tell_agent(agent::Input::Rests(pace.agent_rests));
        }
        if before.is_calm != pace.is_calm {
            self.tell_registry(registry::Input::Rests(is_calm));
            outputs.push(Output::Calm(is_calm));
        }
        before != pace
    }

    // ---- what happens -------------------------------------------------------------------------------

    fn hear(&mut self, now: Moment, heard: Heard, outputs: &mut Vec<Output>) {
        match heard {
            Heard::Input(input) => self.take(input, outputs),
            Heard::Wake => {
                self.tell_agent(agent::Input::Wake);
                self.tell_registry(registry::Input::Wake);
                self.tell_assigner(assigner::Input::Wake);
            }
            Heard::Trusted(until) => self.tell_agent(agent::Input::Trusted(until)),
            Heard::SessionOver => {
                self.tell_agent(agent::Input::SessionOver);
                self.deposed();
            }
            Heard::Own(record) => {
                self.tell_registry(registry::Input::Seen(record.clone()));
                self.tell_assigner(assigner::Input::Session(record));
            }
            Heard::Said => self.tell_assigner(assigner::Input::Said),
            Heard::Session(record) => {
                tell(self.witness.report(&record), outputs);
                self.tell_registry(registry::Input::Seen(record.clone()));
                self.tell_assigner(assigner::Input::Session(record));
            }
            Heard::SessionEnded(incarnation, end) => {
                self.tell_registry(registry::Input::SessionEnded(incarnation, end));
                self.tell_assigner(assigner::Input::SessionEnded(incarnation, end));
            }
            Heard::Rung => self.tell_registry(registry::Input::HintAll),
            Heard::Leader(leader) => self.silence.led_by(now, leader.as_ref()),
            Heard::Answer(question, answer) => self.answered(now, question, *answer, outputs),
        }
    }

    fn take(&mut self, input: Input, outputs: &mut Vec<Output>) {
        match input {
            Input::Offer(daemon, definition) => {
                self.part.offers.insert(daemon.clone(), definition);
                outputs.push(Output::Report);
                self.tell_agent(agent::Input::Offer(daemon));
            }
            // What runs goes on as it is until it is drained; nothing new is started.
            Input::Withdraw(daemon) => {
                self.part.offers.remove(&daemon);
                outputs.push(Output::Report);
                self.tell_agent(agent::Input::Withdraw(daemon));
            }
            Input::Started(shard, generation) => {
                tell(self.witness.own(&shard, generation, What::Started), outputs);
                self.tell_agent(agent::Input::Started(shard, generation));
            }
            Input::Ended {
                shard,
                generation,
                error,
            } => {
                let what = match error.clone() {
                    None => What::Stopped,
                    Some(error) => What::Failed { error },
                };
                tell(self.witness.own(&shard, generation, what), outputs);
                self.tell_agent(agent::Input::Ended {
                    shard,
                    generation,
                    error,
                });
            }
            Input::Stuck {
                shard,
                generation,
                error,
            } => self.tell_agent(agent::Input::Stuck {
                shard,
                generation,
                error,
            }),
            Input::Leave(going) => self.leave(going),
            Input::Follow(follows) => {
                self.follows = follows;
                // List at once what it has missed.
                self.tell_registry(registry::Input::Wake);
            }
            Input::HintAssignments => self.tell_agent(agent::Input::Hint),
            Input::HintDrains if self.leads() => self.tell_assigner(assigner::Input::DrainsHint),
            Input::HintDrains => {}
            Input::HintSession(node, incarnation) => {
                self.tell_registry(registry::Input::Hint(node, incarnation));
            }
            Input::Elected(lineage, term, predecessors) => {
                self.elected(lineage, term, predecessors);
            }
            Input::Deposed => self.deposed(),
        }
    }

    fn leave(&mut self, going: Going) {
        if !self.is_going {
            self.is_going = true;
            self.tell_agent(agent::Input::Leave(going));
        }
    }

    fn elected(&mut self, lineage: Lineage, term: Term, predecessors: Predecessors) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.leads = true;
        self.tell_assigner(assigner::Input::Elected(lineage, term, predecessors));
        self.tell_registry(registry::Input::Leads(true));
    }

    fn deposed(&mut self) {
        if let Some(current) = &mut self.current
            && std::mem::take(&mut current.leads)
        {
            self.tell_assigner(assigner::Input::Ended);
            self.tell_registry(registry::Input::Leads(false));
        }
    }

    fn answered(
        &mut self,
        now: Moment,
        question: Question,
        answer: Answer,
        outputs: &mut Vec<Output>,
    ) {
        match (question, answer) {
            (Question::Look, Answer::Assignments(found)) => self.looked(now, found, outputs),
            (Question::Assignments, Answer::Assignments(found)) => {
                self.tell_assigner(assigner::Input::Read(found));
            }
            (Question::Write, Answer::Written(written)) => {
                self.tell_assigner(assigner::Input::Written(written));
            }
            (Question::Drains, Answer::Drains(found)) => {
                self.tell_assigner(assigner::Input::DrainsRead(found));
            }
            (Question::List, Answer::Sessions(listed)) => {
                self.tell_registry(registry::Input::Listed(listed));
            }
            (Question::Session(incarnation), Answer::Session(found)) => {
                self.tell_registry(registry::Input::Read(incarnation, Box::new(found)));
            }
            // The next listing shows whether it is still there.
            (Question::Delete, _) => {}
            (question, answer) => unreachable!("{question:?} was answered with {answer:?}"),
        }
    }

    fn looked(&mut self, now: Moment, found: Read<Assignments>, outputs: &mut Vec<Output>) {
        if let Read::Found { record, .. } = &found {
            let holders = record.holders.values();
            let named: BTreeMap<Incarnation, NodeId> = holders
                .map(|holder| (holder.incarnation, holder.node.clone()))
                .collect();
            self.tell_registry(registry::Input::Holders(named));
            self.silence.heard(record.term);
            // Done before the agent acts on it: `assigned` is reported before `started`.
            tell(self.witness.look(record), outputs);
        }
        let waits = !self.part.offers.is_empty() && !self.leads();
        let patience = self.session.heartbeat * SILENCE_HEARTBEATS;
        if waits && let Some(term) = self.silence.check(now, patience) {
            outputs.push(Output::Event(Event::LeaderSilent { term }));
        }
        self.tell_agent(agent::Input::Looked(found));
    }

    // ---- the machines -------------------------------------------------------------------------------

    fn step_agent(&mut self, now: Moment, first: agent::Input, outputs: &mut Vec<Output>) {
        let mut inputs = vec![first];
        while let Some(Step::Agent(input)) = self
            .queue
            .pop_front_if(|step| matches!(step, Step::Agent(_)))
        {
            inputs.push(input);
        }
        for output in self.agent.step_all(now, inputs) {
            match output {
                agent::Output::Look { known } => {
                    outputs.push(Output::Ask(Question::Look, Request::Look { known }));
                }
                agent::Output::Start {
                    shard,
                    generation,
                    count,
                } => outputs.push(Output::Event(Event::Start {
                    shard,
                    generation,
                    count,
                })),
                agent::Output::Drain {
                    shard,
                    generation,
                    until,
                } => {
                    let what = What::Revoked;
                    tell(self.witness.own(&shard, generation, what), outputs);
                    outputs.push(Output::Event(Event::Drain {
                        shard,
                        generation,
                        until,
                    }));
                }
                agent::Output::Abort { shard, generation } => {
                    let what = What::Revoked;
                    tell(self.witness.own(&shard, generation, what), outputs);
                    outputs.push(Output::Event(Event::Abort { shard, generation }));
                }
                agent::Output::Report(report) => {
                    report.apply(&mut self.part);
                    outputs.push(Output::Report);
                }
                // Seen in `has_drained`.
                agent::Output::Idle => {}
            }
        }
        outputs.push(Output::Event(Event::TrustMoved));
    }

    fn step_registry(&mut self, now: Moment, input: registry::Input, outputs: &mut Vec<Output>) {
        use registry::Input::{Leads, Listed, Read, Rests};
        // A process that need not know the others sends no requests, but still takes the answers to those it sent.
        if !self.knows_nodes() && !matches!(input, Leads(_) | Rests(_) | Listed(_) | Read(..)) {
            return;
        }
        for output in self.registry.step(now, input) {
            match output {
                registry::Output::List => {
                    outputs.push(Output::Ask(Question::List, Request::ListSessions));
                }
                registry::Output::Read { node, incarnation } => {
                    let holder = named(node, incarnation);
                    let known = None;
                    outputs.push(Output::Ask(
                        Question::Session(incarnation),
                        Request::ReadSession { holder, known },
                    ));
                }
                registry::Output::Delete { node, incarnation } => {
                    let holder = named(node, incarnation);
                    let request = Request::DeleteSession { holder };
                    outputs.push(Output::Ask(Question::Delete, request));
                }
                registry::Output::Joined(record) => {
                    self.tell_assigner(assigner::Input::Session(record.clone()));
                    outputs.push(Output::Event(Event::Joined(record)));
                }
                registry::Output::Left(record) => {
                    outputs.push(Output::Event(Event::Left(record)));
                }
                registry::Output::Evicted(record) => {
                    outputs.push(Output::Event(Event::Evicted(record)));
                }
                registry::Output::Sessions(records) => {
                    self.tell_assigner(assigner::Input::Sessions(records));
                }
            }
        }
    }

    fn step_assigner(&mut self, now: Now, input: assigner::Input, outputs: &mut Vec<Output>) {
        let Some(Current { me, assigner, .. }) = &mut self.current else {
            return;
        };
        let me = me.incarnation;
        for output in assigner.step(now, input) {
            outputs.push(match output {
                assigner::Output::Read { known } => {
                    Output::Ask(Question::Assignments, Request::ReadAssignments { known })
                }
                assigner::Output::Write {
                    assignments,
                    expect,
                } => {
                    let request = Request::WriteAssignments {
                        assignments,
                        expect,
                    };
                    Output::Ask(Question::Write, request)
                }
                assigner::Output::ReadDrains { known } => {
                    Output::Ask(Question::Drains, Request::ReadDrains { known })
                }
                // This process knows its own session.
                assigner::Output::Watch(holder) if holder.incarnation == me => continue,
                assigner::Output::Forget(incarnation) if incarnation == me => continue,
                assigner::Output::Say => {
                    self.part.has_assigned_none = false;
                    Output::Say
                }
                assigner::Output::Watch(holder) => Output::Watch(holder),
                assigner::Output::Forget(incarnation) => Output::Forget(incarnation),
                assigner::Output::Resign { term } => Output::Resign { term },
                assigner::Output::Installed { term } => Output::Event(Event::Installed { term }),
                assigner::Output::Decided(decisions) => Output::Event(Event::Decided(decisions)),
                assigner::Output::Superseded { by } => Output::Event(Event::Superseded { by }),
                assigner::Output::Anomaly(anomaly) => Output::Event(Event::Anomaly(anomaly)),
            });
        }
    }

    // ---- small things -------------------------------------------------------------------------------

    fn knows_nodes(&self) -> bool {
        self.follows || self.leads()
    }

    fn tell_agent(&mut self, input: agent::Input) {
        self.queue.push_back(Step::Agent(input));
    }

    fn tell_assigner(&mut self, input: assigner::Input) {
        self.queue.push_back(Step::Assigner(Box::new(input)));
    }

    fn tell_registry(&mut self, input: registry::Input) {
        self.queue.push_back(Step::Registry(input));
    }
}

fn tell(turns: impl IntoIterator<Item = Turn>, outputs: &mut Vec<Output>) {
    let turns = turns.into_iter().map(Event::Turn);
    outputs.extend(turns.map(Output::Event));
}

/// Enough of a holder to find its session.
fn named(node: NodeId, incarnation: Incarnation) -> Holder {
    Holder {
        node,
        incarnation,
        ttl: std::time::Duration::ZERO,
    }
}
