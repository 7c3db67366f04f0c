//! The queue's own time: what commands carry as `at`. It never goes back, and follows no clock over a cliff.
//!
//! Jobs, retries, schedules and retention go by the broker's wall clock, and brokers on different hosts take
//! turns. What happens when a clock is wrong:
//!
//! - **Ahead, by up to [`ahead_max`](super::Options::clock_ahead_max)** (a year): believed. A queue that
//!   nobody used for months looks exactly so.
//! - **Further ahead**: not believed, since time in the queue never goes back. Every delayed job would run at
//!   once, and every finished one would be forgotten. The queue's time goes on from where it was, at the speed
//!   of the monotonic clock: delays, retries and leases work, and what is due at a time of day comes late until
//!   the clock is right, or the limit is raised because it is.
//! - **Behind the queue's time**: the queue's time goes on at half speed until the clock has caught up, so that
//!   nothing waits for it for ever and the difference goes away by itself.
//!
//! Each of it is logged when it begins and when it ends, and shown by [`Queue::clock`](super::Queue::clock).
//! Leases do not go by this time: they have the monotonic clock.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Moment, Now};

use crate::Clock;

/// From when on a clock that is behind is worth a word. Hosts are never quite together.
const BEHIND_TOLD: Duration = Duration::from_secs(60);

/// A time of the queue before this (2024) was never right: any clock is better.
const BEFORE_ANY_QUEUE: u64 = 1_704_067_200_000;

/// What the queue makes of this host's wall clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockState {
    /// It is followed.
    #[default]
    Followed,
    /// It is too far ahead to be believed: the queue's time goes on without it.
    Ahead {
        /// How far.
        by: Duration,
    },
    /// It is behind the queue's time, which goes on at half speed.
    Behind {
        /// How far.
        by: Duration,
    },
}

/// Where the time of a queue comes from, in one term.
#[derive(Debug)]
pub(crate) struct Time {
    clock: Clock,
    ahead_max: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// The last time that was given out.
    last: u64,
    /// Where time is counted from, while the wall clock is not followed.
    anchor: (u64, Moment),
    pace: Pace,
    clock: ClockState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// With the wall clock.
    Wall,
    /// With the monotonic clock.
    Own,
    /// With half of that.
    Half,
}

impl Time {
    /// Goes on from the time that the log has reached.
    pub(crate) fn new(clock: Clock, ahead_max: Duration, reached: u64) -> Self {
        let state = State {
            last: reached,
            anchor: (reached, clock.moment()),
            pace: Pace::Wall,
            clock: ClockState::Followed,
        };
        Self {
            clock,
            ahead_max,
            state: Mutex::new(state),
        }
    }

    /// The present, in milliseconds since 1970.
    pub(crate) fn at(&self) -> u64 {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.clock;
        let at = state.step(now, self.ahead_max);
        let after = state.clock;
        drop(state);
        tell(before, after);
        at
    }

    pub(crate) fn clock_state(&self) -> ClockState {
        self.at();
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clock
    }

    /// The moment at which the queue's time will be `at`, if it is followed.
    pub(crate) fn moment_of(&self, at: u64) -> Moment {
        let wait = at.saturating_sub(self.at());
        self.clock.moment() + Duration::from_millis(wait)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl State {
    fn step(&mut self, now: Now, ahead_max: Duration) -> u64 {
        let (from, since) = self.anchor;
        let elapsed = now.moment.since(since);
        let wall = now.wall.0;
        let ahead = wall.saturating_sub(from.saturating_add(milliseconds(elapsed)));
        let ahead = Duration::from_millis(ahead);
        let behind = Duration::from_millis(self.last.saturating_sub(wall));
        let pace = if !behind.is_zero() {
            Pace::Half
        } else if ahead > ahead_max && self.last >= BEFORE_ANY_QUEUE {
            Pace::Own
        } else {
            Pace::Wall
        };
        // From one trouble into the other, time is counted anew.
        if pace != self.pace && pace != Pace::Wall && self.pace != Pace::Wall {
            self.anchor = (self.last, now.moment);
        }
        let (from, since) = self.anchor;
        let elapsed = now.moment.since(since);
        let (at, clock) = match pace {
            Pace::Wall => (wall, ClockState::Followed),
            Pace::Own => (
                from.saturating_add(milliseconds(elapsed)),
                ClockState::Ahead { by: ahead },
            ),
            Pace::Half => (
                from.saturating_add(milliseconds(elapsed / 2)),
                match behind > BEHIND_TOLD {
                    true => ClockState::Behind { by: behind },
                    false => ClockState::Followed,
                },
            ),
        };
        self.last = self.last.max(at);
        self.pace = pace;
        self.clock = clock;
        if pace == Pace::Wall {
            self.anchor = (self.last, now.moment);
        }
        self.last
    }
}

fn tell(before: ClockState, after: ClockState) {
    match (before, after) {
        (ClockState::Ahead { .. }, ClockState::Ahead { .. })
        | (ClockState::Behind { .. }, ClockState::Behind { .. })
        | (ClockState::Followed, ClockState::Followed) => {}
        (_, ClockState::Ahead { by }) => {
            tracing::error!(
                ahead = ?by,
                "the clock of this host is too far ahead of the queue's time and is not followed: set it right, \
                 or raise clock_ahead_max if it is right"
            );
        }
        (_, ClockState::Behind { by }) => {
            tracing::warn!(
                behind = ?by,
                "the clock of this host is behind the queue's time, which goes on at half speed until it has caught up"
            );
        }
        (_, ClockState::Followed) => tracing::info!("the clock of this host is followed again"),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ManualClock;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn months_without_a_command_are_nothing_special() {
        let clock = ManualClock::new();
        let reached = clock.wall_ms() - 200 * 24 * 3_600_000;
        let time = Time::new(clock.clock(), YEAR, reached);
        assert_eq!(time.at(), clock.wall_ms());
        assert_eq!(time.clock_state(), ClockState::Followed);
    }

    #[test]
    fn a_clock_years_ahead_is_not_followed_and_time_goes_on() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        let time = Time::new(clock.clock(), YEAR, right);
        clock.set_wall_ms(right + milliseconds(10 * YEAR));
        clock.advance(second(7));
        assert_eq!(time.at(), right + 7_000);
        assert!(matches!(time.clock_state(), ClockState::Ahead { by } if by >= 10 * YEAR));
        // Set right again, it is followed.
        clock.set_wall_ms(right + 8_000);
        assert_eq!(time.at(), right + 8_000);
        assert_eq!(time.clock_state(), ClockState::Followed);
    }

    #[test]
    fn a_clock_behind_is_caught_up_with_and_never_stands_still() {
        let clock = ManualClock::new();
        let ahead = clock.wall_ms() + 100_000;
        let time = Time::new(clock.clock(), YEAR, ahead);
        assert_eq!(time.at(), ahead);
        assert_eq!(time.clock_state(), ClockState::Behind { by: second(100) });
        // Asked ever so often, it still moves: at half speed.
        for _ in 0..1_000 {
            clock.advance(Duration::from_micros(500));
            time.at();
        }
        assert_eq!(time.at(), ahead + 250);
        clock.advance(second(300));
        assert_eq!(time.at(), clock.wall_ms());
        assert_eq!(time.clock_state(), ClockState::Followed);
    }

    #[test]
    fn a_queue_that_began_before_the_clock_was_set_follows_it() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        clock.set_wall_ms(1_000);
        let time = Time::new(clock.clock(), YEAR, 0);
        assert_eq!(time.at(), 1_000);
        clock.set_wall_ms(right);
        assert_eq!(time.at(), right);
    }
}
