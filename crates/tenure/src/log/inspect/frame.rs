//! A frame, to look at.

use tenure_core::Incarnation;
use tenure_core::election::Term;

use crate::log::Position;
use crate::log::frame::{self, Kind};

/// A frame: what was committed together, or a part of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The object, or the file.
    pub location: String,
    /// Where in the file it begins; 0 in an object.
    pub offset: u64,
    /// All of it, with its header.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
    /// Its place in the log; of a snapshot, the last place that it contains.
    pub place: u64,
    /// The number of its first record; of a snapshot, of the last that it contains.
    pub position: Position,
    /// Which take-over of the log its writer was.
    pub takeover: u64,
    /// The term of its writer.
    pub term: Term,
    /// The process that wrote it.
    pub incarnation: Incarnation,
    /// Tells apart what one leader writes; of a part, which it is.
    pub number: u64,
    frame: frame::Frame,
}

impl Frame {
    pub(super) fn new(location: String, offset: u64, bytes: u64, frame: frame::Frame) -> Self {
        let header = &frame.header;
        Self {
            location,
            offset,
            bytes: bytes.max(frame.body().len() as u64),
            kind: header.kind,
            place: header.seq,
            position: header.position,
            takeover: header.takeover,
            term: header.term,
            incarnation: header.incarnation,
            number: header.number,
            frame,
        }
    }

    /// Its lines: the records of a commit, the state in a part of a snapshot.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.frame.lines()
    }

    /// Whether it says the same, wherever it stands: a new leader may have copied it to another file.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        self.frame == other.frame
    }

    /// How many lines there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.frame.count()
    }

    /// The number of its last record; of another frame, of the last record before it.
    #[must_use]
    pub fn last(&self) -> Position {
        match self.kind {
            Kind::Commit => Position(self.position.0 + self.count() as u64 - 1),
            Kind::Term | Kind::Segment => Position(self.position.0.saturating_sub(1)),
            Kind::Part | Kind::Manifest => self.position,
        }
    }
}
