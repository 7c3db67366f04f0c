//! What all handlers share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::cluster::Cluster;
use tenure::core::election::Leader;
use tenure::queue::Queue;
use tenure::{Bounds, Node};
use tenure_store::wrap::metered::Meter;
use tenure_store::wrap::throttled::Throttle;
use tenure_store::{Key, Store};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::audit::Audit;
use crate::budget::Budget;
use crate::connections::Connections;
use crate::dashboard::Dashboard;
use crate::forward::Forwarder;
use crate::handlers::events::Past;
use crate::handlers::health::Probe;
use crate::looks::Looks;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::rates::Rates;

/// How long a session that was lost may take to be replaced by another, before calls are refused for want of one.
const BACK: Duration = Duration::from_secs(2);

/// One running server.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: Config,
    /// Where others reach this server.
    pub(crate) url: String,
    pub(crate) node: Node,
    pub(crate) queue: Queue,
    /// This node's part in the cluster.
    pub(crate) cluster: Cluster,
    /// The events that are kept for followers who come back.
    pub(crate) past: Past,
    /// The store, not by the connection of the session.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) meter: Arc<Meter>,
    /// The ceilings on its requests, if there are any.
    pub(crate) throttle: Option<Arc<Throttle>>,
    /// Where the lease of the brokers is: what a probe of the store reads.
    pub(crate) lease_key: Key,
    /// The fence of the same election.
    pub(crate) fence_key: Key,
    pub(crate) forwarder: Forwarder,
    pub(crate) metrics: Metrics,
    pub(crate) rates: Arc<Rates>,
    pub(crate) probe: Probe,
    /// How many candidates and elections callers have made.
    pub(crate) election_bounds: Arc<Bounds>,
    /// What is read of the whole namespace.
    pub(crate) looks: Looks,
    /// Room for calls that wait: claims, elections, and what is forwarded.
    pub(crate) waits: Semaphore,
    /// Room for calls that are held until somebody leads.
    pub(crate) holds: Semaphore,
    /// Room for followers of events.
    pub(crate) followers: Arc<Semaphore>,
    /// Room for sockets of osqueue's clients.
    pub(crate) sockets: Arc<Semaphore>,
    pub(crate) connections: Arc<Connections>,
    /// Room for bodies that arrive.
    pub(crate) bodies: Budget,
    /// Room for answers that are read.
    pub(crate) answers: Budget,
    /// The number of the session that was found lost last, and when.
    pub(crate) lost: Mutex<Option<(u64, Instant)>>,
    pub(crate) dashboard: Dashboard,
    /// Who changed what, and who was refused.
    pub(crate) audit: Audit,
    /// Cancelled when the server is about to stop: it hands over, and still answers.
    pub(crate) leaving: CancellationToken,
    /// Cancelled when the server stops, which ends every wait.
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

    /// Whether this server has lost its session and does not get another one: not while it waits for its first, nor just
    /// after it was lost. A process that was stopped for a while has lost it when it wakes up, and is back in a moment.
    pub(crate) fn is_cut_off(&self) -> bool {
        let joined = self.node.metrics().sessions;
        if joined == 0 || self.is_trusted() {
            return false;
        }
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match *lost {
            Some((session, since)) if session == joined => since.elapsed() >= BACK,
            _ => {
                *lost = Some((joined, Instant::now()));
                false
            }
        }
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
