//! What happened to each job, as far as this leader has seen it.
//!
//! The queue itself keeps how a job stands, not how it came there. This keeps the events of the jobs that changed
//! last, in memory and bounded: so many jobs, so many events each. What is not known is not made up: an answer
//! says whether it begins with the submit.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use tenure_core::JobId;
use tenure_core::queue::Key;

/// Jobs remembered.
const JOBS_MAX: usize = 20_000;

/// Events per job; of more than that the first and the latest stay.
const ENTRIES_MAX: usize = 40;

/// Longer errors are cut off here; the job itself has the whole of the last one.
pub(super) const ERROR_CHARACTERS_MAX: usize = 400;

/// One thing that happened to a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worker: Option<Key>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_at: Option<u64>,
}

impl Entry {
    pub(super) fn new(at: u64, event: &'static str) -> Self {
        Self {
            at,
            event,
            attempt: None,
            worker: None,
            error: None,
            run_at: None,
        }
    }
}

/// What a page gets.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// When this leader began to watch.
    since_at: u64,
    /// It begins with the submit, and nothing was left out.
    complete: bool,
    entries: Vec<Entry>,
}

/// The jobs that changed last.
#[derive(Debug, Default)]
pub(super) struct Histories {
    jobs: HashMap<JobId, Vec<Entry>>,
    /// In the order in which they were first seen, some of them forgotten since.
    order: VecDeque<JobId>,
}

impl Histories {
    pub(super) fn add(&mut self, id: &JobId, entry: Entry) {
        if let Some(entries) = self.jobs.get_mut(id) {
            push(entries, entry);
            return;
        }
        while self.jobs.len() >= JOBS_MAX || self.order.len() >= 2 * JOBS_MAX {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            self.jobs.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.jobs.insert(id.clone(), vec![entry]);
    }

    pub(super) fn forget(&mut self, id: &JobId) {
        self.jobs.remove(id);
    }

    pub(super) fn of(&self, id: &JobId, since_at: u64) -> Answer {
        let entries = self.jobs.get(id).cloned().unwrap_or_default();
        let first = entries
            .first()
            .is_some_and(|entry| entry.event == "submitted");
        Answer {
            since_at,
            complete: first && entries.len() < ENTRIES_MAX,
            entries,
        }
    }
}

fn push(entries: &mut Vec<Entry>, entry: Entry) {
    // A job that is ready at once says so twice.
    let last = entries.last().expect("a history begins with an entry");
    if entry.event == "ready" && last.event == "submitted" && last.at == entry.at {
        return;
    }
    if entries.len() == ENTRIES_MAX {
        entries.remove(1);
    }
    entries.push(entry);
}

/// An error, not longer than can be shown.
pub(super) fn shortened(error: &str) -> Box<str> {
    match error.char_indices().nth(ERROR_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &error[..end]).into(),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> JobId {
        JobId::new(format!("job-{number}")).unwrap()
    }

    #[test]
    fn the_jobs_that_were_seen_first_are_forgotten_first() {
        let mut histories = Histories::default();
        for number in 0..JOBS_MAX + 5 {
            histories.add(&id(number), Entry::new(1, "submitted"));
        }
        assert!(histories.of(&id(4), 0).entries.is_empty());
        assert!(histories.of(&id(5), 0).complete);
        assert_eq!(histories.jobs.len(), JOBS_MAX);
    }

    #[test]
    fn forgotten_jobs_do_not_pile_up() {
        let mut histories = Histories::default();
        for number in 0..JOBS_MAX * 5 {
            histories.add(&id(number), Entry::new(1, "submitted"));
            histories.forget(&id(number));
        }
        assert!(histories.jobs.is_empty());
        assert!(histories.order.len() <= 2 * JOBS_MAX);
    }

    #[test]
    fn of_very_many_events_the_first_and_the_latest_stay() {
        let mut histories = Histories::default();
        histories.add(&id(1), Entry::new(0, "submitted"));
        histories.add(&id(1), Entry::new(0, "ready"));
        for at in 1..1_000 {
            histories.add(&id(1), Entry::new(at, "failed"));
        }
        let answer = histories.of(&id(1), 0);
        assert_eq!(answer.entries.len(), ENTRIES_MAX);
        assert!(!answer.complete);
        assert_eq!(answer.entries[0].event, "submitted");
        assert_eq!(answer.entries[ENTRIES_MAX - 1].at, 999);
    }

    #[test]
    fn a_history_without_the_submit_says_so() {
        let mut histories = Histories::default();
        histories.add(&id(1), Entry::new(5, "claimed"));
        assert!(!histories.of(&id(1), 3).complete);
        assert!(!histories.of(&id(2), 3).complete);
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let text = shortened(&"é".repeat(1_000));
        assert_eq!(text.chars().count(), ERROR_CHARACTERS_MAX + 1);
    }
}
