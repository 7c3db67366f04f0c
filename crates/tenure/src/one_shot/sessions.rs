//! The session of a candidate: found, renewed, and removed when it is long dead.

use std::time::Duration;

use bytes::Bytes;
use tenure_core::election::PRIORITY_DEFAULT;
use tenure_core::session::{About, Glance, Record, Sighting, State};
use tenure_core::{Incarnation, Moment, NodeId, Nonce};
use tenure_store::{Entry, Expect, Key, Object, Version, list_all};

use super::{ATTEMPTS_MAX, LABEL, OneShot, is_one_shot};
use crate::keys::Keys;
use crate::{Error, Runtime};

/// How long a dead candidate is kept: so many times its ttl, and not less than a while.
const KEPT_TTLS: u32 = 10;
const KEPT_MIN: Duration = Duration::from_secs(60);

/// How often one who stays looks for the dead, once its note is a minute old but too young for candidates of its own ttl, or is
/// of no use on this host: at one call in so many.
const LOOKS_ONCE_IN: u64 = 16;

/// How many sessions of others a new candidate reads, to learn what they saw in passing.
const LOOKED_AT: usize = 4;

/// How many it removes on the word of those. Each has to be evicted, and later deleted: more than two, or their number
/// grows without end.
const REMOVED_AT_ONCE: usize = 4;

/// How many sessions one candidate has for elections with ttls of their own. With more ttls than these some share one, and
/// the longest of theirs counts.
const TTLS_MAX: usize = 4;

/// How many candidates may stand under one id with secrets of their own: each call of one reads all.
const STANDING_MAX: usize = 8;

/// The longest pause before a write is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A session of this interface, as it stands in the store.
pub(super) struct Standing {
    pub(super) record: Record,
    pub(super) version: Version,
    pub(super) age: Option<Duration>,
}

/// The sessions of this interface under one id.
#[derive(Default)]
pub(super) struct Found {
    /// The caller's own: the one that leads the election, or else one that stands in it, or else one with its ttl.
    pub(super) own: Option<Standing>,
    /// Further ones of the caller: for elections with other ttls, or its first calls made them, if several came at one time.
    pub(super) own_others: Vec<Standing>,
    /// How many others live: with other secrets, or further ones of the caller.
    pub(super) others: usize,
}

/// A session as this call has written it.
pub(super) struct Session {
    pub(super) record: Record,
    pub(super) trusted_until: Moment,
}

/// What to do for a candidate without a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Create,
    Leave,
}

impl OneShot {
    /// Notes what this call saw of the leader's session, for the next one on this host. Costs a list, a read
    /// and a write, and nothing where the store tells ages or the version is the one that was noted.
    pub(super) async fn keep_sighting(
        &self,
        id: &NodeId,
        sighting: &Sighting,
    ) -> Result<(), Error> {
        let note = |record: &mut Record| {
            let About { stands, seen, .. } = &mut *record.about;
            // One that was withdrawn meanwhile does not come back for a note.
            if stands.contains_key(&self.election) {
                seen.insert(self.election.clone(), sighting.clone());
            }
        };
        let missing = Missing::Leave;
        self.write(id, None, note, missing).await.map(drop)
    }

    /// Renews the session of `id`, or makes one.
    pub(super) async fn beat(&self, id: &NodeId, found: Option<Found>) -> Result<Session, Error> {
        let mut found = match found {
            Some(found) => found,
            None => self.find(id).await?,
        };
        let passed = match (&found.own, &self.bounds) {
            (None, None) => self.sweep(None).await,
            (None, Some(bounds)) => bounds.admit_candidate(self).await?,
            (Some(own), Some(bounds)) => {
                // A caller that sets bounds runs a node, which watches.
                bounds.check_stands(&own.record, &self.election)?;
                None
            }
            (Some(own), None) if self.is_due(&own.record) => self.sweep(Some(&own.record)).await,
            (Some(_), None) => None,
        };
        if found.own.is_none() && found.others >= STANDING_MAX {
            // There may be room now.
            found = self.find(id).await?;
        }
        let stand = |record: &mut Record| {
            let About {
                stands,
                passed: noted,
                ..
            } = &mut *record.about;
            stands.insert(self.election.clone(), PRIORITY_DEFAULT);
            if passed.is_some() {
                noted.clone_from(&passed);
            }
        };
        let missing = Missing::Create;
        let written = self.write(id, Some(found), stand, missing).await?;
        written.ok_or_else(|| busy(id))
    }

    /// Changes the session of `id`, once, whatever happens to the answers. None if it has none, and none is to be made.
    async fn write(
        &self,
        id: &NodeId,
        mut seen: Option<Found>,
        change: impl Fn(&mut Record),
        missing: Missing,
    ) -> Result<Option<Session>, Error> {
        // A write of ours whose answer was lost is recognised by its nonce: another call for the same candidate counts on
        // from the same number.
        let mut lost: Option<(Record, Moment)> = None;
        for attempt in 1..=ATTEMPTS_MAX {
            let begun = self.runtime.clock.moment();
            let found = match seen.take() {
                Some(found) => found,
                None => self.find(id).await?,
            };
            if let (Some(Standing { record, .. }), Some((sent, started))) = (&found.own, &lost)
                && (record.incarnation, record.nonce) == (sent.incarnation, sent.nonce)
            {
                return Ok(Some(self.session(sent.clone(), *started)));
            }
            let (mut record, expect) = match found.own {
                Some(Standing {
                    record, version, ..
                }) => (record, Expect::Version(version)),
                // It was there, and is not alive any more: marked as gone by the write whose answer was lost, or
                // evicted. Neither stands.
                None if missing == Missing::Leave => {
                    return Ok(lost.map(|(sent, started)| self.session(sent, started)));
                }
                None if found.others >= STANDING_MAX => {
                    return Err(Error::Crowded { node: id.clone() });
                }
                // Under the same name as the one that may yet land, so that one of them does at most.
                None => match lost.take_if(|(sent, _)| sent.counter == 1) {
                    Some((sent, _)) => (Record { counter: 0, ..sent }, Expect::Absent),
                    None => (self.new_record(id), Expect::Absent),
                },
            };
            record.counter += 1;
            record.nonce = self.runtime.step().nonce;
            // Never shorter than an earlier call was told that it may act.
            record.ttl = record.ttl.max(self.config.ttl);
            change(&mut record);
            let started = self.runtime.clock.moment();
            let key = self.keys.session(&record.holder());
            match self
                .store
                .put(&key, Bytes::from(record.encode()), &expect)
                .await
            {
                Ok(_) => return Ok(Some(self.session(record, started))),
                Err(tenure_store::Error::Conflict { .. }) => {}
                Err(tenure_store::Error::Unknown { .. }) => lost = Some((record, started)),
                Err(error) => return Err(error.into()),
            }
            self.wait_for_a_turn(begun, attempt).await;
        }
        Err(busy(id))
    }

    /// Of many calls for one candidate one gets through at a time. Those that came off badly wait for some turns, each for
    /// another number of them, so that everybody gets one.
    pub(super) async fn wait_for_a_turn(&self, begun: Moment, attempt: u32) {
        let turn = self.runtime.clock.moment().since(begun);
        let most = turn.saturating_mul(2 * attempt);
        tokio::time::sleep(chance_of(&self.runtime, most.min(PAUSE_MAX))).await;
    }

    fn session(&self, record: Record, started: Moment) -> Session {
        Session {
            record,
            trusted_until: started + (self.config.ttl - self.config.margin),
        }
    }

    fn new_record(&self, id: &NodeId) -> Record {
        Record {
            node: id.clone(),
            incarnation: Incarnation(self.runtime.unique().as_u128()),
            counter: 0,
            nonce: Nonce::default(),
            ttl: self.config.ttl,
            state: State::Alive,
            joined_at: self.runtime.clock.now().wall,
            about: Box::new(About {
                labels: [(LABEL.to_owned(), "true".to_owned())].into(),
                secret_digest: self.secret_digest.clone(),
                ..About::default()
            }),
        }
    }

    /// The session of `id` that has not ended. An ended one is never revived: the process that ended it may be
    /// taking what it held, so the candidate starts over as a new incarnation.
    ///
    /// A call that was dropped may have made one more, however late. It holds nothing: the one that leads counts.
    pub(super) async fn find(&self, id: &NodeId) -> Result<Found, Error> {
        let mut found = Found::default();
        let mut own = Vec::new();
        for entry in list_all(&*self.store, &self.keys.sessions_of(id)).await? {
            let Some((record, object)) = self.candidate(&entry.key).await? else {
                continue;
            };
            let is_alive = record.state == State::Alive;
            if is_alive && record.about.secret_digest == self.secret_digest {
                own.push((entry.key, record, object));
                continue;
            }
            if is_alive && object.age.is_none_or(|age| age < record.ttl) {
                found.others += 1;
            }
            let age = object.age;
            self.tidy(&entry.key, record, object, age).await;
        }
        let lease = match own.len() {
            0 | 1 => None,
            _ => self.view.lease(&self.election).await?,
        };
        let holder = lease.as_ref().and_then(|(lease, _)| lease.holder());
        let records: Vec<&Record> = own.iter().map(|(_, record, _)| record).collect();
        let chosen = self.choose(&records, holder.map(|holder| holder.incarnation));
        for (place, (key, record, object)) in own.into_iter().enumerate() {
            let standing = Standing {
                record,
                version: object.version.clone(),
                age: object.age,
            };
            if chosen == Some(place) {
                found.own = Some(standing);
                continue;
            }
            let age = object.age;
            found.others += usize::from(age.is_none_or(|age| age < standing.record.ttl));
            self.tidy(&key, standing.record.clone(), object, age).await;
            found.own_others.push(standing);
        }
        Ok(found)
    }

    /// Which of the caller's sessions is the one for this election; none if it is to have another one. The ttl of a session is
    /// what all leases last by that it holds, so elections share one only if they have the same.
    fn choose(&self, own: &[&Record], leader: Option<Incarnation>) -> Option<usize> {
        let ttl = self.config.ttl.as_millis();
        let leads = own
            .iter()
            .position(|record| leader == Some(record.incarnation));
        let stands = || {
            own.iter()
                .position(|record| record.about.stands.contains_key(&self.election))
        };
        let is_alike = || own.iter().position(|record| record.ttl.as_millis() == ttl);
        // The next longer one, or else the longest.
        let nearest = || {
            let distance = |record: &Record| match record.ttl.as_millis() {
                longer if longer >= ttl => (0, longer - ttl),
                shorter => (1, ttl - shorter),
            };
            (0..own.len()).min_by_key(|&place| distance(own[place]))
        };
        let found = leads.or_else(stands).or_else(is_alike);
        found.or_else(|| (own.len() >= TTLS_MAX).then(nearest).flatten())
    }

    /// The session of a candidate of this interface.
    pub(super) async fn candidate(&self, key: &Key) -> Result<Option<(Record, Object)>, Error> {
        let Some(object) = self.store.get(key).await? else {
            return Ok(None);
        };
        let record = Record::decode(&object.value).ok();
        let record = record.filter(is_one_shot);
        Ok(record.map(|record| (record, object)))
    }

    /// Whether one who stays should look for the dead: when its note has become useful, and now and then.
    fn is_due(&self, own: &Record) -> bool {
        let passed = own
            .about
            .passed
            .as_deref()
            .zip(self.runtime.clock.reading());
        let age = passed.and_then(|(passed, now)| passed.age(now, self.runtime.clock.now().wall));
        match age {
            Some(age) if age < KEPT_MIN => false,
            Some(age) if age >= kept(own.ttl) => true,
            // Young, or of another host, or there is none.
            _ => chance(&self.runtime).is_multiple_of(LOOKS_ONCE_IN),
        }
    }

    /// Removes some of those that are long dead, and returns what a caller notes for those who come later, if it should: one who stays
    /// keeps its note until it has been useful. Whatever fails is for the next one to do.
    pub(super) async fn sweep(&self, own: Option<&Record>) -> Option<Box<Glance>> {
        if self.is_in_transaction {
            return None;
        }
        let page = self.store.list(&self.keys.nodes(), None).await.ok()?;
        // What was listed stood so by now.
        let (listed_at, wall) = (self.runtime.clock.reading(), self.runtime.clock.now().wall);
        let mut listed: Vec<(Incarnation, Entry)> = Vec::new();
        for entry in page.entries {
            // The caller's own is about to be renewed, however old it is.
            if let Some((_, incarnation)) = Keys::session_of(&entry.key)
                && own.is_none_or(|own| own.incarnation != incarnation)
            {
                listed.push((incarnation, entry));
            }
        }
        let mut quiet: Vec<(&Entry, Duration)> = Vec::new();
        let own_note = own.and_then(|own| own.about.passed.clone());
        let own_age = own_note.as_ref().zip(listed_at);
        let own_age = own_age.and_then(|(note, now)| note.age(now, wall));
        quiet.extend(standing_since(own_note.as_deref(), own_age, &listed));
        for (_, entry) in some_of(&self.runtime, &listed).take(LOOKED_AT) {
            let Ok(Some((record, object))) = self.candidate(&entry.key).await else {
                continue;
            };
            let passed = record.about.passed.clone();
            let age = object.age;
            self.tidy(&entry.key, record, object, age).await;
            let stood = passed.as_ref().zip(listed_at);
            let stood = stood.and_then(|(passed, now)| passed.age(now, wall));
            quiet.extend(standing_since(passed.as_deref(), stood, &listed));
        }
        // Of one that several have seen, the longest time.
        quiet.sort_by(|(a, shorter), (b, longer)| a.key.cmp(&b.key).then(longer.cmp(shorter)));
        quiet.dedup_by(|(a, _), (b, _)| a.key == b.key);
        for (entry, stood) in some_of(&self.runtime, &quiet).take(REMOVED_AT_ONCE) {
            if let Ok(Some((record, object))) = self.candidate(&entry.key).await
                && object.version == entry.version
            {
                self.tidy(&entry.key, record, object, Some(*stood)).await;
            }
        }
        if let (Some(own), Some(age)) = (own, own_age)
            && age < kept(own.ttl)
        {
            return None;
        }
        let sessions = some_of(&self.runtime, &listed);
        let sessions = sessions.map(|(incarnation, entry)| (*incarnation, entry.version.tag()));
        Some(Box::new(Glance::new(sessions, listed_at?, wall)))
    }

    /// Removes what a candidate has left behind, if this version has stood for so long. One that is gone has given
    /// everything back before it said so. One that has not been heard from for long is evicted first, like any dead leader, and
    /// deleted when it has been so for as long.
    async fn tidy(&self, key: &Key, mut record: Record, object: Object, stood: Option<Duration>) {
        // It would lock what belongs to others, or depend on whether the caller commits.
        if self.is_in_transaction {
            return;
        }
        let is_old = stood.is_some_and(|stood| stood >= kept(record.ttl));
        // Whatever comes of it: what stays is seen again.
        match record.state {
            State::Alive if is_old => {
                record.state = State::Evicted {
                    by: record.node.clone(),
                };
                let value = Bytes::from(record.encode());
                let expect = Expect::Version(object.version);
                let _ = self.store.put(key, value, &expect).await;
            }
            State::Gone => drop(self.store.delete(key).await),
            State::Evicted { .. } if is_old => drop(self.store.delete(key).await),
            State::Alive | State::Evicted { .. } => {}
        }
    }
}

/// How long a dead candidate is kept.
fn kept(ttl: Duration) -> Duration {
    ttl.saturating_mul(KEPT_TTLS).max(KEPT_MIN)
}

/// Those that still stand as they were noted, if that was long enough ago.
fn standing_since<'a>(
    noted: Option<&Glance>,
    stood: Option<Duration>,
    listed: &'a [(Incarnation, Entry)],
) -> Vec<(&'a Entry, Duration)> {
    let (Some(noted), Some(stood)) = (noted, stood.filter(|stood| *stood >= KEPT_MIN)) else {
        return Vec::new();
    };
    let standing = noted.versions().filter_map(|(incarnation, version)| {
        let (_, entry) = listed.iter().find(|(each, _)| *each == incarnation)?;
        (entry.version.tag() == version).then_some((entry, stood))
    });
    standing.collect()
}

pub(super) fn busy(id: &NodeId) -> Error {
    Error::CandidateBusy { node: id.clone() }
}

/// Any number.
fn chance(runtime: &Runtime) -> u64 {
    runtime.unique().as_u64_pair().0
}

/// Any time up to this one.
fn chance_of(runtime: &Runtime, most: Duration) -> Duration {
    let nanoseconds = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(chance(runtime) % nanoseconds.max(1))
}

/// All of them once, from any place on: another one each time.
fn some_of<'a, T>(runtime: &Runtime, all: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
    let places = all.len();
    let start = usize::try_from(chance(runtime) % places.max(1) as u64).unwrap_or_default();
    all.iter().cycle().skip(start).take(places)
}
