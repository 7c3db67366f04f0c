//! Elections without a background loop: for cron jobs, scripts and web handlers.
//!
//! Every call stands alone; all state is in the store. A candidate registers with an expiry and says so
//! again from time to time; [`OneShot::elect`] gives the leadership to the caller if it is free, and says
//! who has it otherwise. Nobody is pushed out.
//!
//! The candidate is known by its id alone, so two programs that use one id are one candidate to this
//! interface; a program that needs more should run a [`Node`](crate::Node).
//!
//! A candidate that stopped to call is found out by the age that the store reports for its session, so
//! this needs a store that knows it: every durable engine does.
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
use tenure_core::election::machine::{Input, Leader, Output};
use tenure_core::election::{Election as Machine, machine::PRIORITY_DEFAULT};
use tenure_core::node::{Answer, Request};
use tenure_core::session::observer::{self, Observer};
use tenure_core::session::record::About;
use tenure_core::session::{Config, Holder, Record, State};
use tenure_core::{ElectionName, Incarnation, Lineage, Moment, Namespace, NodeId, Read, Written};
use tenure_store::{Expect, Store, Version, list_all};

use crate::clock::HOST;
use crate::inspect::{Candidate, Namespaced, candidates};
use crate::keys::Keys;
use crate::requests::carry_out;
use crate::{Error, Token};

/// Marks the sessions of this interface, so that they are told from those of running nodes.
const LABEL: &str = "tenure.one-shot";

/// The election that is meant if none is named.
const ELECTION: &str = "default";

/// How often a write is tried against others, or an answer settled, before giving up.
const ATTEMPTS_MAX: usize = 20;

/// One-shot elections in a namespace.
#[derive(Debug, Clone)]
pub struct OneShot {
    store: Arc<dyn Store>,
    keys: Keys,
    view: Namespaced,
    config: Config,
    election: ElectionName,
}

/// What an election came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Who leads; `None` only if the lease is reserved for a candidate that has not taken it yet.
    pub leader: Option<Leader>,
    /// The fencing token, if the caller leads.
    pub token: Option<Token>,
    /// How long the caller may act as the leader from now on, at least, without another call. Zero if it
    /// does not lead.
    pub valid_for: Duration,
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
}

impl OneShot {
    /// Elections in a namespace whose candidates expire `ttl` after their last call.
    pub fn new(store: Arc<dyn Store>, namespace: &str, ttl: Duration) -> Result<Self, Error> {
        let config = Config::for_ttl(ttl);
        config.check()?;
        let namespace = Namespace::new(namespace)?;
        let keys = Keys::new(namespace.clone());
        let view = Namespaced::new(store.clone(), namespace);
        let election = ElectionName::new(ELECTION)?;
        Ok(Self {
            store,
            keys,
            view,
            config,
            election,
        })
    }

    /// The same for another election of the namespace than `default`. A candidate of several has one session, so
    /// each call keeps it in all of them.
    pub fn with_election(self, name: &str) -> Result<Self, Error> {
        let election = ElectionName::new(name)?;
        Ok(Self { election, ..self })
    }

    /// Makes `id` a candidate, or says that it still is one. One list, one read and one write.
    pub async fn register_candidate(&self, id: &NodeId) -> Result<(), Error> {
        self.beat(id).await.map(drop)
    }

    /// The same as [`OneShot::register_candidate`].
    pub async fn heartbeat(&self, id: &NodeId) -> Result<(), Error> {
        self.register_candidate(id).await
    }

    /// Registers `id` and lets it lead if nobody does. Returns at once if someone else leads; waits only
    /// where the protocol has to, after a lease was deleted or while it is reserved.
    pub async fn elect(&self, id: &NodeId) -> Result<Outcome, Error> {
        let (me, mut trusted_until) = self.beat(id).await?;
        let mut call = Call::new(self, me, trusted_until);
        call.step(Input::Stand(PRIORITY_DEFAULT));
        let give_up = HOST.moment() + self.config.ttl * 3;
        while call.token.is_none() && !call.is_lost() {
            if HOST.moment() >= give_up {
                return Err(Error::Contended {
                    election: self.election.clone(),
                });
            }
            if HOST.moment() + self.config.grace >= trusted_until {
                trusted_until = self.beat(id).await?.1;
                call.step(Input::Trusted(trusted_until));
            }
            call.turn().await;
        }
        let valid_for = match call.token {
            Some(_) => trusted_until.since(HOST.moment()),
            None => Duration::ZERO,
        };
        let token = call.token.filter(|_| !valid_for.is_zero());
        Ok(Outcome {
            leader: call.leader,
            token,
            valid_for,
        })
    }

    /// Whether `id` leads, as the store has it now. To act on it, use [`OneShot::elect`], which also says
    /// for how long.
    pub async fn is_leader(&self, id: &NodeId) -> Result<bool, Error> {
        let status = self.view.status(&self.election).await?;
        let Some(holder) = status.leader() else {
            return Ok(false);
        };
        let is_live = status
            .candidates
            .iter()
            .any(|candidate| candidate.holder == *holder);
        Ok(holder.node == *id && is_live)
    }

    /// The live candidates.
    pub async fn list_candidates(&self) -> Result<Vec<Candidate>, Error> {
        candidates(&*self.store, &self.keys, &self.election).await
    }

    /// Takes `id` off the list, and vacates its leadership first if it has it.
    pub async fn unregister_candidate(&self, id: &NodeId) -> Result<(), Error> {
        let Some(Standing { record, .. }) = self.find(id).await? else {
            return Ok(());
        };
        let mut call = Call::new(self, record.holder(), Moment::default());
        let give_up = HOST.moment() + self.config.ttl;
        // A machine that does not stand gives back whatever it finds in its hands.
        while !call.machine.holds_nothing() {
            if HOST.moment() >= give_up {
                return Err(Error::Contended {
                    election: self.election.clone(),
                });
            }
            call.turn().await;
        }
        let stand_down = |record: &mut Record| {
            record.about.stands.remove(&self.election);
            if record.about.stands.is_empty() {
                record.state = State::Gone;
            }
        };
        self.write(id, stand_down).await.map(drop)
    }

    /// Renews the session of `id`, or makes one, and returns until when it is trusted.
    async fn beat(&self, id: &NodeId) -> Result<(Holder, Moment), Error> {
        let stand = |record: &mut Record| {
            let stands = &mut record.about.stands;
            stands.insert(self.election.clone(), PRIORITY_DEFAULT);
        };
        self.write(id, stand).await
    }

    /// Changes the session of `id`, once, whatever happens to the answers.
    async fn write(
        &self,
        id: &NodeId,
        change: impl Fn(&mut Record),
    ) -> Result<(Holder, Moment), Error> {
        // A write of ours whose answer was lost is recognised by its incarnation and counter.
        let mut lost: Option<(Incarnation, u64, Moment)> = None;
        for _ in 0..ATTEMPTS_MAX {
            let found = self.find(id).await?;
            if let (Some(Standing { record, .. }), Some((incarnation, counter, started))) =
                (&found, lost)
                && (record.incarnation, record.counter) == (incarnation, counter)
            {
                return Ok((record.holder(), self.trust(started)));
            }
            let (mut record, expect) = match found {
                Some(Standing { record, version }) => (record, Expect::Version(version)),
                None => (self.new_record(id), Expect::Absent),
            };
            record.counter += 1;
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
                Ok(_) => return Ok((record.holder(), self.trust(started))),
                Err(tenure_store::Error::Conflict { .. }) => {}
                Err(tenure_store::Error::Unknown { .. }) => {
                    lost = Some((record.incarnation, record.counter, started));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended {
            election: self.election.clone(),
        })
    }

    fn trust(&self, started: Moment) -> Moment {
        started + (self.config.ttl - self.config.margin)
    }

    fn new_record(&self, id: &NodeId) -> Record {
        Record {
            node: id.clone(),
            incarnation: Incarnation(uuid::Uuid::new_v4().as_u128()),
            counter: 0,
            ttl: self.config.ttl,
            state: State::Alive,
            joined_at: HOST.now().wall,
            about: About {
                labels: [(LABEL.to_owned(), "true".to_owned())].into(),
                ..About::default()
            },
        }
    }

    /// The session of `id` that has not ended. An ended one is never revived: whoever ended it may be
    /// taking what it held, so the candidate starts over as a new incarnation.
    async fn find(&self, id: &NodeId) -> Result<Option<Standing>, Error> {
        for entry in list_all(&*self.store, &self.keys.sessions_of(id)).await? {
            let Some(object) = self.store.get(&entry.key).await? else {
                continue;
            };
            let Ok(record) = Record::decode(&object.value) else {
                continue;
            };
            if record.state == State::Alive && record.about.labels.contains_key(LABEL) {
                return Ok(Some(Standing {
                    record,
                    version: object.version,
                }));
            }
        }
        Ok(None)
    }
}

/// The core's machines, for as long as one call takes.
struct Call<'a> {
    elections: &'a OneShot,
    me: Incarnation,
    machine: Machine,
    observer: Observer,
    requests: Vec<(From, Request)>,
    /// The store failed to answer the last request, so waiting means nothing.
    is_troubled: bool,
    leader: Option<Leader>,
    token: Option<Token>,
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
            is_troubled: false,
            leader: None,
            token: None,
        };
        call.step(Input::Trusted(trusted_until));
        call
    }

    /// Whether someone else leads and there is nothing to do about it now.
    fn is_lost(&self) -> bool {
        let wake_at = self.machine.wake_at().min(self.observer.wake_at());
        let someone_leads = self
            .leader
            .as_ref()
            .is_some_and(|leader| leader.incarnation != self.me);
        someone_leads && self.requests.is_empty() && !self.is_troubled && wake_at > HOST.moment()
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
        let answer = carry_out(&**store, keys, request, config.request_timeout).await;
        self.is_troubled = matches!(
            answer,
            Answer::Written(Written::NotApplied | Written::Unknown)
                | Answer::Lease(Read::Failed)
                | Answer::Fence(Read::Failed)
                | Answer::Session(Read::Failed)
        );
        match (from, answer) {
            (From::Lease, Answer::Lease(read)) => self.step(Input::LeaseRead(read)),
            (From::Lease, Answer::Written(written)) => self.step(Input::LeaseWritten(written)),
            (From::Fence, Answer::Fence(read)) => self.step(Input::FenceRead(read)),
            (From::Fence, Answer::Written(written)) => self.step(Input::FenceWritten(written)),
            (From::Session(who), Answer::Session(read)) => {
                self.observe(observer::Input::Read(who, read));
            }
            (From::Session(who), Answer::Written(written)) => {
                self.observe(observer::Input::Evicted(who, written));
            }
            _ => unreachable!("an answer is of the kind of its request"),
        }
    }

    fn step(&mut self, input: Input) {
        for output in self.machine.step(HOST.now(), input) {
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
                // A call ends as soon as it is elected, so it sees no end of a term.
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
                observer::Output::Ended { incarnation, end } => {
                    self.step(Input::HolderEnded(incarnation, end));
                }
            }
        }
    }
}
