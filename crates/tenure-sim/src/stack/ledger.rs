//! The log as the store has it, no matter who wrote it and what happened to the writer since: the truth that everyone
//! else is held to. What brokers delete or replay makes no difference here.

mod files;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::Deserialize;
use tenure::log::inspect::Kind;
use tenure::queue::{Followed, Position};
use tenure_core::election::Term;
use tenure_core::queue::{
    Action, Command, Event, Filter, Job, PageStart, Queue, QueueView, Rules, Schedule, Settings,
};
use tenure_core::{Incarnation, JobId, queue};
use tenure_store::Key;

use super::invariants::{
    applied_is_committed, claims_are_bounded, noted_is_committed, one_writer_per_term,
    places_are_taken_once, schedules_keep_their_slots,
};
use super::jobs::Jobs;
use super::store::is_in_log;
use crate::invariants::Violation;

/// Everything that was ever committed.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The production machine, given every record once and in order.
    pub(crate) queue: Queue,
    pub(crate) jobs: Jobs,
    pub(crate) snapshots: u64,
    pub(crate) takeovers: u64,
    /// Where the log is kept in files.
    files: files::Files,
    places: places_are_taken_once::Places,
    pub(crate) noted: noted_is_committed::Noted,
    /// The names of snapshots that were damaged on purpose.
    pub(crate) damaged: BTreeSet<String>,
    writers: one_writer_per_term::Writers,
    pub(crate) schedules: schedules_keep_their_slots::Schedules,
    /// Claims that ended at a number of bytes.
    pub(crate) claims_cut: u64,
    /// What came of each record, from the first.
    events: Vec<Vec<Event>>,
    /// What each job looked like after each record that touched it.
    views: BTreeMap<JobId, Vec<Job>>,
    /// Jobs of groups whose time has not come.
    delayed: BTreeSet<JobId>,
    /// The state that each process found when it took over last, and how many records there were.
    found: BTreeMap<Incarnation, (State, usize)>,
}

/// What a reader can see of a queue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct State {
    pub(crate) jobs: Vec<Job>,
    pub(crate) queues: Vec<QueueView>,
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) settings: Settings,
}

/// What of a frame's first line matters here.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) seq: u64,
    pub(crate) position: Position,
    pub(crate) takeover: u64,
    pub(crate) term: u64,
    pub(crate) incarnation: Incarnation,
    #[serde(default)]
    pub(crate) rules: Rules,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            queue: Queue::new(0),
            jobs: Jobs::default(),
            snapshots: 0,
            takeovers: 0,
            files: Default::default(),
            places: Default::default(),
            noted: Default::default(),
            damaged: BTreeSet::new(),
            writers: Default::default(),
            schedules: Default::default(),
            claims_cut: 0,
            events: Vec::new(),
            views: BTreeMap::new(),
            delayed: BTreeSet::new(),
            found: BTreeMap::new(),
        }
    }
}

impl Ledger {
    /// An object of the queue was written.
    pub(crate) fn written(&mut self, key: &Key, value: &Bytes) -> Result<(), Violation> {
        if key.name() == "manifest" {
            self.snapshots += 1;
        }
        if key.name() == "reached" {
            return self.noted.written(value, self.places.len());
        }
        if !is_in_log(key) {
            return Ok(());
        }
        let place = key.name().parse().expect("places are numbers");
        self.placed(place, value)
    }

    /// A frame is in the log.
    fn placed(&mut self, place: u64, value: &Bytes) -> Result<(), Violation> {
        if !self.places.take(place, value)? {
            return Ok(());
        }
        let (header, lines) = frame(value);
        self.writers.check(&header)?;
        match header.kind {
            Kind::Term => {
                self.takeovers += 1;
                self.queue.set_rules(header.rules);
                let state = State::of(&self.queue);
                self.found
                    .insert(header.incarnation, (state, self.events.len()));
                Ok(())
            }
            Kind::Segment => Ok(()),
            _ => self.commit(&header, &lines),
        }
    }

    fn commit(&mut self, header: &Header, lines: &[Command]) -> Result<(), Violation> {
        applied_is_committed::follows(header, self.events.len())?;
        for command in lines {
            let mut events = Vec::new();
            let was_setting_back = self.queue.is_setting_back();
            let answer = self.queue.apply(command.clone(), &mut events);
            self.jobs.apply(command, &answer, &events, &self.queue)?;
            self.schedules.apply(command, &events, &self.queue)?;
            if claims_are_bounded::check(command, &answer, &self.queue)? {
                self.claims_cut += 1;
            }
            // Who only waits for the rest of its group is not told of, though its time has come.
            let mut touched: BTreeSet<JobId> = events.iter().filter_map(id_of).cloned().collect();
            // Nor is anybody whose times follow when time was set back.
            if was_setting_back || matches!(command.action, Action::SetTime(_)) {
                touched.extend(self.jobs.jobs.keys().cloned());
            }
            for id in touched.union(&std::mem::take(&mut self.delayed)) {
                self.look(id);
            }
            self.events.push(events);
        }
        Ok(())
    }

    fn look(&mut self, id: &JobId) {
        let Some(view) = self.queue.job(id).map(plain) else {
            return;
        };
        if view.state == queue::State::Scheduled && view.group.is_some() {
            self.delayed.insert(id.clone());
        }
        let views = self.views.entry(id.clone()).or_default();
        if views.last() != Some(&view) {
            views.push(view);
        }
    }

    /// A broker serves: the leader before it commits nothing any more.
    pub(crate) fn serves(&mut self, term: Term) {
        self.writers.serves(term);
    }

    /// A broker has applied a command.
    pub(crate) fn followed(&self, followed: &Followed) -> Result<(), Violation> {
        applied_is_committed::check(&self.events, followed)
    }

    /// Whether a job ever looked like this.
    pub(crate) fn looked(&self, view: &Job) -> bool {
        let views = self.views.get(&view.id);
        views.is_some_and(|views| views.contains(&plain(view.clone())))
    }

    /// The state that a process found when it took over, if nothing was committed since.
    pub(crate) fn found(&self, incarnation: Incarnation) -> Option<&State> {
        let (state, records) = self.found.get(&incarnation)?;
        (*records == self.events.len()).then_some(state)
    }

    pub(crate) fn records(&self) -> usize {
        self.events.len()
    }
}

impl State {
    pub(crate) fn of(queue: &Queue) -> Self {
        let jobs = queue.page(&Filter::default(), PageStart::After(0), usize::MAX);
        Self {
            jobs: jobs.jobs,
            queues: queue.queues().collect(),
            schedules: queue.schedules().cloned().collect(),
            settings: *queue.settings(),
        }
    }
}

/// Without what changes along with other jobs, and what is not in the log.
fn plain(mut view: Job) -> Job {
    view.blocked = false;
    view.progress = None;
    view
}

/// What the first line of a frame says.
pub(crate) fn header(value: &Bytes) -> Header {
    let first = value.split(|&byte| byte == b'\n').next();
    serde_json::from_slice(first.unwrap_or_default()).expect("a frame has a header")
}

fn frame(value: &Bytes) -> (Header, Vec<Command>) {
    let header = header(value);
    let lines = value.split(|&byte| byte == b'\n').skip(1);
    let commands = match header.kind {
        Kind::Commit => lines
            .filter(|line| !line.is_empty())
            .map(|line| Command::from_record(line).expect("a record is a command"))
            .collect(),
        _ => Vec::new(),
    };
    (header, commands)
}

/// The job that an event is about.
pub(crate) fn id_of(event: &Event) -> Option<&JobId> {
    match event {
        Event::Submitted { id, .. }
        | Event::Completed { id, .. }
        | Event::Failed { id, .. }
        | Event::Died { id, .. }
        | Event::Released { id, .. }
        | Event::Cancelled { id, .. }
        | Event::CancelRequested { id }
        | Event::Retried { id, .. }
        | Event::Moved { id, .. }
        | Event::Ready { id, .. }
        | Event::SlotFired { id, .. }
        | Event::Claimed { id, .. } => Some(id),
        _ => None,
    }
}
