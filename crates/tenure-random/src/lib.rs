//! All random choices of a run, from one seed.
//!
//! A crate without dependencies, because all tests use it: `tenure-fuzz` brings an allocator and `tenure-testkit` a
//! runtime, and the core's tests and the benchmarks need neither.

use std::time::Duration;

/// Splitmix64: a seed means the same sequence on every machine, in every version. Not for secrets.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed, as published with the algorithm.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The choices of a run. Neighbouring seeds give similar states; one round separates them.
    #[must_use]
    pub fn of_run(seed: u64) -> Self {
        Self(Self(seed ^ 0x005e_ed0f_7e40_4e00).bits())
    }

    /// The choices of one actor of a run.
    #[must_use]
    pub fn of_actor(seed: u64, actor: &str) -> Self {
        // FNV-1a, so that every actor has its own sequence.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let hash = actor.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        Self(Self(seed ^ hash).bits())
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub const fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// An index into something of this length, which is not zero.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is less than a usize")
    }

    /// True this many times in a thousand.
    pub const fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// True this many times in a hundred.
    pub const fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }

    /// A duration in a range, to the microsecond.
    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from(to.saturating_sub(from).as_micros()).unwrap_or(u64::MAX);
        from + Duration::from_micros(self.below(span.max(1)))
    }

    /// A duration up to `to`.
    pub fn up_to(&mut self, to: Duration) -> Duration {
        self.between(Duration::ZERO, to)
    }

    /// One of several.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// One of several; `None` if there are none.
    pub fn pick_if_any<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| self.pick(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_published_sequence() {
        let mut random = Random::new(1_234_567);
        let first = [random.bits(), random.bits()];
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }

    #[test]
    fn runs_and_actors_have_sequences_of_their_own() {
        let mut first = [
            Random::of_run(1),
            Random::of_run(2),
            Random::of_actor(1, "a"),
            Random::of_actor(1, "b"),
        ]
        .map(|mut random| random.bits());
        first.sort_unstable();
        assert!(first.is_sorted_by(|one, other| one < other), "{first:?}");
    }

    #[test]
    fn a_pick_of_none_is_none() {
        let mut random = Random::new(7);
        assert_eq!(random.pick_if_any::<u8>(&[]), None);
        assert_eq!(random.pick_if_any(&[3]), Some(&3));
        assert_eq!(random.between(Duration::MAX, Duration::ZERO), Duration::MAX);
    }
}
