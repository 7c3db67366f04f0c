//! Following the queue: what was committed, in the order of the log, from now on.

use std::sync::Arc;

use tenure_core::queue::Event;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::Position;

/// One command that was committed, and what it did.
#[derive(Debug, Clone)]
pub struct Followed {
    /// Its place in the log.
    pub position: Position,
    /// The queue's time when it was asked, in milliseconds since 1970.
    pub at_ms: u64,
    /// What it did, possibly nothing.
    pub events: Arc<[Event]>,
}

/// Yields what is committed, in the order of the log. See [`Queue::follow`](super::Queue::follow).
#[derive(Debug)]
pub struct Follower {
    receiver: Option<broadcast::Receiver<Followed>>,
}

/// Why a follower gets nothing more. Whatever it built from events is to be read anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cut {
    /// It was too slow, and some events are gone.
    #[error("the follower fell behind and missed {missed} commands")]
    Behind {
        /// How many commands it missed.
        missed: u64,
    },
    /// This process no longer serves the queue, or never did. Follow it where it is served.
    #[error("the queue is no longer served here")]
    Ended,
}

impl Follower {
    pub(crate) fn new(receiver: Option<broadcast::Receiver<Followed>>) -> Self {
        Self { receiver }
    }

    /// The next command. After an error it has ended: every later call says [`Cut::Ended`]. A cancelled
    /// call loses nothing.
    pub async fn next(&mut self) -> Result<Followed, Cut> {
        let Some(receiver) = &mut self.receiver else {
            return Err(Cut::Ended);
        };
        let cut = match receiver.recv().await {
            Ok(followed) => return Ok(followed),
            Err(RecvError::Lagged(missed)) => Cut::Behind { missed },
            Err(RecvError::Closed) => Cut::Ended,
        };
        self.receiver = None;
        Err(cut)
    }
}
