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

/// How long a lost session may take to be replaced before calls are refused.
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
    /// The events that are kept for followers who reconnect.
    pub(crate) past: Past,
    /// The store, over a connection that is not the session's.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) meter: Arc<Meter>,
    /// The ceilings on its requests, if there are any.
    pub(crate) throttle: Option<Arc<Throttle>>,
    /// The key of the brokers' lease, which a probe of the store reads.
    pub(crate) lease_key: Key,
    /// The fence of the same election.
    pub(crate) fence_key: Key,
    pub(crate) forwarder: Forwarder,
    pub(crate) metrics: Metrics,
    pub(crate) rates: Arc<Rates>,
    pub(crate) probe: Probe,
    /// Limits how many candidates and elections callers can make.
    pub(crate) election_bounds: Arc<Bounds>,
    /// Readings of the whole namespace, shared by calls.
    pub(crate) looks: Looks,
    /// Room for calls that wait: claims, elections, and what is forwarded.
    pub(crate) waits: Semaphore,
    /// Room for calls that are held until there is a leader.
    pub(crate) holds: Semaphore,
    /// Room for followers of events.
    pub(crate) followers: Arc<Semaphore>,
    /// Room for sockets of osqueue's clients.
    pub(crate) sockets: Arc<Semaphore>,
    pub(crate) connections: Arc<Connections>,
    /// Memory for request bodies.
    pub(crate) bodies: Budget,
    /// Memory for answers that clients are reading.
    pub(crate) answers: Budget,
    /// The number of the last session that was found lost, and when.
    pub(crate) lost: Mutex<Option<(u64, Instant)>>,
    pub(crate) dashboard: Dashboard,
    /// Records who changed what, and who was refused.
    pub(crate) audit: Audit,
    /// Cancelled when the server is about to stop: it hands over, but still answers.
    pub(crate) leaving: CancellationToken,
    /// Cancelled when the server stops, which ends every wait.
    pub(crate) stop: CancellationToken,
}

impl App {
    /// Whether this server answers calls about the queue itself.
    pub(crate) fn is_serving(&self) -> bool {
        self.queue.is_serving()
    }

    /// Whether this server's own session is alive.
    pub(crate) fn is_trusted(&self) -> bool {
        self.node.session().is_some() && self.node.metrics().trust_remaining_ms > 0
    }

    /// Whether this server has lost its session and does not get another one. False while it waits for its first
    /// session, and just after a session was lost: a process that was stopped for a while finds its session lost when
    /// it wakes up, and soon has another.
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

    /// The leader that this server last saw.
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.queue.election().leader()
    }

    /// Whether this process is the given leader.
    pub(crate) fn is_me(&self, leader: &Leader) -> bool {
        self.node
            .session()
            .is_some_and(|session| session.incarnation == leader.incarnation)
    }

    /// Admits one more waiting call, until the permit is dropped.
    pub(crate) fn wait_permit(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.waits
            .try_acquire()
            .map_err(|_| Problem::overloaded("too many calls are already waiting"))
    }
}
