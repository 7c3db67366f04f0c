//! Recovery: the newest snapshot, then the log behind it, in order and without gaps.
//!
//! If the newest snapshot is damaged, the one before it is taken, with the log from there on, which clean-up keeps
//! for that. It must lead as far as the damaged one did, and as far as the log is known to reach
//! (see [`reached`](super::reached)); else the damage is named and nothing is served. That it was
//! so is an error in this process's own log, and a new snapshot is made as soon as the log is served.
//!
//! Everything is checked as it streams in: checksums, the order of places, positions and take-overs. What is
//! damaged, cut short or missing is an error that names it; nothing is skipped.
//!
//! A reader may be slow, and what it is about to read may be cleaned up meanwhile. What it misses then is
//! behind a newer snapshot: it begins again with that one. If there is none, what is missing is lost.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tenure_core::queue::Rules;
use tokio::time::Instant;

use super::access::Access;
use super::error::Halt;
use super::frame::{Digest, Frame, Header, Kind};
use super::origin::{self, Form};
use super::policy::Growth;
use super::reached::Reached;
use super::segment::{self, Link};
use super::snapshot::{self, Listing, Published};
use super::{Error, Machine, Position, objects};
use crate::requests::Chain;

/// How often a reader may be overtaken by clean-up. Each time a whole new snapshot was written.
const RESTARTS_MAX: usize = 10;

/// After how many frames others get a turn on this thread.
const FRAMES_PER_TURN: u64 = 64;

/// How many digests are remembered. A frame names a state that its writer had applied when it was sealed; so many
/// commits are never under way at once.
const DIGESTS_MAX: usize = 64;

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
    /// By which the last frame's records were applied.
    pub(crate) rules: Rules,
    pub(crate) snapshot: Option<Published>,
    pub(crate) snapshot_bytes: u64,
    /// The log behind the snapshot.
    pub(crate) growth: Growth,
    /// Objects: see [`snapshot::Manifest`].
    pub(crate) swept: u64,
    pub(crate) kept: Vec<u64>,
    /// Files: the chain, and what was read in the last of it.
    pub(crate) chain: Vec<Link>,
    pub(crate) last: Bytes,
    /// Files: the last place that was found in them, whether or not the snapshot has it too.
    pub(crate) filed: u64,
    /// The names of snapshots that should have been used, and are damaged.
    pub(crate) damaged: Vec<String>,
    /// A snapshot was published since.
    pub(crate) is_mended: bool,
}

/// Takes what is read, in order.
pub(crate) struct Replay<'a, M> {
    pub(crate) machine: &'a mut M,
    pub(crate) tail: Tail,
    /// The last place that is wanted.
    pub(crate) until: u64,
    /// How far the log was known to reach before it was read.
    pub(crate) reached: Option<Reached>,
    /// Without that: whether there was a log before it was read, so that it cannot be empty.
    is_begun: bool,
    progress: Progress,
    report: &'a mut (dyn FnMut(Progress) + Send),
    started: Instant,
    frames: u64,
    /// What the machine came to at the last places.
    digests: VecDeque<(u64, Digest)>,
}

impl<'a, M: Machine> Replay<'a, M> {
    pub(crate) fn new(machine: &'a mut M, report: &'a mut (dyn FnMut(Progress) + Send)) -> Self {
        Self {
            machine,
            tail: Tail::default(),
            until: u64::MAX,
            reached: None,
            is_begun: false,
            progress: Progress::default(),
            report,
            started: Instant::now(),
            frames: 0,
            digests: VecDeque::new(),
        }
    }

    /// Reads everything there is.
    pub(crate) async fn run(&mut self, access: &Access, form: Form) -> Result<(), Error> {
        for _ in 0..RESTARTS_MAX {
            // Before the log, which only grows.
            self.reached = Reached::read(access).await?;
            self.is_begun = self.reached.is_none() && access.is_there(access.keys.begun()).await?;
            let listing = Listing::read(access).await?;
            let usable = listing.until(self.until);
            let newest = usable.last().cloned();
            let halt = match self.attempt(access, form, usable).await {
                Ok(()) => return Ok(()),
                Err(halt) if halt.is_damage() => halt,
                Err(Halt::Failed(error)) => return Err(error),
                Err(halt) => halt,
            };
            let now = Listing::read(access).await?;
            if now.until(self.until).last() <= newest.as_ref() {
                return Err(match halt {
                    Halt::Failed(error) => error,
                    Halt::Missing(missing) => self.lost(&now, &missing),
                });
            }
            tracing::info!(%halt, "there is a newer snapshot; starting again");
        }
        Err(Error::corrupt(
            &access.keys.snapshots(),
            "new snapshots come faster than they can be read",
        ))
    }

    /// Begins with the newest of some snapshots, in order, that is whole.
    async fn attempt(
        &mut self,
        access: &Access,
        form: Form,
        usable: &[Published],
    ) -> Result<(), Halt> {
        let mut first_damage: Option<Halt> = None;
        let mut damaged = Vec::new();
        for snapshot in usable.iter().rev().map(Some).chain([None]) {
            match self.begin_with(access, snapshot).await {
                Ok(()) => {}
                Err(halt) if !halt.is_damage() => return Err(halt),
                Err(halt) => {
                    // What is missing may have been cleaned up behind a newer snapshot.
                    let now = Listing::read(access).await?;
                    if now.until(self.until).last() > usable.last() {
                        return Err(halt);
                    }
                    damaged.extend(snapshot.map(|snapshot| snapshot.name.clone()));
                    first_damage.get_or_insert(halt);
                    continue;
                }
            }
            let read = match self.go_on(access, form).await {
                Ok(()) => self.is_whole(access, form, usable.last()).await,
                Err(halt) => Err(halt),
            };
            return match (read, first_damage) {
                (Ok(()), None) => Ok(()),
                (Ok(()), Some(damage)) => {
                    let (namespace, place) = (access.keys.queue(), self.tail.seq);
                    tracing::error!(
                        queue = %namespace, %place, %damage,
                        "a snapshot is damaged: recovered from the previous one and the log, and nothing is lost; \
                         check the storage, and verify the log"
                    );
                    self.tail.damaged = damaged;
                    Ok(())
                }
                (Err(halt), None) => Err(halt),
                // A store that fails now may have it all a moment later.
                (Err(halt), Some(_)) if !halt.is_damage() => Err(halt),
                // What the older snapshot lacks says nothing of what happened.
                (Err(_), Some(damage)) => Err(damage),
            };
        }
        match first_damage {
            Some(damage) => Err(damage),
            None => Ok(()),
        }
    }

    /// Whether the log, read to its end, has all that it is known to have had.
    async fn is_whole(
        &mut self,
        access: &Access,
        form: Form,
        newest: Option<&Published>,
    ) -> Result<(), Halt> {
        let last = self.tail.seq;
        if let Some(newest) = newest.filter(|newest| newest.seq > last) {
            let what = format!(
                "it is missing, but the snapshot {} contains it",
                newest.name
            );
            return Err(Error::corrupt(&access.keys.log_object(last + 1), what).into());
        }
        if self.until != u64::MAX {
            return Ok(());
        }
        // A leader notes that there is a log behind its first frame, so one without any frame has lost them all.
        if last == 0 && self.is_begun {
            return Err(origin::all_lost(&access.keys, "all of its commits are missing").into());
        }
        // Without the note people have said that the log is to be taken as it is.
        let Some(reached) = &self.reached else {
            return Ok(());
        };
        reached.check(access, last)?;
        match &self.tail.snapshot {
            Some(snapshot) if snapshot.seq == last => {
                leads_to(access, form, &self.tail, snapshot, reached).await
            }
            _ => Ok(()),
        }
    }

    /// Something is missing, and no newer snapshot makes up for it.
    fn lost(&self, listing: &Listing, missing: &str) -> Error {
        match listing.published.first() {
            Some(oldest) if oldest.seq > self.until => Error::invalid(
                format!(
                    "index {} can no longer be rebuilt: what came before the snapshot at index {} was cleaned up",
                    self.until, oldest.seq
                ),
                "use that index, or a later one",
            ),
            _ => Error::corrupt(&missing, "it is missing"),
        }
    }

    async fn begin_with(
        &mut self,
        access: &Access,
        snapshot: Option<&Published>,
    ) -> Result<(), Halt> {
        self.machine.reset();
        self.machine.set_rules(Rules::FIRST);
        self.tail = Tail::default();
        self.digests.clear();
        self.progress = Progress::default();
        match snapshot {
            Some(snapshot) => self.restore(access, snapshot).await,
            None => Ok(()),
        }
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
            rules: manifest.header.rules,
            snapshot: Some(newest.clone()),
            snapshot_bytes: bytes,
            swept: contents.swept,
            kept: contents.kept,
            ..Tail::default()
        };
        self.machine.set_rules(manifest.header.rules);
        self.applied();
        Ok(())
    }

    async fn segments(&mut self, access: &Access) -> Result<(), Halt> {
        let folder = access.files.as_ref();
        let folder = folder.expect("the origin was checked against the store");
        let (blocks, from) = (folder.blocks(), self.tail.seq + 1);
        let chain = {
            let folder = folder.clone();
            let chain = async move { segment::chain(&*folder, from).await };
            access.runtime.blocking(blocks, chain).await?
        };
        if chain.is_empty() && self.tail.snapshot.is_some() {
            return Err(Halt::Missing(segment::location(&**folder, "*")));
        }
        // The next is read while this one is applied.
        let mut contents = stream::iter(chain.clone())
            .map(|link| {
                let folder = folder.clone();
                access.runtime.blocking(blocks, async move {
                    let read = segment::read(folder, &link).await;
                    read.map(|read| (link, read))
                })
            })
            .buffered(2);
        while let Some(read) = contents.next().await {
            let (link, read) = read?;
            for frame in &read.frames {
                self.tail.filed = self.tail.filed.max(frame.header.seq);
                if (from..=self.until).contains(&frame.header.seq) {
                    let location = || segment::location(&**folder, link.name);
                    self.frame(frame, location).await?;
                }
            }
            self.tail.last = read.bytes;
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
                "index {} with record {} follows, but index {} with record {next} was expected",
                header.seq,
                header.position,
                tail.seq + 1,
            );
            return Err(Error::corrupt(&location(), what));
        }
        if header.takeover < tail.takeover {
            let what = format!(
                "takeover {} at index {} follows takeover {}",
                header.takeover, header.seq, tail.takeover
            );
            return Err(Error::corrupt(&location(), what));
        }
        self.check_rules(header, &location)?;
        self.compare(header, &location)?;
        let tail = &mut self.tail;
        tail.seq = header.seq;
        tail.takeover = header.takeover;
        tail.growth.bytes += frame.body().len() as u64;
        match header.kind {
            Kind::Commit => {
                for record in frame.lines() {
                    tail.position = tail.position.next();
                    self.machine
                        .replay(tail.position, record)
                        .map_err(|error| Error::corrupt(&location(), Chain(&error).to_string()))?;
                }
            }
            Kind::Term => {
                tail.kept.push(header.seq);
                // From here on its leader applied what it wrote by these.
                tail.rules = header.rules;
                self.machine.set_rules(header.rules);
            }
            Kind::Segment => {}
            Kind::Part | Kind::Manifest => {
                return Err(Error::corrupt(
                    &location(),
                    "a part of a snapshot is in the log",
                ));
            }
        }
        self.applied();
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

/// Whether the log itself has the place of the newest snapshot. Nothing was found behind that, and the snapshot hides
/// what is missing before it: were the log's end lost, its end would be the snapshot's. Clean-up never takes that
/// place.
async fn leads_to(
    access: &Access,
    form: Form,
    tail: &Tail,
    snapshot: &Published,
    reached: &Reached,
) -> Result<(), Halt> {
    let last = match form {
        Form::Objects => {
            let key = access.keys.log_object(snapshot.seq);
            if access.get(&key).await?.is_some() {
                return Ok(());
            }
            let what = format!(
                "it is missing, but the snapshot {} contains it",
                snapshot.name
            );
            return Err(Error::corrupt(&key, what).into());
        }
        Form::Segments => tail.filed,
    };
    if last >= snapshot.seq {
        return Ok(());
    }
    reached.check(access, last)?;
    let folder = access.files.as_deref();
    let name = tail.chain.last().map(|link| link.name.to_string());
    let location = folder.zip(name.as_ref());
    let location = location.map_or_else(
        || access.keys.segments().to_string(),
        |(folder, name)| segment::location(folder, name),
    );
    let what = format!(
        "it is missing or cut short: the log ends at index {last}, but the snapshot {} contains index {}",
        snapshot.name, snapshot.seq
    );
    Err(Error::corrupt(&location, what).into())
}

impl<M: Machine> Replay<'_, M> {
    /// Rules change where a leader takes over, and never back.
    fn check_rules(&self, header: &Header, location: &impl Fn() -> String) -> Result<(), Error> {
        let (rules, before) = (header.rules, self.tail.rules);
        if rules > self.machine.rules_max() {
            let what = format!("it follows rules {rules}");
            return Err(Error::newer(&location(), what));
        }
        let fits = match header.kind {
            Kind::Term => rules >= before,
            _ => rules == before,
        };
        if !fits {
            let what = format!(
                "it follows rules {rules}, but what comes before it follows rules {before}"
            );
            return Err(Error::corrupt(&location(), what));
        }
        Ok(())
    }

    /// Whether the machine came to what its leader had, as far as the frame says.
    fn compare(&self, header: &Header, location: &impl Fn() -> String) -> Result<(), Error> {
        let Some(applied) = header.applied else {
            return Ok(());
        };
        let place = applied.seq;
        if place >= header.seq {
            let what = format!("it has a digest of the state at index {place}, which comes later");
            return Err(Error::corrupt(&location(), what));
        }
        // Places before the snapshot are not among them.
        let ours = self.digests.iter().rev().find(|ours| ours.0 == place);
        match ours {
            Some(&(_, digest)) if digest != applied.digest => Err(Error::Diverged {
                place,
                location: location(),
            }),
            _ => Ok(()),
        }
    }

    /// Remembers what the machine has come to.
    fn applied(&mut self) {
        if let Some(digest) = self.machine.digest() {
            if self.digests.len() >= DIGESTS_MAX {
                self.digests.pop_front();
            }
            self.digests.push_back((self.tail.seq, Digest(digest)));
        }
    }
}
