//! How old an object is, for engines whose writers may all be on one host.
//!
//! A lease must never look older than it is: that would make two leaders. Wall clocks are set by people and time
//! servers, and those of two hosts differ, so no age is taken from them. Every write notes a [`Reading`] of
//! `CLOCK_BOOTTIME` instead, which counts from the start of the host, counts suspend and cannot be set, together with
//! the id that the kernel drew when it started. Only two readings with the same id are of the same clock, and only
//! their difference is an age. An object from another host, from before the last start of this one, or from a version
//! of Tenure that noted nothing has no age.
//!
//! The reading is taken before the write is applied, so an age is the time since the write was *begun*. Trust is
//! counted from that moment as well, so a leader that still trusts itself never looks dead.
//!
//! Where [`host_clock`](crate::host_clock) finds no such clock, no reading is noted and objects have no age.

use std::time::Duration;

/// The clock of this host, from its start on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    boot: u128,
}

/// A reading of one host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Names the start of the host, and so the clock.
    pub(crate) boot: u128,
    /// Since that start.
    pub(crate) nanoseconds: u64,
}

impl Clock {
    /// `None` where there is no such clock, or where it may have been moved.
    pub(crate) fn start() -> Option<Self> {
        crate::host_clock().map(|boot| Self { boot })
    }

    /// The current reading.
    #[cfg(target_os = "linux")]
    pub(crate) fn read(self) -> Option<Reading> {
        use rustix::time::{ClockId, clock_gettime};
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).ok()?;
        let nanoseconds = u64::try_from(time.tv_nsec).ok()?;
        Some(Reading {
            boot: self.boot,
            nanoseconds: seconds
                .checked_mul(1_000_000_000)?
                .checked_add(nanoseconds)?,
        })
    }

    /// Other systems have no such clock.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn read(self) -> Option<Reading> {
        None
    }

    /// How long ago a write was begun, if it noted a reading of this clock.
    pub(crate) fn age(self, written: Option<Reading>) -> Option<Duration> {
        self.read()?.since(written?)
    }
}

impl Reading {
    /// The time between two readings of one clock; `None` if they are of two clocks, or in the wrong order.
    fn since(self, earlier: Self) -> Option<Duration> {
        let is_one_clock = self.boot == earlier.boot;
        let nanoseconds = self.nanoseconds.checked_sub(earlier.nanoseconds)?;
        is_one_clock.then(|| Duration::from_nanos(nanoseconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(boot: u128, seconds: u64) -> Reading {
        Reading {
            boot,
            nanoseconds: seconds * 1_000_000_000,
        }
    }

    #[test]
    fn only_readings_of_one_clock_have_a_difference() {
        let now = reading(1, 110);
        assert_eq!(now.since(reading(1, 103)), Some(Duration::from_secs(7)));
        assert_eq!(now.since(reading(2, 103)), None, "another host, or start");
        assert_eq!(now.since(reading(1, 111)), None, "from the future");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_clock_of_this_host_goes_forward() {
        let clock = Clock::start().unwrap();
        let before = clock.read();
        assert!(before.is_some());
        assert!(clock.age(before).unwrap() < Duration::from_secs(60));
        assert_eq!(clock.age(None), None);
    }
}
