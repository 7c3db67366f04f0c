//! One small hash, for content that is compared after a restart and for tables that are never walked.
//!
//! Stable: its value is kept in snapshots and decides the jitter of retries, so it must never change.
//! Fast rather than strong: with a seed that strangers do not know it spreads keys well enough, but it
//! proves nothing.

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const START: u64 = 0x243f_6a88_85a3_08d3;

/// Folds words and texts into 64 bits.
#[derive(Debug, Clone)]
pub(crate) struct Hash(u64);

impl Hash {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed ^ START)
    }

    pub(crate) const fn number(&mut self, number: u64) {
        let product = (self.0 ^ number) as u128 * MULTIPLIER as u128;
        // Both halves, plus a constant: a word that happens to equal the state must not erase it.
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let folded = product as u64 ^ (product >> 64) as u64;
        self.0 = folded.wrapping_add(START).rotate_left(23);
    }

    pub(crate) fn text(&mut self, text: &str) {
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        for word in words {
            self.number(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.number(u64::from_le_bytes(last));
        // The length ends the text, so that "ab" and "c" differ from "a" and "bc".
        self.number(text.len() as u64);
    }

    pub(crate) const fn finish(mut self) -> u64 {
        self.number(MULTIPLIER);
        self.number(START);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> u64 {
        let mut hash = Hash::new(0);
        for text in texts {
            hash.text(text);
        }
        hash.finish()
    }

    #[test]
    fn values_never_change() {
        assert_eq!(of(&[]), 15_228_492_204_298_874_800);
        assert_eq!(
            of(&["", "tenure", "a longer text than one word"]),
            14_295_128_381_582_767_785
        );
    }

    #[test]
    fn borders_between_texts_count() {
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a"]), of(&["a\0"]));
        assert_ne!(of(&["a", ""]), of(&["a"]));
    }

    #[test]
    fn low_and_high_bits_are_spread() {
        let mut low = [0u32; 64];
        let mut high = [0u32; 64];
        for number in 0..6400 {
            let value = of(&[&format!("job-{number}")]);
            low[(value % 64) as usize] += 1;
            high[(value >> 58) as usize] += 1;
        }
        for count in low.iter().chain(&high) {
            assert!((50..200).contains(count), "{count} of about 100");
        }
    }
}
