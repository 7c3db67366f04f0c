//! Stamps: what makes two writes of the same bytes two different objects.
//!
//! The ETag of S3 and its relatives is a hash of the content, so X, then Y, then X again has the first ETag again, and
//! a writer that slept through all of it would overwrite the second X. Files have no version at all. So these engines
//! append a stamp to every value: a newline and 64 blanks, each a space or a tab, which spell a random 64-bit number.
//! JSON and most text formats ignore trailing white space, so a bucket or folder stays readable with `jq` and `cat`.
//!
//! The stamp of a file has 320 blanks where the host has a clock that cannot be set: behind the number
//! come the clock's reading (64), the id of the host's start (128), see `engine/clock.rs`, and what the
//! wall clock showed (64). A short stamp has its newline where a long one has a blank, so the two are
//! never taken for each other.
//!
//! Reading removes exactly one stamp. An object without one was not written by Tenure; all of it is its value.

use bytes::Bytes;

use crate::engine::clock::Reading;

/// The bytes that the longest stamp takes.
pub(crate) const STAMP_BYTES_MAX: usize = 1 + LONG_BITS;

const SHORT_BITS: usize = 64;
const LONG_BITS: usize = 320;

/// A stamp: what one write carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    number: u64,
    written: Option<Written>,
}

/// When a write was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    /// On the clock that cannot be set.
    pub(crate) reading: Reading,
    /// On the wall clock, in nanoseconds since 1970: only used to recognise a file that was restored manually.
    pub(crate) wall_nanoseconds: u64,
}

impl Stamp {
    /// Makes a stamp that no other write has. `written` is what the host's clocks show now.
    pub(crate) fn new(written: Option<Written>) -> Self {
        Self {
            number: uuid::Uuid::new_v4().as_u64_pair().1,
            written,
        }
    }

    /// As text, for a version.
    #[cfg(feature = "file")]
    pub(crate) fn to_hex(self) -> String {
        format!("{:016x}", self.number)
    }

    /// When the write was begun, if the stamp says.
    #[cfg(feature = "file")]
    pub(crate) fn written(self) -> Option<Written> {
        self.written
    }

    /// What is appended to the value.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(STAMP_BYTES_MAX);
        bytes.push(b'\n');
        write_bits(&mut bytes, self.number.into(), 64);
        if let Some(Written {
            reading: Reading { boot, nanoseconds },
            wall_nanoseconds,
        }) = self.written
        {
            write_bits(&mut bytes, nanoseconds.into(), 64);
            write_bits(&mut bytes, boot, 128);
            write_bits(&mut bytes, wall_nanoseconds.into(), 64);
        }
        bytes
    }

    /// Reads the stamp at the end of `stored`, with its length in bytes.
    pub(crate) fn at_end_of(stored: &[u8]) -> Option<(Self, usize)> {
        if let Some([number, nanoseconds, low, high, wall_nanoseconds]) = tail(stored) {
            let reading = Reading {
                boot: u128::from(high) << 64 | u128::from(low),
                nanoseconds,
            };
            let written = Some(Written {
                reading,
                wall_nanoseconds,
            });
            return Some((Self { number, written }, 1 + LONG_BITS));
        }
        let [number] = tail(stored)?;
        let written = None;
        Some((Self { number, written }, 1 + SHORT_BITS))
    }

    /// Takes the stamp off the end of a stored object.
    pub(crate) fn split(mut stored: Bytes) -> (Bytes, Option<Self>) {
        match Self::at_end_of(&stored) {
            None => (stored, None),
            Some((stamp, bytes)) => {
                stored.truncate(stored.len() - bytes);
                (stored, Some(stamp))
            }
        }
    }
}

fn write_bits(bytes: &mut Vec<u8>, number: u128, bits: usize) {
    bytes.extend((0..bits).map(|bit| if number >> bit & 1 == 1 { b'\t' } else { b' ' }));
}

/// The numbers that the last `N * 64` bytes spell, if they are blanks behind a newline.
fn tail<const N: usize>(stored: &[u8]) -> Option<[u64; N]> {
    let start = stored.len().checked_sub(N * 64 + 1)?;
    let (b'\n', blanks) = stored[start..].split_first()? else {
        return None;
    };
    let mut numbers = [0_u64; N];
    for (bit, byte) in blanks.iter().enumerate() {
        match byte {
            b'\t' => numbers[bit / 64] |= 1 << (bit % 64),
            b' ' => {}
            _ => return None,
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(number: u64) -> Stamp {
        Stamp {
            number,
            written: None,
        }
    }

    fn long(number: u64, nanoseconds: u64, boot: u128) -> Stamp {
        Stamp {
            number,
            written: Some(Written {
                reading: Reading { boot, nanoseconds },
                wall_nanoseconds: !nanoseconds,
            }),
        }
    }

    #[test]
    fn a_stamp_comes_off_as_it_went_on() {
        let boot = 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978;
        let stamps = [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 1 << 63];
        let stamps = stamps.into_iter().flat_map(|number| {
            [
                short(number),
                long(number, 0, 0),
                long(number, u64::MAX, u128::MAX),
                long(number, 0x1234, boot),
            ]
        });
        for stamp in stamps {
            let inner = [short(7), long(7, 8, 9)].map(Stamp::to_bytes);
            for value in [&b""[..], b"x", b"{}\n", &inner[0], &inner[1]] {
                let stored = [value, &stamp.to_bytes()].concat();
                let (read, found) = Stamp::split(stored.into());
                assert_eq!((&read[..], found), (value, Some(stamp)));
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
            &" ".repeat(400),
            &format!("\n{}x", " ".repeat(63)),
            &format!("\n{}", " ".repeat(319)),
        ] {
            let (read, stamp) = Stamp::split(Bytes::copy_from_slice(text.as_bytes()));
            assert_eq!((&read[..], stamp), (text.as_bytes(), None));
        }
    }
}
