//! What became of each job, by the commands and events of the log alone: simple enough to be obviously right,
//! and no part of the production code.

use std::collections::{BTreeMap, VecDeque};
use std::iter::zip;

use tenure_core::queue::{
    Action, Answer, Backoff, ClaimKey, Command, Event, Key, Payload, Queue, Rate, Rules, Settings,
    Submission, Submitted, Token,
};
use tenure_core::{JobId, JobType, QueueName, ScheduleName};

use super::invariants::ends_are_told_again::Ends;
use super::invariants::{
    asked_again_is_the_same, attempts_are_bounded, claimed_by_priority, claimed_in_turn,
    completed_once, forgotten_in_time, held_once, ids_are_kept, limits_are_kept, releases_are_free,
    results_are_kept, unique_keys, waits_its_time,
};
use crate::invariants::Violation;

/// All jobs that there ever were.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) queues: BTreeMap<QueueName, Limit>,
    pub(crate) settings: Settings,
    /// Those that vanished because nothing kept them any more.
    pub(crate) forgotten: BTreeMap<JobId, Job>,
    /// The ids of those of which there was another one later, since nothing kept the id any more: a clock was days ahead, say,
    /// and when time was set right a slot was due again. And the sequence number of the first.
    pub(crate) made_again: BTreeMap<JobId, u64>,
    /// When the job of an id finished that is to be known beyond it.
    pub(crate) ids: BTreeMap<JobId, u64>,
    /// What each schedule makes.
    templates: BTreeMap<ScheduleName, Submission>,
    /// How often an operator has set the queue's time.
    pub(crate) times_set: u64,
    /// How many jobs were answered with again.
    pub(crate) asked_again: u64,
    pub(crate) ends: Ends,
    /// The sequence number of the last job.
    sequence: u64,
}

/// One job.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) queue: QueueName,
    pub(crate) group: Option<Key>,
    pub(crate) unique_key: Option<Key>,
    pub(crate) job_type: JobType,
    pub(crate) priority: i8,
    /// The order of the log.
    pub(crate) sequence: u64,
    pub(crate) phase: Phase,
    /// From when on it may be claimed.
    pub(crate) not_before: u64,
    /// Whether its submitter has named that time: then it stays what it is, whatever the queue's time is set to.
    pub(crate) is_given: bool,
    /// Whether followers were told that it may be claimed, since it last waited.
    pub(crate) is_ready: bool,
    /// How many attempts count, and how many there may be.
    pub(crate) attempts: u32,
    pub(crate) attempts_max: u32,
    pub(crate) backoff: Backoff,
    /// What its worker reported.
    pub(crate) result: Option<Payload>,
    /// By which claim it was completed.
    pub(crate) completed_by: Option<Token>,
    /// Who has claimed it last with which key, if it had one.
    pub(crate) claimed_as: Option<(Key, ClaimKey)>,
    /// Whether that claim was asked for again.
    pub(crate) is_asked_again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Waiting,
    Running(Token),
    /// In which way, and when.
    Finished(Ending, u64),
}

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Completed,
    Cancelled,
    Died,
}

/// What a queue allows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limit {
    pub(crate) is_paused: bool,
    pub(crate) concurrency: Option<u32>,
    pub(crate) rate: Option<Rate>,
    /// When its latest jobs were claimed, since the rate is what it is.
    pub(crate) claims: VecDeque<u64>,
}

/// How many attempts a job has that says nothing.
const ATTEMPTS_DEFAULT: u32 = 20;

/// How many claims of a queue are remembered.
const CLAIMS_MAX: usize = 200;

impl Job {
    fn new(submission: &Submission, sequence: u64, queue: &Queue) -> Self {
        let now = queue.now();
        let delayed = now + submission.delay_ms.unwrap_or_default();
        let not_before = submission.run_at.unwrap_or(delayed);
        Self {
            queue: submission.queue.clone(),
            group: submission.group.clone(),
            unique_key: submission.unique_key.clone(),
            job_type: submission.job_type.clone(),
            priority: submission.priority,
            sequence,
            phase: Phase::Waiting,
            not_before,
            is_given: submission.run_at.is_some() && queue.rules() >= Rules::THIRD,
            // Of one in a group it is said when its turn has come.
            is_ready: submission.group.is_none() && not_before <= now,
            attempts: 0,
            attempts_max: submission.max_attempts.unwrap_or(ATTEMPTS_DEFAULT),
            backoff: submission.backoff.unwrap_or_default(),
            result: None,
            completed_by: None,
            claimed_as: None,
            is_asked_again: false,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished(..))
    }

    pub(crate) fn is(&self, ending: Ending) -> bool {
        matches!(self.phase, Phase::Finished(as_, _) if as_ == ending)
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }
}

impl Jobs {
    /// A command was committed, and this came of it in the queue.
    pub(crate) fn apply(
        &mut self,
        command: &Command,
        answer: &Answer,
        events: &[Event],
        queue: &Queue,
    ) -> Result<(), Violation> {
        let submitted: Vec<(&Submitted, &Submission)> = match (answer, &command.action) {
            (Answer::Submitted(answers), Action::Submit(jobs)) => zip(answers, jobs).collect(),
            _ => Vec::new(),
        };
        match &command.action {
            Action::SetQueue(queue, options) => {
                let limit = self.queues.entry(queue.clone()).or_default();
                limit.concurrency = options.concurrency;
                if limit.rate != options.rate {
                    limit.rate = options.rate;
                    limit.claims.clear();
                }
            }
            Action::Configure(settings) => self.settings = *settings,
            Action::SetSchedule(name, spec, _) => {
                self.templates.insert(name.clone(), spec.job.clone());
            }
            _ => {}
        }
        for id in asked_again_is_the_same::check(self, command, answer, events, queue)? {
            self.asked_again += 1;
            if let Some(job) = self.jobs.get_mut(&id) {
                job.is_asked_again = true;
            }
        }
        self.ends.apply(command, answer, events, queue)?;
        for event in events {
            let created = match event {
                Event::Submitted { id, .. } => {
                    submitted.iter().find(|(answer, _)| answer.id == *id)
                }
                _ => None,
            };
            let submission = created.map(|&(_, submission)| submission);
            self.check(event, submission, command, queue)?;
            self.update(event, submission, command, queue);
        }
        results_are_kept::reported(self, command, queue)?;
        for (answer, submission) in submitted {
            unique_keys::turned_away(self, answer, submission)?;
        }
        for id in forgotten_in_time::check(self, queue)? {
            if let Some(job) = self.jobs.remove(&id) {
                // The first rules forgot the id as well.
                if let Phase::Finished(_, at) = job.phase
                    && queue.rules() >= Rules::SECOND
                {
                    self.ids.insert(id.clone(), at);
                }
                self.forgotten.insert(id, job);
            }
        }
        Ok(())
    }

    /// How many have ended in a way.
    pub(crate) fn ended(&self, ending: Ending) -> usize {
        self.jobs.values().filter(|job| job.is(ending)).count()
    }

    /// The sequence number of the first job with this id.
    pub(crate) fn first_sequence(&self, id: &JobId) -> Option<u64> {
        let made_again = self.made_again.get(id).copied();
        let job = self.jobs.get(id).or_else(|| self.forgotten.get(id));
        made_again.or(job.map(|job| job.sequence))
    }

    /// Whether there ever was such a job.
    pub(crate) fn knows(&self, id: &JobId) -> bool {
        self.jobs.contains_key(id) || self.forgotten.contains_key(id)
    }

    /// Which claim has completed a job, of those that had its id.
    pub(crate) fn completed_by(&self, id: &JobId, token: Token) -> bool {
        let mut jobs = self.jobs.get(id).into_iter().chain(self.forgotten.get(id));
        jobs.any(|job| job.completed_by == Some(token))
    }

    fn check(
        &self,
        event: &Event,
        submission: Option<&Submission>,
        command: &Command,
        queue: &Queue,
    ) -> Result<(), Violation> {
        let now = queue.now();
        held_once::check(self, event)?;
        waits_its_time::check(self, event, command, queue)?;
        claimed_by_priority::check(self, event, command)?;
        attempts_are_bounded::check(self, event, command)?;
        releases_are_free::check(self, event)?;
        unique_keys::check(self, event, submission)?;
        completed_once::check(self, event)?;
        claimed_in_turn::check(self, event)?;
        ids_are_kept::check(self, event, now)?;
        limits_are_kept::check(self, event, now)
    }

    fn update(
        &mut self,
        event: &Event,
        submission: Option<&Submission>,
        command: &Command,
        queue: &Queue,
    ) {
        let now = queue.now();
        if let Event::Submitted { id, .. }
        | Event::SlotFired {
            id, created: true, ..
        } = event
            && let Some(job) = self.forgotten.get(id)
        {
            self.made_again.entry(id.clone()).or_insert(job.sequence);
        }
        if matches!(event, Event::TimeSet { .. }) {
            self.times_set += 1;
        }
        match event {
            Event::Submitted { id, sequence, .. } => {
                let submission = submission.expect("what was submitted is in the command");
                self.sequence = *sequence;
                self.jobs
                    .insert(id.clone(), Job::new(submission, *sequence, queue));
            }
            Event::SlotFired {
                schedule,
                id,
                created: true,
            } => {
                self.sequence += 1;
                let template = &self.templates[schedule];
                self.jobs
                    .insert(id.clone(), Job::new(template, self.sequence, queue));
            }
            Event::Ready { id, .. } => {
                if let Some(job) = self.jobs.get_mut(id) {
                    job.is_ready = true;
                }
            }
            Event::Claimed {
                id, token, queue, ..
            } => {
                self.enter(id, Phase::Running(*token));
                if let Some(job) = self.jobs.get_mut(id) {
                    job.attempts += 1;
                    job.claimed_as = asked_again_is_the_same::of(command);
                    job.is_asked_again = false;
                }
                let limit = self.queues.entry(queue.clone()).or_default();
                limit.claims.push_back(now);
                if limit.claims.len() > CLAIMS_MAX {
                    limit.claims.pop_front();
                }
            }
            Event::Completed { id, token, .. } => {
                self.enter(id, Phase::Finished(Ending::Completed, now));
                let reported = results_are_kept::of(command, id, *token);
                if let Some(job) = self.jobs.get_mut(id) {
                    job.completed_by = Some(*token);
                    job.result = reported;
                }
            }
            Event::Failed { id, .. } => {
                let wait = self
                    .jobs
                    .get(id)
                    .map(|job| waits_its_time::wait_ms(job, id, command));
                self.enter(id, Phase::Waiting);
                if let Some(job) = self.jobs.get_mut(id) {
                    job.not_before = now + wait.unwrap_or_default();
                    job.is_given = false;
                }
            }
            Event::Released { id, .. } => {
                self.enter(id, Phase::Waiting);
                if let Some(job) = self.jobs.get_mut(id) {
                    job.attempts -= 1;
                }
            }
            Event::Retried { id, .. } => {
                let was_finished = self.jobs.get(id).is_some_and(Job::is_finished);
                self.enter(id, Phase::Waiting);
                if let Some(job) = self.jobs.get_mut(id) {
                    job.not_before = 0;
                    job.is_given = false;
                    if was_finished {
                        job.attempts = 0;
                    }
                }
            }
            Event::Died { id, .. } => self.enter(id, Phase::Finished(Ending::Died, now)),
            Event::Cancelled { id, .. } => {
                self.enter(id, Phase::Finished(Ending::Cancelled, now));
            }
            Event::Moved { id, to, .. } => {
                if let Some(job) = self.jobs.get_mut(id) {
                    job.queue = to.clone();
                    // To those who wait for jobs of that queue it is news, and told again.
                    job.is_ready = false;
                }
            }
            Event::Forgotten { id } => {
                self.ids.remove(id);
                if let Some(job) = self.jobs.remove(id) {
                    // The older rules dropped the id as well.
                    if let Phase::Finished(_, at) = job.phase
                        && queue.rules() >= Rules::THIRD
                    {
                        self.ids.insert(id.clone(), at);
                    }
                    self.forgotten.insert(id.clone(), job);
                }
            }
            // Waits that began after the time that is set are counted from it. What was given a time has to wait for it,
            // though it may have been ready.
            Event::TimeSet { from, to } if to < from => {
                for job in self.jobs.values_mut().filter(|job| job.not_before > *to) {
                    if job.is_given {
                        job.is_ready = false;
                    } else {
                        job.not_before = job.not_before.saturating_sub(from - to).max(*to);
                    }
                }
                // Nothing has ended later than that, and rates count anew.
                for job in self.jobs.values_mut() {
                    if let Phase::Finished(_, at) = &mut job.phase {
                        *at = (*at).min(*to);
                    }
                }
                // By the time that was wrong, some ids may have been old enough to be forgotten.
                let age_ms = self.settings.ids.age_ms;
                self.ids.retain(|_, at| from.saturating_sub(*at) < age_ms);
                for at in self.ids.values_mut() {
                    *at = (*at).min(*to);
                }
                for limit in self.queues.values_mut() {
                    limit.claims.clear();
                }
            }
            Event::Paused { queue } => {
                self.queues.entry(queue.clone()).or_default().is_paused = true;
            }
            Event::Resumed { queue } => {
                self.queues.entry(queue.clone()).or_default().is_paused = false;
            }
            _ => {}
        }
    }

    fn enter(&mut self, id: &JobId, phase: Phase) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.phase = phase;
            job.is_ready = false;
        }
    }
}
