//! Who is there: the sessions of a namespace as one process knows them.
//!
//! Every process wants to know when nodes come and go, but reading every session with every heartbeat would cost the
//! square of the number of nodes. One listing per heartbeat shows the version of each session, and a live session has a
//! new version each time. So only these are read: a session that is new; one whose version has not changed, since it
//! may have ended; one that changed after it had stood still; and one that the assignments no longer name, so that the
//! end of a node is noticed as fast as a hint about the assignments. A leader also learns from the sessions that it
//! watches anyway.
//!
//! If nobody runs daemons, and nobody asks which nodes there are, one listing in ten heartbeats is enough. A node that
//! offers the first daemon is noticed by the hint of its session. On stores without hints it *rings*: it rewrites the
//! lease of `tenure.cluster` unchanged, which the leader reads with every heartbeat anyway, and then the leader lists
//! the sessions.
//!
//! The leader removes what dead sessions leave behind. Only a session that has ended is ever deleted, long after its
//! end was seen, and not while the assignments name it: it is never written again, so it does not matter that a delete
//! is not conditional or comes late. A process that wakes up after that finds its session missing, which ends it just
//! as an eviction does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::random::Random;
use crate::session::observer::End;
use crate::session::{self, Record, State};
use crate::{Incarnation, Moment, NodeId, Read, Version};

/// How many sessions are read at a time.
const READS_AT_ONCE: usize = 8;

/// How many dead sessions are removed after one listing.
const DELETES_AT_ONCE: usize = 8;

/// How long a dead session is kept: this many times its ttl, but not less than [`KEPT_MIN`].
const KEPT_TTLS: u32 = 10;
const KEPT_MIN: Duration = Duration::from_secs(60);

/// The machine. At most one listing is in flight, and one request for each session; the driver answers each with one
/// input.
#[derive(Debug, Clone, Hash)]
pub struct Registry {
    heartbeat: Duration,
    rest: Duration,
    retry: Duration,
    random: Random,
    /// Nobody waits for news about nodes.
    rests: bool,
    known: BTreeMap<Incarnation, Known>,
    /// The sessions that the assignments name; `None` until they were seen.
    holders: Option<BTreeSet<Incarnation>>,
    leads: bool,
    listing: Option<Listing>,
    due: Moment,
    /// When sessions were last listed.
    listed_at: Moment,
    /// Every session is to be read again.
    read_all: bool,
    /// A listing was taken while leading. It is reported when all of it has been read.
    owes: bool,
}

/// A listing that is in flight.
#[derive(Debug, Clone, Copy, Hash)]
struct Listing {
    /// It was started while leading.
    leads: bool,
}

#[derive(Debug, Clone, Hash)]
struct Known {
    node: NodeId,
    /// As it was listed last, and since when.
    version: Option<Version>,
    stands_since: Moment,
    /// It had not changed and was read because of that.
    was_quiet: bool,
    record: Option<Record>,
    announced: Announced,
    ended: Option<(End, Moment)>,
    /// When it may be read, if it is to be read.
    read_from: Option<Moment>,
    reading: bool,
}

/// What was announced of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Announced {
    Nothing,
    Joined,
    Ended,
}

/// A session in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Listed {
    /// The node.
    pub node: NodeId,
    /// The process.
    pub incarnation: Incarnation,
    /// The version of its session.
    pub version: Version,
}

/// What happens to a registry.
#[derive(Debug, Clone, Hash)]
pub enum Input {
    /// Time has passed.
    Wake,
    /// The answer to [`Output::List`]; `None` if the store did not give one.
    Listed(Option<Vec<Listed>>),
    /// The answer to [`Output::Read`].
    Read(Incarnation, Box<Read<Record>>),
    /// A session was read by another part of this process.
    Seen(Box<Record>),
    /// A session has ended.
    SessionEnded(Incarnation, End),
    /// A session may have changed.
    Hint(NodeId, Incarnation),
    /// The assignments name these sessions, and no others.
    Holders(BTreeMap<Incarnation, NodeId>),
    /// Whether this process leads.
    Leads(bool),
    /// Whether nobody waits for news about nodes: an occasional listing is enough.
    Rests(bool),
    /// A node may have joined.
    HintAll,
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// List all sessions.
    List,
    /// Read a session.
    Read {
        /// Its node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// Delete a dead session. There is no answer: if it is still listed, it is deleted again.
    Delete {
        /// Its node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// A node has joined.
    Joined(Box<Record>),
    /// A node has left on its own.
    Left(Box<Record>),
    /// A node was evicted, or its session was deleted.
    Evicted(Box<Record>),
    /// All sessions, each read since this process leads.
    Sessions(Vec<Record>),
}

impl Registry {
    /// Makes a registry that knows no nodes yet.
    #[must_use]
    pub fn new(session: &session::Config, now: Moment, seed: u64) -> Self {
        Self {
            heartbeat: session.heartbeat,
            rest: session.rest(),
            retry: session.retry(),
            random: Random::new(session, seed),
            rests: false,
            known: BTreeMap::new(),
            holders: None,
            leads: false,
            listing: None,
            due: now,
            listed_at: now,
            read_all: false,
            owes: false,
        }
    }

    /// The nodes that are there, as far as is known. What they say about themselves may be old, unless this process
    /// leads.
    pub fn members(&self) -> impl Iterator<Item = &Record> {
        let joined = self
            .known
            .values()
            .filter(|known| known.announced == Announced::Joined);
        joined.filter_map(|known| known.record.as_ref())
    }

    /// When the machine wants [`Input::Wake`] next.
    #[must_use]
    pub fn wake_at(&self) -> Moment {
        let list_at = match self.listing {
            None => self.due,
            Some(_) => Moment::NEVER,
        };
        if self.reading() >= READS_AT_ONCE {
            return list_at;
        }
        let idle = self.known.values().filter(|known| !known.reading);
        let reads = idle.filter_map(|known| known.read_from);
        reads.chain([list_at]).min().unwrap_or(Moment::NEVER)
    }

    /// Takes an input and returns what to do.
    #[must_use]
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Wake => {}
            Input::Listed(listed) => self.on_listed(now, listed, &mut outputs),
            Input::Read(incarnation, read) => self.on_read(now, incarnation, *read, &mut outputs),
            Input::Seen(record) => self.on_record(now, *record, &mut outputs),
            Input::SessionEnded(incarnation, end) => {
                if let Some(known) = self.known.get_mut(&incarnation) {
                    // Read it to learn what it left behind.
                    known.read_from.get_or_insert(now);
                    known.end(now, end, &mut outputs);
                }
            }
            // A known session is watched elsewhere; an unknown one has just joined.
            Input::Hint(node, incarnation) => {
                let known = self.known.entry(incarnation);
                known.or_insert_with(|| Known::new(node, now));
            }
            Input::Holders(holders) => self.on_holders(now, holders),
            Input::Leads(leads) => {
                if leads && !self.leads {
                    self.read_all = true;
                    self.due = now;
                }
                self.leads = leads;
                self.owes &= leads;
            }
            Input::Rests(rests) => {
                if std::mem::replace(&mut self.rests, rests) && !rests {
                    self.due = self.due.min(now);
                }
            }
            // No more often than without such hints.
            Input::HintAll => self.due = self.due.min(self.listed_at + self.heartbeat),
        }
        self.request(now, &mut outputs);
        outputs
    }

    // ---- what happens -------------------------------------------------------------------------------

    fn on_listed(&mut self, now: Moment, listed: Option<Vec<Listed>>, outputs: &mut Vec<Output>) {
        let Some(listing) = self.listing.take() else {
            return;
        };
        let Some(listed) = listed else {
            self.due = now + self.random.jitter(self.retry);
            return;
        };
        let pause = if self.rests {
            self.rest
        } else {
            self.heartbeat
        };
        self.due = now + self.random.jitter(pause);
        self.listed_at = now;
        let there: BTreeSet<Incarnation> = listed.iter().map(|entry| entry.incarnation).collect();
        for entry in listed {
            let known = self.known.entry(entry.incarnation);
            let known = known.or_insert_with(|| Known::new(entry.node, now));
            known.on_listed(now, entry.version);
        }
        // A session that had ended and is not listed was cleaned up. One that lived is read, to be sure.
        self.known.retain(|incarnation, known| {
            there.contains(incarnation)
                || (known.ended.is_none() && known.announced == Announced::Joined)
        });
        for (incarnation, known) in &mut self.known {
            let is_gone = !there.contains(incarnation);
            if known.ended.is_none() && (is_gone || self.read_all && listing.leads) {
                known.read_from.get_or_insert(now);
            }
        }
        if listing.leads && self.leads {
            self.read_all = false;
            self.owes = true;
            self.clean_up(now, outputs);
        }
    }

    fn on_read(
        &mut self,
        now: Moment,
        incarnation: Incarnation,
        read: Read<Record>,
        outputs: &mut Vec<Output>,
    ) {
        let Some(known) = self.known.get_mut(&incarnation) else {
            return;
        };
        known.reading = false;
        match read {
            Read::Failed => known.read_from = Some(now + self.random.jitter(self.retry)),
            Read::Found { record, .. } => self.on_record(now, record, outputs),
            Read::Missing => known.end(now, End::Missing, outputs),
            // A newer version of Tenure runs there. What this process cannot read, it does not know.
            Read::Unreadable { .. } | Read::Unchanged { .. } => {}
        }
    }

    fn on_record(&mut self, now: Moment, record: Record, outputs: &mut Vec<Output>) {
        let Some(known) = self.known.get_mut(&record.incarnation) else {
            return;
        };
        // Reads may overtake each other. The record of an ended session repeats the counter of the one before.
        let is_old = |other: &Record| other.counter > record.counter || other.state != State::Alive;
        if known.record.as_ref().is_some_and(is_old) {
            return;
        }
        let end = match record.state {
            State::Alive => None,
            State::Gone if record.about.lost => Some(End::Lost),
            State::Gone => Some(End::Gone),
            State::Evicted { .. } => Some(End::Evicted),
        };
        known.record = Some(record);
        match end {
            Some(end) => known.end(now, end, outputs),
            None => known.join(outputs),
        }
    }

    fn on_holders(&mut self, now: Moment, holders: BTreeMap<Incarnation, NodeId>) {
        for incarnation in self.holders.iter().flatten() {
            if !holders.contains_key(incarnation)
                && let Some(known) = self.known.get_mut(incarnation)
                && known.ended.is_none()
            {
                known.read_from.get_or_insert(now);
            }
        }
        self.holders = Some(holders.keys().copied().collect());
        for (incarnation, node) in holders {
            let known = self.known.entry(incarnation);
            known.or_insert_with(|| Known::new(node, now));
        }
    }

    // ---- what to do ---------------------------------------------------------------------------------

    fn clean_up(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        let Some(holders) = &self.holders else { return };
        let dead = self.known.iter().filter(|(incarnation, known)| {
            !holders.contains(incarnation) && known.kept_until().is_some_and(|until| until <= now)
        });
        outputs.extend(
            dead.take(DELETES_AT_ONCE)
                .map(|(incarnation, known)| Output::Delete {
                    node: known.node.clone(),
                    incarnation: *incarnation,
                }),
        );
    }

    fn request(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        if self.listing.is_none() && now >= self.due {
            self.listing = Some(Listing { leads: self.leads });
            outputs.push(Output::List);
        }
        let mut free = READS_AT_ONCE - self.reading().min(READS_AT_ONCE);
        for (incarnation, known) in &mut self.known {
            if free == 0 {
                break;
            }
            if !known.reading && known.read_from.is_some_and(|from| from <= now) {
                known.read_from = None;
                known.reading = true;
                free -= 1;
                outputs.push(Output::Read {
                    node: known.node.clone(),
                    incarnation: *incarnation,
                });
            }
        }
        let is_read = |known: &Known| !known.reading && known.read_from.is_none();
        if self.owes && self.known.values().all(is_read) {
            self.owes = false;
            let records = self.known.values().filter_map(Known::as_it_is);
            outputs.push(Output::Sessions(records.cloned().collect()));
        }
    }

    fn reading(&self) -> usize {
        self.known.values().filter(|known| known.reading).count()
    }
}

impl Known {
    fn new(node: NodeId, now: Moment) -> Self {
        Self {
            node,
            version: None,
            stands_since: now,
            was_quiet: false,
            record: None,
            announced: Announced::Nothing,
            ended: None,
            read_from: Some(now),
            reading: false,
        }
    }

    fn on_listed(&mut self, now: Moment, version: Version) {
        if self.version.as_ref() != Some(&version) {
            // Most likely a heartbeat, unless the session had been quiet or is known to have ended.
            if std::mem::take(&mut self.was_quiet) || self.ended.is_some() {
                self.read_from.get_or_insert(now);
            }
            self.version = Some(version);
            self.stands_since = now;
            return;
        }
        let Some(record) = &self.record else { return };
        let quiet_at = self.stands_since + record.ttl / 2;
        if !self.was_quiet && self.ended.is_none() && now >= quiet_at {
            self.was_quiet = true;
            self.read_from.get_or_insert(now);
        }
    }

    fn join(&mut self, outputs: &mut Vec<Output>) {
        if let (Announced::Nothing, None, Some(record)) = (self.announced, self.ended, &self.record)
        {
            self.announced = Announced::Joined;
            outputs.push(Output::Joined(Box::new(record.clone())));
        }
    }

    fn end(&mut self, now: Moment, end: End, outputs: &mut Vec<Output>) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some((end, now));
        // A session that was dead when first seen is not news.
        if let (Announced::Joined, Some(record)) = (self.announced, &self.record) {
            let record = Box::new(record.clone());
            outputs.push(match end {
                End::Gone | End::Lost => Output::Left(record),
                End::Evicted | End::Missing => Output::Evicted(record),
            });
        }
        self.announced = Announced::Ended;
    }

    /// What was read, unless it is known to be outdated.
    fn as_it_is(&self) -> Option<&Record> {
        let record = self.record.as_ref()?;
        let is_known = self.ended.is_none() || record.state != State::Alive;
        is_known.then_some(record)
    }

    /// Until when the leftovers of a dead session are kept; `None` if it is not known to be dead.
    fn kept_until(&self) -> Option<Moment> {
        let (_, since) = self.ended?;
        let record = self.record.as_ref()?;
        let kept = record.ttl.saturating_mul(KEPT_TTLS).max(KEPT_MIN);
        (record.state != State::Alive).then(|| since + kept)
    }
}

#[cfg(test)]
mod tests;
