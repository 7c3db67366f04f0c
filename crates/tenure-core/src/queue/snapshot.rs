//! Snapshots: the whole state as lines of JSON, taken while commands go on.
//!
//! [`Queue::begin_snapshot`] fixes a moment; [`Queue::snapshot_chunk`] then gives the state of that moment
//! in pieces of about the size asked for, a millisecond of work or so each, between which commands may be
//! applied. A job that changes before its line was written leaves its old line behind (copy on write), so
//! a snapshot costs no second copy of the state, only of what changes while it is taken. What stands before
//! the jobs is copied when the snapshot is begun, without the payloads, and is given in pieces too: no piece
//! is more than one line larger than was asked for, however much there is. Jobs stand in
//! the order of the log: two snapshots can be compared line by line.
//!
//! The order of the log is a merge of all shelves. Its heads are found once, so many shelves with each piece,
//! and kept: a piece costs what it writes, not the number of shelves. That is right while jobs move between
//! shelves, because a job that moves before its line was given leaves its old line behind: what is still to
//! be read from a shelf has stood there since the snapshot was begun.
//!
//! ```text
//! {"header":{"format":1,"now":…,"sequence":…,"claims":…,"finishes":…,"revision":…,"jobs":2,"rules":2}}
//! {"settings":{…}}
//! {"queue":{"name":"default","paused":true,"options":{…},"bucket":0}}      queues with anything set
//! {"schedule":{"name":…,"spec":{…},"revision":…,"next":…,"last":…}}
//! {"job":[{"sequence":1,"id":…,…},{"content":…}]}                 as shown, and what is not shown
//! {"job":[{"sequence":4,"id":…,…},{"content":…,"token":…}]}
//! {"remnant":{"id":…,"content":…,"state":…,…}}                          ids of jobs that were forgotten early
//! {"end":{"jobs":2}}                                               without it the snapshot is not whole
//! ```
//!
//! [`Restore`] takes the same bytes, however they were cut, and rebuilds every index. It refuses what
//! does not fit together, naming the line; whether bytes were damaged is for the log's checksums to say.

mod restore;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::bucket::Bucket;
use super::command::stored_settings;
use super::end::{LastEnd, Said};
use super::kept::Hidden;
use super::machine::Queue;
use super::remnants::{Ceilings, Remnant};
use super::rules::Rules;
use super::schedule::Schedule;
use super::set_time::SettingBack;
use super::shelves::Shelf;
use super::slab::Handle;
use super::view::PageStart;
use super::{Job, Payload, QueueOptions, Settings, State};
use crate::{JobId, JobType, QueueName};

pub use restore::{Restore, SnapshotError};

const FORMAT: u32 = 1;

/// Most jobs fit.
const LINE_BYTES: usize = 512;

/// How many shelves are looked at with one piece, to find the heads of the merge.
const SHELVES_PER_PIECE: usize = 1_024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Header(Header),
    Settings(#[serde(serialize_with = "stored_settings")] Settings),
    Queue(QueueLine),
    Schedule(Box<Schedule>),
    Job(Box<Job>, Hidden),
    Remnant(RemnantLine),
    End(End),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: u32,
    now: u64,
    sequence: u64,
    claims: u64,
    finishes: u64,
    revision: u64,
    jobs: u64,
    /// By which commands are applied from here on.
    #[serde(default, skip_serializing_if = "Rules::are_first")]
    rules: Rules,
    #[serde(default, skip_serializing_if = "is_zero")]
    remnants: u64,
    /// How many jobs of the queue `default` ever completed: none under older rules.
    #[serde(default, skip_serializing_if = "is_zero")]
    completed: u64,
    /// Time was set back, and not every job was looked at since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    setting_back: Option<SettingBack>,
}

/// What is left of a job that was forgotten early. They stand in the order in which they came.
#[derive(Debug, Serialize, Deserialize)]
struct RemnantLine {
    id: JobId,
    content: u64,
    state: State,
    changed_at: u64,
    queue: QueueName,
    #[serde(rename = "type")]
    job_type: JobType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<LastEnd>,
    #[serde(default, skip_serializing_if = "Said::is_nothing")]
    said: Said,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Serialize, Deserialize)]
struct QueueLine {
    name: QueueName,
    paused: bool,
    options: QueueOptions,
    bucket: Bucket,
}

#[derive(Debug, Serialize, Deserialize)]
struct End {
    jobs: u64,
}

/// A snapshot that is being taken.
#[derive(Debug)]
pub(crate) struct Pending {
    /// What stands before the jobs and was not given out yet.
    head: std::vec::IntoIter<Line>,
    walk: Walk,
    /// The last job whose line was given out.
    place: u64,
    /// The last job that is part of the snapshot.
    last: u64,
    /// The old lines of jobs that changed before theirs was given out.
    images: BTreeMap<u64, Vec<u8>>,
    /// How many lines are still to come.
    left: u64,
    jobs: u64,
    remnants: PendingRemnants,
}

/// The remnants of a snapshot that is being taken: they follow the jobs.
#[derive(Debug)]
struct PendingRemnants {
    /// The last whose line was given out.
    place: u64,
    /// The last that is part of the snapshot. Those that come later were jobs when it was begun.
    last: u64,
    /// The lines of those that went before theirs was given out.
    images: BTreeMap<u64, Vec<u8>>,
    /// How many lines are still to come.
    left: u64,
    /// What held for them when it was begun.
    ceilings: Ceilings,
}

/// Where the merge of all shelves stands.
#[derive(Debug, Default)]
struct Walk {
    /// The last shelf whose head was found.
    last: Option<Shelf>,
    /// All heads were found.
    is_complete: bool,
    /// For each shelf a place at or before that of its next job; the job may have moved since.
    heads: BinaryHeap<Reverse<(u64, Shelf)>>,
}

impl Queue {
    /// Starts a snapshot of the state as it is now. One that was under way is dropped.
    pub fn begin_snapshot(&mut self) {
        let jobs = self.jobs.len() as u64;
        let head: Vec<Line> = self.head().collect();
        self.snapshot = Some(Box::new(Pending {
            head: head.into_iter(),
            walk: Walk::default(),
            place: 0,
            last: self.sequence,
            images: BTreeMap::new(),
            left: jobs,
            jobs,
            remnants: PendingRemnants {
                place: 0,
                last: self.remnants.last(),
                images: BTreeMap::new(),
                left: self.remnants.len() as u64,
                ceilings: self.remnants.ceilings().clone(),
            },
        }));
    }

    /// The next piece: whole lines, and no more than one line above `bytes_max`. It may be empty. None once the
    /// snapshot is complete, and if none was begun.
    #[must_use]
    pub fn snapshot_chunk(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let bytes_max = bytes_max.max(1);
        let mut pending = self.snapshot.take()?;
        let mut out = Vec::new();
        while out.len() < bytes_max
            && let Some(line) = pending.head.next()
        {
            write_line(&line, &mut out);
        }
        if out.len() < bytes_max && !pending.walk.is_complete {
            self.find_heads(&mut pending.walk);
        }
        while out.len() < bytes_max && pending.walk.is_complete && pending.left > 0 {
            self.write_next(&mut pending, &mut out);
        }
        let is_behind_jobs =
            pending.head.len() == 0 && pending.walk.is_complete && pending.left == 0;
        if is_behind_jobs {
            self.remnants_chunk(&mut pending.remnants, bytes_max, &mut out);
        }
        if is_behind_jobs && pending.remnants.left == 0 {
            write_line(&Line::End(End { jobs: pending.jobs }), &mut out);
        } else {
            self.snapshot = Some(pending);
        }
        Some(out)
    }

    /// Finds the heads of some more shelves. Shelves that came since the snapshot was begun do no harm.
    fn find_heads(&self, walk: &mut Walk) {
        let mut found = 0;
        for (shelf, first) in self.shelves.firsts(walk.last).take(SHELVES_PER_PIECE) {
            walk.heads.push(Reverse((first, shelf)));
            walk.last = Some(shelf);
            found += 1;
        }
        walk.is_complete = found < SHELVES_PER_PIECE;
    }

    /// Writes the line of the next job in the order of the log: as it is, or as it was.
    fn write_next(&self, pending: &mut Pending, out: &mut Vec<u8>) {
        let current = self.next_on_shelves(pending);
        let image = pending
            .images
            .first_key_value()
            .map(|(&sequence, _)| sequence);
        let on_shelf = current.map(|(sequence, _)| sequence);
        let sequence = image
            .into_iter()
            .chain(on_shelf)
            .min()
            .expect("lines are left");
        if image == Some(sequence) {
            let (_, line) = pending.images.pop_first().expect("it was looked at");
            out.extend_from_slice(&line);
        } else if let Some((_, handle)) = current {
            self.write_job(handle, out);
        }
        pending.place = sequence;
        pending.left -= 1;
    }

    /// The next job that stands on a shelf now and is part of the snapshot. It may have an image.
    fn next_on_shelves(&self, pending: &mut Pending) -> Option<(u64, Handle)> {
        let heads = &mut pending.walk.heads;
        loop {
            let &Reverse((hint, shelf)) = heads.peek()?;
            let behind = (hint - 1).max(pending.place);
            match self.shelves.next_of(shelf, behind) {
                Some(sequence) if sequence == hint => {
                    let handle = self.orders[shelf.class as usize].get(sequence);
                    return Some((
                        sequence,
                        handle.expect("what is on a shelf is in its order"),
                    ));
                }
                Some(sequence) if sequence <= pending.last => {
                    heads.pop();
                    heads.push(Reverse((sequence, shelf)));
                }
                _ => drop(heads.pop()),
            }
        }
    }

    /// The next lines of remnants, which follow those of all jobs.
    fn remnants_chunk(&self, pending: &mut PendingRemnants, bytes_max: usize, out: &mut Vec<u8>) {
        let mut live = self.remnants.after(pending.place).peekable();
        while out.len() < bytes_max && pending.left > 0 {
            let image = pending.images.first_key_value().map(|(&number, _)| number);
            let current = live.peek().map(|&(number, _)| number);
            // One that is gone or has changed has an image, and one that has no image is there as it was.
            match (image, current) {
                (Some(number), current) if current.is_none_or(|current| number <= current) => {
                    live.next_if(|&(live, _)| live == number);
                    let (_, line) = pending.images.pop_first().expect("it was looked at");
                    out.extend_from_slice(&line);
                    pending.place = number;
                }
                _ => {
                    let (number, remnant) = live.next().expect("lines are left");
                    self.write_remnant(remnant, &pending.ceilings, out);
                    pending.place = number;
                }
            }
            pending.left -= 1;
        }
    }

    /// Before a remnant goes or changes: if it is part of a snapshot and its line is still to come, its line.
    pub(crate) fn keep_remnant_image(&mut self, number: u64) {
        let Some(mut pending) = self.snapshot.take() else {
            return;
        };
        let remnants = &mut pending.remnants;
        if number > remnants.place && number <= remnants.last {
            remnants.images.entry(number).or_insert_with(|| {
                let mut behind = self.remnants.after(number - 1);
                let (_, remnant) = behind.next().expect("it goes only now");
                let mut line = Vec::with_capacity(LINE_BYTES);
                self.write_remnant(remnant, &remnants.ceilings, &mut line);
                line
            });
        }
        self.snapshot = Some(pending);
    }

    fn write_remnant(&self, remnant: &Remnant, ceilings: &Ceilings, out: &mut Vec<u8>) {
        field(r#"{"remnant":{"id":"#, &remnant.id, out);
        field(r#","content":"#, &remnant.content, out);
        field(r#","state":"#, &remnant.class.state(), out);
        field(r#","changed_at":"#, &ceilings.ended_at(remnant), out);
        field(r#","queue":"#, self.queues.name(remnant.queue), out);
        field(r#","type":"#, self.types.name(remnant.job_type), out);
        optional(r#","result":"#, remnant.result.as_ref(), out);
        optional(r#","ended":"#, remnant.last_end, out);
        optional(r#","said":"#, remnant.said.if_any(), out);
        out.extend_from_slice(b"}}\n");
    }

    /// Drops the snapshot that is under way, if any.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// The whole state at once.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for line in self.head() {
            write_line(&line, &mut out);
        }
        for (_, handle) in self.all_from(PageStart::After(0)) {
            self.write_job(handle, &mut out);
        }
        for (_, remnant) in self.remnants.after(0) {
            self.write_remnant(remnant, self.remnants.ceilings(), &mut out);
        }
        write_line(
            &Line::End(End {
                jobs: self.jobs.len() as u64,
            }),
            &mut out,
        );
        out
    }

    /// Before a job changes: if it is part of a snapshot and its line is still to come, its line as it is.
    #[inline]
    pub(crate) fn keep_image(&mut self, handle: Handle) {
        if self.snapshot.is_some() {
            self.keep_image_of(handle);
        }
    }

    #[cold]
    fn keep_image_of(&mut self, handle: Handle) {
        let Some(mut pending) = self.snapshot.take() else {
            return;
        };
        let sequence = self.jobs[handle].sequence;
        let to_come = (
            Bound::Excluded(pending.place),
            Bound::Included(pending.last),
        );
        if std::ops::RangeBounds::contains(&to_come, &sequence) {
            pending.images.entry(sequence).or_insert_with(|| {
                let mut line = Vec::with_capacity(LINE_BYTES);
                self.write_job(handle, &mut line);
                line
            });
        }
        self.snapshot = Some(pending);
    }

    /// What stands before the jobs.
    fn head(&self) -> impl Iterator<Item = Line> {
        let header = Header {
            format: FORMAT,
            now: self.now,
            sequence: self.sequence,
            claims: self.claims,
            finishes: self.finishes,
            revision: self.revision,
            jobs: self.jobs.len() as u64,
            rules: self.rules,
            remnants: self.remnants.len() as u64,
            completed: self.completed,
            setting_back: self.setting_back,
        };
        let first = [Line::Header(header), Line::Settings(self.settings)];
        let queues = self.queues.iter().filter_map(|(name, _, queue)| {
            let is_set = queue.paused || queue.options != QueueOptions::default();
            is_set.then(|| {
                Line::Queue(QueueLine {
                    name: name.clone(),
                    paused: queue.paused,
                    options: queue.options,
                    bucket: queue.bucket,
                })
            })
        });
        // A payload is shared, not copied.
        let schedules = self.schedules.values();
        let schedules = schedules.map(|schedule| Line::Schedule(Box::new(schedule.clone())));
        first.into_iter().chain(queues).chain(schedules)
    }
}

/// What stands before a value, and the value.
pub(crate) fn field(before: &str, value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(before.as_bytes());
    serde_json::to_writer(out, value).expect("plain data, written to memory");
}

/// The same for what most jobs do not have.
pub(crate) fn optional(before: &str, value: Option<impl Serialize>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        field(before, &value, out);
    }
}

fn write_line(line: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(&mut *out, line).expect("plain data, written to memory");
    out.push(b'\n');
}
