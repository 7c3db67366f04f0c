//! What clients saw of a job could have happened one call after the other: submits, claims, ends, reads and what people do,
//! with those whose answers were lost at any later time or never.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::JobId;
use tenure_linear::job::{Call, Job, State};
use tenure_linear::{Entry, Verdict, check};

use crate::invariants::Violation;

/// What clients saw, by job.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    jobs: BTreeMap<JobId, Vec<Entry<Call>>>,
    /// Moments: everything is in one thread, so a number tells what was before what.
    moment: u64,
    /// Claims whose answers were lost: nobody knows which jobs they got.
    claims_are_lost: bool,
}

impl Calls {
    /// A call is about to be sent.
    pub(crate) fn begin(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// It was answered.
    pub(crate) fn ended(&mut self, id: &JobId, begun: u64, call: Call) {
        self.moment += 1;
        let ended = Some(self.moment);
        self.note(id, Entry { begun, ended, call });
    }

    /// Nobody knows whether it happened, or whether it will.
    pub(crate) fn lost(&mut self, id: &JobId, begun: u64, call: Call) {
        let ended = None;
        self.note(id, Entry { begun, ended, call });
    }

    pub(crate) fn lost_claim(&mut self) {
        self.claims_are_lost = true;
    }

    fn note(&mut self, id: &JobId, entry: Entry<Call>) {
        self.jobs.entry(id.clone()).or_default().push(entry);
    }

    /// How many calls there were.
    pub(crate) fn len(&self) -> u64 {
        self.jobs.values().map(|calls| calls.len() as u64).sum()
    }

    /// Judges all of it, but for those that were made more than once. Returns how many jobs had too many calls at once to
    /// tell.
    pub(crate) fn check(&self, made_again: &BTreeSet<JobId>) -> Result<u64, Violation> {
        let mut unknown = 0;
        let once = self.jobs.iter().filter(|(id, _)| !made_again.contains(id));
        for (id, calls) in once {
            // Schedules make jobs, and those who see to it that claims are served.
            let is_submitted = calls
                .iter()
                .any(|entry| matches!(entry.call, Call::Submit(_)));
            let job = Job {
                claims_are_lost: self.claims_are_lost,
                is_scheduled: !is_submitted,
            };
            match check(&job, State::ABSENT, calls) {
                Verdict::Fits => {}
                Verdict::GaveUp => unknown += 1,
                Verdict::Broken(at) => {
                    let message = format!("{id}: {:?} fits nowhere in {calls:?}", calls[at]);
                    return Err(Violation::new("calls happen one after the other", message));
                }
            }
        }
        Ok(unknown)
    }
}
