//! Time as an argument.
//!
//! [`Moment`] decides, [`Wall`] is only shown. A moment is a reading of one host's monotonic clock that counts suspend;
//! moments of two hosts are unrelated and never compared.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Nonce;

/// A reading of this host's monotonic clock, from an arbitrary origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(Duration);

/// A reading of this host's wall clock, in milliseconds since 1970: for people to read. It never makes anything happen.
/// It can keep one thing from happening: see [`Glance`](crate::session::Glance).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Wall(pub u64);

/// What the driver gives to every step: both clocks, read together, and a number that is drawn only once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Now {
    /// The clock that decides.
    pub moment: Moment,
    /// The clock that is written down for people.
    pub wall: Wall,
    /// What marks the writes of this step. New for every step, so that they also differ from those of a copy of this
    /// process.
    pub nonce: Nonce,
}

/// Names a clock that nobody can set: that of one host, from one start of it to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClockId(pub u128);

/// A moment together with the clock that showed it, so that it can be kept and read by another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The clock.
    pub clock: ClockId,
    /// What it showed.
    pub moment: Moment,
}

impl Reading {
    /// How long after `earlier` this is. Only two readings of one clock have a difference: a time that another clock
    /// showed, or the same one before it was set, proves nothing, and relying on it makes two leaders.
    #[must_use]
    pub fn since(self, earlier: Reading) -> Option<Duration> {
        let is_one_clock = self.clock == earlier.clock;
        (is_one_clock && self.moment >= earlier.moment).then(|| self.moment.since(earlier.moment))
    }
}

impl Moment {
    /// A moment that never comes.
    pub const NEVER: Moment = Moment(Duration::MAX);

    /// The moment this long after the clock's origin.
    #[must_use]
    pub const fn from_origin(duration: Duration) -> Self {
        Self(duration)
    }

    /// How long after the clock's origin this is.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;
    fn sub(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(duration))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Moment::NEVER => formatter.write_str("never"),
            Moment(duration) => write!(formatter, "{:.3}s", duration.as_secs_f64()),
        }
    }
}
