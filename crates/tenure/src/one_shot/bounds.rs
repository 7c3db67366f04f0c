//! How many candidates and elections callers may make.
//!
//! To count them is to list them. That is done for the first newcomer, and for another one only when the count is some
//! seconds old; those between are added to it. So a call costs the same however many there are, and where several
//! processes let callers in, a few more may come in at once than the bound says.

use std::time::Duration;

use tenure_core::session::{Glance, Record};
use tenure_core::{ElectionName, Moment};
use tenure_store::{Key, Prefix};
use tokio::sync::Mutex;

use super::OneShot;
use crate::Error;
use crate::clock::Clock;

/// How long a count is good for, and how long if there is no room by it: what was removed makes room.
const FRESH: Duration = Duration::from_secs(5);
const FRESH_IF_FULL: Duration = Duration::from_secs(1);

/// In how many elections one candidate may stand: every call writes the names of all.
const STANDS_MAX: usize = 100;

/// How many candidates and elections there may be in a namespace. One for all calls of a process.
#[derive(Debug)]
pub struct Bounds {
    candidates_max: usize,
    elections_max: usize,
    candidates: Mutex<Option<Count>>,
    elections: Mutex<Option<Count>>,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    at: Moment,
    number: usize,
}

impl Bounds {
    /// At most so many sessions, those of nodes included, and so many elections that were ever held.
    #[must_use]
    pub fn new(candidates_max: usize, elections_max: usize) -> Self {
        Self {
            candidates_max,
            elections_max,
            candidates: Mutex::default(),
            elections: Mutex::default(),
        }
    }

    /// Counts one more candidate, if there is room. A caller that has to list the others removes some of the dead, and returns
    /// what it saw of the living.
    pub(super) async fn admit_candidate(
        &self,
        elections: &OneShot,
    ) -> Result<Option<Box<Glance>>, Error> {
        let clock = &elections.runtime.clock;
        let mut count = self.candidates.lock().await;
        let mut passed = None;
        if !is_fresh(clock, *count, self.candidates_max) {
            passed = elections.sweep(None).await;
            let nodes = elections.keys.nodes();
            *count = Some(list(elections, &nodes, self.candidates_max).await?);
        }
        let hint = "withdraw candidates that are no longer needed, or wait until they expire";
        add(&mut count, self.candidates_max, "candidates", hint)?;
        Ok(passed)
    }

    /// Counts one more election, if there is room.
    pub(super) async fn admit_election(&self, elections: &OneShot) -> Result<(), Error> {
        let clock = &elections.runtime.clock;
        let mut count = self.elections.lock().await;
        if !is_fresh(clock, *count, self.elections_max) {
            *count = Some(list(elections, &elections.keys.elections(), self.elections_max).await?);
        }
        let hint = "use an election that exists: the lease of each is kept for ever";
        add(&mut count, self.elections_max, "elections", hint)
    }

    /// Whether a candidate may stand in this election beside the others that it stands in.
    pub(super) fn check_stands(
        &self,
        record: &Record,
        election: &ElectionName,
    ) -> Result<(), Error> {
        let stands = &record.about.stands;
        if stands.len() < STANDS_MAX || stands.contains_key(election) {
            return Ok(());
        }
        Err(Error::Full {
            what: format!(
                "{} stands in {STANDS_MAX} elections, the most for one candidate",
                record.node
            ),
            hint: "use another candidate, or withdraw this one from some",
        })
    }
}

fn is_fresh(clock: &Clock, count: Option<Count>, max: usize) -> bool {
    count.is_some_and(|count| {
        let fresh = if count.number < max {
            FRESH
        } else {
            FRESH_IF_FULL
        };
        clock.moment().since(count.at) < fresh
    })
}

fn add(count: &mut Option<Count>, max: usize, what: &str, hint: &'static str) -> Result<(), Error> {
    match count {
        Some(count) if count.number < max => count.number += 1,
        _ => {
            return Err(Error::Full {
                what: format!("the namespace has {max} {what}, the most that are allowed"),
                hint,
            });
        }
    }
    Ok(())
}

/// How many objects there are, as far as it matters.
async fn list(elections: &OneShot, prefix: &Prefix, max: usize) -> Result<Count, Error> {
    let at = elections.runtime.clock.moment();
    let (mut number, mut after): (usize, Option<Key>) = (0, None);
    loop {
        let page = elections.store.list(prefix, after.as_ref()).await?;
        number += page.entries.len();
        let last = page.entries.into_iter().next_back();
        let last = last.map(|entry| entry.key);
        // Also for a store that promises more and never gives it.
        if !page.more || number >= max || last <= after {
            return Ok(Count { at, number });
        }
        after = last;
    }
}
