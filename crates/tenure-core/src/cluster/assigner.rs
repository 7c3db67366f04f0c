//! The leader's part: reads the assignments, puts its term on them, and from then on decides.

use std::collections::BTreeSet;
use std::time::Duration;

mod install;
mod messages;

pub use messages::{Anomaly, Input, Output, Predecessors};

use super::decide::{Decided, MayPlace, Situation, decide, reported};
use super::drained::Drained;
use super::memory::Memory;
use super::nodes::Nodes;
use super::plan::Decision;
use super::record::{Assignments, Drains, Generation};
use super::report::Part;
use super::{Config, desired};
use crate::election::{Term, Writer};
use crate::random::Random;
use crate::session::{self, Holder, Record};
use crate::{
    ElectionName, Expect, Incarnation, Lineage, Moment, NodeId, Nonce, Now, Read, Version, Written,
};

/// The machine. At most one request for each of its two objects is in flight; the driver answers each with one input.
#[derive(Debug, Clone, Hash)]
pub struct Assigner {
    config: Config,
    /// How often to look, and how soon to try again.
    heartbeat: Duration,
    rest: Duration,
    retry: Duration,
    random: Random,
    me: Holder,
    /// The lineage that this process was last elected in.
    lineage: Option<Lineage>,
    /// Who led before this term.
    predecessors: Predecessors,
    /// The sessions that have never assigned anything, according to the listing of this term.
    has_assigned_none: BTreeSet<Incarnation>,
    /// Whether this process's session says that it assigns. Nothing is decided before that is stored.
    saying: Saying,
    phase: Phase,
    nodes: Nodes,
    /// Whether a whole listing of the sessions was taken in this term.
    listed: bool,
    /// The sessions whose end the driver has to report.
    watched: BTreeSet<Incarnation>,
    drained: Drained,
    /// This term has not yet checked whether this node is kept free and should resign.
    is_new: bool,
    /// Set when this node has resigned because it is kept free: if it is elected again before then, it stays.
    stays_until: Moment,
    memory: Memory,
    /// The assignments as they are stored, and their version.
    stored: Stored,
    in_flight: Option<Flight>,
    /// The decisions of a write whose answer was lost, with the write's counter.
    unsettled_decisions: Option<(u64, Vec<Decision>)>,
    /// How many times this process wrote, so that each write differs.
    writes: u64,
    /// The highest generation that this process ever tried to give out.
    generation: Generation,
    /// Set after a conflict or a lost answer: nothing is written before the assignments were read.
    must_read: bool,
    /// When to look at the assignments next.
    due: Moment,
    /// After a failure nothing is sent before then.
    retry_from: Moment,
    /// When the next write may start.
    write_from: Moment,
    /// When to decide again if nothing happens.
    decide_at: Moment,
    /// Since when there is something to write that can wait.
    noting_since: Option<Moment>,
    /// When nodes last came or went, and when that began.
    unsettled: Option<(Moment, Moment)>,
    /// There is no work to hand out, and no node has any.
    is_at_rest: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Saying {
    NotYet,
    /// The driver was asked to write it.
    Asked,
    /// It is stored.
    Said,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// Another process decides.
    Following,
    /// This process leads, but the assignments do not say so yet.
    Installing { term: Term, lost: bool },
    /// The assignments carry this term.
    Leading {
        term: Term,
        /// When shards may be given out. Before that, nodes may still run shards of assignments that were lost.
        place_from: Moment,
        /// A longer drain timeout of another leader, and until when a node may go by it.
        longer: (Duration, Moment),
    },
    /// The assignments carry a newer term.
    Superseded,
}

#[derive(Debug, Clone, Hash)]
enum Stored {
    Nothing,
    Missing,
    Found {
        assignments: Box<Assignments>,
        version: Version,
    },
}

#[derive(Debug, Clone, Hash)]
enum Flight {
    Read,
    Write {
        assignments: Box<Assignments>,
        decisions: Vec<Decision>,
    },
}

/// Notes that can wait are written down after this many cycles, or with the next decision.
const NOTE_CYCLES: u32 = 6;

/// Balance waits for nodes to come to rest, but at most this many times the time to settle.
const SETTLE_MAX: u32 = 10;

/// For how many heartbeats a node that is kept free leads if no other node took over when it resigned.
const STAY_HEARTBEATS: u32 = 60;

impl Assigner {
    /// Makes the assigner of a process that does not lead yet.
    #[must_use]
    pub fn new(
        config: Config,
        session: &session::Config,
        me: Holder,
        now: Moment,
        seed: u64,
    ) -> Self {
        Self {
            config,
            heartbeat: session.heartbeat,
            rest: session.rest(),
            retry: session.retry(),
            random: Random::new(session, seed),
            me,
            lineage: None,
            predecessors: None,
            has_assigned_none: BTreeSet::new(),
            saying: Saying::NotYet,
            phase: Phase::Following,
            nodes: Nodes::default(),
            listed: false,
            watched: BTreeSet::new(),
            drained: Drained::new(now),
            is_new: false,
            stays_until: now,
            memory: Memory::default(),
            stored: Stored::Nothing,
            in_flight: None,
            unsettled_decisions: None,
            writes: 0,
            generation: Generation::default(),
            must_read: true,
            due: now,
            retry_from: now,
            write_from: now,
            decide_at: now,
            noting_since: None,
            unsettled: None,
            is_at_rest: false,
        }
    }

    /// The desired state, as far as this process knows it; `None` if it does not lead.
    #[must_use]
    pub fn assignments(&self) -> Option<&Assignments> {
        match (&self.phase, &self.stored) {
            (Phase::Leading { .. }, Stored::Found { assignments, .. }) => Some(assignments),
            _ => None,
        }
    }

    /// What this leader would do now and why: one decision per line.
    #[must_use]
    pub fn plan(&self, now: Moment) -> Vec<Decision> {
        self.decided(now)
            .map(|decided| decided.decisions)
            .unwrap_or_default()
    }

    /// Whether this process leads, and there is nothing to hand out: no node offers a daemon, and there are no
    /// assignments. Then nothing depends on its next look.
    #[must_use]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_at_rest
    }

    /// When the machine wants [`Input::Wake`] next.
    #[must_use]
    pub fn wake_at(&self) -> Moment {
        if matches!(self.phase, Phase::Following | Phase::Superseded) {
            return Moment::NEVER;
        }
        let drains_at = self.drained.wake_at();
        if self.in_flight.is_some() {
            return drains_at;
        }
        let decide_at = match self.phase {
            Phase::Leading { .. } if self.is_informed() && !self.must_read => {
                self.decide_at.max(self.write_from)
            }
            _ => Moment::NEVER,
        };
        let request_at = self.due.min(decide_at).max(self.retry_from);
        drains_at.min(request_at)
    }

    /// Takes an input and returns what to do.
    #[must_use]
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Wake => {}
            Input::Elected(lineage, term, predecessors) => {
                self.predecessors = predecessors;
                self.on_elected(now.moment, lineage, term);
            }
            Input::Ended => self.rest(Phase::Following, &mut outputs),
            Input::Sessions(records) => self.on_sessions(now.moment, records),
            Input::Session(record) => self.on_session(now.moment, *record),
            Input::SessionEnded(incarnation, how) => {
                let restart_max = self.config.restart_max;
                if self.nodes.end(now.moment, incarnation, how, restart_max) {
                    self.nodes_changed(now.moment);
                }
            }
            Input::Read(read) => self.on_read(now.moment, read, &mut outputs),
            Input::Written(written) => self.on_written(now.moment, written, &mut outputs),
            Input::DrainsRead(read) => self.on_drains_read(now.moment, read, &mut outputs),
            Input::DrainsHint => self.drained.hint(now.moment),
            Input::Said => self.saying = Saying::Said,
        }
        self.rest_or_not(now.moment);
        if !matches!(self.phase, Phase::Following | Phase::Superseded) {
            self.request(now, &mut outputs);
            self.watch(&mut outputs);
            self.leave_it_to_others(now.moment, &mut outputs);
        }
        outputs
    }

    // ---- what happens -------------------------------------------------------------------------------

    fn on_elected(&mut self, now: Moment, lineage: Lineage, term: Term) {
        self.lineage = Some(lineage);
        self.phase = Phase::Installing { term, lost: false };
        self.listed = false;
        self.has_assigned_none.clear();
        // Ask again: the last request was of another term, and its answer may have been lost with that.
        self.saying = Saying::NotYet;
        self.is_new = true;
        self.drained.forget(now);
        self.memory = Memory::default();
        self.stored = Stored::Nothing;
        self.must_read = true;
        (self.due, self.retry_from, self.decide_at) = (now, now, now);
        self.unsettled = None;
    }

    /// Nothing more is decided in this term.
    fn rest(&mut self, phase: Phase, outputs: &mut Vec<Output>) {
        self.phase = phase;
        self.stored = Stored::Nothing;
        let watched = std::mem::take(&mut self.watched);
        outputs.extend(watched.into_iter().map(Output::Forget));
    }

    fn on_sessions(&mut self, now: Moment, records: Vec<Record>) {
        let listed: BTreeSet<Incarnation> =
            records.iter().map(|record| record.incarnation).collect();
        let assigned_none = records
            .iter()
            .filter(|it| Part::of(&it.about).has_assigned_none);
        self.has_assigned_none = assigned_none.map(|record| record.incarnation).collect();
        self.nodes.retain_live(&listed);
        for record in records {
            self.on_session(now, record);
        }
        self.listed = true;
        self.decide_at = now;
    }

    fn on_session(&mut self, now: Moment, record: Record) {
        // A caller, not a node: it runs nothing, and watching each would cost a read per heartbeat.
        if record.is_one_shot() {
            return;
        }
        let incarnation = record.incarnation;
        let was_live = self.nodes.live().contains_key(&incarnation);
        if self.nodes.hear(now, record, self.config.restart_max) {
            self.decide_at = now;
            if was_live != self.nodes.live().contains_key(&incarnation) {
                self.nodes_changed(now);
            }
        }
    }

    fn nodes_changed(&mut self, now: Moment) {
        self.decide_at = now;
        // The nodes of the first listing are not news.
        if self.listed {
            let began = self.unsettled.map_or(now, |(began, _)| began);
            self.unsettled = Some((began, now));
        }
    }

    fn on_drains_read(&mut self, now: Moment, read: Read<Drains>, outputs: &mut Vec<Output>) {
        if matches!(read, Read::Unreadable { .. }) {
            outputs.push(Output::Anomaly(Anomaly::DrainsUnreadable));
        }
        let retry = self.random.jitter(self.retry);
        let pause = self.random.jitter(self.pause());
        if self.drained.on_read(now, read, retry, pause) {
            self.decide_at = now;
        }
    }

    fn on_written(&mut self, now: Moment, written: Written, outputs: &mut Vec<Output>) {
        let Some(Flight::Write {
            assignments,
            decisions,
        }) = self.in_flight.take()
        else {
            return;
        };
        let (Phase::Installing { term, .. } | Phase::Leading { term, .. }) = self.phase else {
            return;
        };
        match written {
            // The answer may be to a write of a term that has ended meanwhile: what it stored is not this term's.
            Written::Done(version) if assignments.term == term => {
                self.unsettled_decisions = Some((assignments.writer.counter, decisions));
                self.adopt(now, *assignments, version, outputs);
            }
            Written::NotApplied => self.retry_from = now + self.random.jitter(self.retry),
            // A conflict may be with our own write, whose answer was lost. Only a read tells what is stored, and
            // nothing is decided before.
            Written::Done(_) | Written::Conflict | Written::Unknown => {
                self.unsettled_decisions = Some((assignments.writer.counter, decisions));
                self.must_read = true;
                self.due = now;
            }
        }
        self.decide_at = now;
    }

    // ---- what to do ---------------------------------------------------------------------------------

    fn rest_or_not(&mut self, now: Moment) {
        let has_nothing = match &self.stored {
            Stored::Found { assignments, .. } => {
                assignments.daemons.is_empty() && assignments.holders.is_empty()
            }
            Stored::Nothing | Stored::Missing => false,
        };
        let offers = |record: &Record| !Part::of(&record.about).offers.is_empty();
        let leads = matches!(self.phase, Phase::Leading { .. });
        let is_at_rest = leads
            && has_nothing
            && !self.must_read
            && self.is_informed()
            && !self.nodes.live().values().any(offers);
        if std::mem::replace(&mut self.is_at_rest, is_at_rest) && !is_at_rest {
            // The drains were last read long ago. Read them again, so that nothing is given to a node that is to be
            // kept free by now.
            self.due = now;
            self.drained.forget(now);
        }
    }

    fn pause(&self) -> Duration {
        if self.is_at_rest {
            self.rest
        } else {
            self.heartbeat
        }
    }

    /// Whether enough is known to decide.
    fn is_informed(&self) -> bool {
        self.listed && self.drained.nodes().is_some() && self.saying == Saying::Said
    }

    fn request(&mut self, now: Now, outputs: &mut Vec<Output>) {
        if let Some(known) = self.drained.request(now.moment) {
            outputs.push(Output::ReadDrains { known });
        }
        if self.in_flight.is_some() || now.moment < self.retry_from {
            return;
        }
        if self.must_read {
            if now.moment >= self.due {
                self.in_flight = Some(Flight::Read);
                outputs.push(Output::Read { known: None });
            }
            return;
        }
        match self.phase {
            Phase::Installing { term, lost } => self.take(now, term, lost, outputs),
            Phase::Leading { .. } => {
                if self.is_informed() && now.moment >= self.decide_at.max(self.write_from) {
                    self.write_decisions(now, outputs);
                }
            }
            Phase::Following | Phase::Superseded => {}
        }
        if self.in_flight.is_none() && now.moment >= self.due {
            let known = match &self.stored {
                Stored::Found { version, .. } => Some(version.clone()),
                Stored::Nothing | Stored::Missing => None,
            };
            self.in_flight = Some(Flight::Read);
            outputs.push(Output::Read { known });
        }
    }

    /// Resigns if this node is kept free and a node that is not is a candidate too. It does so only after taking over
    /// the assignments, so that its term is not wasted if nobody else is elected. If the other node cannot be elected
    /// after all, this one is elected again, and then stays for a while.
    fn leave_it_to_others(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        let (Phase::Leading { term, .. }, true, Some(drained)) =
            (self.phase, self.listed, self.drained.nodes())
        else {
            return;
        };
        if !std::mem::take(&mut self.is_new) || !drained.contains(&self.me.node) {
            return;
        }
        let can_decide = |record: &Record| {
            let mut stands = record.about.stands.keys();
            !drained.contains(&record.node)
                && stands.any(|election| election.as_str() == ElectionName::CLUSTER)
                && Part::of(&record.about).going.is_none()
        };
        if now >= self.stays_until && self.nodes.live().values().any(can_decide) {
            self.stays_until = now + self.heartbeat * STAY_HEARTBEATS;
            outputs.push(Output::Resign { term });
        }
    }

    fn decided(&self, now: Moment) -> Option<Decided> {
        let (Phase::Leading { place_from, .. }, Stored::Found { assignments, .. }) =
            (self.phase, &self.stored)
        else {
            return None;
        };
        let mut decided = decide(&Situation {
            now,
            config: &self.config,
            desired: assignments,
            nodes: &self.nodes,
            drained: self.drained.nodes()?,
            memory: &self.memory,
            force_after: self.force_after(now),
            may_place: if now >= place_from {
                MayPlace::Yes
            } else {
                let for_at_most = place_from.since(now);
                MayPlace::Not { for_at_most }
            },
            may_balance: now >= self.balance_from(),
        });
        for from in [place_from, self.balance_from()] {
            if now < from {
                decided.again_at = decided.again_at.min(from);
            }
        }
        Some(decided)
    }

    fn write_decisions(&mut self, now: Now, outputs: &mut Vec<Output>) {
        if let Stored::Found { assignments, .. } = &self.stored {
            let reported = reported(assignments, &self.nodes);
            self.memory.observe(now.moment, assignments, &reported);
        }
        if now.moment >= self.balance_from() {
            self.unsettled = None;
        }
        let Some(decided) = self.decided(now.moment) else {
            return;
        };
        self.decide_at = decided.again_at;
        let mut decisions = decided.decisions;
        decisions.retain(Decision::changes);
        // Reports come one by one, and most need no pass of their own.
        self.write_from = now.moment + self.config.cycle / 10;
        let Stored::Found {
            assignments,
            version,
        } = &self.stored
        else {
            return;
        };
        let recovering = self.is_recovering(now.moment);
        let forgets_in = desired::forgets_in(assignments, now.wall);
        // Written even if there is nothing else to write: otherwise the next leader would wait once more, and people
        // would take a running shard for a failing one.
        let is_news =
            (assignments.recovering && !recovering) || forgets_in.is_some_and(|it| it.is_zero());
        if let Some(forgets_in) = forgets_in {
            self.decide_at = self.decide_at.min(now.moment + forgets_in);
        }
        if decisions.is_empty() && !is_news {
            self.noting_since = None;
            return;
        }
        if decisions.iter().all(Decision::can_wait) && !is_news {
            let since = *self.noting_since.get_or_insert(now.moment);
            let note_at = since + self.config.cycle * NOTE_CYCLES;
            if now.moment < note_at {
                self.decide_at = self.decide_at.min(note_at);
                return;
            }
        }
        // Fails if a newer leader has put its term on the assignments since.
        let expect = Expect::Version(version.clone());
        self.memory
            .learn(now.moment, &self.config, assignments, &decisions);
        let mut next = desired::apply(assignments, &decisions, now.wall);
        next.drain_timeout = self.config.drain_timeout;
        next.force_after = self.force_after(now.moment);
        next.recovering = recovering;
        self.write(now, next, expect, decisions, outputs);
    }

    fn write(
        &mut self,
        now: Now,
        mut assignments: Assignments,
        expect: Expect,
        decisions: Vec<Decision>,
        outputs: &mut Vec<Output>,
    ) {
        // Makes this write unlike any other, so that a read after a lost answer shows whether it was applied.
        self.writes += 1;
        assignments.writer = self.writer(now.nonce);
        // Kept even if the write is lost: it may still be applied, and no generation may be given out twice.
        self.generation = self.generation.max(assignments.generation);
        self.noting_since = None;
        self.write_from = now.moment + self.config.cycle;
        let assignments = Box::new(assignments);
        self.in_flight = Some(Flight::Write {
            assignments: assignments.clone(),
            decisions,
        });
        outputs.push(Output::Write {
            assignments,
            expect,
        });
    }

    fn writer(&self, nonce: Nonce) -> Writer {
        Writer {
            incarnation: self.me.incarnation,
            counter: self.writes,
            nonce,
        }
    }

    /// How long after a revoke no node trusts itself with the shard: by the drain timeout that it has
    /// seen, and that may have been an older and longer one.
    fn force_after(&self, now: Moment) -> Duration {
        match self.phase {
            Phase::Leading {
                longer: (longer, until),
                ..
            } if now < until => longer.max(self.config.drain_timeout),
            _ => self.config.drain_timeout,
        }
    }

    /// Whether nodes may still run shards by assignments that were lost.
    fn is_recovering(&self, now: Moment) -> bool {
        matches!(self.phase, Phase::Leading { place_from, .. } if now < place_from)
    }

    /// From when on work may be moved for balance.
    fn balance_from(&self) -> Moment {
        let settle = self.config.settle;
        self.unsettled.map_or(Moment::default(), |(began, last)| {
            (last + settle).min(began + settle * SETTLE_MAX)
        })
    }

    /// Watches every live session, and every session that holds something and has not ended.
    fn watch(&mut self, outputs: &mut Vec<Output>) {
        let holders = match &self.stored {
            Stored::Found { assignments, .. } => Some(&assignments.holders),
            Stored::Nothing | Stored::Missing => None,
        };
        let nodes = &self.nodes;
        self.watched.retain(|&incarnation| {
            let held = holders.is_some_and(|holders| holders.contains_key(&incarnation));
            let keep = nodes.live().contains_key(&incarnation)
                || (held && nodes.ended(incarnation).is_none());
            if !keep {
                outputs.push(Output::Forget(incarnation));
            }
            keep
        });
        for record in nodes.live().values() {
            if self.watched.insert(record.incarnation) {
                outputs.push(Output::Watch(record.holder()));
            }
        }
        for holder in holders.into_iter().flat_map(|holders| holders.values()) {
            if nodes.ended(holder.incarnation).is_none() && self.watched.insert(holder.incarnation)
            {
                outputs.push(Output::Watch(holder.clone()));
            }
        }
    }
}

/// What a leader would do and why, from what is stored: for processes that do not lead. Timeouts and failures
/// are in the leader's memory and not known here.
#[must_use]
pub fn plan(
    now: Moment,
    config: &Config,
    assignments: &Assignments,
    sessions: Vec<Record>,
    drained: &BTreeSet<NodeId>,
) -> Vec<Decision> {
    let mut nodes = Nodes::default();
    for record in sessions {
        nodes.hear(now, record, config.restart_max);
    }
    let situation = Situation {
        now,
        config,
        desired: assignments,
        nodes: &nodes,
        drained,
        memory: &Memory::default(),
        force_after: assignments.force_after,
        may_place: if assignments.recovering {
            let for_at_most = assignments.force_after;
            MayPlace::Not { for_at_most }
        } else {
            MayPlace::Yes
        },
        may_balance: true,
    };
    decide(&situation).decisions
}
