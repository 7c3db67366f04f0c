//! The virtual store: linearizable compare-and-swap objects that hold bytes and have versions. The store has clocks
//! of its own, which may be set, and any of which may answer. A clock that was set counts as another clock.
//!
//! Records are encoded and decoded as in production, so the stored form is simulated too.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tenure_core::cluster::registry::Listed;
use tenure_core::cluster::{Assignments, Drains};
use tenure_core::election::{Fence, Lease};
use tenure_core::node::{Answer, Request};
use tenure_core::session::Record;
use tenure_core::{
    ClockId, ElectionName, Expect, Incarnation, Moment, Read, Reading, RecordError, Version,
    Written,
};
use tenure_random::Random;

use crate::clock::{Clock, Rates};

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A session.
    Session(Incarnation),
    /// A lease.
    Lease(ElectionName),
    /// A fence.
    Fence(ElectionName),
    /// The assignments of the cluster.
    Assignments,
    /// The drains of the cluster.
    Drains,
}

/// One version of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Object {
    /// The stored form.
    pub bytes: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// When the write was begun, in real time: trust counts from then or earlier.
    pub begun_at: Duration,
    /// The same on the store's clock.
    stamp: Reading,
}

/// A write that was applied.
#[derive(Debug, Clone)]
pub struct Applied {
    /// What was written.
    pub key: Key,
    /// What was there before.
    pub before: Option<Object>,
    /// What is there now.
    pub after: Object,
}

/// The store.
#[derive(Debug, Clone, Hash)]
pub struct Store {
    objects: BTreeMap<Key, Object>,
    /// When an object that once was there was deleted.
    deleted: BTreeMap<Key, Duration>,
    /// How often each object was written. Counted separately, so that the order of writes to different objects does
    /// not make states differ.
    versions: BTreeMap<Key, u64>,
    clock: Clock,
    /// How far the clock was set forward and back, and how often.
    stepped_forward: Duration,
    stepped_back: Duration,
    steps: u128,
}

/// How a request is carried out.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// When it was sent, in real time.
    pub begun_at: Duration,
    /// Whether a read returns ages.
    pub tell_age: bool,
    /// How far the answering clock is ahead of the store's, if it is another one.
    pub other_clock_ahead: Option<Duration>,
}

impl Store {
    /// An empty store with this clock.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self {
            objects: BTreeMap::new(),
            deleted: BTreeMap::new(),
            versions: BTreeMap::new(),
            clock,
            stepped_forward: Duration::ZERO,
            stepped_back: Duration::ZERO,
            steps: 0,
        }
    }

    /// An empty store.
    pub fn new(random: &mut Random, rates: Rates) -> Self {
        Self {
            objects: BTreeMap::new(),
            deleted: BTreeMap::new(),
            versions: BTreeMap::new(),
            clock: Clock::draw(random, rates),
            // Far enough from the origin to be set back.
            stepped_forward: Duration::from_secs(1_000_000),
            stepped_back: Duration::ZERO,
            steps: 0,
        }
    }

    /// The present object.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key)
    }

    /// The lease, if it exists and can be read.
    #[must_use]
    pub fn lease(&self, election: &ElectionName) -> Option<Lease> {
        let object = self.objects.get(&Key::Lease(election.clone()))?;
        Lease::decode(&object.bytes).ok()
    }

    /// The fence, if it exists.
    #[must_use]
    pub fn fence(&self, election: &ElectionName) -> Option<Fence> {
        let object = self.objects.get(&Key::Fence(election.clone()))?;
        Fence::decode(&object.bytes).ok()
    }

    /// The session, if it exists and can be read.
    #[must_use]
    pub fn session(&self, incarnation: Incarnation) -> Option<Record> {
        let object = self.objects.get(&Key::Session(incarnation))?;
        Record::decode(&object.bytes).ok()
    }

    /// Since when an object that existed is missing.
    #[must_use]
    pub fn missing_since(&self, key: &Key) -> Option<Duration> {
        self.deleted.get(key).copied()
    }

    /// Carries out a request at a real time.
    pub fn execute(
        &mut self,
        now: Duration,
        request: &Request,
        access: Access,
    ) -> (Answer, Option<Applied>) {
        let written = |(written, applied)| (Answer::Written(written), applied);
        match request {
            Request::ReadSession { holder, known } => {
                let key = Key::Session(holder.incarnation);
                let read = self.read(now, &key, known.as_ref(), access, Record::decode);
                (Answer::Session(read), None)
            }
            Request::ReadLease { election, known } => {
                let key = Key::Lease(election.clone());
                let read = self.read(now, &key, known.as_ref(), access, Lease::decode);
                (Answer::Lease(read), None)
            }
            Request::ReadFence { election } => {
                let key = Key::Fence(election.clone());
                let read = self.read(now, &key, None, access, Fence::decode);
                (Answer::Fence(read), None)
            }
            Request::WriteSession { record, expect } => {
                let key = Key::Session(record.incarnation);
                written(self.write(access, key, record.encode(), expect))
            }
            Request::WriteLease {
                election,
                lease,
                expect,
            } => written(self.write(access, Key::Lease(election.clone()), lease.encode(), expect)),
            Request::WriteFence {
                election,
                fence,
                expect,
            } => written(self.write(access, Key::Fence(election.clone()), fence.encode(), expect)),
            Request::Look { known } | Request::ReadAssignments { known } => {
                let known = known.as_ref();
                let read = self.read(now, &Key::Assignments, known, access, Assignments::decode);
                (Answer::Assignments(read), None)
            }
            Request::WriteAssignments {
                assignments,
                expect,
            } => written(self.write(access, Key::Assignments, assignments.encode(), expect)),
            Request::ReadDrains { known } => {
                let read = self.read(now, &Key::Drains, known.as_ref(), access, Drains::decode);
                (Answer::Drains(read), None)
            }
            Request::ListSessions => (Answer::Sessions(Some(self.list())), None),
            Request::DeleteSession { holder } => {
                self.delete(now, &Key::Session(holder.incarnation));
                (Answer::Deleted, None)
            }
        }
    }

    fn list(&self) -> Vec<Listed> {
        let objects = self.objects.iter();
        let sessions = objects.filter(|(key, _)| matches!(key, Key::Session(_)));
        let listed = sessions.filter_map(|(_, object)| {
            let record = Record::decode(&object.bytes).ok()?;
            Some(Listed {
                node: record.node,
                incarnation: record.incarnation,
                version: object.version.clone(),
            })
        });
        listed.collect()
    }

    /// Overwrites an object unconditionally, as operators may do.
    pub fn overwrite(&mut self, now: Duration, key: Key, bytes: Vec<u8>) -> Applied {
        let access = Access {
            begun_at: now,
            tell_age: false,
            other_clock_ahead: None,
        };
        self.put(access, key, bytes)
    }

    fn put(&mut self, access: Access, key: Key, bytes: Vec<u8>) -> Applied {
        let number = self.versions.entry(key.clone()).or_default();
        *number += 1;
        let after = Object {
            bytes,
            version: Version::new(format!("v{number}")),
            begun_at: access.begun_at,
            stamp: self.clock_shows(access.begun_at, access),
        };
        self.deleted.remove(&key);
        let before = self.objects.insert(key.clone(), after.clone());
        Applied { key, before, after }
    }

    /// Deletes an object, as operators may do. Returns whether it existed.
    pub fn delete(&mut self, now: Duration, key: &Key) -> bool {
        let there = self.objects.remove(key).is_some();
        if there {
            self.deleted.insert(key.clone(), now);
        }
        there
    }

    /// Sets the store's clock.
    pub fn step_clock(&mut self, by: Duration, forward: bool) {
        self.steps += 1;
        if forward {
            self.stepped_forward += by;
        } else {
            self.stepped_back += by;
        }
    }

    fn clock_shows(&self, at: Duration, access: Access) -> Reading {
        let ahead = access.other_clock_ahead;
        let shown = self.clock.moment(at).since_origin() + self.stepped_forward;
        let shown = shown + ahead.unwrap_or_default();
        Reading {
            clock: ClockId(self.steps * 2 + u128::from(ahead.is_some())),
            moment: Moment::from_origin(shown.saturating_sub(self.stepped_back)),
        }
    }

    fn write(
        &mut self,
        access: Access,
        key: Key,
        bytes: Vec<u8>,
        expect: &Expect,
    ) -> (Written, Option<Applied>) {
        let as_expected = match (expect, self.objects.get(&key)) {
            (Expect::Absent, None) => true,
            (Expect::Version(version), Some(object)) => object.version == *version,
            _ => false,
        };
        if !as_expected {
            return (Written::Conflict, None);
        }
        let applied = self.put(access, key, bytes);
        (Written::Done(applied.after.version.clone()), Some(applied))
    }

    fn read<T>(
        &self,
        now: Duration,
        key: &Key,
        known: Option<&Version>,
        access: Access,
        decode: fn(&[u8]) -> Result<T, RecordError>,
    ) -> Read<T> {
        let Some(object) = self.objects.get(key) else {
            return Read::Missing;
        };
        let age = self.clock_shows(now, access).since(object.stamp);
        let age = age.filter(|_| access.tell_age);
        let version = object.version.clone();
        if known == Some(&version) {
            return Read::Unchanged { age };
        }
        match decode(&object.bytes) {
            Ok(record) => Read::Found {
                record,
                version,
                age,
            },
            Err(_) => Read::Unreadable { version },
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Session(incarnation) => write!(formatter, "session {incarnation:?}"),
            Key::Lease(election) => write!(formatter, "lease {election}"),
            Key::Fence(election) => write!(formatter, "fence {election}"),
            Key::Assignments => formatter.write_str("assignments"),
            Key::Drains => formatter.write_str("drains"),
        }
    }
}
