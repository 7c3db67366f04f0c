//! A broker: a real process of `tenure serve`, which is restarted whenever it was killed.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tenure_random::Random;
use tenure_testkit::tcp_proxy::TcpProxy;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::engine::Engine;

/// What all brokers of a run share.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The path of the `tenure` binary.
    pub binary: PathBuf,
    /// The engine.
    pub engine: Engine,
    /// The namespace, used only by this run.
    pub namespace: String,
    /// How long a leader is trusted.
    pub ttl: Duration,
    /// Where the logs of the processes are kept.
    pub logs: PathBuf,
}

impl Setup {
    /// The flags for how long nodes have to start and stop shards: short, like the ttl.
    #[must_use]
    pub fn patience(&self) -> [String; 4] {
        let three = format!("{}ms", 3 * self.ttl.as_millis());
        let option = str::to_owned;
        [
            option("--acknowledge-timeout"),
            three.clone(),
            option("--drain-timeout"),
            three,
        ]
    }
}

/// A broker and its connection to the storage.
#[derive(Debug)]
pub struct Broker {
    /// Its node.
    pub node: String,
    /// Its URL.
    pub url: String,
    /// The proxy in front of its storage, if that is a server.
    pub line: Option<TcpProxy>,
    store: String,
    listen: String,
    setup: Setup,
    process: Option<Child>,
}

impl Broker {
    /// Starts a broker, without waiting until it serves.
    pub async fn start(setup: &Setup, node: String, folder: &Path) -> Result<Self> {
        let (store, line) = setup.engine.reach(folder).await?;
        let port = free_port()?;
        let mut broker = Self {
            node,
            url: format!("http://127.0.0.1:{port}"),
            line,
            store,
            listen: format!("127.0.0.1:{port}"),
            setup: setup.clone(),
            process: None,
        };
        broker.run()?;
        Ok(broker)
    }

    /// Starts the process if it does not run.
    pub fn run(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process
            && process.try_wait()?.is_none()
        {
            return Ok(());
        }
        let log = self.setup.logs.join(format!("{}.log", self.node));
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let ttl = format!("{}ms", self.setup.ttl.as_millis());
        let process = Command::new(&self.setup.binary)
            .args(["serve", "--namespace", &self.setup.namespace, "--ttl", &ttl])
            .args(["--listen", &self.listen, "--node", &self.node])
            .args(self.setup.patience())
            .env("TENURE_STORE", &self.store)
            .env("TENURE_LOG", "info")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", self.setup.binary.display()))?;
        self.process = Some(process);
        Ok(())
    }

    /// Sends a signal, if the process runs.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.process.as_ref().and_then(Child::id);
        let id = id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        match id {
            Some(id) => Ok(kill_process(id, signal)?),
            None => Ok(()),
        }
    }

    /// The exit status if it ended without being asked to.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut()?.try_wait().ok().flatten()
    }

    /// Waits until it has ended.
    pub async fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let process = self.process.as_mut().context("it was never started")?;
        match timeout(patience, process.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!("{} is still there after {patience:?}", self.node),
        }
    }
}

/// A port below those that the system assigns, so that no other process takes it between a kill and the restart.
fn free_port() -> Result<u16> {
    let mut random = Random::of_actor(
        std::process::id().into(),
        &format!("{:?}", std::time::Instant::now()),
    );
    for _ in 0..1_000 {
        let port = 10_000 + u16::try_from(random.below(20_000))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}
