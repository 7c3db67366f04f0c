//! Clocks that start anywhere and run at wrong rates: as wrong as the margins of a run must cover.

use std::time::Duration;

use tenure_core::session::Config;
use tenure_core::{Moment, Now, Wall};
use tenure_random::Random;

/// The rate of a right clock: nanoseconds that it shows in a real millisecond.
pub const RIGHT: u64 = 1_000_000;

/// The fastest clock where every margin is a tenth of its ttl, as by default: 9.996 % faster than the slowest.
pub const FAST: u64 = 1_047_600;
/// The slowest clock for the same margins.
pub const SLOW: u64 = 952_400;

/// The same where some margin is the smallest that is accepted, a hundredth of the ttl: 0.8 %.
const FAST_LEAST: u64 = 1_004_000;
const SLOW_LEAST: u64 = 996_000;

/// The range of rates in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    slowest: u64,
    fastest: u64,
}

impl Rates {
    /// The widest range that these margins allow.
    #[must_use]
    pub fn within<'a>(configs: impl IntoIterator<Item = &'a Config>) -> Self {
        let mut configs = configs.into_iter();
        if configs.all(|config| config.margin * 10 >= config.ttl) {
            Self {
                slowest: SLOW,
                fastest: FAST,
            }
        } else {
            Self {
                slowest: SLOW_LEAST,
                fastest: FAST_LEAST,
            }
        }
    }

    /// The rate of the fastest clock.
    #[must_use]
    pub const fn fastest(self) -> u64 {
        self.fastest
    }

    /// A random rate. In half of all cases it is one of the ends, since only clocks far apart matter.
    pub fn draw(self, random: &mut Random) -> u64 {
        match random.below(4) {
            0 => self.slowest,
            1 => self.fastest,
            _ => self.slowest + random.below(self.fastest - self.slowest + 1),
        }
    }
}

/// A clock of one host. It counts suspend, so a paused process finds it moved on.
#[derive(Debug, Clone, Hash)]
pub struct Clock {
    origin: Duration,
    /// Nanoseconds that it shows in a real millisecond.
    rate: u64,
}

impl Clock {
    /// A clock that shows this many nanoseconds in a real millisecond.
    #[must_use]
    pub const fn with_rate(rate: u64) -> Self {
        Self {
            origin: Duration::from_secs(1000),
            rate,
        }
    }

    /// A clock with a random origin and rate.
    pub fn draw(random: &mut Random, rates: Rates) -> Self {
        // Includes young hosts, where a moment minus a ttl lies before the origin.
        let origin_max = if random.chance(500) { 2 } else { 10_000_000 };
        Self {
            origin: random.up_to(Duration::from_secs(origin_max)),
            rate: rates.draw(random),
        }
    }

    /// The moment that it shows at a real time.
    #[must_use]
    pub fn moment(&self, real: Duration) -> Moment {
        Moment::from_origin(self.origin + scale(real, self.rate, RIGHT))
    }

    /// The moment that it shows, and its host's wall clock. The wall clock is wrong by years, differently on every
    /// host, and must decide nothing.
    #[must_use]
    pub fn now(&self, real: Duration) -> Now {
        let wall = (real + self.origin * 100).as_millis();
        Now {
            moment: self.moment(real),
            wall: Wall(u64::try_from(wall).unwrap_or(u64::MAX)),
            nonce: tenure_core::Nonce::default(),
        }
    }

    /// The first real time at which it shows at least this moment; `None` if never.
    #[must_use]
    pub fn real(&self, moment: Moment) -> Option<Duration> {
        if moment == Moment::NEVER {
            return None;
        }
        let shown = moment.since_origin().saturating_sub(self.origin);
        let mut real = scale(shown, RIGHT, self.rate);
        // Rounded down twice, so a few nanoseconds may be missing.
        while self.moment(real) < moment {
            real += Duration::from_nanos(1);
        }
        Some(real)
    }
}

/// The real time that passes while a clock of this rate shows a duration.
#[must_use]
pub fn real_length(shown: Duration, rate: u64) -> Duration {
    scale(shown, RIGHT, rate)
}

fn scale(duration: Duration, numerator: u64, denominator: u64) -> Duration {
    let nanos = duration.as_nanos() * u128::from(numerator) / u128::from(denominator);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
