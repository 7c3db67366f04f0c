//! What is asked of the store next, one request at a time.

use super::install::Install;
use super::{Election, EndReason, FenceSeen, Flight, GiveBack, Knowledge, Output, Phase, Seen};
use crate::election::record::{Change, Lease, LeaseState, Term, Writer};
use crate::session::observer::End;
use crate::{Expect, Lineage, Now};

impl Election {
    /// Sends the next request, if one is due and none is under way.
    pub(super) fn request(&mut self, now: Now, outputs: &mut Vec<Output>) {
        if self.in_flight.is_some() || now.moment < self.retry_from {
            return;
        }
        let wants_other = now.moment >= self.wants_request_at();
        // On a store so slow that a look is due again when it is answered, nothing else would ever be done.
        if now.moment >= self.due && !(self.knowledge == Knowledge::Fresh && wants_other) {
            let known = match &self.seen {
                Seen::Lease { version, .. } | Seen::Unreadable { version } => Some(version.clone()),
                Seen::Nothing | Seen::Missing { .. } => None,
            };
            self.in_flight = Some(Flight::ReadLease {
                started: now.moment,
                is_hinted: false,
            });
            outputs.push(Output::ReadLease { known });
            return;
        }
        if !wants_other {
            return;
        }
        match &self.phase {
            Phase::Following if self.needs_fence() => self.read_fence(outputs),
            Phase::Following if now.moment >= self.release_at() => self.release(now, outputs),
            Phase::Following => {
                let term = self.highest_known_term().next();
                let (lineage, state, reason) =
                    (self.lineage(), self.held_by_me(now), self.why_ended());
                self.write_lease(now, lineage, term, state, &reason, outputs);
            }
            Phase::Installing {
                step: Install::ReadFence,
                ..
            } => self.read_fence(outputs),
            Phase::Installing {
                step: Install::WriteFence { fence, expect },
                ..
            } => {
                let (fence, expect) = (fence.clone(), expect.clone());
                self.in_flight = Some(Flight::WriteFence {
                    fence: fence.clone(),
                });
                outputs.push(Output::WriteFence { fence, expect });
            }
            &Phase::Installing {
                step: Install::Climb { lineage, term },
                ..
            } => {
                let state = self.held_by_me(now);
                self.write_lease(
                    now,
                    lineage,
                    term,
                    state,
                    "its number was already used",
                    outputs,
                );
            }
            Phase::Installing {
                step: Install::Wait { .. } | Install::Raised { .. },
                ..
            }
            | Phase::Leading { .. }
            | Phase::Stopping { .. } => {}
        }
    }

    fn read_fence(&mut self, outputs: &mut Vec<Output>) {
        self.in_flight = Some(Flight::ReadFence);
        outputs.push(Output::ReadFence);
    }

    fn release(&mut self, now: Now, outputs: &mut Vec<Output>) {
        let Some((lease, _)) = self.lease() else {
            return;
        };
        let (lineage, term) = (lease.lineage, lease.term);
        let state = match &self.give_back {
            GiveBack::To(candidate) => LeaseState::Reserved {
                candidate: candidate.clone(),
            },
            GiveBack::No | GiveBack::ToAnyone => LeaseState::Vacant,
        };
        let reason = self.last_end.as_ref().map_or(
            "ended before it could lead".to_owned(),
            EndReason::to_string,
        );
        self.write_lease(now, lineage, term, state, &reason, outputs);
    }

    fn highest_known_term(&self) -> Term {
        match &self.seen {
            Seen::Lease { lease, .. } => lease.term.max(self.led),
            Seen::Missing {
                fence: FenceSeen::Found(fence),
                ..
            } => fence.term.max(self.led),
            _ => self.led,
        }
    }

    /// The lineage of the next term. If neither lease nor fence is left, nobody can tell which terms were led: a new
    /// lineage begins.
    fn lineage(&mut self) -> Lineage {
        match &self.seen {
            Seen::Lease { lease, .. } => lease.lineage,
            Seen::Missing {
                fence: FenceSeen::Found(fence),
                ..
            } => fence.lineage,
            _ => {
                self.lineages += 1;
                Lineage(self.new_lineage.0.wrapping_add(self.lineages - 1))
            }
        }
    }

    /// Why the term before the one we take ended, for the history.
    fn why_ended(&self) -> String {
        let known = match self.ended {
            _ if self.is_mine() => "expired",
            Some((_, End::Gone, _)) => "left",
            Some((_, End::Lost, _)) => "lost its session",
            Some((_, End::Evicted, _)) => "evicted",
            Some((_, End::Missing, _)) => "its session was missing",
            None => return self.why_lapsed().unwrap_or_else(|| "unknown".to_owned()),
        };
        known.to_owned()
    }

    /// Why the term ended, if a caller was asked to go and its time is over.
    fn why_lapsed(&self) -> Option<String> {
        let (lease, _) = self.lease()?;
        let (_, to) = lease.lapsing()?;
        let by = &lease.request.as_ref()?.by;
        let asked = match to {
            Some(to) => format!("asked by {by} to hand over to {}", to.node),
            None => format!("asked to resign by {by}"),
        };
        Some(format!("{asked}, and its time was over"))
    }

    fn held_by_me(&self, now: Now) -> LeaseState {
        LeaseState::Held {
            holder: self.me.clone(),
            since: now.wall,
        }
    }

    fn write_lease(
        &mut self,
        now: Now,
        lineage: Lineage,
        term: Term,
        state: LeaseState,
        reason: &str,
        outputs: &mut Vec<Output>,
    ) {
        self.writes += 1;
        let writer = Writer {
            incarnation: self.me.incarnation,
            counter: self.writes,
            nonce: now.nonce,
        };
        let change = Change {
            reason,
            at: now.wall,
            stood: self.begun.map(|begun| now.moment.since(begun)),
        };
        let (lease, expect) = match &self.seen {
            Seen::Lease { lease, version, .. } => (
                lease.next(lineage, term, state, &change, writer),
                Expect::Version(version.clone()),
            ),
            _ => {
                let lease = Lease {
                    lineage,
                    term,
                    state,
                    request: None,
                    history: Vec::new(),
                    writer,
                };
                (lease, Expect::Absent)
            }
        };
        let lease = Box::new(lease);
        self.in_flight = Some(Flight::WriteLease {
            started: now.moment,
            lease: lease.clone(),
            is_hinted: false,
        });
        outputs.push(Output::WriteLease { lease, expect });
    }
}
