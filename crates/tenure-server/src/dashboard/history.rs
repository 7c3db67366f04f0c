//! What happened to each job, as far as this leader has seen it.
//!
//! The queue itself keeps a job's present state, not how it got there. This keeps the latest events of all jobs in
//! memory, bounded and in order of arrival. Adding has to be cheap: every command adds events, and hardly any are
//! ever asked for. An answer says whether it begins with the submit, or earlier events are unknown.

use std::collections::VecDeque;

use serde::Serialize;
use tenure_api::JobId;
use tenure_core::queue::Key;

/// The most events that are kept, of all jobs together.
const EVENTS_MAX: usize = 60_000;

/// The most events that are shown of one job. If there are more, the first and the latest are shown.
const ENTRIES_MAX: usize = 40;

/// The most events that are shown of all jobs together.
const ACTIVITY_MAX: usize = 200;

/// Longer errors are cut off here; the job itself keeps its whole last error.
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

/// A job's history, as a page gets it.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// When this leader began to watch.
    since_at: u64,
    /// Whether it begins with the submit and nothing was left out.
    complete: bool,
    entries: Vec<Entry>,
}

/// What happened last, to any job.
#[derive(Debug, Serialize)]
pub(super) struct Activity {
    /// When this leader began to watch.
    since_at: u64,
    /// The newest first.
    entries: Vec<Happened>,
}

/// What happened, and to which job.
#[derive(Debug, Serialize)]
struct Happened {
    id: JobId,
    #[serde(flatten)]
    entry: Entry,
}

/// What happened last.
#[derive(Debug, Default)]
pub(super) struct Histories {
    events: VecDeque<(JobId, Entry)>,
}

/// The event after which the same id, if submitted again, is another job.
const FORGOTTEN: &str = "forgotten";

impl Histories {
    pub(super) fn add(&mut self, id: &JobId, entry: Entry) {
        // A job that is ready at once has two events; one is enough.
        if entry.event == "ready"
            && let Some((last, before)) = self.events.back()
            && before.event == "submitted"
            && before.at == entry.at
            && last == id
        {
            return;
        }
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back((id.clone(), entry));
    }

    pub(super) fn forget(&mut self, at: u64, id: &JobId) {
        self.add(id, Entry::new(at, FORGOTTEN));
    }

    pub(super) fn latest(&self, since_at: u64) -> Activity {
        let happened = |(id, entry): &(JobId, Entry)| Happened {
            id: id.clone(),
            entry: entry.clone(),
        };
        let latest = self.events.iter().rev().take(ACTIVITY_MAX);
        Activity {
            since_at,
            entries: latest.map(happened).collect(),
        }
    }

    pub(super) fn of(&self, id: &JobId, since_at: u64) -> Answer {
        let mut latest = self
            .events
            .iter()
            .rev()
            .filter(|(of, _)| of == id)
            .map(|(_, entry)| entry)
            .take_while(|entry| entry.event != FORGOTTEN);
        let mut entries: Vec<Entry> = latest.by_ref().take(ENTRIES_MAX).cloned().collect();
        // What happened in between is left out.
        let first = latest.last();
        if let (Some(first), Some(oldest)) = (first, entries.last_mut()) {
            *oldest = first.clone();
        }
        entries.reverse();
        let begins = entries
            .first()
            .is_some_and(|entry| entry.event == "submitted");
        Answer {
            since_at,
            complete: begins && first.is_none(),
            entries,
        }
    }
}

/// An error as one line, short enough to be shown: its last line that is not empty. A stack trace ends with what
/// happened.
pub(super) fn shortened(error: &str) -> Box<str> {
    let says = |line: &&str| line.contains(char::is_alphanumeric);
    let error = error.lines().rev().find(says).unwrap_or(error).trim();
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
    fn what_happened_first_is_forgotten_first() {
        let mut histories = Histories::default();
        for number in 0..EVENTS_MAX + 5 {
            histories.add(&id(number), Entry::new(1, "submitted"));
        }
        assert!(histories.of(&id(4), 0).entries.is_empty());
        assert!(histories.of(&id(5), 0).complete);
        assert_eq!(histories.events.len(), EVENTS_MAX);
    }

    #[test]
    fn a_job_that_was_forgotten_has_no_history_and_one_of_its_name_its_own() {
        let mut histories = Histories::default();
        histories.add(&id(1), Entry::new(1, "submitted"));
        histories.add(&id(2), Entry::new(1, "submitted"));
        histories.forget(2, &id(1));
        assert!(histories.of(&id(1), 0).entries.is_empty());
        assert_eq!(histories.of(&id(2), 0).entries.len(), 1);
        histories.add(&id(1), Entry::new(3, "submitted"));
        let answer = histories.of(&id(1), 0);
        assert!(answer.complete);
        assert_eq!(answer.entries, [Entry::new(3, "submitted")]);
    }

    #[test]
    fn of_all_jobs_the_latest_events_are_shown_the_newest_first() {
        let mut histories = Histories::default();
        for number in 0..ACTIVITY_MAX + 5 {
            histories.add(&id(number), Entry::new(number as u64, "submitted"));
        }
        let activity = histories.latest(7);
        assert_eq!(
            (activity.since_at, activity.entries.len()),
            (7, ACTIVITY_MAX)
        );
        assert_eq!(activity.entries[0].id, id(ACTIVITY_MAX + 4));
        assert_eq!(activity.entries[ACTIVITY_MAX - 1].id, id(5));
    }

    #[test]
    fn a_job_that_is_ready_at_once_says_so_once() {
        let mut histories = Histories::default();
        for (number, at) in [(1, 5), (2, 6)] {
            histories.add(&id(number), Entry::new(5, "submitted"));
            histories.add(&id(number), Entry::new(at, "ready"));
        }
        assert_eq!(histories.of(&id(1), 0).entries.len(), 1);
        assert_eq!(histories.of(&id(2), 0).entries.len(), 2);
    }

    #[test]
    fn of_very_many_events_the_first_and_the_latest_are_shown() {
        let mut histories = Histories::default();
        histories.add(&id(1), Entry::new(0, "submitted"));
        for at in 1..ENTRIES_MAX as u64 {
            histories.add(&id(1), Entry::new(at, "failed"));
        }
        let answer = histories.of(&id(1), 0);
        assert_eq!(answer.entries.len(), ENTRIES_MAX);
        assert!(answer.complete);
        for at in ENTRIES_MAX as u64..1_000 {
            histories.add(&id(1), Entry::new(at, "failed"));
        }
        let answer = histories.of(&id(1), 0);
        assert_eq!(answer.entries.len(), ENTRIES_MAX);
        assert!(!answer.complete);
        assert_eq!(answer.entries[0].event, "submitted");
        assert_eq!(answer.entries[1].at, 961);
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
    fn of_a_stack_trace_the_line_that_says_what_happened_is_shown() {
        let trace = "Traceback (most recent call last):\n  File \"mail.py\", line 7, in send\n    \
            connect()\nTimeoutError: no answer from smtp.example\n\n}\n";
        assert_eq!(
            &*shortened(trace),
            "TimeoutError: no answer from smtp.example"
        );
        assert_eq!(&*shortened("out of paper"), "out of paper");
        assert_eq!(&*shortened("---\n"), "---");
        assert_eq!(&*shortened(""), "");
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let text = shortened(&"é".repeat(1_000));
        assert_eq!(text.chars().count(), ERROR_CHARACTERS_MAX + 1);
    }
}
