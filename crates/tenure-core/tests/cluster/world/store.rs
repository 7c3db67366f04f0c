//! The store of the world: what it answers, late or never, and who gets a hint of a change.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::cluster::registry::Listed;
use tenure_core::cluster::{Assignments, Drains, member};
use tenure_core::node::{Answer, Input, Request, Ticket};
use tenure_core::session::Record;
use tenure_core::{Expect, Incarnation, Read, Version, Written};

use super::{Event, World};

#[derive(Default)]
pub(super) struct Store {
    pub(super) versions: u64,
    pub(super) sessions: BTreeMap<Incarnation, (Record, Version)>,
    pub(super) assignments: Option<(Vec<u8>, Version)>,
    pub(super) drains: Option<(Drains, Version)>,
}

impl World {
    pub(super) fn ask(&mut self, node: usize, ticket: Ticket, request: Request, within: Duration) {
        let who = self.who(node);
        // A process that is stopped sends nothing before it goes on.
        let held = self.nodes[node].paused_until.saturating_sub(self.now);
        let quick = Duration::from_millis(1 + self.random.below(20));
        if self.now < self.faults.outage_until {
            let answer = request.unanswered(Written::NotApplied);
            self.push(held + quick, Event::Answer(who, ticket, answer));
        } else if self.random.percent(self.faults.lost_answers) {
            let answer = request.unanswered(Written::Unknown);
            self.push(held + within, Event::Answer(who, ticket, answer));
            // Carried out at once, late, or never.
            let late = Duration::from_millis(self.random.below(8000));
            match self.random.below(3) {
                0 => self.push(held + quick, Event::Apply(who, request, None)),
                1 => self.push(held + late, Event::Apply(who, request, None)),
                _ => {}
            }
        } else if self.random.percent(self.faults.slow_answers) {
            // Looks have no timeout here: they may come very late.
            let most = match request {
                Request::Look { .. } | Request::ListSessions => 40_000,
                _ => 900,
            };
            let (before, after) = (self.random.below(most), self.random.below(most));
            let (before, after) = (Duration::from_millis(before), Duration::from_millis(after));
            let asked = Event::Apply(who, request, Some((ticket, after)));
            self.push(held + before, asked);
        } else {
            let asked = Event::Apply(who, request, Some((ticket, quick)));
            self.push(held + quick, asked);
        }
    }

    pub(super) fn apply(&mut self, request: Request) -> Answer {
        match request {
            Request::WriteSession { record, expect } => {
                Answer::Written(self.write_session(&record, &expect))
            }
            Request::ReadSession { holder, known } => {
                let found = self.store.sessions.get(&holder.incarnation);
                Answer::Session(read(found, known.as_ref()))
            }
            Request::Look { known } | Request::ReadAssignments { known } => {
                let found = self.store.assignments.as_ref();
                let decoded = found.map(|(bytes, version)| {
                    let assignments = Assignments::decode(bytes).unwrap();
                    (assignments, version.clone())
                });
                Answer::Assignments(read(decoded.as_ref(), known.as_ref()))
            }
            Request::WriteAssignments {
                assignments,
                expect,
            } => Answer::Written(self.write_assignments(&assignments, &expect)),
            Request::ReadDrains { known } => {
                Answer::Drains(read(self.store.drains.as_ref(), known.as_ref()))
            }
            Request::ListSessions => {
                let sessions = self.store.sessions.values();
                let listed = sessions.map(|(record, version)| Listed {
                    node: record.node.clone(),
                    incarnation: record.incarnation,
                    version: version.clone(),
                });
                Answer::Sessions(Some(listed.collect()))
            }
            Request::DeleteSession { holder } => {
                self.store.sessions.remove(&holder.incarnation);
                Answer::Deleted
            }
            Request::ReadLease { .. }
            | Request::WriteLease { .. }
            | Request::ReadFence { .. }
            | Request::WriteFence { .. } => {
                panic!("there are no elections in this world: {request:?}")
            }
        }
    }

    fn write_assignments(&mut self, assignments: &Assignments, expect: &Expect) -> Written {
        let current = self.store.assignments.as_ref().map(|(_, version)| version);
        if !expects(expect, current) {
            return Written::Conflict;
        }
        let version = self.store.next_version();
        let writer = assignments.writer.incarnation;
        self.installed.insert((assignments.term, writer));
        self.store.assignments = Some((assignments.encode(), version.clone()));
        self.assignment_writes += 1;
        self.hint(&member::Input::HintAssignments, false);
        Written::Done(version)
    }

    fn write_session(&mut self, record: &Record, expect: &Expect) -> Written {
        let current = self.store.sessions.get(&record.incarnation);
        if !expects(expect, current.map(|(_, version)| version)) {
            return Written::Conflict;
        }
        let version = self.store.next_version();
        // Encode and decode it, so that what is stored is what can be read back.
        let record = Record::decode(&record.encode()).unwrap();
        let hint = member::Input::HintSession(record.node.clone(), record.incarnation);
        let stored = (record, version.clone());
        self.store.sessions.insert(stored.0.incarnation, stored);
        self.hint(&hint, true);
        Written::Done(version)
    }

    /// Most hints arrive.
    fn hint(&mut self, hint: &member::Input, only_leaders: bool) {
        for node in 0..self.nodes.len() {
            let it = &self.nodes[node];
            let listens = it.up && self.now >= it.paused_until;
            let arrives = listens && (it.leads.is_some() || !only_leaders);
            if arrives && self.random.percent(80) {
                self.tell(node, [Input::Cluster(hint.clone())]);
            }
        }
    }
}

impl Store {
    pub(super) fn next_version(&mut self) -> Version {
        self.versions += 1;
        Version::new(self.versions.to_string())
    }
}

fn expects(expect: &Expect, current: Option<&Version>) -> bool {
    match expect {
        Expect::Absent => current.is_none(),
        Expect::Version(version) => current == Some(version),
    }
}

fn read<T: Clone>(found: Option<&(T, Version)>, known: Option<&Version>) -> Read<T> {
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
