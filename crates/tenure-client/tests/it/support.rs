//! What several tests need.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tenure_client::api::ClaimRequest;
use tenure_client::{Claimed, Client, JobId, Key, State};
use tenure_server::{Config, Handle, Server};
use tenure_testkit::http_proxy::HttpProxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Long enough for a slow machine; nothing is measured against it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a store in memory, and a client of it.
pub(crate) struct Broker {
    pub(crate) handle: Handle,
    pub(crate) client: Client,
}

pub(crate) fn config(store: &str) -> Config {
    let mut config = Config::new(store);
    config.listen = "127.0.0.1:0".parse().unwrap();
    // Long: a machine that stands still for a while is no reason to lose leadership.
    config.ttl = Duration::from_secs(60);
    config
}

pub(crate) fn store_in(folder: &Path) -> String {
    format!("file:{}", folder.display())
}

pub(crate) fn client<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Client {
    // What is tested goes where it is sent, through a proxy or not.
    let builder = Client::builder(urls).deadline(PATIENCE).discover(false);
    builder.attempt_timeout(PATIENCE / 2).build().unwrap()
}

impl Broker {
    pub(crate) async fn start() -> Self {
        let handle = Server::start(config("memory:")).await.unwrap();
        let client = client([handle.url()]);
        Self { handle, client }
    }

    /// A client that reaches the server through a proxy, which can lose requests and answers.
    pub(crate) async fn behind_proxy(&self) -> (Client, HttpProxy) {
        let proxy = HttpProxy::start(self.handle.address()).await;
        proxy.count_posts();
        (client([format!("http://{}", proxy.address())]), proxy)
    }

    /// The only job that waits, claimed.
    pub(crate) async fn claim(&self) -> Claimed {
        let mut request = ClaimRequest::new(Key::new("tests").unwrap());
        request.wait_ms = 30_000;
        let mut jobs = self.client.claim(&request).await.unwrap();
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    /// Waits until a job is in this state.
    pub(crate) async fn reaches(&self, id: &JobId, state: State) -> tenure_client::api::Job {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let job = self.client.job(id).await.unwrap();
            if job.state == state {
                return job;
            }
            assert!(
                Instant::now() < give_up,
                "{id} is {}, not {state}",
                job.state
            );
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Stands before a server. Requests pass; answers wait while it is closed.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    is_open: watch::Sender<bool>,
}

impl Gate {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_open = watch::Sender::new(true);
        let seen = is_open.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                tokio::spawn(pass(client, server, seen.clone()));
            }
        });
        Self { address, is_open }
    }

    pub(crate) fn close(&self) {
        self.is_open.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.is_open.send_replace(true);
    }
}

async fn pass(client: TcpStream, server: TcpStream, mut is_open: watch::Receiver<bool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answers = async {
        let mut bytes = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
            if is_open.wait_for(|is_open| *is_open).await.is_err()
                || to_client.write_all(&bytes[..count]).await.is_err()
            {
                return;
            }
        }
    };
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        () = answers => {}
    }
}
