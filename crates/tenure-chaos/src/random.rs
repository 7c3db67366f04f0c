//! Every choice of a run, from one seed. What the machine makes of the choices differs from run to run.

use std::time::Duration;

/// Splitmix64: the same seed makes the same choices everywhere.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The choices of one of the actors of a run.
    #[must_use]
    pub fn of(seed: u64, actor: &str) -> Self {
        // FNV-1a, so that every actor has a row of its own.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let hash = actor.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        let mut random = Self(seed ^ hash);
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

    /// A duration from `from` to `to`, to the millisecond.
    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from(to.saturating_sub(from).as_millis()).unwrap_or(u64::MAX);
        from + Duration::from_millis(self.below(span.max(1)))
    }

    /// One of several, which are not none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let length = u64::try_from(from.len()).unwrap_or(u64::MAX);
        from[usize::try_from(self.below(length)).unwrap_or(0)]
    }
}
