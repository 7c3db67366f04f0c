//! The whole world at one moment, and how each action changes it.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use tenure_core::election::Term;
use tenure_core::node::{Answer, Event, Input, Node, Output, Request, Ticket};
use tenure_core::polls::{Poll, Polls};
use tenure_core::session::{About, Config, Holder};
use tenure_core::{
    ElectionName, Expect, Incarnation, Lineage, Moment, NodeId, Nonce, Now, Read, Written,
};

use super::Bounds;
use super::action::{Action, Kind};
use super::calm;
use super::search::World;
use crate::clock::{Clock, FAST, RIGHT, SLOW};
use crate::invariants::{
    Violation, ended_for_a_reason, never_made_again, no_hot_loop, paired_events,
};
use crate::judge;
use crate::oracle::Oracle;
use crate::process::{Meter, Process};
use crate::store::{Access, Key, Store};

mod caller;
mod faults;
mod listings;

const TTL: Duration = Duration::from_secs(10);

/// More steps than this at one moment mean that a machine sends requests in a loop.
const RUSH_MAX: u32 = 500;

#[derive(Debug, Clone)]
pub(super) struct State {
    now: Duration,
    store: Store,
    oracle: Oracle,
    slots: Vec<Slot>,
    processes: BTreeMap<u64, Process>,
    started: u64,
    flights: Vec<Flight>,
    /// Pages that were requested.
    pages: Vec<listings::Flight>,
    /// The looks that wait for a page, by process.
    asked: BTreeMap<u64, Vec<Poll>>,
    lists: bool,
    /// The one-shot caller, if there is one.
    caller: Option<caller::Caller>,
    /// Abandoned writes that may still arrive.
    late: Vec<Late>,
    /// Work that has to end.
    ends: Vec<End>,
    /// The previous version of the lease.
    copy: Option<Vec<u8>>,
    last_lease: Option<Vec<u8>>,
    faults: u8,
    window: Duration,
    /// How many steps there were at this very moment.
    rush: u32,
}

#[derive(Debug, Clone, Hash)]
struct Slot {
    node: NodeId,
    clock: Clock,
    ttl: Duration,
}

#[derive(Debug, Clone, Hash)]
struct Flight {
    process: u64,
    ticket: Ticket,
    request: Request,
    started: Moment,
    deadline: Duration,
    /// Whether time may pass before it is carried out and answered.
    is_slow: bool,
    answer: Option<Answer>,
}

#[derive(Debug, Clone, Hash)]
struct Late {
    process: u64,
    started: Moment,
    request: Request,
}

#[derive(Debug, Clone, Hash)]
struct End {
    process: u64,
    term: Term,
    hangs: bool,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.now, &self.store, &self.oracle).hash(hasher);
        (&self.slots, self.started, self.faults).hash(hasher);
        (&self.flights, &self.late, &self.ends).hash(hasher);
        (&self.pages, &self.asked).hash(hasher);
        (&self.copy, &self.last_lease, &self.caller).hash(hasher);
        for (id, process) in &self.processes {
            (id, &process.node, &process.paused, &process.work).hash(hasher);
            (process.replaced, process.over, &process.listings).hash(hasher);
        }
    }
}

fn election() -> ElectionName {
    ElectionName::new("e").expect("this name is valid")
}

impl World for State {
    type Bounds = Bounds;
    type Action = Action;
    type Kind = Kind;

    fn first(bounds: &Bounds) -> Result<Self, Violation> {
        Self::new(bounds)
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn actions(&self, bounds: &Bounds) -> Vec<Action> {
        self.possible(bounds)
    }

    fn kind(action: &Action) -> Option<Kind> {
        action.kind()
    }

    fn take(&mut self, action: &Action) -> Result<(), Violation> {
        self.happen(action)
    }

    /// Whether no fault can strike any more, and none still has effects.
    fn is_calm(&self) -> bool {
        let can_fail = self.faults > 0 && self.now <= self.window;
        let is_loose = !self.late.is_empty()
            || self.flights.iter().any(|flight| flight.is_slow)
            || self.pages.iter().any(|page| page.is_slow)
            || self.ends.iter().any(|end| end.hangs)
            || self.caller_waits()
            || self.processes.values().any(|it| it.paused.is_some());
        !can_fail && !is_loose
    }

    fn converges_after_faults() -> bool {
        true
    }

    fn converges(self) -> Result<(), Violation> {
        calm::converges(self)
    }
}

impl State {
    fn new(bounds: &Bounds) -> Result<Self, Violation> {
        let slots = (0..bounds.processes).map(|slot| {
            let number = if bounds.twins { 0 } else { slot };
            let rate = match (bounds.skewed, slot) {
                (true, 0) => SLOW,
                (true, 1) => FAST,
                _ => RIGHT,
            };
            let factor = if bounds.ttls_differ { 1 << slot } else { 1 };
            Slot {
                node: NodeId::new(format!("n{number}")).expect("these names are valid"),
                clock: Clock::with_rate(rate),
                ttl: TTL * factor,
            }
        });
        let mut state = Self {
            now: Duration::ZERO,
            store: Store::with_clock(Clock::with_rate(RIGHT)),
            oracle: Oracle::new(if bounds.skewed { FAST } else { RIGHT }),
            slots: slots.collect(),
            processes: BTreeMap::new(),
            started: 0,
            flights: Vec::new(),
            pages: Vec::new(),
            asked: BTreeMap::new(),
            lists: bounds.lists,
            caller: None,
            late: Vec::new(),
            ends: Vec::new(),
            copy: None,
            last_lease: None,
            faults: bounds.faults,
            window: bounds.window,
            rush: 0,
        };
        if bounds.caller {
            state.begin_caller(bounds.skewed);
        }
        for slot in 0..bounds.processes {
            state.start(slot)?;
        }
        state.settle()?;
        Ok(state)
    }

    pub(super) fn ttl_max(&self) -> Duration {
        let slots = self.slots.iter().map(|slot| slot.ttl);
        let processes = self.processes.values().map(|process| process.config.ttl);
        slots.chain(processes).max().unwrap_or_default()
    }

    pub(super) fn heartbeat_max(&self) -> Duration {
        self.ttl_max() * 3 / 10
    }

    pub(super) fn leaders(&self) -> Vec<u64> {
        let all = self.processes.iter();
        all.filter(|(_, process)| process.leads(&election(), self.now).is_some())
            .map(|(&id, _)| id)
            .collect()
    }

    pub(super) fn candidates(&self) -> usize {
        let all = self.processes.values();
        all.filter(|process| !process.replaced).count()
    }

    // ---- what can happen ----------------------------------------------------------------------------

    fn possible(&self, bounds: &Bounds) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.now > bounds.horizon {
            return actions;
        }
        for (at, flight) in self.flights.iter().enumerate() {
            match (&flight.answer, flight.is_slow) {
                (Some(_), _) => actions.push(Action::Deliver(at)),
                (None, true) => actions.extend([Action::Answer(at), Action::Apply(at)]),
                (None, false) => actions.push(Action::Answer(at)),
            }
        }
        self.pages_to_come(&mut actions);
        actions.extend((0..self.late.len()).map(Action::Land));
        actions.extend((0..self.ends.len()).map(Action::EndWork));
        for (&process, it) in &self.processes {
            if it.paused.is_some() {
                actions.extend([true, false].map(|time_first| Action::Resume {
                    process,
                    time_first,
                }));
            }
        }
        if self.caller_waits() {
            actions.push(Action::Told);
        }
        if self.is_quiet() {
            actions.push(Action::Tick);
        }
        if self.faults > 0 && self.now <= self.window {
            self.faults(bounds, &mut actions);
        }
        actions
    }

    /// Whether nothing has to happen before time passes.
    fn is_quiet(&self) -> bool {
        let prompt = self.flights.iter().any(|flight| !flight.is_slow)
            || self.pages.iter().any(|page| !page.is_slow);
        !prompt && self.ends.iter().all(|end| end.hangs)
    }

    /// Whether one process leads, and everything that its trust rests on was requested after that moment.
    pub(super) fn is_led_since(&self, moment: Duration) -> bool {
        let [leader] = self.leaders()[..] else {
            return false;
        };
        let process = &self.processes[&leader];
        let trust = process.config.ttl - process.config.margin;
        let renewed = process.clock.moment(moment) + trust;
        let until = process.node.leads_until(&election());
        until.is_some_and(|(_, until)| until > renewed)
    }

    /// The next step if nothing goes wrong; `None` if only time passes.
    pub(super) fn next_alone(&self) -> Option<Action> {
        if let Some((&process, _)) = self.processes.iter().find(|(_, it)| it.paused.is_some()) {
            return Some(Action::Resume {
                process,
                time_first: true,
            });
        }
        if let Some(at) = self
            .flights
            .iter()
            .position(|flight| flight.answer.is_some())
        {
            return Some(Action::Deliver(at));
        }
        if !self.late.is_empty() {
            return Some(Action::Land(0));
        }
        if !self.flights.is_empty() {
            return Some(Action::Answer(0));
        }
        if self.caller_waits() {
            return Some(Action::Told);
        }
        if let Some(page) = self.next_page() {
            return Some(page);
        }
        // Work ends as late as possible, so that code that fails to wait for it is found.
        (!self.ends.is_empty()).then_some(Action::EndWork(0))
    }

    /// No more faults.
    pub(super) fn free(&mut self) {
        self.faults = 0;
    }

    // ---- what happens -------------------------------------------------------------------------------

    fn happen(&mut self, action: &Action) -> Result<(), Violation> {
        self.rush += 1;
        if self.rush > RUSH_MAX {
            let message = format!("{RUSH_MAX} steps and no end at {:?}", self.now);
            return Err(Violation::new("no hot loop", message));
        }
        match *action {
            Action::Answer(at) => {
                let flight = self.flights.remove(at);
                let answer = self.execute(flight.process, flight.started, &flight.request)?;
                self.deliver(flight.process, Input::Answer(flight.ticket, answer))?;
            }
            Action::Apply(at) => {
                let Flight {
                    process,
                    started,
                    request,
                    ..
                } = self.flights[at].clone();
                self.flights[at].answer = Some(self.execute(process, started, &request)?);
            }
            Action::Deliver(at) => {
                let flight = self.flights.remove(at);
                if let Some(answer) = flight.answer {
                    self.deliver(flight.process, Input::Answer(flight.ticket, answer))?;
                }
            }
            Action::Land(at) => {
                let late = self.late.remove(at);
                self.execute(late.process, late.started, &late.request)?;
            }
            Action::Page(at) => {
                self.read_page(at);
                self.page_back(at)?;
            }
            Action::ReadPage(at) => self.read_page(at),
            Action::PageBack(at) => self.page_back(at)?,
            Action::EndWork(at) => {
                let end = self.ends.remove(at);
                self.deliver(end.process, Input::WorkEnded(election(), end.term))?;
            }
            Action::Resume {
                process,
                time_first,
            } => self.resume(process, time_first)?,
            Action::Told => self.tell_caller(),
            Action::Tick => self.tick()?,
            Action::Fault(kind, number) => {
                self.faults = self.faults.saturating_sub(1);
                self.fault(kind, number)?;
            }
        }
        self.settle()?;
        self.drop_stale();
        self.check()
    }

    /// Drops copies of writes that can never be applied: they expect a version that is gone, or no object where one
    /// exists and nothing is deleted any more.
    fn drop_stale(&mut self) {
        let (store, can_delete) = (&self.store, self.faults > 0 && self.now <= self.window);
        self.late.retain(|late| {
            let (key, expect) = match &late.request {
                Request::WriteSession { record, expect } => {
                    (Key::Session(record.incarnation), expect)
                }
                Request::WriteLease { expect, .. } => (Key::Lease(election()), expect),
                Request::WriteFence { expect, .. } => (Key::Fence(election()), expect),
                _ => return false,
            };
            match (expect, store.get(&key)) {
                (Expect::Absent, None) => true,
                (Expect::Absent, Some(_)) => can_delete,
                (Expect::Version(version), object) => {
                    object.is_some_and(|object| object.version == *version)
                }
            }
        });
    }

    fn check(&self) -> Result<(), Violation> {
        judge::between(
            self.now,
            &[election()],
            self.processes.values(),
            &self.oracle,
        )?;
        self.check_caller()
    }

    /// A process stops waiting for an answer.
    fn silence(&mut self, at: usize, refused: bool) -> Result<(), Violation> {
        let flight = self.flights.remove(at);
        let written = if refused {
            Written::NotApplied
        } else {
            Written::Unknown
        };
        let answer = flight.request.unanswered(written);
        self.deliver(flight.process, Input::Answer(flight.ticket, answer))
    }

    /// A copy of a request stays in transit.
    fn set_loose(&mut self, at: usize) {
        let flight = &self.flights[at];
        self.late.push(Late {
            process: flight.process,
            started: flight.started,
            request: flight.request.clone(),
        });
    }

    fn execute(
        &mut self,
        process: u64,
        started: Moment,
        request: &Request,
    ) -> Result<Answer, Violation> {
        let access = Access {
            begun_at: self.now,
            tell_age: false,
            other_clock_ahead: None,
        };
        let (answer, applied) = self.store.execute(self.now, request, access);
        if let Some(process) = self.processes.get(&process) {
            let (oracle, store) = (&mut self.oracle, &self.store);
            judge::answered(oracle, store, process, started, request, &answer);
        }
        if let Some(applied) = applied {
            let (oracle, processes) = (&mut self.oracle, self.processes.values());
            judge::applied(self.now, &applied, oracle, &self.store, processes)?;
            if let Key::Lease(_) = applied.key {
                self.copy = self.last_lease.replace(applied.after.bytes);
            }
        }
        Ok(answer)
    }

    // ---- time ---------------------------------------------------------------------------------------

    fn tick(&mut self) -> Result<(), Violation> {
        let running = self.processes.values().filter(|it| it.paused.is_none());
        let wakes = running.filter_map(|process| process.wake_at(self.now));
        let deadlines = self.flights.iter().map(|flight| flight.deadline);
        let pages = self.pages.iter().map(|page| page.deadline);
        let next = wakes.chain(deadlines).chain(pages);
        let next = next.chain(self.caller_wakes_at()).min();
        // Paused processes wake when the others do or, if all are paused, a second later.
        let alone = self.now + Duration::from_secs(1);
        self.now = next.unwrap_or(alone).max(self.now);
        self.rush = 0;
        self.wake_caller();
        while let Some(at) = self
            .flights
            .iter()
            .position(|flight| flight.deadline <= self.now)
        {
            if self.flights[at].answer.is_none() && self.flights[at].request.is_write() {
                self.set_loose(at);
            }
            self.silence(at, false)?;
        }
        self.give_up_pages()
    }

    /// Wakes every process that is due. Each touches only itself, so the order does not matter.
    fn settle(&mut self) -> Result<(), Violation> {
        loop {
            let due = self.processes.iter().find(|(_, process)| {
                let at = process.wake_at(self.now);
                process.paused.is_none() && at.is_some_and(|at| at <= self.now)
            });
            let Some((&id, _)) = due else { return Ok(()) };
            self.deliver(id, Input::Wake)?;
        }
    }

    // ---- processes ----------------------------------------------------------------------------------

    fn start(&mut self, slot: usize) -> Result<(), Violation> {
        self.started += 1;
        let id = self.started;
        let Slot { node, clock, ttl } = self.slots[slot].clone();
        let config = Config {
            stop_within: ttl / 2,
            strict_age: true,
            jitter: false,
            ..Config::for_ttl(ttl)
        };
        let incarnation = Incarnation(u128::from(id));
        let me = Holder {
            node: node.clone(),
            incarnation,
            ttl,
        };
        self.oracle.configs.insert(incarnation, config.clone());
        let now = clock.now(self.now);
        let process = Process {
            label: format!("{node}/{id:x}"),
            slot,
            node_id: node,
            incarnation,
            known_as: incarnation,
            node: Node::new(config.clone(), me, About::default(), now, 0),
            listings: self.lists.then(|| Polls::new(&config)),
            config,
            clock,
            paused: None,
            cut_off_until: Duration::ZERO,
            blind_until: Duration::ZERO,
            unread_at: None,
            work: BTreeMap::new(),
            stands: [(election(), true)].into(),
            replaced: false,
            over: false,
            wake_token: 0,
            idle_wakes: 0,
            meter: Meter::default(),
        };
        self.processes.insert(id, process);
        self.deliver(id, Input::Wake)?;
        let join = Input::Join {
            election: election(),
            priority: Some(100),
            new_lineage: Lineage(u128::from(id)),
        };
        self.deliver(id, join)
    }

    fn holder(&self, id: u64) -> Holder {
        let process = &self.processes[&id];
        Holder {
            node: process.node_id.clone(),
            incarnation: process.incarnation,
            ttl: process.config.ttl,
        }
    }

    /// Its requests are still in transit. Returns where it ran.
    fn crash(&mut self, id: u64) -> usize {
        let process = self.processes.remove(&id).expect("only those that run");
        self.oracle.forget(process.known_as);
        self.forget(id);
        process.slot
    }

    fn forget(&mut self, id: u64) {
        self.ends.retain(|end| end.process != id);
        self.pages.retain(|page| page.process != id);
        self.asked.remove(&id);
        let flights = std::mem::take(&mut self.flights);
        for flight in flights {
            if flight.process != id {
                self.flights.push(flight);
            } else if flight.answer.is_none() && flight.request.is_write() {
                self.late.push(Late {
                    process: id,
                    started: flight.started,
                    request: flight.request,
                });
            }
        }
    }

    /// Makes an exact copy of a process, which continues when it is resumed: like a restored checkpoint, or a
    /// snapshot of a virtual machine.
    fn copy(&mut self, id: u64) {
        self.started += 1;
        let known_as = Incarnation(u128::from(self.started));
        let mut copy = self.processes[&id].clone();
        self.oracle.copy(copy.known_as, known_as);
        let until = self.now + copy.config.ttl;
        self.oracle.copied.insert(copy.incarnation, until);
        self.oracle.hurt.insert(copy.incarnation);
        copy.label = format!("{}, copy {:x}", copy.label, self.started);
        copy.known_as = known_as;
        copy.paused = Some(Vec::new());
        // It is not started again.
        copy.replaced = true;
        let ends = self.ends.iter().filter(|end| end.process == id);
        let ends: Vec<End> = ends.cloned().collect();
        let process = self.started;
        self.ends
            .extend(ends.into_iter().map(|end| End { process, ..end }));
        self.processes.insert(process, copy);
    }

    fn resume(&mut self, id: u64, time_first: bool) -> Result<(), Violation> {
        let process = self.processes.get_mut(&id);
        let Some(mut waiting) = process.and_then(|process| process.paused.take()) else {
            return Ok(());
        };
        if time_first {
            waiting.insert(0, Input::Wake);
        }
        for input in waiting {
            self.deliver(id, input)?;
            self.check()?;
        }
        Ok(())
    }

    fn deliver(&mut self, id: u64, input: Input) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        if let Some(waiting) = &mut process.paused {
            waiting.push(input);
            return Ok(());
        }
        if let Input::WorkEnded(election, term) = &input {
            if process.work.get(election) != Some(term) {
                return Ok(());
            }
            process.work.remove(election);
        }
        let woken = matches!(input, Input::Wake);
        // As in the driver: the read that settles a write is sent separately.
        let settles = matches!(input, Input::Answer(_, Answer::Written(_)));
        let lists = process.listings.is_some() && !settles;
        // With the counter this differs from every other write, without adding states.
        let now = Now {
            nonce: Nonce(u128::from(id)),
            ..process.clock.now(self.now)
        };
        if matches!(input, Input::Answer(_, Answer::Lease(Read::Failed))) {
            process.unread_at = Some(self.now);
        }
        let outputs = process.node.step(now, input);
        let wants_more = process.node.wake_at() <= now.moment;
        process.idle_wakes = if woken && outputs.is_empty() && wants_more {
            process.idle_wakes + 1
        } else {
            0
        };
        no_hot_loop::woken(process)?;
        for output in outputs {
            match output {
                Output::Request {
                    ticket,
                    request:
                        Request::ReadLease {
                            election,
                            known: Some(known),
                        },
                    within,
                } if lists => self.look_by_listing(id, ticket, election, known, within),
                Output::Request {
                    ticket,
                    request,
                    within,
                } => self.send(id, ticket, request, within)?,
                Output::Event(event) => self.on_event(id, event)?,
            }
        }
        self.serve_listings(id)
    }

    fn send(
        &mut self,
        id: u64,
        ticket: Ticket,
        request: Request,
        within: Duration,
    ) -> Result<(), Violation> {
        let Some(process) = self.processes.get(&id) else {
            return Ok(());
        };
        never_made_again::check(process, &request)?;
        let started = process.clock.moment(self.now);
        let deadline = process.clock.real(started + within).unwrap_or(self.now);
        // In the order of their names: the order of sending does not matter.
        let at = self
            .flights
            .partition_point(|flight| (flight.process, flight.ticket) < (id, ticket));
        let flight = Flight {
            process: id,
            ticket,
            request,
            started,
            deadline,
            is_slow: false,
            answer: None,
        };
        self.flights.insert(at, flight);
        Ok(())
    }

    fn on_event(&mut self, id: u64, event: Event) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        let end = |term| End {
            process: id,
            term,
            hangs: false,
        };
        match event {
            Event::Elected {
                election,
                term,
                lineage,
            } => judge::elected(&mut self.oracle, process, &election, term, lineage)?,
            Event::Stop { election, term } => {
                paired_events::ended(&self.oracle, process, &election, term)?;
                self.ends.push(end(term));
            }
            Event::Ended {
                election,
                term,
                reason,
            } => {
                let (oracle, store) = (&mut self.oracle, &self.store);
                judge::ended(oracle, process, store, &election, term, &reason)?;
                let is_told = self.ends.iter().any(|end| end.process == id);
                if process.work.contains_key(&election) && !is_told {
                    self.ends.push(end(term));
                }
            }
            Event::Over { reason } => {
                process.over = true;
                ended_for_a_reason::over(process, &reason, &self.oracle, &self.store, self.now)?;
            }
            Event::Left => self.on_left(id)?,
            Event::Trusted { .. }
            | Event::SessionEnded { .. }
            | Event::Leader { .. }
            | Event::Anomaly { .. }
            | Event::Cluster(_) => {}
        }
        Ok(())
    }

    fn on_left(&mut self, id: u64) -> Result<(), Violation> {
        if let Some(process) = self.processes.remove(&id) {
            judge::left(&mut self.oracle, &process)?;
            self.forget(id);
            if !process.replaced {
                self.start(process.slot)?;
            }
        }
        Ok(())
    }
}
