//! Elections under fire: candidates that ask the brokers over HTTP, and programs under `tenure run`.
//!
//! Whoever leads acts: it shows its fencing token to a receiver that all of them share. Two leaders at one
//! time show in two ways: a candidate is refused though it is trusted before and after, or a term goes back
//! in the file that the programs append to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tenure::{Receiver, Token};
use tenure_client::{Client, Elected, ElectionName, NodeId};
use tenure_random::Random;
use tenure_testkit::tcp_proxy::TcpProxy;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::broker::Setup;
use crate::history::History;

/// What all candidates act on.
#[derive(Debug, Default)]
pub struct Stage {
    receiver: Receiver,
    /// How often somebody acted.
    pub acts: AtomicU64,
    /// The highest term that acted.
    pub term: AtomicU64,
}

/// Who wants to lead, over HTTP.
#[derive(Debug)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// The election.
    pub election: String,
    /// How long it is trusted.
    pub ttl: Duration,
    /// What it acts on.
    pub stage: Arc<Stage>,
    /// Where mistakes are written down.
    pub history: Arc<History>,
    /// Tells it to end.
    pub stop: Arc<AtomicBool>,
}

impl Candidate {
    /// Stands again and again until it is told to stop; acts while it leads; now and then vanishes.
    pub async fn run(self, client: Client, mut random: Random) {
        let election = ElectionName::new(&self.election).expect("made of letters and digits");
        let id = NodeId::new(&self.name).expect("made of letters and digits");
        while !self.stop.load(Ordering::Relaxed) {
            match client.elect(&election, &id, Some(self.ttl)).await {
                Ok(elected) if elected.is_leader() => self.lead(&elected, &mut random).await,
                Ok(_) => sleep(self.ttl / 4).await,
                Err(error) => {
                    if !error.is_temporary() {
                        let what = format!("an election was answered: {error}");
                        self.history.broken(what);
                    }
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn lead(&self, elected: &Elected, random: &mut Random) {
        while elected.remaining() > self.ttl / 2 {
            self.act(elected);
            sleep(Duration::from_millis(20)).await;
        }
        if random.below(12) == 0 {
            // Acts as long as it may, and is not heard of for a while.
            while elected.is_leader() {
                self.act(elected);
                sleep(Duration::from_millis(5)).await;
            }
            sleep(self.ttl * 2).await;
        }
    }

    fn act(&self, elected: &Elected) {
        let (name, stage) = (&self.name, &self.stage);
        let token = elected.answer.token.as_deref().unwrap_or_default();
        let Ok(token) = token.parse::<Token>() else {
            let what = format!("{name} leads with the token {token:?}");
            return self.history.broken(what);
        };
        if !elected.is_leader() {
            return;
        }
        match stage.receiver.accept(token) {
            Ok(()) => {
                stage.acts.fetch_add(1, Ordering::Relaxed);
                stage.term.fetch_max(token.term.0, Ordering::Relaxed);
            }
            // Trusted before and after, and yet another leader has acted.
            Err(stale) if elected.is_leader() => {
                let what = format!("{name} leads, and is refused: {stale}");
                self.history.broken(what);
            }
            Err(_) => {}
        }
    }
}

/// A process of `tenure run` whose program appends its token to a file.
#[derive(Debug)]
pub struct Runner {
    /// Its way to the storage.
    pub line: Option<TcpProxy>,
    /// Its node.
    pub node: String,
    store: String,
    setup: Setup,
    acts: PathBuf,
    process: Option<Child>,
}

impl Runner {
    /// Starts one.
    pub async fn start(setup: &Setup, node: String, folder: &Path, acts: PathBuf) -> Result<Self> {
        let (store, line) = setup.engine.reach(folder).await?;
        let mut runner = Self {
            line,
            node,
            store,
            setup: setup.clone(),
            acts,
            process: None,
        };
        runner.run()?;
        Ok(runner)
    }

    /// Starts the process if it does not run.
    pub fn run(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process
            && process.try_wait()?.is_none()
        {
            return Ok(());
        }
        let log = self.setup.logs.join(format!("{}.log", self.node));
        let log = fs::OpenOptions::new().create(true).append(true).open(log)?;
        let ttl = format!("{}ms", self.setup.ttl.as_millis());
        // Beside the brokers: neither may get in the way of the other.
        let namespace = &self.setup.namespace;
        let process = Command::new(&self.setup.binary)
            .args(["run", "--namespace", namespace, "--ttl", &ttl])
            .args(["--node", &self.node, "--", "sh", "-c"])
            .arg("while echo \"$TENURE_TOKEN\" >> \"$ACTS\"; do sleep 0.02; done")
            .env("TENURE_STORE", &self.store)
            .env("TENURE_LOG", "info")
            .env("ACTS", &self.acts)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("starting tenure run")?;
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

    /// Waits until the process has ended.
    pub async fn wait(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process {
            process.wait().await?;
        }
        Ok(())
    }
}

/// How often the programs acted, their last term, and where a term went back.
///
/// A witness that cannot be read is a violation: it would otherwise count as one that saw nothing wrong.
pub fn read_acts(acts: &Path) -> Result<(u64, u64, Vec<String>)> {
    let text = match fs::read_to_string(acts) {
        Ok(text) => text,
        // Before the first program has acted.
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let (mut count, mut broken) = (0, Vec::new());
    let mut highest: Option<Token> = None;
    for (number, line) in text.lines().enumerate() {
        let Ok(token) = line.parse::<Token>() else {
            // One small append is whole or not there, so only a file that is being written can end in a torn line.
            if number + 1 < text.lines().count() {
                broken.push(format!(
                    "line {} of the acts is not a token: {line:?}",
                    number + 1
                ));
            }
            continue;
        };
        count += 1;
        if let Some(seen) = highest
            && let Err(stale) = token.check_against(seen)
        {
            broken.push(format!("a program acted, line {}: {stale}", number + 1));
        } else {
            highest = Some(token);
        }
    }
    Ok((count, highest.map_or(0, |token| token.term.0), broken))
}
