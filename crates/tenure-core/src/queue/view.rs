//! Looking at the queue: jobs, pages, counts. Reading changes nothing and needs no command.

use std::collections::BTreeSet;

use super::machine::Queue;
use super::named_queue::NamedQueue;
use super::schedule::Schedule;
use super::shelves::Class;
use super::slab::Handle;
use super::{Counts, Job, Page, QueueView, Settings, State};
use crate::{JobId, JobType, QueueName};

/// Which jobs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this state.
    pub state: Option<State>,
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// Of this type.
    pub job_type: Option<JobType>,
}

/// Where a page starts. Pages are stable: jobs that come or go meanwhile shift nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageStart {
    /// In the order of the log, after this sequence number; 0 for the first page.
    After(u64),
    /// The newest first, before this sequence number; `u64::MAX` for the first page.
    Before(u64),
}

/// A page that is being made, a portion at a time: see [`Queue::read_on`].
#[derive(Debug)]
pub struct PageReader {
    filter: Filter,
    /// Where to look next.
    from: PageStart,
    limit: usize,
    bytes_max: usize,
    bytes: usize,
    looked: u64,
    pub(crate) portion: usize,
    page: Page,
}

impl PageReader {
    /// The most jobs that are looked at in one portion: a millisecond or so of work.
    pub const PORTION: usize = 2_000;

    /// Nothing was looked at yet. The page ends at `limit` jobs, or `bytes_max` bytes of JSON: it has at least one job,
    /// however large that is, so that the next page starts further on.
    #[must_use]
    pub fn new(filter: Filter, from: PageStart, limit: usize, bytes_max: usize) -> Self {
        Self {
            filter,
            from,
            limit,
            bytes_max,
            bytes: 0,
            looked: 0,
            portion: Self::PORTION,
            page: Page {
                jobs: Vec::new(),
                next: None,
            },
        }
    }

    /// How many jobs were looked at so far.
    #[must_use]
    pub fn looked(&self) -> u64 {
        self.looked
    }

    /// What was found.
    #[must_use]
    pub fn into_page(self) -> Page {
        self.page
    }

    /// Puts a job on the page. Whether there was room.
    fn put(&mut self, job: impl FnOnce() -> Job) -> bool {
        let last = self.page.jobs.last().map(|job| job.sequence);
        if self.page.jobs.len() >= self.limit {
            self.page.next = last;
            return false;
        }
        let job = job();
        self.bytes = self.bytes.saturating_add(job.json_bytes());
        if self.bytes > self.bytes_max && last.is_some() {
            self.page.next = last;
            return false;
        }
        self.page.jobs.push(job);
        true
    }
}

impl Queue {
    /// The latest time of any command.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// How many jobs there are, of all states.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What holds for all queues.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// One job; none if there never was one with this id, or it was forgotten.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<Job> {
        self.find(id).map(|handle| self.shown(handle))
    }

    /// Jobs in the order of the log, or backwards. Cost: the page; of one queue also its types, and of one type in all
    /// queues also the jobs of other types that are passed over.
    #[must_use]
    pub fn page(&self, filter: &Filter, from: PageStart, limit: usize) -> Page {
        let mut reading = PageReader::new(filter.clone(), from, limit, usize::MAX);
        while self.read_on(&mut reading) {}
        reading.page
    }

    /// Goes on with a page: looks at one portion of the jobs, at most [`PORTION`](PageReader::PORTION). Whether there is
    /// more to look at, so that others can be let in before this is called again.
    #[must_use]
    pub fn read_on(&self, reading: &mut PageReader) -> bool {
        let Some(mut found) = self.candidates(&reading.filter, reading.from) else {
            return false;
        };
        for _ in 0..reading.portion {
            let Some((place, handle)) = found.next() else {
                return false;
            };
            reading.looked += 1;
            if found.mean(&self.jobs[handle]) && !reading.put(|| self.shown(handle)) {
                return false;
            }
            reading.from = match reading.from {
                PageStart::After(_) => PageStart::After(place),
                PageStart::Before(_) => PageStart::Before(place),
            };
        }
        true
    }

    /// Every queue that has jobs or settings, by name.
    pub fn queues(&self) -> impl Iterator<Item = QueueView> {
        self.queues
            .iter()
            .filter(|(_, _, queue)| queue.is_shown())
            .map(|(name, handle, queue)| self.shown_queue(name, handle, queue))
    }

    /// One queue.
    #[must_use]
    pub fn queue(&self, name: &QueueName) -> Option<QueueView> {
        let handle = self.queues.find(name)?;
        let queue = &self.queues[handle];
        queue
            .is_shown()
            .then(|| self.shown_queue(name, handle, queue))
    }

    /// At most so many queues behind a name, by name. Cost: these queues.
    #[must_use]
    pub fn queues_behind(&self, name: Option<&QueueName>, most: usize) -> Vec<QueueView> {
        let behind = self.queues.iter_behind(name);
        // One that is left only as the name of deleted jobs is not shown anywhere else either.
        let shown = behind.filter(|(_, _, queue)| queue.is_shown());
        shown
            .take(most)
            .map(|(name, handle, queue)| self.shown_queue(name, handle, queue))
            .collect()
    }

    fn shown_queue(&self, name: &QueueName, handle: Handle, queue: &NamedQueue) -> QueueView {
        QueueView {
            name: name.clone(),
            paused: queue.paused,
            options: queue.options,
            counts: counts_of(&queue.counts),
            oldest_ready_at: self.ready_since(handle),
        }
    }

    /// How many queues have jobs or settings.
    #[must_use]
    pub fn queues_len(&self) -> usize {
        self.queues.len()
    }

    /// How many types the jobs have.
    #[must_use]
    pub fn types_len(&self) -> usize {
        self.types.len()
    }

    /// Whether there is a queue of this name.
    #[must_use]
    pub fn has_queue(&self, name: &QueueName) -> bool {
        self.queues.find(name).is_some()
    }

    /// Whether there are jobs of this type.
    #[must_use]
    pub fn has_type(&self, name: &JobType) -> bool {
        self.types.find(name).is_some()
    }

    /// The queues that schedules submit to, all but one of them if it is named, and that are not there yet. Cost: the
    /// number of schedules.
    #[must_use]
    pub fn queues_to_come(&self, except: Option<&crate::ScheduleName>) -> BTreeSet<&QueueName> {
        let others = self
            .schedules()
            .filter(|schedule| Some(&schedule.name) != except);
        let named = others.map(|schedule| &schedule.spec.job.queue);
        named.filter(|name| !self.has_queue(name)).collect()
    }

    /// How many schedules there are, and the bytes of all their text.
    #[must_use]
    pub fn schedules_size(&self) -> (usize, usize) {
        (self.schedules.len(), self.schedules.bytes())
    }

    /// The jobs of all queues together, by state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        counts_of(&self.totals)
    }

    /// Since when the oldest ready job of a queue could have been claimed: a delayed or retried job waits from
    /// its time on.
    fn ready_since(&self, queue: Handle) -> Option<u64> {
        Some(self.jobs[self.oldest(queue)?].changed_at)
    }

    /// The claimable job of a queue that stands first in the log. Cost: the same however many there are.
    #[must_use]
    pub fn oldest_ready(&self, queue: &QueueName) -> Option<Job> {
        let queue = self.queues.find(queue)?;
        self.oldest(queue).map(|handle| self.shown(handle))
    }

    fn oldest(&self, queue: Handle) -> Option<Handle> {
        let sequence = self.queues[queue].oldest()?;
        self.orders[Class::Ready as usize].get(sequence)
    }

    /// At most so many schedules behind a name, by name, or fewer if they are large: one at least, and no more
    /// than about so many bytes.
    #[must_use]
    pub fn schedules_behind(
        &self,
        name: Option<&crate::ScheduleName>,
        most: usize,
        bytes_max: usize,
    ) -> Vec<Schedule> {
        let mut bytes = 0;
        let behind = self.schedules.behind(name).take(most);
        behind
            .take_while(|schedule| {
                let is_first = bytes == 0;
                bytes += schedule.bytes() + SCHEDULE_BYTES;
                is_first || bytes <= bytes_max
            })
            .cloned()
            .collect()
    }

    /// Every schedule, by name.
    pub fn schedules(&self) -> impl Iterator<Item = &Schedule> {
        self.schedules.values()
    }

    /// One schedule.
    #[must_use]
    pub fn schedule(&self, name: &crate::ScheduleName) -> Option<&Schedule> {
        self.schedules.get(name)
    }
}

/// About what a schedule has beside its text.
const SCHEDULE_BYTES: usize = 512;

fn counts_of(counts: &[u64; Class::COUNT]) -> Counts {
    let count = |class: Class| counts[class as usize];
    Counts {
        scheduled: count(Class::Scheduled),
        ready: count(Class::Ready) + count(Class::Blocked),
        blocked: count(Class::Blocked),
        running: count(Class::Running),
        completed: count(Class::Completed),
        cancelled: count(Class::Cancelled),
        dead: count(Class::Dead),
    }
}
