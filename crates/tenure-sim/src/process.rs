//! One process: a machine, the clock of its host, and the work that it does while it leads.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::election::Term;
use tenure_core::node::{Input, Node};
use tenure_core::polls::Polls;
use tenure_core::session::Config;
use tenure_core::{ElectionName, Incarnation, Moment, NodeId};

use crate::clock::Clock;

/// A process.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its name in the trace.
    pub label: String,
    /// The slot in which it runs.
    pub slot: usize,
    /// Its node.
    pub node_id: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its name for the oracle: its incarnation or, for a copy of a process, a separate number.
    pub known_as: Incarnation,
    /// Its configuration.
    pub config: Config,
    /// The machine.
    pub node: Node,
    /// Its host's clock.
    pub clock: Clock,
    /// The inputs that wait while it is paused; `None` while it runs.
    pub paused: Option<Vec<Input>>,
    /// Until when it cannot reach the store.
    pub cut_off_until: Duration,
    /// Until when it can write to the store but not read.
    pub blind_until: Duration,
    /// When it last heard that a lease could not be read.
    pub unread_at: Option<Duration>,
    /// The running work of terms that it leads or has led.
    pub work: BTreeMap<ElectionName, Term>,
    /// In which elections it is a candidate.
    pub stands: BTreeMap<ElectionName, bool>,
    /// It was told to leave, or its session is over: another process may take its place.
    pub replaced: bool,
    /// Its session is over.
    pub over: bool,
    /// Identifies the wake that it waits for; older ones are stale.
    pub wake_token: u64,
    /// How often it woke for nothing at this very moment.
    pub idle_wakes: u64,
    /// Counts its requests.
    pub meter: Meter,
    /// The looks at leases that wait for a listing, if it uses listings.
    pub listings: Option<Polls<ElectionName>>,
}

/// Counts requests in the current second.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    second: u64,
    requests: u64,
}

impl Process {
    /// The term that it trusts itself to lead at a real time, by its own clock, even while paused.
    #[must_use]
    pub fn leads(&self, election: &ElectionName, real: Duration) -> Option<Term> {
        let (term, until) = self.node.leads_until(election)?;
        (self.clock.moment(real) < until).then_some(term)
    }

    /// Whether it takes part in an election as a candidate.
    #[must_use]
    pub fn is_candidate(&self, election: &ElectionName) -> bool {
        let stands = self.stands.get(election).copied().unwrap_or_default();
        stands && !self.over && !self.replaced
    }

    /// When the machine wants to wake, or a listing has to be requested, in real time.
    #[must_use]
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let now = self.clock.moment(now);
        let listings = self.listings.as_ref();
        let listing_at = listings.map_or(Moment::NEVER, |listings| listings.wake_at(now));
        self.clock.real(self.node.wake_at().min(listing_at))
    }
}

impl Meter {
    /// Counts a request, and returns how many there were in this second.
    pub fn count(&mut self, now: Duration) -> u64 {
        if now.as_secs() != self.second {
            self.second = now.as_secs();
            self.requests = 0;
        }
        self.requests += 1;
        self.requests
    }
}
