//! A state as a number of 128 bits: states with equal numbers count as equal. With a hundred million states the
//! chance that any two differ and collide is below one in 10^22.

use std::hash::{Hash, Hasher};

pub(super) fn fingerprint(state: &impl Hash) -> u128 {
    let mut lanes = Lanes(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
    state.hash(&mut lanes);
    let low = mix(lanes.0 ^ lanes.1.rotate_left(32));
    u128::from(mix(lanes.0)) << 64 | u128::from(low ^ mix(lanes.1))
}

struct Lanes(u64, u64);

impl Hasher for Lanes {
    fn finish(&self) -> u64 {
        mix(self.0 ^ self.1)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<8>();
        for chunk in chunks {
            self.write_u64(u64::from_le_bytes(*chunk));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
        self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.1 ^= self.1 >> 31;
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
