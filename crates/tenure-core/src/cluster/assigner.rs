//! The leader's part: reads the assignments, puts its term on them, and from then on decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::decide::{Decided, Outlook, decide, reported};
use super::drained::Drained;
use super::memory::Memory;
use super::nodes::Nodes;
use super::plan::Decision;
use super::record::{Assignments, Drains, Generation};
use super::{Config, desired};
use crate::election::{Term, Writer};
use crate::random::Random;
use crate::session::observer::End;
use crate::session::{self, Holder, Record};
use crate::{Expect, Incarnation, Moment, NodeId, Now, Read, Version, Wall, Written};

/// The machine. One request for each of its two objects is in flight at most; the driver answers each
/// with one input.
#[derive(Debug, Clone)]
pub struct Assigner {
    config: Config,
    /// How often to look, and how soon to try again.
    heartbeat: Duration,
    retry: Duration,
    random: Random,
    me: Holder,
    phase: Phase,
    nodes: Nodes,
    /// A whole listing of the sessions was taken in this term.
    listed: bool,
    /// The sessions whose end the driver is to tell.
    watched: BTreeSet<Incarnation>,
    drained: Drained,
    memory: Memory,
    /// The assignments as they stand in the store, and the version they stand at.
    stored: Stored,
    in_flight: Option<Flight>,
    /// What was decided in a write whose answer was lost, by its counter.
    unsettled_decisions: Option<(u64, Vec<Decision>)>,
    /// How many times this process wrote, so that each write differs.
    writes: u64,
    /// The highest generation that this process ever tried to give out.
    generation: Generation,
    /// After a conflict or a lost answer nothing is written before the assignments were read.
    must_read: bool,
    /// When to look at the assignments next.
    due: Moment,
    /// After a failure nothing is sent before then.
    retry_from: Moment,
    /// The next write starts then at the earliest.
    write_from: Moment,
    /// When to decide again if nothing happens.
    decide_at: Moment,
    /// Since when there is something to note down that can wait.
    noting_since: Option<Moment>,
    /// When nodes last came or went, and when that began.
    unsettled: Option<(Moment, Moment)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Somebody else decides.
    Following,
    /// This process leads, but the assignments do not say so yet.
    Taking { term: Term, lost: bool },
    /// The assignments carry this term.
    Leading {
        term: Term,
        /// Nodes may still run by assignments that nobody knows; nothing is given out before then.
        place_from: Moment,
        /// A longer drain timeout of another leader, and until when somebody may go by it.
        longer: (Duration, Moment),
    },
    /// The assignments carry a newer term.
    Superseded,
}

#[derive(Debug, Clone)]
enum Stored {
    Nothing,
    Missing,
    Found {
        assignments: Box<Assignments>,
        version: Version,
    },
}

#[derive(Debug, Clone)]
enum Flight {
    Read,
    Write {
        assignments: Box<Assignments>,
        decisions: Vec<Decision>,
    },
}

/// What happens to an assigner.
#[derive(Debug, Clone)]
pub enum Input {
    /// Time has passed.
    Wake,
    /// This process leads the default election of the namespace. List the sessions now.
    Elected(Term),
    /// It does not lead any more.
    Ended,
    /// Every session object there is, alive or not, listed after [`Input::Elected`].
    Sessions(Vec<Record>),
    /// One session object.
    Session(Box<Record>),
    /// A session that was watched has ended.
    SessionEnded(Incarnation, End),
    /// The answer to [`Output::Read`].
    Read(Read<Assignments>),
    /// The answer to [`Output::Write`].
    Written(Written),
    /// The answer to [`Output::ReadDrains`].
    DrainsRead(Read<Drains>),
    /// The drains may have changed.
    DrainsHint,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Read the assignments, only if they are no longer at the known version.
    Read {
        /// The version that is known.
        known: Option<Version>,
    },
    /// Write the assignments.
    Write {
        /// What to write.
        assignments: Box<Assignments>,
        /// What must be there.
        expect: Expect,
    },
    /// Read the drains, only if they are no longer at the known version.
    ReadDrains {
        /// The version that is known.
        known: Option<Version>,
    },
    /// Watch this session, evict it when that is allowed, and tell when it has ended.
    Watch(Holder),
    /// Watch it no longer.
    Forget(Incarnation),
    /// The assignments carry this term: from now on this process decides.
    Installed {
        /// The term.
        term: Term,
    },
    /// These decisions stand in the store.
    Decided(Vec<Decision>),
    /// A newer leader has written the assignments; nothing more comes in this term.
    Superseded {
        /// Its term.
        by: Term,
    },
    /// Something that should not happen, for people.
    Anomaly(Anomaly),
}

/// Something that should not happen: people should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anomaly {
    /// The assignments were deleted. They are made anew from what the nodes report.
    AssignmentsMissing,
    /// The assignments are older than what this leader wrote: restored from a copy.
    AssignmentsRestored,
    /// The assignments cannot be read by this version, so nothing is decided.
    AssignmentsUnreadable,
    /// The drains cannot be read by this version; the last that were known count.
    DrainsUnreadable,
}

/// Notes that can wait are written down after this many cycles, or with the next decision.
const NOTE_CYCLES: u32 = 6;

/// Balance waits for nodes to come to rest, but not for ever: this many times the time to settle.
const SETTLE_MAX: u32 = 10;

/// If the assignments are lost, generations go on above the term times this, and above everything that is
/// reported. A term would have to give out a million to reach it.
const GENERATIONS_PER_TERM: u64 = 1 << 20;

impl Assigner {
    /// An assigner of a process that does not lead yet.
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
            retry: session.retry(),
            random: Random::from_seed(seed),
            me,
            phase: Phase::Following,
            nodes: Nodes::default(),
            listed: false,
            watched: BTreeSet::new(),
            drained: Drained::new(now),
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
        }
    }

    /// What is desired, as far as this process knows; `None` if it does not lead.
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

    /// Takes an input and says what to do about it.
    #[must_use]
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Wake => {}
            Input::Elected(term) => self.on_elected(now.moment, term),
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
        }
        if !matches!(self.phase, Phase::Following | Phase::Superseded) {
            self.request(now, &mut outputs);
            self.watch(&mut outputs);
        }
        outputs
    }

    // ---- what happens -------------------------------------------------------------------------------

    fn on_elected(&mut self, now: Moment, term: Term) {
        self.phase = Phase::Taking { term, lost: false };
        self.listed = false;
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
        self.nodes.retain_live(&listed);
        for record in records {
            self.on_session(now, record);
        }
        self.listed = true;
        self.decide_at = now;
    }

    fn on_session(&mut self, now: Moment, record: Record) {
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
        let pause = self.random.jitter(self.heartbeat);
        if self.drained.on_read(now, read, retry, pause) {
            self.decide_at = now;
        }
    }

    fn on_read(&mut self, now: Moment, read: Read<Assignments>, outputs: &mut Vec<Output>) {
        if !matches!(self.in_flight.take(), Some(Flight::Read)) {
            return;
        }
        self.due = now + self.random.jitter(self.heartbeat);
        match read {
            Read::Failed => {
                self.due = now + self.random.jitter(self.retry);
                return;
            }
            Read::Unreadable { .. } => {
                // It may be newer than this version: never write over it.
                self.must_read = true;
                outputs.push(Output::Anomaly(Anomaly::AssignmentsUnreadable));
                return;
            }
            Read::Unchanged { .. } if matches!(self.stored, Stored::Nothing) => {
                // The answer to a question of an earlier term.
                self.due = now;
                return;
            }
            Read::Unchanged { .. } => {}
            Read::Missing => self.on_missing(outputs),
            Read::Found {
                record, version, ..
            } => self.on_found(now, record, version, outputs),
        }
        self.must_read = false;
    }

    fn on_missing(&mut self, outputs: &mut Vec<Output>) {
        match self.phase {
            Phase::Taking { term, lost } => {
                // Nobody led before the first term, so nobody can have lost anything then.
                let lost = lost || term > Term(1);
                self.phase = Phase::Taking { term, lost };
                self.stored = Stored::Missing;
            }
            Phase::Leading { term, .. } => {
                outputs.push(Output::Anomaly(Anomaly::AssignmentsMissing));
                self.phase = Phase::Taking { term, lost: true };
                self.stored = Stored::Missing;
            }
            Phase::Following | Phase::Superseded => {}
        }
    }

    fn on_found(
        &mut self,
        now: Moment,
        found: Assignments,
        version: Version,
        outputs: &mut Vec<Output>,
    ) {
        let (Phase::Taking { term, .. } | Phase::Leading { term, .. }) = self.phase else {
            return;
        };
        let is_mine = found.term == term && found.writer.incarnation == self.me.incarnation;
        if found.term >= term && !is_mine {
            outputs.push(Output::Superseded { by: found.term });
            self.rest(Phase::Superseded, outputs);
            return;
        }
        let newest = match &self.stored {
            Stored::Found { assignments, .. } if assignments.term == term => {
                assignments.writer.counter
            }
            _ => 0,
        };
        if is_mine && found.writer.counter >= newest {
            // Whatever of ours has landed is what is desired.
            self.adopt(now, found, version, outputs);
        } else if newest > 0 {
            outputs.push(Output::Anomaly(Anomaly::AssignmentsRestored));
            self.phase = Phase::Taking { term, lost: true };
            self.restored(&found, version);
        } else {
            self.stored = Stored::Found {
                assignments: Box::new(found),
                version,
            };
        }
    }

    /// What this leader wrote was overwritten with something older. Nodes go by what they saw last, and
    /// that is what this leader wrote; only the place to write it to has changed.
    fn restored(&mut self, found: &Assignments, place: Version) {
        if let Stored::Found {
            assignments,
            version,
        } = &mut self.stored
        {
            assignments.generation = assignments.generation.max(found.generation);
            assignments.force_after = assignments.force_after.max(found.force_after);
            *version = place;
        }
    }

    /// This is what stands in the store, written by this process in this term.
    fn adopt(
        &mut self,
        now: Moment,
        assignments: Assignments,
        version: Version,
        outputs: &mut Vec<Output>,
    ) {
        if let Phase::Taking { term, lost } = self.phase {
            let wait = if lost {
                // Nodes may have seen something else meanwhile: everything starts to count now.
                self.memory.forget_timers();
                assignments.force_after
            } else {
                Duration::ZERO
            };
            self.phase = Phase::Leading {
                term,
                place_from: now + wait,
                longer: (assignments.force_after, now + assignments.force_after),
            };
            outputs.push(Output::Installed { term });
        }
        if let Some((counter, decisions)) = self.unsettled_decisions.take()
            && counter == assignments.writer.counter
            && !decisions.is_empty()
        {
            outputs.push(Output::Decided(decisions));
        }
        self.nodes
            .forget_ended(|incarnation| assignments.holders.contains_key(&incarnation));
        self.memory
            .observe(now, &assignments, &reported(&assignments, &self.nodes));
        self.stored = Stored::Found {
            assignments: Box::new(assignments),
            version,
        };
        self.decide_at = now;
    }

    fn on_written(&mut self, now: Moment, written: Written, outputs: &mut Vec<Output>) {
        let Some(Flight::Write {
            assignments,
            decisions,
        }) = self.in_flight.take()
        else {
            return;
        };
        let (Phase::Taking { term, .. } | Phase::Leading { term, .. }) = self.phase else {
            return;
        };
        match written {
            // The answer may be to a write of a term that has ended meanwhile.
            Written::Done(version) if assignments.term == term => {
                self.unsettled_decisions = Some((assignments.writer.counter, decisions));
                self.adopt(now, *assignments, version, outputs);
            }
            Written::NotApplied => self.retry_from = now + self.random.jitter(self.retry),
            Written::Done(_) | Written::Conflict | Written::Unknown => {
                self.unsettled_decisions = Some((assignments.writer.counter, decisions));
                self.must_read = true;
                self.due = now;
            }
        }
        self.decide_at = now;
    }

    // ---- what to do ---------------------------------------------------------------------------------

    /// Whether enough is known to decide.
    fn is_informed(&self) -> bool {
        self.listed && self.drained.nodes().is_some()
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
            Phase::Taking { term, lost } => self.take(now, term, lost, outputs),
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

    /// Puts the term on the assignments, unchanged, so that an older leader's next write fails.
    fn take(&mut self, now: Now, term: Term, lost: bool, outputs: &mut Vec<Output>) {
        let (base, expect) = match &self.stored {
            Stored::Nothing => return,
            Stored::Found {
                assignments,
                version,
            } => ((**assignments).clone(), Expect::Version(version.clone())),
            // What is lost is made anew from what the nodes report, so they must have been listed.
            Stored::Missing if !self.listed => return,
            Stored::Missing => (self.made_anew(now.wall, term, lost), Expect::Absent),
        };
        let drain_timeout = self.config.drain_timeout;
        let assignments = Assignments {
            term,
            drain_timeout,
            force_after: base.force_after.max(drain_timeout),
            generation: base.generation.max(self.generation),
            ..base
        };
        self.write(now, assignments, expect, Vec::new(), outputs);
    }

    /// Assignments from what live nodes report.
    fn made_anew(&self, at: Wall, term: Term, lost: bool) -> Assignments {
        let floor = if lost {
            term.0.saturating_mul(GENERATIONS_PER_TERM)
        } else {
            0
        };
        let blank = Assignments {
            term,
            writer: self.writer(),
            generation: Generation(floor),
            drain_timeout: self.config.drain_timeout,
            force_after: self.config.drain_timeout,
            holders: BTreeMap::new(),
            daemons: BTreeMap::new(),
        };
        desired::adopt_reports(blank, self.nodes.live().values(), at)
    }

    fn decided(&self, now: Moment) -> Option<Decided> {
        let (Phase::Leading { place_from, .. }, Stored::Found { assignments, .. }) =
            (self.phase, &self.stored)
        else {
            return None;
        };
        let mut decided = decide(&Outlook {
            now,
            config: &self.config,
            desired: assignments,
            nodes: &self.nodes,
            drained: self.drained.nodes()?,
            memory: &self.memory,
            force_after: self.force_after(now),
            may_place: now >= place_from,
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
        // Reports come one by one; a pass that finds nothing to do need not be made for each.
        self.write_from = now.moment + self.config.cycle / 10;
        if decisions.is_empty() {
            self.noting_since = None;
            return;
        }
        if decisions.iter().all(Decision::can_wait) {
            let since = *self.noting_since.get_or_insert(now.moment);
            let note_at = since + self.config.cycle * NOTE_CYCLES;
            if now.moment < note_at {
                self.decide_at = self.decide_at.min(note_at);
                return;
            }
        }
        let Stored::Found {
            assignments,
            version,
        } = &self.stored
        else {
            return;
        };
        let expect = Expect::Version(version.clone());
        self.memory
            .learn(now.moment, &self.config, assignments, &decisions);
        let mut next = desired::apply(assignments, &decisions, now.wall);
        next.drain_timeout = self.config.drain_timeout;
        next.force_after = self.force_after(now.moment);
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
        self.writes += 1;
        assignments.writer = self.writer();
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

    fn writer(&self) -> Writer {
        Writer {
            incarnation: self.me.incarnation,
            counter: self.writes,
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

    /// When work may be moved for balance.
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

/// What a leader would do and why, from what is stored: for whoever does not lead. Timeouts and failures
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
    let outlook = Outlook {
        now,
        config,
        desired: assignments,
        nodes: &nodes,
        drained,
        memory: &Memory::default(),
        force_after: assignments.force_after,
        may_place: true,
        may_balance: true,
    };
    decide(&outlook).decisions
}
