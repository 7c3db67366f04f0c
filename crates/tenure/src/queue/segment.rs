//! The log as files, on a file store: an append costs a quarter of what a new file does.
//!
//! A *segment* is a file of frames, `<namespace>/queue/segments/<takeover>-<number>` in the store's folder.
//! Each leader writes to segments of its own: nobody ever appends to a file of another, and no file is
//! changed in any other way. The first frame of a segment names the segment before it and the offset up to
//! which the log goes there, so the segments form a chain. The log is the chain that ends in the segment with
//! the highest take-over and number whose first frame is whole. What lies in a file behind the offset that
//! its successor names is not in the log, and neither is a segment that no chain leads to.
//!
//! # The fence
//!
//! The *fence* is the origin, which a leader replaces to take over (see [`origin`](super::origin)). Replacing
//! a file is one rename, which every process of the host sees at once.
//!
//! - A leader **commits** by appending the frame, syncing it, and then reading the origin. If that is, byte
//!   for byte, the one it wrote itself, the commit is done; if not, it is fenced and never commits again.
//! - A leader **takes over** by replacing the origin, then reading the chain, then syncing the last file of
//!   it, then writing the first segment of its own, and then reading the origin once more.
//!
//! # Why no acknowledged record is lost
//!
//! Let R be a record that leader g acknowledged. *Every leader h > g has R in its chain.* R was in its file
//! before g read the origin and found its own. So the origin was replaced by the next take-over, and by
//! all later ones, after R was in the file; and h reads only after it replaced the origin. What h takes for
//! the end of the chain is a segment of g, or of some leader between g and h, since g's first segment was
//! whole before R was written. If it is g's, then h reads R, which was synced whole before it was
//! acknowledged. If it is that of a leader between, that one too replaced the origin after R was in
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
//! # What is assumed
//!
//! A file system of this host, as the file store demands. After a failed sync the kernel may show bytes that the
//! disk does not have, so the leader that saw it stops for good, with an unknown outcome. Should a
//! successor read such bytes and the host then lose power, the chain says that they are missing: an error,
//! never a gap that nobody notices.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

use super::Error;
use super::error::Halt;
use super::frame::{self, Found, Frame, HEADER_BYTES_MAX, Kind, Place, Previous};

/// How much of a file holds its first frame.
const HEAD_BYTES: usize = 2 * HEADER_BYTES_MAX;

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
    pub(crate) end: u64,
}

/// The segment that a leader appends to.
#[derive(Debug)]
pub(crate) struct Segments {
    folder: PathBuf,
    fence: Fence,
    file: Arc<fs::File>,
    name: Name,
    end: u64,
}

/// What must stay as it is for this leader to go on.
#[derive(Debug, Clone)]
pub(crate) struct Fence {
    pub(crate) path: PathBuf,
    pub(crate) value: Bytes,
}

impl Segments {
    /// Writes the first segment of a leader, behind what it has read. The lines are for people.
    pub(crate) async fn begin(
        folder: PathBuf,
        fence: Fence,
        place: Place,
        last: Option<(Name, u64)>,
        lines: Vec<String>,
    ) -> Result<Self, Error> {
        let name = Name {
            takeover: place.takeover,
            number: 1,
        };
        blocking(move || {
            if let Some((last, _)) = last {
                // Its writer may have been killed before it synced what we have read and build on.
                fs::File::open(folder.join(last.to_string()))
                    .and_then(|file| file.sync_all())
                    .map_err(|error| failed("syncing", &folder, error))?;
            }
            make_folder(&folder).map_err(|error| failed("making", &folder, error))?;
            let first = frame::encode(Kind::Term, place, last.map(Previous::from), &lines);
            let file = create(&folder, name, &first)?;
            let segments = Self {
                folder,
                fence,
                file: Arc::new(file),
                name,
                end: first.len() as u64,
            };
            segments.fence.check().map(|()| segments)
        })
        .await
    }

    pub(crate) fn name(&self) -> Name {
        self.name
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Goes on in a new file.
    pub(crate) async fn rotate(&mut self, place: Place, lines: Vec<String>) -> Result<(), Error> {
        let (folder, mut name, end) = (self.folder.clone(), self.name, self.end);
        let previous = Previous::from((name, end));
        let (name, file, end) = blocking(move || {
            let first = frame::encode(Kind::Segment, place, Some(previous), &lines);
            name.number += 1;
            let file = create(&folder, name, &first)?;
            Ok::<_, Error>((name, file, first.len() as u64))
        })
        .await?;
        (self.name, self.file, self.end) = (name, Arc::new(file), end);
        Ok(())
    }

    /// Appends a frame, syncs it, and checks the fence.
    pub(crate) async fn append(&mut self, frame: Bytes) -> Result<(), Error> {
        let (file, fence, end) = (self.file.clone(), self.fence.clone(), self.end);
        let path = self.folder.join(self.name.to_string());
        let bytes = frame.len() as u64;
        blocking(move || {
            if let Err(error) = file.write_all_at(&frame, end) {
                // The frame is not whole, so nobody has read it, and nobody will.
                file.set_len(end)
                    .map_err(|_| Error::Unknown { source: None })?;
                return Err(failed("appending to", &path, error));
            }
            file.sync_data().map_err(|error| unknown(&path, error))?;
            fence.check()
        })
        .await?;
        self.end += bytes;
        Ok(())
    }
}

impl Fence {
    fn check(&self) -> Result<(), Error> {
        match fs::read(&self.path) {
            // Behind the value the store keeps its stamp.
            Ok(present) if present.starts_with(&self.value) => Ok(()),
            Ok(_) => Err(Error::Fenced),
            Err(error) => Err(unknown(&self.path, error)),
        }
    }
}

/// The chain, the oldest first, back to the segment that holds the place `from`.
pub(crate) fn chain(folder: &Path, from: u64) -> Result<Vec<Link>, Halt> {
    let mut names = names(folder)?;
    let mut links = Vec::new();
    let mut before = loop {
        let Some(name) = names.pop() else {
            return Ok(links);
        };
        match first_frame(folder, name)? {
            Some(frame) => break link(&mut links, name, None, &frame),
            // Its leader has not come so far as to acknowledge anything.
            None => continue,
        }
    };
    while links.last().is_some_and(|link| link.first > from) {
        let oldest = folder.join(links[links.len() - 1].name.to_string());
        let Some(Previous { segment, end }) = before else {
            let what = format!("it is the first segment, and place {from} of the log is before it");
            return Err(Error::corrupt(&oldest.display(), what).into());
        };
        let name = segment.parse().map_err(|()| {
            let what = "the segment before it has no name".to_owned();
            Error::corrupt(&oldest.display(), what)
        })?;
        let Some(frame) = first_frame(folder, name)? else {
            let path = folder.join(&segment);
            let what = "its first frame is cut short, and others follow".to_owned();
            return Err(Error::corrupt(&path.display(), what).into());
        };
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

/// What a file holds, up to the end that its successor names.
pub(crate) fn contents(path: &Path, end: Option<u64>) -> Result<Bytes, Halt> {
    let mut file = Bytes::from(fs::read(path).map_err(|error| broken(path, error))?);
    if let Some(end) = end {
        let end = usize::try_from(end).unwrap_or(usize::MAX);
        if end > file.len() {
            let location = format!("{} at offset {}", path.display(), file.len());
            let what = format!("it ends there, and the log goes on to {end}");
            return Err(Error::corrupt(&location, what).into());
        }
        file.truncate(end);
    }
    Ok(file)
}

/// Reads a segment up to its end, which must be that of a frame; the last one, to where it was torn.
pub(crate) fn read(folder: &Path, link: &Link) -> Result<Contents, Halt> {
    let path = folder.join(link.name.to_string());
    let file = contents(&path, link.end)?;
    let damaged = |at: usize, what: String| {
        let location = format!("{} at offset {at}", path.display());
        Err(Error::corrupt(&location, what).into())
    };
    let mut frames = Vec::new();
    let mut at = 0;
    while at < file.len() {
        match frame::find(&file, at) {
            Found::Frame { frame, end } => {
                frames.push(frame);
                at = end;
            }
            Found::Torn if link.end.is_none() => {
                tracing::info!(path = %path.display(), offset = at, "cut off what was never acknowledged");
                break;
            }
            Found::Torn => return damaged(at, "a frame is cut short".to_owned()),
            Found::Damaged(what) => return damaged(at, what),
        }
    }
    Ok(Contents {
        frames,
        end: at as u64,
    })
}

/// The first frame of a segment; `None` if it was not finished.
pub(crate) fn first_frame(folder: &Path, name: Name) -> Result<Option<Frame>, Halt> {
    use std::io::Read;
    let path = folder.join(name.to_string());
    let mut head = Vec::with_capacity(HEAD_BYTES);
    // One byte more shows that the file goes on.
    fs::File::open(&path)
        .and_then(|file| file.take(HEAD_BYTES as u64 + 1).read_to_end(&mut head))
        .map_err(|error| broken(&path, error))?;
    let head = Bytes::from(head);
    let damaged = |what: String| {
        let location = format!("{} at offset 0", path.display());
        Err(Error::corrupt(&location, what).into())
    };
    if head.is_empty() {
        return Ok(None);
    }
    match frame::find(&head, 0) {
        Found::Frame { frame, .. } if matches!(frame.header.kind, Kind::Term | Kind::Segment) => {
            Ok(Some(frame))
        }
        Found::Frame { .. } => damaged("it does not begin as a segment does".to_owned()),
        Found::Torn if head.len() <= HEAD_BYTES => Ok(None),
        Found::Torn => damaged("its first frame is not whole, and others follow".to_owned()),
        Found::Damaged(what) => damaged(what),
    }
}

/// Every segment there is, in order.
pub(crate) fn names(folder: &Path) -> Result<Vec<Name>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("listing", folder, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed("listing", folder, error))?;
        // What has another name is not ours.
        names.extend(
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<Name>().ok()),
        );
    }
    names.sort_unstable();
    Ok(names)
}

/// Makes the file, durable under its name, with its first frame.
fn create(folder: &Path, name: Name, first: &[u8]) -> Result<fs::File, Error> {
    let path = folder.join(name.to_string());
    let write = || {
        // Only a failed attempt of this very leader can have left one.
        let file = fs::File::create(&path)?;
        file.write_all_at(first, 0)?;
        file.sync_all()?;
        fs::File::open(folder)?.sync_all()?;
        Ok(file)
    };
    write().map_err(|error| failed("making", &path, error))
}

/// The folder above is there, and durable, because the origin is in it.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let above = folder
        .parent()
        .expect("the folder of segments lies in the queue's");
    fs::File::open(above)?.sync_all()
}

pub(crate) async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn broken(path: &Path, error: io::Error) -> Halt {
    if error.kind() == io::ErrorKind::NotFound {
        return Halt::Missing(path.display().to_string());
    }
    failed("reading", path, error).into()
}

/// An error of something that has not happened.
fn failed(doing: &str, path: &Path, error: io::Error) -> Error {
    use io::ErrorKind as Cause;
    let doing = format!("{doing} {}", path.display());
    let hint = match error.kind() {
        Cause::StorageFull | Cause::QuotaExceeded | Cause::FileTooLarge => {
            "free some space on the store's file system, or raise the quota"
        }
        Cause::PermissionDenied | Cause::ReadOnlyFilesystem => {
            "let the user of this process read and write the store's folder and everything in it"
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
fn unknown(path: &Path, error: io::Error) -> Error {
    let source = tenure_store::Error::Unavailable {
        doing: format!("using {}", path.display()),
        source: error.into(),
    };
    Error::Unknown {
        source: Some(Arc::new(source)),
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
