//! The queue itself: its state, how commands are applied, and the few moves that all of them are made of.

use std::collections::BTreeMap;

use tenure_api::{QUEUE_DEFAULT, SubmitStatus, Submitted};

use super::answer::Answer;
use super::board::Board;
use super::claim::ClaimKey;
use super::command::{Action, Command};
use super::event::Event;
use super::groups::Groups;
use super::hash::Hash;
use super::kept::{Kept, content};
use super::named_queue::NamedQueue;
use super::names::Names;
use super::order::Order;
use super::remnants::Remnants;
use super::rules::Rules;
use super::schedules::Schedules;
use super::set_time::SettingBack;
use super::shelves::{Class, Shelf, Shelves};
use super::slab::{Handle, Slab};
use super::snapshot::Pending;
use super::table::Table;
use super::{Key, Settings, State, Submission};
use crate::{JobId, JobType, QueueName};

/// All jobs, queues and schedules of a namespace.
#[derive(Debug)]
pub struct Queue {
    /// The latest time of any command.
    pub(crate) now: u64,
    /// How many jobs were ever accepted.
    pub(crate) sequence: u64,
    /// How many claims were ever made.
    pub(crate) claims: u64,
    /// How many jobs ever finished.
    pub(crate) finishes: u64,
    /// How many jobs of the queue `default` ever completed, since there are the third rules.
    pub(crate) completed: u64,
    /// How often a schedule was ever set, paused or resumed.
    pub(crate) revision: u64,
    /// What commands do.
    pub(crate) rules: Rules,
    /// Time was set back, and not every job was looked at since.
    pub(crate) setting_back: Option<SettingBack>,
    /// How many jobs there are of each class.
    pub(crate) totals: [u64; Class::COUNT],
    pub(crate) settings: Settings,
    pub(crate) jobs: Slab<Kept>,
    pub(crate) ids: Table,
    pub(crate) types: Names<JobType, ()>,
    pub(crate) queues: Names<QueueName, NamedQueue>,
    pub(crate) shelves: Shelves,
    /// The jobs of each class, of all queues.
    pub(crate) orders: [Order; Class::COUNT],
    pub(crate) board: Board,
    /// Scheduled jobs by their time, then by their place in the log.
    pub(crate) scheduled: BTreeMap<(u64, u64), Handle>,
    /// Unfinished jobs by their queue and unique key.
    pub(crate) unique: Table,
    pub(crate) groups: Groups,
    /// Running jobs by the key of their claim, if it has one, and by the number of their token.
    pub(crate) keyed: BTreeMap<(ClaimKey, u64), Handle>,
    /// Finished jobs of each class, in the order in which they finished.
    pub(crate) finished: [BTreeMap<u64, Handle>; 3],
    pub(crate) schedules: Schedules,
    /// Ids of jobs that were forgotten early.
    pub(crate) remnants: Remnants,
    pub(crate) snapshot: Option<Box<Pending>>,
    seed: u64,
}

/// How many jobs a command lets time change on the way, each way. Bounds the longest stop when a million
/// jobs fall due in one moment, while what one command adds the next ones can always clear away.
const PORTION: usize = 100;
/// The same for the command that is there for it.
pub(crate) const PORTION_OF_TICK: usize = 2_000;

impl Queue {
    /// An empty queue under the [latest](Rules::LATEST) rules. The seed scatters the hash tables, so that strangers
    /// cannot aim at them; it has no influence on any answer, and every process may have its own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            now: 0,
            sequence: 0,
            claims: 0,
            finishes: 0,
            completed: 0,
            revision: 0,
            rules: Rules::LATEST,
            setting_back: None,
            totals: [0; Class::COUNT],
            settings: Settings::default(),
            jobs: Slab::new(),
            ids: Table::new(),
            types: Names::new(),
            queues: Names::new(),
            shelves: Shelves::default(),
            orders: Default::default(),
            board: Board::default(),
            scheduled: BTreeMap::new(),
            unique: Table::new(),
            groups: Groups::new(seed),
            keyed: BTreeMap::new(),
            finished: [const { BTreeMap::new() }; 3],
            schedules: Schedules::default(),
            remnants: Remnants::new(),
            snapshot: None,
            seed,
        }
    }

    /// The rules by which commands are applied.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// From here on commands are applied by these rules. To be called at the same place of the log in every replay.
    ///
    /// # Panics
    ///
    /// If this version does not know them: it would make up a history.
    pub fn set_rules(&mut self, rules: Rules) {
        assert!(rules.are_known(), "rules {rules} are not known");
        if self.rules < Rules::THIRD && rules >= Rules::THIRD {
            self.completed = self.completed.max(self.retained());
        }
        self.rules = rules;
    }

    /// How many jobs of the queue `default` ever completed: never fewer than before, however few of them are retained.
    /// Those count that were retained when the third rules came, and all since.
    #[must_use]
    pub fn completed_total(&self) -> u64 {
        self.completed.max(self.retained())
    }

    /// The completed jobs of the queue `default` that are there.
    pub(crate) fn retained(&self) -> u64 {
        let name = QueueName::new(QUEUE_DEFAULT).expect("a constant that is a name");
        self.queue(&name).map_or(0, |queue| queue.counts.completed)
    }

    /// A number that differs, almost certainly, between two states of different counters. A leader puts it into the
    /// log, and a replay that comes to another one has applied something in another way. Costs the same however much
    /// waits.
    ///
    /// What goes into it is a part of the rules: what later rules count is added under these only.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = Hash::new(0);
        let counters = [
            self.now,
            self.sequence,
            self.claims,
            self.finishes,
            self.revision,
            self.jobs.len() as u64,
            self.schedules.len() as u64,
            self.rules.0.into(),
        ];
        for number in counters.into_iter().chain(self.totals) {
            hash.number(number);
        }
        self.hash_remnants(&mut hash);
        if let Some(SettingBack { after, last }) = self.setting_back {
            hash.number(after);
            hash.number(last);
        }
        hash.finish()
    }

    /// Carries a command out: always, and always in the same way. What happens is added to `events`. Cost:
    /// logarithmic per item, whatever waits in the queue.
    pub fn apply(&mut self, command: Command, events: &mut Vec<Event>) -> Answer {
        self.now = self.now.max(command.at);
        if let Action::SetTime(to) = command.action {
            // Before anything else: nothing is to become due, or be forgotten, by the time that was wrong.
            self.set_time(to, events);
            return Answer::Done;
        }
        self.open_queues();
        let portion = match &command.action {
            Action::Tick => PORTION_OF_TICK,
            Action::Complete(items) => PORTION + 2 * items.len(),
            Action::Fail(items) => PORTION + 2 * items.len(),
            Action::Expire(items) | Action::Release(items) | Action::Abandon(items) => {
                PORTION + 2 * items.len()
            }
            Action::Cancel(items) => PORTION + 2 * items.len(),
            _ => PORTION,
        };
        self.promote(portion, events);
        let answer = self.act(command.action, events);
        self.forget_expired(portion);
        answer
    }

    fn act(&mut self, action: Action, events: &mut Vec<Event>) -> Answer {
        match action {
            Action::Submit(jobs) => Answer::Submitted(self.each(jobs, events, Self::submit)),
            Action::Claim(request) => Answer::Claimed(self.claim(&request, events)),
            Action::Complete(claims) => {
                Answer::Completed(self.each(claims, events, Self::complete))
            }
            Action::Fail(claims) => Answer::Failed(self.each(claims, events, Self::fail)),
            Action::Expire(claims) => Answer::Failed(self.each(claims, events, Self::expire)),
            Action::Release(claims) => Answer::Released(self.each(claims, events, Self::release)),
            Action::Abandon(claims) => {
                for claim in claims {
                    self.abandon(&claim, events);
                }
                Answer::Done
            }
            Action::Cancel(ids) => Answer::Cancelled(self.each(ids, events, Self::cancel)),
            Action::Retry(ids) => Answer::Retried(self.each(ids, events, Self::retry)),
            Action::Move(ids, to) => Answer::Moved(self.move_all(ids, &to, events)),
            Action::Forget(ids) => Answer::Forgotten(self.each(ids, events, Self::forget_by_hand)),
            Action::SetQueue(queue, options) => self.set_queue(queue, options, events),
            Action::Pause(queue) => self.pause(queue, true, events),
            Action::Resume(queue) => self.pause(queue, false, events),
            Action::SetSchedule(name, spec, next) => self.set_schedule(name, *spec, next, events),
            Action::DeleteSchedule(name) => self.delete_schedule(name, events),
            Action::PauseSchedule(name) => self.pause_schedule(name, events),
            Action::ResumeSchedule(resumption) => self.resume_schedule(resumption, events),
            Action::Fire(firings) => {
                for firing in firings {
                    self.fire(firing, events);
                }
                Answer::Done
            }
            Action::Configure(settings) => {
                self.settings = settings;
                events.push(Event::Configured);
                Answer::Done
            }
            Action::Tick => {
                self.set_jobs_back(PORTION_OF_TICK, events);
                Answer::Done
            }
            // Time was set before.
            Action::SetTime(_) => Answer::Done,
        }
    }

    /// Does something to each item of a batch.
    fn each<T, A>(
        &mut self,
        items: Vec<T>,
        events: &mut Vec<Event>,
        act: fn(&mut Self, T, &mut Vec<Event>) -> A,
    ) -> Vec<A> {
        let answers = items.into_iter().map(|item| act(self, item, events));
        answers.collect()
    }

    /// Scheduled jobs that are due become ready, the earliest first.
    fn promote(&mut self, portion: usize, events: &mut Vec<Event>) {
        for _ in 0..portion {
            let Some((&(run_at, _), &handle)) = self.scheduled.first_key_value() else {
                return;
            };
            if run_at > self.now {
                return;
            }
            self.make_ready(handle, events);
        }
    }

    pub(crate) fn submit(&mut self, submission: Submission, events: &mut Vec<Event>) -> Submitted {
        let content = content(&submission);
        let sequence = self.sequence + 1;
        let id = submission.id.clone().unwrap_or_else(|| self.next_id());
        let answer = |id, status, existing| Submitted {
            id,
            status,
            existing,
        };
        let left = || Some(self.find_remnant(&id)?.content);
        let known = self.find(&id).map(|job| self.jobs[job].content);
        if let Some(known) = known.or_else(left) {
            let status = if known == content {
                SubmitStatus::Duplicate
            } else {
                SubmitStatus::Conflict
            };
            return answer(id, status, None);
        }
        if let Some(existing) =
            self.holder_of_key(&submission.queue, submission.unique_key.as_ref())
        {
            let existing = self.jobs[existing].id.clone();
            return answer(id, SubmitStatus::Duplicate, Some(existing));
        }
        if self.is_full() {
            return answer(id, SubmitStatus::Full, None);
        }
        let job = self.new_job(id.clone(), submission, content);
        let queue = self.queues.name(job.queue).clone();
        let state = job.class.state();
        let handle = self.insert(job);
        events.push(Event::Submitted {
            id: id.clone(),
            queue,
            sequence,
            state,
        });
        if let Some(group) = self.jobs[handle].group() {
            self.settle(group, events);
        }
        answer(id, SubmitStatus::Created, None)
    }

    /// The id of the next job that is submitted without one.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        let sequence = self.sequence + 1;
        JobId::new(format!("job:{sequence}")).expect("letters, a colon and digits")
    }

    /// Whether there are as many jobs as the settings allow.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.jobs.len() as u64 >= self.settings.jobs_max
    }

    /// Takes a job in, with every index that its class asks for.
    pub(crate) fn insert(&mut self, job: Kept) -> Handle {
        let hash = self.hash_of_id(&job.id);
        let finished = job.class.is_finished();
        let handle = self.jobs.insert(job);
        let (jobs, seed) = (&self.jobs, self.seed);
        let rehash = |handle| hash_of(seed, jobs[handle].id.as_str());
        self.ids.insert(hash, handle, rehash);
        if !finished {
            self.hold_keys(handle);
        }
        self.place(handle);
        self.note_key(handle);
        handle
    }

    /// Drops a finished job, with its id.
    pub(crate) fn forget(&mut self, handle: Handle) {
        let job = self.take_out(handle);
        self.queues.release(job.queue);
        self.types.release(job.job_type);
    }

    /// Takes a finished job out of every index. It still uses the names of its queue and its type.
    pub(crate) fn take_out(&mut self, handle: Handle) -> Kept {
        self.keep_image(handle);
        self.displace(handle);
        let job = self.jobs.remove(handle);
        self.ids.remove(self.hash_of_id(&job.id), handle);
        job
    }

    /// A job may run from now on, as far as time is concerned.
    pub(crate) fn make_ready(&mut self, handle: Handle, events: &mut Vec<Event>) {
        match self.jobs[handle].group() {
            Some(group) => {
                self.move_to(handle, Class::Blocked);
                self.settle(group, events);
            }
            None => {
                self.move_to(handle, Class::Ready);
                events.push(self.ready_event(handle));
            }
        }
    }

    /// A job ends. Its keys are free, and its group moves on.
    pub(crate) fn finish(&mut self, handle: Handle, class: Class, events: &mut Vec<Event>) {
        self.finishes += 1;
        let finish = self.finishes;
        let job = self.edit(handle);
        job.course_mut().finish = finish;
        let sequence = job.sequence;
        let is_counted = class == Class::Completed && self.rules >= Rules::THIRD;
        if is_counted && self.queues.name(self.jobs[handle].queue).as_str() == QUEUE_DEFAULT {
            self.completed += 1;
        }
        self.drop_claim(handle);
        self.move_to(handle, class);
        if self.jobs[handle].unique_key().is_some() {
            let hash = self.hash_of_unique(handle);
            self.unique.remove(hash, handle);
        }
        if let Some(group) = self.jobs[handle].group() {
            self.jobs[handle].extra_mut().group = None;
            if self.groups.leave(group, sequence) {
                self.settle(group, events);
            }
        }
    }

    /// Takes the unique key, which must be free, and a place in the group.
    pub(crate) fn hold_keys(&mut self, handle: Handle) {
        if self.jobs[handle].unique_key().is_some() {
            let hash = self.hash_of_unique(handle);
            let (jobs, seed) = (&self.jobs, self.seed);
            let rehash = |handle| {
                let key = jobs[handle].unique_key();
                hash_of(seed, key.map_or("", Key::as_str))
            };
            self.unique.insert(hash, handle, rehash);
        }
        let job = &self.jobs[handle];
        if let Some(key) = job.group_key() {
            let group = self.groups.join(job.queue, key, job.sequence, handle);
            self.jobs[handle].extra_mut().group = Some(group);
        }
    }

    /// Lets the first of a group be claimed, and no other.
    pub(crate) fn settle(&mut self, group: Handle, events: &mut Vec<Event>) {
        let next = match self.groups[group].running {
            Some(_) => None,
            None => self.groups.first(group),
        };
        let next = next.filter(|&job| self.jobs[job].class.state() == State::Ready);
        let open = self.groups[group].open;
        if open == next {
            return;
        }
        if let Some(open) = open {
            self.move_to(open, Class::Blocked);
        }
        if let Some(next) = next {
            self.move_to(next, Class::Ready);
            events.push(self.ready_event(next));
        }
    }

    /// Changes a job's class, and with it every index.
    pub(crate) fn move_to(&mut self, handle: Handle, class: Class) {
        self.keep_image(handle);
        self.displace(handle);
        let now = self.now;
        let job = &mut self.jobs[handle];
        // Waiting for one's turn in a group and having it are one state.
        if job.class.state() != class.state() {
            job.changed_at = now;
        }
        job.class = class;
        self.place(handle);
    }

    pub(super) fn place(&mut self, handle: Handle) {
        let job = &self.jobs[handle];
        let change = self.shelves.put(job.shelf(), job.sequence);
        self.orders[job.class as usize].put(job.sequence, handle);
        self.totals[job.class as usize] += 1;
        let queue = &mut self.queues[job.queue];
        queue.counts[job.class as usize] += 1;
        let (name, shelf) = (job.queue, job.shelf());
        let is_other = queue.follow(shelf, change);
        match job.class {
            Class::Scheduled => {
                self.scheduled.insert((job.run_at, job.sequence), handle);
            }
            Class::Ready => {
                if let Some(group) = job.group() {
                    self.groups[group].open = Some(handle);
                }
            }
            Class::Running => {
                if let Some(group) = job.group() {
                    self.groups[group].running = Some(handle);
                }
            }
            Class::Blocked => {}
            Class::Completed | Class::Cancelled | Class::Dead => {
                self.finished[finished_place(job.class)].insert(job.course().finish, handle);
            }
        }
        self.posted(name, shelf, is_other);
    }

    pub(super) fn displace(&mut self, handle: Handle) {
        let job = &self.jobs[handle];
        let change = self.shelves.take(job.shelf(), job.sequence);
        self.orders[job.class as usize].take(job.sequence);
        self.totals[job.class as usize] -= 1;
        let queue = &mut self.queues[job.queue];
        queue.counts[job.class as usize] -= 1;
        let (name, shelf) = (job.queue, job.shelf());
        let is_other = queue.follow(shelf, change);
        match job.class {
            Class::Scheduled => {
                self.scheduled.remove(&(job.run_at, job.sequence));
            }
            Class::Ready => {
                if let Some(group) = job.group() {
                    self.groups[group].open = None;
                }
            }
            Class::Running => {
                if let Some(group) = job.group() {
                    self.groups[group].running = None;
                }
            }
            Class::Blocked => {}
            Class::Completed | Class::Cancelled | Class::Dead => {
                self.finished[finished_place(job.class)].remove(&job.course().finish);
            }
        }
        self.posted(name, shelf, is_other);
    }

    /// A job came to a shelf or left it, and perhaps another one is first there.
    fn posted(&mut self, queue: Handle, shelf: Shelf, is_other: bool) {
        if is_other {
            self.post_type(queue, shelf.job_type);
        }
        // Running jobs count against a queue's concurrency.
        if is_other || shelf.class == Class::Running {
            self.post(queue);
        }
    }

    /// The only way to change a job in place, for fields that no index depends on.
    pub(crate) fn edit(&mut self, handle: Handle) -> &mut Kept {
        self.keep_image(handle);
        &mut self.jobs[handle]
    }

    pub(crate) fn find(&self, id: &JobId) -> Option<Handle> {
        self.ids
            .find(self.hash_of_id(id), |handle| self.jobs[handle].id == *id)
    }

    /// The unfinished job of a queue with this unique key.
    pub(crate) fn holder_of_key(&self, queue: &QueueName, key: Option<&Key>) -> Option<Handle> {
        let key = key?;
        let queue = self.queues.find(queue)?;
        self.unique.find(self.hash_of_key(key), |handle| {
            let job = &self.jobs[handle];
            job.queue == queue && job.unique_key() == Some(key)
        })
    }

    pub(crate) fn hash_of_id(&self, id: &JobId) -> u64 {
        hash_of(self.seed, id.as_str())
    }

    fn hash_of_key(&self, key: &Key) -> u64 {
        hash_of(self.seed, key.as_str())
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn hash_of_unique(&self, handle: Handle) -> u64 {
        let key = self.jobs[handle].unique_key();
        self.hash_of_key(key.expect("asked only of jobs that have one"))
    }

    pub(super) fn ready_event(&self, handle: Handle) -> Event {
        let job = &self.jobs[handle];
        Event::Ready {
            id: job.id.clone(),
            queue: self.queues.name(job.queue).clone(),
            job_type: self.types.name(job.job_type).clone(),
        }
    }
}

/// Where a text is in a table.
pub(crate) fn hash_of(seed: u64, text: &str) -> u64 {
    let mut hash = Hash::new(seed);
    hash.text(text);
    hash.finish()
}

/// Where in `finished`.
pub(crate) const fn finished_place(class: Class) -> usize {
    match class {
        Class::Completed => 0,
        Class::Cancelled => 1,
        _ => 2,
    }
}
