//! The claims that a worker holds, and until when each may be trusted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::EndedAs;

use super::job::{CancelReason, Control};
use crate::claims::Ended;
use crate::clock::Moment;

/// The claims that a worker holds: from when they came in until their end was acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// By the number of the claim's token, which no two claims share.
    held: Mutex<BTreeMap<u64, Held>>,
}

#[derive(Debug)]
struct Held {
    control: Arc<Control>,
    lease: Duration,
    /// When its handler is told to stop, or is not started any more.
    trusted_until: Moment,
    /// Too little of the lease is left to wait for the next round of heartbeats.
    is_urgent: bool,
}

impl Board {
    /// A claim that has just come in, with the answer to a request that was sent at `sent`.
    ///
    /// Its lease may have begun at any time since: the request may have waited for the job, and the answer for this
    /// process, which was stopped, say. A lease that may be all but over has to be confirmed before anything is started.
    pub(crate) fn add(&self, control: Arc<Control>, lease: Duration, sent: Moment, now: Moment) {
        let left = (sent + lease).saturating_sub(now);
        // As much as is left when the second heartbeat of three is due.
        let is_certain = left >= lease / 3;
        if is_certain {
            control.trust(sent + lease);
        }
        let held = Held {
            control,
            lease,
            trusted_until: if is_certain {
                sent + lease
            } else {
                now + lease
            },
            is_urgent: left < lease * 2 / 3,
        };
        self.lock().insert(held.control.claim.token.number, held);
    }

    /// A claim that has ended.
    pub(crate) fn remove(&self, control: &Control) {
        self.lock().remove(&control.claim.token.number);
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The claims to keep: all but those that are known to be lost.
    pub(crate) fn to_keep(&self) -> Vec<Arc<Control>> {
        let held = self.lock();
        let kept = held
            .values()
            .filter(|held| held.control.reason() != Some(CancelReason::Lost));
        kept.map(|held| held.control.clone()).collect()
    }

    /// Whether a claim cannot wait for the next round of heartbeats. Says so once of each.
    pub(crate) fn take_urgent(&self) -> bool {
        let mut any = false;
        for held in self.lock().values_mut() {
            any |= std::mem::take(&mut held.is_urgent);
        }
        any
    }

    pub(crate) fn has_progress(&self) -> bool {
        self.lock().values().any(|held| held.control.has_progress())
    }

    /// The answer to a heartbeat that was sent at `sent`: trust counts from then, however late the answer.
    pub(crate) fn answered(&self, control: &Control, ended: Ended, sent: Moment) {
        match ended {
            Ended::Done => self.renew(control, sent),
            // Kept until its handler has ended: others may wait for its key or its turn.
            Ended::Cancelled => {
                self.renew(control, sent);
                control.cancel(CancelReason::Cancelled);
            }
            // The transaction of its handler has completed it, by way of an outbox. Nobody else gets the job, so the handler may go on.
            Ended::Lost(Some(reason)) if reason.ended_as == Some(EndedAs::Completed) => {
                self.renew(control, sent);
            }
            Ended::Lost(_) => control.cancel(CancelReason::Lost),
            // It was not renewed: trust ends with the lease, unless another heartbeat gets through.
            Ended::Refused(problem) => {
                tracing::warn!(id = %control.claim.id, %problem, "the heartbeat of a claim was refused");
            }
        }
    }

    fn renew(&self, control: &Control, sent: Moment) {
        if let Some(held) = self.lock().get_mut(&control.claim.token.number) {
            held.trusted_until = held.trusted_until.max(sent + held.lease);
            control.trust(sent + held.lease);
        }
    }

    /// Stops the handlers of claims that no heartbeat has confirmed for a whole lease. Returns how many.
    pub(crate) fn expire(&self, now: Moment) -> usize {
        let held = self.lock();
        let over = held
            .values()
            .filter(|held| held.trusted_until <= now && held.control.reason().is_none());
        over.map(|held| held.control.cancel(CancelReason::Expired))
            .count()
    }

    /// Stops all handlers.
    pub(crate) fn stop_all(&self) {
        for held in self.lock().values() {
            held.control.cancel(CancelReason::Stopping);
        }
    }

    /// How often to send heartbeats: three in the shortest lease.
    pub(crate) fn interval(&self) -> Option<Duration> {
        self.lock().values().map(|held| held.lease / 3).min()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tenure_api::JobId;
    use tokio::sync::Notify;

    use super::*;
    use crate::claims::Claim;

    const LEASE: Duration = Duration::from_secs(30);

    fn moment(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    fn held(board: &Board, number: u64) -> Arc<Control> {
        let claim = Claim {
            id: JobId::new("a").unwrap(),
            token: format!("{number:x}-0").parse().unwrap(),
            attempt: 1,
        };
        let control = Arc::new(Control::new(claim, Arc::new(Notify::new())));
        board.add(control.clone(), LEASE, moment(100), moment(100));
        control
    }

    /// A claim that was asked for at 100 s and came in at that second.
    fn came_in(board: &Board, at: u64) -> Arc<Control> {
        let control = held(board, at);
        board.remove(&control);
        let fresh = Arc::new(Control::new(control.claim.clone(), Arc::new(Notify::new())));
        board.add(fresh.clone(), LEASE, moment(100), moment(at));
        fresh
    }

    #[test]
    fn a_claim_is_trusted_from_when_it_was_asked_for() {
        let board = Board::default();
        let control = came_in(&board, 105);
        assert_eq!(control.deadline(), Some(moment(130)));
        assert!(!board.take_urgent(), "the next round is soon enough");
        assert_eq!(
            (board.expire(moment(129)), board.expire(moment(130))),
            (0, 1)
        );
    }

    #[test]
    fn a_claim_that_came_late_is_kept_at_once() {
        let board = Board::default();
        let control = came_in(&board, 115);
        assert_eq!(control.deadline(), Some(moment(130)));
        assert!(board.take_urgent());
        assert!(!board.take_urgent(), "said once");
    }

    #[test]
    fn a_claim_whose_lease_may_be_over_is_confirmed_first() {
        for at in [121, 130, 1_000] {
            let board = Board::default();
            let control = came_in(&board, at);
            assert_eq!(control.deadline(), None);
            assert!(board.take_urgent());
            assert_eq!(board.expire(moment(at + 29)), 0, "there is time to ask");
            board.answered(&control, Ended::Done, moment(at + 1));
            assert_eq!(control.deadline(), Some(moment(at + 31)));
            assert_eq!(board.expire(moment(at + 30)), 0);
            assert_eq!(board.expire(moment(at + 31)), 1);
        }
    }

    #[test]
    fn trust_counts_from_when_the_heartbeat_was_sent() {
        let board = Board::default();
        let control = held(&board, 1);
        board.answered(&control, Ended::Done, moment(110));
        assert_eq!(board.expire(moment(139)), 0);
        assert_eq!(board.expire(moment(140)), 1);
        assert_eq!(control.reason(), Some(CancelReason::Expired));
        assert_eq!(board.expire(moment(141)), 0, "told once");
    }

    #[test]
    fn a_lost_claim_is_not_kept_and_its_handler_stops() {
        let board = Board::default();
        let (lost, kept) = (held(&board, 1), held(&board, 2));
        board.answered(&lost, Ended::Lost(None), moment(101));
        assert!(lost.stop.is_cancelled() && !kept.stop.is_cancelled());
        assert_eq!(board.to_keep().len(), 1);
        assert_eq!(board.len(), 2, "until its handler is gone");
    }

    #[test]
    fn a_cancelled_claim_is_kept_while_its_handler_stops() {
        let board = Board::default();
        let control = held(&board, 1);
        board.answered(&control, Ended::Cancelled, moment(101));
        assert_eq!(control.reason(), Some(CancelReason::Cancelled));
        assert_eq!(board.to_keep().len(), 1);
        board.answered(&control, Ended::Lost(None), moment(102));
        assert_eq!(control.reason(), Some(CancelReason::Lost));
        assert_eq!(board.to_keep().len(), 0, "nothing is left to keep");
        board.answered(&control, Ended::Cancelled, moment(103));
        assert_eq!(control.reason(), Some(CancelReason::Lost), "lost is lost");
    }
}
