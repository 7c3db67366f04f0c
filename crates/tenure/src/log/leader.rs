//! The log as its leader has it: what was committed, in order, and the right to go on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::Namespace;
use tenure_core::queue::Rules;
use tenure_store::{AppendFolder, Store};

use super::access::{Access, Pause};
use super::appender::{Appended, Appender, Target};
use super::cleanup::Remains;
use super::frame::{Applied, Cursor, Digest, Lines, Previous, check_line};
use super::origin::{Form, Origin, Ownership, note_begun};
use super::policy::Growth;
use super::reached::Reached;
use super::recovery::{Progress, Replay, Tail};
use super::segment::{Fence, Last, Name, SegmentWriter};
use super::{Config, Error, Machine, Owner, Position, objects};
use crate::Runtime;
use crate::runtime::HOST;

/// A record that can be committed: one line, without zero bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record(Bytes);

impl Record {
    /// Checks a record. It is opaque to the log, but for being a line: JSON always is.
    pub fn new(line: impl Into<Bytes>) -> Result<Self, Error> {
        let line = line.into();
        check_line(&line)?;
        Ok(Self(line))
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl AsRef<[u8]> for Record {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The log of a namespace's queue, open for its one leader.
///
/// Every commit either is done, or is certainly not, or ends the log: see [`Error`]. A log that has ended, or
/// whose [`commit`](Log::commit) was dropped half way, commits nothing any more; take over anew.
#[derive(Debug)]
pub struct Log {
    access: Arc<Access>,
    ownership: Ownership,
    /// Where the next frame goes.
    next: Cursor,
    tail: Tail,
    /// Files: where the log ends in the last of them.
    end: u64,
    /// Files: the last one that is noted to be in the log.
    noted: Option<Name>,
    /// Gone while a commit is under way, and for good when it was dropped half way, or another part commits.
    appender: Option<Box<Appender>>,
    applied: LastApplied,
}

/// What the machine came to last, for the frames to come. The writer sets it, the appender reads it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastApplied(Arc<Mutex<Option<Applied>>>);

impl LastApplied {
    pub(crate) fn get(&self) -> Option<Applied> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, applied: Applied) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(applied);
    }
}

/// What was committed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The place in the log.
    pub seq: u64,
    /// The number of the first record; the others follow it.
    pub first: Position,
    /// The bytes that were written.
    pub bytes: u64,
}

impl Log {
    /// Takes the log over for `owner`: fences off the leader before, and gives the machine everything that
    /// was ever committed.
    pub async fn take_over<M: Machine>(
        store: Arc<dyn Store>,
        namespace: &Namespace,
        owner: Owner,
        config: Config,
        machine: &mut M,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<Self, Error> {
        Self::take_over_on(&HOST, store, namespace, owner, config, machine, progress).await
    }

    /// The same, with what the process of the owner runs on.
    pub async fn take_over_on<M: Machine>(
        runtime: &Runtime,
        store: Arc<dyn Store>,
        namespace: &Namespace,
        owner: Owner,
        config: Config,
        machine: &mut M,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<Self, Error> {
        config.check()?;
        let access = Access::on(runtime, store, namespace, config);
        let mut replay = Replay::new(machine, &mut progress);
        let wanted = access.config.rules_max.min(replay.machine.rules_max());
        // The origin before the log. With files it is the fence: a leader that read first could miss what the one before
        // it still acknowledges. With objects the fence is the term record, which goes to the end that was read.
        let ownership = Ownership::take(&access, &owner, wanted).await?;
        let origin = &ownership.origin;
        replay.run(&access, origin.form).await?;
        // A later leader has written already. Our term record would be behind its own, with a lower number.
        if replay.tail.takeover >= origin.takeover {
            return Err(Error::Fenced);
        }
        let next = Cursor {
            seq: replay.tail.seq + 1,
            position: replay.tail.position.next(),
            takeover: origin.takeover,
            term: origin.term,
            incarnation: origin.incarnation,
            number: 0,
            rules: origin.rules.max(replay.tail.rules),
        };
        let mut log = Self {
            access,
            ownership,
            next,
            tail: Tail::default(),
            end: 0,
            noted: None,
            appender: None,
            applied: LastApplied::default(),
        };
        log.begin(&mut replay).await?;
        Ok(log)
    }

    /// Writes the term record, behind which the log is ours.
    async fn begin<M: Machine>(&mut self, replay: &mut Replay<'_, M>) -> Result<(), Error> {
        let (cursor, target) = match self.access.files.clone() {
            Some(folder) if self.form() == Form::Segments => {
                let file = self.begin_file(folder, replay).await?;
                (self.next, Target::Segments(Box::new(file)))
            }
            _ => {
                let cursor = self.begin_objects(replay).await?;
                (cursor, Target::Objects(self.access.clone()))
            }
        };
        self.tail = std::mem::take(&mut replay.tail);
        self.tail.last = Bytes::new();
        self.tail.seq = cursor.seq;
        self.next = Cursor {
            seq: cursor.seq + 1,
            number: 1,
            ..cursor
        };
        let appender = Appender::new(self.next, self.applied.clone(), target);
        self.appender = Some(Box::new(appender));
        // As every replay of the term record will do.
        replay.machine.set_rules(cursor.rules);
        self.was_applied(cursor.seq, replay.machine.digest());
        // From here on nobody leaves our first frame out; and nothing was acknowledged behind it yet.
        let patience = self.access.config.patience;
        self.note(false, Pause::new(patience)).await?;
        note_begun(&self.access).await
    }

    async fn begin_file<M: Machine>(
        &mut self,
        folder: Arc<dyn AppendFolder>,
        replay: &mut Replay<'_, M>,
    ) -> Result<SegmentWriter, Error> {
        let fence = Fence {
            key: self.access.keys.origin(),
            value: self.ownership.value.clone(),
        };
        let (blocks, last) = (folder.blocks(), last_file(replay));
        let bytes_max = self.access.config.segment_bytes_max;
        let begin = SegmentWriter::begin(folder, fence, self.next, last, bytes_max, self.about());
        let (mut file, before) = self.access.runtime.blocking(blocks, begin).await?;
        // It may go on from a copy.
        if let (Some(link), Some((name, end))) = (replay.tail.chain.last_mut(), before) {
            (link.name, link.end) = (name, Some(end));
        }
        replay.tail.chain.extend(file.made());
        self.end = file.end();
        Ok(file)
    }

    async fn begin_objects<M: Machine>(&self, replay: &mut Replay<'_, M>) -> Result<Cursor, Error> {
        let lines = self.about();
        let cursor = objects::take_place(&self.access, replay, self.next, &lines).await?;
        replay.tail.kept.push(cursor.seq);
        Ok(cursor)
    }

    /// Notes how far the log reaches.
    async fn note(&mut self, closed: bool, pause: Pause) -> Result<(), Error> {
        let last = self.tail.chain.last().map(|link| link.name);
        let file = last.map(|name| Previous::from((name, self.end)));
        let (place, position) = (self.next.seq - 1, self.position());
        let reached = Reached::new(self.takeover(), place, position, closed, file);
        reached.note(&self.access, pause).await?;
        self.noted = last;
        Ok(())
    }

    /// The machine has applied everything up to a place, and says what it came to.
    pub(crate) fn was_applied(&mut self, seq: u64, digest: Option<u64>) {
        // Those who know the first rules only do not look for it.
        if let Some(digest) = digest.filter(|_| !self.rules().are_first()) {
            let digest = Digest(digest);
            self.applied.set(Applied { seq, digest });
        }
    }

    /// What a term record says to people.
    fn about(&self) -> Vec<String> {
        let lineage = self.ownership.origin.lineage;
        vec![format!("{{\"lineage\":\"{lineage}\"}}")]
    }

    /// Commits records together: one write. When this returns, they are durable and in every later replay.
    ///
    /// An error that [is not applied](Error::is_not_applied) leaves the log as it was; any other ends it.
    pub async fn commit(&mut self, records: &[Record]) -> Result<Committed, Error> {
        let lines = Lines::of(records);
        self.check_batch(&lines)?;
        let mut appender = self.appender.take().ok_or(Error::Stopped)?;
        let blocks = appender.blocks();
        let commit = async move {
            let result = appender.commit(lines).await;
            (appender, result)
        };
        let (appender, result) = if blocks {
            self.access.runtime.blocking(blocks, commit).await
        } else {
            commit.await
        };
        // It says itself whether it goes on.
        self.appender = Some(appender);
        let committed = self.appended(result?);
        self.note_file().await;
        Ok(committed)
    }

    /// What commits, for the [`Committer`](super::committer::Committer), which [tells](Log::appended) of it. The log
    /// itself commits nothing any more.
    pub(crate) fn take_appender(&mut self) -> Option<Box<Appender>> {
        self.appender.take()
    }

    /// The next commit, in order, was appended.
    pub(crate) fn appended(&mut self, appended: Appended) -> Committed {
        let committed = appended.committed;
        self.next.seq = committed.seq + 1;
        self.next.position = Position(committed.first.0 + appended.records);
        self.tail.chain.extend(appended.made);
        self.end = appended.end;
        self.tail.growth += Growth {
            bytes: committed.bytes,
            objects: u64::from(self.form() == Form::Objects),
        };
        committed
    }

    /// Notes that the log goes on in another file, if it does since the last time. To be done before anything in it
    /// is acknowledged.
    pub(crate) async fn note_file(&mut self) {
        let last = self.tail.chain.last().map(|link| link.name);
        if last == self.noted {
            return;
        }
        // Once: what is committed is durable without it, and its callers wait.
        if let Err(error) = self.note(false, Pause::new(Duration::ZERO)).await {
            let error = crate::requests::Chain(&error);
            tracing::warn!(
                %error,
                "could not record that the log continues in another file; trying again with the next commit; \
                 until then the loss of that file would go unnoticed"
            );
        }
    }

    /// Notes where the log ends: nothing was committed since, and nothing will be.
    pub(crate) async fn close(&mut self) {
        let patience = self.access.config.stop_patience;
        let note = self.note(true, Pause::new(patience));
        let error = match tokio::time::timeout(patience, note).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => crate::requests::Chain(&error).to_string(),
            Err(_) => "there was no answer in time".to_owned(),
        };
        // The next leader takes the log as if this one had crashed.
        tracing::info!(%error, "could not record where the log ends");
    }

    /// Whether a snapshot that should have been used is damaged, and none was published since.
    pub(crate) fn has_damaged_snapshot(&self) -> bool {
        !self.tail.damaged.is_empty() && !self.tail.is_mended
    }

    fn check_batch(&self, records: &Lines) -> Result<(), Error> {
        let (count, bytes) = (records.count(), records.bytes());
        let max = self.access.config.batch_bytes_max;
        if count == 0 || bytes > max {
            return Err(Error::invalid(
                format!("{count} records of {bytes} bytes cannot be committed together"),
                format!("commit at least one, and at most {max} bytes"),
            ));
        }
        Ok(())
    }

    /// How the log is kept.
    #[must_use]
    pub fn form(&self) -> Form {
        self.ownership.origin.form
    }

    /// Which take-over of the log this is.
    #[must_use]
    pub fn takeover(&self) -> u64 {
        self.ownership.origin.takeover
    }

    /// The rules by which its records are applied.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.next.rules
    }

    /// The last record that was committed.
    #[must_use]
    pub fn position(&self) -> Position {
        Position(self.next.position.0 - 1)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.access.config
    }

    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// How far the log has grown behind the last snapshot.
    pub(crate) fn growth(&self) -> Growth {
        self.tail.growth
    }

    /// How large the last snapshot is.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        self.tail.snapshot_bytes
    }

    /// What a snapshot of the present state is written at, and what there is to clean up behind it.
    pub(crate) fn base(&self) -> (Cursor, Remains) {
        let cursor = Cursor {
            seq: self.next.seq - 1,
            position: self.position(),
            ..self.next
        };
        let remains = Remains {
            ownership: self.ownership.clone(),
            swept: self.tail.swept,
            kept: self.tail.kept.clone(),
            chain: self.tail.chain.clone(),
            damaged: self.tail.damaged.clone(),
        };
        (cursor, remains)
    }

    /// A snapshot was published, of the log as it was when it had grown so far.
    pub(crate) fn published(&mut self, snapshot_bytes: u64, growth: Growth) {
        self.tail.snapshot_bytes = snapshot_bytes;
        self.tail.is_mended = true;
        self.tail.growth -= growth;
    }

    /// Everything up to `swept` was cleaned up.
    pub(crate) fn swept(&mut self, swept: u64) {
        let tail = &mut self.tail;
        tail.swept = swept;
        tail.kept.retain(|&seq| seq > swept);
        // The last link that begins at or before the next place still holds it.
        let needed = tail.chain.partition_point(|link| link.first <= swept + 1);
        tail.chain.drain(..needed.saturating_sub(1));
    }
}

/// The last file that was read, and whether the disk has all of it for certain.
fn last_file<M: Machine>(replay: &Replay<'_, M>) -> Option<Last> {
    let name = replay.tail.chain.last()?.name;
    let bytes = replay.tail.last.clone();
    let end = bytes.len() as u64;
    let reached = replay.reached.as_ref();
    let is_durable = reached.is_some_and(|reached| reached.is_durable(&name.to_string(), end));
    Some(Last {
        name,
        bytes,
        is_durable,
    })
}

/// Gives the machine everything that is in the log now, without taking it over. A leader may go on writing
/// meanwhile.
pub async fn replay<M: Machine>(
    store: Arc<dyn Store>,
    namespace: &Namespace,
    config: Config,
    machine: &mut M,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<Position, Error> {
    config.check()?;
    let access = Access::new(store, namespace, config);
    let Some(origin) = Origin::read(&access).await? else {
        machine.reset();
        return Ok(Position(0));
    };
    let mut replay = Replay::new(machine, &mut progress);
    replay.run(&access, origin.form).await?;
    Ok(replay.tail.position)
}

/// The newest rules in the log; `None` if there is none.
pub(crate) async fn rules(
    store: Arc<dyn Store>,
    namespace: &Namespace,
    config: Config,
) -> Result<Option<Rules>, Error> {
    let access = Access::new(store, namespace, config);
    let origin = Origin::read(&access).await?;
    Ok(origin.map(|origin| origin.rules))
}
