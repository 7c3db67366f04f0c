//! The log as files, on a file store: an append costs a quarter of what a new file does.
//!
//! A *segment* is a file of frames, `<namespace>/queue/segments/<takeover>-<number>` in the store's folder.
//! Each leader writes to its own segments: nobody ever writes to a file of another, and what a leader has
//! written of a frame it never changes. The first frame of a segment names the segment before it and the offset up to
//! which the log goes there, so the segments form a chain. The log is the chain that ends in the segment with
//! the highest take-over and number, from 1 on, whose first frame is whole. What lies in a file behind the offset that
//! its successor names is not in the log, and neither is a segment that no chain leads to.
//!
//! # What a file's name must agree with
//!
//! The first frame of a segment says which take-over wrote it, and whether it is the first of its leader, which
//! has the number 1. A file whose name says otherwise was copied or renamed: it is not the segment that it is
//! called, however high its number. It is named, and left out. Were it taken for the end of the log, a leader
//! with a lower number would write behind it, and nobody would find that again. A file that the chain leads to,
//! and that is not what it is called, is damage.
//!
//! A later segment of one leader that was copied under a higher number of the same take-over agrees with its name as far
//! as that. But no two frames of a leader are alike, so two files that begin with the same frame are one segment and a
//! copy of it. The segment is the one with the lower number; the other was copied, and lacks what was written since.
//!
//! # The fence
//!
//! The *fence* is the origin, which a leader replaces to take over (see [`origin`](super::origin)). Replacing
//! a file is one rename, which every process of the host sees at once.
//!
//! - A leader **commits** by appending the frame, syncing it, and then reading the origin. If that is, byte
//!   for byte, the one it wrote itself, the commit is done; if not, it is fenced and never commits again.
//! - A leader **takes over** by replacing the origin, then reading the chain, then writing what it has read in the
//!   last file of it to a copy and syncing that, then writing the first segment of its own, which goes on from the
//!   copy, and then reading the origin once more.
//!
//! # Why the last file is copied
//!
//! What is read in a file need not be on the disk. Its writer may have been killed before it synced. Or its sync has
//! failed: then Linux shows what was written until it needs the memory, forgets that the disk does not have it, and
//! calls the next sync a success. So another sync of that file proves nothing. Only bytes that
//! are written anew, to another file, and synced there without an error, are durable. All files before the last one are:
//! a leader goes on in another file when every commit so far was synced, and the first frame of a leader names
//! a copy.
//!
//! The copy is the file `<takeover>-000000` of the new leader: byte for byte what it has read and given to its
//! machine, up to the end of the last whole frame. Nobody takes a copy for the end of a chain, so one that is not
//! whole, because its leader died over it, does no harm: the file that it was made from is still the last. When the
//! first segment that goes on from the copy is there, the file that it was made from is in no log any more, and
//! clean-up removes it. A file is not copied if its leader has ended in an orderly way: then `queue/reached` says
//! that all of it was synced.
//!
//! For the same reason a file whose making has failed is not made again: the next attempt has another number.
//!
//! # Why no acknowledged record is lost
//!
//! Let R be a record that leader g acknowledged. *Every leader h > g has R in its chain.* R was in its file
//! before g read the origin and found its own. So the origin was replaced by the next take-over, and by
//! all later ones, after R was in the file; and h reads only after it replaced the origin. What h takes for
//! the end of the chain is a segment of g, or of some leader between g and h, since g's first segment was
//! whole before R was written. If it is g's, then h reads R, which was synced whole before it was
//! acknowledged, and R is in h's copy of that file. If it is that of a leader between, that one too replaced the origin after R was in
//! the file, and by induction its chain, which its first frame fixes for ever, has R.
//!
//! # Why nothing else appears
//!
//! A record that g appends after h has read lies behind the offset that h's first frame names, or in a segment
//! that h's chain does not lead to. It is in no log from then on. It is not acknowledged either, since g
//! finds h's origin, or a later one. A record that g had appended before h read it, and could not acknowledge, is
//! in the log: its outcome was unknown, and now it is known. Until some first frame of h or later is
//! whole, later leaders may read more of g's file than h did; but h has then acknowledged nothing.
//!
//! # Reading what is being written
//!
//! A frame replaces zeros (see [`writer`]), and is not there at once. A reader of the last file
//! of a leader that is at work may find a beginning of it, which looks torn, as if it came a moment too early. Or
//! it may find an end without a beginning, or even the next frame without this one, if the leader was faster than
//! it read; that looks damaged, and is whole when it is read again. Damage stays. A new leader finds at most the
//! one frame that the old one was writing when it was fenced off, which is acknowledged to nobody.
//!
//! # What is assumed
//!
//! A file system of this host, as the file store demands. A sync without an error means that what was written to that
//! file since it was made is on the disk, unless an earlier sync of the same file has failed. The leader that saw
//! such a failure stops for good, with an unknown outcome, and the next leader copies what it finds.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_store::AppendFolder;

use super::Error;
use super::error::Halt;
use super::frame::{self, Found, Frame, HEADER_BYTES_MAX, Kind, Previous};

mod writer;

pub(crate) use writer::{Fence, Last, SegmentWriter};

/// How much of a file holds its first frame.
const HEAD_BYTES: usize = 2 * HEADER_BYTES_MAX;

/// How often what looks damaged in a file that may be written to is read again, and when.
const REREADS_MAX: usize = 2;
const REREAD_PAUSE: Duration = Duration::from_millis(1);

/// The name of a segment. The order of names is the order in which leaders, and each of them, wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) takeover: u64,
    pub(crate) number: u64,
}

/// A segment of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: Name,
    /// The place of its first frame.
    pub(crate) first: u64,
    /// Up to where the log goes in it; `None` in the last.
    pub(crate) end: Option<u64>,
}

/// What was read of a segment.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) frames: Vec<Frame>,
    /// All of them, as they stand in the file from its beginning.
    pub(crate) bytes: Bytes,
}

/// The chain, the oldest first, back to the segment that holds the place `from`.
pub(crate) async fn chain(folder: &dyn AppendFolder, from: u64) -> Result<Vec<Link>, Halt> {
    let mut names = names(folder).await?;
    let mut links = Vec::new();
    let mut before = loop {
        let Some(name) = names.pop() else {
            return Ok(links);
        };
        // It counts where another file leads to it.
        if name.is_copy() {
            continue;
        }
        match first_frame(folder, name).await? {
            Some(frame) => match misnamed(folder, &names, name, &frame).await {
                None => break link(&mut links, name, None, &frame),
                Some(what) => {
                    let path = location(folder, name);
                    tracing::warn!(%path, "a file is not part of the log: {what}; move it away");
                }
            },
            // Its leader has not come so far as to acknowledge anything.
            None => continue,
        }
    };
    while links.last().is_some_and(|link| link.first > from) {
        let after = links[links.len() - 1].name;
        let Some(Previous { segment, end }) = before else {
            let what = format!("it is the first segment, but index {from} of the log is before it");
            return Err(Error::corrupt(&location(folder, after), what).into());
        };
        // Older than this one, so that there is an end of them.
        let named = segment.parse().ok().filter(|&name: &Name| name < after);
        let Some(name) = named else {
            let what = format!("{segment:?} is not a segment before it");
            return Err(Error::corrupt(&location(folder, after), what).into());
        };
        let Some(frame) = first_frame(folder, name).await? else {
            let what = "its first frame is cut short, but others follow";
            return Err(Error::corrupt(&location(folder, name), what).into());
        };
        if let Some(what) = name.disagrees(&frame) {
            return Err(Error::corrupt(&location(folder, name), what).into());
        }
        before = link(&mut links, name, Some(end), &frame);
    }
    links.reverse();
    Ok(links)
}

fn link(links: &mut Vec<Link>, name: Name, end: Option<u64>, frame: &Frame) -> Option<Previous> {
    links.push(Link {
        name,
        first: frame.header.seq,
        end,
    });
    frame.header.previous.clone()
}

/// The frames of a file, one after the other, up to the end that its successor names.
#[derive(Debug)]
pub(crate) struct Frames {
    folder: Arc<dyn AppendFolder>,
    name: Name,
    end: Option<u64>,
    file: Bytes,
    /// Where the next frame begins.
    at: usize,
}

/// What comes next in a file.
#[derive(Debug)]
pub(crate) enum Next {
    /// A frame, and where it begins.
    Frame(Frame, u64),
    /// A frame that was not finished.
    Torn,
    End,
}

impl Frames {
    pub(crate) async fn open(
        folder: Arc<dyn AppendFolder>,
        name: Name,
        end: Option<u64>,
    ) -> Result<Self, Halt> {
        let mut frames = Self {
            folder,
            name,
            end,
            file: Bytes::new(),
            at: 0,
        };
        frames.load().await?;
        Ok(frames)
    }

    async fn load(&mut self) -> Result<(), Halt> {
        let read = self.folder.read(&self.name.to_string(), usize::MAX).await;
        let read = read.map_err(|error| broken(&self.location(), error));
        let mut file = Bytes::from(read?);
        if let Some(end) = self.end {
            let end = usize::try_from(end).unwrap_or(usize::MAX);
            if end > file.len() {
                let location = format!("{} at offset {}", self.location(), file.len());
                let what = format!("it ends there, but the log continues to {end}");
                return Err(Error::corrupt(&location, what).into());
            }
            file.truncate(end);
        }
        self.file = file;
        Ok(())
    }

    /// Where the next frame begins.
    pub(crate) fn offset(&self) -> u64 {
        self.at as u64
    }

    /// The file.
    pub(crate) fn location(&self) -> String {
        location(&*self.folder, self.name)
    }

    /// The next frame. An error is the last.
    pub(crate) async fn next(&mut self) -> Result<Next, Halt> {
        let mut left = REREADS_MAX;
        loop {
            let at = self.at;
            if at >= self.file.len() {
                return Ok(Next::End);
            }
            let is_last = self.end.is_none();
            let what = match frame::find(&self.file, at) {
                Found::Frame { frame, end } => {
                    self.at = end;
                    return Ok(Next::Frame(frame, at as u64));
                }
                Found::Torn if is_last => return Ok(Next::Torn),
                Found::End if is_last => return Ok(Next::End),
                Found::Torn | Found::End => "a frame is cut short".to_owned(),
                Found::Damaged(what) => what,
                Found::Newer(what) => {
                    let location = format!("{} at offset {at}", self.location());
                    self.at = self.file.len();
                    return Err(Error::newer(&location, what).into());
                }
            };
            if is_last && left > 0 {
                left -= 1;
                if self.folder.blocks() {
                    std::thread::sleep(REREAD_PAUSE);
                } else {
                    tokio::time::sleep(REREAD_PAUSE).await;
                }
                self.load().await?;
                continue;
            }
            let location = format!("{} at offset {at}", self.location());
            self.at = self.file.len();
            return Err(Error::corrupt(&location, what).into());
        }
    }
}

/// Reads a segment up to its end, which must be that of a frame; the last one, to where it was torn.
pub(crate) async fn read(folder: Arc<dyn AppendFolder>, link: &Link) -> Result<Contents, Halt> {
    let mut read = Frames::open(folder, link.name, link.end).await?;
    let mut frames = Vec::new();
    loop {
        match read.next().await? {
            Next::Frame(frame, _) => frames.push(frame),
            Next::Torn => {
                let (path, offset) = (read.location(), read.offset());
                tracing::info!(%path, offset, "cut off an unfinished frame");
                break;
            }
            Next::End => break,
        }
    }
    Ok(Contents {
        frames,
        bytes: read.file.slice(..read.at),
    })
}

/// The first frame of a segment; `None` if it was not finished.
pub(crate) async fn first_frame(
    folder: &dyn AppendFolder,
    name: Name,
) -> Result<Option<Frame>, Halt> {
    // One byte more shows that the file goes on.
    let head = folder.read(&name.to_string(), HEAD_BYTES + 1).await;
    let head = head.map_err(|error| broken(&location(folder, name), error))?;
    let head = Bytes::from(head);
    let start = || format!("{} at offset 0", location(folder, name));
    let damaged = |what: String| Err(Error::corrupt(&start(), what).into());
    if head.is_empty() {
        return Ok(None);
    }
    match frame::find(&head, 0) {
        Found::Frame { frame, .. } if matches!(frame.header.kind, Kind::Term | Kind::Segment) => {
            Ok(Some(frame))
        }
        Found::Frame { .. } => damaged("it does not begin like a segment".to_owned()),
        Found::Torn | Found::End if head.len() <= HEAD_BYTES => Ok(None),
        Found::Torn | Found::End => {
            damaged("its first frame is incomplete, but others follow".to_owned())
        }
        Found::Damaged(what) => damaged(what),
        Found::Newer(what) => Err(Error::newer(&start(), what).into()),
    }
}

/// What is wrong if a file of this name begins with this frame and stands behind these others; `None` if it is what it is
/// called.
pub(crate) async fn misnamed(
    folder: &dyn AppendFolder,
    before: &[Name],
    name: Name,
    first: &Frame,
) -> Option<String> {
    if let Some(what) = name.disagrees(first) {
        return Some(what);
    }
    if name.is_copy() {
        return None;
    }
    // It goes on from the file before it, so there is mostly none in between.
    let previous = first.header.previous.as_ref();
    let previous = previous.and_then(|previous| previous.segment.parse::<Name>().ok());
    let between = before.iter().rev();
    let between = between.take_while(|other| other.takeover == name.takeover);
    for &other in between.filter(|&&other| Some(other) > previous && !other.is_copy()) {
        // One that cannot be read is nobody's original.
        let found = first_frame(folder, other).await.ok().flatten();
        if found.is_some_and(|found| found.header == first.header) {
            return Some(format!("its content is that of the segment {other}"));
        }
    }
    None
}

/// Every segment there is, in order.
pub(crate) async fn names(folder: &dyn AppendFolder) -> Result<Vec<Name>, Error> {
    let names = match folder.names().await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.map_err(|error| failed("listing", &folder.location(), error))?,
    };
    // What has another name is not ours.
    let mut names: Vec<Name> = names.iter().filter_map(|name| name.parse().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Where a segment is, to show to people.
pub(crate) fn location(folder: &dyn AppendFolder, name: impl fmt::Display) -> String {
    format!("{}/{name}", folder.location())
}

fn broken(location: &str, error: io::Error) -> Halt {
    match error.kind() {
        io::ErrorKind::NotFound => return Halt::Missing(location.to_owned()),
        io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory => {
            return Error::corrupt(&location, error.to_string()).into();
        }
        _ => {}
    }
    failed("reading", location, error).into()
}

/// An error of something that has not happened.
pub(crate) fn failed(doing: &str, location: &str, error: io::Error) -> Error {
    use io::ErrorKind as Cause;
    let doing = format!("{doing} {location}");
    let hint = match error.kind() {
        Cause::StorageFull | Cause::QuotaExceeded | Cause::FileTooLarge => {
            "free some space on the store's file system, or raise the quota"
        }
        Cause::PermissionDenied | Cause::ReadOnlyFilesystem => {
            "give the user of this process read and write access to the store's folder and everything in it"
        }
        _ => {
            let source = error.into();
            return tenure_store::Error::Unavailable { doing, source }.into();
        }
    };
    tenure_store::Error::Refused {
        doing,
        hint: hint.to_owned(),
        source: error.into(),
    }
    .into()
}

/// An error of something that may have happened.
pub(crate) fn unknown(location: &str, error: io::Error) -> Error {
    let source = tenure_store::Error::Unavailable {
        doing: format!("using {location}"),
        source: error.into(),
    };
    Error::Unknown {
        source: Some(Arc::new(source)),
    }
}

impl Name {
    /// Where a leader keeps what it has read in the last file of its predecessor.
    pub(crate) fn copy_of(takeover: u64) -> Self {
        Self {
            takeover,
            number: 0,
        }
    }

    pub(crate) fn is_copy(self) -> bool {
        self.number == 0
    }

    /// What is wrong if a file of this name begins with this frame; `None` if they agree.
    pub(crate) fn disagrees(self, first: &Frame) -> Option<String> {
        let (takeover, is_first) = (first.header.takeover, first.header.kind == Kind::Term);
        let agrees = if self.is_copy() {
            // Of a file of an earlier leader, whichever it was.
            takeover < self.takeover
        } else {
            takeover == self.takeover && is_first == (self.number == 1)
        };
        if agrees {
            return None;
        }
        let which = if is_first { "the first" } else { "a later" };
        Some(format!(
            "its content is {which} segment of takeover {takeover}, not what its name says"
        ))
    }
}

impl From<(Name, u64)> for Previous {
    fn from((name, end): (Name, u64)) -> Self {
        Self {
            segment: name.to_string(),
            end,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:020}-{:06}", self.takeover, self.number)
    }
}

impl FromStr for Name {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (takeover, number) = text.split_once('-').ok_or(())?;
        let name = Self {
            takeover: takeover.parse().map_err(|_| ())?,
            number: number.parse().map_err(|_| ())?,
        };
        // Only as it is written, so that a name stands for one file.
        if name.to_string() == text {
            Ok(name)
        } else {
            Err(())
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::Incarnation;
    use tenure_core::election::Term;
    use tenure_core::queue::Rules;

    use super::super::Position;
    use super::super::frame::{Cursor, encode};
    use super::*;
    use std::fs;
    use tenure_store::engine::file::File;
    use tenure_store::{Prefix, Store};

    #[tokio::test]
    async fn what_was_being_written_is_read_again_and_damage_stays() {
        let root = tempfile::tempdir().unwrap();
        let store = File::open(root.path()).await.unwrap();
        let folder = store
            .append_folder(&Prefix::new("segments").unwrap())
            .unwrap();
        folder.make().await.unwrap();
        let name = Name {
            takeover: 1,
            number: 1,
        };
        let path = root.path().join("segments").join(name.to_string());
        let cursor = Cursor {
            seq: 1,
            position: Position(1),
            takeover: 1,
            term: Term(1),
            incarnation: Incarnation(1),
            number: 1,
            rules: Rules::FIRST,
        };
        let whole = encode(Kind::Commit, cursor, None, &["x".repeat(2000)]);
        // The reader was here before the writer was, and there after it.
        let mut late = whole.to_vec();
        late[..300].fill(0);
        fs::write(&path, &late).unwrap();
        let mut frames = Frames::open(folder.clone(), name, None).await.unwrap();
        fs::write(&path, &whole).unwrap();
        assert!(matches!(frames.next().await, Ok(Next::Frame(_, 0))));
        assert!(matches!(frames.next().await, Ok(Next::End)));

        fs::write(&path, &late).unwrap();
        let mut frames = Frames::open(folder, name, None).await.unwrap();
        let damaged = frames.next().await;
        let Err(Halt::Failed(Error::Corrupt { location, .. })) = damaged else {
            panic!("{damaged:?}");
        };
        assert!(location.ends_with("-000001 at offset 0"), "{location}");
    }
}
