//! Clocks that start anywhere and run at slightly wrong rates.

use std::time::Duration;

use tenure_core::{Moment, Now, Wall};
use tenure_random::Random;

/// How far a clock's rate may be off: 0.4 %, so that two differ by less than the 1 % that every
/// configuration must cover.
const RATE_PPM_MAX: u64 = 4000;

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

    /// A clock with some origin and rate.
    pub fn draw(random: &mut Random) -> Self {
        // Young hosts too: a moment less a ttl may lie before the origin.
        let origin_max = if random.chance(500) { 2 } else { 10_000_000 };
        Self {
            origin: random.up_to(Duration::from_secs(origin_max)),
            rate: 1_000_000 - RATE_PPM_MAX + random.below(2 * RATE_PPM_MAX + 1),
        }
    }

    /// What it shows at a real time.
    #[must_use]
    pub fn moment(&self, real: Duration) -> Moment {
        Moment::from_origin(self.origin + scale(real, self.rate, 1_000_000))
    }

    /// What it and the wall clock beside it show. The wall clock is wrong by years, differently on every
    /// host: it decides nothing.
    #[must_use]
    pub fn now(&self, real: Duration) -> Now {
        let wall = (real + self.origin * 100).as_millis();
        Now {
            moment: self.moment(real),
            wall: Wall(u64::try_from(wall).unwrap_or(u64::MAX)),
            nonce: tenure_core::Nonce::default(),
        }
    }

    /// The first real time at which it shows at least this; `None` if never.
    #[must_use]
    pub fn real(&self, moment: Moment) -> Option<Duration> {
        if moment == Moment::NEVER {
            return None;
        }
        let shown = moment.since_origin().saturating_sub(self.origin);
        let mut real = scale(shown, 1_000_000, self.rate);
        // Rounded down twice, so a few nanoseconds may be missing.
        while self.moment(real) < moment {
            real += Duration::from_nanos(1);
        }
        Some(real)
    }
}

fn scale(duration: Duration, numerator: u64, denominator: u64) -> Duration {
    let nanos = duration.as_nanos() * u128::from(numerator) / u128::from(denominator);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
