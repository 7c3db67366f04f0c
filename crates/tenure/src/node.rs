//! This process in a namespace: its session, and the way into elections.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::election::PRIORITY_DEFAULT;
use tenure_core::queue::Rules;
use tenure_core::session::{About, Config, Holder, Record};
use tenure_core::{ElectionName, Namespace, NodeId};
use tenure_store::wrap::Polled;
use tenure_store::wrap::metered::{Meter, Metered};
use tenure_store::wrap::throttled::{Throttle, Throttled};
use tenure_store::{IfMissing, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::clock::Clock;
use crate::cluster::events::Hub;
use crate::cluster::{self, Cluster};
use crate::driver::{Command, Driver};
use crate::election::{Election, Seat};
use crate::inspect::NamespaceView;
use crate::keys::Keys;
use crate::metrics::{Counters, Metrics};
use crate::nudge::Nudger;
use crate::{Error, Runtime, requests};

/// How long the threads of a session are kept that do what blocks: as good as for ever. One that ends may have no
/// successor, if programs have taken every process that this user may have; and then no heartbeat could be sent.
const KEEP_THREADS: Duration = Duration::from_secs(365 * 24 * 3600);

/// How much is kept of what a process says is wrong with it.
const TROUBLE_MAX: usize = 500;

/// How to take part in a namespace.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The store, by URL; see [`tenure_store::open`].
    pub store: String,
    /// The namespace: everything of one cluster is under it.
    pub namespace: String,
    /// This node's name, stable over restarts; the host's name if empty. Two processes with one name are
    /// two candidates, and the duplicate is reported.
    pub node: Option<String>,
    /// The times of the session.
    pub session: Config,
    /// Labels, for other nodes to read.
    pub labels: BTreeMap<String, String>,
    /// Where other nodes reach this one, for them to read.
    pub address: Option<String>,
    /// Where to listen for nudges on stores without hints. Other hosts reach this node only if it is an
    /// address of theirs too; the default is a free port on loopback.
    pub nudge: Option<SocketAddr>,
    /// Looks at the store now and then, and does nothing else to hear of changes: no `LISTEN` on PostgreSQL, no watch of a
    /// folder, no datagrams. For poolers and networks that allow nothing else. A hand-over then takes up to a heartbeat.
    pub polls_only: bool,
    /// Counts every request to the store, if given: see [`tenure_store::wrap::metered`].
    pub meter: Option<Arc<Meter>>,
    /// A ceiling on the requests to the store, if given. When its budget runs low, heartbeats become as rare as the ttl
    /// allows. Not for a directory, which has files beside its objects.
    pub throttle: Option<Arc<Throttle>>,
    /// What it runs on; anything else than the host only in tests.
    pub runtime: Runtime,
}

impl NodeOptions {
    /// The defaults, for a store and a namespace.
    pub fn new(store: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self {
            store: store.into(),
            namespace: namespace.into(),
            node: None,
            session: Config::default(),
            labels: BTreeMap::new(),
            address: None,
            nudge: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            polls_only: false,
            meter: None,
            throttle: None,
            runtime: Runtime::default(),
        }
    }

    /// The store as everything but the session uses it.
    fn wrapped(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let store = self.counted(store);
        match &self.throttle {
            Some(throttle) => Arc::new(Throttled::sharing(store, throttle.clone())),
            None => store,
        }
    }

    /// The store that the session has to itself.
    fn wrapped_for_session(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let store = self.counted(store);
        match &self.throttle {
            Some(throttle) => Arc::new(Throttled::of_session(store, throttle.clone())),
            None => store,
        }
    }

    fn counted(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = match &self.meter {
            Some(meter) => Arc::new(Metered::with_meter(store, meter.clone())),
            None => store,
        };
        if self.polls_only {
            Arc::new(Polled::new(store))
        } else {
            store
        }
    }
}

/// A process in a namespace. Cheap to clone; the session ends when the last handle is dropped, or by
/// [`Node::shutdown`].
#[derive(Debug, Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) id: NodeId,
    pub(crate) view: NamespaceView,
    commands: mpsc::UnboundedSender<Command>,
    session: watch::Receiver<Option<Holder>>,
    duplicates: watch::Receiver<Vec<Record>>,
    counters: Arc<Counters>,
    runtime: Runtime,
    /// The times of the session, for what has to fit to them.
    pub(crate) session_config: Config,
    /// Tells of the cluster, if this process takes part in it.
    pub(crate) hub: OnceLock<Arc<Hub>>,
    seats: Mutex<HashMap<ElectionName, Arc<Seat>>>,
    /// Cancelled when the driver has ended.
    stopped: CancellationToken,
}

impl Node {
    /// Opens the store twice (the session gets a connection of its own) and begins to join the namespace;
    /// [`joined`](Node::joined) waits for the session. Dropped before it is done, it leaves nothing behind: a
    /// session that was begun is ended.
    pub async fn start(options: NodeOptions) -> Result<Self, Error> {
        let view = options.wrapped(tenure_store::open(&options.store).await?);
        // A store in memory cannot be opened twice.
        let own = if options.store.starts_with("memory:") {
            OwnStore::Shared(view.clone())
        } else {
            OwnStore::Url(options.store.clone())
        };
        Self::launch(options, view, own).await
    }

    /// The same on a store that is open already, for tests and for stores of your own. The session
    /// shares its connection with whatever else uses it.
    pub async fn start_with(store: Arc<dyn Store>, options: NodeOptions) -> Result<Self, Error> {
        let store = options.wrapped(store);
        Self::launch(options, store.clone(), OwnStore::Shared(store)).await
    }

    async fn launch(
        options: NodeOptions,
        view: Arc<dyn Store>,
        own: OwnStore,
    ) -> Result<Self, Error> {
        options.session.check()?;
        let namespace = Namespace::new(&options.namespace)?;
        // By both connections: another namespace under the same name would be another queue, and other elections.
        view.pin(&Keys::new(namespace.clone()).all(), IfMissing::Make);
        let id = match &options.node {
            Some(node) => NodeId::new(node)?,
            None => host_name(),
        };
        let (commands, receiver) = mpsc::unbounded_channel();
        let (session, session_seen) = watch::channel(None);
        let (duplicates, duplicates_seen) = watch::channel(Vec::new());
        let counters = Arc::new(Counters::default());
        let runtime = options.runtime.clone();
        let session_config = options.session.clone();
        let polls_only = options.polls_only;
        let stopped = CancellationToken::new();
        let (ready, opened) = oneshot::channel();
        let thread = Thread {
            options,
            namespace: namespace.clone(),
            id: id.clone(),
            own,
            receiver,
            reports: commands.clone(),
            session,
            duplicates,
            counters: counters.clone(),
        };
        thread.launch(ready, stopped.clone().drop_guard())?;
        // Made before anything is waited for: dropped, it ends the session, however far that has come.
        let inner = Inner {
            id,
            view: NamespaceView::new(view, namespace)
                .with_nudges(!polls_only)
                .with_runtime(runtime.clone()),
            commands,
            session: session_seen,
            duplicates: duplicates_seen,
            counters,
            runtime,
            session_config,
            hub: OnceLock::new(),
            seats: Mutex::default(),
            stopped,
        };
        opened.await.map_err(|_| Error::ShutDown)??;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// This node's name.
    #[must_use]
    pub fn id(&self) -> &NodeId {
        &self.inner.id
    }

    /// The session of this process; `None` while it has none, because it has not joined yet or has just
    /// lost it.
    #[must_use]
    pub fn session(&self) -> Option<Holder> {
        self.inner.session.borrow().clone()
    }

    /// Waits until the session stands.
    pub async fn joined(&self) -> Result<Holder, Error> {
        let mut session = self.inner.session.clone();
        let holder = session
            .wait_for(Option::is_some)
            .await
            .map_err(|_| Error::ShutDown)?;
        holder.clone().ok_or(Error::ShutDown)
    }

    /// Waits until this process has no session: it has lost it, or has not joined yet.
    pub async fn lost(&self) {
        let mut session = self.inner.session.clone();
        // An error means that there will be none.
        let _ = session.wait_for(Option::is_none).await;
    }

    /// The sessions of other processes that run under this node's id now. They are candidates like any
    /// other, but two processes with one id are nearly always a mistake. Seen about two heartbeats after
    /// this process has joined, and looked for again every ten.
    #[must_use]
    pub fn duplicates(&self) -> Vec<Record> {
        self.inner.duplicates.borrow().clone()
    }

    /// What this node has counted so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.inner.counters.snapshot(self.clock().moment())
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.runtime.clock
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    /// What the store says about this namespace.
    #[must_use]
    pub fn view(&self) -> &NamespaceView {
        &self.inner.view
    }

    /// The store, by the connection that is not the session's own.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        self.inner.view.store()
    }

    /// Becomes a candidate. Names that begin with `tenure.` are refused: they are those of the queue and of the
    /// cluster: only nodes that open the one or take part in the other are candidates there.
    pub async fn join(&self, election: &str) -> Result<Election, Error> {
        self.join_with(election, Some(PRIORITY_DEFAULT)).await
    }

    /// Follows an election without standing in it; also one of the product's own, in which this node stands on
    /// if it does already.
    pub async fn observe(&self, election: &str) -> Result<Election, Error> {
        self.join_with(election, None).await
    }

    /// Becomes a candidate with a priority: each point below 100 waits 10 ms longer before it takes a
    /// free lease, so that nodes with a higher one come first. Nobody is pushed out.
    pub async fn join_with(&self, election: &str, priority: Option<u8>) -> Result<Election, Error> {
        if priority.is_some() {
            return Ok(self.join_own(ElectionName::of_users(election)?, priority));
        }
        let name = ElectionName::new(election)?;
        if name.is_reserved()
            && let Some(seat) = self.inner.seats().get(&name)
        {
            return Ok(Election::new(seat.clone(), self.inner.clone()));
        }
        Ok(self.join_own(name, None))
    }

    /// The same for any election, also those that only the product itself stands in.
    pub(crate) fn join_own(&self, name: ElectionName, priority: Option<u8>) -> Election {
        let seat = {
            let mut seats = self.inner.seats();
            seats
                .entry(name.clone())
                .or_insert_with(|| Seat::new(name))
                .clone()
        };
        self.inner.send(Command::Join {
            seat: seat.clone(),
            priority,
        });
        Election::new(seat, self.inner.clone())
    }

    /// Takes part in the cluster of the namespace: hands out daemons when it leads the election `tenure.cluster`,
    /// and runs those that are registered with the answer. Must be called within a tokio runtime: daemons run
    /// there. The first call's options hold.
    pub async fn cluster(&self, options: cluster::Options) -> Result<Cluster, Error> {
        Cluster::take_part(self, self.inner.clone(), options).await
    }

    /// Says in its session what keeps this process from doing what it is asked, for people to see in
    /// `tenure status`, up to 500 characters of it; `None` when it is over.
    pub fn set_trouble(&self, trouble: Option<String>) {
        // Every heartbeat writes it: one that is too large for the store would end the session.
        let trouble = trouble.map(|trouble| trouble.chars().take(TROUBLE_MAX).collect());
        self.inner.send(Command::Trouble(trouble));
    }

    /// Drains all daemons, stops all work, gives every lease back, leaves, and waits for all of it.
    pub async fn shutdown(&self) {
        let (sender, receiver) = oneshot::channel();
        self.inner.send(Command::Shutdown(Some(sender)));
        // An error means that it has stopped already.
        let _ = receiver.await;
        self.inner.stopped.cancelled().await;
    }
}

impl Inner {
    /// A driver that is gone needs no commands.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<ElectionName, Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn stopped(&self) {
        self.stopped.cancelled().await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.send(Command::Shutdown(None));
    }
}

/// The store that the session's thread uses.
enum OwnStore {
    Url(String),
    Shared(Arc<dyn Store>),
}

/// Everything that moves to the session's thread.
struct Thread {
    options: NodeOptions,
    namespace: Namespace,
    id: NodeId,
    own: OwnStore,
    receiver: mpsc::UnboundedReceiver<Command>,
    reports: mpsc::UnboundedSender<Command>,
    session: watch::Sender<Option<Holder>>,
    duplicates: watch::Sender<Vec<Record>>,
    counters: Arc<Counters>,
}

/// Whether a store's URL names a folder or a file of this host.
fn is_local(url: &str) -> bool {
    match url.split_once(':') {
        Some((scheme, _)) => scheme.contains('/') || matches!(scheme, "file" | "sqlite"),
        None => true,
    }
}

impl Thread {
    /// Runs until the node is shut down, which the guard then tells its waiters.
    fn launch(
        self,
        ready: oneshot::Sender<Result<(), Error>>,
        ended: DropGuard,
    ) -> Result<(), Error> {
        if self.options.runtime.clock.is_of_runtime() {
            // Another thread would not go by that time.
            self.options.runtime.clone().spawn(async move {
                let _ended = ended;
                self.serve(ready).await;
            });
            return Ok(());
        }
        std::thread::Builder::new()
            .name("tenure-session".to_owned())
            .spawn(move || {
                let _ended = ended;
                self.run(ready);
            })
            .map(drop)
            .map_err(|error| {
                let doing = "starting the session's thread".to_owned();
                let source = error.into();
                tenure_store::Error::Unavailable { doing, source }.into()
            })
    }

    fn run(self, ready: oneshot::Sender<Result<(), Error>>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_keep_alive(KEEP_THREADS)
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                let source = error.into();
                let doing = "starting the session's runtime".to_owned();
                let _ = ready.send(Err(
                    tenure_store::Error::Unavailable { doing, source }.into()
                ));
                return;
            }
        };
        runtime.block_on(self.serve(ready));
    }

    async fn serve(self, ready: oneshot::Sender<Result<(), Error>>) {
        match self.prepare().await {
            Ok(driver) => {
                let _ = ready.send(Ok(()));
                driver.run().await;
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    }

    async fn prepare(self) -> Result<Driver, Error> {
        let store = match self.own {
            OwnStore::Url(url) => {
                // Not made again, if it was moved away since the first connection made it.
                let store = if is_local(&url) {
                    tenure_store::open_existing(&url).await?
                } else {
                    tenure_store::open(&url).await?
                };
                self.options.wrapped_for_session(store)
            }
            OwnStore::Shared(store) => store,
        };
        store.pin(&Keys::new(self.namespace.clone()).all(), IfMissing::Gone);
        let mut about = About {
            address: self.options.address,
            labels: self.options.labels,
            rules: Rules::LATEST,
            ..About::default()
        };
        let mut nudger = None;
        if let Some(address) = self
            .options
            .nudge
            .filter(|_| !store.describe().capabilities.hints && !self.options.polls_only)
        {
            match Nudger::bind(address, self.namespace.clone()).await {
                Ok(bound) => {
                    about.nudge = bound.address().ok().map(|address| address.to_string());
                    nudger = Some(bound);
                }
                // Hand-over then waits for the next poll: slower, not wrong.
                Err(error) => {
                    tracing::warn!(%address, error = %requests::Chain(&error), "nudges are off");
                }
            }
        }
        Ok(Driver {
            store,
            keys: Keys::new(self.namespace),
            node: self.id,
            config: self.options.session,
            throttle: self.options.throttle,
            runtime: self.options.runtime,
            about,
            commands: self.receiver,
            reports: self.reports,
            session: self.session,
            duplicates: self.duplicates,
            counters: self.counters,
            nudger,
            elections: BTreeMap::new(),
            daemons: None,
            member: None,
            stopping: Vec::new(),
            is_stopping: false,
            farewell: None,
        })
    }
}

/// The host's name as a node id, with what a name may not contain replaced.
#[must_use]
pub fn host_name() -> NodeId {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let clean: String = name
        .chars()
        .map(|character| {
            if character.is_ascii_alphanumeric() || ".-_".contains(character) {
                character
            } else {
                '-'
            }
        })
        .take(200)
        .collect();
    NodeId::new(clean.trim_start_matches('.'))
        .unwrap_or_else(|_| NodeId::new("node").expect("a valid name"))
}
