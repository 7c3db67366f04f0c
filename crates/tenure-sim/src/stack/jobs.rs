//! What became of each job, by the commands and events of the log alone: simple enough to be obviously right,
//! and no part of the production code.

use std::collections::{BTreeMap, VecDeque};
use std::iter::zip;

use tenure_core::queue::{
    Action, Answer, Command, Event, Key, Queue, Rate, Rules, Settings, Submission, Submitted, Token,
};
use tenure_core::{JobId, QueueName};

use super::invariants::{
    claimed_in_turn, completed_once, forgotten_in_time, held_once, ids_are_kept, limits_are_kept,
    unique_keys,
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
    /// When the job of an id finished that is to be known beyond it.
    pub(crate) ids: BTreeMap<JobId, u64>,
}

/// One job.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) queue: QueueName,
    pub(crate) group: Option<Key>,
    pub(crate) unique_key: Option<Key>,
    /// The order of the log.
    pub(crate) sequence: u64,
    pub(crate) phase: Phase,
    /// By which claim it was completed.
    pub(crate) completed_by: Option<Token>,
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

/// How many claims of a queue are remembered.
const CLAIMS_MAX: usize = 200;

impl Job {
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
            _ => {}
        }
        for event in events {
            let created = match event {
                Event::Submitted { id, .. } => {
                    submitted.iter().find(|(answer, _)| answer.id == *id)
                }
                _ => None,
            };
            let submission = created.map(|&(_, submission)| submission);
            self.check(event, submission, queue.now())?;
            self.update(event, submission, queue.now());
        }
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
        now: u64,
    ) -> Result<(), Violation> {
        held_once::check(self, event)?;
        unique_keys::check(self, event, submission)?;
        completed_once::check(self, event)?;
        claimed_in_turn::check(self, event)?;
        ids_are_kept::check(self, event, now)?;
        limits_are_kept::check(self, event, now)
    }

    fn update(&mut self, event: &Event, submission: Option<&Submission>, now: u64) {
        match event {
            Event::Submitted {
                id,
                queue,
                sequence,
                ..
            } => {
                let job = Job {
                    queue: queue.clone(),
                    group: submission.and_then(|job| job.group.clone()),
                    unique_key: submission.and_then(|job| job.unique_key.clone()),
                    sequence: *sequence,
                    phase: Phase::Waiting,
                    completed_by: None,
                };
                self.jobs.insert(id.clone(), job);
            }
            Event::SlotFired {
                id, created: true, ..
            } => {
                let job = Job {
                    queue: QueueName::new("default").expect("a valid name"),
                    group: None,
                    unique_key: None,
                    sequence: 0,
                    phase: Phase::Waiting,
                    completed_by: None,
                };
                self.jobs.insert(id.clone(), job);
            }
            Event::Claimed {
                id, token, queue, ..
            } => {
                self.enter(id, Phase::Running(*token));
                let limit = self.queues.entry(queue.clone()).or_default();
                limit.claims.push_back(now);
                if limit.claims.len() > CLAIMS_MAX {
                    limit.claims.pop_front();
                }
            }
            Event::Completed { id, token, .. } => {
                self.enter(id, Phase::Finished(Ending::Completed, now));
                if let Some(job) = self.jobs.get_mut(id) {
                    job.completed_by = Some(*token);
                }
            }
            Event::Failed { id, .. } | Event::Released { id, .. } | Event::Retried { id, .. } => {
                self.enter(id, Phase::Waiting);
            }
            Event::Died { id, .. } => self.enter(id, Phase::Finished(Ending::Died, now)),
            Event::Cancelled { id, .. } => {
                self.enter(id, Phase::Finished(Ending::Cancelled, now));
            }
            Event::Forgotten { id } => {
                self.jobs.remove(id);
                self.ids.remove(id);
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
        }
    }
}
