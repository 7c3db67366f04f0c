//! One process's part in one election.

mod install;
mod known;
mod requests;

use std::collections::BTreeSet;
use std::time::Duration;

use super::messages::{Anomaly, EndReason, Input, Leader, Output};
use super::record::{Fence, Lease, Request, RequestKind, Term};
use crate::random::Random;
use crate::session::observer::End;
use crate::session::{Config, Holder};
use crate::{Incarnation, Lineage, Moment, Now, Read, Version, Written};
use install::Install;

/// The default priority of a candidate: it tries at once.
pub const PRIORITY_DEFAULT: u8 = 100;

/// The machine. At most one request is in flight; the driver answers each with one input.
#[derive(Debug, Clone, Hash)]
pub struct Election {
    config: Config,
    random: Random,
    me: Holder,
    /// The priority of this candidate; `None` if it only observes.
    stands: Option<u8>,
    /// The lineage of the very first term, if this process begins it.
    new_lineage: Lineage,
    session: OwnSession,
    seen: Seen,
    /// Since when the lease has been held in this term, or by nobody, if this process saw that begin. For people: the
    /// lease says so when that is over.
    begun: Option<Moment>,
    past: Past,
    /// The session that holds the lease, or that it is reserved for, if it is known to have ended.
    ended: Option<(Incarnation, End, Moment)>,
    watches: Option<Incarnation>,
    phase: Phase,
    in_flight: Option<Flight>,
    /// Since when reads have failed; only counted while reads are tried.
    blind_since: Option<Moment>,
    /// When to look at the lease next.
    due: Moment,
    /// When the last look began that was answered.
    looked: Moment,
    knowledge: Knowledge,
    /// After a failure nothing is sent before then.
    retry_from: Moment,
    /// When to take the lease at the earliest: a leader that resigned leaves it to others for a while.
    take_from: Moment,
    give_back: GiveBack,
    /// How many lineages this process began, so that each differs.
    lineages: u128,
    /// The start of the last look, or write, that showed the lease to be ours.
    checked: Moment,
    /// The term whose work has not ended yet.
    working: Option<Term>,
    /// When the lease lapses because work did not stop, as it would if the process had died.
    lapses_at: Moment,
    /// The highest term that this process has led, or has decided not to lead: none is led twice.
    led: Term,
    /// Why the last term led here ended, for the history.
    last_end: Option<EndReason>,
    /// How many leases were written, so that each differs.
    writes: u64,
}

/// This process's session.
#[derive(Debug, Clone, Copy, Hash)]
enum OwnSession {
    /// Trusted for long enough to begin a term.
    Trusted { until: Moment },
    /// Not trusted, or not for long: a term that begins when trust is nearly out would be told to stop at once, and
    /// be taken again.
    Ending { until: Moment },
    /// Over, and a copy of this process may lead under it: the lease is not touched.
    Outrun,
}

impl OwnSession {
    fn trusted_until(self) -> Moment {
        match self {
            OwnSession::Trusted { until } | OwnSession::Ending { until } => until,
            OwnSession::Outrun => Moment::default(),
        }
    }
}

/// What this process has seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Past {
    /// No lease, as far as this process has seen.
    NoLease,
    /// A lease.
    Lease,
    /// A lease, and then neither lease nor fence.
    Wiped,
}

/// How far the last look at the lease can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Knowledge {
    /// A request has failed since the last look, or there was none.
    Stale,
    /// The lease was looked at, and no request has failed since.
    Fresh,
    /// After a conflict or a lost answer nothing is written before the lease was read.
    Unsettled,
}

/// Whether the lease is to be given back, and left to others for a while.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum GiveBack {
    No,
    ToAnyone,
    To(Holder),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Seen {
    Nothing,
    Lease {
        lease: Box<Lease>,
        version: Version,
        since: Moment,
    },
    Missing {
        since: Moment,
        fence: FenceSeen,
    },
    Unreadable {
        version: Version,
    },
}

/// What is known of the fence while the lease is missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FenceSeen {
    NotYet,
    Missing,
    /// There is a fence. The lease is read again before it counts as missing.
    Doubted(Fence),
    Found(Fence),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Following,
    Installing {
        term: Term,
        since: Moment,
        step: Install,
    },
    Leading {
        term: Term,
    },
    Stopping {
        term: Term,
        reason: EndReason,
        /// By then the work has had enough time to stop.
        until: Moment,
    },
}

#[derive(Debug, Clone, Hash)]
enum Flight {
    ReadLease {
        started: Moment,
        is_hinted: bool,
    },
    WriteLease {
        started: Moment,
        lease: Box<Lease>,
        is_hinted: bool,
    },
    ReadFence,
    WriteFence {
        fence: Fence,
    },
}

impl Flight {
    /// Takes a hint. The request under way may have been carried out before the change that the hint is about.
    fn hint(&mut self) {
        if let Flight::ReadLease { is_hinted, .. } | Flight::WriteLease { is_hinted, .. } = self {
            *is_hinted = true;
        }
    }
}

impl Election {
    /// Makes an election that this process observes; [`Input::Stand`] makes the process a candidate. `new_lineage` is a
    /// random id.
    #[must_use]
    pub fn new(config: Config, me: Holder, new_lineage: Lineage, now: Moment, seed: u64) -> Self {
        Self {
            random: Random::new(&config, seed),
            config,
            me,
            stands: None,
            new_lineage,
            session: OwnSession::Ending {
                until: Moment::default(),
            },
            seen: Seen::Nothing,
            begun: None,
            past: Past::NoLease,
            ended: None,
            watches: None,
            phase: Phase::Following,
            in_flight: None,
            blind_since: None,
            due: now,
            looked: Moment::default(),
            knowledge: Knowledge::Stale,
            retry_from: now,
            take_from: now,
            give_back: GiveBack::No,
            lineages: 0,
            checked: Moment::default(),
            working: None,
            lapses_at: Moment::NEVER,
            led: Term::default(),
            last_end: None,
            writes: 0,
        }
    }

    /// Until when this process may act as the leader; `None` if it does not lead.
    #[must_use]
    pub fn leads_until(&self) -> Option<(Term, Moment)> {
        match self.phase {
            Phase::Leading { term } | Phase::Stopping { term, .. } => {
                Some((term, self.trusted_until()))
            }
            Phase::Following | Phase::Installing { .. } => None,
        }
    }

    /// Who led the terms before this one, if the history names the leader of each.
    #[must_use]
    pub(crate) fn predecessors(&self) -> Option<BTreeSet<Incarnation>> {
        let (lease, _) = self.lease()?;
        let past = lease.history.iter().map(|past| past.term.0);
        let is_whole = past.eq(1..lease.term.0);
        is_whole.then(|| lease.history.iter().map(|past| past.incarnation).collect())
    }

    /// Who holds the lease, as last seen.
    #[must_use]
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.lease().and_then(|(lease, _)| leader_of(lease))
    }

    /// Whether the work of a term has not ended yet.
    #[must_use]
    pub fn is_working(&self) -> bool {
        self.working.is_some()
    }

    /// Whether the write that is under way is to the fence.
    #[must_use]
    pub(crate) fn writes_fence(&self) -> bool {
        matches!(self.in_flight, Some(Flight::WriteFence { .. }))
    }

    /// Whether this process has nothing to give back: it may leave. It does not wait for a look at a known lease: of
    /// many elections, one always looks.
    #[must_use]
    pub fn holds_nothing(&self) -> bool {
        let writes = matches!(
            self.in_flight,
            Some(Flight::WriteLease { .. } | Flight::WriteFence { .. })
        );
        self.phase == Phase::Following
            && self.working.is_none()
            && self.seen != Seen::Nothing
            && !writes
            && self.knowledge != Knowledge::Unsettled
            && !self.is_mine()
            && !self.is_reserved_in_vain()
    }

    /// Who the lease is reserved for, as last seen.
    #[must_use]
    pub fn reservation(&self) -> Option<&Holder> {
        self.reserved_for()
    }

    /// Until when this process, which has the lease, waits before it may lead: someone deleted the lease or restored an
    /// older copy, and another leader may not have noticed.
    #[must_use]
    pub fn waits_until(&self) -> Option<Moment> {
        match self.phase {
            Phase::Installing {
                step: Install::Wait { until, .. },
                ..
            } => Some(until),
            _ => None,
        }
    }

    /// The lease that this session holds is of a term that an earlier machine of the same session led. It counts as
    /// given up, and the history will say so. For a new machine that is not a candidate.
    pub fn give_up_found(&mut self) {
        self.last_end = Some(EndReason::Resigned);
    }

    /// When the machine wants [`Input::Wake`] next.
    #[must_use]
    pub fn wake_at(&self) -> Moment {
        let request_at = match self.in_flight {
            Some(_) => Moment::NEVER,
            None => self.due.min(self.wants_request_at()).max(self.retry_from),
        };
        let change_at = match &self.phase {
            Phase::Following
            | Phase::Installing {
                step: Install::Raised { .. },
                ..
            } => Moment::NEVER,
            Phase::Installing {
                step: Install::Wait { until, .. },
                ..
            } => *until,
            Phase::Installing { since, .. } => *since + self.config.ttl,
            Phase::Leading { .. } => self.trusted_until() - self.config.grace,
            Phase::Stopping { .. } => self.trusted_until(),
        };
        request_at.min(change_at).min(self.blind_at())
    }

    /// Takes an input and returns what to do.
    #[must_use]
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Wake => {}
            Input::Hint => {
                self.due = self.due.min(now.moment);
                if let Some(flight) = &mut self.in_flight {
                    flight.hint();
                }
            }
            Input::SiblingSeen => self.on_sibling_seen(now.moment),
            Input::Trusted(until) => {
                if !self.is_outrun() {
                    self.session = OwnSession::Ending { until };
                }
            }
            Input::SessionOver { gives_back } => {
                self.session = if gives_back {
                    OwnSession::Ending {
                        until: Moment::default(),
                    }
                } else {
                    OwnSession::Outrun
                };
                self.stands = None;
                self.lose(EndReason::SessionOver, &mut outputs);
            }
            Input::HolderEnded(incarnation, end) => {
                self.ended = Some((incarnation, end, now.moment));
            }
            Input::HolderMissing(incarnation) => {
                // Only a reservation ends at once. A leader whose session is missing may still trust itself for a ttl.
                let waits = |candidate: &Holder| candidate.incarnation == incarnation;
                if self.reserved_for().is_some_and(waits) {
                    self.ended = Some((incarnation, End::Missing, now.moment));
                }
            }
            Input::LeaseRead(read) => self.on_lease_read(now.moment, read, &mut outputs),
            Input::LeaseWritten(written) => {
                self.on_lease_written(now.moment, written, &mut outputs);
            }
            Input::FenceRead(read) => self.on_fence_read(now.moment, read, &mut outputs),
            Input::FenceWritten(written) => self.on_fence_written(now.moment, &written),
            Input::WorkEnded(term) => self.on_work_ended(term, &mut outputs),
            Input::Stand(priority) => self.stands = Some(priority),
            Input::StandDown => {
                self.stands = None;
                self.resign(now.moment, EndReason::Resigned, &mut outputs);
            }
            Input::Resign => self.resign(now.moment, EndReason::Resigned, &mut outputs),
            Input::GiveUp(why) => {
                self.resign(now.moment, EndReason::GaveUp { why }, &mut outputs);
            }
            Input::Transfer(to) => self.transfer(now.moment, to, &mut outputs),
        }
        self.on_time(now.moment, &mut outputs);
        self.request(now, &mut outputs);
        self.watch_holder(&mut outputs);
        outputs
    }

    // ---- answers ------------------------------------------------------------------------------------

    fn on_lease_read(&mut self, now: Moment, read: Read<Lease>, outputs: &mut Vec<Output>) {
        let Some(Flight::ReadLease { started, is_hinted }) = self.in_flight.take() else {
            return;
        };
        self.look_again(now, started, is_hinted);
        if read == Read::Failed {
            self.blind_since = self.blind_since.or(Some(started));
            self.due = now;
            self.back_off(now);
            return;
        }
        self.blind_since = None;
        // If the last look was not long ago, whatever has changed since has just changed.
        let looks_on = self.seen != Seen::Nothing && started.since(self.looked) < self.config.ttl;
        let begun = looks_on.then_some(now);
        self.looked = started;
        self.knowledge = Knowledge::Fresh;
        match read {
            Read::Failed => {}
            Read::Unchanged { .. } => self.on_lease(now, started, outputs),
            Read::Found {
                record,
                version,
                age,
            } => {
                let age = age.filter(|_| !self.config.strict_age);
                let before = self.led_in();
                let is_new = self.see(now, record, version, age, outputs);
                self.date(before, begun);
                self.on_lease(now, started, outputs);
                if is_new {
                    self.change_successor(now, outputs);
                }
            }
            Read::Unreadable { version } => {
                let seen = Seen::Unreadable { version };
                if self.seen != seen {
                    self.seen = seen;
                    outputs.push(Output::Anomaly(Anomaly::LeaseUnreadable));
                }
                self.no_longer_mine(now);
                self.lose(EndReason::LeaseDamaged, outputs);
            }
            Read::Missing => {
                match &mut self.seen {
                    Seen::Missing { fence, .. } => {
                        if let FenceSeen::Doubted(found) = fence {
                            let term = found.term;
                            *fence = FenceSeen::Found(found.clone());
                            outputs.push(Output::Anomaly(Anomaly::LeaseMissing { term }));
                        }
                    }
                    _ => {
                        self.seen = Seen::Missing {
                            since: now,
                            fence: FenceSeen::NotYet,
                        };
                        outputs.push(Output::Leader(None));
                    }
                }
                self.no_longer_mine(now);
                self.lose(EndReason::LeaseDeleted, outputs);
            }
        }
    }

    fn on_lease_written(&mut self, now: Moment, written: Written, outputs: &mut Vec<Output>) {
        let Some(Flight::WriteLease {
            started,
            lease,
            is_hinted,
        }) = self.in_flight.take()
        else {
            return;
        };
        match written {
            Written::Done(version) => {
                let has_no_fence = self.has_no_fence();
                let before = self.led_in();
                self.see(now, *lease, version, None, outputs);
                self.date(before, Some(now));
                self.on_lease(now, started, outputs);
                if has_no_fence {
                    self.on_no_fence_to_raise(now, outputs);
                }
                self.look_again(now, started, is_hinted);
            }
            Written::NotApplied => self.back_off(now),
            // Someone else's write, or our own that landed: look.
            Written::Conflict => {
                self.knowledge = Knowledge::Unsettled;
                self.due = now;
            }
            Written::Unknown => {
                self.knowledge = Knowledge::Unsettled;
                self.due = now;
                self.back_off(now);
            }
        }
    }

    /// The next look is due a heartbeat after this one, or at once if this one may have been too early.
    fn look_again(&mut self, now: Moment, started: Moment, is_hinted: bool) {
        let next = started + self.random.jitter(self.config.heartbeat);
        self.due = if is_hinted { now } else { next };
    }

    /// Another lease of the same session was seen unchanged, so this one can wait, but not for long.
    fn on_sibling_seen(&mut self, now: Moment) {
        let follows = self.phase == Phase::Following && !self.is_mine();
        if follows && self.knowledge == Knowledge::Fresh && self.due > now {
            let pause = self.random.jitter(self.config.heartbeat);
            let latest = self.looked + self.config.heartbeat * 2;
            self.due = self.due.max((now + pause).min(latest));
        }
    }

    /// Stops relying on the last look. What is unsettled stays so.
    fn doubt(&mut self) {
        if self.knowledge == Knowledge::Fresh {
            self.knowledge = Knowledge::Stale;
        }
    }

    /// Waits before the next request, since the store failed.
    fn back_off(&mut self, now: Moment) {
        self.doubt();
        self.retry_from = now + self.random.jitter(self.config.retry());
    }

    /// Takes the lease as it was seen. Returns whether it is another than the known one.
    fn see(
        &mut self,
        now: Moment,
        lease: Lease,
        version: Version,
        age: Option<Duration>,
        outputs: &mut Vec<Output>,
    ) -> bool {
        if self.lease().is_some_and(|(_, known)| *known == version) {
            return false;
        }
        let before = self.lease().map(|(lease, _)| leader_of(lease));
        let after = leader_of(&lease);
        if before != Some(after.clone()) {
            outputs.push(Output::Leader(after));
        }
        // Reported once, when it is first seen.
        let was_behind = self.lease().is_some_and(|(known, _)| known.term < self.led);
        if lease.term < self.led && !was_behind {
            outputs.push(Output::Anomaly(Anomaly::LeaseWentBack {
                lease: lease.term,
                led: self.led,
            }));
        }
        if self.past == Past::NoLease {
            self.past = Past::Lease;
        }
        // With the age, a late candidate does not start a new wait for a candidate that never comes, or a caller that
        // never goes.
        let lapses = lease.reserved_for().is_some() || lease.lapsing().is_some();
        let stood = age.filter(|_| lapses).unwrap_or_default();
        self.seen = Seen::Lease {
            lease: Box::new(lease),
            version,
            since: now - stood,
        };
        if !self.is_mine() {
            self.no_longer_mine(now);
        }
        // Others have had it since, so there is no more reason to leave it to them.
        if self.lease().is_some_and(|(lease, _)| lease.term > self.led) {
            self.take_from = self.take_from.min(now);
        }
        true
    }

    /// The term that is led, if any; `None` without a lease.
    fn led_in(&self) -> Option<Option<(Lineage, Term)>> {
        let (lease, _) = self.lease()?;
        let term = (lease.lineage, lease.term);
        Some(lease.holder().map(|_| term))
    }

    /// Notes when the lease's present state began, if that is new.
    fn date(&mut self, before: Option<Option<(Lineage, Term)>>, begun: Option<Moment>) {
        if before != self.led_in() {
            self.begun = begun;
        }
    }

    /// Notes that the lease was given back or lost: there is nothing more to give back.
    fn no_longer_mine(&mut self, now: Moment) {
        if self.give_back != GiveBack::No {
            self.take_from = now + self.config.stand_back;
        }
        self.give_back = GiveBack::No;
    }

    /// What the lease, known to have been so at some moment after `started`, means for this process.
    fn on_lease(&mut self, now: Moment, started: Moment, outputs: &mut Vec<Output>) {
        let Some((lease, _)) = self.lease() else {
            return;
        };
        let step = Install::ReadFence;
        let (mine, lease_term, request) = (self.is_mine(), lease.term, lease.request.clone());
        match &self.phase {
            // This may be a write of ours whose answer was lost: it is recognised here, however late.
            Phase::Following if mine && lease_term > self.led && self.stands.is_some() => {
                self.checked = started;
                self.phase = Phase::Installing {
                    term: lease_term,
                    since: now,
                    step,
                };
            }
            Phase::Following if mine => self.heed(request),
            Phase::Following => {}
            Phase::Installing { term, .. } if mine && lease_term == *term => self.checked = started,
            // Our own next lease, above a fence that was too high.
            Phase::Installing { .. } if mine && lease_term > self.led => {
                self.checked = started;
                self.phase = Phase::Installing {
                    term: lease_term,
                    since: now,
                    step: Install::ReadFence,
                };
            }
            Phase::Leading { term } if mine && lease_term == *term => {
                // From the start of the request, not from its answer: the lease may have changed right after.
                self.checked = started;
                self.obey(now, request, outputs);
            }
            Phase::Stopping { term, .. } if mine && lease_term == *term => self.checked = started,
            Phase::Installing { .. } | Phase::Leading { .. } | Phase::Stopping { .. } => {
                self.lose(EndReason::LeaseTaken, outputs);
            }
        }
    }

    /// Does what is asked of a leader.
    fn obey(&mut self, now: Moment, request: Option<Request>, outputs: &mut Vec<Output>) {
        let Some(Request { kind, by, .. }) = request else {
            return;
        };
        match kind {
            RequestKind::Resign => self.stop(now, EndReason::Requested { by }, outputs),
            RequestKind::Transfer { to } => self.transfer(now, to, outputs),
        }
    }

    /// The successor of a leader that is stopping can be changed until it has stopped: the last request counts.
    fn change_successor(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        let Phase::Stopping { .. } = self.phase else {
            return;
        };
        let request = self.lease().and_then(|(lease, _)| lease.request.clone());
        if let Some(Request {
            kind: RequestKind::Transfer { to },
            ..
        }) = request
        {
            self.transfer(now, to, outputs);
        }
    }

    /// A request to the holder also counts if its term is over already.
    fn heed(&mut self, request: Option<Request>) {
        let Some(Request { kind, by, .. }) = request else {
            return;
        };
        let reason = match kind {
            RequestKind::Resign => {
                self.stand_back();
                EndReason::Requested { by }
            }
            RequestKind::Transfer { to } if to.incarnation != self.me.incarnation => {
                let reason = EndReason::Transferred {
                    to: to.node.clone(),
                };
                self.give_back = GiveBack::To(to);
                reason
            }
            RequestKind::Transfer { to } => {
                let is_asked_to_go = self.last_end.as_ref().is_some_and(EndReason::is_asked);
                if is_asked_to_go && self.stands.is_some() && self.give_back != GiveBack::No {
                    self.give_back = GiveBack::To(to);
                }
                return;
            }
        };
        // Nothing else is known about a term that an earlier machine led.
        if self.led == Term::default() && self.last_end == Some(EndReason::Resigned) {
            self.last_end = Some(reason);
        }
    }

    fn on_work_ended(&mut self, term: Term, outputs: &mut Vec<Output>) {
        if self.working != Some(term) {
            return;
        }
        self.working = None;
        self.lapses_at = Moment::NEVER;
        match &self.phase {
            Phase::Leading { .. } => {
                self.stand_back();
                self.end(EndReason::WorkEnded, outputs);
            }
            Phase::Stopping { reason, .. } => self.end(reason.clone(), outputs),
            Phase::Following | Phase::Installing { .. } => {}
        }
    }

    // ---- transitions --------------------------------------------------------------------------------

    fn resign(&mut self, now: Moment, reason: EndReason, outputs: &mut Vec<Output>) {
        match self.phase {
            Phase::Installing { term, .. } => self.abandon(term),
            _ => self.stop(now, reason, outputs),
        }
    }

    fn transfer(&mut self, now: Moment, to: Holder, outputs: &mut Vec<Output>) {
        let leads = matches!(self.phase, Phase::Leading { .. } | Phase::Stopping { .. });
        if to.incarnation == self.me.incarnation {
            // A leader goes on. Work that was told to stop is not called back: this process leads again once that has
            // ended.
            let is_asked_to_go =
                matches!(&self.phase, Phase::Stopping { reason, .. } if reason.is_asked());
            if is_asked_to_go && self.stands.is_some() {
                self.give_back = GiveBack::To(to);
            }
        } else if leads {
            let reason = EndReason::Transferred {
                to: to.node.clone(),
            };
            self.give_back = GiveBack::To(to);
            self.stop(now, reason, outputs);
        }
    }

    /// Turns leading into stopping: the work is told, and trust goes on until it has ended or has had enough time.
    fn stop(&mut self, now: Moment, reason: EndReason, outputs: &mut Vec<Output>) {
        // A lease whose trust only runs out may be taken again.
        if reason != EndReason::Expired
            && let Phase::Leading { .. }
            | Phase::Stopping {
                reason: EndReason::Expired,
                ..
            } = self.phase
        {
            self.stand_back();
        }
        match &mut self.phase {
            Phase::Leading { term } => {
                let term = *term;
                let until = now + self.config.stop_within;
                self.phase = Phase::Stopping {
                    term,
                    reason,
                    until,
                };
                outputs.push(Output::Stop { term });
            }
            // It would be taken again when the work has ended, but now it is given up.
            Phase::Stopping { reason: first, .. } if *first == EndReason::Expired => {
                *first = reason;
            }
            _ => {}
        }
    }

    /// Marks the lease to be given back, to the candidate that it is promised to, if any.
    fn stand_back(&mut self) {
        if self.give_back == GiveBack::No {
            self.give_back = GiveBack::ToAnyone;
        }
    }

    /// Gives up a term: the lease was won, but the term will not be led.
    fn abandon(&mut self, term: Term) {
        self.led = term;
        self.last_end = None;
        self.stand_back();
        self.phase = Phase::Following;
    }

    /// Notes that the lease is no longer ours.
    fn lose(&mut self, reason: EndReason, outputs: &mut Vec<Output>) {
        if let GiveBack::To(_) = self.give_back {
            self.give_back = GiveBack::ToAnyone;
        }
        self.end(reason, outputs);
        self.phase = Phase::Following;
    }

    /// Ends, at once, a term that was led.
    fn end(&mut self, reason: EndReason, outputs: &mut Vec<Output>) {
        if let Phase::Leading { term } | Phase::Stopping { term, .. } = self.phase {
            self.last_end = Some(reason.clone());
            self.phase = Phase::Following;
            outputs.push(Output::Ended { term, reason });
        }
    }

    /// Does what is due.
    fn on_time(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        if now >= self.blind_at() {
            // If this has no effect, the time is counted again from the next failed look.
            self.blind_since = None;
            outputs.push(Output::Blind);
        }
        let grace = self.config.grace;
        if let OwnSession::Trusted { until } | OwnSession::Ending { until } = self.session {
            self.session = if now + grace < until {
                OwnSession::Trusted { until }
            } else {
                OwnSession::Ending { until }
            };
        }
        let trusted_until = self.trusted_until();
        match &self.phase {
            Phase::Following => {}
            Phase::Installing {
                term,
                step: Install::Raised { lineage },
                ..
            } if now + grace < trusted_until => {
                let (term, lineage) = (*term, *lineage);
                assert!(term > self.led, "a term is led once");
                self.phase = Phase::Leading { term };
                self.led = term;
                self.working = Some(term);
                outputs.push(Output::Elected { term, lineage });
                // It may have been asked while the term was being installed: the next look would be late.
                let request = self.lease().and_then(|(lease, _)| lease.request.clone());
                self.obey(now, request, outputs);
            }
            // The lease was not seen to be ours for too long: look before counting as elected.
            Phase::Installing {
                step: Install::Raised { .. },
                ..
            } => {
                if now + grace >= self.checked + self.config.trust() {
                    self.due = self.due.min(now);
                }
            }
            Phase::Installing {
                term,
                step:
                    Install::Wait {
                        until,
                        fence,
                        expect,
                    },
                ..
            } => {
                if now >= *until {
                    let (fence, expect) = (fence.clone(), expect.clone());
                    self.phase = Phase::Installing {
                        term: *term,
                        since: now,
                        step: Install::WriteFence { fence, expect },
                    };
                }
            }
            // Cannot install: let someone else try.
            &Phase::Installing { term, since, .. } if now >= since + self.config.ttl => {
                self.abandon(term);
            }
            Phase::Installing { .. } => {}
            Phase::Leading { .. } | Phase::Stopping { .. } if now >= trusted_until => {
                let reason = match self.phase {
                    Phase::Stopping { until, .. } if until == trusted_until => {
                        EndReason::WorkDidNotStop
                    }
                    _ => EndReason::Expired,
                };
                // As long after trust as an observer would wait for a process that has died.
                self.lapses_at = trusted_until + self.config.margin;
                self.end(reason, outputs);
            }
            Phase::Leading { .. } if now + grace >= trusted_until => {
                self.stop(now, EndReason::Expired, outputs);
            }
            Phase::Leading { .. } | Phase::Stopping { .. } => {}
        }
    }

    /// Watches the session that holds the lease, or has it reserved, while this process is a candidate.
    fn watch_holder(&mut self, outputs: &mut Vec<Output>) {
        let holder = self.lease().and_then(|(lease, _)| lease.holder());
        let holder = holder.or(self.reserved_for());
        let wanted = holder
            .filter(|holder| self.stands.is_some() && holder.incarnation != self.me.incarnation)
            .cloned();
        let incarnation = wanted.as_ref().map(|holder| holder.incarnation);
        if self.watches != incarnation {
            outputs.extend(self.watches.map(Output::Forget));
            outputs.extend(wanted.map(Output::Watch));
            self.watches = incarnation;
            self.ended = None;
        }
    }
}

fn leader_of(lease: &Lease) -> Option<Leader> {
    lease.holder().map(|holder| Leader {
        node: holder.node.clone(),
        incarnation: holder.incarnation,
        term: lease.term,
    })
}
