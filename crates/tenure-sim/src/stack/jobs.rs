//! What became of each job, by the commands and events of the log alone: simple enough to be obviously right,
//! and no part of the production code.

use std::collections::BTreeMap;

use tenure_core::queue::{Action, Command, Event, Key, Submission, Token};
use tenure_core::{JobId, QueueName};

use super::invariants::{claimed_in_turn, completed_once, held_once, limits_are_kept, unique_keys};
use crate::invariants::Violation;

/// All jobs that there ever were.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) queues: BTreeMap<QueueName, Limit>,
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
    Finished,
}

/// What a queue allows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limit {
    pub(crate) is_paused: bool,
    pub(crate) concurrency: Option<u32>,
}

impl Job {
    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }
}

impl Jobs {
    /// A command was committed, and this came of it.
    pub(crate) fn apply(&mut self, command: &Command, events: &[Event]) -> Result<(), Violation> {
        let mut submissions = match &command.action {
            Action::Submit(jobs) => jobs.iter(),
            _ => [].iter(),
        };
        if let Action::SetQueue(queue, options) = &command.action {
            let limit = self.queues.entry(queue.clone()).or_default();
            limit.concurrency = options.concurrency;
        }
        for event in events {
            let submission = match event.is_answer() {
                true => submissions.next(),
                false => None,
            };
            self.check(event, submission)?;
            self.update(event, submission);
        }
        Ok(())
    }

    fn check(&self, event: &Event, submission: Option<&Submission>) -> Result<(), Violation> {
        held_once::check(self, event)?;
        unique_keys::check(self, event, submission)?;
        completed_once::check(self, event)?;
        claimed_in_turn::check(self, event)?;
        limits_are_kept::check(self, event)
    }

    fn update(&mut self, event: &Event, submission: Option<&Submission>) {
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
            Event::Claimed(claimed) => self.enter(&claimed.id, Phase::Running(claimed.token)),
            Event::Completed { id, token, .. } => {
                self.enter(id, Phase::Finished);
                if let Some(job) = self.jobs.get_mut(id) {
                    job.completed_by = Some(*token);
                }
            }
            Event::Failed { id, .. } | Event::Released { id, .. } | Event::Retried { id, .. } => {
                self.enter(id, Phase::Waiting);
            }
            Event::Died { id, .. } | Event::Cancelled { id, .. } => {
                self.enter(id, Phase::Finished);
            }
            Event::Forgotten { id } => drop(self.jobs.remove(id)),
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
