//! How much a worker claims while its host has no room for more work.
//!
//! ```text
//!             a job finds no room                     enough was claimed without that
//!  all slots ─────────────────────> pause ──> 1, 2, 4 … jobs at a time ──────────────────> all slots
//!                                     ^            │ again: a longer pause
//!                                     └────────────┘
//! ```
//!
//! A job that found no room is handed back, which costs it no attempt: other workers may have room. So this one must not
//! claim it again at once. It claims again when one of its jobs has ended, as many as have, since each leaves room for
//! another; and when a pause is over, one job first and then more, since what was missing may be there again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The first pause, and between two tries for more. The next pause is twice as long, up to the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How often to say that there is no room, at most.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// Whether there is room for more work, as far as is known.
#[derive(Debug, Default)]
pub(crate) struct Room {
    scarce: Mutex<Option<Scarce>>,
    /// Wakes a claim that waits.
    freed: Notify,
}

#[derive(Debug)]
struct Scarce {
    pause: Duration,
    over_at: Instant,
    /// How many jobs may be claimed when the pause is over.
    most: usize,
    /// How many jobs have ended, each of which leaves room for another.
    freed: usize,
    said_at: Instant,
}

impl Room {
    /// A job found no room. Many that were claimed together count once.
    pub(crate) fn ran_out(&self, why: &str) {
        let now = Instant::now();
        let mut scarce = self.lock();
        let is_new = match &mut *scarce {
            None => {
                *scarce = Some(Scarce {
                    pause: PAUSE_MIN,
                    over_at: now + PAUSE_MIN,
                    most: 1,
                    freed: 0,
                    said_at: now,
                });
                true
            }
            // A part of the last time.
            Some(it) if it.most == 1 && now < it.over_at => false,
            Some(it) => {
                it.pause = (it.pause * 2).min(PAUSE_MAX);
                it.over_at = now + it.pause;
                it.most = 1;
                it.freed = 0;
                let is_due = now.duration_since(it.said_at) >= SAY_EVERY;
                if is_due {
                    it.said_at = now;
                }
                is_due
            }
        };
        drop(scarce);
        if is_new {
            tracing::warn!(
                why,
                "there is no room for more jobs: they are handed back, and fewer are claimed for a while"
            );
        }
    }

    /// A job that had room has ended.
    pub(crate) fn has_ended(&self) {
        if let Some(scarce) = &mut *self.lock() {
            scarce.freed += 1;
            self.freed.notify_one();
        }
    }

    /// Waits until jobs may be claimed. How many, of those that there are slots for: `all`.
    pub(crate) async fn wait(&self, all: usize) -> usize {
        loop {
            let over_at = {
                let mut scarce = self.lock();
                let Some(it) = &mut *scarce else {
                    return all;
                };
                if it.freed > 0 {
                    return it.freed;
                }
                if Instant::now() >= it.over_at {
                    if it.most >= all {
                        *scarce = None;
                        return all;
                    }
                    return it.most;
                }
                it.over_at
            };
            tokio::select! {
                () = sleep_until(over_at) => {}
                () = self.freed.notified() => {}
            }
        }
    }

    /// So many jobs were claimed after such a wait. Whether there is room for them shows soon.
    pub(crate) fn claimed(&self, jobs: usize) {
        if let Some(it) = &mut *self.lock()
            && jobs > 0
        {
            if it.freed > 0 {
                it.freed -= jobs.min(it.freed);
            } else if Instant::now() >= it.over_at {
                it.most = it.most.saturating_mul(2);
                it.over_at = Instant::now() + PAUSE_MIN;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Scarce>> {
        self.scarce.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const ALL: usize = 5;

    /// How many may be claimed now, without waiting.
    async fn now(room: &Room) -> Option<usize> {
        let soon = tokio::time::timeout(Duration::ZERO, room.wait(ALL));
        soon.await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn all_may_be_claimed_until_room_runs_out() {
        let room = Room::default();
        room.has_ended();
        assert_eq!(now(&room).await, Some(ALL));
        room.ran_out("test");
        assert_eq!(now(&room).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_makes_room_for_as_much() {
        let room = Room::default();
        room.ran_out("test");
        room.has_ended();
        room.has_ended();
        assert_eq!(now(&room).await, Some(2));
        room.claimed(1);
        assert_eq!(now(&room).await, Some(1));
        room.claimed(1);
        assert_eq!(now(&room).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_pause_more_and_more_is_claimed() {
        let room = Room::default();
        room.ran_out("test");
        for most in [1, 2, 4] {
            assert_eq!(now(&room).await, None);
            advance(PAUSE_MIN).await;
            assert_eq!(now(&room).await, Some(most));
            room.claimed(0);
            assert_eq!(now(&room).await, Some(most), "there was none to claim");
            room.claimed(most);
        }
        advance(PAUSE_MIN).await;
        assert_eq!(now(&room).await, Some(ALL));
        room.claimed(ALL);
        assert_eq!(now(&room).await, Some(ALL), "as if it had never run out");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_once_per_try_and_not_for_ever() {
        let room = Room::default();
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            room.ran_out("test");
            room.ran_out("claimed together with the first");
            advance(Duration::from_secs(pause) - Duration::from_millis(1)).await;
            assert_eq!(now(&room).await, None, "{pause}");
            advance(Duration::from_millis(1)).await;
            assert_eq!(now(&room).await, Some(1), "{pause}");
            room.claimed(1);
        }
    }
}
