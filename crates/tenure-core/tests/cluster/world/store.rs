//! The store of the world: what can be asked of it, what it answers, late or never, and who is told of a change.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::cluster::agent;
use tenure_core::cluster::assigner;
use tenure_core::cluster::{Assignments, Drains};
use tenure_core::session::{Holder, Record};
use tenure_core::{Expect, Incarnation, Read, Version, Written};

use super::{Event, TIMEOUT, World};

#[derive(Default)]
pub(super) struct Store {
    pub(super) versions: u64,
    pub(super) sessions: BTreeMap<Incarnation, (Record, Version)>,
    pub(super) assignments: Option<(Vec<u8>, Version)>,
    pub(super) drains: Option<(Drains, Version)>,
}

#[derive(Debug, Clone)]
pub(super) enum Ask {
    WriteSession(Box<Record>, Expect),
    ReadSession(Incarnation),
    Evict(Box<Record>, Expect),
    Observe(Holder, Option<Version>),
    Look(Option<Version>),
    ReadAssignments(Option<Version>),
    WriteAssignments(Vec<u8>, Expect),
    ReadDrains(Option<Version>),
    List,
}

#[derive(Debug, Clone)]
pub(super) enum Told {
    SessionWritten(Written),
    SessionRead(Read<Record>),
    Evicted(Incarnation, Written),
    Observed(Incarnation, Read<Record>),
    Looked(Read<Assignments>),
    AssignmentsRead(Read<Assignments>),
    AssignmentsWritten(Written),
    DrainsRead(Read<Drains>),
    Listed(Option<Vec<Record>>),
}

impl World {
    pub(super) fn ask(&mut self, node: usize, ask: Ask) {
        let who = self.who(node);
        let quick = Duration::from_millis(1 + self.random.below(20));
        if self.now < self.faults.outage_until {
            let told = failed(&ask, Written::NotApplied);
            self.push(quick, Event::Answer(who, told));
        } else if self.random.percent(self.faults.lost_answers) {
            let told = failed(&ask, Written::Unknown);
            self.push(TIMEOUT, Event::Answer(who, told));
            // Carried out at once, late, or never.
            let late = Duration::from_millis(self.random.below(8000));
            match self.random.below(3) {
                0 => self.push(quick, Event::Apply(who, ask, None)),
                1 => self.push(late, Event::Apply(who, ask, None)),
                _ => {}
            }
        } else if self.random.percent(self.faults.slow_answers) {
            // Looks have no timeout here: they may come very late indeed.
            let most = match ask {
                Ask::Look(_) | Ask::List => 40_000,
                _ => 900,
            };
            let (before, after) = (self.random.below(most), self.random.below(most));
            let (before, after) = (Duration::from_millis(before), Duration::from_millis(after));
            self.push(before, Event::Apply(who, ask, Some(after)));
        } else {
            self.push(quick, Event::Apply(who, ask, Some(quick)));
        }
    }

    pub(super) fn apply(&mut self, ask: Ask) -> Told {
        match ask {
            Ask::WriteSession(record, expect) => {
                Told::SessionWritten(self.write_session(&record, &expect))
            }
            Ask::Evict(record, expect) => {
                let incarnation = record.incarnation;
                Told::Evicted(incarnation, self.write_session(&record, &expect))
            }
            Ask::ReadSession(incarnation) => {
                Told::SessionRead(read(self.store.sessions.get(&incarnation), None))
            }
            Ask::Observe(holder, known) => {
                let found = self.store.sessions.get(&holder.incarnation);
                Told::Observed(holder.incarnation, read(found, known.as_ref()))
            }
            Ask::Look(known) => Told::Looked(self.read_assignments(known.as_ref())),
            Ask::ReadAssignments(known) => {
                Told::AssignmentsRead(self.read_assignments(known.as_ref()))
            }
            Ask::WriteAssignments(bytes, expect) => {
                let current = self.store.assignments.as_ref().map(|(_, version)| version);
                let written = self.store.versions.checked_add(1).unwrap();
                if !expects(&expect, current) {
                    return Told::AssignmentsWritten(Written::Conflict);
                }
                self.store.versions = written;
                let version = Version::new(written.to_string());
                let assignments = Assignments::decode(&bytes).unwrap();
                let writer = assignments.writer.incarnation;
                self.installed.insert((assignments.term, writer));
                self.store.assignments = Some((bytes, version.clone()));
                self.assignment_writes += 1;
                self.hint_agents();
                Told::AssignmentsWritten(Written::Done(version))
            }
            Ask::ReadDrains(known) => {
                Told::DrainsRead(read(self.store.drains.as_ref(), known.as_ref()))
            }
            Ask::List => {
                let records = self.store.sessions.values();
                Told::Listed(Some(records.map(|(record, _)| record.clone()).collect()))
            }
        }
    }

    pub(super) fn write_session(&mut self, record: &Record, expect: &Expect) -> Written {
        let current = self.store.sessions.get(&record.incarnation);
        if !expects(expect, current.map(|(_, version)| version)) {
            return Written::Conflict;
        }
        self.store.versions += 1;
        let version = Version::new(self.store.versions.to_string());
        // What is stored is what can be read back.
        let record = Record::decode(&record.encode()).unwrap();
        let stored = (record.clone(), version.clone());
        self.store.sessions.insert(record.incarnation, stored);
        self.hint_leaders(&record);
        Written::Done(version)
    }

    pub(super) fn read_assignments(&self, known: Option<&Version>) -> Read<Assignments> {
        let found = self.store.assignments.as_ref();
        let decoded = found.map(|(bytes, version)| {
            let assignments = Assignments::decode(bytes).unwrap();
            (assignments, version.clone())
        });
        read(decoded.as_ref(), known)
    }

    /// Most hints arrive.
    pub(super) fn hint_agents(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].up
                && self.now >= self.nodes[node].paused_until
                && self.random.percent(80)
            {
                self.step_agent(node, agent::Input::Hint);
            }
        }
    }

    pub(super) fn hint_leaders(&mut self, record: &Record) {
        for node in 0..self.nodes.len() {
            let it = &self.nodes[node];
            let leads = it.up && it.leads.is_some() && self.now >= it.paused_until;
            if leads && self.random.percent(80) {
                let input = assigner::Input::Session(Box::new(record.clone()));
                self.step_assigner(node, input);
            }
        }
    }
}

/// How a request ends that was not answered.
pub(super) fn failed(ask: &Ask, written: Written) -> Told {
    match ask {
        Ask::WriteSession(..) => Told::SessionWritten(written),
        Ask::ReadSession(_) => Told::SessionRead(Read::Failed),
        Ask::Evict(record, _) => Told::Evicted(record.incarnation, written),
        Ask::Observe(holder, _) => Told::Observed(holder.incarnation, Read::Failed),
        Ask::Look(_) => Told::Looked(Read::Failed),
        Ask::ReadAssignments(_) => Told::AssignmentsRead(Read::Failed),
        Ask::WriteAssignments(..) => Told::AssignmentsWritten(written),
        Ask::ReadDrains(_) => Told::DrainsRead(Read::Failed),
        Ask::List => Told::Listed(None),
    }
}

pub(super) fn expects(expect: &Expect, current: Option<&Version>) -> bool {
    match expect {
        Expect::Absent => current.is_none(),
        Expect::Version(version) => current == Some(version),
    }
}

pub(super) fn read<T: Clone>(found: Option<&(T, Version)>, known: Option<&Version>) -> Read<T> {
    match found {
        None => Read::Missing,
        Some((_, version)) if known == Some(version) => Read::Unchanged { age: None },
        Some((record, version)) => Read::Found {
            record: record.clone(),
            version: version.clone(),
            age: None,
        },
    }
}
