//! Elections during faults: candidates over HTTP, and programs under `tenure run`, as leaders or as a daemon.
//!
//! A leader acts: it shows its fencing token to a shared receiver. Two leaders at the same time are detected in two
//! ways: a candidate is refused although it is trusted before and after, or a term goes back in the file to which the
//! programs append. Two programs of one shard are detected by a generation that goes back in their file.

use std::collections::BTreeMap;
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

/// The shared receiver of all candidates.
#[derive(Debug, Default)]
pub struct Stage {
    receiver: Receiver,
    /// How often candidates acted.
    pub acts: AtomicU64,
    /// The highest term that acted.
    pub term: AtomicU64,
}

/// A candidate over HTTP.
#[derive(Debug)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// The election.
    pub election: String,
    /// How long it is trusted.
    pub ttl: Duration,
    /// The receiver that it acts on.
    pub stage: Arc<Stage>,
    /// Where violations are recorded.
    pub history: Arc<History>,
    /// Tells it to end.
    pub stop: Arc<AtomicBool>,
}

impl Candidate {
    /// Is a candidate again and again until it is told to stop; acts while it leads; sometimes disappears.
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
            // Acts as long as it may, and then is silent for a while.
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
            // It is trusted before and after, but another leader has acted.
            Err(stale) if elected.is_leader() => {
                let what = format!("{name} leads, and is refused: {stale}");
                self.history.broken(what);
            }
            Err(_) => {}
        }
    }
}

/// How many shards the daemon has.
pub const SHARDS: u32 = 3;

/// Appends its token or generation to a file, again and again.
const LEADS: &str = "while echo \"$TENURE_TOKEN\" >> \"$ACTS\"; do sleep 0.02; done";
const RUNS_A_SHARD: &str =
    "while echo \"$TENURE_SHARD $TENURE_GENERATION\" >> \"$ACTS\"; do sleep 0.02; done";

/// The role of a program under `tenure run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The leader of an election.
    Leader,
    /// A shard of a daemon.
    Daemon,
}

/// A process of `tenure run` whose program appends its token or generation to a file.
#[derive(Debug)]
pub struct Runner {
    /// The proxy in front of its storage.
    pub line: Option<TcpProxy>,
    /// Its node.
    pub node: String,
    role: Role,
    store: String,
    setup: Setup,
    acts: PathBuf,
    process: Option<Child>,
}

impl Runner {
    /// Starts one.
    pub async fn start(
        setup: &Setup,
        node: String,
        role: Role,
        folder: &Path,
        acts: PathBuf,
    ) -> Result<Self> {
        let (store, line) = setup.engine.reach(folder).await?;
        let mut runner = Self {
            line,
            node,
            role,
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
        // In the brokers' namespace: they must not get in each other's way.
        let namespace = &self.setup.namespace;
        let mut command = Command::new(&self.setup.binary);
        command
            .args(["run", "--namespace", namespace, "--ttl", &ttl])
            .args(["--node", &self.node]);
        let program = match self.role {
            Role::Leader => LEADS,
            Role::Daemon => {
                let shards = SHARDS.to_string();
                command.args(["--daemon", "acts", "--shards", &shards]);
                command.args(self.setup.patience());
                // Short enough for the short trust.
                command.args(["--kill-after", "200ms"]);
                RUNS_A_SHARD
            }
        };
        let process = command
            .args(["--", "sh", "-c", program])
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

/// Reads how often each shard's programs acted, and where a generation went back.
///
/// Such a line means two programs of one shard at the same time: the next one starts only when the one before can no
/// longer act.
pub fn read_shards(acts: &Path) -> Result<(BTreeMap<u32, u64>, Vec<String>)> {
    let text = match fs::read_to_string(acts) {
        Ok(text) => text,
        // Before the first program has acted.
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let (mut counts, mut broken) = (BTreeMap::new(), Vec::new());
    let mut newest: BTreeMap<u32, u64> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let words = line.split_once(' ');
        let words = words.and_then(|(shard, generation)| {
            Some((shard.parse::<u32>().ok()?, generation.parse::<u64>().ok()?))
        });
        let Some((shard, generation)) = words.filter(|(shard, _)| *shard < SHARDS) else {
            if number + 1 < text.lines().count() {
                let number = number + 1;
                broken.push(format!(
                    "line {number} of the shards says nothing: {line:?}"
                ));
            }
            continue;
        };
        *counts.entry(shard).or_default() += 1;
        let newest = newest.entry(shard).or_default();
        if generation < *newest {
            let number = number + 1;
            broken.push(format!(
                "shard {shard} acted as generation {generation} after {newest}, line {number}"
            ));
        }
        *newest = generation.max(*newest);
    }
    Ok((counts, broken))
}

/// Reads how often the programs acted, their last term, and where a term went back.
///
/// A line that cannot be read is a violation: otherwise it would count as nothing wrong.
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
            // A small append is atomic, so only the last line of a file that is being written can be incomplete.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(text: &str) -> (BTreeMap<u32, u64>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shards");
        fs::write(&path, text).unwrap();
        read_shards(&path).unwrap()
    }

    #[test]
    fn a_generation_that_goes_back_is_found() {
        let (counts, broken) = shards("0 1\n1 2\n0 3\n0 3\n1 4\n");
        assert_eq!((counts, broken), ([(0, 3), (1, 2)].into(), Vec::new()));
        let (_, broken) = shards("0 1\n1 2\n0 3\n0 1\n1 4\n");
        assert_eq!(broken, ["shard 0 acted as generation 1 after 3, line 4"]);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_found_unless_it_is_being_written() {
        assert_eq!(shards("0 1\n0").1, Vec::<String>::new());
        assert_eq!(shards("0 1\nx\n0 1\n").1.len(), 1);
        assert_eq!(
            shards("0 1\n9 1\n0 1\n").1.len(),
            1,
            "there is no such shard"
        );
    }
}
