//! Stamps: what makes two writes of the same bytes two different objects.
//!
//! The ETag of S3 and its relatives is a hash of the content, so X, then Y, then X again has the first
//! ETag again, and a writer who slept through all of it would overwrite the second X. Files have no
//! version at all. So these engines append a stamp to every value: a newline and 64 blanks, each a
//! space or a tab, which spell a random 64-bit number. JSON and most text formats ignore trailing white
//! space, so a bucket or folder stays readable with `jq` and `cat`.
//!
//! Reading removes exactly one stamp. An object without one was put there by hand; its value is all of
//! it.

use bytes::Bytes;

/// The bytes a stamp takes.
pub(crate) const STAMP_BYTES: usize = 65;

/// A stamp: the number that one write carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

impl Stamp {
    /// A stamp that no other write has.
    pub(crate) fn new() -> Self {
        Self(uuid::Uuid::new_v4().as_u64_pair().1)
    }

    /// As text, for a version.
    #[cfg(feature = "file")]
    pub(crate) fn to_hex(self) -> String {
        format!("{:016x}", self.0)
    }

    /// What is appended to the value.
    pub(crate) fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [b'\n'; STAMP_BYTES];
        for (bit, byte) in bytes[1..].iter_mut().enumerate() {
            *byte = if self.0 >> bit & 1 == 1 { b'\t' } else { b' ' };
        }
        bytes
    }

    /// Reads the stamp that `bytes` are, if they are one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (b'\n', blanks) = bytes.split_first()? else {
            return None;
        };
        if blanks.len() != 64 {
            return None;
        }
        let mut number = 0;
        for (bit, byte) in blanks.iter().enumerate() {
            match byte {
                b'\t' => number |= 1 << bit,
                b' ' => {}
                _ => return None,
            }
        }
        Some(Self(number))
    }

    /// Takes the stamp off the end of a stored object.
    pub(crate) fn split(mut stored: Bytes) -> (Bytes, Option<Self>) {
        let Some(end) = stored.len().checked_sub(STAMP_BYTES) else {
            return (stored, None);
        };
        match Self::from_bytes(&stored[end..]) {
            None => (stored, None),
            stamp => {
                stored.truncate(end);
                (stored, stamp)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(value: &[u8], stamp: Stamp) -> Bytes {
        [value, &stamp.to_bytes()].concat().into()
    }

    #[test]
    fn a_stamp_comes_off_as_it_went_on() {
        for number in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 1 << 63] {
            for value in [&b""[..], b"x", b"{}\n", &Stamp(7).to_bytes()] {
                let (read, stamp) = Stamp::split(stamped(value, Stamp(number)));
                assert_eq!((&read[..], stamp), (value, Some(Stamp(number))));
            }
        }
    }

    #[test]
    fn what_has_no_stamp_is_left_whole() {
        for text in [
            "",
            "{}",
            "\n",
            &" ".repeat(65),
            &format!("\n{}x", " ".repeat(63)),
        ] {
            let (read, stamp) = Stamp::split(Bytes::copy_from_slice(text.as_bytes()));
            assert_eq!((&read[..], stamp), (text.as_bytes(), None));
        }
    }
}
