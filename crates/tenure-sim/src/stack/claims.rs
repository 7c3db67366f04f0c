//! What the workers believe: which jobs they hold, and until when.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::JobId;
use tenure_core::queue::{Claimed, Token};
use tokio::time::Instant;

use super::invariants::one_worker_at_a_time;
use crate::invariants::Violation;

/// All beliefs.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) holds: BTreeMap<JobId, BTreeMap<Token, Hold>>,
    /// Which claims were completed, as their workers were told.
    pub(crate) completed: BTreeSet<(JobId, Token)>,
    pub(crate) count: u64,
}

/// One worker's belief.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) worker: String,
    pub(crate) until: Instant,
}

impl Claims {
    /// A worker was given a job.
    pub(crate) fn claimed(
        &mut self,
        worker: &str,
        job: &Claimed,
        until: Instant,
    ) -> Result<(), Violation> {
        one_worker_at_a_time::check(self, worker, job)?;
        self.count += 1;
        let worker = worker.to_owned();
        let holds = self.holds.entry(job.id.clone()).or_default();
        holds.insert(job.token, Hold { worker, until });
        Ok(())
    }

    /// Its lease was renewed.
    pub(crate) fn renewed(&mut self, id: &JobId, token: Token, until: Instant) {
        if let Some(hold) = self
            .holds
            .get_mut(id)
            .and_then(|holds| holds.get_mut(&token))
        {
            hold.until = hold.until.max(until);
        }
    }

    /// The worker is about to end it: from now on it holds nothing. Returns until when it would have.
    pub(crate) fn ending(&mut self, id: &JobId, token: Token) -> Option<Instant> {
        let holds = self.holds.get_mut(id)?;
        let hold = holds.remove(&token);
        if holds.is_empty() {
            self.holds.remove(id);
        }
        hold.map(|hold| hold.until)
    }
}
