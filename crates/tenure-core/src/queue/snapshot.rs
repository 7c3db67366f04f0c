//! Snapshots: the whole state as lines of JSON, taken while commands go on.
//!
//! [`Queue::begin_snapshot`] fixes a moment; [`Queue::snapshot_chunk`] then gives the state of that moment
//! in pieces of about the size asked for, a millisecond of work or so each, between which commands may be
//! applied. A job that changes before its line was written leaves its old line behind (copy on write), so
//! a snapshot costs no second copy of the state, only of what changes while it is taken. Jobs stand in
//! the order of the log: two snapshots can be compared line by line.
//!
//! ```text
//! {"header":{"format":1,"now":…,"sequence":…,"claims":…,"finishes":…,"revision":…,"jobs":2}}
//! {"settings":{…}}
//! {"queue":{"name":"default","paused":true,"options":{…},"bucket":0}}      queues with anything set
//! {"schedule":{"name":…,"spec":{…},"revision":…,"next":…,"last":…}}
//! {"job":[{"sequence":1,"id":…,…},{"content":…}]}                 as shown, and what is not shown
//! {"job":[{"sequence":4,"id":…,…},{"content":…,"token":…}]}
//! {"end":{"jobs":2}}                                               without it the snapshot is not whole
//! ```
//!
//! [`Restore`] takes the same bytes, however they were cut, and rebuilds every index. It refuses what
//! does not fit together, naming the line; whether bytes were damaged is for the log's checksums to say.

mod restore;

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::job::Token;
use super::limits::{Bucket, QueueOptions, Settings};
use super::machine::Queue;
use super::schedule::Schedule;
use super::shelves::Class;
use super::slab::Handle;
use super::view::JobView;
use crate::QueueName;

pub use restore::{Restore, SnapshotError};

const FORMAT: u32 = 1;

/// Most jobs fit.
const LINE_BYTES: usize = 512;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Header(Header),
    Settings(Settings),
    Queue(QueueLine),
    Schedule(Box<Schedule>),
    Job(Box<JobView>, Hidden),
    End(End),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    now: u64,
    sequence: u64,
    claims: u64,
    finishes: u64,
    revision: u64,
    jobs: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueLine {
    name: QueueName,
    paused: bool,
    options: QueueOptions,
    bucket: Bucket,
}

/// What is kept of a job but not shown.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hidden {
    content: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finish: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    jobs: u64,
}

/// A snapshot that is being taken.
#[derive(Debug)]
pub(crate) struct Pending {
    /// What stands before the jobs, until it was given out.
    head: Vec<u8>,
    /// The last job whose line was given out.
    place: u64,
    /// The last job that is part of the snapshot.
    last: u64,
    /// The old lines of jobs that changed before theirs was given out.
    images: BTreeMap<u64, Vec<u8>>,
    /// How many lines are still to come.
    left: u64,
    jobs: u64,
}

impl Queue {
    /// Starts a snapshot of the state as it is now. One that was under way is dropped.
    pub fn begin_snapshot(&mut self) {
        let mut head = Vec::new();
        self.write_head(&mut head);
        let jobs = self.jobs.len() as u64;
        self.snapshot = Some(Box::new(Pending {
            head,
            place: 0,
            last: self.sequence,
            images: BTreeMap::new(),
            left: jobs,
            jobs,
        }));
    }

    /// The next piece: whole lines, and no more than one line above `bytes_max`. None once the snapshot is
    /// complete, and if none was begun.
    #[must_use]
    pub fn snapshot_chunk(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let mut pending = self.snapshot.take()?;
        let mut out = std::mem::take(&mut pending.head);
        let mut live = self.shelves.after(pending.place, |_| true).peekable();
        while out.len() < bytes_max && pending.left > 0 {
            let image = pending
                .images
                .first_key_value()
                .map(|(&sequence, _)| sequence);
            let current = live.peek().map(|&(sequence, _)| sequence);
            let sequence = image
                .into_iter()
                .chain(current)
                .min()
                .expect("lines are left");
            if current == Some(sequence) {
                let (_, handle) = live.next().expect("it was peeked at");
                if image != Some(sequence) {
                    self.write_job(handle, &mut out);
                }
            }
            if image == Some(sequence) {
                let (_, line) = pending.images.pop_first().expect("it was looked at");
                out.extend_from_slice(&line);
            }
            pending.place = sequence;
            pending.left -= 1;
        }
        drop(live);
        if pending.left > 0 {
            self.snapshot = Some(pending);
        } else {
            write_line(&Line::End(End { jobs: pending.jobs }), &mut out);
        }
        Some(out)
    }

    /// Drops the snapshot that is under way, if any.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// The whole state at once.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_head(&mut out);
        for (_, handle) in self.shelves.after(0, |_| true) {
            self.write_job(handle, &mut out);
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

    fn write_head(&self, out: &mut Vec<u8>) {
        let header = Header {
            format: FORMAT,
            now: self.now,
            sequence: self.sequence,
            claims: self.claims,
            finishes: self.finishes,
            revision: self.revision,
            jobs: self.jobs.len() as u64,
        };
        write_line(&Line::Header(header), out);
        write_line(&Line::Settings(self.settings), out);
        for (name, _, queue) in self.queues.iter() {
            if queue.paused || queue.options != QueueOptions::default() {
                let line = QueueLine {
                    name: name.clone(),
                    paused: queue.paused,
                    options: queue.options,
                    bucket: queue.bucket,
                };
                write_line(&Line::Queue(line), out);
            }
        }
        for schedule in self.schedules.values() {
            write_line(&Line::Schedule(Box::new(schedule.clone())), out);
        }
    }

    /// Writes what [`Line::Job`] reads. There may be millions, so nothing is cloned and no key is looked at.
    fn write_job(&self, handle: Handle, out: &mut Vec<u8>) {
        let job = &self.jobs[handle];
        let is_blocked = job.class == Class::Blocked;
        field(r#"{"job":[{"sequence":"#, &job.sequence, out);
        field(r#","id":"#, &job.id, out);
        field(r#","queue":"#, self.queues.name(job.queue), out);
        field(r#","type":"#, self.types.name(job.job_type), out);
        field(r#","payload":"#, &job.payload, out);
        field(r#","state":"#, &job.class.state(), out);
        optional(r#","blocked":"#, is_blocked.then_some(true), out);
        field(r#","priority":"#, &job.priority, out);
        field(r#","attempt":"#, &job.attempt, out);
        field(r#","max_attempts":"#, &job.max_attempts, out);
        field(r#","created_at":"#, &job.created_at, out);
        field(r#","run_at":"#, &job.run_at, out);
        field(r#","changed_at":"#, &job.changed_at, out);
        if let Some(extra) = job.extra.as_deref() {
            optional(r#","unique_key":"#, extra.unique_key.as_ref(), out);
            optional(r#","group":"#, extra.group_key.as_ref(), out);
            optional(r#","backoff":"#, extra.backoff, out);
            if let Some(trace) = &extra.trace {
                field(r#","traceparent":"#, &trace.parent, out);
                optional(r#","tracestate":"#, trace.state.as_ref(), out);
            }
            optional(r#","error":"#, extra.error.as_ref(), out);
            optional(r#","result":"#, extra.result.as_ref(), out);
        }
        let running = job.running.as_deref();
        if let Some(running) = running {
            field(r#","worker":"#, &running.worker, out);
            field(r#","lease_ms":"#, &running.lease_ms, out);
            let is_requested = running.cancel_requested;
            optional(r#","cancel_requested":"#, is_requested.then_some(true), out);
        }
        field(r#"},{"content":"#, &job.content, out);
        optional(r#","finish":"#, (job.finish > 0).then_some(job.finish), out);
        optional(r#","token":"#, running.map(|running| running.token), out);
        out.extend_from_slice(b"}]}\n");
    }
}

/// What stands before a value, and the value.
fn field(before: &str, value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(before.as_bytes());
    serde_json::to_writer(out, value).expect("plain data, written to memory");
}

/// The same for what most jobs do not have.
fn optional(before: &str, value: Option<impl Serialize>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        field(before, &value, out);
    }
}

fn write_line(line: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(&mut *out, line).expect("plain data, written to memory");
    out.push(b'\n');
}
