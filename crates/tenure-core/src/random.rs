//! Jitter from a seed: the seed is an argument, so a run can be repeated.

use std::time::Duration;

use crate::session::Config;

/// Splitmix64: small, fast, and good enough to spread polls out. Not for secrets or ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Random {
    state: u64,
    /// Whether waits are shortened at all.
    jitter: bool,
}

impl Random {
    /// For the waits of a session with these times.
    pub(crate) fn new(config: &Config, seed: u64) -> Self {
        Self {
            state: seed,
            jitter: config.jitter,
        }
    }

    /// Of the default times, for tests.
    #[cfg(test)]
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self::new(&Config::default(), seed)
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a limit, for tests.
    #[cfg(test)]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Between 80 % and 100 % of a duration: never later than asked, and not all at once.
    pub(crate) fn jitter(&mut self, duration: Duration) -> Duration {
        if !self.jitter {
            return duration;
        }
        let share = (self.next() % 1024) as u32;
        duration - duration / 5 * share / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_in_its_band_and_varies() {
        let mut random = Random::from_seed(7);
        let whole = Duration::from_secs(3);
        let samples: Vec<_> = (0..100).map(|_| random.jitter(whole)).collect();
        assert!(
            samples
                .iter()
                .all(|&sample| sample <= whole && sample >= whole * 8 / 10)
        );
        assert!(samples.iter().max() > samples.iter().min());
    }

    #[test]
    fn without_jitter_a_wait_is_as_long_as_asked() {
        let config = Config {
            jitter: false,
            ..Config::default()
        };
        let mut random = Random::new(&config, 7);
        let before = random.clone();
        assert_eq!(
            random.jitter(Duration::from_secs(3)),
            Duration::from_secs(3)
        );
        assert_eq!(random, before, "a model would see another state");
    }
}
