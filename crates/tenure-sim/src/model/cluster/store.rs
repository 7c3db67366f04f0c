//! The store with the cluster's three kinds of objects. Records are shared and not encoded, since a state is copied
//! at every step.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::cluster::registry::Listed;
use tenure_core::cluster::{Assignments, Drains};
use tenure_core::node::{Answer, Request};
use tenure_core::session::Record;
use tenure_core::{Expect, Incarnation, Read, Version, Written};

type Stored<T> = (Arc<T>, Version);

#[derive(Debug, Clone, Default, Hash)]
pub(super) struct Store {
    versions: u64,
    pub(super) sessions: BTreeMap<Incarnation, Stored<Record>>,
    pub(super) assignments: Option<Stored<Assignments>>,
    pub(super) drains: Option<Stored<Drains>>,
}

impl Store {
    pub(super) fn execute(&mut self, request: &Request) -> Answer {
        match request {
            Request::WriteSession { record, expect } => {
                Answer::Written(self.write_session(record, expect))
            }
            Request::ReadSession { holder, known } => {
                let found = self.sessions.get(&holder.incarnation);
                Answer::Session(read(found, known.as_ref()))
            }
            Request::Look { known } | Request::ReadAssignments { known } => {
                Answer::Assignments(read(self.assignments.as_ref(), known.as_ref()))
            }
            Request::WriteAssignments {
                assignments,
                expect,
            } => {
                if !fits(expect, self.assignments.as_ref()) {
                    return Answer::Written(Written::Conflict);
                }
                let version = self.next_version();
                let stored = Assignments::clone(assignments);
                self.assignments = Some((Arc::new(stored), version.clone()));
                Answer::Written(Written::Done(version))
            }
            Request::ReadDrains { known } => {
                Answer::Drains(read(self.drains.as_ref(), known.as_ref()))
            }
            Request::ListSessions => {
                let listed = self.sessions.values().map(|(record, version)| Listed {
                    node: record.node.clone(),
                    incarnation: record.incarnation,
                    version: version.clone(),
                });
                Answer::Sessions(Some(listed.collect()))
            }
            Request::DeleteSession { holder } => {
                self.sessions.remove(&holder.incarnation);
                Answer::Deleted
            }
            Request::ReadLease { .. }
            | Request::WriteLease { .. }
            | Request::ReadFence { .. }
            | Request::WriteFence { .. } => {
                unreachable!("there are no elections in this model: {request:?}")
            }
        }
    }

    /// Whether a write could still be applied later, if nothing is deleted.
    pub(super) fn can_apply(&self, request: &Request) -> bool {
        match request {
            Request::WriteSession { record, expect } => {
                fits(expect, self.sessions.get(&record.incarnation))
            }
            Request::WriteAssignments { expect, .. } => fits(expect, self.assignments.as_ref()),
            Request::DeleteSession { holder } => self.sessions.contains_key(&holder.incarnation),
            _ => false,
        }
    }

    pub(super) fn overwrite_drains(&mut self, drains: Drains) {
        let version = self.next_version();
        self.drains = Some((Arc::new(drains), version));
    }

    fn write_session(&mut self, record: &Record, expect: &Expect) -> Written {
        if !fits(expect, self.sessions.get(&record.incarnation)) {
            return Written::Conflict;
        }
        let version = self.next_version();
        let stored = (Arc::new(record.clone()), version.clone());
        self.sessions.insert(record.incarnation, stored);
        Written::Done(version)
    }

    fn next_version(&mut self) -> Version {
        self.versions += 1;
        Version::new(self.versions.to_string())
    }
}

fn fits<T>(expect: &Expect, current: Option<&Stored<T>>) -> bool {
    match expect {
        Expect::Absent => current.is_none(),
        Expect::Version(version) => current.is_some_and(|(_, current)| current == version),
    }
}

fn read<T: Clone>(found: Option<&Stored<T>>, known: Option<&Version>) -> Read<T> {
    match found {
        None => Read::Missing,
        Some((_, version)) if known == Some(version) => Read::Unchanged { age: None },
        Some((record, version)) => Read::Found {
            record: T::clone(record),
            version: version.clone(),
            age: None,
        },
    }
}
