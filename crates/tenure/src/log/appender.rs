//! Commits: the one way by which records reach the store, whatever the form of the log.
//!
//! A commit is one frame. It gets the next place and a number that no other frame of this leader has, it is sealed with
//! the digest of a state that was applied before, and its form writes it: as an [object](super::objects) at its place, or
//! behind the last frame in a [file](super::segment). Then its outcome is one of three:
//!
//! - It is committed: durable, and this leader was not replaced before it was.
//! - It is certainly not in the log. The next commit takes the same place.
//! - It is not known, or another leader has taken over. Then nothing is ever written behind it.

use std::sync::Arc;

use super::access::Access;
use super::frame::{Cursor, Kind, Lines};
use super::leader::LastApplied;
use super::segment::{Link, SegmentWriter};
use super::{Committed, Error, Position, objects};

/// Commits, for the leader that has taken the log over.
#[derive(Debug)]
pub(crate) struct Appender {
    /// Where the next frame goes in the log.
    next: Cursor,
    applied: LastApplied,
    target: Target,
    /// Every frame so far is committed, or certainly not in the log.
    is_settled: bool,
}

/// What frames are written to.
#[derive(Debug)]
pub(crate) enum Target {
    Objects(Arc<Access>),
    Segments(Box<SegmentWriter>),
}

/// What was committed together, for the log to count.
#[derive(Debug)]
pub(crate) struct Appended {
    pub(crate) committed: Committed,
    pub(crate) records: u64,
    /// Files: where it ends in its file.
    pub(crate) end: u64,
    /// Files: the segments that were made since the last time, the last of them for this.
    pub(crate) made: Vec<Link>,
}

impl Appender {
    pub(crate) fn new(next: Cursor, applied: LastApplied, target: Target) -> Self {
        Self {
            next,
            applied,
            target,
            is_settled: true,
        }
    }

    /// Whether commits block their thread.
    pub(crate) fn blocks(&self) -> bool {
        match &self.target {
            Target::Objects(_) => false,
            Target::Segments(file) => file.blocks(),
        }
    }

    /// Whether commits go to files, by a disk of this host.
    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self.target, Target::Segments(_))
    }

    /// Commits records together: one write.
    ///
    /// An error that [is not applied](Error::is_not_applied) leaves everything as it was; any other is the last.
    pub(crate) async fn commit(&mut self, records: Lines) -> Result<Appended, Error> {
        if !self.is_settled {
            return Err(Error::Stopped);
        }
        // Not before the outcome is known. If this future is dropped half way it never will be: a successor may have read
        // the frame or not, and what is written behind it could be in no log.
        self.is_settled = false;
        let result = self.write(records).await;
        self.is_settled = result.as_ref().err().is_none_or(Error::is_not_applied);
        result
    }

    async fn write(&mut self, records: Lines) -> Result<Appended, Error> {
        if let Target::Segments(file) = &mut self.target
            && file.is_full()
        {
            file.rotate(self.next).await?;
            // The new file begins with a frame of its own.
            self.next.seq += 1;
            self.next.number += 1;
        }
        let cursor = self.next;
        // Even if it fails: two frames of one leader at one place would be alike but for this number.
        self.next.number += 1;
        let count = records.count() as u64;
        let (frame, _) = records.seal(Kind::Commit, cursor, None, self.applied.get());
        let (end, made) = match &mut self.target {
            Target::Objects(access) => {
                objects::commit(access, cursor.seq, &frame).await?;
                (0, Vec::new())
            }
            Target::Segments(file) => {
                file.append(&frame).await?;
                (file.end(), file.made())
            }
        };
        self.next.seq += 1;
        self.next.position = Position(cursor.position.0 + count);
        let committed = Committed {
            seq: cursor.seq,
            first: cursor.position,
            bytes: frame.len() as u64,
        };
        Ok(Appended {
            committed,
            records: count,
            end,
            made,
        })
    }

    /// Nothing more is committed. A file loses its zeros, unless a commit was not settled: its frame lies behind the end,
    /// and a successor may have read it.
    pub(crate) async fn finish(&mut self) {
        if let Target::Segments(file) = &mut self.target
            && self.is_settled
        {
            file.trim().await;
        }
    }
}
