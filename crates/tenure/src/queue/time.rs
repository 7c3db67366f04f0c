//! The queue's own time: what commands carry as `at`. It does not go back by itself, and follows no clock over a cliff.
//!
//! Jobs, retries, schedules and retention go by the broker's wall clock, and brokers on different hosts take
//! turns. What happens when a clock is wrong:
//!
//! - **Ahead at a term's first look, by up to [`clock_ahead_max`](super::Options::clock_ahead_max)** (a year):
//!   believed. A queue that nobody used for months looks exactly so. More than an hour is logged.
//! - **Ahead later in the term**: the clock that counts from the host's start is the witness of how much time
//!   has passed. The wall clock is believed up to [`clock_step_max`](super::Options::clock_step_max) (minutes) beyond
//!   what the witness says, so one second of a wrong clock cannot run every delayed job and forget every finished one.
//! - **Further ahead than that**: not followed, since time in the queue does not go back by itself. It goes on from
//!   where it was, at the speed of the witness: delays, retries and leases work, and what is due at a time of day comes late.
//!   The witness catches up with the wall clock by a tenth of the time that passes, so a clock that was set right by
//!   more than the limit is followed again after a while, at the next term, or when an operator says so.
//! - **Behind the queue's time when a term begins**: the queue's time goes on at half speed until the clock has caught up,
//!   so that nothing waits for it for ever and the difference goes away by itself.
//! - **Set back later in the term**: the witness disproves this too. Time goes on with the witness, which waits for the wall
//!   clock by a tenth of the time that passes. Only what the queue is ahead of the witness goes away at half speed.
//!
//! [`Queue::set_time`](super::Queue::set_time) sets it, back as well: the log has a command for it, and commands that
//! were given their time before are in line before that one.
//!
//! Each of it is logged when it begins and when it ends, and shown by [`Queue::clock`](super::Queue::clock).
//! Leases do not go by this time: they have the monotonic clock.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tenure_core::{Moment, Now};

use super::Error;
use crate::clock::Clock;

/// From when on a clock that is behind is worth a word. Hosts are never quite together.
const BEHIND_TOLD: Duration = Duration::from_secs(60);

/// From when on it is worth a word that time moves on at the first look of a term.
const JUMP_TOLD: Duration = Duration::from_secs(3_600);

/// How far ahead of the clock an operator may set the time: further is a mistake in units.
const SET_AHEAD_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The witness comes nearer to the wall clock by this part of the time that passes.
const CATCH_UP_PART: u32 = 10;

/// A time of the queue before this (2024) was never right: any clock is better.
const BEFORE_ANY_QUEUE: u64 = 1_704_067_200_000;

/// What the queue makes of this host's wall clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockState {
    /// It is followed.
    #[default]
    Followed,
    /// It is too far ahead to be believed: the queue's time goes on without it, and only slowly nearer to it.
    Ahead {
        /// How far.
        by: Duration,
    },
    /// It is behind the queue's time, which goes on more slowly: at half speed, or a tenth slower if the clock was set
    /// back in this term.
    Behind {
        /// How far.
        by: Duration,
    },
}

/// Where the time of a queue comes from, in one term.
#[derive(Debug)]
pub(crate) struct Time {
    clock: Clock,
    limits: ClockLimits,
    state: Mutex<State>,
    /// Held together while commands with their time are put in line, and alone while the time is set.
    in_line: RwLock<()>,
}

/// How far ahead a wall clock is believed to be right.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockLimits {
    /// Of the time that the log has reached, when a term begins.
    pub(crate) ahead_max: Duration,
    /// Of the witness, later.
    pub(crate) step_max: Duration,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// The last time that was given out.
    last: u64,
    /// Where time is counted from, while the wall clock is not followed.
    anchor: (u64, Moment),
    pace: Pace,
    clock: ClockState,
    /// How much time has passed, since 1970 as of this moment, by the clock that nobody sets. Absent until the wall
    /// clock has shown something that can be believed.
    witness: Option<(Duration, Moment)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// With the wall clock.
    Wall,
    /// With the monotonic clock.
    Own,
    /// With half of that.
    Half,
    /// With the witness: the wall clock was set back.
    Witness,
}

impl Time {
    /// Goes on from the time that the log has reached.
    pub(crate) fn new(clock: Clock, limits: ClockLimits, reached: u64) -> Self {
        let state = State {
            last: reached,
            anchor: (reached, clock.moment()),
            pace: Pace::Wall,
            clock: ClockState::Followed,
            witness: None,
        };
        Self {
            clock,
            limits,
            state: Mutex::new(state),
            in_line: RwLock::default(),
        }
    }

    /// The present, in milliseconds since 1970.
    pub(crate) fn at(&self) -> u64 {
        let now = self.clock.now();
        let mut state = self.state();
        let before = *state;
        let at = state.step(now, self.limits);
        let after = *state;
        drop(state);
        tell(before.clock, after.clock);
        if before.witness.is_none() && after.witness.is_some() {
            tell_jump(before.last, at);
        }
        at
    }

    /// Puts a command in line whose time was read before; if the time was set back since, it is the time that was set.
    pub(crate) fn in_line<T>(&self, at: u64, put: impl FnOnce(u64) -> T) -> T {
        let _together = self.in_line.read().unwrap_or_else(PoisonError::into_inner);
        put(at.min(self.state().last))
    }

    /// Sets the time and puts the command in line that does so in the log: whatever has an older time is before it.
    /// Returns the time before.
    pub(crate) fn set(&self, to: u64, put: impl FnOnce()) -> u64 {
        let _alone = self.in_line.write().unwrap_or_else(PoisonError::into_inner);
        let before = self.at();
        let now = self.clock.now();
        *self.state() = State {
            last: to,
            anchor: (to, now.moment),
            pace: Pace::Own,
            clock: ClockState::Followed,
            witness: Some((Duration::from_millis(to), now.moment)),
        };
        put();
        before
    }

    /// What the wall clock of this host shows.
    pub(crate) fn wall(&self) -> u64 {
        self.clock.now().wall.0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clock_state(&self) -> ClockState {
        self.at();
        self.state().clock
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

impl Pace {
    /// Whether time is counted from the anchor.
    const fn is_counted(self) -> bool {
        matches!(self, Self::Own | Self::Half)
    }
}

/// What to say of a clock that is so far behind.
fn behind_by(by: Duration) -> ClockState {
    if by > BEHIND_TOLD {
        ClockState::Behind { by }
    } else {
        ClockState::Followed
    }
}

impl State {
    fn step(&mut self, now: Now, limits: ClockLimits) -> u64 {
        let wall = now.wall.0;
        let was_never_right = self.last < BEFORE_ANY_QUEUE;
        self.ask_witness(now);
        let (passed, ahead_max) = match self.witness {
            Some((passed, _)) => (passed, limits.step_max),
            None => (Duration::from_millis(self.last), limits.ahead_max),
        };
        let ahead = Duration::from_millis(wall).saturating_sub(passed);
        let behind = Duration::from_millis(self.last.saturating_sub(wall));
        let witnessed = self.witness.map_or(0, |(passed, _)| milliseconds(passed));
        let pace = if self.last > wall.max(witnessed) {
            Pace::Half
        } else if witnessed > wall {
            Pace::Witness
        } else if ahead > ahead_max && !was_never_right {
            Pace::Own
        } else {
            Pace::Wall
        };
        // From one trouble into the other, time is counted anew.
        if pace != self.pace && pace.is_counted() && self.pace.is_counted() {
            self.anchor = (self.last, now.moment);
        }
        let (from, since) = self.anchor;
        let elapsed = now.moment.since(since);
        let (at, clock) = match pace {
            Pace::Wall => (wall, ClockState::Followed),
            Pace::Own => {
                let own = from.saturating_add(milliseconds(elapsed));
                (own.max(witnessed), ClockState::Ahead { by: ahead })
            }
            Pace::Half => (
                from.saturating_add(milliseconds(elapsed / 2)),
                behind_by(behind),
            ),
            Pace::Witness => {
                let behind = Duration::from_millis(witnessed - wall);
                (witnessed, behind_by(behind))
            }
        };
        self.last = self.last.max(at);
        self.pace = pace;
        self.clock = clock;
        // A clock that is not credible yet is no reason to doubt what it shows when it has been set.
        let is_credible = pace == Pace::Wall || (pace == Pace::Half && behind <= BEHIND_TOLD);
        if self.witness.is_none() && is_credible || pace == Pace::Wall && was_never_right {
            self.witness = Some((Duration::from_millis(wall), now.moment));
        }
        if !pace.is_counted() {
            self.anchor = (self.last, now.moment);
        }
        self.last
    }

    /// Brings the witness up to the present, and nearer to the wall clock.
    fn ask_witness(&mut self, now: Now) {
        let Some((passed, since)) = &mut self.witness else {
            return;
        };
        let elapsed = now.moment.since(*since);
        *passed = passed.saturating_add(elapsed);
        let wall = Duration::from_millis(now.wall.0);
        let step_max = elapsed / CATCH_UP_PART;
        *passed = match wall.checked_sub(*passed) {
            Some(ahead) => passed.saturating_add(ahead.min(step_max)),
            None => *passed - (*passed - wall).min(step_max),
        };
        *since = now.moment;
    }
}

/// Checks a time that an operator wants to set.
pub(crate) fn check_set(to: u64, wall: u64) -> Result<(), Error> {
    let latest = wall.saturating_add(milliseconds(SET_AHEAD_MAX));
    if (BEFORE_ANY_QUEUE..=latest).contains(&to) {
        return Ok(());
    }
    let mut error = Error::invalid(
        format!("{to} is before 2024, or more than a year ahead of this broker's clock ({wall})"),
        "give milliseconds since 1970, or RFC 3339 text",
    );
    if let Error::Invalid { field, .. } = &mut error {
        *field = Some("to".to_owned());
    }
    Err(error)
}

fn tell_jump(reached: u64, at: u64) {
    let by = Duration::from_millis(at.saturating_sub(reached));
    if by > JUMP_TOLD && reached >= BEFORE_ANY_QUEUE {
        tracing::warn!(
            ?by,
            "the queue's time jumps forward by this much: if the queue was in use meanwhile, the clock of this host is \
             wrong; correct it, then set the time with tenure queue time --set now"
        );
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
                "the clock of this host is too far ahead of the queue's time and is not followed: correct it; if it is \
                 right, run tenure queue time --set now"
            );
        }
        (_, ClockState::Behind { by }) => {
            tracing::warn!(
                behind = ?by,
                "the clock of this host is behind the queue's time, which runs more slowly until the clock has caught up"
            );
        }
        (_, ClockState::Followed) => tracing::info!("following the clock of this host again"),
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

    const MINUTE: Duration = Duration::from_secs(60);
    const LIMITS: ClockLimits = ClockLimits {
        ahead_max: YEAR,
        step_max: Duration::from_secs(300),
    };

    #[test]
    fn months_without_a_command_are_nothing_special() {
        let clock = ManualClock::new();
        let reached = clock.wall_ms() - 200 * 24 * 3_600_000;
        let time = Time::new(clock.runtime().clock, LIMITS, reached);
        assert_eq!(time.at(), clock.wall_ms());
        assert_eq!(time.clock_state(), ClockState::Followed);
    }

    #[test]
    fn a_clock_years_ahead_is_not_followed_and_time_goes_on() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        let time = Time::new(clock.runtime().clock, LIMITS, right);
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
        let time = Time::new(clock.runtime().clock, LIMITS, ahead);
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
    fn a_clock_that_is_set_back_is_not_followed_either() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        let time = Time::new(clock.runtime().clock, LIMITS, right);
        assert_eq!(time.at(), right);
        clock.set_wall_ms(right - 3_600_000);
        // At nine tenths of the speed, however often it is asked.
        for _ in 0..1_000 {
            clock.advance(Duration::from_millis(100));
            time.at();
        }
        assert!((90_000..=90_100).contains(&(time.at() - right)));
        assert!(matches!(time.clock_state(), ClockState::Behind { by } if by > 50 * MINUTE));
        // Set right again, it is followed at once.
        clock.set_wall_ms(right + 100_000);
        assert_eq!(time.at(), right + 100_000);
        assert_eq!(time.clock_state(), ClockState::Followed);
        // Nobody sets it right: it is caught up with.
        clock.set_wall_ms(right + 40_000);
        clock.advance(5 * MINUTE);
        assert!(time.at() > clock.wall_ms());
        clock.advance(5 * MINUTE);
        assert_eq!(time.at(), clock.wall_ms());
    }

    #[test]
    fn minutes_that_were_believed_by_mistake_go_away_at_half_speed() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        let time = Time::new(clock.runtime().clock, LIMITS, right);
        time.at();
        clock.set_wall_ms(right + 240_000);
        assert_eq!(time.at(), right + 240_000);
        clock.set_wall_ms(right);
        clock.advance(2 * MINUTE);
        assert_eq!(time.at(), right + 300_000);
        clock.advance(6 * MINUTE);
        assert_eq!(time.at(), clock.wall_ms());
    }

    #[test]
    fn a_queue_that_began_before_the_clock_was_set_follows_it() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        clock.set_wall_ms(1_000);
        let time = Time::new(clock.runtime().clock, LIMITS, 0);
        assert_eq!(time.at(), 1_000);
        clock.set_wall_ms(right);
        assert_eq!(time.at(), right);
    }

    #[test]
    fn one_second_of_a_wrong_clock_changes_nothing() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        let time = Time::new(clock.runtime().clock, LIMITS, right);
        assert_eq!(time.at(), right);
        clock.set_wall_ms(right + 200 * 24 * 3_600_000);
        // Asked ever so often, it is not followed either.
        for _ in 0..1_000 {
            clock.advance(Duration::from_millis(1));
            assert!(time.at() <= right + 1_100);
        }
        assert!(matches!(time.clock_state(), ClockState::Ahead { .. }));
        clock.set_wall_ms(right + 1_200);
        clock.advance(Duration::from_millis(200));
        assert_eq!(time.at(), right + 1_400);
        assert_eq!(time.clock_state(), ClockState::Followed);
    }

    #[test]
    fn minutes_are_believed_and_not_again_and_again() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        let time = Time::new(clock.runtime().clock, LIMITS, right);
        time.at();
        clock.set_wall_ms(right + 240_000);
        assert_eq!(time.at(), right + 240_000);
        for _ in 0..100 {
            clock.set_wall_ms(clock.wall_ms() + 240_000);
            clock.advance(Duration::from_millis(10));
            time.at();
        }
        assert!(time.at() < right + 302_000, "{}", time.at() - right);
        assert!(matches!(time.clock_state(), ClockState::Ahead { .. }));
    }

    #[test]
    fn a_clock_that_was_set_right_by_more_than_is_believed_is_caught_up_with() {
        let clock = ManualClock::new();
        let slow = clock.wall_ms();
        let time = Time::new(clock.runtime().clock, LIMITS, slow);
        time.at();
        clock.set_wall_ms(slow + milliseconds(20 * MINUTE));
        assert_eq!(time.at(), slow);
        clock.advance(100 * MINUTE);
        assert_eq!(time.at(), slow + milliseconds(110 * MINUTE));
        clock.advance(60 * MINUTE);
        assert_eq!(time.at(), clock.wall_ms());
        assert_eq!(time.clock_state(), ClockState::Followed);
    }

    #[test]
    fn a_clock_that_is_first_set_while_the_broker_runs_is_believed() {
        let clock = ManualClock::new();
        let right = clock.wall_ms();
        let reached = right - milliseconds(72 * 60 * MINUTE);
        for wrong in [1_000, right + milliseconds(20 * YEAR)] {
            clock.set_wall_ms(wrong);
            let time = Time::new(clock.runtime().clock, LIMITS, reached);
            assert_eq!(time.at(), reached);
            clock.set_wall_ms(right);
            assert_eq!(time.at(), right);
            assert_eq!(time.clock_state(), ClockState::Followed);
        }
    }
}
