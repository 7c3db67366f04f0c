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
//! given before is over: a ttl after the request, whether or not it still calls, in this election or in others that keep its
//! session alive. That is counted from a look that showed the request, by each for itself: when a store says that the
//! request was written, nobody may have been able to see it yet. It cannot be given up by that call itself: the caller acts on what it was told before until it has
//! the answer.
//!
//! # What is left behind
//!
//! A candidate that withdraws deletes its session, after it has confirmed that it is marked as gone. A delete is not
//! conditional, and need not be: an incarnation is never used twice, so nobody writes this object again on purpose. A
//! doubled request of the past that creates it anew, however late, makes a session that holds nothing and that nobody
//! renews: it expires. Candidates that never came back are removed by the next one that registers, by those who stay, now and
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
use tenure_core::election::{Input, Leader, Lease, PRIORITY_DEFAULT, RequestKind, Term};
use tenure_core::node::Request;
use tenure_core::session::{Config, Holder, Record, Sighting, State};
use tenure_core::{ElectionName, Incarnation, Moment, Namespace, NodeId};
use tenure_store::{Expect, Key, Object, Store};

use crate::inspect::{Candidate, NamespaceView, candidates};
use crate::keys::Keys;
use crate::requests::{Chain, from_store};
use crate::{Error, Runtime, Token};

mod bounds;
mod call;
mod sessions;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) mod transaction;

pub use bounds::Bounds;
use call::Call;
use sessions::{Found, Session, Standing, busy};

/// Marks the sessions of this interface, so that they are told from those of running nodes.
pub(crate) const LABEL: &str = tenure_core::session::ONE_SHOT;

/// The election that is meant if none is named.
const ELECTION: &str = "default";

/// How often a write is tried against others, or an answer settled, before giving up.
const ATTEMPTS_MAX: u32 = 20;

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
    runtime: Runtime,
    /// Whether every request is part of a transaction of the caller's, which holds locks.
    is_in_transaction: bool,
}

/// What an election came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Who leads; `None` if nobody does.
    pub leader: Option<Leader>,
    /// Whom the lease is reserved for, if another was to follow and has not come yet. It may be taken from it at a later
    /// call, see [`RESERVED_MAX`](tenure_core::election::RESERVED_MAX).
    pub reserved_for: Option<Holder>,
    /// The fencing token, if the caller leads.
    pub token: Option<Token>,
    /// How long the caller may act as the leader from now on, at least, without another call. Zero if it
    /// does not lead.
    pub valid_for: Duration,
    /// Who asked the caller to give up the term that it led. It leads no longer; the lease passes on when it withdraws, or when
    /// what it was told before is over.
    pub asked_by: Option<NodeId>,
}

/// The outcome of a withdrawal.
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
            runtime: Runtime::default(),
            is_in_transaction: false,
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
    /// begin with `tenure.`. A candidate of several has one session for all that it
    /// entered with the same ttl, and each call keeps it in all of these. Elections that it entered with another ttl
    /// have a session of their own, since that is what their leases last by.
    pub fn with_election(self, name: &str) -> Result<Self, Error> {
        let election = ElectionName::of_users(name)?;
        Ok(Self { election, ..self })
    }

    /// The same with the clocks and the randomness of another host than this one, for tests.
    #[must_use]
    pub fn with_runtime(self, runtime: Runtime) -> Self {
        Self {
            view: self.view.with_runtime(runtime.clone()),
            runtime,
            ..self
        }
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
            self.view.lease_object(&self.election).await?
        } else {
            None
        };
        match (&lease, &self.bounds) {
            (Some((lease, object)), _) => {
                if let Some(asked) = self.asked(id, &found, lease, object).await? {
                    return Ok(asked);
                }
            }
            (None, Some(bounds)) => bounds.admit_election(self).await?,
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
        let begun = self.runtime.clock.moment();
        let mut give_up = begun + CALL_MAX.min(self.config.ttl * 3);
        while call.token.is_none() && !call.is_asked && !call.is_lost() {
            if let Some(until) = call.machine.waits_until() {
                give_up = give_up.max(until + CALL_MAX);
            }
            if self.runtime.clock.moment() >= give_up || call.is_unreadable {
                // Perhaps it cannot be read: then that is what is wrong.
                self.view.lease(&self.election).await?;
                return Err(self.contended());
            }
            if self.runtime.clock.moment() + self.config.grace >= trusted_until {
                let session = self.beat(id, None).await?;
                // The session of another call has landed beside this one: what is trusted by it is not what is held.
                if session.record.incarnation != call.me {
                    return Err(self.contended());
                }
                trusted_until = session.trusted_until;
                call.step(Input::Trusted(trusted_until));
            }
            // Nobody sleeps on locks of the caller's.
            if self.is_in_transaction && call.is_idle() {
                return Err(match call.machine.waits_until() {
                    Some(_) => Error::MustWait {
                        election: self.election.clone(),
                    },
                    None => self.contended(),
                });
            }
            call.turn().await;
        }
        if call.token.is_some() && call.has_written_lease && !self.still_stands(&holder).await? {
            self.give_back(&holder, None).await?;
            return Err(self.contended());
        }
        // It was asked after the first look, and before it is told anything.
        if call.is_asked {
            let found = self.find(id).await?;
            if let Some((lease, object)) = self.view.lease_object(&self.election).await?
                && let Some(asked) = self.asked(id, &found, &lease, &object).await?
            {
                return Ok(asked);
            }
            return Err(self.contended());
        }
        // Never for longer than after a look at the lease that showed no request: a successor that sees one counts on that.
        if let Some((_, until)) = call.machine.leads_until() {
            trusted_until = trusted_until.min(until);
        }
        // Who had to wait acts for as long as one who led at once.
        if let Some(token) = call.token
            && self.runtime.clock.moment().since(begun) >= self.config.heartbeat
            && let Ok(session) = self.beat(id, None).await
            && session.record.incarnation == call.me
        {
            let looked_at = self.runtime.clock.moment();
            if let Ok(Some((lease, _))) = self.view.lease_object(&self.election).await
                && is_held_by(&lease, call.me)
                && lease.term == token.term
                && lease.request.is_none()
            {
                let seen_until = looked_at + (self.config.ttl - self.config.margin);
                trusted_until = session.trusted_until.min(seen_until);
            }
        }
        // A term that was begun with a shorter ttl ends as soon after a request as that says.
        if let Some(held_ttl) = call.held_ttl.filter(|held_ttl| *held_ttl < self.config.ttl) {
            let shorter = Config::for_ttl(held_ttl);
            let more = (self.config.ttl - self.config.margin) - (shorter.ttl - shorter.margin);
            trusted_until = trusted_until - more;
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
            Some(_) => trusted_until.since(self.runtime.clock.moment()),
            None => Duration::ZERO,
        };
        let token = call.token.filter(|_| !valid_for.is_zero());
        Ok(Outcome {
            leader: call.leader,
            reserved_for,
            token,
            valid_for,
            asked_by: None,
        })
    }

    /// If `id` leads and is asked not to, what it is told. Its session is not renewed for this election. What the caller was
    /// told before holds for less than a ttl after the request was written: each call looks at the lease after it has
    /// renewed the session, and tells the caller that it leads only if there was none. When that time is over the lease is
    /// given back here. Others need not wait for this call: they count for themselves, see
    /// [`Lease::lapsing`], since the session may live on for other elections.
    async fn asked(
        &self,
        id: &NodeId,
        found: &Found,
        lease: &Lease,
        object: &Object,
    ) -> Result<Option<Outcome>, Error> {
        let Some(own) = &found.own else {
            return Ok(None);
        };
        let me = own.record.incarnation;
        let Some(request) = lease.request.clone().filter(|request| {
            let is_to_me =
                matches!(&request.kind, RequestKind::Transfer { to } if to.incarnation == me);
            is_held_by(lease, me) && !is_to_me
        }) else {
            return Ok(None);
        };
        let now = self.runtime.clock.reading();
        let noted = own.record.about.seen.get(&self.election);
        let noted = noted.zip(now);
        let version = from_store(&object.version);
        let noted = noted.and_then(|(noted, now)| noted.age_of_lease(me, &version, now));
        let is_over = |stood: Option<Duration>| stood.is_some_and(|stood| stood >= own.record.ttl);
        if is_over(own.age) {
            self.withdraw(id, None).await?;
        } else if is_over(noted) {
            self.give_back(&own.record.holder(), Some(lease.term))
                .await?;
        } else if noted.is_none()
            && let Some(now) = now
        {
            // Once for each request: this renews the session as well. The age of the lease itself may count from before an
            // earlier call of this candidate, which saw no request yet.
            let sighting = Sighting::of_lease(me, &version, now);
            self.keep_sighting(id, &sighting).await?;
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

    /// The same, and returns the outcome. With a term, only if the candidate leads that term: a withdrawal that was
    /// delayed, or is repeated, changes nothing in a later one.
    pub async fn withdraw(&self, id: &NodeId, term: Option<Term>) -> Result<Withdrawal, Error> {
        let found = self.find(id).await?;
        let mut own = found.own.into_iter().chain(found.own_others);
        let Some(first) = own.next() else {
            return Ok(Withdrawal::NotStanding);
        };
        let withdrawal = self.leave(first, term, term.is_some()).await?;
        if withdrawal == Withdrawal::Done {
            for other in own {
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
            let begun = self.runtime.clock.moment();
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
            record.nonce = self.runtime.step().nonce;
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
            // Nothing depends on it: the next reader tries again.
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
        let give_up = self.runtime.clock.moment() + CALL_MAX.min(self.config.ttl);
        // A machine that does not stand gives back whatever it finds in its hands.
        while !call.machine.holds_nothing() {
            if self.runtime.clock.moment() >= give_up {
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

    fn contended(&self) -> Error {
        Error::Contended {
            election: self.election.clone(),
        }
    }
}

/// Whether a session is that of a one-shot candidate, and not of a running node.
#[must_use]
pub fn is_one_shot(record: &Record) -> bool {
    record.is_one_shot()
}

fn is_held_by(lease: &Lease, me: Incarnation) -> bool {
    let holder = lease.holder();
    holder.is_some_and(|holder| holder.incarnation == me)
}

/// The outcome for the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenBack {
    /// The session held it, and holds it no longer.
    Yes,
    /// The session did not hold it.
    NotHeld,
    /// The session holds it in another term than the one that was named.
    OtherTerm,
}
