//! A server: started, running, stopped.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure::core::Incarnation;
use tenure::core::election::Leader;
use tenure::queue::{Options, Queue};
use tenure::{Bounds, Node, NodeOptions, cluster};
use tenure_store::Key;
use tenure_store::wrap::metered::Meter;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::App;
use crate::audit::Audit;
use crate::budget::Budget;
use crate::connections::Connections;
use crate::dashboard::{self, Dashboard, OutboxView};
use crate::forward::Forwarder;
use crate::handlers::events::Past;
use crate::handlers::health::{Probe, reason_not_to_ask};
use crate::handlers::osqueue;
use crate::listen::Listening;
use crate::looks::Looks;
use crate::metrics::Metrics;
use crate::metrics::collector::{Published, StateCollector};
use crate::rates::Rates;
use crate::{Config, Error, cors, files, router};

/// How many connections may wait to be accepted: as many as the system allows by default. When its queue is full, it
/// may reset connections that have already sent something, although they should wait.
const BACKLOG_CONNECTIONS: u32 = 4096;

/// How long a stopping server waits for the next leader to serve.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);

/// How often it checks for the next leader.
const HAND_OVER_LOOK: Duration = Duration::from_millis(50);

/// After how many checks it reads from the store whether another candidate is left.
const HAND_OVER_COUNT: u32 = 5;

/// Starts a server: see [`Server::start`].
#[derive(Debug)]
pub struct Server;

/// A running server. If this is dropped, the server runs until the runtime ends; [`Handle::stop`] stops it.
#[derive(Debug)]
pub struct Handle {
    app: Arc<App>,
    address: SocketAddr,
    osqueue_address: Option<SocketAddr>,
    url: String,
    accepting: Vec<JoinHandle<()>>,
    connections: TaskTracker,
}

impl Server {
    /// Checks the configuration, listens, opens the store, joins, and serves. Returns when calls are
    /// answered, by this server or by the leader that it forwards to.
    ///
    /// Connections are files: if fewer may be open than [`Limits::connections_max`](crate::Limits) needs, fewer
    /// connections are allowed, and a warning is logged.
    pub async fn start(mut config: Config) -> Result<Handle, Error> {
        config.check()?;
        let room = fit(&mut config);
        let (tls, renewal) = match &config.tls {
            Some(files) => files
                .server()
                .map(|(tls, renewal)| (Some(tls), Some(renewal)))?,
            None => (None, None),
        };
        let forwarder = Forwarder::new(config.tls.as_ref(), &room)?;
        let (listener, address) = bind(config.listen)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = config
            .advertise
            .clone()
            .unwrap_or_else(|| format!("{scheme}://{address}"));
        let alone = match &config.osqueue {
            Some(osqueue) => Some((bind(osqueue.listen)?, Arc::new(osqueue.door(&config)))),
            None => None,
        };
        let app = Arc::new(App::start(config, forwarder, address, url.clone()).await?);
        dashboard::start(&app);
        let connections = TaskTracker::new();
        let listening = Listening {
            router: cors::around(router::router(&app), &app.config.cors_origins),
            tls: tls.clone().map(TlsAcceptor::from),
            door: None,
            limits: app.config.limits.clone(),
            stop: app.stop.clone(),
            tasks: connections.clone(),
            connections: app.connections.clone(),
            sockets: Arc::new(Semaphore::new(room.sockets_max())),
            farewells: Arc::new(Semaphore::new(room.farewells_max)),
        };
        if let Some(renewal) = renewal {
            tokio::spawn(renewal.run(app.stop.clone()));
        }
        let mut accepting = Vec::new();
        let mut osqueue_address = None;
        if let Some(((listener, address), door)) = alone {
            osqueue_address = Some(address);
            let router = osqueue::router_alone(&app);
            let listening = Listening {
                router: cors::around(router, &app.config.cors_origins),
                tls: tls.map(|tls| TlsAcceptor::from(with_http2(&tls))),
                door: Some(door),
                ..listening.clone()
            };
            accepting.push(tokio::spawn(listening.run(listener)));
        }
        accepting.push(tokio::spawn(listening.run(listener)));
        tokio::spawn({
            let app = app.clone();
            async move { app.rates.sample(&app.stop).await }
        });
        Ok(Handle {
            app,
            address,
            osqueue_address,
            url,
            accepting,
            connections,
        })
    }
}

/// Lowers the limit of connections to what fits into the files that may be open.
fn fit(config: &mut Config) -> files::Room {
    let files = files::most();
    let wanted = config.limits.connections_max;
    let room = files::Room::new(wanted, files);
    if room.connections_max < wanted {
        tracing::warn!(
            files,
            wanted,
            connections_max = room.connections_max,
            "fewer connections than wanted fit into the limit of open files: raise it (ulimit -Hn, LimitNOFILE)"
        );
    }
    config.limits.connections_max = room.connections_max;
    room
}

/// The same certificate for a listener that also speaks HTTP/2.
fn with_http2(tls: &Arc<rustls::ServerConfig>) -> Arc<rustls::ServerConfig> {
    let mut tls = rustls::ServerConfig::clone(tls);
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(tls)
}

fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let listen = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Otherwise a restarted server would have to wait for the connections of its predecessor.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG_CONNECTIONS)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listen().map_err(|source| Error::Listen { address, source })
}

impl App {
    async fn start(
        config: Config,
        forwarder: Forwarder,
        address: SocketAddr,
        url: String,
    ) -> Result<Self, Error> {
        let meter: Arc<Meter> = Arc::default();
        let mut options = NodeOptions::new(&config.store, &config.namespace);
        options.node = Some(match &config.node {
            Some(node) => node.clone(),
            // Two brokers on one host are two nodes.
            None => format!("{}:{}", tenure::host_name(), address.port()),
        });
        options.session = config.session();
        let throttle = config
            .throttle()
            .map_err(tenure::Error::from)?
            .map(Arc::new);
        options.throttle = throttle.clone();
        options.labels = config.labels.clone();
        options.address = Some(url.clone());
        options.meter = Some(meter.clone());
        let member = cluster::Options {
            config: config.cluster(),
            version: Some(concat!("tenure ", env!("CARGO_PKG_VERSION")).to_owned()),
            priority: Some(config.priority),
            // This server reads the nodes only when asked. It follows them while somebody follows events.
            follows: false,
            ..cluster::Options::default()
        };
        let node = Node::start(options).await?;
        // The cluster has a separate election, with other members that run daemons as candidates too. Its leader
        // assigns the daemons.
        let cluster = node.cluster(member).await?;
        let options = Options {
            log: config.log.clone(),
            limits: config.queue.clone(),
            priority: Some(config.priority),
            waiting_claims_max: config.limits.waits_max,
            ..Options::default()
        };
        let queue = Queue::open(&node, options)
            .await
            .map_err(tenure::Error::from)?;
        let brokers = queue.election().name();
        let key = |kind: &str| {
            Key::new(format!("{}/{kind}/{brokers}", config.namespace))
                .expect("a namespace and a name make a key")
        };
        let (lease_key, fence_key) = (key("elections"), key("fences"));
        let metrics = Metrics::new();
        let rates = Arc::new(Rates::default());
        let collector = StateCollector {
            node: node.clone(),
            namespace: config.namespace.clone(),
            meter: meter.clone(),
            throttle: throttle.clone(),
            queue: queue.clone(),
            rates: rates.clone(),
        };
        metrics.register(|registry| registry.register_collector(Box::new(collector)));
        let bodies = Budget::new(config.limits.bodies_bytes_max);
        let answers = Budget::new(config.limits.answers_bytes_max);
        metrics.count_bytes(&bodies, &answers);
        let audit = metrics.register(Audit::new);
        Ok(Self {
            url,
            store: node.store().clone(),
            node,
            queue,
            cluster,
            past: Past::default(),
            meter,
            throttle,
            lease_key,
            fence_key,
            forwarder,
            metrics,
            rates,
            probe: Probe::default(),
            election_bounds: Arc::new(Bounds::new(
                config.limits.candidates_max,
                config.limits.elections_max,
            )),
            looks: Looks::default(),
            waits: Semaphore::new(config.limits.waits_max),
            holds: Semaphore::new(config.limits.holds_max),
            followers: Arc::new(Semaphore::new(config.limits.followers_max)),
            sockets: Arc::new(Semaphore::new(config.limits.sockets_max)),
            lost: Mutex::default(),
            dashboard: Dashboard::default(),
            connections: Arc::new(Connections::new(config.limits.connections_max)),
            bodies,
            answers,
            audit,
            leaving: CancellationToken::new(),
            stop: CancellationToken::new(),
            config,
        })
    }
}

impl App {
    /// If this server leads and there is another one, lets that one lead, and returns when it serves. Calls that come
    /// meanwhile are held and then forwarded, so clients of this server notice nothing.
    async fn hand_over(&self) {
        let is_me = |leader: Option<Leader>| leader.is_some_and(|leader| self.is_me(&leader));
        if !is_me(self.leader()) {
            return;
        }
        let Some(session) = self.node.session() else {
            return;
        };
        if self.can_another_lead(session.incarnation).await != Some(true) {
            return;
        }
        self.queue.close().await;
        for look in 1_u32.. {
            if let Some(leader) = self.leader()
                && !self.is_me(&leader)
                && reason_not_to_ask(self, &leader, HAND_OVER_LOOK)
                    .await
                    .is_none()
            {
                return;
            }
            // The other one may have been stopped at the same time.
            let counts = look.is_multiple_of(HAND_OVER_COUNT);
            if counts && self.can_another_lead(session.incarnation).await == Some(false) {
                return;
            }
            sleep(HAND_OVER_LOOK).await;
        }
    }

    /// Whether the election has another candidate or leader; `None` if the store does not answer.
    async fn can_another_lead(&self, me: Incarnation) -> Option<bool> {
        let election = self.queue.election().name();
        let status = self.node.view().status(election).await.ok()?;
        let mut all = status.candidates.iter();
        Some(all.any(|candidate| candidate.holder.incarnation != me))
    }
}

impl Handle {
    /// The address listened on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address listened on for clients of osqueue alone, if there is one.
    #[must_use]
    pub fn osqueue_address(&self) -> Option<SocketAddr> {
        self.osqueue_address
    }

    /// The URL that is advertised to other servers.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// This process's node in its namespace.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.app.node
    }

    /// Whether this server leads and answers calls about the queue itself.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.app.is_serving()
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Publishes metrics of another part of the process on this server's page. `numbers` is called each time the page
    /// is requested, and must not block.
    pub fn publish(&self, numbers: impl Fn() -> Vec<Published> + Send + Sync + 'static) {
        self.app.metrics.others.add(Box::new(numbers));
    }

    /// Lets the dashboard show outboxes. `look` is called at most every two seconds while a page is open, and must
    /// limit its own time.
    pub fn show_outboxes(
        &self,
        look: impl Fn() -> BoxFuture<'static, Vec<OutboxView>> + Send + Sync + 'static,
    ) {
        self.app.dashboard.outboxes.set(Box::new(look));
    }

    /// The server's queue.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.app.queue
    }

    /// Hands over if another server can lead, and forwards calls to it meanwhile. Then accepts no more connections,
    /// answers waiting callers, finishes and commits calls in flight (for as long as the limits allow), resigns and
    /// leaves.
    pub async fn stop(self) {
        self.app.leaving.cancel();
        let patience = self.app.config.limits.stop_timeout.min(HAND_OVER_MAX);
        // If that takes too long, callers are told that there is no leader.
        let _ = timeout(patience, self.app.hand_over()).await;
        self.app.stop.cancel();
        // An error means that the accept loop panicked: then it has stopped as well.
        for accepting in self.accepting {
            let _ = accepting.await;
        }
        self.connections.close();
        let patience = self.app.config.limits.stop_timeout;
        if timeout(patience, self.connections.wait()).await.is_err() {
            tracing::warn!(
                connections = self.connections.len(),
                "some requests did not finish in time"
            );
        }
        self.app.queue.close().await;
        self.app.node.shutdown().await;
    }
}
