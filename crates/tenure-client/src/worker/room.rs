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
//! another; and when a pause is over, one job first and then more, since what was missing may be there again. It is over
//! when there was room for as many as there are slots. Both are said once.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The first pause, and between two tries for more. The next pause is twice as long, up to the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

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
    /// How many were claimed the last time, whose room shows until the pause is over.
    tried: usize,
    /// How many jobs have ended, each of which leaves room for another.
    freed: usize,
}

impl Room {
    /// A job found no room. Many that were claimed together count once.
    pub(crate) fn ran_out(&self, why: &str) {
        let now = Instant::now();
        match &mut *self.lock() {
            // A part of the last time.
            Some(it) if it.tried == 0 && now < it.over_at => {}
            Some(it) => {
                let pause = (it.pause * 2).min(PAUSE_MAX);
                *it = Scarce::after(pause, now);
                tracing::debug!(why, ?pause, "there is still no room for more jobs");
            }
            scarce => {
                *scarce = Some(Scarce::after(PAUSE_MIN, now));
                tracing::warn!(
                    why,
                    "there is no room for more jobs: they are handed back, and fewer are claimed until there is"
                );
            }
        }
    }

    /// A job that had room has ended.
    pub(crate) fn has_ended(&self) {
        if let Some(scarce) = &mut *self.lock() {
            scarce.freed += 1;
            self.freed.notify_one();
        }
    }

    /// Whether it has run out, so that claims are made with care.
    pub(crate) fn is_scarce(&self) -> bool {
        self.lock().is_some()
    }

    /// Waits until jobs may be claimed. How many, of those that there are slots for: `all`.
    pub(crate) async fn wait(&self, all: usize) -> usize {
        loop {
            let over_at = {
                let mut scarce = self.lock();
                let Some(it) = &mut *scarce else {
                    return all;
                };
                let is_over = Instant::now() >= it.over_at;
                if is_over && it.tried >= all {
                    *scarce = None;
                    tracing::warn!("there is room for more jobs again");
                    return all;
                }
                if it.freed > 0 {
                    return it.freed;
                }
                if is_over {
                    return it.most.min(all);
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
                it.tried = it.most;
                it.most = it.most.saturating_mul(2);
                it.over_at = Instant::now() + PAUSE_MIN;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Scarce>> {
        self.scarce.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scarce {
    fn after(pause: Duration, now: Instant) -> Self {
        Self {
            pause,
            over_at: now + pause,
            most: 1,
            tried: 0,
            freed: 0,
        }
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
        for _ in 0..2 {
            advance(PAUSE_MIN).await;
            assert_eq!(now(&room).await, Some(ALL));
            room.claimed(ALL);
        }
        assert_eq!(now(&room).await, Some(ALL), "as if it had never run out");
    }

    /// That one more may be tried than there is room for is not that there is room.
    #[tokio::test(start_paused = true)]
    async fn pauses_grow_however_few_slots_there_are() {
        for all in [1, 2, 4] {
            let room = Room::default();
            room.ran_out("test");
            let mut times = Vec::new();
            for _ in 0..5 {
                let started = Instant::now();
                // As much as there is room for has it; all of it has not.
                loop {
                    let most = room.wait(all).await;
                    room.claimed(most);
                    if most == all {
                        break;
                    }
                }
                times.push(started.elapsed());
                room.ran_out("test");
            }
            assert!(
                times.is_sorted() && times[4] >= 16 * PAUSE_MIN,
                "{all}: {times:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_slot_whose_job_has_room_is_as_good_as_new() {
        let room = Room::default();
        room.ran_out("test");
        advance(PAUSE_MIN).await;
        assert_eq!(room.wait(1).await, 1);
        room.claimed(1);
        advance(PAUSE_MIN).await;
        room.has_ended();
        assert_eq!(room.wait(1).await, 1);
        assert!(room.lock().is_none());
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
