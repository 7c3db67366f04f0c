//! When to try again: waits that grow, with jitter, so that the callers of a server that comes back do not
//! all arrive at once.

use std::time::Duration;

use uuid::Uuid;

/// The first wait, which is enough for a connection that broke.
const FIRST: Duration = Duration::from_millis(50);

/// The longest wait: after a takeover nobody should be later than this.
const LONGEST: Duration = Duration::from_secs(2);

/// What a server may ask for at most; more than this is a mistake, or somebody else's server.
const ASKED_MAX: Duration = Duration::from_secs(30);

/// The waits of one call.
#[derive(Debug)]
pub(crate) struct Waits {
    next: Duration,
}

impl Waits {
    pub(crate) const fn new() -> Self {
        Self { next: FIRST }
    }

    /// The next wait: not less than the server asked for, and up to half more or less of our own.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        let own = whole.mul_f64(0.5 + random_share());
        match asked {
            // Everybody was asked the same: spread out behind it.
            Some(asked) => asked.min(ASKED_MAX) + own.min(asked / 4),
            None => own,
        }
    }
}

/// A random number from 0 to 1.
fn random_share() -> f64 {
    let [low, high, ..] = *Uuid::new_v4().as_bytes();
    f64::from(u16::from_le_bytes([low, high])) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_respect_what_was_asked() {
        let mut waits = Waits::new();
        let own: Vec<Duration> = (0..10).map(|_| waits.next(None)).collect();
        assert!(own[0] >= FIRST / 2 && own[0] <= FIRST * 3 / 2);
        assert!(own.iter().all(|wait| *wait <= LONGEST * 3 / 2));
        assert!(own[9] >= LONGEST / 2);
        let asked = Duration::from_secs(4);
        let wait = waits.next(Some(asked));
        assert!(wait >= asked && wait <= asked * 5 / 4);
        assert!(waits.next(Some(Duration::MAX / 8)) <= ASKED_MAX + LONGEST * 2);
    }
}
