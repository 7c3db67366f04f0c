//! The whole world at one moment, and what can happen in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::cluster::{Config, Definition, Generation, Shard};
use tenure_core::election::Term;
use tenure_core::node::{Answer, Request, Ticket};
use tenure_core::{DaemonId, Incarnation, NodeId, Written, session};

use super::Bounds;
use super::action::{Action, Kind};
use super::process::{Input, Process, Run};
use super::store::Store;
use crate::clock::{Clock, FAST, RIGHT, SLOW};
use crate::invariants::{Violation, one_shard_holder};
use crate::model::search::World;

const TTL: Duration = Duration::from_secs(10);

/// More steps than this at one moment mean that a machine sends requests in a loop.
const RUSH_MAX: u32 = 1000;

#[derive(Debug, Clone, Hash)]
pub(super) struct State {
    pub(super) now: Duration,
    pub(super) store: Store,
    pub(super) slots: Vec<Slot>,
    pub(super) processes: BTreeMap<u64, Arc<Process>>,
    pub(super) started: u64,
    pub(super) incarnations: u128,
    pub(super) terms: u64,
    /// The sessions that were elected.
    pub(super) led: BTreeSet<Incarnation>,
    /// What happens without a fault, in order.
    pub(super) queue: Vec<Item>,
    /// Slow requests, with their answers once they were carried out.
    pub(super) slow: Vec<(Flight, Option<Answer>)>,
    /// Abandoned writes that may still arrive.
    pub(super) late: Vec<Request>,
    /// Hanging work, which does not start or end yet.
    pub(super) hung: Vec<Work>,
    pub(super) highest: BTreeMap<Shard, Generation>,
    pub(super) installed: BTreeSet<(Term, Incarnation)>,
    pub(super) faults: u8,
    pub(super) window: Duration,
    pub(super) horizon: Duration,
    pub(super) shards: u32,
    pub(super) hints: bool,
    /// How many steps there were at this very moment.
    rush: u32,
}

#[derive(Debug, Clone, Hash)]
pub(super) struct Slot {
    pub(super) node: NodeId,
    pub(super) clock: Clock,
}

/// Something that happens without a fault.
#[derive(Debug, Clone, Hash)]
pub(super) enum Item {
    Request(Flight),
    Work(Work),
}

/// A request in transit.
#[derive(Debug, Clone, Hash)]
pub(super) struct Flight {
    pub(super) process: u64,
    pub(super) by: Incarnation,
    pub(super) ticket: Ticket,
    pub(super) request: Request,
    /// When its answer counts as lost; `None` for looks, which may take any time.
    pub(super) deadline: Option<Duration>,
}

/// Work that has to start or end.
#[derive(Debug, Clone, Hash)]
pub(super) struct Work {
    pub(super) process: u64,
    pub(super) shard: Shard,
    pub(super) generation: Generation,
    pub(super) starts: bool,
}

pub(super) fn daemon() -> DaemonId {
    DaemonId::new("d").expect("this name is valid")
}

pub(super) fn session_config() -> session::Config {
    session::Config {
        strict_age: true,
        jitter: false,
        ..session::Config::for_ttl(TTL)
    }
}

/// The shortest times that fit the session's.
pub(super) fn config() -> Config {
    Config {
        acknowledge_timeout: Duration::from_secs(6),
        drain_timeout: Duration::from_secs(15),
        cycle: Duration::from_millis(100),
        settle: Duration::from_secs(1),
        failure_delay_max: Duration::from_secs(8),
        ..Config::default()
    }
}

impl World for State {
    type Bounds = Bounds;
    type Action = Action;
    type Kind = Kind;

    fn first(bounds: &Bounds) -> Result<Self, Violation> {
        let slots = (0..bounds.nodes).map(|slot| {
            let rate = match (bounds.skewed, slot) {
                (true, 0) => SLOW,
                (true, 1) => FAST,
                _ => RIGHT,
            };
            Slot {
                node: NodeId::new(format!("n{slot}")).expect("these names are valid"),
                clock: Clock::with_rate(rate),
            }
        });
        let mut state = Self {
            now: Duration::ZERO,
            store: Store::default(),
            slots: slots.collect(),
            processes: BTreeMap::new(),
            started: 0,
            incarnations: 0,
            terms: 0,
            led: BTreeSet::new(),
            queue: Vec::new(),
            slow: Vec::new(),
            late: Vec::new(),
            hung: Vec::new(),
            highest: BTreeMap::new(),
            installed: BTreeSet::new(),
            faults: 0,
            window: Duration::ZERO,
            horizon: Duration::ZERO,
            shards: bounds.shards,
            hints: bounds.hints,
            rush: 0,
        };
        for slot in 0..bounds.nodes {
            state.start(slot)?;
        }
        state.settle()?;
        if bounds.settled {
            state.settle_down()?;
        }
        if bounds.drained {
            state.drain(0, true)?;
        }
        state.faults = bounds.faults;
        state.window = state.now + bounds.window;
        state.horizon = state.now + bounds.horizon;
        Ok(state)
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn actions(&self, bounds: &Bounds) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.now > self.horizon {
            return actions;
        }
        match (self.queue.len(), bounds.any_order) {
            (0, _) => actions.push(Action::Tick),
            (length, true) => actions.extend((0..length).map(Action::Next)),
            (_, false) => actions.push(Action::Next(0)),
        }
        for (at, (_, answer)) in self.slow.iter().enumerate() {
            actions.push(match answer {
                Some(_) => Action::Deliver(at),
                None => Action::Apply(at),
            });
        }
        actions.extend((0..self.late.len()).map(Action::Land));
        actions.extend((0..self.hung.len()).map(Action::GoOn));
        for (&process, it) in &self.processes {
            if it.paused.is_some() {
                actions.extend([true, false].map(|time_first| Action::Resume {
                    process,
                    time_first,
                }));
            } else if it.is_deposed {
                actions.push(Action::Depose(process));
            }
        }
        if self.can_fail() {
            self.faults(bounds, &mut actions);
        }
        actions
    }

    fn kind(action: &Action) -> Option<Kind> {
        match action {
            Action::Fault(kind, _) => Some(*kind),
            _ => None,
        }
    }

    fn take(&mut self, action: &Action) -> Result<(), Violation> {
        self.rush += 1;
        if self.rush > RUSH_MAX {
            let message = format!("{RUSH_MAX} steps and no end at {:?}", self.now);
            return Err(Violation::new("no hot loop", message));
        }
        match *action {
            Action::Next(at) => match self.queue.remove(at) {
                Item::Request(flight) => {
                    let answer = self.execute(&flight.request)?;
                    self.answer(&flight, answer)?;
                }
                Item::Work(work) => self.go_on(work)?,
            },
            Action::Apply(at) => {
                let request = self.slow[at].0.request.clone();
                self.slow[at].1 = Some(self.execute(&request)?);
            }
            Action::Deliver(at) => {
                let (flight, answer) = self.slow.remove(at);
                if let Some(answer) = answer {
                    self.answer(&flight, answer)?;
                }
            }
            Action::Land(at) => {
                let request = self.late.remove(at);
                self.execute(&request)?;
            }
            Action::GoOn(at) => {
                let work = self.hung.remove(at);
                self.go_on(work)?;
            }
            Action::Depose(process) => self.deliver(process, Input::Deposed)?,
            Action::Resume {
                process,
                time_first,
            } => self.resume(process, time_first)?,
            Action::Tick => self.tick()?,
            Action::Fault(kind, number) => {
                self.faults = self.faults.saturating_sub(1);
                self.fault(kind, number)?;
            }
        }
        self.settle()?;
        let can_delete = self.can_fail();
        let store = &self.store;
        self.late
            .retain(|request| can_delete || store.can_apply(request));
        self.check()
    }

    fn is_calm(&self) -> bool {
        let is_loose = !self.slow.is_empty()
            || !self.late.is_empty()
            || !self.hung.is_empty()
            || self
                .processes
                .values()
                .any(|it| it.paused.is_some() || it.is_deposed);
        !self.can_fail() && !is_loose
    }

    fn converges_after_faults() -> bool {
        false
    }

    fn converges(self) -> Result<(), Violation> {
        super::calm::converges(self)
    }
}

impl State {
    pub(super) fn can_fail(&self) -> bool {
        self.faults > 0 && self.now <= self.window
    }

    pub(super) fn check(&self) -> Result<(), Violation> {
        let now = self.now;
        let trusted = self.processes.iter().flat_map(|(&id, process)| {
            let runs = process.runs.keys();
            let trusted =
                runs.filter(move |(shard, generation)| process.trusts(now, shard, *generation));
            trusted.map(move |(shard, generation)| (shard, *generation, id))
        });
        one_shard_holder::check(trusted)
    }

    /// Carries out a request, and hints at the change to all who may need it.
    pub(super) fn execute(&mut self, request: &Request) -> Result<Answer, Violation> {
        let answer = self.store.execute(request);
        if let Answer::Written(Written::Done(_)) = answer {
            match request {
                Request::WriteAssignments { assignments, .. } => {
                    let writer = assignments.writer.incarnation;
                    self.installed.insert((assignments.term, writer));
                    self.hint(&Input::HintAssignments)?;
                }
                Request::WriteSession { record, .. } => {
                    let (node, incarnation) = (record.node.clone(), record.incarnation);
                    self.hint(&Input::HintSession(node, incarnation))?;
                }
                _ => {}
            }
        }
        Ok(answer)
    }

    pub(super) fn answer(&mut self, flight: &Flight, answer: Answer) -> Result<(), Violation> {
        let input = Input::Answer(flight.by, flight.ticket, Box::new(answer));
        self.deliver(flight.process, input)
    }

    pub(super) fn hint(&mut self, hint: &Input) -> Result<(), Violation> {
        if self.hints {
            let processes: Vec<u64> = self.processes.keys().copied().collect();
            for process in processes {
                self.deliver(process, hint.clone())?;
            }
        }
        Ok(())
    }

    fn go_on(&mut self, work: Work) -> Result<(), Violation> {
        let (shard, generation) = (work.shard, work.generation);
        let input = if work.starts {
            Input::Started(shard, generation)
        } else {
            Input::Ended(shard, generation, None)
        };
        self.deliver(work.process, input)
    }

    // ---- time ---------------------------------------------------------------------------------------

    fn tick(&mut self) -> Result<(), Violation> {
        let running = self.processes.values().filter(|it| it.paused.is_none());
        let wakes = running.filter_map(|process| process.wake_at());
        let deadlines = self.slow.iter().filter_map(|(flight, _)| flight.deadline);
        let next = wakes.chain(deadlines).min();
        // Paused processes wake when the others do or, if all are paused, a second later.
        let alone = self.now + Duration::from_secs(1);
        self.now = next.unwrap_or(alone).max(self.now);
        self.rush = 0;
        while let Some(at) = self.slow.iter().position(|(flight, _)| {
            let deadline = flight.deadline;
            deadline.is_some_and(|deadline| deadline <= self.now)
        }) {
            let (flight, answer) = self.slow.remove(at);
            self.give_up(flight, answer.is_none())?;
        }
        Ok(())
    }

    /// The process stops waiting for the answer. If the request was not carried out yet, it still may be.
    pub(super) fn give_up(&mut self, flight: Flight, is_loose: bool) -> Result<(), Violation> {
        let answer = flight.request.unanswered(Written::Unknown);
        let input = Input::Answer(flight.by, flight.ticket, Box::new(answer));
        if is_loose && flight.request.is_write() {
            self.late.push(flight.request);
        }
        self.deliver(flight.process, input)
    }

    /// Wakes every process that is due, and elects a leader if there is none.
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
        loop {
            let due = self.processes.iter().find(|(_, process)| {
                let at = process.wake_at();
                process.paused.is_none() && at.is_some_and(|at| at <= self.now)
            });
            match due {
                Some((&id, _)) => {
                    self.rush += 1;
                    if self.rush > RUSH_MAX {
                        let message = format!("process {id} is woken for ever at {:?}", self.now);
                        return Err(Violation::new("no hot loop", message));
                    }
                    self.deliver(id, Input::Wake)?;
                }
                None if self.is_led() => return Ok(()),
                None => {
                    let now = self.now;
                    let fits = |it: &Process| {
                        it.is_trusted(now) && it.paused.is_none() && it.going.is_none()
                    };
                    let next = self.processes.iter().find(|(_, process)| fits(process));
                    let Some((&next, _)) = next else {
                        return Ok(());
                    };
                    self.elect(next)?;
                }
            }
        }
    }

    fn is_led(&self) -> bool {
        let mut processes = self.processes.values();
        processes.any(|process| process.is_leader(self.now))
    }

    /// Makes this process the leader; the former one learns of it some time later.
    pub(super) fn elect(&mut self, id: u64) -> Result<(), Violation> {
        for (_, process) in self.processes.iter_mut().filter(|(other, _)| **other != id) {
            if process.leads.is_some() && !process.is_deposed {
                Arc::make_mut(process).is_deposed = true;
            }
        }
        self.terms += 1;
        // In an election the former leader has ended or released its lease by now. If it has not, it may still act.
        let mut others = self.processes.values();
        let is_alone = !others.any(|it| it.leads.is_some());
        let before = is_alone.then(|| self.led.clone());
        if let Some(process) = self.processes.get(&id) {
            self.led.insert(process.me.incarnation);
        }
        self.deliver(id, Input::Elected(Term(self.terms), before))
    }

    // ---- what is on its way -------------------------------------------------------------------------

    pub(super) fn send(
        &mut self,
        process: u64,
        ticket: Ticket,
        request: Request,
        within: Duration,
    ) {
        let Some(it) = self.processes.get(&process) else {
            return;
        };
        let deadline = it.clock.real(it.clock.moment(self.now) + within);
        let deadline = deadline.filter(|_| !matches!(request, Request::Look { .. }));
        let by = it.me.incarnation;
        self.queue.push(Item::Request(Flight {
            process,
            by,
            ticket,
            request,
            deadline,
        }));
    }

    /// Handles requests in transit of a process that is gone: its writes may still arrive.
    pub(super) fn forget(&mut self, process: u64) {
        let mut flights = Vec::new();
        self.queue.retain(|item| match item {
            Item::Request(flight) if flight.process == process => {
                flights.push(flight.clone());
                false
            }
            Item::Work(work) => work.process != process,
            Item::Request(_) => true,
        });
        self.slow.retain(|(flight, answer)| {
            if flight.process == process && answer.is_none() {
                flights.push(flight.clone());
            }
            flight.process != process
        });
        self.hung.retain(|work| work.process != process);
        let requests = flights.into_iter().map(|flight| flight.request);
        self.late.extend(requests.filter(Request::is_write));
    }

    // ---- what there is to see -----------------------------------------------------------------------

    /// The shards that some node could run but none does.
    pub(super) fn idle_shards(&self) -> Vec<Shard> {
        let drains = self.store.drains.as_ref();
        let is_drained =
            |node: &NodeId| drains.is_some_and(|(drains, _)| drains.nodes.contains_key(node));
        let shards = (0..self.shards).map(|index| Shard {
            daemon: daemon(),
            index,
        });
        let idle = shards.filter(|shard| {
            let mut processes = self.processes.values();
            let can = |it: &Process| {
                it.going.is_none() && !is_drained(&it.me.node) && !it.is_stuck_with(shard)
            };
            let runs = |it: &Process| {
                it.runs.iter().any(|((other, generation), run)| {
                    other == shard
                        && *run == Run::Running
                        && it.trusts(self.now, other, *generation)
                })
            };
            let is_wanted = processes.clone().any(|it| can(it));
            is_wanted && !processes.any(|it| runs(it))
        });
        idle.collect()
    }

    pub(super) fn definition(&self) -> Definition {
        Definition::shards(self.shards)
    }

    /// Describes the state, for debugging.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("at {:?}", self.now);
        for (id, process) in &self.processes {
            text += &format!(
                "; process {id} on {}: leads {:?}, runs {:?}",
                process.me.node, process.leads, process.runs
            );
            let member = process.node.member();
            let plan = member.and_then(|member| member.plan(process.clock.moment(self.now)));
            for decision in plan.unwrap_or_default() {
                text += &format!(", {decision}");
            }
        }
        text
    }
}
