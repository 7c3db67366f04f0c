//! What follows from what this process knows: who leads until when, and when something may or must be done.

use super::install::Install;
use super::{Election, FenceSeen, GiveBack, Knowledge, OwnSession, PRIORITY_DEFAULT, Phase, Seen};
use crate::election::record::{Lease, LeaseState, RESERVED_MAX};
use crate::session::Holder;
use crate::{Moment, Version};

impl Election {
    pub(super) fn trusted_until(&self) -> Moment {
        let stopped_by = match self.phase {
            Phase::Stopping { until, .. } => until,
            _ => Moment::NEVER,
        };
        let seen_until = self.checked + self.config.trust();
        self.session.trusted_until().min(seen_until).min(stopped_by)
    }

    pub(super) fn lease(&self) -> Option<(&Lease, &Version)> {
        match &self.seen {
            Seen::Lease { lease, version, .. } => Some((lease, version)),
            _ => None,
        }
    }

    /// Whether the lease, as last seen, is held by this very process.
    pub(super) fn is_mine(&self) -> bool {
        let holder = self.lease().and_then(|(lease, _)| lease.holder());
        holder.is_some_and(|holder| holder.incarnation == self.me.incarnation)
    }

    /// Whether the lease is ours or, after a lost answer, may be.
    fn may_hold(&self) -> bool {
        self.is_mine() || self.knowledge == Knowledge::Unsettled
    }

    pub(super) fn is_outrun(&self) -> bool {
        matches!(self.session, OwnSession::Outrun)
    }

    /// Who the lease is reserved for, as last seen.
    pub(super) fn reserved_for(&self) -> Option<&Holder> {
        self.lease().and_then(|(lease, _)| lease.reserved_for())
    }

    /// Whether the lease is reserved for this process, but the process will not take it.
    pub(super) fn is_reserved_in_vain(&self) -> bool {
        let candidate = self.reserved_for();
        let is_for_me =
            candidate.is_some_and(|candidate| candidate.incarnation == self.me.incarnation);
        is_for_me && self.stands.is_none() && !self.is_outrun()
    }

    /// When a request other than a look at the lease is to be made.
    pub(super) fn wants_request_at(&self) -> Moment {
        match &self.phase {
            _ if self.knowledge == Knowledge::Unsettled => Moment::NEVER,
            Phase::Following if self.needs_fence() => Moment::default(),
            Phase::Following => self.release_at().min(self.may_take_at()),
            Phase::Installing {
                step: Install::Wait { .. } | Install::Raised { .. },
                ..
            }
            | Phase::Leading { .. }
            | Phase::Stopping { .. } => Moment::NEVER,
            Phase::Installing { .. } => Moment::default(),
        }
    }

    /// When the last read of the lease is too long ago. The lease is ours or, after a lost answer, may be, and nobody
    /// else takes it while our session lives.
    pub(super) fn blind_at(&self) -> Moment {
        match self.blind_since {
            Some(since) if self.may_hold() && !self.is_outrun() => since + self.config.ttl,
            _ => Moment::NEVER,
        }
    }

    /// Whether the fence must be read: a missing lease means nothing until then.
    pub(super) fn needs_fence(&self) -> bool {
        self.stands.is_some()
            && matches!(
                self.seen,
                Seen::Missing {
                    fence: FenceSeen::NotYet,
                    ..
                }
            )
    }

    /// When to give back a lease that is still ours though no term of it is led, or that is reserved for us though we
    /// will not take it.
    pub(super) fn release_at(&self) -> Moment {
        let gives_up = self.stands.is_none() || self.give_back != GiveBack::No;
        match self.working {
            _ if self.is_reserved_in_vain() => Moment::default(),
            _ if !self.is_mine() || self.is_outrun() => Moment::NEVER,
            Some(_) => self.lapses_at,
            None if gives_up => Moment::default(),
            None => Moment::NEVER,
        }
    }

    /// When this session was known to have ended.
    fn ended_at(&self, holder: &Holder) -> Moment {
        match self.ended {
            Some((incarnation, _, at)) if incarnation == holder.incarnation => at,
            _ => Moment::NEVER,
        }
    }

    /// When a caller that is asked to go no longer trusts itself, counted from when this lease was first seen with the
    /// request. A candidate that is not the chosen successor leaves the lease to that one for a while.
    fn lapses_from(&self, lease: &Lease, since: Moment) -> Moment {
        match lease.lapsing() {
            None => Moment::NEVER,
            Some((holder, Some(to))) if to.incarnation != self.me.incarnation => {
                since + holder.ttl + to.ttl.min(RESERVED_MAX)
            }
            Some((holder, _)) => since + holder.ttl,
        }
    }

    /// When this process may take the lease, as far as it knows now.
    pub(super) fn may_take_at(&self) -> Moment {
        let Some(priority) = self.stands else {
            return Moment::NEVER;
        };
        if self.working.is_some() {
            return Moment::NEVER;
        }
        let below = u32::from(PRIORITY_DEFAULT.saturating_sub(priority));
        let hesitation = self.config.hesitation() * below / u32::from(PRIORITY_DEFAULT);
        let free_from = match &self.seen {
            Seen::Nothing | Seen::Unreadable { .. } => Moment::NEVER,
            Seen::Lease { lease, since, .. } => match &lease.state {
                LeaseState::Vacant => (*since + hesitation).max(self.take_from),
                LeaseState::Reserved { candidate }
                    if candidate.incarnation == self.me.incarnation =>
                {
                    *since
                }
                LeaseState::Reserved { candidate } => {
                    let lapses_at = *since + candidate.ttl.min(RESERVED_MAX);
                    let ended_at = self.ended_at(candidate);
                    (lapses_at.min(ended_at) + hesitation).max(self.take_from)
                }
                // Our own term, which is over.
                LeaseState::Held { holder, .. } if holder.incarnation == self.me.incarnation => {
                    *since
                }
                LeaseState::Held { holder, .. } => {
                    let free_from = self.ended_at(holder).min(self.lapses_from(lease, *since));
                    (free_from + hesitation).max(self.take_from)
                }
            },
            // Taking it is not yet leading. What the fence says decides later how long to wait.
            Seen::Missing { since, fence } => match fence {
                FenceSeen::NotYet | FenceSeen::Doubted(_) => Moment::NEVER,
                FenceSeen::Missing | FenceSeen::Found(_) => {
                    (*since + hesitation).max(self.take_from)
                }
            },
        };
        // Without a trusted session nothing is taken; the next heartbeat asks again.
        match self.session {
            OwnSession::Trusted { .. } => free_from,
            OwnSession::Ending { .. } | OwnSession::Outrun => Moment::NEVER,
        }
    }
}
