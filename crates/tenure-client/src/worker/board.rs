//! The claims that a worker holds, and until when each may be trusted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    trusted_until: Moment,
}

impl Board {
    /// A claim that has just come in.
    pub(crate) fn add(&self, control: Arc<Control>, lease: Duration, now: Moment) {
        let trusted_until = now + lease;
        let held = Held {
            control,
            lease,
            trusted_until,
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
        board.add(control.clone(), Duration::from_secs(30), moment(100));
        control
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
