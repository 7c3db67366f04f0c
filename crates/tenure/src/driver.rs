//! The loop around the core's node machine: takes an input, steps, carries out the outputs, sleeps to the
//! next deadline. It decides nothing.
//!
//! It runs on a thread of its own with a store connection of its own, so an application whose runtime is
//! blocked or starved keeps its session.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::election::Term;
use tenure_core::node::{Answer, Event, Input, Node, Output, Request, Ticket};
use tenure_core::session::record::About;
use tenure_core::session::{Config, Holder};
use tenure_core::{ElectionName, Incarnation, Lineage, Moment, NodeId};
use tenure_store::{Hint, Store, Watch};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::clock;
use crate::election::Seat;
use crate::keys::Keys;
use crate::leadership::{Leadership, TermState};
use crate::nudge::Nudger;
use crate::requests::carry_out;

/// What the handles ask of the driver. The channel is unbounded because `Drop` must not wait; each
/// command is one small step that a caller made.
#[derive(Debug)]
pub(crate) enum Command {
    Join {
        seat: Arc<Seat>,
        priority: Option<u8>,
    },
    Resign(ElectionName),
    Transfer(ElectionName, Holder),
    WorkEnded(ElectionName, Term),
    /// The deadlines have changed.
    WatchdogSet,
    Shutdown(Option<oneshot::Sender<()>>),
}

pub(crate) struct Driver {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keys: Keys,
    pub(crate) node: NodeId,
    pub(crate) config: Config,
    pub(crate) about: About,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    /// For the terms, which report the end of their work.
    pub(crate) reports: mpsc::UnboundedSender<Command>,
    /// Who this process is now, and until when it is trusted.
    pub(crate) session: watch::Sender<Option<Holder>>,
    pub(crate) nudger: Option<Nudger>,
    pub(crate) elections: BTreeMap<ElectionName, (Arc<Seat>, Option<u8>)>,
    pub(crate) stopping: Vec<oneshot::Sender<()>>,
    pub(crate) is_stopping: bool,
}

/// One incarnation: what lives as long as its session.
struct Run {
    machine: Node,
    me: Holder,
    requests: JoinSet<(Ticket, Option<ElectionName>, Answer)>,
    leading: BTreeMap<ElectionName, Arc<TermState>>,
    left: bool,
}

enum Wake {
    Input(Box<Input>, Option<ElectionName>),
    Command(Command),
    Time,
}

impl Driver {
    /// Runs until it is told to stop: one incarnation after the other.
    pub(crate) async fn run(mut self) {
        let mut hints = self.store.watch(&self.keys.elections());
        while !self.is_stopping {
            self.run_incarnation(&mut hints).await;
            self.session.send_replace(None);
        }
        for stopped in self.stopping {
            let _ = stopped.send(());
        }
    }

    async fn run_incarnation(&mut self, hints: &mut Option<Watch>) {
        let incarnation = Incarnation(uuid::Uuid::new_v4().as_u128());
        let me = Holder {
            node: self.node.clone(),
            incarnation,
            ttl: self.config.ttl,
        };
        let seed = uuid::Uuid::from_u128(incarnation.0).as_u64_pair().0;
        let about = self.about.clone();
        tracing::info!(node = %me.node, %incarnation, "joining");
        let mut run = Run {
            machine: Node::new(self.config.clone(), me.clone(), about, clock::now(), seed),
            me,
            requests: JoinSet::new(),
            leading: BTreeMap::new(),
            left: false,
        };
        let joins: Vec<Input> = self
            .elections
            .values()
            .map(|(seat, priority)| join(seat, *priority))
            .collect();
        self.step(&mut run, Input::Wake, None);
        for join in joins {
            self.step(&mut run, join, None);
        }
        while !run.left {
            match self.next(&mut run, hints).await {
                Wake::Input(input, election) => self.step(&mut run, *input, election.as_ref()),
                Wake::Command(command) => self.on_command(&mut run, command),
                Wake::Time => {
                    self.check_watchdogs(&mut run);
                    self.step(&mut run, Input::Wake, None);
                }
            }
        }
    }

    /// Waits for whatever comes first. Nothing is lost if another branch wins: every branch can be
    /// cancelled, and requests go on in tasks of their own.
    async fn next(&mut self, run: &mut Run, hints: &mut Option<Watch>) -> Wake {
        let deadline = run.deadline();
        tokio::select! {
            biased;
            // Time first: no flood of anything else may hide that trust has ended.
            () = clock::sleep_towards(deadline), if deadline <= clock::moment() => Wake::Time,
            Some(answer) = run.requests.join_next(), if !run.requests.is_empty() => {
                let (ticket, election, answer) = answer.expect("requests neither panic nor are aborted");
                Wake::Input(Box::new(Input::Answer(ticket, answer)), election)
            }
            command = self.commands.recv() => {
                Wake::Command(command.expect("the driver itself holds a sender"))
            }
            hint = next_hint(hints) => match hint {
                Hint::Anything => Wake::Input(Box::new(Input::HintAll), None),
                Hint::Changed(key) => match ElectionName::new(key.name()) {
                    Ok(election) => Wake::Input(Box::new(Input::Hint(election)), None),
                    Err(_) => Wake::Time,
                },
            },
            election = next_nudge(self.nudger.as_mut()) => Wake::Input(Box::new(Input::Hint(election)), None),
            () = clock::sleep_towards(deadline) => Wake::Time,
        }
    }

    fn on_command(&mut self, run: &mut Run, command: Command) {
        let input = match command {
            Command::Join { seat, priority } => {
                let input = join(&seat, priority);
                self.elections.insert(seat.name().clone(), (seat, priority));
                input
            }
            Command::Resign(election) => Input::Resign(election),
            Command::Transfer(election, to) => Input::Transfer(election, to),
            Command::WorkEnded(election, term) => Input::WorkEnded(election, term),
            Command::WatchdogSet => Input::Wake,
            Command::Shutdown(stopped) => {
                self.stopping.extend(stopped);
                self.is_stopping = true;
                Input::Leave
            }
        };
        self.step(run, input, None);
    }

    fn check_watchdogs(&mut self, run: &mut Run) {
        let now = clock::moment();
        let starved: Vec<_> = run
            .leading
            .values()
            .filter(|term| term.watchdog_expires_at().is_some_and(|at| at <= now))
            .cloned()
            .collect();
        for term in starved {
            tracing::warn!(election = %term.election, term = %term.term, "the work makes no progress: resigning");
            term.clear_watchdog();
            self.step(run, Input::Resign(term.election.clone()), None);
        }
    }

    /// One step of the machine, with everything that it asks for. `election` is the one whose request was
    /// answered, if any: its trust may have changed.
    fn step(&mut self, run: &mut Run, input: Input, election: Option<&ElectionName>) {
        for output in run.machine.step(clock::now(), input) {
            match output {
                Output::Request {
                    ticket,
                    request,
                    within,
                } => {
                    self.send(run, ticket, request, within);
                }
                Output::Event(event) => self.on_event(run, event),
            }
        }
        if let Some(election) = election {
            run.refresh_trust(election);
        }
    }

    fn send(&self, run: &mut Run, ticket: Ticket, request: Request, within: Duration) {
        let election = match &request {
            Request::ReadSession { .. } | Request::WriteSession { .. } => None,
            Request::ReadLease { election, .. }
            | Request::WriteLease { election, .. }
            | Request::ReadFence { election }
            | Request::WriteFence { election, .. } => Some(election.clone()),
        };
        let (store, keys) = (self.store.clone(), self.keys.clone());
        run.requests.spawn(async move {
            (
                ticket,
                election,
                carry_out(&*store, &keys, request, within).await,
            )
        });
    }

    fn on_event(&mut self, run: &mut Run, event: Event) {
        match event {
            Event::Trusted { until } => {
                tracing::debug!(remaining = ?until.since(clock::moment()), "heartbeat confirmed");
                self.session.send_if_modified(|current| {
                    let is_new = current.is_none();
                    *current = Some(run.me.clone());
                    is_new
                });
                run.refresh_all_trust();
            }
            Event::Over { reason } => {
                tracing::warn!(node = %self.node, %reason, "the session is over, all work stops");
            }
            Event::Left => run.left = true,
            Event::SessionEnded { incarnation, end } => {
                tracing::info!(%incarnation, ?end, "another session has ended");
            }
            Event::Leader { election, leader } => {
                if leader.is_none()
                    && let Some(nudger) = &mut self.nudger
                {
                    nudger.vacated(&election);
                }
                if let Some((seat, _)) = self.elections.get(&election) {
                    seat.leader_is(leader);
                }
            }
            Event::Elected {
                election,
                term,
                lineage,
            } => self.on_elected(run, election, term, lineage),
            Event::Stop { election, .. } => {
                if let Some(nudger) = &mut self.nudger {
                    nudger.prepare(&self.store, &self.keys, &election, &run.me);
                }
                // Trust now ends no later than the time that the work has to stop.
                run.refresh_trust(&election);
                if let Some(term) = run.leading.get(&election) {
                    term.tell_to_stop();
                }
            }
            Event::Ended {
                election,
                term,
                reason,
            } => {
                tracing::info!(%election, %term, %reason, "term ended");
                if let Some(ended) = run.leading.remove(&election) {
                    ended.end(reason.clone());
                }
                if let Some((seat, _)) = self.elections.get(&election) {
                    seat.ended(term, reason);
                }
            }
            Event::Anomaly { election, anomaly } => tracing::error!(%election, "{anomaly}"),
        }
    }

    fn on_elected(&mut self, run: &mut Run, election: ElectionName, term: Term, lineage: Lineage) {
        let Some((_, until)) = run.machine.leads_until(&election) else {
            return;
        };
        let Some((seat, _)) = self.elections.get(&election) else {
            return;
        };
        tracing::info!(%election, %term, "elected");
        let fence_key = self.keys.fence(&election);
        let reports = self.reports.clone();
        let state = TermState::new(election.clone(), term, lineage, fence_key, until, reports);
        run.leading.insert(election, state.clone());
        seat.elected(Leadership::new(state), term, lineage);
    }
}

impl Run {
    fn deadline(&self) -> Moment {
        let watchdogs = self
            .leading
            .values()
            .filter_map(|term| term.watchdog_expires_at());
        watchdogs
            .chain([self.machine.wake_at()])
            .min()
            .unwrap_or(Moment::NEVER)
    }

    fn refresh_trust(&self, election: &ElectionName) {
        let leads = self.machine.leads_until(election);
        if let (Some(term), Some((number, until))) = (self.leading.get(election), leads)
            && term.term == number
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

fn join(seat: &Seat, priority: Option<u8>) -> Input {
    let new_lineage = Lineage(uuid::Uuid::new_v4().as_u128());
    Input::Join {
        election: seat.name().clone(),
        priority,
        new_lineage,
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

async fn next_nudge(nudger: Option<&mut Nudger>) -> ElectionName {
    match nudger {
        Some(nudger) => nudger.next().await,
        None => std::future::pending().await,
    }
}
