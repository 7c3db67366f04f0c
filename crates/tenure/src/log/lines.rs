//! The lines of a frame in the making.
//!
//! They lie as they will be written, behind a gap that the header fits into. So a record is copied once, when it
//! comes, and not again when what waits becomes a frame.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use super::frame::{self, Applied, Checksum, Cursor, HEADER_BYTES_MAX, Header, Kind, Previous};

pub(crate) struct Lines {
    /// The gap, and the lines, each with its newline.
    frame: BytesMut,
    count: usize,
}

impl Lines {
    /// None yet, with room for so many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        let mut frame = BytesMut::with_capacity(HEADER_BYTES_MAX + bytes);
        frame.put_bytes(b' ', HEADER_BYTES_MAX);
        Self { frame, count: 0 }
    }

    /// Those of records.
    pub(crate) fn of<L: AsRef<[u8]>>(records: &[L]) -> Self {
        let bytes = records.iter().map(|line| line.as_ref().len() + 1).sum();
        let mut lines = Self::with_capacity(bytes);
        for record in records {
            lines.push(record.as_ref());
        }
        lines
    }

    /// One more, which has passed [`check_line`](frame::check_line).
    pub(crate) fn push(&mut self, line: &[u8]) {
        debug_assert!(frame::check_line(line).is_ok());
        self.frame.put_slice(line);
        self.frame.put_u8(b'\n');
        self.count += 1;
    }

    /// Several at once, which have passed [`check_lines`](frame::check_lines).
    pub(crate) fn extend(&mut self, piece: &[u8]) {
        debug_assert!(frame::check_lines(piece).is_ok());
        self.frame.put_slice(piece);
        self.count += frame::newlines(piece);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// How large they are, with their newlines.
    pub(crate) fn bytes(&self) -> usize {
        self.frame.len() - HEADER_BYTES_MAX
    }

    /// Puts the header right before them.
    pub(crate) fn seal(
        mut self,
        kind: Kind,
        place: Cursor,
        previous: Option<Previous>,
        applied: Option<Applied>,
    ) -> (Bytes, Header) {
        let header = Header {
            format: frame::format_of(place.rules),
            kind,
            seq: place.seq,
            position: place.position,
            takeover: place.takeover,
            term: place.term,
            incarnation: place.incarnation,
            number: place.number,
            previous,
            rules: place.rules,
            applied,
            count: self.count,
            bytes: self.bytes(),
            body: Checksum::of(&self.frame[HEADER_BYTES_MAX..]),
        };
        let line = header.to_line();
        let start = HEADER_BYTES_MAX
            .checked_sub(line.len())
            .expect("names in a header are short");
        self.frame[start..HEADER_BYTES_MAX].copy_from_slice(&line);
        (self.frame.freeze().slice(start..), header)
    }
}

/// Not what is in them.
impl fmt::Debug for Lines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} lines of {} bytes", self.count, self.bytes())
    }
}
