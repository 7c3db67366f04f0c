//! What really happened, which no process can know. The invariants are checked against it.

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
    /// The configuration of every process that ever ran.
    pub configs: BTreeMap<Incarnation, Config>,
    /// Until when a session may be trusted because of its applied writes, on its own clock.
    pub session_backing: BTreeMap<Incarnation, Moment>,
    /// Until when a term may be trusted because of answered looks at its lease.
    pub lease_backing: BTreeMap<(Incarnation, ElectionName, Term), Moment>,
    /// Sessions that operators deleted or damaged.
    pub hurt: BTreeSet<Incarnation>,
    /// Processes that were copied, and until when both may trust themselves because of what happened before the copy.
    pub copied: BTreeMap<Incarnation, Duration>,
    /// Elections whose lease operators restored: it may change between two reads without a write by a process.
    pub restored: BTreeSet<ElectionName>,
    /// Sessions that were ever gone or evicted.
    pub ended: BTreeSet<Incarnation>,
    /// The terms that are being led, according to the events of the processes.
    pub leading: BTreeMap<(Incarnation, ElectionName), (Term, Lineage)>,
    /// The last term that was led in each lineage, and by whom.
    pub elected: BTreeMap<(ElectionName, Lineage), (Term, Incarnation)>,
    /// Every fence that a process ever raised.
    pub installed: BTreeSet<(ElectionName, Term, Incarnation)>,
    /// The highest term led since the election's objects were last wiped.
    pub highest: BTreeMap<ElectionName, Term>,
    /// Elections whose lease and fence were wiped: only there may two lineages overlap.
    pub wiped: BTreeMap<ElectionName, u64>,
    /// How many terms were led.
    pub elected_count: u64,
}

impl Oracle {
    /// An oracle of a world in which nothing has happened yet.
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

    /// The real time that the fastest clock takes for a whole ttl. No observer may wait for less.
    #[must_use]
    pub fn at_least(&self, ttl: Duration) -> Duration {
        // Allows for rounding.
        real_length(ttl, self.fastest).saturating_sub(Duration::from_nanos(10))
    }

    /// A session's write, started at that moment, was applied.
    pub fn back_session(&mut self, incarnation: Incarnation, started: Moment) {
        if let Some(config) = self.configs.get(&incarnation) {
            let until = started + (config.ttl - config.margin);
            let backing = self.session_backing.entry(incarnation).or_default();
            *backing = until.max(*backing);
        }
    }

    /// The store showed a lease to its holder, which had asked at that moment.
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

    /// A process was copied: the copy's trust rests on what the original did before.
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

    /// Forgets a process that does not exist any more.
    pub fn forget(&mut self, incarnation: Incarnation) {
        self.leading.retain(|(leader, _), _| *leader != incarnation);
        self.lease_backing
            .retain(|(leader, _, _), _| *leader != incarnation);
    }
}
