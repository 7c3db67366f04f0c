//! One process's part in one election.

mod install;
mod known;
mod requests;

pub use super::messages::{Anomaly, EndReason, Input, Leader, Output};
use super::record::{Fence, Lease, Request, RequestKind, Term};
use crate::random::Random;
use crate::session::observer::End;
use crate::session::{Config, Holder};
use crate::{Incarnation, Lineage, Moment, Now, Read, Version, Written};
use install::Install;

/// The priority of a candidate that does not say: it tries at once.
pub const PRIORITY_DEFAULT: u8 = 100;

/// The machine. One request is in flight at most; the driver answers each with one input.
#[derive(Debug, Clone, Hash)]
pub struct Election {
    config: Config,
    random: Random,
    me: Holder,
    /// The priority of this candidate; `None` if it only observes.
    stands: Option<u8>,
    /// For the very first term, if this process makes it.
    new_lineage: Lineage,
    session_trusted_until: Moment,
    /// Whether the session is trusted for long enough to begin a term: one that begins when trust is
    /// nearly out would be told to stop at once, and be taken again.
    can_begin: bool,
    seen: Seen,
    /// Whether there ever was a lease.
    has_seen_lease: bool,
    /// The holder whose session is known to have ended.
    ended: Option<(Incarnation, End, Moment)>,
    watches: Option<Incarnation>,
    phase: Phase,
    in_flight: Option<Flight>,
    /// Since when no read is answered, as far as was tried.
    blind_since: Option<Moment>,
    /// The session is over, and a copy of this process may lead under it: the lease is not touched.
    is_outrun: bool,
    /// When to look at the lease next.
    due: Moment,
    /// A hint came during a look, which may have been too early to see what it is about.
    is_hinted: bool,
    /// The lease was looked at, and no request has failed since.
    has_looked: bool,
    /// After a conflict or a lost answer nothing is written before the lease was read.
    must_read: bool,
    /// After a failure nothing is sent before then.
    retry_from: Moment,
    /// When to take the lease at the earliest: whoever gave it up leaves it to others for a while.
    take_from: Moment,
    /// The lease is to be given back for others to take, and left to them for a while.
    stands_back: bool,
    /// Lease and fence are both missing although this process has seen a lease.
    was_wiped: bool,
    /// How many rows of terms this process began, so that each differs.
    lineages: u128,
    /// The start of the last look, or write, that showed the lease to be ours.
    checked: Moment,
    /// The term whose work has not ended yet.
    working: Option<Term>,
    /// When the lease lapses under work that would not stop, as it would if the process had died.
    lapses_at: Moment,
    /// The highest term that this process has led, or has given up to lead: none is led twice.
    led: Term,
    /// Why the last term led here ended, for the history.
    last_end: Option<EndReason>,
    /// Who gets the lease when it is given back.
    hand_to: Option<Holder>,
    /// How many leases were written, so that each differs.
    writes: u64,
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
    /// There is one. The lease is to be read again before it counts as missing.
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
        /// The work had time enough to stop by then.
        until: Moment,
    },
}

#[derive(Debug, Clone, Hash)]
enum Flight {
    ReadLease { started: Moment },
    WriteLease { started: Moment, lease: Box<Lease> },
    ReadFence,
    WriteFence { fence: Fence },
}

impl Flight {
    fn is_of_lease(&self) -> bool {
        matches!(self, Flight::ReadLease { .. } | Flight::WriteLease { .. })
    }
}

impl Election {
    /// An election that this process observes; [`Input::Stand`] makes it a candidate. `new_lineage` is a
    /// random id.
    #[must_use]
    pub fn new(config: Config, me: Holder, new_lineage: Lineage, now: Moment, seed: u64) -> Self {
        Self {
            random: Random::new(&config, seed),
            config,
            me,
            stands: None,
            new_lineage,
            session_trusted_until: Moment::default(),
            can_begin: false,
            seen: Seen::Nothing,
            has_seen_lease: false,
            ended: None,
            watches: None,
            phase: Phase::Following,
            in_flight: None,
            blind_since: None,
            is_outrun: false,
            due: now,
            is_hinted: false,
            has_looked: false,
            must_read: false,
            retry_from: now,
            take_from: now,
            stands_back: false,
            was_wiped: false,
            lineages: 0,
            checked: Moment::default(),
            working: None,
            lapses_at: Moment::NEVER,
            led: Term::default(),
            last_end: None,
            hand_to: None,
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

    /// Whether the write that is under way is one of the fence.
    #[must_use]
    pub(crate) fn writes_fence(&self) -> bool {
        matches!(self.in_flight, Some(Flight::WriteFence { .. }))
    }

    /// Whether this process has nothing to give back: it may leave. A look at a lease that is known is not
    /// waited for: of many elections one always looks.
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
            && !self.must_read
            && !self.is_mine()
    }

    /// The term that it finds in its hands was led, by an earlier machine of the same session, and is given up: that is
    /// what the history says of it. For a machine that is new and does not stand.
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

    /// Takes an input and says what to do about it.
    #[must_use]
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Wake => {}
            Input::Hint => {
                self.due = self.due.min(now.moment);
                // What is under way may have been carried out before the change that the hint is about.
                let flight = self.in_flight.as_ref();
                self.is_hinted = flight.is_some_and(Flight::is_of_lease);
            }
            Input::Trusted(until) => self.session_trusted_until = until,
            Input::SessionOver { gives_back } => {
                self.is_outrun = !gives_back;
                self.session_trusted_until = Moment::default();
                self.stands = None;
                self.lose(EndReason::SessionOver, &mut outputs);
            }
            Input::HolderEnded(incarnation, end) => {
                self.ended = Some((incarnation, end, now.moment));
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
                self.resign(now.moment, &mut outputs);
            }
            Input::Resign => self.resign(now.moment, &mut outputs),
            Input::Transfer(to) => self.transfer(now.moment, to, &mut outputs),
        }
        self.on_time(now.moment, &mut outputs);
        self.request(now, &mut outputs);
        self.watch_holder(&mut outputs);
        outputs
    }

    // ---- answers ------------------------------------------------------------------------------------

    fn on_lease_read(&mut self, now: Moment, read: Read<Lease>, outputs: &mut Vec<Output>) {
        let Some(Flight::ReadLease { started }) = self.in_flight.take() else {
            return;
        };
        self.due = started + self.random.jitter(self.config.heartbeat);
        if std::mem::take(&mut self.is_hinted) {
            self.due = now;
        }
        if read == Read::Failed {
            self.blind_since = self.blind_since.or(Some(started));
            self.due = now;
            self.back_off(now);
            return;
        }
        self.blind_since = None;
        self.must_read = false;
        self.has_looked = true;
        match read {
            Read::Failed => {}
            Read::Unchanged { .. } => self.on_lease(now, started, outputs),
            Read::Found {
                record, version, ..
            } => {
                self.see(now, record, version, outputs);
                self.on_lease(now, started, outputs);
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
        let Some(Flight::WriteLease { started, lease }) = self.in_flight.take() else {
            return;
        };
        match written {
            Written::Done(version) => {
                let has_no_fence = self.has_no_fence();
                self.see(now, *lease, version, outputs);
                self.on_lease(now, started, outputs);
                if has_no_fence {
                    self.on_no_fence_to_raise(now, outputs);
                }
                self.due = started + self.random.jitter(self.config.heartbeat);
                if std::mem::take(&mut self.is_hinted) {
                    self.due = now;
                }
            }
            Written::NotApplied => self.back_off(now),
            // Someone else's write, or our own that landed: look.
            Written::Conflict => {
                self.must_read = true;
                self.due = now;
            }
            Written::Unknown => {
                self.must_read = true;
                self.due = now;
                self.back_off(now);
            }
        }
    }

    /// The store failed: let it breathe.
    fn back_off(&mut self, now: Moment) {
        self.has_looked = false;
        self.retry_from = now + self.random.jitter(self.config.retry());
    }

    fn see(&mut self, now: Moment, lease: Lease, version: Version, outputs: &mut Vec<Output>) {
        if self.lease().is_some_and(|(_, known)| *known == version) {
            return;
        }
        let before = self.lease().map(|(lease, _)| leader_of(lease));
        let after = leader_of(&lease);
        if before != Some(after.clone()) {
            outputs.push(Output::Leader(after));
        }
        // Told once, when it is first seen.
        let was_behind = self.lease().is_some_and(|(known, _)| known.term < self.led);
        if lease.term < self.led && !was_behind {
            outputs.push(Output::Anomaly(Anomaly::LeaseWentBack {
                lease: lease.term,
                led: self.led,
            }));
        }
        self.has_seen_lease = true;
        self.seen = Seen::Lease {
            lease: Box::new(lease),
            version,
            since: now,
        };
        if !self.is_mine() {
            self.no_longer_mine(now);
        }
        // Others have had it since: what was left to them was taken.
        if self.lease().is_some_and(|(lease, _)| lease.term > self.led) {
            self.take_from = self.take_from.min(now);
        }
    }

    /// The lease was given back, or lost: there is nothing more to give back.
    fn no_longer_mine(&mut self, now: Moment) {
        if self.stands_back {
            self.take_from = now + self.config.stand_back;
        }
        self.stands_back = false;
        self.hand_to = None;
    }

    /// What the lease, known to have been so at some moment after `started`, means for this process.
    fn on_lease(&mut self, now: Moment, started: Moment, outputs: &mut Vec<Output>) {
        let Some((lease, _)) = self.lease() else {
            return;
        };
        let step = Install::ReadFence;
        let (mine, lease_term, request) = (self.is_mine(), lease.term, lease.request.clone());
        match &self.phase {
            // Also a write of ours whose answer was lost: it is recognised here, however late.
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
        let Some(Request { kind, by }) = request else {
            return;
        };
        match kind {
            RequestKind::Resign => self.stop(now, EndReason::Requested { by }, outputs),
            RequestKind::Transfer { to } => self.transfer(now, to, outputs),
        }
    }

    /// What is asked of the holder is also asked if its term is over already.
    fn heed(&mut self, request: Option<Request>) {
        match request.map(|request| request.kind) {
            Some(RequestKind::Resign) => self.stands_back = true,
            Some(RequestKind::Transfer { to }) if to.incarnation != self.me.incarnation => {
                self.stands_back = true;
                self.hand_to = Some(to);
            }
            Some(RequestKind::Transfer { .. }) | None => {}
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
                self.stands_back = true;
                self.end(EndReason::WorkEnded, outputs);
            }
            Phase::Stopping { reason, .. } => self.end(reason.clone(), outputs),
            Phase::Following | Phase::Installing { .. } => {}
        }
    }

    // ---- transitions --------------------------------------------------------------------------------

    fn resign(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        match self.phase {
            Phase::Installing { term, .. } => self.abandon(term),
            _ => self.stop(now, EndReason::Resigned, outputs),
        }
    }

    fn transfer(&mut self, now: Moment, to: Holder, outputs: &mut Vec<Output>) {
        let leads = matches!(self.phase, Phase::Leading { .. } | Phase::Stopping { .. });
        if leads && to.incarnation != self.me.incarnation {
            let reason = EndReason::Transferred {
                to: to.node.clone(),
            };
            self.hand_to = Some(to);
            self.stop(now, reason, outputs);
        }
    }

    /// Leading goes over into stopping: the work is told, and trust goes on until it has ended or has had
    /// time enough.
    fn stop(&mut self, now: Moment, reason: EndReason, outputs: &mut Vec<Output>) {
        let expires = reason == EndReason::Expired;
        match &mut self.phase {
            Phase::Leading { term } => {
                let term = *term;
                self.stands_back |= !expires;
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
                self.stands_back |= !expires;
                *first = reason;
            }
            _ => {}
        }
    }

    /// The lease was won, but the term will not be led.
    fn abandon(&mut self, term: Term) {
        self.led = term;
        self.last_end = None;
        self.stands_back = true;
        self.phase = Phase::Following;
    }

    /// The lease is no longer ours.
    fn lose(&mut self, reason: EndReason, outputs: &mut Vec<Output>) {
        self.hand_to = None;
        self.end(reason, outputs);
        self.phase = Phase::Following;
    }

    /// A term that was led is over, now.
    fn end(&mut self, reason: EndReason, outputs: &mut Vec<Output>) {
        if let Phase::Leading { term } | Phase::Stopping { term, .. } = self.phase {
            self.last_end = Some(reason.clone());
            self.phase = Phase::Following;
            outputs.push(Output::Ended { term, reason });
        }
    }

    /// What time alone brings about.
    fn on_time(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        if now >= self.blind_at() {
            // If nothing comes of it: counted anew from the next look that fails.
            self.blind_since = None;
            outputs.push(Output::Blind);
        }
        let grace = self.config.grace;
        self.can_begin = now + grace < self.session_trusted_until;
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
                // Asked while it was being installed: the next look would be late.
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

    /// Watches whoever holds the lease, while this process is a candidate.
    fn watch_holder(&mut self, outputs: &mut Vec<Output>) {
        let holder = self.lease().and_then(|(lease, _)| lease.holder());
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
