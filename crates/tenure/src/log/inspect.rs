//! Looking at a queue's log without taking part: what is stored, frame by frame, and whether it is whole.
//!
//! Reads only, takes nothing over, and works while a leader commits and cleans up. What was cleaned up
//! between being listed and being read is skipped where that changes nothing, and is an error where it does:
//! nothing is guessed.
//!
//! Memory is bounded by one file of the log, one part of a snapshot, or as many objects as are read at once.

use std::fmt;
use std::sync::Arc;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryFutureExt, stream};
use serde::Serialize;
use tenure_core::election::Term;
use tenure_core::{Incarnation, Lineage, Namespace};
use tenure_store::{AppendFolder, PAGE_ENTRIES_MAX, Store};

use super::access::Access;
use super::error::Halt;
use super::frame::{Unread, decode};
use super::origin::{Form, Origin};
use super::recovery::Replay;
use super::segment;
use super::snapshot::{self, Listing, Manifest};
use super::{Config, Error, Machine};

mod frame;
mod name;
mod verify;

pub use super::frame::Kind;
pub use frame::Frame;
pub use name::Name;
pub use verify::{Finding, Verified};

/// How often a pass begins again because a leader has cleaned up meanwhile.
const RESTARTS_MAX: usize = 10;

/// A queue's log as it is stored.
#[derive(Debug, Clone)]
pub struct Stored {
    access: Arc<Access>,
    origin: Origin,
}

/// What the origin says: how the log is kept, and who took it over last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// How the log is kept.
    pub form: Form,
    /// The number of the last take-over.
    pub takeover: u64,
    /// The election in which its leader was elected, and the term.
    pub lineage: Lineage,
    /// Its term.
    pub term: Term,
    /// Its process.
    pub incarnation: Incarnation,
}

/// A snapshot that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: Name,
    /// The last place that it contains.
    pub place: u64,
    /// Whether it counts: its manifest is there. Else it is being written, or nobody finished it.
    pub is_published: bool,
}

/// A file of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its name.
    pub name: Name,
    /// Whether it is a part of the log. Else a leader that was replaced has left it.
    pub is_in_log: bool,
    /// Up to where it is a part of the log; `None` in the last, where all of it is.
    pub end: Option<u64>,
    /// What is wrong with its name, if it is not the file that it is called.
    pub misnamed: Option<String>,
    /// The file that the log came from before this one, if that is not there. It may have been cleaned up.
    pub missing: Option<Name>,
}

/// Frames, one after the other.
pub struct Frames(BoxStream<'static, Result<Frame, Error>>);

impl Stored {
    /// Looks at the log of a namespace; `None` if it has no queue.
    pub async fn open(store: Arc<dyn Store>, namespace: &Namespace) -> Result<Option<Self>, Error> {
        let access = Access::new(store, namespace, Config::default());
        let origin = Origin::read(&access).await?;
        Ok(origin.map(|origin| Self { access, origin }))
    }

    /// What the origin said when this was opened.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            form: self.origin.form,
            takeover: self.origin.takeover,
            lineage: self.origin.lineage,
            term: self.origin.term,
            incarnation: self.origin.incarnation,
        }
    }

    /// Every snapshot that is there, finished or not, in order.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let listing = Listing::read(&self.access).await?;
        let mut snapshots: Vec<Snapshot> = listing
            .objects
            .into_iter()
            .filter_map(|(name, objects)| {
                Some(Snapshot {
                    place: snapshot::seq_of(&name)?,
                    is_published: objects.iter().any(|key| key.name() == "manifest"),
                    name: Name::Snapshot(name),
                })
            })
            .collect();
        snapshots.sort_by_key(|snapshot| snapshot.place);
        Ok(snapshots)
    }

    /// The next places behind `after` that have an object: a page of them, none when there are no more, or
    /// where the log is kept in files.
    pub async fn places(&self, after: u64) -> Result<Vec<u64>, Error> {
        let access = &self.access;
        let after = access.keys.log_object(after);
        let page = access.page(&access.keys.log(), Some(&after)).await?;
        debug_assert!(page.entries.len() <= PAGE_ENTRIES_MAX);
        let place = |name: &str| name.parse().ok().filter(|_| name.len() == 20);
        Ok(page
            .entries
            .iter()
            .filter_map(|entry| place(entry.key.name()))
            .collect())
    }

    /// Every file of the log, in order; none where it is kept in objects.
    pub async fn segments(&self) -> Result<Vec<Segment>, Error> {
        let Some(folder) = self.folder() else {
            return Ok(Vec::new());
        };
        let (blocks, layout) = (folder.blocks(), async move { layout(&*folder).await });
        self.access.runtime.blocking(blocks, layout).await
    }

    /// The frames at some places. What is not there any more is left out; what is damaged is an error, behind
    /// which there are more.
    #[must_use]
    pub fn objects(&self, places: Vec<u64>) -> Frames {
        let frames = self.at(places);
        let found = frames.filter_map(|(_, found)| std::future::ready(found.transpose()));
        Frames(found.boxed())
    }

    /// The frame at each of some places, if there is one.
    fn at<P>(&self, places: P) -> BoxStream<'static, (u64, Result<Option<Frame>, Error>)>
    where
        P: IntoIterator<Item = u64>,
        P::IntoIter: Send + 'static,
    {
        let (access, read_ahead) = (self.access.clone(), self.access.config.read_ahead);
        stream::iter(places)
            .map(move |place| object(access.clone(), place).map(move |found| (place, found)))
            .buffered(read_ahead)
            .boxed()
    }

    /// The frames of something, all of them: also those at the end of a file that are in no log. A file that
    /// was torn ends before the tear.
    #[must_use]
    pub fn frames(&self, name: &Name) -> Frames {
        let frames = match name {
            Name::Object(place) => {
                let place = *place;
                let missing = Name::Object(place);
                let found = object(self.access.clone(), place);
                let found = found.map(move |found| {
                    found.and_then(|frame| frame.ok_or_else(|| not_there(&missing)))
                });
                stream::once(found).boxed()
            }
            Name::Segment(name) => self.segment(name, None),
            Name::Snapshot(name) => snapshot_frames(self.access.clone(), name.clone()),
        };
        Frames(frames)
    }

    fn segment(&self, name: &str, end: Option<u64>) -> BoxStream<'static, Result<Frame, Error>> {
        let (folder, parsed) = (self.folder(), name.parse::<segment::Name>());
        let (named, access) = (Name::Segment(name.to_owned()), self.access.clone());
        let read = async move {
            let (Some(folder), Ok(name)) = (folder, parsed) else {
                return Err(not_there(&named));
            };
            let (blocks, open) = (folder.blocks(), segment::Frames::open(folder, name, end));
            let opened = access.runtime.blocking(blocks, open).await;
            let frames = opened.map_err(|halt| gone(halt, &named))?;
            Ok(stream::unfold(Some((frames, named)), next_in_file))
        };
        read.try_flatten_stream().boxed()
    }

    /// How large a file is without the zeros at its end; 0 if it is not there any more.
    async fn size(&self, name: &Name) -> Result<u64, Error> {
        let (Some(folder), Name::Segment(name)) = (self.folder(), name.clone()) else {
            return Ok(0);
        };
        let read = self.access.runtime.blocking(folder.blocks(), async move {
            let file = folder.read(&name, usize::MAX).await.unwrap_or_default();
            let last = file.iter().rposition(|&byte| byte != 0);
            last.map_or(0, |last| last as u64 + 1)
        });
        Ok(read.await)
    }

    fn folder(&self) -> Option<Arc<dyn AppendFolder>> {
        let files = self.access.files.clone();
        files.filter(|_| self.origin.form == Form::Segments)
    }

    /// The log in order, behind the place `after` to its present end. Ends with an error where it does not
    /// go on as it should.
    pub async fn log(&self, after: u64) -> Result<Frames, Error> {
        let frames = match self.folder() {
            Some(folder) => {
                let blocks = folder.blocks();
                let chain = async move { segment::chain(&*folder, after + 1).await };
                let listed = self.access.runtime.blocking(blocks, chain).await;
                let chain = listed.map_err(|halt| passed_by(halt, after))?;
                let this = self.clone();
                stream::iter(chain)
                    .flat_map(move |link| this.segment(&link.name.to_string(), link.end))
                    .boxed()
            }
            None => self.clone().object_log(after),
        };
        Ok(Frames(in_order(frames, after).boxed()))
    }

    /// The frame at a place; `None` if it was never written, or has been cleaned up.
    pub async fn frame(&self, place: u64) -> Result<Option<Frame>, Error> {
        let found = match self.folder() {
            None => object(self.access.clone(), place).await?,
            Some(_) => self.log(place.saturating_sub(1)).await?.next().await?,
        };
        Ok(found.filter(|frame| frame.place == place))
    }

    /// The last place that was written; 0 if there is none. Costs listings and, where the log is kept in files, the last of
    /// them.
    pub async fn last_place(&self) -> Result<u64, Error> {
        let snapshots = self.snapshots().await?;
        let newest = snapshots.iter().rfind(|snapshot| snapshot.is_published);
        let mut last = newest.map_or(0, |newest| newest.place);
        if self.folder().is_none() {
            // Behind the newest snapshot there is no gap; before it there may be.
            while let Some(&place) = self.places(last).await?.last() {
                last = place;
            }
            return Ok(last);
        }
        let segments = self.segments().await?;
        let current = segments.iter().rfind(|segment| segment.is_in_log);
        if let Some(current) = current {
            let mut frames = self.frames(&current.name);
            while let Some(frame) = frames.next().await? {
                last = last.max(frame.place);
            }
        }
        Ok(last)
    }

    /// Gives the machine the state at each of some places, in order, and tells of each when it has it. Is
    /// begun anew, with a reset of the machine, if a leader cleans up meanwhile.
    pub async fn rebuild<M: Machine>(
        &self,
        machine: &mut M,
        places: &[u64],
        mut reached: impl FnMut(u64, &mut M),
    ) -> Result<(), Error> {
        let mut ignore = |_| {};
        for _ in 0..RESTARTS_MAX {
            let mut replay = Replay::new(&mut *machine, &mut ignore);
            let [first, more @ ..] = places else {
                return Ok(());
            };
            replay.until = *first;
            replay.run(&self.access, self.origin.form).await?;
            ends_at(replay.tail.seq, *first)?;
            reached(*first, replay.machine);
            let mut halt = None;
            for &place in more {
                replay.until = place;
                match replay.go_on(&self.access, self.origin.form).await {
                    Ok(()) => ends_at(replay.tail.seq, place)?,
                    Err(Halt::Failed(error)) => return Err(error),
                    Err(Halt::Missing(location)) => {
                        halt = Some(location);
                        break;
                    }
                }
                reached(place, replay.machine);
            }
            if halt.is_none() {
                return Ok(());
            }
        }
        Err(Error::corrupt(
            &self.access.keys.queue(),
            "it is cleaned up faster than it can be read, or a part of it is missing",
        ))
    }
}

fn ends_at(last: u64, wanted: u64) -> Result<(), Error> {
    if last >= wanted {
        return Ok(());
    }
    Err(Error::invalid(
        format!("the log ends at index {last}; there is no index {wanted}"),
        "use an earlier index",
    ))
}

/// Which files there are, and what of them is in the log.
async fn layout(folder: &dyn AppendFolder) -> Result<Vec<Segment>, Error> {
    let names = segment::names(folder).await?;
    let mut segments: Vec<Segment> = names
        .iter()
        .map(|name| Segment {
            name: Name::Segment(name.to_string()),
            is_in_log: false,
            end: None,
            misnamed: None,
            missing: None,
        })
        .collect();
    let mut firsts = Vec::new();
    for (index, &name) in names.iter().enumerate() {
        let first = segment::first_frame(folder, name).await.ok().flatten();
        if let Some(first) = &first {
            let what = segment::misnamed(folder, &names[..index], name, first).await;
            segments[index].misnamed = what;
        }
        firsts.push(first);
    }
    // A first frame that is damaged, in the last file, is one that nobody has acknowledged anything behind; it is
    // named when all of it is read.
    let is_whole = |index: usize| firsts[index].is_some() && segments[index].misnamed.is_none();
    let last = (0..names.len())
        .rev()
        .find(|&index| !names[index].is_copy() && is_whole(index));
    let Some(mut index) = last else {
        return Ok(segments);
    };
    // The file before one that says nothing of it: the copy that its leader made, or the next older one that is whole.
    let guess = |index: usize| {
        let mut older = (0..index).rev();
        older.find(|&before| {
            let is_own_copy = names[before] == segment::Name::copy_of(names[index].takeover);
            // Not the one that it is a copy of.
            let is_older = match (&firsts[before], &firsts[index]) {
                (Some(before), Some(first)) => before.header.seq < first.header.seq,
                _ => true,
            };
            is_whole(before) && is_older && (is_own_copy || !names[before].is_copy())
        })
    };
    let mut in_log = vec![(index, None)];
    let mut missing = Vec::new();
    loop {
        let before = match &firsts[index] {
            Some(first) if is_whole(index) => match &first.header.previous {
                None => break,
                Some(previous) => {
                    let name = previous.segment.parse::<segment::Name>().ok();
                    let found = name.and_then(|name| names[..index].binary_search(&name).ok());
                    if found.is_none() {
                        missing.push((index, previous.segment.clone()));
                    }
                    found.map(|found| (found, Some(previous.end)))
                }
            },
            // Damaged, but the log goes on from it: what came before it is as good as it was.
            _ => None,
        };
        let before = before.or_else(|| guess(index).map(|found| (found, None)));
        let Some((found, end)) = before else { break };
        index = found;
        in_log.push((index, end));
    }
    for (index, end) in in_log {
        (segments[index].is_in_log, segments[index].end) = (true, end);
    }
    for (index, name) in missing {
        segments[index].missing = Some(Name::Segment(name));
    }
    Ok(segments)
}

/// The frame at a place; `None` if there is none.
async fn object(access: Arc<Access>, place: u64) -> Result<Option<Frame>, Error> {
    let key = access.keys.log_object(place);
    let Some(object) = access.get(&key).await? else {
        return Ok(None);
    };
    let frame = decode(&object.value).and_then(|frame| {
        if frame.header.seq == place {
            Ok(frame)
        } else {
            let what = format!("it says that it is at index {}", frame.header.seq);
            Err(Unread::Damaged(what))
        }
    });
    let frame = frame.map_err(|unread| unread.at(&key))?;
    let bytes = object.value.len() as u64;
    Ok(Some(Frame::new(key.to_string(), 0, bytes, frame)))
}

/// The manifest, and then the parts that it names.
fn snapshot_frames(access: Arc<Access>, name: String) -> BoxStream<'static, Result<Frame, Error>> {
    let read = async move {
        let named = Name::Snapshot(name.clone());
        let place = snapshot::seq_of(&name).ok_or_else(|| not_there(&named))?;
        let key = access.keys.manifest(&name);
        let manifest = match snapshot::read(&access, &key, Kind::Manifest, place).await {
            Err(Halt::Missing(_)) if access.is_there(&access.keys.part(&name, 0)).await? => {
                return Err(Error::invalid(
                    format!("{named} has no manifest"),
                    "it is being written, or was never finished: it does not count",
                ));
            }
            read => read.map_err(|halt| gone(halt, &named))?,
        };
        let contents = Manifest::of(&manifest).map_err(|what| Error::corrupt(&key, what))?;
        let head = Frame::new(key.to_string(), 0, 0, manifest);
        let parts =
            stream::iter(contents.parts.into_iter().enumerate()).then(move |(number, expected)| {
                let (access, name) = (access.clone(), name.clone());
                async move {
                    let key = access.keys.part(&name, number as u64);
                    let part = match snapshot::read(&access, &key, Kind::Part, place).await {
                        Ok(part) => part,
                        Err(halt) => return Err(part_gone(halt, &access, &name).await),
                    };
                    if snapshot::Part::of(&part.header) != expected {
                        let what = "it is not the part that the manifest names";
                        return Err(Error::corrupt(&key, what));
                    }
                    Ok(Frame::new(key.to_string(), 0, 0, part))
                }
            });
        Ok(stream::iter([Ok(head)]).chain(parts))
    };
    read.try_flatten_stream().boxed()
}

impl Stored {
    /// Objects from the place behind `after` to the first gap.
    fn object_log(self, after: u64) -> BoxStream<'static, Result<Frame, Error>> {
        let frames = self.at(after + 1..).then(move |(place, found)| {
            let stored = self.clone();
            async move {
                match found {
                    Ok(None) => stored.gap(place).await.map(|()| None),
                    found => found,
                }
            }
        });
        // The first gap is the end.
        frames
            .map(Result::transpose)
            .take_while(|found| std::future::ready(found.is_some()))
            .filter_map(std::future::ready)
            .boxed()
    }

    /// Whether a place without an object is the end of the log.
    async fn gap(&self, place: u64) -> Result<(), Error> {
        let access = &self.access;
        let gap = access.keys.log_object(place);
        let behind = access.page(&access.keys.log(), Some(&gap)).await?;
        // A leader may have gone on since; then this is an end all the same, of a moment ago.
        if behind.entries.is_empty() || access.is_there(&gap).await? {
            return Ok(());
        }
        Err(passed_by(Halt::Missing(gap.to_string()), place - 1))
    }
}

/// Ends with an error where a place is missing or comes twice.
fn in_order(
    frames: BoxStream<'static, Result<Frame, Error>>,
    after: u64,
) -> impl futures_util::Stream<Item = Result<Frame, Error>> + Send + 'static {
    frames
        .filter(move |frame| {
            let is_before = matches!(frame, Ok(frame) if frame.place <= after);
            std::future::ready(!is_before)
        })
        .scan(Some(after), |last, frame| {
            let Some(before) = *last else {
                return std::future::ready(None);
            };
            let frame = frame.and_then(|frame| {
                if frame.place == before + 1 {
                    return Ok(frame);
                }
                let what = format!("index {} follows index {before}", frame.place);
                Err(Error::corrupt(&frame.location, what))
            });
            *last = frame.as_ref().ok().map(|frame| frame.place);
            std::future::ready(Some(frame))
        })
}

/// The next frame of a file, up to a tear or damage.
async fn next_in_file(
    file: Option<(segment::Frames, Name)>,
) -> Option<(Result<Frame, Error>, Option<(segment::Frames, Name)>)> {
    let (mut frames, name) = file?;
    match frames.next().await {
        Ok(segment::Next::Frame(frame, offset)) => {
            let bytes = frames.offset() - offset;
            let frame = Frame::new(frames.location(), offset, bytes, frame);
            Some((Ok(frame), Some((frames, name))))
        }
        Ok(segment::Next::Torn | segment::Next::End) => None,
        Err(halt) => Some((Err(gone(halt, &name)), None)),
    }
}

fn not_there(name: &Name) -> Error {
    Error::invalid(
        format!("there is no {name}"),
        "look at what is stored; it may have been cleaned up",
    )
}

fn gone(halt: Halt, name: &Name) -> Error {
    match halt {
        Halt::Failed(error) => error,
        Halt::Missing(_) => not_there(name),
    }
}

/// Clean-up takes the manifest first: as long as that is there, the parts are.
async fn part_gone(halt: Halt, access: &Access, name: &str) -> Error {
    let location = match halt {
        Halt::Failed(error) => return error,
        Halt::Missing(location) => location,
    };
    match access.is_there(&access.keys.manifest(name)).await {
        Ok(true) => Error::corrupt(&location, "it is missing"),
        Ok(false) => not_there(&Name::Snapshot(name.to_owned())),
        Err(error) => error,
    }
}

/// What follows `after` is not there, though more is.
fn passed_by(halt: Halt, after: u64) -> Error {
    match halt {
        Halt::Failed(error) => error,
        Halt::Missing(location) => Error::invalid(
            format!("{location} is gone"),
            format!("what follows index {after} was cleaned up or is lost: verify the log"),
        ),
    }
}

impl Frames {
    /// The next frame. Behind an error there may be more.
    pub async fn next(&mut self) -> Result<Option<Frame>, Error> {
        self.0.next().await.transpose()
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Frames")
    }
}
