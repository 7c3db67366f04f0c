//! Numbers from a seed: splitmix64.

/// A sequence that its seed determines.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "there is always a next one")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("it is less than a usize")
    }

    /// True so many times out of so many.
    pub fn chance(&mut self, times: usize, of: usize) -> bool {
        self.below(of) < times
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
