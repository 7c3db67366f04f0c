//! What the submitters were told: acknowledged, certainly not, or nothing certain.

use std::collections::{BTreeMap, VecDeque};

use tenure_core::JobId;

/// What is known of each job that was ever submitted.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) submitted: BTreeMap<JobId, Acknowledged>,
    recent: VecDeque<JobId>,
}

/// How many are looked at more than others.
const RECENT: usize = 12;

/// What its submitter was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acknowledged {
    /// Every try so far ended with the word that nothing was done.
    No,
    /// Some try ended without a word: it is there or not, or will be.
    Maybe,
    /// It was acknowledged.
    Yes,
}

impl History {
    /// A job is about to be sent, perhaps again.
    pub(crate) fn sending(&mut self, id: &JobId) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(id.clone());
        self.submitted.entry(id.clone()).or_insert(Acknowledged::No);
    }

    /// Nothing certain is known any more, unless it was acknowledged before.
    pub(crate) fn lost(&mut self, id: &JobId) {
        let told = self
            .submitted
            .entry(id.clone())
            .or_insert(Acknowledged::Maybe);
        if *told == Acknowledged::No {
            *told = Acknowledged::Maybe;
        }
    }

    pub(crate) fn acknowledged(&mut self, id: &JobId) {
        self.submitted.insert(id.clone(), Acknowledged::Yes);
    }

    pub(crate) fn is_acknowledged(&self, id: &JobId) -> bool {
        self.submitted.get(id) == Some(&Acknowledged::Yes)
    }

    /// One of the last that were submitted, by any client.
    pub(crate) fn recent(&self, number: usize) -> Option<JobId> {
        let count = self.recent.len().max(1);
        self.recent.get(number % count).cloned()
    }

    /// A job that was once submitted.
    pub(crate) fn nth(&self, number: usize) -> Option<JobId> {
        let count = self.submitted.len().max(1);
        self.submitted.keys().nth(number % count).cloned()
    }
}
