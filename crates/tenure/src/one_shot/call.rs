//! A look at a lease: the core's machines, for as long as one call takes.

use std::time::Duration;

use tenure_core::election::{Election as Machine, Input, Leader, Lease, Output};
use tenure_core::node::{Answer, Request};
use tenure_core::session::observer::{self, Observer};
use tenure_core::session::{Holder, Record, Sighting};
use tenure_core::{Incarnation, Lineage, Moment, Read, Written};

use super::OneShot;
use crate::requests::carry_out;
use crate::{Runtime, Token};

/// The core's machines, for as long as one call takes.
pub(super) struct Call<'a> {
    elections: &'a OneShot,
    pub(super) me: Incarnation,
    pub(super) machine: Machine,
    observer: Observer,
    pub(super) requests: Vec<(From, Request)>,
    /// The lease was written by this call, and not only found.
    pub(super) has_written_lease: bool,
    /// The store failed to answer the last request, so waiting means nothing.
    is_troubled: bool,
    pub(super) leader: Option<Leader>,
    pub(super) token: Option<Token>,
    /// What an earlier call saw of the leader's session.
    pub(super) seen: Option<Sighting>,
    /// What this one saw of it, if the next one should know.
    sighting: Option<Sighting>,
    /// What it saw of a lease that is reserved or lapses, likewise.
    of_lease: Option<Sighting>,
    /// Whose session is looked at, and its ttl.
    watched: Option<(Incarnation, Duration)>,
    /// The lease ends by itself, since its holder was asked to go.
    is_lapsing: bool,
    /// For how long the lease says that the caller is trusted without a call, if the caller holds it.
    pub(super) held_ttl: Option<Duration>,
    /// The caller holds the lease and is asked to go.
    pub(super) is_asked: bool,
    /// The lease was read, and means nothing to this version.
    pub(super) is_unreadable: bool,
}

/// Which machine made a request, about what.
#[derive(Clone, Copy)]
pub(super) enum From {
    Lease,
    Fence,
    Session(Incarnation),
}

impl<'a> Call<'a> {
    pub(super) fn new(elections: &'a OneShot, me: Holder, trusted_until: Moment) -> Self {
        let runtime = &elections.runtime;
        let now = runtime.clock.moment();
        let config = elections.config.clone();
        let new_lineage = Lineage(runtime.unique().as_u128());
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
            of_lease: None,
            watched: None,
            is_lapsing: false,
            held_ttl: None,
            is_asked: false,
            is_unreadable: false,
        };
        call.step(Input::Trusted(trusted_until));
        call
    }

    fn runtime(&self) -> &'a Runtime {
        &self.elections.runtime
    }

    /// Who else is to follow.
    pub(super) fn reserved_for(&self) -> Option<&Holder> {
        let candidate = self.machine.reservation();
        candidate.filter(|candidate| candidate.incarnation != self.me)
    }

    /// What the next call should know of this one.
    pub(super) fn noted(&mut self) -> Option<Sighting> {
        if self.is_lapsing || self.reserved_for().is_some() {
            self.of_lease.take()
        } else {
            self.sighting.take()
        }
    }

    /// Whether someone else leads, or is to follow, and there is nothing to do about it now.
    pub(super) fn is_lost(&self) -> bool {
        let someone_leads = self
            .leader
            .as_ref()
            .is_some_and(|leader| leader.incarnation != self.me);
        let is_taken = someone_leads || self.reserved_for().is_some();
        is_taken && !self.is_troubled && self.is_idle()
    }

    /// Whether the next turn is a sleep.
    pub(super) fn is_idle(&self) -> bool {
        let wake_at = self.machine.wake_at().min(self.observer.wake_at());
        self.requests.is_empty() && wake_at > self.runtime().clock.moment()
    }

    /// One request and its answer, or a sleep until the next is due.
    pub(super) async fn turn(&mut self) {
        let Some((from, request)) = self.requests.pop() else {
            let wake_at = self.machine.wake_at().min(self.observer.wake_at());
            self.runtime().clock.sleep_towards(wake_at).await;
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
            (From::Session(who), Answer::Session(Read::Missing)) if self.was_missing(who) => {
                self.step(Input::HolderEnded(who, observer::End::Missing));
            }
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
            && let Some(now) = self.runtime().clock.reading()
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

    /// Whether a session that is missing was missing a whole ttl ago: its owner no longer trusts itself. No store can
    /// say how old that is.
    fn was_missing(&mut self, who: Incarnation) -> bool {
        let Some(now) = self.runtime().clock.reading() else {
            return false;
        };
        let missing_for = self
            .seen
            .as_ref()
            .and_then(|seen| seen.missing_for(who, now));
        if missing_for.is_none() {
            self.sighting = Some(Sighting::of_missing(who, now));
        }
        let ttl = self.watched.filter(|&(watched, _)| watched == who);
        ttl.is_some_and(|(_, ttl)| missing_for.is_some_and(|missing_for| missing_for >= ttl))
    }

    /// The same for a lease that is reserved, or whose holder was asked to go: it is for a while, and each call sees a
    /// moment of that.
    fn recall_lease(&mut self, mut read: Read<Lease>) -> Read<Lease> {
        let Read::Found {
            record,
            version,
            age,
        } = &mut read
        else {
            return read;
        };
        let mine = record
            .holder()
            .filter(|holder| holder.incarnation == self.me);
        self.held_ttl = mine.map(|holder| holder.ttl);
        let lapsing = record.lapsing().map(|(holder, _)| holder);
        self.is_lapsing = lapsing.is_some();
        if age.is_none()
            && let Some(Holder { incarnation, .. }) = record.reserved_for().or(lapsing)
            && let Some(now) = self.runtime().clock.reading()
        {
            let seen = self.seen.as_ref();
            *age = seen.and_then(|seen| seen.age_of_lease(*incarnation, version, now));
            self.of_lease = match age {
                Some(_) => None,
                None => Some(Sighting::of_lease(*incarnation, version, now)),
            };
        }
        read
    }

    pub(super) fn step(&mut self, input: Input) {
        for output in self.machine.step(self.runtime().step(), input) {
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
                // Asked to go, as the lease said when it was looked at last: what it is told now is that.
                Output::Stop { .. } => {
                    self.token = None;
                    self.is_asked = true;
                    continue;
                }
                // A call ends as soon as it is elected, so it sees no end of a term; and it renews no session, so that
                // what it cannot read is free when that has run out.
                Output::Blind | Output::Ended { .. } => continue,
            };
            self.requests.push(request);
        }
    }

    fn observe(&mut self, input: observer::Input) {
        for output in self.observer.step(self.runtime().clock.moment(), input) {
            match output {
                observer::Output::Read { holder, known } => {
                    self.watched = Some((holder.incarnation, holder.ttl));
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
