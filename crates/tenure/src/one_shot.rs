//! Elections without a background loop: for cron jobs, scripts and web handlers.
//!
//! Every call stands alone; all state is in the store. A candidate registers with an expiry and says so
//! again from time to time; [`OneShot::elect`] gives the leadership to the caller if it is free, and says
//! who has it otherwise. Nobody is pushed out.
//!
//! The candidate is known by its id, and by a secret if it was given one
//! ([`with_secret_digest`](OneShot::with_secret_digest)). Two programs that use one id, and no secrets, are one
//! candidate to this interface; a program that needs more should run a [`Node`](crate::Node).
//!
//! A leader that is asked to resign, or to hand over, is told so at its next call: it leads no longer, and is renewed no
//! more. The lease passes on when it withdraws, which says that its work has ended, or when the time that it was
//! given before is over. It cannot be given up by that call itself: the caller acts on what it was told before until it has
//! the answer.
//!
//! # What is left behind
//!
//! A candidate that withdraws deletes its session, after it has confirmed that it is marked as gone. A delete is not
//! conditional, and need not be: an incarnation is never used twice, so nobody writes this object again on purpose. A
//! doubled request of the past that creates it anew, however late, makes a session that holds nothing and that nobody
//! renews: it expires. Candidates that never came back are removed by whoever registers next, by those who stay, now and
//! then, and by running nodes, a few at a time. A node watches. A call cannot, so it notes in its session which versions of
//! some others stood when it came, and later calls on the same host read that: what still stands after ten times its ttl,
//! and a minute, belongs to nobody who is alive. If every call is made on a host that makes no other, nobody can tell, and
//! the sessions stay until a node runs in the namespace.
//!
//! A candidate that stopped calling may be replaced when one version of its session has stood for its whole
//! ttl. On one host a file store and SQLite can tell that at once. Everywhere else a call that finds someone
//! leading notes in its own session which version it saw, and when, on the clock of its host that cannot be
//! set; a later call on the same host, a ttl after it or more, then knows. So there it takes two calls to
//! replace a leader that has died, and both from one host.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use tenure::OneShot;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure::Error> {
//! let store = tenure::store::open("memory:").await?;
//! let elections = OneShot::new(store, "nightly", Duration::from_secs(60))?;
//! let outcome = elections.elect(&"web-1".parse()?).await?;
//! assert!(outcome.is_leader());
//! let other = elections.elect(&"web-2".parse()?).await?;
//! assert_eq!(other.leader.unwrap().node.as_str(), "web-1");
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::election::{
    Election as Machine, Input, Leader, Lease, Output, PRIORITY_DEFAULT, RequestKind, Term,
};
use tenure_core::node::{Answer, Request};
use tenure_core::session::About;
use tenure_core::session::observer::{self, Observer};
use tenure_core::session::{Config, Glance, Holder, Record, Sighting, State};
use tenure_core::{
    ElectionName, Incarnation, Lineage, Moment, Namespace, NodeId, Nonce, Read, Written,
};
use tenure_store::{Entry, Expect, Key, Object, Store, Version, list_all};

use crate::clock::HOST;
use crate::inspect::{Candidate, NamespaceView, candidates};
use crate::keys::Keys;
use crate::requests::{Chain, carry_out};
use crate::{Error, Token, runtime};

mod bounds;

pub use bounds::Bounds;

/// Marks the sessions of this interface, so that they are told from those of running nodes.
pub(crate) const LABEL: &str = tenure_core::session::ONE_SHOT;

/// The election that is meant if none is named.
const ELECTION: &str = "default";

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

/// How many candidates may stand under one id with secrets of their own: each call of one reads all.
const STANDING_MAX: usize = 8;

/// How often a write is tried against others, or an answer settled, before giving up.
const ATTEMPTS_MAX: u32 = 20;

/// The longest pause before a write is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a call tries, unless the protocol makes it wait, and how long one request may take. A ttl may be a day.
const CALL_MAX: Duration = Duration::from_secs(30);
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// One-shot elections in a namespace.
#[derive(Debug, Clone)]
pub struct OneShot {
    store: Arc<dyn Store>,
    keys: Keys,
    view: NamespaceView,
    config: Config,
    election: ElectionName,
    secret_digest: Option<String>,
    bounds: Option<Arc<Bounds>>,
}

/// What an election came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Who leads; `None` if nobody does.
    pub leader: Option<Leader>,
    /// Whom the lease is reserved for, if another was to follow and has not come yet. It may be taken from it at a later
    /// call, see [`RESERVED_MAX`](tenure_core::election::RESERVED_MAX).
    pub reserved_for: Option<NodeId>,
    /// The fencing token, if the caller leads.
    pub token: Option<Token>,
    /// How long the caller may act as the leader from now on, at least, without another call. Zero if it
    /// does not lead.
    pub valid_for: Duration,
    /// Who asked the caller to give up the term that it led. It leads no longer; the lease passes on when it withdraws, or when
    /// what it was told before is over.
    pub asked_by: Option<NodeId>,
}

/// What became of a withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawal {
    /// The candidate stands no longer, and leads nothing.
    Done,
    /// It did not stand.
    NotStanding,
    /// It does not lead the term that was named. Nothing was changed.
    OtherTerm,
}

impl Outcome {
    /// Whether the caller leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.token.is_some()
    }
}

/// A session of this interface, as it stands in the store.
struct Standing {
    record: Record,
    version: Version,
    age: Option<Duration>,
}

/// The sessions of this interface under one id.
#[derive(Default)]
struct Found {
    /// The caller's own: the one that leads the election, or else one that stands in it, or else any.
    own: Option<Standing>,
    /// Further ones of the caller. Its first calls made them, if several came at one time.
    own_others: Vec<Standing>,
    /// How many others live: with other secrets, or further ones of the caller.
    others: usize,
}

impl OneShot {
    /// Elections in a namespace whose candidates expire `ttl` after their last call.
    pub fn new(store: Arc<dyn Store>, namespace: &str, ttl: Duration) -> Result<Self, Error> {
        let mut config = Config::for_ttl(ttl);
        config.check()?;
        config.request_timeout = config.request_timeout.min(REQUEST_MAX);
        let namespace = Namespace::new(namespace)?;
        let keys = Keys::new(namespace.clone());
        let view = NamespaceView::new(store.clone(), namespace);
        let election = ElectionName::new(ELECTION)?;
        Ok(Self {
            store,
            keys,
            view,
            config,
            election,
            secret_digest: None,
            bounds: None,
        })
    }

    /// The same for callers who are not trusted to make any number of candidates and elections: what would be one too
    /// many is refused with [`Error::Full`]. Newcomers then remove what others left behind only now and then, so that a
    /// call costs the same however many there are.
    #[must_use]
    pub fn with_bounds(self, bounds: Arc<Bounds>) -> Self {
        Self {
            bounds: Some(bounds),
            ..self
        }
    }

    /// The same for callers who prove by a secret that a candidate is theirs; its digest is kept with the candidate. Without
    /// the secret nobody gets at that candidate: they are another one, also under the same id.
    #[must_use]
    pub fn with_secret_digest(self, digest: Option<String>) -> Self {
        Self {
            secret_digest: digest,
            ..self
        }
    }

    /// The same for another election of the namespace than `default`; not for those of the product itself, whose names
    /// begin with `tenure.`. A candidate of several has one session, so
    /// each call keeps it in all of them.
    pub fn with_election(self, name: &str) -> Result<Self, Error> {
        let election = ElectionName::of_users(name)?;
        Ok(Self { election, ..self })
    }

    /// Makes `id` a candidate, or says that it still is one. One list, one read and one write.
    pub async fn register_candidate(&self, id: &NodeId) -> Result<(), Error> {
        self.beat(id, None).await.map(drop)
    }

    /// The same as [`OneShot::register_candidate`].
    pub async fn heartbeat(&self, id: &NodeId) -> Result<(), Error> {
        self.register_candidate(id).await
    }

    /// Registers `id` and lets it lead if nobody does. Returns at once if someone else leads, or if the lease is reserved for
    /// somebody who may still come; waits only where the protocol has to, after a lease was deleted.
    ///
    /// If the future is dropped, `id` may lead without knowing it, until its session expires: call this again, or
    /// [`unregister_candidate`](OneShot::unregister_candidate).
    pub async fn elect(&self, id: &NodeId) -> Result<Outcome, Error> {
        let found = self.find(id).await?;
        let lease = if found.own.is_some() || self.bounds.is_some() {
            self.view.lease(&self.election).await?
        } else {
            None
        };
        match (&lease, &self.bounds) {
            (Some((lease, _)), _) => {
                if let Some(asked) = self.asked(id, &found, lease).await? {
                    return Ok(asked);
                }
            }
            (None, Some(bounds)) => bounds.admit_election(&*self.store, &self.keys).await?,
            (None, None) => {}
        }
        let Session {
            record,
            mut trusted_until,
        } = self.beat(id, Some(found)).await?;
        let holder = record.holder();
        let mut call = Call::new(self, holder.clone(), trusted_until);
        call.seen = record.about.seen.get(&self.election).cloned();
        call.step(Input::Stand(PRIORITY_DEFAULT));
        let begun = HOST.moment();
        let mut give_up = begun + CALL_MAX.min(self.config.ttl * 3);
        while call.token.is_none() && !call.is_lost() {
            if let Some(until) = call.machine.waits_until() {
                give_up = give_up.max(until + CALL_MAX);
            }
            if HOST.moment() >= give_up || call.is_unreadable {
                // Perhaps it cannot be read: then that is what is wrong.
                self.view.lease(&self.election).await?;
                return Err(self.contended());
            }
            if HOST.moment() + self.config.grace >= trusted_until {
                let session = self.beat(id, None).await?;
                // The session of another call has landed beside this one: what is trusted by it is not what is held.
                if session.record.incarnation != call.me {
                    return Err(self.contended());
                }
                trusted_until = session.trusted_until;
                call.step(Input::Trusted(trusted_until));
            }
            call.turn().await;
        }
        if call.token.is_some() && call.has_written_lease && !self.still_stands(&holder).await? {
            self.give_back(&holder, None).await?;
            return Err(self.contended());
        }
        // Who had to wait acts for as long as one who led at once.
        if call.token.is_some()
            && HOST.moment().since(begun) >= self.config.heartbeat
            && let Ok(session) = self.beat(id, None).await
            && session.record.incarnation == call.me
        {
            trusted_until = session.trusted_until;
        }
        let reserved_for = call.reserved_for().cloned();
        if call.token.is_none()
            && let Some(sighting) = call.noted()
            && let Err(error) = self.keep_sighting(id, &sighting).await
        {
            // What the call came to is certain; only a later one has to begin anew.
            let (election, error) = (&self.election, Chain(&error));
            tracing::warn!(%election, %error, "could not record what was seen of the leader");
        }
        let valid_for = match call.token {
            Some(_) => trusted_until.since(HOST.moment()),
            None => Duration::ZERO,
        };
        let token = call.token.filter(|_| !valid_for.is_zero());
        Ok(Outcome {
            leader: call.leader,
            reserved_for: reserved_for.map(|candidate| candidate.node),
            token,
            valid_for,
            asked_by: None,
        })
    }

    /// If `id` leads and is asked not to, what it is told. Its session is not renewed, so that it expires in any case. When it
    /// has, nothing that the caller was told before holds any more, and the lease is given back here.
    async fn asked(
        &self,
        id: &NodeId,
        found: &Found,
        lease: &Lease,
    ) -> Result<Option<Outcome>, Error> {
        let Some(own) = &found.own else {
            return Ok(None);
        };
        let is_mine = |holder: &Holder| holder.incarnation == own.record.incarnation;
        let Some(request) = lease.request.clone().filter(|request| {
            let is_to_me = matches!(&request.kind, RequestKind::Transfer { to } if is_mine(to));
            lease.holder().is_some_and(is_mine) && !is_to_me
        }) else {
            return Ok(None);
        };
        if own.age.is_some_and(|age| age >= own.record.ttl) {
            self.withdraw(id, None).await?;
        }
        Ok(Some(Outcome {
            leader: None,
            reserved_for: None,
            token: None,
            valid_for: Duration::ZERO,
            asked_by: Some(request.by),
        }))
    }

    /// Whether `id` leads, as the store has it now. To act on it, use [`OneShot::elect`], which also says
    /// for how long.
    pub async fn is_leader(&self, id: &NodeId) -> Result<bool, Error> {
        let leader = self.view.live_leader(&self.election).await?;
        Ok(leader.is_some_and(|(_, session)| session.node == *id))
    }

    /// The live candidates.
    pub async fn list_candidates(&self) -> Result<Vec<Candidate>, Error> {
        candidates(&*self.store, &self.keys, &self.election).await
    }

    /// Whether anybody stands under this id by this interface, with whatever secret, as far as the store can tell.
    pub async fn is_taken(&self, id: &NodeId) -> Result<bool, Error> {
        let found = self.find(id).await?;
        let is_fresh = |own: Standing| own.age.is_none_or(|age| age < own.record.ttl);
        Ok(found.others > 0 || found.own.is_some_and(is_fresh))
    }

    /// Takes `id` off the list, and vacates its leadership first if it has it.
    pub async fn unregister_candidate(&self, id: &NodeId) -> Result<(), Error> {
        self.withdraw(id, None).await.map(drop)
    }

    /// The same, and says what became of it. With a term, only if the candidate leads that term: a withdrawal that was
    /// delayed, or is repeated, changes nothing in a later one.
    pub async fn withdraw(&self, id: &NodeId, term: Option<Term>) -> Result<Withdrawal, Error> {
        let found = self.find(id).await?;
        let Some(own) = found.own else {
            return Ok(Withdrawal::NotStanding);
        };
        let withdrawal = self.leave(own, term, term.is_some()).await?;
        if withdrawal == Withdrawal::Done {
            for other in found.own_others {
                self.leave(other, term, false).await?;
            }
        }
        Ok(withdrawal)
    }

    /// Takes one session out of the election. Where `must_lead`, only if it leads the term that is named.
    ///
    /// The lease is given back first: nobody may find a holder that has gone while it may still act. Then the session is written, on
    /// the version that was read before; if another call has written it meanwhile, all is done again, since that call may have
    /// taken the lease. One that renewed the session before and takes the lease only now is found by another look at the lease, or
    /// finds what was written here, see [`still_stands`](Self::still_stands).
    async fn leave(
        &self,
        mut standing: Standing,
        term: Option<Term>,
        must_lead: bool,
    ) -> Result<Withdrawal, Error> {
        let holder = standing.record.holder();
        let key = self.keys.session(&holder);
        let mut led = false;
        let mut sent: Option<Record> = None;
        for attempt in 1..=ATTEMPTS_MAX {
            let begun = HOST.moment();
            match self.give_back(&holder, term).await? {
                GivenBack::Yes => led = true,
                GivenBack::OtherTerm => return Ok(Withdrawal::OtherTerm),
                GivenBack::NotHeld if must_lead && !led => return Ok(Withdrawal::OtherTerm),
                GivenBack::NotHeld => {}
            }
            let mut record = standing.record;
            if !record.about.stands.contains_key(&self.election) {
                return Ok(Withdrawal::Done);
            }
            record.about.stands.remove(&self.election);
            record.about.seen.remove(&self.election);
            if record.about.stands.is_empty() {
                record.state = State::Gone;
            }
            record.counter += 1;
            record.nonce = runtime::HOST.step().nonce;
            let value = Bytes::from(record.encode());
            let expect = Expect::Version(standing.version);
            match self.store.put(&key, value, &expect).await {
                Ok(_) => return self.left(&key, record).await,
                Err(tenure_store::Error::Conflict { .. }) => {}
                Err(tenure_store::Error::Unknown { .. }) => sent = Some(record),
                Err(error) => return Err(error.into()),
            }
            let Some((record, object)) = self.candidate(&key).await? else {
                return Ok(Withdrawal::Done);
            };
            if let Some(sent) = sent.take_if(|sent| sent.nonce == record.nonce) {
                return self.left(&key, sent).await;
            }
            if record.state != State::Alive {
                return Ok(Withdrawal::Done);
            }
            standing = Standing {
                record,
                version: object.version,
                age: object.age,
            };
            self.wait_for_a_turn(begun, attempt).await;
        }
        Err(busy(&holder.node))
    }

    /// What is to be done when it is written that a session stands in the election no longer.
    async fn left(&self, key: &Key, record: Record) -> Result<Withdrawal, Error> {
        if record.state == State::Gone {
            // Nothing depends on it: whoever reads it next tries again.
            let _ = self.store.delete(key).await;
        } else {
            self.give_back(&record.holder(), None).await?;
        }
        Ok(Withdrawal::Done)
    }

    /// Gives the lease back if this session holds it, in the term that is named if one is; or if it is reserved for this
    /// session and no term is named.
    async fn give_back(&self, holder: &Holder, term: Option<Term>) -> Result<GivenBack, Error> {
        let mut call = Call::new(self, holder.clone(), Moment::default());
        // An earlier call led it, or this one would not find it.
        call.machine.give_up_found();
        let mut given_back = GivenBack::NotHeld;
        let give_up = HOST.moment() + CALL_MAX.min(self.config.ttl);
        // A machine that does not stand gives back whatever it finds in its hands.
        while !call.machine.holds_nothing() {
            if HOST.moment() >= give_up {
                self.view.lease(&self.election).await?;
                return Err(self.contended());
            }
            let is_reserved = call.machine.reservation().is_some();
            if is_reserved && term.is_some() {
                return Ok(given_back);
            }
            if let Some((_, Request::WriteLease { lease, .. })) = call.requests.last()
                && !is_reserved
            {
                if term.is_some_and(|term| lease.term != term) {
                    return Ok(GivenBack::OtherTerm);
                }
                given_back = GivenBack::Yes;
            }
            call.turn().await;
        }
        Ok(given_back)
    }

    /// Whether a session that has just taken the lease still stands in the election. A withdrawal at the same time writes the
    /// session and then looks at the lease; the lease was written before this looks at the session. So one of them finds the other.
    async fn still_stands(&self, holder: &Holder) -> Result<bool, Error> {
        let found = self.candidate(&self.keys.session(holder)).await?;
        Ok(found.is_some_and(|(record, _)| {
            record.state == State::Alive && record.about.stands.contains_key(&self.election)
        }))
    }

    /// Notes what this call saw of the leader's session, for the next one on this host. Costs a list, a read
    /// and a write, and nothing where the store tells ages or the version is the one that was noted.
    async fn keep_sighting(&self, id: &NodeId, sighting: &Sighting) -> Result<(), Error> {
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
    async fn beat(&self, id: &NodeId, found: Option<Found>) -> Result<Session, Error> {
        let mut found = match found {
            Some(found) => found,
            None => self.find(id).await?,
        };
        let passed = match (&found.own, &self.bounds) {
            (None, None) => self.sweep(None).await,
            (None, Some(bounds)) => bounds.admit_candidate(self).await?,
            (Some(own), Some(bounds)) => {
                // Whoever sets bounds runs a node, which watches.
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
            let begun = HOST.moment();
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
            record.nonce = runtime::HOST.step().nonce;
            // Never shorter than an earlier call was told that it may act.
            record.ttl = record.ttl.max(self.config.ttl);
            change(&mut record);
            let started = HOST.moment();
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
    async fn wait_for_a_turn(&self, begun: Moment, attempt: u32) {
        let turn = HOST.moment().since(begun);
        let most = turn.saturating_mul(2 * attempt);
        tokio::time::sleep(chance_of(most.min(PAUSE_MAX))).await;
    }

    fn contended(&self) -> Error {
        Error::Contended {
            election: self.election.clone(),
        }
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
            incarnation: Incarnation(uuid::Uuid::new_v4().as_u128()),
            counter: 0,
            nonce: Nonce::default(),
            ttl: self.config.ttl,
            state: State::Alive,
            joined_at: HOST.now().wall,
            about: Box::new(About {
                labels: [(LABEL.to_owned(), "true".to_owned())].into(),
                secret_digest: self.secret_digest.clone(),
                ..About::default()
            }),
        }
    }

    /// The session of `id` that has not ended. An ended one is never revived: whoever ended it may be
    /// taking what it held, so the candidate starts over as a new incarnation.
    ///
    /// A call that was dropped may have made one more, however late. It holds nothing: the one that leads counts.
    async fn find(&self, id: &NodeId) -> Result<Found, Error> {
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
        let mut chosen = 0;
        if own.len() > 1 {
            let lease = self.view.lease(&self.election).await?;
            let holder = lease.as_ref().and_then(|(lease, _)| lease.holder());
            let leads = |record: &Record| {
                holder.is_some_and(|holder| holder.incarnation == record.incarnation)
            };
            let stands = |record: &Record| record.about.stands.contains_key(&self.election);
            let place = own.iter().position(|(_, record, _)| leads(record));
            let place = place.or_else(|| own.iter().position(|(_, record, _)| stands(record)));
            chosen = place.unwrap_or_default();
        }
        for (place, (key, record, object)) in own.into_iter().enumerate() {
            let standing = Standing {
                record,
                version: object.version.clone(),
                age: object.age,
            };
            if place == chosen {
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

    /// The session of a candidate of this interface.
    async fn candidate(&self, key: &Key) -> Result<Option<(Record, Object)>, Error> {
        let Some(object) = self.store.get(key).await? else {
            return Ok(None);
        };
        let record = Record::decode(&object.value).ok();
        let record = record.filter(is_one_shot);
        Ok(record.map(|record| (record, object)))
    }

    /// Whether one who stays should look for the dead: when its note has become useful, and now and then.
    fn is_due(&self, own: &Record) -> bool {
        let passed = own.about.passed.as_deref().zip(HOST.reading());
        let age = passed.and_then(|(passed, now)| passed.age(now, HOST.now().wall));
        match age {
            Some(age) if age < KEPT_MIN => false,
            Some(age) if age >= kept(own.ttl) => true,
            // Young, or of another host, or there is none.
            _ => chance().is_multiple_of(LOOKS_ONCE_IN),
        }
    }

    /// Removes some of those that are long dead, and returns what a caller notes for those who come later, if it should: one who stays
    /// keeps its note until it has been useful. Whatever fails is for the next one to do.
    async fn sweep(&self, own: Option<&Record>) -> Option<Box<Glance>> {
        let page = self.store.list(&self.keys.nodes(), None).await.ok()?;
        // What was listed stood so by now.
        let (listed_at, wall) = (HOST.reading(), HOST.now().wall);
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
        for (_, entry) in some_of(&listed).take(LOOKED_AT) {
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
        for (entry, stood) in some_of(&quiet).take(REMOVED_AT_ONCE) {
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
        let sessions = some_of(&listed);
        let sessions = sessions.map(|(incarnation, entry)| (*incarnation, entry.version.tag()));
        Some(Box::new(Glance::new(sessions, listed_at?, wall)))
    }

    /// Removes what a candidate has left behind, if this version has stood for so long. One that is gone has given
    /// everything back before it said so. One that was not heard of for long is evicted first, like any dead leader, and
    /// deleted when it has been so for as long.
    async fn tidy(&self, key: &Key, mut record: Record, object: Object, stood: Option<Duration>) {
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

fn busy(id: &NodeId) -> Error {
    Error::CandidateBusy { node: id.clone() }
}

/// Any number.
fn chance() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

/// Any time up to this one.
fn chance_of(most: Duration) -> Duration {
    let nanoseconds = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(chance() % nanoseconds.max(1))
}

/// All of them once, from any place on: another one each time.
fn some_of<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let places = all.len();
    let start = usize::try_from(chance() % places.max(1) as u64).unwrap_or_default();
    all.iter().cycle().skip(start).take(places)
}

/// Whether a session is that of a one-shot candidate, and not of a running node.
#[must_use]
pub fn is_one_shot(record: &Record) -> bool {
    record.is_one_shot()
}

/// What became of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenBack {
    /// The session held it, and holds it no longer.
    Yes,
    /// The session did not hold it.
    NotHeld,
    /// The session holds it in another term than the one that was named.
    OtherTerm,
}

/// What to do for a candidate without a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Create,
    Leave,
}

/// A session as this call has written it.
struct Session {
    record: Record,
    trusted_until: Moment,
}

/// The core's machines, for as long as one call takes.
struct Call<'a> {
    elections: &'a OneShot,
    me: Incarnation,
    machine: Machine,
    observer: Observer,
    requests: Vec<(From, Request)>,
    /// The lease was written by this call, and not only found.
    has_written_lease: bool,
    /// The store failed to answer the last request, so waiting means nothing.
    is_troubled: bool,
    leader: Option<Leader>,
    token: Option<Token>,
    /// What an earlier call saw of the leader's session.
    seen: Option<Sighting>,
    /// What this one saw of it, if the next one should know.
    sighting: Option<Sighting>,
    /// What it saw of a lease that is reserved, likewise.
    reserved: Option<Sighting>,
    /// The lease was read, and means nothing to this version.
    is_unreadable: bool,
}

/// Which machine made a request, about what.
#[derive(Clone, Copy)]
enum From {
    Lease,
    Fence,
    Session(Incarnation),
}

impl<'a> Call<'a> {
    fn new(elections: &'a OneShot, me: Holder, trusted_until: Moment) -> Self {
        let now = HOST.moment();
        let config = elections.config.clone();
        let new_lineage = Lineage(uuid::Uuid::new_v4().as_u128());
        let mut call = Self {
            elections,
            me: me.incarnation,
            observer: Observer::new(config.clone(), me.node.clone(), 0),
            machine: Machine::new(config, me, new_lineage, now, 0),
            requests: Vec::new(),
            has_written_lease: false,
            is_troubled: false,
            leader: None,
            token: None,
            seen: None,
            sighting: None,
            reserved: None,
            is_unreadable: false,
        };
        call.step(Input::Trusted(trusted_until));
        call
    }

    /// Who else is to follow.
    fn reserved_for(&self) -> Option<&Holder> {
        let candidate = self.machine.reservation();
        candidate.filter(|candidate| candidate.incarnation != self.me)
    }

    /// What the next call should know of this one.
    fn noted(&mut self) -> Option<Sighting> {
        match self.reserved_for() {
            Some(_) => self.reserved.take(),
            None => self.sighting.take(),
        }
    }

    /// Whether someone else leads, or is to follow, and there is nothing to do about it now.
    fn is_lost(&self) -> bool {
        let wake_at = self.machine.wake_at().min(self.observer.wake_at());
        let someone_leads = self
            .leader
            .as_ref()
            .is_some_and(|leader| leader.incarnation != self.me);
        let is_taken = someone_leads || self.reserved_for().is_some();
        is_taken && self.requests.is_empty() && !self.is_troubled && wake_at > HOST.moment()
    }

    /// One request and its answer, or a sleep until the next is due.
    async fn turn(&mut self) {
        let Some((from, request)) = self.requests.pop() else {
            HOST.sleep_towards(self.machine.wake_at().min(self.observer.wake_at()))
                .await;
            self.step(Input::Wake);
            return self.observe(observer::Input::Wake);
        };
        let OneShot {
            store,
            keys,
            config,
            ..
        } = self.elections;
        self.has_written_lease |= matches!(request, Request::WriteLease { .. });
        let answer = carry_out(&**store, keys, request, config.request_timeout).await;
        self.is_troubled = matches!(
            answer,
            Answer::Written(Written::NotApplied | Written::Unknown)
                | Answer::Lease(Read::Failed)
                | Answer::Fence(Read::Failed)
                | Answer::Session(Read::Failed)
        );
        match (from, answer) {
            (From::Lease, Answer::Lease(read)) => {
                self.is_unreadable = matches!(read, Read::Unreadable { .. });
                let read = self.recall_lease(read);
                self.step(Input::LeaseRead(read));
            }
            (From::Lease, Answer::Written(written)) => self.step(Input::LeaseWritten(written)),
            (From::Fence, Answer::Fence(read)) => self.step(Input::FenceRead(read)),
            (From::Fence, Answer::Written(written)) => self.step(Input::FenceWritten(written)),
            (From::Session(who), Answer::Session(read)) => {
                let read = self.recall(who, read);
                self.observe(observer::Input::Read(who, read));
            }
            (From::Session(who), Answer::Written(written)) => {
                self.observe(observer::Input::Evicted(who, written));
            }
            _ => unreachable!("an answer is of the kind of its request"),
        }
    }

    /// Where the store cannot say how old a version is, an earlier call may have seen it.
    fn recall(&mut self, who: Incarnation, mut read: Read<Record>) -> Read<Record> {
        if let Read::Found { version, age, .. } = &mut read
            && age.is_none()
            && let Some(now) = HOST.reading()
        {
            let seen = self.seen.as_ref();
            *age = seen.and_then(|seen| seen.age(who, version, now));
            self.sighting = match age {
                Some(_) => None,
                None => Some(Sighting::new(who, version, now)),
            };
        }
        read
    }

    /// The same for a lease that is reserved: it is for a while, and each call sees a moment of that.
    fn recall_lease(&mut self, mut read: Read<Lease>) -> Read<Lease> {
        if let Read::Found {
            record,
            version,
            age,
        } = &mut read
            && age.is_none()
            && let Some(Holder { incarnation, .. }) = record.reserved_for()
            && let Some(now) = HOST.reading()
        {
            let seen = self.seen.as_ref();
            *age = seen.and_then(|seen| seen.age_of_reserved(*incarnation, version, now));
            self.reserved = match age {
                Some(_) => None,
                None => Some(Sighting::of_reserved(*incarnation, version, now)),
            };
        }
        read
    }

    fn step(&mut self, input: Input) {
        for output in self.machine.step(runtime::HOST.step(), input) {
            let election = self.elections.election.clone();
            let request = match output {
                Output::ReadLease { known } => {
                    (From::Lease, Request::ReadLease { election, known })
                }
                Output::WriteLease { lease, expect } => (
                    From::Lease,
                    Request::WriteLease {
                        election,
                        lease,
                        expect,
                    },
                ),
                Output::ReadFence => (From::Fence, Request::ReadFence { election }),
                Output::WriteFence { fence, expect } => (
                    From::Fence,
                    Request::WriteFence {
                        election,
                        fence,
                        expect,
                    },
                ),
                Output::Watch(holder) => {
                    self.observe(observer::Input::Watch(holder));
                    continue;
                }
                Output::Forget(incarnation) => {
                    self.observe(observer::Input::Forget(incarnation));
                    continue;
                }
                Output::Leader(leader) => {
                    self.leader = leader;
                    continue;
                }
                Output::Elected { term, lineage } => {
                    self.token = Some(Token { lineage, term });
                    continue;
                }
                Output::Anomaly(anomaly) => {
                    tracing::error!(%election, "{anomaly}");
                    continue;
                }
                // A call ends as soon as it is elected, so it sees no end of a term; and it renews no session, so that
                // what it cannot read is free when that has run out.
                Output::Blind => continue,
                Output::Stop { .. } | Output::Ended { .. } => continue,
            };
            self.requests.push(request);
        }
    }

    fn observe(&mut self, input: observer::Input) {
        for output in self.observer.step(HOST.moment(), input) {
            match output {
                observer::Output::Read { holder, known } => {
                    let from = From::Session(holder.incarnation);
                    self.requests
                        .push((from, Request::ReadSession { holder, known }));
                }
                observer::Output::Evict {
                    holder,
                    record,
                    expect,
                } => {
                    let from = From::Session(holder.incarnation);
                    self.requests
                        .push((from, Request::WriteSession { record, expect }));
                }
                observer::Output::Missing { incarnation } => {
                    self.step(Input::HolderMissing(incarnation));
                }
                observer::Output::Ended { incarnation, end } => {
                    self.step(Input::HolderEnded(incarnation, end));
                }
            }
        }
    }
}
