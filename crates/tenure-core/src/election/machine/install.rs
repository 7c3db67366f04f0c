//! From winning the lease to being elected: the fence is raised first, and over another leader's term only when that
//! one no longer leads.

use super::{Anomaly, Election, FenceSeen, Flight, Output, Past, Phase, Seen};
use crate::election::record::{Fence, Lease, PastTerm, Term};
use crate::{Expect, Lineage, Moment, Read, Written};

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Install {
    ReadFence,
    /// The fence is as high as our term, or of another lineage: go on above it.
    Climb {
        lineage: Lineage,
        term: Term,
    },
    /// The process that raised the fence last may still trust itself: leave it time to notice.
    Wait {
        until: Moment,
        fence: Fence,
        expect: Expect,
    },
    WriteFence {
        fence: Fence,
        expect: Expect,
    },
    /// The fence is at our term.
    Raised {
        lineage: Lineage,
    },
}

impl Election {
    pub(super) fn on_fence_read(
        &mut self,
        now: Moment,
        read: Read<Fence>,
        outputs: &mut Vec<Output>,
    ) {
        let Some(Flight::ReadFence) = self.in_flight.take() else {
            return;
        };
        if let Read::Unreadable { .. } = read {
            outputs.push(Output::Anomaly(Anomaly::FenceUnreadable));
        }
        if let Read::Failed | Read::Unreadable { .. } | Read::Unchanged { .. } = read {
            self.back_off(now);
            return;
        }
        match &mut self.phase {
            Phase::Following => self.on_fence_of_missing_lease(now, read),
            Phase::Installing { .. } => self.on_fence_to_raise(now, read, outputs),
            Phase::Leading { .. } | Phase::Stopping { .. } => {}
        }
    }

    fn on_fence_of_missing_lease(&mut self, now: Moment, read: Read<Fence>) {
        let Seen::Missing { fence, .. } = &mut self.seen else {
            return;
        };
        *fence = match read {
            // The first leader may have written both just now.
            Read::Found { record, .. } => {
                self.due = now;
                FenceSeen::Doubted(record)
            }
            _ => FenceSeen::Missing,
        };
        if let FenceSeen::Doubted(_) = fence {
            self.doubt();
        } else if self.past == Past::Lease {
            self.past = Past::Wiped;
        }
    }

    /// Whether there was neither a lease nor a fence when this process looked.
    pub(super) fn has_no_fence(&self) -> bool {
        matches!(
            self.seen,
            Seen::Missing {
                fence: FenceSeen::Missing,
                ..
            }
        )
    }

    /// The lease is ours, and there was no fence before it was: that need not be read again. If there is one by now, it
    /// is not overwritten, but read.
    pub(super) fn on_no_fence_to_raise(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        if let Phase::Installing {
            step: Install::ReadFence,
            ..
        } = self.phase
        {
            self.on_fence_to_raise(now, Read::Missing, outputs);
        }
    }

    fn on_fence_to_raise(&mut self, now: Moment, read: Read<Fence>, outputs: &mut Vec<Output>) {
        let (Phase::Installing { term, .. }, Some((lease, _))) = (&self.phase, self.lease()) else {
            return;
        };
        let term = *term;
        let raised = |lineage| Fence {
            lineage,
            term,
            holder: self.me.clone(),
        };
        let next = match read {
            // Our own write of the fence, whose answer was lost.
            Read::Found { record, .. }
                if record.term == term && record.holder.incarnation == self.me.incarnation =>
            {
                Install::Raised {
                    lineage: record.lineage,
                }
            }
            // Our term may have been led before, or the fence is of another lineage. Go on above the fence, so that no
            // term is ever repeated.
            Read::Found { record, .. }
                if record.term >= term || record.lineage != lease.lineage =>
            {
                outputs.push(Output::Anomaly(Anomaly::LeaseBehindFence {
                    lease: term,
                    fence: record.term,
                }));
                Install::Climb {
                    lineage: record.lineage,
                    term: record.term.max(term).next(),
                }
            }
            Read::Found {
                record, version, ..
            } => {
                let fence = raised(record.lineage);
                // Expect the version that was read: of two processes that raise it at once, one learns that it did not.
                let expect = Expect::Version(version);
                // The lease alone cannot tell whether the last leader still trusts itself if it was deleted or
                // restored. The fence names that leader; it gets a whole ttl to notice.
                if self.has_ended(lease, &record) {
                    Install::WriteFence { fence, expect }
                } else {
                    let until = now + self.config.ttl.max(record.holder.ttl);
                    Install::Wait {
                        until,
                        fence,
                        expect,
                    }
                }
            }
            _ => {
                if term > Term(1) {
                    outputs.push(Output::Anomaly(Anomaly::FenceMissing { term }));
                }
                let (fence, expect) = (raised(lease.lineage), Expect::Absent);
                // With a history the lease itself tells who led last, and that it ended.
                if lease.history.is_empty() && (self.past == Past::Wiped || term > Term(1)) {
                    let until = now + self.config.ttl;
                    Install::Wait {
                        until,
                        fence,
                        expect,
                    }
                } else {
                    Install::WriteFence { fence, expect }
                }
            }
        };
        if let Phase::Installing { step, .. } = &mut self.phase {
            *step = next;
        }
    }

    /// Whether the leader that raised the fence is known to lead no longer: its term is in the history of the lease
    /// that we hold. It is not there if someone deleted the lease or restored an older copy.
    fn has_ended(&self, lease: &Lease, fence: &Fence) -> bool {
        let leader = fence.holder.incarnation;
        let past = |past: &PastTerm| past.term == fence.term && past.incarnation == leader;
        leader == self.me.incarnation || lease.history.iter().any(past)
    }

    pub(super) fn on_fence_written(&mut self, now: Moment, written: &Written) {
        let Some(Flight::WriteFence { fence }) = self.in_flight.take() else {
            return;
        };
        if let Written::NotApplied | Written::Unknown = written {
            self.back_off(now);
        }
        if let Phase::Installing { step, .. } = &mut self.phase {
            match written {
                // From here on a receiver that has seen our token refuses every older one.
                Written::Done(_) => {
                    *step = Install::Raised {
                        lineage: fence.lineage,
                    };
                }
                Written::NotApplied => {}
                // We may have raised it, or another may: look before anything else.
                Written::Conflict | Written::Unknown => *step = Install::ReadFence,
            }
        }
    }
}
