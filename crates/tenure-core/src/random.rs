//! Jitter from a seed: the seed is an argument, so a run can be repeated.

use std::time::Duration;

/// Splitmix64: small, fast, and good enough to spread polls out. Not for secrets or ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
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
        #[cfg(feature = "__mutations")]
        if crate::mutation::is_steady() {
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
}
