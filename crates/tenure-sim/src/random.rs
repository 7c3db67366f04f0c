//! Every choice of a run, from one seed.

use std::time::Duration;

/// Splitmix64. Its own generator, so that a seed means the same run on every machine and for ever.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        // Neighbouring seeds give neighbouring states; one round sets them apart.
        let mut random = Self(seed ^ 0x005e_ed0f_7e40_4e00);
        random.0 = random.bits();
        random
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// True so many times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A duration in a range, to the microsecond.
    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let span = micros(to.saturating_sub(from)).max(1);
        from + Duration::from_micros(self.below(span))
    }

    /// A duration up to `to`.
    pub fn up_to(&mut self, to: Duration) -> Duration {
        self.between(Duration::ZERO, to)
    }

    /// One of several, `None` of none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let length = u64::try_from(from.len())
            .ok()
            .filter(|&length| length > 0)?;
        from.get(usize::try_from(self.below(length)).ok()?)
    }
}
