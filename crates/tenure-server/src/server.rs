//! A server: started, running, stopped.

use std::net::SocketAddr;
use std::sync::Arc;

use tenure::core::session;
use tenure::queue::{Options, Queue};
use tenure::{Node, NodeOptions, cluster};
use tenure_store::Key;
use tenure_store::wrap::metered::Meter;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::App;
use crate::budget::Budget;
use crate::dashboard::{self, Dashboard};
use crate::forward::Forwarder;
use crate::health::Probe;
use crate::listen::Listening;
use crate::metrics::Metrics;
use crate::metrics::numbers::Numbers;
use crate::rates::Rates;
use crate::{Config, Error, router};

/// The election of the brokers.
const ELECTION: &str = "default";

/// How many connections may wait to be accepted. The system allows no more by default; and when it has no room
/// left it may reset connections that have sent something already, where they should wait.
const BACKLOG_CONNECTIONS: u32 = 4096;

/// Starts servers.
#[derive(Debug)]
pub struct Server;

/// A running server. Dropping it lets the server run on until the runtime ends; [`Handle::stop`] stops it.
#[derive(Debug)]
pub struct Handle {
    app: Arc<App>,
    address: SocketAddr,
    url: String,
    accepting: JoinHandle<()>,
    connections: TaskTracker,
}

impl Server {
    /// Checks the configuration, listens, opens the store, joins, and serves. Returns when calls are
    /// answered, by this server or by the leader that it forwards to.
    pub async fn start(config: Config) -> Result<Handle, Error> {
        config.check()?;
        let (tls, renewal) = match &config.tls {
            Some(files) => files
                .server()
                .map(|(tls, renewal)| (Some(tls), Some(renewal)))?,
            None => (None, None),
        };
        let forwarder = Forwarder::new(config.tls.as_ref())?;
        let (listener, address) = bind(config.listen)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = config
            .advertise
            .clone()
            .unwrap_or_else(|| format!("{scheme}://{address}"));
        let app = Arc::new(App::start(config, forwarder, address, url.clone()).await?);
        dashboard::start(&app);
        let connections = TaskTracker::new();
        let listening = Listening {
            router: router::router(&app),
            tls: tls.map(TlsAcceptor::from),
            limits: app.config.limits.clone(),
            stop: app.stop.clone(),
            connections: connections.clone(),
        };
        if let Some(renewal) = renewal {
            tokio::spawn(renewal.run(app.stop.clone()));
        }
        let accepting = tokio::spawn(listening.run(listener));
        tokio::spawn({
            let app = app.clone();
            async move { app.rates.sample(&app.stop).await }
        });
        Ok(Handle {
            app,
            address,
            url,
            accepting,
            connections,
        })
    }
}

fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let listen = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Or a server that is started again would have to wait for the connections of the last one.
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
        options.session = session::Config::for_ttl(config.ttl);
        options.labels = config.labels.clone();
        options.address = Some(url.clone());
        options.meter = Some(meter.clone());
        let member = cluster::Options {
            config: cluster::Config::for_session(&options.session),
            version: Some(concat!("tenure ", env!("CARGO_PKG_VERSION")).to_owned()),
            priority: Some(config.priority),
            // What this server shows of the nodes it reads when it is asked.
            follows: false,
            ..cluster::Options::default()
        };
        let node = Node::start(options).await?;
        // Whoever leads this election hands out the daemons of the namespace, should there be any.
        node.cluster(member).await?;
        let options = Options {
            election: ELECTION.to_owned(),
            log: config.log.clone(),
            limits: config.queue.clone(),
            priority: Some(config.priority),
            waiting_claims_max: config.limits.waits_max,
            ..Options::default()
        };
        let queue = Queue::open(&node, options)
            .await
            .map_err(tenure::Error::from)?;
        let lease_key = Key::new(format!("{}/elections/{ELECTION}", config.namespace))
            .expect("a namespace and a constant make a key");
        let metrics = Metrics::new();
        let rates = Arc::new(Rates::default());
        let numbers = Numbers {
            node: node.clone(),
            meter: meter.clone(),
            queue: queue.clone(),
            rates: rates.clone(),
        };
        metrics.register(|registry| registry.register_collector(Box::new(numbers)));
        Ok(Self {
            url,
            store: node.store().clone(),
            node,
            queue,
            meter,
            lease_key,
            forwarder,
            metrics,
            rates,
            probe: Probe::default(),
            waits: Semaphore::new(config.limits.waits_max),
            followers: Arc::new(Semaphore::new(config.limits.followers_max)),
            dashboard: Dashboard::default(),
            bodies: Budget::new(config.limits.bodies_bytes_max),
            stop: CancellationToken::new(),
            config,
        })
    }
}

impl Handle {
    /// The address listened on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL that others are told.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// This process in its namespace.
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

    /// Its queue.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.app.queue
    }

    /// Takes no more connections, answers whoever waits, finishes what is in flight (for as long as the
    /// limits allow), commits it, resigns and leaves.
    pub async fn stop(self) {
        self.app.stop.cancel();
        // An error is a panic of the accept loop: it has stopped as well.
        let _ = self.accepting.await;
        self.connections.close();
        let patience = self.app.config.limits.stop_timeout;
        if timeout(patience, self.connections.wait()).await.is_err() {
            tracing::warn!(
                connections = self.connections.len(),
                "some requests did not end in time"
            );
        }
        self.app.queue.close().await;
        self.app.node.shutdown().await;
    }
}
