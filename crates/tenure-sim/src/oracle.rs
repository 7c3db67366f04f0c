//! What really happened, as no process can know it: the ground on which the invariants judge.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::election::Term;
use tenure_core::session::Config;
use tenure_core::{ElectionName, Incarnation, Lineage, Moment};

use crate::clock::real_length;

/// The facts.
#[derive(Debug, Clone, Hash)]
pub struct Oracle {
    /// The rate of the fastest clock.
    pub fastest: u64,
    /// The times of every process that ever ran.
    pub configs: BTreeMap<Incarnation, Config>,
    /// Until when a session's applied writes allow it to be trusted, on its own clock.
    pub session_backing: BTreeMap<Incarnation, Moment>,
    /// Until when the looks at a lease, as the store answered them, allow a term to be trusted.
    pub lease_backing: BTreeMap<(Incarnation, ElectionName, Term), Moment>,
    /// Sessions that people deleted or damaged.
    pub hurt: BTreeSet<Incarnation>,
    /// Processes of which there was a copy, and until when both may trust themselves by what was before it.
    pub copied: BTreeMap<Incarnation, Duration>,
    /// Elections whose lease people restored: it may be one thing when it is read and another a moment later.
    pub restored: BTreeSet<ElectionName>,
    /// Sessions that were gone or evicted at some time.
    pub ended: BTreeSet<Incarnation>,
    /// The terms that are being led, as the processes were told.
    pub leading: BTreeMap<(Incarnation, ElectionName), (Term, Lineage)>,
    /// The last term that was led in each row of terms, and by whom.
    pub elected: BTreeMap<(ElectionName, Lineage), (Term, Incarnation)>,
    /// Every fence that a process ever raised.
    pub installed: BTreeSet<(ElectionName, Term, Incarnation)>,
    /// The highest term led since the election's objects were last wiped.
    pub highest: BTreeMap<ElectionName, Term>,
    /// Elections whose lease and fence were wiped: only there may two rows of terms overlap.
    pub wiped: BTreeMap<ElectionName, u64>,
    /// How many terms were led.
    pub elected_count: u64,
}

impl Oracle {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(fastest: u64) -> Self {
        Self {
            fastest,
            configs: BTreeMap::new(),
            session_backing: BTreeMap::new(),
            lease_backing: BTreeMap::new(),
            hurt: BTreeSet::new(),
            copied: BTreeMap::new(),
            restored: BTreeSet::new(),
            ended: BTreeSet::new(),
            leading: BTreeMap::new(),
            elected: BTreeMap::new(),
            installed: BTreeSet::new(),
            highest: BTreeMap::new(),
            wiped: BTreeMap::new(),
            elected_count: 0,
        }
    }

    /// The real time that the fastest clock takes for a whole ttl: no observer may have waited for less.
    #[must_use]
    pub fn at_least(&self, ttl: Duration) -> Duration {
        // Rounding is not what is looked for.
        real_length(ttl, self.fastest).saturating_sub(Duration::from_nanos(10))
    }

    /// A session's write was applied that was started then.
    pub fn back_session(&mut self, incarnation: Incarnation, started: Moment) {
        if let Some(config) = self.configs.get(&incarnation) {
            let until = started + (config.ttl - config.margin);
            let backing = self.session_backing.entry(incarnation).or_default();
            *backing = until.max(*backing);
        }
    }

    /// The store showed a lease to its holder, who had asked then.
    pub fn back_lease(
        &mut self,
        incarnation: Incarnation,
        election: &ElectionName,
        term: Term,
        started: Moment,
    ) {
        if let Some(config) = self.configs.get(&incarnation) {
            let until = started + (config.ttl - config.margin);
            let key = (incarnation, election.clone(), term);
            let backing = self.lease_backing.entry(key).or_default();
            *backing = until.max(*backing);
        }
    }

    /// There is a copy of a process: what it did before is what the copy's trust rests on as well.
    pub fn copy(&mut self, from: Incarnation, to: Incarnation) {
        if let Some(config) = self.configs.get(&from).cloned() {
            self.configs.insert(to, config);
        }
        if let Some(&backing) = self.session_backing.get(&from) {
            self.session_backing.insert(to, backing);
        }
        let leases = self.lease_backing.iter();
        let of_copy: Vec<_> = leases
            .filter(|((of, _, _), _)| *of == from)
            .map(|((_, election, term), &until)| ((to, election.clone(), *term), until))
            .collect();
        self.lease_backing.extend(of_copy);
        let leading = self.leading.iter().filter(|((of, _), _)| *of == from);
        let of_copy: Vec<_> = leading
            .map(|((_, election), &led)| ((to, election.clone()), led))
            .collect();
        self.leading.extend(of_copy);
    }

    /// A process is no more.
    pub fn forget(&mut self, incarnation: Incarnation) {
        self.leading.retain(|(leader, _), _| *leader != incarnation);
        self.lease_backing
            .retain(|(leader, _, _), _| *leader != incarnation);
    }
}
