//! What all handlers share.

use std::sync::Arc;

use tenure::core::election::machine::Leader;
use tenure::queue::Queue;
use tenure::{Bounds, Node};
use tenure_store::wrap::metered::Meter;
use tenure_store::{Key, Store};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::audit::Audit;
use crate::budget::Budget;
use crate::connections::Connections;
use crate::dashboard::Dashboard;
use crate::forward::Forwarder;
use crate::handlers::health::Probe;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::rates::Rates;

/// One running server.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: Config,
    /// Where others reach this server.
    pub(crate) url: String,
    pub(crate) node: Node,
    pub(crate) queue: Queue,
    /// The store, not by the connection of the session.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) meter: Arc<Meter>,
    /// Where the lease of the brokers is: what a probe of the store reads.
    pub(crate) lease_key: Key,
    pub(crate) forwarder: Forwarder,
    pub(crate) metrics: Metrics,
    pub(crate) rates: Arc<Rates>,
    pub(crate) probe: Probe,
    /// How many candidates and elections callers have made.
    pub(crate) election_bounds: Arc<Bounds>,
    /// Room for calls that wait: claims, elections, and what is forwarded.
    pub(crate) waits: Semaphore,
    /// Room for calls that are held until somebody leads.
    pub(crate) holds: Semaphore,
    /// Room for followers of events.
    pub(crate) followers: Arc<Semaphore>,
    pub(crate) connections: Arc<Connections>,
    /// Room for bodies that arrive.
    pub(crate) bodies: Budget,
    /// Room for answers that are read.
    pub(crate) answers: Budget,
    pub(crate) dashboard: Dashboard,
    /// Who changed what, and who was refused.
    pub(crate) audit: Audit,
    /// Cancelled when the server is about to stop: it hands over, and still answers.
    pub(crate) leaving: CancellationToken,
    /// Cancelled when the server stops: whoever waits stops waiting.
    pub(crate) stop: CancellationToken,
}

impl App {
    /// Whether calls about the queue are answered here.
    pub(crate) fn is_serving(&self) -> bool {
        self.queue.is_serving()
    }

    /// Whether this server's own session is alive.
    pub(crate) fn is_trusted(&self) -> bool {
        self.node.session().is_some() && self.node.metrics().trust_remaining_ms > 0
    }

    /// Who leads, as this server saw last.
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.queue.election().leader()
    }

    /// Whether a leader is this process.
    pub(crate) fn is_me(&self, leader: &Leader) -> bool {
        self.node
            .session()
            .is_some_and(|session| session.incarnation == leader.incarnation)
    }

    /// Room for one more call that waits, for as long as the answer is kept.
    pub(crate) fn wait_permit(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.waits
            .try_acquire()
            .map_err(|_| Problem::overloaded("too many calls are already waiting"))
    }
}
