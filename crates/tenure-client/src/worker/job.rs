//! A job in a handler's hands.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tenure_api::{Claimed, Payload};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::claims::Claim;
use crate::clock::Moment;

/// A job in a handler's hands. Whatever [`Claimed`] has can be read here too: `job.id`, `job.attempt`.
#[derive(Debug)]
pub struct Job<T> {
    /// What was submitted.
    pub payload: T,
    /// All else, as it was claimed. Its payload is left empty.
    pub(crate) claimed: Claimed,
    pub(crate) control: Arc<Control>,
}

impl<T> Deref for Job<T> {
    type Target = Claimed;

    fn deref(&self) -> &Claimed {
        &self.claimed
    }
}

/// Why a handler is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// Somebody wants the job given up. An error ends it as cancelled; a success still counts. The claim is kept until
    /// the handler has ended.
    Cancelled,
    /// The claim is lost: somebody else has the job, or it is gone. Whatever the handler returns is dropped.
    Lost,
    /// No heartbeat got through for a whole lease, so the job may be given to somebody else at any time.
    /// Whatever the handler returns is sent; the broker decides whether the claim still holds.
    Expired,
    /// The worker stops, and has waited for as long as it may. An error hands the job
    /// back, which costs it no attempt, unless it is permanent; a success counts.
    Stopping,
}

impl<T> Job<T> {
    /// Waits until the handler is to stop, and says why. A handler that is still there some time later (see
    /// [`WorkerBuilder::grace`](crate::WorkerBuilder::grace)) is dropped.
    pub async fn cancelled(&self) -> CancelReason {
        self.control.stop.cancelled().await;
        self.cancel_reason().unwrap_or(CancelReason::Lost)
    }

    /// Why the handler is to stop, if it is. Whatever the first reason was, a claim that is lost is told as lost.
    #[must_use]
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.control.reason()
    }

    /// A token that is cancelled when the handler is to stop, to pass on.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.control.stop.clone()
    }

    /// Until when the claim is certain to be this worker's if no heartbeat gets through: the time since the machine was
    /// started, suspend included (`CLOCK_BOOTTIME`). For work that has to end by itself if this process cannot end it.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.control.deadline().unwrap_or_default()
    }

    /// Waits until the deadline is later than this one, and returns it. For ever, if it never is.
    pub async fn deadline_after(&self, seen: Duration) -> Duration {
        self.control.deadline_after(seen).await
    }

    /// Tells how far the work is: any small value, shown while the job runs. Sent with a heartbeat, about
    /// once a second at most; only the latest counts. A value that cannot be written as JSON is left out.
    pub fn progress(&self, progress: &impl Serialize) {
        if let Ok(progress) = Payload::of(progress) {
            self.control.set_progress(progress);
        }
    }

    /// The same job with another payload.
    pub(crate) fn with<U>(self, payload: U) -> (Job<U>, T) {
        let job = Job {
            payload,
            claimed: self.claimed,
            control: self.control,
        };
        (job, self.payload)
    }
}

impl Job<Payload> {
    pub(crate) fn new(mut claimed: Claimed, control: Arc<Control>) -> Self {
        Self {
            payload: std::mem::take(&mut claimed.payload),
            claimed,
            control,
        }
    }
}

/// What the worker and a handler share of a claim.
pub(crate) struct Control {
    pub(crate) claim: Claim,
    pub(crate) stop: CancellationToken,
    reason: Mutex<Option<CancelReason>>,
    /// Until when the claim is certain to hold; `None` until that is known.
    deadline: watch::Sender<Option<Moment>>,
    /// The latest that was not sent yet.
    progress: Mutex<Option<Payload>>,
    /// Wakes the sender of heartbeats.
    wake: Arc<Notify>,
}

impl Control {
    pub(crate) fn new(claim: Claim, wake: Arc<Notify>) -> Self {
        Self {
            claim,
            stop: CancellationToken::new(),
            reason: Mutex::new(None),
            deadline: watch::Sender::new(None),
            progress: Mutex::new(None),
            wake,
        }
    }

    /// Tells the handler to stop. The first reason counts, unless the claim turns out to be lost.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() || reason == CancelReason::Lost {
            *first = Some(reason);
        }
        drop(first);
        self.stop.cancel();
    }

    pub(crate) fn reason(&self) -> Option<CancelReason> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim is certain to hold until then.
    pub(crate) fn trust(&self, until: Moment) {
        self.deadline.send_if_modified(|deadline| {
            let is_later = *deadline < Some(until);
            if is_later {
                *deadline = Some(until);
            }
            is_later
        });
    }

    pub(crate) fn deadline(&self) -> Option<Moment> {
        *self.deadline.borrow()
    }

    async fn deadline_after(&self, seen: Moment) -> Moment {
        let mut deadline = self.deadline.subscribe();
        let later = deadline.wait_for(|deadline| *deadline > Some(seen)).await;
        let later = later.ok().and_then(|later| *later);
        later.expect("this holds the sender, and waits for a deadline")
    }

    /// Whether the work may begin: waits until it is certain that the claim still holds, or is told to stop before.
    pub(crate) async fn may_begin(&self) -> bool {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            _ = self.deadline_after(Moment::ZERO) => true,
        }
    }

    fn set_progress(&self, progress: Payload) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
        self.wake.notify_one();
    }

    pub(crate) fn take_progress(&self) -> Option<Payload> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.take()
    }

    pub(crate) fn has_progress(&self) -> bool {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.is_some()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the claim: its token is a secret.
        let mut debug = formatter.debug_struct("Control");
        debug
            .field("reason", &self.reason())
            .finish_non_exhaustive()
    }
}
