//! Two states of a queue, job by job in the order of the log: either two snapshots, read as streams, or the states at
//! two places, rebuilt in one machine.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use tenure::core::queue::{Command, Filter, Job, PageStart, Queue, Restore};
use tenure::log::inspect::{Frames, Kind, Name, Stored};
use tenure::log::{Machine, Position, Record, Rules};
use tenure::queue::Unreadable;

/// How many bytes are read from the machine at once.
const CHUNK_BYTES: usize = 64 * 1024;
const PAGE_JOBS: usize = 500;

/// What comes before the jobs in a state: settings, queues and schedules, by name.
pub(super) type Head = BTreeMap<String, serde_json::Value>;

/// Two states.
pub(super) enum Pair {
    Snapshots([Lines; 2]),
    Places(Box<Both>),
}

impl Pair {
    pub(super) fn snapshots(stored: &Stored, names: [&Name; 2]) -> Self {
        Self::Snapshots(names.map(|name| Lines {
            frames: stored.frames(name),
            jobs: VecDeque::new(),
            head: Head::new(),
        }))
    }

    pub(super) async fn places(stored: &Stored, places: [u64; 2]) -> anyhow::Result<Self> {
        let mut both = Both::default();
        let [before, after] = places;
        stored
            .rebuild(&mut both, &[before, after], |place, both| {
                // From here on, the machine keeps the old line of each job that changes.
                if place == before {
                    both.queue.begin_snapshot();
                }
            })
            .await?;
        Ok(Self::Places(Box::new(both)))
    }

    /// The next job of the earlier state.
    pub(super) async fn before(&mut self) -> anyhow::Result<Option<Job>> {
        match self {
            Self::Snapshots([before, _]) => before.next().await,
            Self::Places(both) => both.before(),
        }
    }

    /// The next job of the later state.
    pub(super) async fn after(&mut self) -> anyhow::Result<Option<Job>> {
        match self {
            Self::Snapshots([_, after]) => after.next().await,
            Self::Places(both) => Ok(both.after()),
        }
    }

    /// What came before the jobs in both states. Called after all jobs were read.
    pub(super) fn heads(self) -> anyhow::Result<[Head; 2]> {
        match self {
            Self::Snapshots([before, after]) => Ok([before.head, after.head]),
            Self::Places(both) => both.heads(),
        }
    }
}

/// A snapshot, line by line.
pub(super) struct Lines {
    frames: Frames,
    jobs: VecDeque<Job>,
    head: Head,
}

impl Lines {
    async fn next(&mut self) -> anyhow::Result<Option<Job>> {
        while self.jobs.is_empty() {
            let Some(frame) = self.frames.next().await? else {
                return Ok(None);
            };
            if frame.kind == Kind::Part {
                for line in frame.lines() {
                    read(line, &mut self.jobs, &mut self.head)?;
                }
            }
        }
        Ok(self.jobs.pop_front())
    }
}

/// The parts of a snapshot's line that are used here.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Header(serde::de::IgnoredAny),
    Settings(serde_json::Value),
    Queue(serde_json::Value),
    Schedule(serde_json::Value),
    Job(Box<Job>, serde::de::IgnoredAny),
    Remnant(serde::de::IgnoredAny),
    End(serde::de::IgnoredAny),
}

fn read(line: &[u8], jobs: &mut VecDeque<Job>, head: &mut Head) -> anyhow::Result<()> {
    let named = |kind: &str, value: &serde_json::Value| {
        format!("{kind} {}", value["name"].as_str().unwrap_or_default())
    };
    match serde_json::from_slice(line)? {
        Line::Job(job, _) => jobs.push_back(*job),
        Line::Settings(value) => drop(head.insert("settings".to_owned(), value)),
        Line::Queue(value) => drop(head.insert(named("queue", &value), value)),
        Line::Schedule(value) => drop(head.insert(named("schedule", &value), value)),
        Line::Header(_) | Line::Remnant(_) | Line::End(_) => {}
    }
    Ok(())
}

/// A machine at the later place, which still has the lines of the earlier state.
pub(super) struct Both {
    queue: Queue,
    restore: Restore,
    jobs: VecDeque<Job>,
    head: Head,
    page: VecDeque<Job>,
    /// How far pages were read; `None` when there are no more.
    read: Option<u64>,
}

impl Default for Both {
    fn default() -> Self {
        Self {
            queue: Queue::new(0),
            restore: Restore::new(0),
            jobs: VecDeque::new(),
            head: Head::new(),
            page: VecDeque::new(),
            read: Some(0),
        }
    }
}

impl Both {
    fn before(&mut self) -> anyhow::Result<Option<Job>> {
        while self.jobs.is_empty() {
            let Some(chunk) = self.queue.snapshot_chunk(CHUNK_BYTES) else {
                return Ok(None);
            };
            for line in chunk
                .split(|&byte| byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                read(line, &mut self.jobs, &mut self.head)?;
            }
        }
        Ok(self.jobs.pop_front())
    }

    fn after(&mut self) -> Option<Job> {
        if self.page.is_empty() {
            let from = PageStart::After(self.read?);
            let page = self.queue.page(&Filter::default(), from, PAGE_JOBS);
            self.page.extend(page.jobs);
            self.read = page.next;
        }
        self.page.pop_front()
    }

    fn heads(mut self) -> anyhow::Result<[Head; 2]> {
        let mut after = Head::new();
        self.queue.begin_snapshot();
        // Jobs read along with the head, which are not needed.
        let mut jobs = VecDeque::new();
        while jobs.is_empty()
            && let Some(chunk) = self.queue.snapshot_chunk(1)
        {
            for line in chunk
                .split(|&byte| byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                read(line, &mut jobs, &mut after)?;
            }
        }
        Ok([self.head, after])
    }
}

impl Machine for Both {
    type Command = Record;
    type Answer = ();
    type Error = Unreadable;

    fn apply(&mut self, position: Position, record: Record) {
        let _ = self.replay(position, record.as_ref());
    }

    fn replay(&mut self, _: Position, record: &[u8]) -> Result<(), Unreadable> {
        let command = Command::from_record(record)?;
        let _ = self.queue.apply(command, &mut Vec::new());
        Ok(())
    }

    fn rules_max(&self) -> Rules {
        Rules::LATEST
    }

    fn set_rules(&mut self, rules: Rules) {
        self.queue.set_rules(rules);
    }

    fn digest(&self) -> Option<u64> {
        Some(self.queue.digest())
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn restore(&mut self, lines: &[u8]) -> Result<(), Unreadable> {
        Ok(self.restore.feed(lines)?)
    }

    fn restored(&mut self) -> Result<(), Unreadable> {
        let restore = std::mem::replace(&mut self.restore, Restore::new(0));
        self.queue = restore.finish()?;
        Ok(())
    }

    fn begin_snapshot(&mut self) {}

    fn snapshot_chunk(&mut self, _: usize) -> Option<bytes::Bytes> {
        None
    }
}
