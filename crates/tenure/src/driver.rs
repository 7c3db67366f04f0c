//! The loop around the core's node machine: takes inputs, steps, carries out the outputs, sleeps to the next
//! deadline. It decides nothing: who leads, what runs here, what is said in which order, and when the session
//! may go is all decided in [`tenure_core::node`].
//!
//! What is left to it is how: which requests go first and how many at once ([`Turns`]), when one listing is
//! cheaper than many reads ([`Polls`]), where daemons run ([`cluster`]), and who is told what (`events`).
//!
//! It runs on a thread of its own with a store connection of its own, so an application whose runtime is
//! blocked or starved keeps its session.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tenure_core::cluster::member::Member;
use tenure_core::election::{EndReason, Term};
use tenure_core::node::{Answer, Input, Node, Output, Request, Ticket};
use tenure_core::polls::{Poll, Polls};
use tenure_core::session::{About, Config, Farewell, Holder, Record, State};
use tenure_core::{ElectionName, Incarnation, Lineage, Moment, NodeId, Nonce, Read, Written};
use tenure_store::wrap::throttled::Throttle;
use tenure_store::{Hint, Key, Page, Store, Watch, list_all, urgent};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

pub(crate) mod cluster;
mod events;

use crate::Runtime;
use crate::duplicates::{self, Duplicates, Look};
use crate::election::Seat;
use crate::keys::Keys;
use crate::leadership::Leadership;
use crate::metrics::Counters;
use crate::nudge::{Nudge, Nudger};
use crate::requests::{self, Chain};
use crate::sweep::Sweep;
use crate::turns::{Rank, Turns};

/// How many commands are carried out before time is looked at again.
const COMMANDS_AT_ONCE: usize = 256;

/// What the handles ask of the driver. The channel is unbounded because `Drop` must not wait; each
/// command is one small step that a caller made.
#[derive(Debug)]
pub(crate) enum Command {
    Join {
        seat: Arc<Seat>,
        priority: Option<u8>,
    },
    Resign(ElectionName),
    /// Resign if this is still the term: what an old one wants changes nothing in a newer.
    ResignTerm(ElectionName, Term),
    /// The same, and why, for people.
    GiveUpTerm(ElectionName, Term, String),
    Transfer(ElectionName, Holder),
    WorkEnded(ElectionName, Term),
    /// The work of this term is watched from now on.
    WatchdogSet(Leadership),
    Cluster(cluster::Order),
    /// What keeps this process from doing what it is asked.
    Trouble(Option<String>),
    Shutdown(Option<oneshot::Sender<()>>),
}

pub(crate) struct Driver {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keys: Keys,
    pub(crate) node: NodeId,
    pub(crate) config: Config,
    /// Says when the store is to be asked less.
    pub(crate) throttle: Option<Arc<Throttle>>,
    pub(crate) runtime: Runtime,
    pub(crate) about: About,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    /// For the terms, which report the end of their work.
    pub(crate) reports: mpsc::UnboundedSender<Command>,
    /// Who this process is now.
    pub(crate) session: watch::Sender<Option<Holder>>,
    /// Who else runs under this node's id.
    pub(crate) duplicates: watch::Sender<Vec<Record>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) nudger: Option<Nudger>,
    pub(crate) elections: BTreeMap<ElectionName, (Arc<Seat>, Option<u8>)>,
    /// What this process runs for the cluster, if it takes part.
    pub(crate) daemons: Option<Box<cluster::Daemons>>,
    /// Its part in the cluster, between two sessions.
    pub(crate) member: Option<Box<Member>>,
    pub(crate) stopping: Vec<oneshot::Sender<()>>,
    pub(crate) is_stopping: bool,
    /// How the session before this one would have said that it is gone, if nobody knows whether it did.
    pub(crate) farewell: Option<Box<Farewell>>,
}

/// One incarnation: what lives as long as its session.
struct Run {
    machine: Node,
    me: Holder,
    requests: JoinSet<Done>,
    /// Requests about elections that wait for their turn.
    turns: Turns<Waiting>,
    /// Looks at leases that wait for a listing.
    polls: Polls<Key>,
    leading: BTreeMap<ElectionName, Leadership>,
    /// Those whose work has a watchdog.
    watched: Vec<Leadership>,
    duplicates: Duplicates,
    sweep: Sweep,
    /// Heartbeats in a row that were not confirmed.
    missed: u64,
    /// The machine was told that heartbeats are to be rare.
    is_sparing: bool,
    left: bool,
}

/// A task has ended.
enum Done {
    Answer(Ticket, Sent, Box<Answer>, Duration),
    /// Of a listing of all leases.
    Page(Option<Page>),
    Look(Option<Look>, Option<Sweep>),
    /// What has to be said once more.
    Farewell(Option<Box<Farewell>>),
}

/// What of a request matters once it is answered.
enum Sent {
    Heartbeat {
        /// It says which daemons this process offers.
        offers: bool,
    },
    /// A look at the own session, to settle a heartbeat.
    Settling,
    Eviction,
    Observation,
    Of(ElectionName),
    /// A write of the assignments.
    Assignments,
    /// Anything else of the cluster.
    Cluster,
}

impl Sent {
    /// Whether it is of the session itself.
    fn is_of_session(&self) -> bool {
        matches!(self, Sent::Heartbeat { .. } | Sent::Settling)
    }

    /// Whether it was sent when it had its turn, which has ended with the answer.
    fn takes_turns(&self) -> bool {
        matches!(self, Sent::Eviction | Sent::Observation | Sent::Of(_))
    }
}

/// A request that has not been sent yet.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    request: Request,
    within: Duration,
}

impl From<Poll> for Waiting {
    fn from(poll: Poll) -> Self {
        Self {
            ticket: poll.ticket,
            within: poll.within,
            request: poll.into(),
        }
    }
}

/// How leases are looked at that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// Each by a read.
    Singly,
    /// By a listing, once others have had time to join; or at once, since there was a hint.
    Gathered,
    Hinted,
}

enum Wake {
    Hint(ElectionName),
    HintAll,
    Done(Done),
    Command(Command),
    Cluster(Vec<Input>),
    Time,
}

impl Driver {
    /// Runs until it is told to stop: one incarnation after the other.
    pub(crate) async fn run(mut self) {
        let mut hints = self.store.watch(&self.keys.elections());
        let mut run = loop {
            let mut run = self.run_incarnation(&mut hints).await;
            self.session.send_replace(None);
            if self.is_stopping {
                break run;
            }
            self.member = run.machine.take_member();
        };
        if let Some(nudger) = &mut self.nudger {
            nudger.finish().await;
        }
        // The session has left, and some daemons may not have ended yet.
        let is_idle = |run: &Run| run.machine.member().is_none_or(Member::is_idle);
        while !is_idle(&run)
            && let Some(command) = self.commands.recv().await
        {
            self.on_commands(&mut run, command);
        }
        for stopped in self.stopping.drain(..) {
            let _ = stopped.send(());
        }
    }

    async fn run_incarnation(&mut self, hints: &mut Option<Watch>) -> Run {
        let incarnation = Incarnation(self.runtime.unique().as_u128());
        // Of the highest level, so that warnings and errors are never without it.
        let span = tracing::error_span!(
            "session",
            namespace = %self.keys.namespace(),
            node = %self.node,
            %incarnation
        );
        let mut run = self.begin(incarnation);
        let whole = async {
            tracing::info!("joining");
            let seats = self.elections.values();
            let joins = seats.map(|(seat, priority)| join(&self.runtime, seat, *priority));
            let inputs = [Input::Wake].into_iter().chain(joins).collect();
            self.step_all(&mut run, inputs);
            while !run.left {
                if run.polls.take_hint(self.runtime.clock.moment()) {
                    self.step_by_listing(&mut run, Input::HintAll, Looks::Hinted);
                }
                self.send_waiting(&mut run);
                let wake = self.next(&mut run, hints).await;
                // Time first: nothing that came meanwhile may hide that trust has ended, least of all
                // after the whole process was paused.
                if run.deadline() <= self.runtime.clock.moment() {
                    self.on_time(&mut run);
                }
                match wake {
                    Wake::Hint(election) => self.step(&mut run, Input::Hint(election)),
                    Wake::HintAll => {
                        if run.polls.is_worth(self.elections.len()) {
                            run.polls.hint();
                        } else {
                            self.step(&mut run, Input::HintAll);
                        }
                    }
                    Wake::Done(done) => self.on_done(&mut run, done),
                    Wake::Command(command) => self.on_commands(&mut run, command),
                    Wake::Cluster(hints) => self.step_all(&mut run, hints),
                    Wake::Time => {}
                }
            }
            self.counters.left();
        };
        whole.instrument(span).await;
        if run.machine.needs_no_session() {
            // A delete is not conditional, and need not be: nobody writes this object again. If it fails, a node that stays
            // removes it later.
            let key = self.keys.session(&run.me);
            let deleted = self.store.delete(&key);
            let _ = tokio::time::timeout(self.config.request_timeout, deleted).await;
        }
        if let Some(farewell) = run.machine.farewell() {
            self.farewell = Some(Box::new(farewell));
        }
        run
    }

    fn begin(&mut self, incarnation: Incarnation) -> Run {
        let me = Holder {
            node: self.node.clone(),
            incarnation,
            ttl: self.config.ttl,
        };
        let seed = uuid::Uuid::from_u128(incarnation.0).as_u64_pair().0;
        let about = self.about.clone();
        Run {
            machine: Node::resume(
                self.config.clone(),
                me.clone(),
                about,
                self.member.take(),
                self.runtime.clock.now(),
                seed,
            ),
            me,
            requests: JoinSet::new(),
            turns: Turns::default(),
            polls: Polls::new(&self.config),
            leading: BTreeMap::new(),
            watched: Vec::new(),
            duplicates: Duplicates::default(),
            sweep: Sweep::default(),
            missed: 0,
            is_sparing: false,
            left: false,
        }
    }

    /// Waits for whatever comes first. Nothing is lost if another branch wins: every branch can be
    /// cancelled, and requests go on in tasks of their own.
    async fn next(&mut self, run: &mut Run, hints: &mut Option<Watch>) -> Wake {
        let listing_at = run.polls.wake_at(self.runtime.clock.moment());
        let deadline = run.deadline().min(listing_at);
        tokio::select! {
            biased;
            Some(done) = run.requests.join_next(), if !run.requests.is_empty() => {
                Wake::Done(done.expect("panics are caught, and nobody aborts"))
            }
            command = self.commands.recv() => {
                Wake::Command(command.expect("the driver itself holds a sender"))
            }
            hint = next_hint(hints) => match hint {
                Hint::Anything => Wake::HintAll,
                Hint::Changed(key) => match ElectionName::new(key.name()) {
                    Ok(election) => Wake::Hint(election),
                    Err(_) => Wake::Time,
                },
            },
            nudge = next_nudge(self.nudger.as_mut()) => match nudge {
                Nudge::Of(election) => Wake::Hint(election),
                Nudge::OfMany => Wake::HintAll,
            },
            hints = next_of_cluster(self.daemons.as_deref_mut()) => Wake::Cluster(hints),
            () = self.runtime.clock.sleep_towards(deadline) => Wake::Time,
        }
    }

    fn on_done(&mut self, run: &mut Run, done: Done) {
        let (ticket, sent, answer, took) = match done {
            Done::Answer(ticket, sent, answer, took) => (ticket, sent, answer, took),
            Done::Page(page) => return self.on_page(run, page),
            Done::Look(look, swept) => {
                run.sweep = swept.unwrap_or_else(|| std::mem::take(&mut run.sweep));
                return self.on_look(run, look);
            }
            Done::Farewell(farewell) => {
                self.farewell = farewell;
                return;
            }
        };
        if sent.takes_turns() {
            run.turns.ended();
        }
        match (&sent, &*answer) {
            (&Sent::Heartbeat { offers }, Answer::Written(written)) => {
                self.counters.heartbeat(written, took);
                if offers && matches!(written, Written::Done(_)) {
                    self.ring(run);
                }
                run.heartbeat(written, took);
                if matches!(written, Written::Done(_)) && run.machine.farewell().is_none() {
                    self.say_farewell(run);
                }
            }
            (Sent::Eviction, Answer::Written(Written::Done(_))) => {
                tracing::warn!(latency = ?took, "evicted a session without heartbeats");
                self.counters.evicted();
            }
            (Sent::Assignments, Answer::Written(written)) => {
                self.counters.assignments_written(written);
            }
            _ => {}
        }
        // A lease is looked at after a write to settle it, at once and by itself. Every other look is a poll
        // that is due: a confirmed heartbeat wakes every election, and the answer to a look may come when
        // the next one is due, for all leases of a slow listing together.
        let settles = matches!((&sent, &*answer), (Sent::Of(_), Answer::Written(_)));
        let input = Input::Answer(ticket, *answer);
        if settles {
            self.step(run, input);
        } else {
            self.poll(run, input);
        }
        if let Sent::Of(election) = sent {
            run.refresh_trust(&election);
        }
    }

    fn on_page(&mut self, run: &mut Run, page: Option<Page>) {
        let page = page.map(requests::leases);
        let shown = run.polls.on_page(self.runtime.clock.moment(), page);
        if let Some(next) = shown.next {
            self.list(run, Some(next));
        }
        for poll in shown.changed {
            run.turns.wait(Rank::Looks, poll.into());
        }
        for poll in shown.unchanged {
            let answer = Answer::Lease(Read::Unchanged { age: None });
            self.poll(run, Input::Answer(poll.ticket, answer));
            run.refresh_trust(&poll.election);
        }
    }

    /// The session before this one left while the store was away, for longer than it tried to say so. Its work had ended before it
    /// began to, so it can be said now: the same write, only later. Otherwise the one that waits for what it held, this process
    /// too, would have to watch it for a whole ttl.
    fn say_farewell(&mut self, run: &mut Run) {
        let Some(words) = self.farewell.take() else {
            return;
        };
        let (store, keys) = (self.store.clone(), self.keys.clone());
        let (within, nonce) = (self.config.request_timeout, self.runtime.clock.now().nonce);
        let said = async move {
            let said = farewell(&*store, &keys, &words, nonce);
            let told = tokio::time::timeout(within, said).await;
            let is_settled = matches!(told, Ok(Ok(())));
            (!is_settled).then_some(words)
        };
        let said = AssertUnwindSafe(said).catch_unwind();
        let done = said.map(|ended| Done::Farewell(ended.unwrap_or_default()));
        run.requests
            .spawn(self.runtime.task(done.in_current_span()));
    }

    fn on_time(&mut self, run: &mut Run) {
        self.check_watchdogs(run);
        let is_low = self.throttle.as_ref().is_some_and(|it| it.is_low());
        if std::mem::replace(&mut run.is_sparing, is_low) != is_low {
            self.step(run, Input::Spare(is_low));
        }
        let now = self.runtime.clock.moment();
        if run.duplicates.next_look.is_some_and(|at| at <= now) {
            self.look(run);
        }
        self.poll(run, Input::Wake);
    }

    fn look(&self, run: &mut Run) {
        let before = run.duplicates.begin();
        // The leader of a cluster does it, if there is one, and more often. One listing is for both.
        let is_due = match run.machine.member() {
            None => run.duplicates.is_time_to_sweep(),
            Some(member) => member.leads(),
        };
        let sweep = is_due.then(|| run.sweep.clone());
        let (store, keys, me) = (self.store.clone(), self.keys.clone(), run.me.clone());
        let (within, clock) = (self.config.request_timeout, self.runtime.clock.clone());
        let look = async move {
            let prefix = if sweep.is_some() {
                keys.nodes()
            } else {
                keys.sessions_of(&me.node)
            };
            let listed = match tokio::time::timeout(within, list_all(&*store, &prefix)).await {
                Ok(Ok(listed)) => listed,
                Ok(Err(error)) => {
                    tracing::debug!(error = %Chain(&error), "cannot list sessions");
                    return (None, None);
                }
                Err(_) => return (None, None),
            };
            let look = duplicates::look(&*store, &me, &before, &listed);
            let look = match tokio::time::timeout(within, look).await {
                Ok(Ok(look)) => Some(look),
                Ok(Err(error)) => {
                    tracing::debug!(error = %Chain(&error), "cannot look for duplicates");
                    None
                }
                Err(_) => None,
            };
            let Some(sweep) = sweep else {
                return (look, None);
            };
            let sweep = sweep.look(&*store, listed, &me, || clock.moment());
            let swept = match tokio::time::timeout(within, sweep).await {
                Ok(Ok(swept)) => Some(swept),
                Ok(Err(error)) => {
                    tracing::debug!(error = %Chain(&error), "cannot remove dead sessions");
                    None
                }
                Err(_) => None,
            };
            (look, swept)
        };
        let look = AssertUnwindSafe(look).catch_unwind();
        let done = look.map(|ended| {
            let (look, swept) = ended.unwrap_or_default();
            Done::Look(look, swept)
        });
        run.requests
            .spawn(self.runtime.task(done.in_current_span()));
    }

    fn on_look(&self, run: &mut Run, look: Option<Look>) {
        let new = run
            .duplicates
            .end(self.runtime.clock.moment(), &self.config, look);
        for record in new {
            tracing::warn!(
                other = %record.incarnation,
                address = record.about.address.as_deref().unwrap_or_default(),
                "another process runs under the same node id; both are candidates"
            );
        }
        let reported = run.duplicates.reported();
        self.counters.duplicates(reported.len());
        self.duplicates.send_if_modified(|current| {
            let is_new = *current != reported;
            *current = reported;
            is_new
        });
    }

    /// A command, and those that have come with it: many shards that start at once are one piece of news, and so
    /// are many elections that are joined.
    fn on_commands(&mut self, run: &mut Run, first: Command) {
        let mut inputs = Vec::new();
        let mut next = Some(first);
        for _ in 0..COMMANDS_AT_ONCE {
            let Some(command) = next.take().or_else(|| self.commands.try_recv().ok()) else {
                break;
            };
            inputs.extend(self.on_command(run, command));
        }
        self.step_all(run, inputs);
    }

    /// What the machine is told of a command.
    fn on_command(&mut self, run: &mut Run, command: Command) -> Option<Input> {
        Some(match command {
            Command::Join { seat, priority } => {
                let input = join(&self.runtime, &seat, priority);
                self.elections.insert(seat.name().clone(), (seat, priority));
                input
            }
            Command::Resign(election) => Input::Resign(election),
            Command::ResignTerm(election, term) => Input::ResignTerm(election, term),
            Command::GiveUpTerm(election, term, why) => Input::GiveUpTerm(election, term, why),
            Command::Transfer(election, to) => Input::Transfer(election, to),
            Command::WorkEnded(election, term) => Input::WorkEnded(election, term),
            Command::WatchdogSet(term) => {
                run.watch(term);
                return None;
            }
            Command::Cluster(order) => return self.on_order(run, order),
            Command::Trouble(trouble) => {
                self.about.trouble = trouble;
                Input::About(self.about.clone())
            }
            Command::Shutdown(stopped) => {
                self.stopping.extend(stopped);
                self.is_stopping = true;
                Input::Leave
            }
        })
    }

    fn check_watchdogs(&mut self, run: &mut Run) {
        let now = self.runtime.clock.moment();
        for term in run.take_starved(now) {
            tracing::warn!(election = %term.election(), term = %term.term(), "the work makes no progress: resigning");
            term.clear_watchdog();
            let why = "the work made no progress".to_owned();
            let gives_up = Input::GiveUpTerm(term.election().clone(), term.term(), why);
            self.step(run, gives_up);
        }
    }

    /// One step of the machine, with everything that it asks for.
    fn step(&mut self, run: &mut Run, input: Input) {
        self.step_all(run, vec![input]);
    }

    /// The same for inputs that came together.
    fn step_all(&mut self, run: &mut Run, inputs: Vec<Input>) {
        let outputs = run.machine.step_all(self.runtime.step(), inputs);
        self.carry_out(run, outputs, Looks::Singly);
    }

    /// The same for an input after which elections look at their leases because it is time to.
    fn poll(&mut self, run: &mut Run, input: Input) {
        self.step_by_listing(run, input, Looks::Gathered);
    }

    /// The same for an input that makes many elections look at their leases.
    fn step_by_listing(&mut self, run: &mut Run, input: Input, looks: Looks) {
        let outputs = run.machine.step(self.runtime.step(), input);
        let looks = if run.polls.is_worth(self.elections.len()) {
            looks
        } else {
            Looks::Singly
        };
        self.carry_out(run, outputs, looks);
    }

    fn carry_out(&mut self, run: &mut Run, outputs: Vec<Output>, looks: Looks) {
        for output in outputs {
            match output {
                Output::Request {
                    ticket,
                    request,
                    within,
                } => {
                    let waiting = Waiting {
                        ticket,
                        request,
                        within,
                    };
                    self.send(run, waiting, looks);
                }
                Output::Event(event) => self.on_event(run, event),
            }
        }
        self.follow_member(run);
    }

    /// Sends what is of the session or of the cluster; the rest waits for its turn, or for the next listing.
    fn send(&mut self, run: &mut Run, waiting: Waiting, looks: Looks) {
        let rank = match &waiting.request {
            Request::WriteSession { record, .. } if record.incarnation == run.me.incarnation => {
                return self.launch(run, waiting);
            }
            Request::ReadSession { holder, .. } if holder.incarnation == run.me.incarnation => {
                return self.launch(run, waiting);
            }
            Request::ReadLease {
                election,
                known: Some(known),
            } if looks != Looks::Singly => {
                let poll = Poll {
                    ticket: waiting.ticket,
                    election: election.clone(),
                    known: known.clone(),
                    within: waiting.within,
                    asked: self.runtime.clock.moment(),
                };
                let key = self.keys.lease(election);
                return run.polls.join(key, poll, looks == Looks::Hinted);
            }
            Request::WriteLease {
                election, lease, ..
            } if lease.holder().is_none() => {
                // However the term has ended, the candidates that wait for the lease are told when it is free.
                if let Some(nudger) = &mut self.nudger {
                    nudger.prepare(&self.runtime, &self.store, &self.keys, election, &run.me);
                }
                Rank::Ends
            }
            Request::WriteSession { .. }
            | Request::ReadSession { .. }
            | Request::ReadFence { .. }
            | Request::WriteFence { .. } => Rank::Ends,
            Request::ReadLease { known: Some(_), .. } => Rank::Looks,
            Request::WriteLease { .. } => Rank::Takes,
            Request::ReadLease { known: None, .. } => Rank::Begins,
            // A few per heartbeat, however many elections there are.
            Request::Look { .. }
            | Request::ReadAssignments { .. }
            | Request::WriteAssignments { .. }
            | Request::ReadDrains { .. }
            | Request::ListSessions => return self.launch(run, waiting),
            Request::DeleteSession { holder } => {
                let (node, incarnation) = (&holder.node, holder.incarnation);
                tracing::info!(other = %node, %incarnation, "removing what a dead session left behind");
                self.counters.session_removed();
                return self.launch(run, waiting);
            }
        };
        run.turns.wait(rank, waiting);
    }

    /// Sends whatever has its turn.
    fn send_waiting(&self, run: &mut Run) {
        let now = self.runtime.clock.moment();
        if run.polls.start(now) {
            self.list(run, None);
        }
        loop {
            let late = || run.polls.take_late(now).map(Waiting::from);
            let Some(mut waiting) = run.turns.next(late) else {
                return;
            };
            // As the core has it: never past the end of trust, which has come nearer meanwhile.
            let remaining = run.machine.trusted_until().since(now);
            if !remaining.is_zero() {
                waiting.within = waiting.within.min(remaining);
            }
            self.launch(run, waiting);
        }
    }

    fn launch(&self, run: &mut Run, waiting: Waiting) {
        let Waiting {
            ticket,
            request,
            within,
        } = waiting;
        let sent = match &request {
            Request::WriteSession { record, .. } => match record.state {
                State::Evicted { .. } => Sent::Eviction,
                State::Alive | State::Gone => {
                    let part = record.about.cluster.as_ref();
                    let offers = part.is_some_and(|part| !part.offers.is_empty());
                    Sent::Heartbeat { offers }
                }
            },
            Request::ReadSession { holder, .. } if holder.incarnation == run.me.incarnation => {
                Sent::Settling
            }
            Request::ReadSession { .. } => Sent::Observation,
            Request::ReadLease { election, .. }
            | Request::WriteLease { election, .. }
            | Request::ReadFence { election }
            | Request::WriteFence { election, .. } => Sent::Of(election.clone()),
            Request::WriteAssignments { .. } => Sent::Assignments,
            Request::Look { .. }
            | Request::ReadAssignments { .. }
            | Request::ReadDrains { .. }
            | Request::ListSessions
            | Request::DeleteSession { .. } => Sent::Cluster,
        };
        let is_of_session = sent.is_of_session();
        let (store, keys) = (self.store.clone(), self.keys.clone());
        let (clock, started) = (self.runtime.clock.clone(), self.runtime.clock.moment());
        let done = move |answer| {
            let took = clock.moment().since(started);
            Done::Answer(ticket, sent, Box::new(answer), took)
        };
        // An engine that panics has told nothing: as bad as a lost answer, and no worse.
        let lost = request.unanswered(Written::Unknown);
        let answer = async move {
            let answer = requests::carry_out(&*store, &keys, request, within);
            if is_of_session {
                urgent(answer).await
            } else {
                answer.await
            }
        };
        let answer = AssertUnwindSafe(answer).catch_unwind().map(|answer| {
            answer.unwrap_or_else(|_| {
                tracing::error!("the engine panicked: its answer counts as lost");
                lost
            })
        });
        let answered = answer.map(done).in_current_span();
        run.requests.spawn(self.runtime.task(answered));
    }

    /// Asks for a page of the listing of all leases.
    fn list(&self, run: &mut Run, after: Option<Key>) {
        let (store, prefix) = (self.store.clone(), self.keys.elections());
        let within = self.config.request_timeout;
        let page = async move { requests::list(&*store, &prefix, after.as_ref(), within).await };
        let page = AssertUnwindSafe(page).catch_unwind().map(|page| {
            Done::Page(page.unwrap_or_else(|_| {
                tracing::error!("the engine panicked: its answer counts as lost");
                None
            }))
        });
        run.requests
            .spawn(self.runtime.task(page.in_current_span()));
    }
}

/// Marks a session as gone if it still says that it is alive, in its own words.
async fn farewell(
    store: &dyn Store,
    keys: &Keys,
    words: &Farewell,
    nonce: Nonce,
) -> Result<(), tenure_store::Error> {
    let key = keys.session(&words.holder());
    let Some(object) = store.get(&key).await? else {
        return Ok(());
    };
    let Ok(found) = Record::decode(&object.value) else {
        return Ok(());
    };
    let version = requests::from_store(&object.version);
    let Some(record) = words.after(&found, &version, nonce) else {
        return Ok(());
    };
    let value = Bytes::from(record.encode());
    let expect = tenure_store::Expect::Version(object.version);
    store.put(&key, value, &expect).await.map(drop)
}

impl Run {
    /// Says that heartbeats are missed, and when that is over, and not each time.
    fn heartbeat(&mut self, written: &Written, took: Duration) {
        let before = self.missed;
        self.missed = match written {
            Written::Done(_) => 0,
            _ => before + 1,
        };
        match (before, self.missed) {
            (0, 0) => tracing::debug!(latency = ?took, "heartbeat confirmed"),
            (missed, 0) => tracing::info!(latency = ?took, missed, "heartbeat confirmed again"),
            (0, _) => {
                tracing::warn!(latency = ?took, outcome = ?written, "heartbeat not confirmed");
            }
            (_, missed) => {
                tracing::debug!(latency = ?took, outcome = ?written, missed, "heartbeat not confirmed");
            }
        }
    }

    fn deadline(&self) -> Moment {
        let watched = self.watched.iter();
        let watchdogs = watched.filter_map(|term| term.watchdog_expires_at());
        watchdogs
            .chain(self.duplicates.next_look)
            .chain([self.machine.wake_at()])
            .min()
            .unwrap_or(Moment::NEVER)
    }

    fn watch(&mut self, term: Leadership) {
        if !self.watched.iter().any(|other| other.is(&term)) {
            self.watched.push(term);
        }
    }

    /// The terms whose work has made no progress for too long. Those that have ended, or whose watchdog was
    /// put down, are watched no longer.
    fn take_starved(&mut self, now: Moment) -> Vec<Leadership> {
        let leading = &self.leading;
        self.watched.retain(|watched| {
            let current = leading.get(watched.election());
            let is_current = current.is_some_and(|term| term.is(watched));
            is_current && watched.watchdog_expires_at().is_some()
        });
        let starved = |term: &&Leadership| {
            let expires_at = term.watchdog_expires_at();
            expires_at.is_some_and(|at| at <= now)
        };
        self.watched.iter().filter(starved).cloned().collect()
    }

    fn refresh_trust(&self, election: &ElectionName) {
        let leads = self.machine.leads_until(election);
        if let (Some(term), Some((number, until))) = (self.leading.get(election), leads)
            && term.term() == number
        {
            term.trust_until(until);
        }
    }

    fn refresh_all_trust(&self) {
        self.leading
            .keys()
            .for_each(|election| self.refresh_trust(election));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for (seat, _) in self.elections.values() {
            seat.close();
        }
    }
}

impl Drop for Run {
    /// Should this thread panic: nobody goes on working in a term that nobody renews.
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                "the session's thread panicked: the node shuts down and all work stops"
            );
        }
        for term in self.leading.values() {
            term.end(EndReason::SessionOver);
        }
    }
}

fn join(runtime: &Runtime, seat: &Seat, priority: Option<u8>) -> Input {
    Input::Join {
        election: seat.name().clone(),
        priority,
        new_lineage: Lineage(runtime.unique().as_u128()),
    }
}

/// The next hint; never, where the store has none or has stopped to give any.
async fn next_hint(hints: &mut Option<Watch>) -> Hint {
    if let Some(watch) = hints {
        match watch.next().await {
            Some(hint) => return hint,
            None => *hints = None,
        }
    }
    std::future::pending().await
}

async fn next_nudge(nudger: Option<&mut Nudger>) -> Nudge {
    match nudger {
        Some(nudger) => nudger.next().await,
        None => std::future::pending().await,
    }
}

async fn next_of_cluster(daemons: Option<&mut cluster::Daemons>) -> Vec<Input> {
    match daemons {
        Some(daemons) => daemons.next_hint().await,
        None => std::future::pending().await,
    }
}
