//! Following the queue: what was committed, in the order of the log, from now on, or from a place on that is kept.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_core::queue::Event;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::Position;

/// How many of the latest events are kept for followers who come back. Each is a few names, so this also bounds their bytes.
const PAST_EVENTS_MAX: usize = 10_000;

/// How many of the latest commands, which may have done nothing.
const PAST_MAX: usize = 10_000;

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
    /// What is told first, to a follower who comes back.
    past: VecDeque<Followed>,
    receiver: Option<broadcast::Receiver<Followed>>,
    start: Position,
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
    /// Of a queue that is not served here.
    pub(crate) fn ended() -> Self {
        Self {
            past: VecDeque::new(),
            receiver: None,
            start: Position::default(),
        }
    }

    pub(crate) fn new(
        past: VecDeque<Followed>,
        receiver: broadcast::Receiver<Followed>,
        start: Position,
    ) -> Self {
        Self {
            past,
            receiver: Some(receiver),
            start,
        }
    }

    /// The last command that was committed when this follower came.
    #[must_use]
    pub fn start(&self) -> Position {
        self.start
    }

    /// The next command. After an error it has ended: every later call says [`Cut::Ended`]. A cancelled
    /// call loses nothing.
    pub async fn next(&mut self) -> Result<Followed, Cut> {
        if let Some(followed) = self.past.pop_front() {
            return Ok(followed);
        }
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

/// The latest commands, for followers who come back. There is no gap between them.
#[derive(Debug)]
pub(crate) struct Past {
    /// The command before the first one that is kept.
    before: Position,
    kept: VecDeque<Followed>,
    events: usize,
}

impl Past {
    /// Whatever is committed behind a place.
    pub(crate) fn behind(position: Position) -> Self {
        Self {
            before: position,
            kept: VecDeque::new(),
            events: 0,
        }
    }

    pub(crate) fn note(&mut self, followed: Followed) {
        self.events += followed.events.len();
        self.kept.push_back(followed);
        while self.events > PAST_EVENTS_MAX || self.kept.len() > PAST_MAX {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.events -= oldest.events.len();
            self.before = oldest.position;
        }
    }

    /// What was committed behind a place, if all of it is kept and that place is known.
    pub(crate) fn after(&self, position: Position, latest: Position) -> Option<VecDeque<Followed>> {
        if position < self.before || position > latest {
            return None;
        }
        let from = self.kept.partition_point(|each| each.position <= position);
        Some(self.kept.range(from..).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_is_bounded_and_says_when_it_does_not_reach_back() {
        let followed = |position: u64, events: usize| Followed {
            position: Position(position),
            at_ms: 0,
            events: std::iter::repeat_n(Event::Configured, events).collect(),
        };
        let mut past = Past::behind(Position(5));
        let after = |past: &Past, position, latest| {
            let found = past.after(Position(position), Position(latest))?;
            Some(found.iter().map(|each| each.position.0).collect::<Vec<_>>())
        };
        assert_eq!(after(&past, 5, 5), Some(vec![]), "nothing happened");
        assert_eq!(after(&past, 4, 5), None);
        past.note(followed(6, 1));
        past.note(followed(7, 0));
        assert_eq!(after(&past, 5, 7), Some(vec![6, 7]));
        assert_eq!(after(&past, 6, 7), Some(vec![7]));
        assert_eq!(after(&past, 8, 7), None, "of another log");
        for position in 8..30_000 {
            past.note(followed(position, 0));
        }
        assert_eq!(past.kept.len(), PAST_MAX);
        assert_eq!(after(&past, 7, 29_999), None);
        past.note(followed(30_000, PAST_EVENTS_MAX + 1));
        assert!(past.kept.is_empty() && past.events == 0);
        assert_eq!(after(&past, 30_000, 30_000), Some(vec![]));
        assert_eq!(after(&past, 29_999, 30_000), None);
    }
}
