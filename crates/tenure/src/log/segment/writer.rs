//! Writing the log to files: the file that a leader appends to, and the fence that it checks.
//!
//! Everything here may block its thread. The rule is that of [`segment`](super): write the frame, sync it, check the
//! fence, and only then say that it is committed.
//!
//! # Zeros ahead
//!
//! A sync of a file that has grown must also put its new size, and where its new blocks are, into the journal of
//! the file system; on ext4 that is half the time of a small commit. So where frames are small, the file is
//! filled with zeros some way ahead, together with a frame that would grow it anyway, and the frames
//! that follow replace zeros. What is filled costs a second write of those bytes, so large frames, for which the
//! journal matters little, just make the file longer.
//!
//! To a reader zeros are the end of the log, and a frame over them that a crash has torn can be told from a
//! damaged one: see [`frame`](crate::log::frame). A leader that ends in an orderly way, or goes on in a new file, cuts
//! them off, so only the last file of a leader that is at work, or was killed, has any.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tenure_store::{AppendFile, AppendFolder, Key};

use super::{Link, Name, failed, location, unknown};
use crate::log::Error;
use crate::log::frame::{self, Cursor, Kind, Previous};

/// How far ahead a file is filled.
const FILL_BYTES: u64 = 256 * 1024;

/// Behind a frame larger than this nothing is filled.
const FILL_FRAME_BYTES_MAX: usize = 32 * 1024;

/// Appends to segments, for the leader that has taken the log over.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    folder: Arc<dyn AppendFolder>,
    fence: Fence,
    file: Box<dyn AppendFile>,
    name: Name,
    /// The number of the last file that was made, or was to be.
    number: u64,
    /// Where the next frame goes in the file.
    end: u64,
    /// How large the file is: behind the end are zeros.
    filled: u64,
    segment_bytes_max: u64,
    /// What the first frame of a segment says to people.
    lines: Vec<String>,
    /// The segments that were made and not yet told of.
    made: Vec<Link>,
}

/// The last file that a new leader has read.
#[derive(Debug, Clone)]
pub(crate) struct Last {
    pub(crate) name: Name,
    /// What it has read, from the beginning of the file to the end of the log.
    pub(crate) bytes: Bytes,
    /// Whether it is certain that the disk has it.
    pub(crate) is_durable: bool,
}

/// What must stay as it is for this leader to go on.
#[derive(Debug, Clone)]
pub(crate) struct Fence {
    pub(crate) key: Key,
    pub(crate) value: Bytes,
}

impl SegmentWriter {
    /// Writes the first segment of a leader, behind what it has read, and says which file it goes on from. The lines
    /// are for people.
    pub(crate) async fn begin(
        folder: Arc<dyn AppendFolder>,
        fence: Fence,
        cursor: Cursor,
        last: Option<Last>,
        segment_bytes_max: u64,
        lines: Vec<String>,
    ) -> Result<(Self, Option<(Name, u64)>), Error> {
        let name = Name {
            takeover: cursor.takeover,
            number: 1,
        };
        let made = folder.make().await;
        made.map_err(|error| failed("making", &folder.location(), error))?;
        let last = match last {
            Some(last) => Some(secure(&*folder, cursor.takeover, last).await?),
            None => None,
        };
        let first = frame::encode(Kind::Term, cursor, last.map(Previous::from), &lines);
        let file = create(&*folder, name, &first).await;
        // Nothing was acknowledged, and the next leader uses another name.
        let file = file.map_err(|failure| failure.into_not_applied(&*folder))?;
        let end = first.len() as u64;
        let writer = Self {
            folder,
            fence,
            file,
            name,
            number: name.number,
            end,
            filled: end,
            segment_bytes_max,
            lines,
            made: vec![Link {
                name,
                first: cursor.seq,
                end: None,
            }],
        };
        writer.check_fence().await.map(|()| (writer, last))
    }

    /// Whether the next frame goes into another file.
    pub(crate) fn is_full(&self) -> bool {
        self.end >= self.segment_bytes_max
    }

    pub(crate) fn blocks(&self) -> bool {
        self.folder.blocks()
    }

    /// Where the next frame goes in its file.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The segments that were made and not yet told of.
    pub(crate) fn made(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.made)
    }

    /// Appends a frame: one write, one sync, one look at the fence.
    pub(crate) async fn append(&mut self, frame: &[u8]) -> Result<(), Error> {
        let end = self.end + frame.len() as u64;
        if let Err(error) = self.file.write_all_at(frame, self.end).await {
            // The frame is not whole, so nobody has read it, and nobody will.
            self.file
                .set_len(self.end)
                .await
                .map_err(|_| Error::Unknown { source: None })?;
            self.filled = self.end;
            return Err(failed("appending to", &self.location(), error));
        }
        if end > self.filled {
            self.filled = end;
            if frame.len() <= FILL_FRAME_BYTES_MAX {
                self.fill().await;
            }
        }
        // From here on a successor may have read the frame, so no error says that it is not in the log.
        self.file
            .sync_data()
            .await
            .map_err(|error| unknown(&self.location(), error))?;
        // Behind the sync: a successor replaces the fence before it reads. If the fence is still ours, every
        // leader that replaces it from now on finds this frame, and the disk has it.
        self.check_fence().await?;
        // A fence that was copied with its folder says nothing about the file that we have open.
        match self.file.is_in_place().await {
            Ok(true) => {}
            Ok(false) => return Err(Error::Fenced),
            Err(error) => return Err(unknown(&self.location(), error)),
        }
        self.end = end;
        Ok(())
    }

    fn location(&self) -> String {
        location(&*self.folder, self.name)
    }

    async fn check_fence(&self) -> Result<(), Error> {
        let Fence { key, value } = &self.fence;
        match self.folder.holds(key, value).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Fenced),
            Err(error) => Err(unknown(key.as_str(), error)),
        }
    }

    /// Fills the file with zeros up to the next border.
    async fn fill(&mut self) {
        let border = (self.filled / FILL_BYTES + 1) * FILL_BYTES;
        let Some(bytes) = border
            .min(self.segment_bytes_max)
            .checked_sub(self.filled)
            .and_then(|bytes| usize::try_from(bytes).ok())
        else {
            return;
        };
        match self.file.write_all_at(&vec![0; bytes], self.filled).await {
            Ok(()) => self.filled += bytes as u64,
            // Where there is no room for zeros there may be some for the next frame.
            Err(_) => drop(self.file.set_len(self.filled).await),
        }
    }

    /// Goes on in a new file, which begins with a frame of its own.
    pub(crate) async fn rotate(&mut self, cursor: Cursor) -> Result<(), Error> {
        // A file whose making has failed is not made again: what of it is on the disk nobody knows.
        self.number += 1;
        let name = Name {
            number: self.number,
            ..self.name
        };
        let previous = Previous::from((self.name, self.end));
        let first = frame::encode(Kind::Segment, cursor, Some(previous), &self.lines);
        let file = create(&*self.folder, name, &first).await;
        let file = file.map_err(|failure| failure.into_unknown(&*self.folder))?;
        self.trim().await;
        (self.file, self.name) = (file, name);
        self.end = first.len() as u64;
        self.filled = self.end;
        self.made.push(Link {
            name,
            first: cursor.seq,
            end: None,
        });
        Ok(())
    }

    /// Cuts off the zeros: nothing more is written to this file.
    pub(crate) async fn trim(&mut self) {
        // If it fails, they are in nobody's way.
        let _ = self.file.set_len(self.end).await;
        self.filled = self.end;
    }
}

/// Makes sure that what a new leader builds on is on the disk. Returns where it is, and where the log ends there.
async fn secure(
    folder: &dyn AppendFolder,
    takeover: u64,
    last: Last,
) -> Result<(Name, u64), Error> {
    let Last {
        name,
        bytes,
        is_durable,
    } = last;
    let end = bytes.len() as u64;
    if is_durable {
        return Ok((name, end));
    }
    // Its writer may not have synced what we have read, or its sync has failed.
    let copy = Name::copy_of(takeover);
    if let Err(failure) = create(folder, copy, &bytes).await {
        // No file leads to it, so nobody reads it.
        let _ = folder.remove(&copy.to_string()).await;
        return Err(failure.into_not_applied(folder));
    }
    Ok((copy, end))
}

/// Why a file could not be made.
enum Failure {
    /// It is not there any more.
    Unwritten(io::Error),
    /// It is there, and what of it is on the disk nobody knows.
    Unsynced(io::Error),
}

impl Failure {
    fn into_not_applied(self, folder: &dyn AppendFolder) -> Error {
        match self {
            Failure::Unwritten(error) | Failure::Unsynced(error) => {
                failed("making a file in", &folder.location(), error)
            }
        }
    }

    fn into_unknown(self, folder: &dyn AppendFolder) -> Error {
        match self {
            Failure::Unwritten(error) => failed("making a file in", &folder.location(), error),
            Failure::Unsynced(error) => unknown(&folder.location(), error),
        }
    }
}

/// Makes the file, durable under its name, with what it begins with. No file had that name before.
async fn create(
    folder: &dyn AppendFolder,
    name: Name,
    first: &[u8],
) -> Result<Box<dyn AppendFile>, Failure> {
    let name = name.to_string();
    let write = async {
        let file = folder.create(&name).await?;
        file.write_all_at(first, 0).await?;
        Ok(file)
    };
    let file = match write.await {
        Ok(file) => file,
        Err(error) => {
            // A disk that is full should not fill with names as well.
            let _ = folder.remove(&name).await;
            return Err(Failure::Unwritten(error));
        }
    };
    let sync = async {
        file.sync_all().await?;
        folder.sync().await
    };
    sync.await.map_err(Failure::Unsynced)?;
    Ok(file)
}
