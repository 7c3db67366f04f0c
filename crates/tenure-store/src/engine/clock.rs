//! How old an object is, where the engine's clock is the host's.
//!
//! The time of a change is noted on the host's wall clock, which people and time servers set. A leap
//! forward would make every lease on the host look expired at once. So the present is counted from the
//! clock that only counts on since boot, plus the smallest difference to the wall clock that was seen
//! since the store was opened. Both are slewed alike, so the difference changes only when the wall
//! clock is set:
//! - set forward: objects written later look too young, and objects written before have their right age;
//! - set back: the new, smaller difference counts from the next read on.
//!
//! Either way no object looks older than it is, except to a process that opened the store after the
//! clock was set forward and reads an object from before.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The kernel takes the times of files from a clock that moves once per tick, every 10 ms at the
/// slowest, so a file may carry a time from before it was written; a database rounds to milliseconds. Twice
/// the tick is taken off.
const TICK: Duration = Duration::from_millis(20);

/// Two readings further apart than this say too little about the difference of the clocks.
const READINGS_APART_MAX_NANOSECONDS: i64 = 1_000_000;

/// How often to read the clocks again if something came between.
const READINGS_MAX: usize = 10;

#[derive(Debug)]
pub(super) struct Clock {
    /// Wall clock less time since boot, the smallest seen.
    offset_nanoseconds: AtomicI64,
}

/// One look at both clocks.
#[derive(Debug, Clone, Copy)]
struct Reading {
    since_boot_nanoseconds: i64,
    offset_nanoseconds: i64,
}

impl Clock {
    /// `None` where the host has no such clocks.
    pub(super) fn start() -> Option<Self> {
        Some(Self {
            offset_nanoseconds: AtomicI64::new(Reading::take()?.offset_nanoseconds),
        })
    }

    /// At least how long ago a moment of the wall clock was; `None` if it lies ahead.
    pub(super) fn since(&self, moment_nanoseconds: i64) -> Option<Duration> {
        self.since_by(Reading::take()?, moment_nanoseconds)
    }

    fn since_by(&self, reading: Reading, moment_nanoseconds: i64) -> Option<Duration> {
        let seen = self
            .offset_nanoseconds
            .fetch_min(reading.offset_nanoseconds, Ordering::Relaxed);
        let now = reading.since_boot_nanoseconds + seen.min(reading.offset_nanoseconds);
        let age = u64::try_from(now - moment_nanoseconds).ok()?;
        Some(Duration::from_nanos(age).saturating_sub(TICK))
    }
}

impl Reading {
    #[cfg(target_os = "linux")]
    fn take() -> Option<Self> {
        use rustix::time::{ClockId, clock_gettime};
        let nanoseconds = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec * 1_000_000_000 + time.tv_nsec
        };
        (0..READINGS_MAX).find_map(|_| {
            let before = nanoseconds(ClockId::Boottime);
            let wall = nanoseconds(ClockId::Realtime);
            let since_boot_nanoseconds = nanoseconds(ClockId::Boottime);
            (since_boot_nanoseconds - before < READINGS_APART_MAX_NANOSECONDS).then_some(Self {
                since_boot_nanoseconds,
                offset_nanoseconds: wall - before,
            })
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn take() -> Option<Self> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn reading(since_boot: i64, wall: i64) -> Reading {
        Reading {
            since_boot_nanoseconds: since_boot * SECOND,
            offset_nanoseconds: (wall - since_boot) * SECOND,
        }
    }

    fn opened(since_boot: i64, wall: i64) -> Clock {
        Clock {
            offset_nanoseconds: AtomicI64::new((wall - since_boot) * SECOND),
        }
    }

    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds) - TICK)
    }

    #[test]
    fn age_is_the_difference_less_a_tick() {
        let clock = opened(100, 1000);
        assert_eq!(
            clock.since_by(reading(110, 1010), 1003 * SECOND),
            seconds(7)
        );
        assert_eq!(
            clock.since_by(reading(110, 1010), 1010 * SECOND - 1),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn setting_the_clock_forward_makes_nothing_look_older() {
        let clock = opened(100, 1000);
        let forward = reading(110, 1010 + 3600);
        assert_eq!(clock.since_by(forward, 1003 * SECOND), seconds(7));
        assert_eq!(clock.since_by(forward, (1009 + 3600) * SECOND), None);
    }

    #[test]
    fn setting_the_clock_back_makes_nothing_look_older() {
        let clock = opened(100, 1000 + 3600);
        let back = reading(110, 1010);
        assert_eq!(clock.since_by(back, 1003 * SECOND), seconds(7));
        assert_eq!(clock.since_by(back, (1003 + 3600) * SECOND), None);
    }
}
