//! The three kinds of objects that a cluster has, and what is asked of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::cluster::{Assignments, Drains};
use tenure_core::session::{Holder, Record};
use tenure_core::{Expect, Incarnation, Read, Version, Written};

type Stored<T> = (Arc<T>, Version);

#[derive(Debug, Clone, Default, Hash)]
pub(super) struct Store {
    versions: u64,
    pub(super) sessions: BTreeMap<Incarnation, Stored<Record>>,
    pub(super) assignments: Option<Stored<Assignments>>,
    pub(super) drains: Option<Stored<Drains>>,
}

/// A request.
#[derive(Debug, Clone, Hash)]
pub(super) enum Ask {
    WriteSession(Arc<Record>, Expect),
    ReadSession(Incarnation),
    Evict(Arc<Record>, Expect),
    Observe(Holder, Option<Version>),
    Look(Option<Version>),
    ReadAssignments(Option<Version>),
    WriteAssignments(Arc<Assignments>, Expect),
    ReadDrains(Option<Version>),
    List,
}

/// Its answer.
#[derive(Debug, Clone, Hash)]
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

impl Ask {
    pub(super) fn is_write(&self) -> bool {
        matches!(
            self,
            Ask::WriteSession(..) | Ask::Evict(..) | Ask::WriteAssignments(..)
        )
    }

    /// What whoever asked hears if nothing comes back.
    pub(super) fn silence(&self, written: Written) -> Told {
        match self {
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
}

impl Store {
    pub(super) fn execute(&mut self, ask: &Ask) -> Told {
        match ask {
            Ask::WriteSession(record, expect) => {
                Told::SessionWritten(self.write_session(record, expect))
            }
            Ask::Evict(record, expect) => {
                let written = self.write_session(record, expect);
                Told::Evicted(record.incarnation, written)
            }
            Ask::ReadSession(incarnation) => {
                Told::SessionRead(read(self.sessions.get(incarnation), None))
            }
            Ask::Observe(holder, known) => {
                let found = self.sessions.get(&holder.incarnation);
                Told::Observed(holder.incarnation, read(found, known.as_ref()))
            }
            Ask::Look(known) => Told::Looked(read(self.assignments.as_ref(), known.as_ref())),
            Ask::ReadAssignments(known) => {
                Told::AssignmentsRead(read(self.assignments.as_ref(), known.as_ref()))
            }
            Ask::WriteAssignments(assignments, expect) => {
                if !fits(expect, self.assignments.as_ref()) {
                    return Told::AssignmentsWritten(Written::Conflict);
                }
                let version = self.next_version();
                self.assignments = Some((assignments.clone(), version.clone()));
                Told::AssignmentsWritten(Written::Done(version))
            }
            Ask::ReadDrains(known) => Told::DrainsRead(read(self.drains.as_ref(), known.as_ref())),
            Ask::List => {
                let records = self.sessions.values();
                Told::Listed(Some(records.map(|(it, _)| Record::clone(it)).collect()))
            }
        }
    }

    /// Whether a write could still be applied some day, if nobody deletes anything.
    pub(super) fn can_apply(&self, ask: &Ask) -> bool {
        match ask {
            Ask::WriteSession(record, expect) | Ask::Evict(record, expect) => {
                fits(expect, self.sessions.get(&record.incarnation))
            }
            Ask::WriteAssignments(_, expect) => fits(expect, self.assignments.as_ref()),
            _ => false,
        }
    }

    pub(super) fn overwrite_drains(&mut self, drains: Drains) {
        let version = self.next_version();
        self.drains = Some((Arc::new(drains), version));
    }

    fn write_session(&mut self, record: &Arc<Record>, expect: &Expect) -> Written {
        if !fits(expect, self.sessions.get(&record.incarnation)) {
            return Written::Conflict;
        }
        let version = self.next_version();
        let stored = (record.clone(), version.clone());
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
