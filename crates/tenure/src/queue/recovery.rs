//! Recovery: the newest snapshot, then the log behind it, in order and without gaps.
//!
//! Everything is checked as it streams in: checksums, the order of places, positions and take-overs. What is
//! damaged, cut short or missing is an error that names it; nothing is skipped.
//!
//! A reader may be slow, and what it is about to read may be cleaned up meanwhile. What it misses then is
//! behind a newer snapshot: it begins again with that one. If there is none, what is missing is lost.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::access::Access;
use super::error::Halt;
use super::frame::{Frame, Kind};
use super::origin::Form;
use super::policy::Growth;
use super::segment::{self, Link};
use super::snapshot::{self, Listing, Published};
use super::{Error, Machine, Position, objects};
use crate::task::blocking;

/// How often a reader may be overtaken by clean-up. Each time a whole new snapshot was written.
const RESTARTS_MAX: usize = 10;

/// After how many frames others get a turn on this thread.
const FRAMES_PER_TURN: u64 = 64;

/// How far recovery has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Lines of the snapshot that were restored.
    pub lines: u64,
    /// Records of the log that were applied.
    pub records: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Since it began.
    pub elapsed: Duration,
}

/// What is known when everything was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail {
    /// The last place, 0 if there is none.
    pub(crate) seq: u64,
    /// The last record.
    pub(crate) position: Position,
    /// Who wrote last.
    pub(crate) takeover: u64,
    pub(crate) snapshot: Option<Published>,
    pub(crate) snapshot_bytes: u64,
    /// The log behind the snapshot.
    pub(crate) growth: Growth,
    /// Objects: see [`snapshot::Contents`].
    pub(crate) swept: u64,
    pub(crate) kept: Vec<u64>,
    /// Files: the chain, and where the last of it ends.
    pub(crate) chain: Vec<Link>,
    pub(crate) end: u64,
}

/// Takes what is read, in order.
pub(crate) struct Replay<'a, M> {
    pub(crate) machine: &'a mut M,
    pub(crate) tail: Tail,
    /// The last place that is wanted.
    pub(crate) until: u64,
    progress: Progress,
    report: &'a mut (dyn FnMut(Progress) + Send),
    started: Instant,
    frames: u64,
}

impl<'a, M: Machine> Replay<'a, M> {
    pub(crate) fn new(machine: &'a mut M, report: &'a mut (dyn FnMut(Progress) + Send)) -> Self {
        Self {
            machine,
            tail: Tail::default(),
            until: u64::MAX,
            progress: Progress::default(),
            report,
            started: Instant::now(),
            frames: 0,
        }
    }

    /// Reads everything there is.
    pub(crate) async fn run(&mut self, access: &Access, form: Form) -> Result<(), Error> {
        for _ in 0..RESTARTS_MAX {
            let listing = Listing::read(access).await?;
            let newest = listing.newest_until(self.until).cloned();
            let missing = match self.pass(access, form, newest.as_ref()).await {
                Ok(()) => return Ok(()),
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::Missing(location)) => location,
            };
            let now = Listing::read(access).await?;
            if now.newest_until(self.until) <= newest.as_ref() {
                return Err(self.lost(&now, &missing));
            }
            tracing::info!(%missing, "was cleaned up while it was wanted, beginning again");
        }
        Err(Error::corrupt(
            &access.keys.snapshots(),
            "new snapshots come faster than they can be read",
        ))
    }

    /// Something is missing, and no newer snapshot makes up for it.
    fn lost(&self, listing: &Listing, missing: &str) -> Error {
        match listing.published.first() {
            Some(oldest) if oldest.seq > self.until => Error::invalid(
                format!(
                    "place {} cannot be rebuilt any more: what came before the snapshot at place {} was cleaned up",
                    self.until, oldest.seq
                ),
                "ask for that place, or a later one",
            ),
            _ => Error::corrupt(&missing, "it is missing"),
        }
    }

    async fn pass(
        &mut self,
        access: &Access,
        form: Form,
        newest: Option<&Published>,
    ) -> Result<(), Halt> {
        self.machine.reset();
        self.tail = Tail::default();
        self.progress = Progress::default();
        if let Some(newest) = newest {
            self.restore(access, newest).await?;
        }
        self.go_on(access, form).await
    }

    /// Reads the log behind what was read so far.
    pub(crate) async fn go_on(&mut self, access: &Access, form: Form) -> Result<(), Halt> {
        match form {
            Form::Objects => objects::replay(access, self).await,
            Form::Segments => self.segments(access).await,
        }
    }

    async fn restore(&mut self, access: &Access, newest: &Published) -> Result<(), Halt> {
        let (progress, report) = (&mut self.progress, &mut self.report);
        let restored = snapshot::restore(access, newest, self.machine, |lines, bytes| {
            progress.lines += lines as u64;
            progress.bytes += bytes as u64;
            progress.elapsed = self.started.elapsed();
            report(*progress);
        });
        let (manifest, contents, bytes) = restored.await?;
        self.tail = Tail {
            seq: manifest.header.seq,
            position: manifest.header.position,
            takeover: manifest.header.takeover,
            snapshot: Some(newest.clone()),
            snapshot_bytes: bytes,
            swept: contents.swept,
            kept: contents.kept,
            ..Tail::default()
        };
        Ok(())
    }

    async fn segments(&mut self, access: &Access) -> Result<(), Halt> {
        let folder = segment_folder(access).expect("the origin was checked against the store");
        let from = self.tail.seq + 1;
        let chain = {
            let folder = folder.clone();
            blocking(async move { segment::chain(&folder, from).await }).await?
        };
        if chain.is_empty() && self.tail.snapshot.is_some() {
            return Err(Halt::Missing(format!("{}/*", folder.display())));
        }
        // The next is read while this one is applied.
        let mut contents = stream::iter(chain.clone())
            .map(|link| {
                let folder = folder.clone();
                blocking(async move {
                    let read = segment::read(&folder, &link).await;
                    read.map(|read| (link, read))
                })
            })
            .buffered(2);
        while let Some(read) = contents.next().await {
            let (link, read) = read?;
            for frame in &read.frames {
                if (from..=self.until).contains(&frame.header.seq) {
                    let location = || folder.join(link.name.to_string()).display().to_string();
                    self.frame(frame, location).await?;
                }
            }
            self.tail.end = read.end;
        }
        self.tail.chain = chain;
        Ok(())
    }

    /// Applies the next frame of the log.
    pub(crate) async fn frame(
        &mut self,
        frame: &Frame,
        location: impl Fn() -> String,
    ) -> Result<(), Error> {
        let (header, tail) = (&frame.header, &mut self.tail);
        let next = tail.position.next();
        if header.seq != tail.seq + 1 || header.position != next {
            let what = format!(
                "place {} with record {} follows, where place {} with record {next} was expected",
                header.seq,
                header.position,
                tail.seq + 1,
            );
            return Err(Error::corrupt(&location(), what));
        }
        if header.takeover < tail.takeover {
            let what = format!(
                "take-over {} at place {} follows take-over {}",
                header.takeover, header.seq, tail.takeover
            );
            return Err(Error::corrupt(&location(), what));
        }
        tail.seq = header.seq;
        tail.takeover = header.takeover;
        tail.growth.bytes += frame.body().len() as u64;
        match header.kind {
            Kind::Commit => {
                for record in frame.lines() {
                    tail.position = tail.position.next();
                    self.machine
                        .replay(tail.position, record)
                        .map_err(|what| Error::corrupt(&location(), what))?;
                }
            }
            Kind::Term => tail.kept.push(header.seq),
            Kind::Segment => {}
            Kind::Part | Kind::Manifest => {
                return Err(Error::corrupt(
                    &location(),
                    "a part of a snapshot is in the log",
                ));
            }
        }
        if header.kind == Kind::Commit {
            self.progress.records += frame.count() as u64;
        }
        self.progress.bytes += frame.body().len() as u64;
        self.progress.elapsed = self.started.elapsed();
        (self.report)(self.progress);
        self.frames += 1;
        if self.frames.is_multiple_of(FRAMES_PER_TURN) {
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// Where the files of the log are.
pub(crate) fn segment_folder(access: &Access) -> Option<std::path::PathBuf> {
    let root = access.store.local_folder()?;
    Some(root.join(access.keys.segments().as_str().trim_end_matches('/')))
}
