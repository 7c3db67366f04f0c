//! Injects faults, one after the other, and repairs each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use tenure_client::Client;
use tenure_random::Random;
use tenure_testkit::tcp_proxy::Line;
use tokio::time::sleep;

use crate::broker::Broker;
use crate::disk::Disk;
use crate::electorate::Runner;
use crate::engine::Engine;
use crate::history::{History, What};
use crate::server::Server;

/// How long a broker may take to leave: longer than it gives requests in flight, on a busy machine.
const LEAVE_PATIENCE: Duration = Duration::from_secs(60);

/// The answer of an overloaded gateway.
const STORM: &str =
    "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `kill -9` of the broker that leads.
    KillLeader,
    /// `kill -9` of a standby.
    KillStandby,
    /// `kill -9` of all brokers at once.
    KillAll,
    /// SIGSTOP of the leader, and SIGCONT after another took over.
    PauseLeader,
    /// SIGSTOP of any broker, for less than the ttl.
    PauseBriefly,
    /// SIGTERM, which has to lead to exit code 0.
    Terminate,
    /// `POST /v1/leader/resign`.
    Resign,
    /// A broker's connections to its storage are closed, for longer than the ttl.
    Cut,
    /// The same for all brokers.
    CutAll,
    /// Nothing passes between a broker and its storage for a while; then it arrives late.
    Silent,
    /// Everything between a broker and its storage takes longer.
    Slow,
    /// The storage carries out requests, but the answers are lost.
    LoseAnswers,
    /// The storage's gateway answers 503.
    Storm,
    /// The storage's own server crashes, and is started again.
    Restart,
    /// No space is left.
    DiskFull,
    /// The folder cannot be written.
    ReadOnly,
    /// `kill -9` of a `tenure run`.
    KillRunner,
    /// SIGSTOP and SIGCONT of a `tenure run`.
    PauseRunner,
    /// The connections of a `tenure run` to its storage are closed, for longer than the ttl.
    CutRunner,
}

impl Kind {
    /// The faults that are possible on this engine, and those that this process cannot cause, with what it lacks.
    #[must_use]
    pub fn all(engine: Engine, disk: &Disk) -> (Vec<Self>, Vec<(Self, &'static str)>) {
        use Kind::*;
        let mut lacking = Vec::new();
        // The most important kinds twice.
        let mut kinds = vec![
            KillLeader,
            KillLeader,
            KillStandby,
            KillAll,
            PauseLeader,
            PauseLeader,
            PauseBriefly,
            Terminate,
            Resign,
            KillRunner,
            PauseRunner,
        ];
        if engine.variable().is_some() {
            kinds.extend([
                Cut,
                CutAll,
                Silent,
                Slow,
                LoseAnswers,
                LoseAnswers,
                CutRunner,
            ]);
        }
        if engine == Engine::S3 {
            kinds.push(Storm);
        }
        match engine.server() {
            Some(server) if server.can_restart() => kinds.push(Restart),
            Some(_) => lacking.push((Restart, "run scripts/with-servers")),
            None => {}
        }
        match engine {
            Engine::File if disk.is_breakable() => kinds.extend([DiskFull, ReadOnly]),
            Engine::File => lacking.extend([DiskFull, ReadOnly].map(|kind| (kind, "be root"))),
            _ => {}
        }
        (kinds, lacking)
    }

    /// The name in the report.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Kind::KillLeader => "kill -9 of the leader",
            Kind::KillStandby => "kill -9 of a standby",
            Kind::KillAll => "kill -9 of all brokers",
            Kind::PauseLeader => "leader stopped past its ttl",
            Kind::PauseBriefly => "broker stopped briefly",
            Kind::Terminate => "SIGTERM",
            Kind::Resign => "leader asked to resign",
            Kind::Cut => "storage cut off, one broker",
            Kind::CutAll => "storage cut off, all brokers",
            Kind::Silent => "storage silent, then late",
            Kind::Slow => "storage slow",
            Kind::LoseAnswers => "storage's answers lost",
            Kind::Storm => "503 storm",
            Kind::Restart => "storage's server crashed",
            Kind::DiskFull => "disk full",
            Kind::ReadOnly => "folder read-only",
            Kind::KillRunner => "kill -9 of tenure run",
            Kind::PauseRunner => "tenure run stopped",
            Kind::CutRunner => "storage cut off, tenure run",
        }
    }
}

/// Everything that faults can strike.
#[derive(Debug)]
pub struct Targets {
    /// The brokers.
    pub brokers: Vec<Broker>,
    /// The programs under `tenure run`.
    pub runners: Vec<Runner>,
    /// The disk of the file engine.
    pub disk: Disk,
    /// The server of the others.
    pub server: Option<Server>,
    /// A client to ask which broker leads.
    pub client: Client,
    /// How long a leader is trusted.
    pub ttl: Duration,
    /// Where faults are recorded.
    pub history: Arc<History>,
    /// How often each fault was caused.
    pub counts: BTreeMap<Kind, u64>,
    /// The faults that this process cannot cause, and what it lacks.
    pub not_tried: Vec<String>,
    /// How many brokers ended without being asked to.
    pub exits: u64,
}

impl Targets {
    /// Causes a fault, waits, and repairs it. Sometimes a broker's storage is slow at the same time.
    pub async fn inject_in_company(&mut self, kind: Kind, random: &mut Random) -> Result<()> {
        let place = random.index(self.brokers.len());
        let delay = random.between(Duration::from_millis(10), self.ttl / 10);
        let is_slow = random.below(4) == 0 && self.brokers[place].line.is_some();
        let line = |targets: &Self, line| {
            let proxy = targets.brokers[place].line.as_ref();
            if let Some(proxy) = proxy.filter(|_| is_slow) {
                proxy.set(line);
            }
        };
        line(self, Line::Slow(delay));
        self.inject(kind, random).await?;
        line(self, Line::Good);
        if is_slow {
            *self.counts.entry(Kind::Slow).or_default() += 1;
        }
        Ok(())
    }

    /// Causes a fault, waits, and repairs it.
    pub async fn inject(&mut self, kind: Kind, random: &mut Random) -> Result<()> {
        let leader = self.leader(random).await;
        let other = 1 + random.index((self.brokers.len() - 1).max(1));
        let standby = (leader + other) % self.brokers.len();
        let any = *random.pick(&[leader, standby]);
        let (long, short) = (self.ttl * 2, self.ttl / 2);
        let wait = random.between(long, self.ttl * 4);
        let brief = random.between(Duration::from_millis(50), short);
        let invoked = self.history.now();
        let target = match kind {
            Kind::KillLeader => self.kill(&[leader], brief).await?,
            Kind::KillStandby => self.kill(&[standby], brief).await?,
            Kind::KillAll => {
                let all: Vec<usize> = (0..self.brokers.len()).collect();
                self.kill(&all, brief).await?
            }
            Kind::PauseLeader => self.pause(leader, wait).await?,
            Kind::PauseBriefly => self.pause(any, brief).await?,
            Kind::Terminate => self.terminate(any).await?,
            Kind::Resign => {
                // It does not matter whether the call succeeds.
                let _ = self.client.resign_leader().await;
                self.brokers[leader].node.clone()
            }
            Kind::Cut => self.line(&[any], Line::Cut, wait).await,
            Kind::CutAll => {
                let all: Vec<usize> = (0..self.brokers.len()).collect();
                self.line(&all, Line::Cut, wait).await
            }
            Kind::Silent => self.line(&[leader], Line::Silent, wait).await,
            Kind::Slow => {
                let delay = random.between(Duration::from_millis(20), self.ttl / 5);
                self.line(&[any], Line::Slow(delay), wait).await
            }
            Kind::LoseAnswers => self.line(&[leader], Line::LoseAnswers, brief).await,
            Kind::Storm => self.line(&[any], Line::AnswerInstead(STORM), wait).await,
            Kind::Restart => {
                let server = self.server.context("there is no server to restart")?;
                server.restart().await?
            }
            Kind::DiskFull => self.fill(wait).await?,
            Kind::ReadOnly => self.read_only(wait).await?,
            Kind::KillRunner | Kind::PauseRunner | Kind::CutRunner => {
                self.disturb_runner(kind, wait, random).await?
            }
        };
        *self.counts.entry(kind).or_default() += 1;
        let what = What::Fault(format!("{}: {target}", kind.words()));
        self.history.add("fault", invoked, [what]);
        self.revive()
    }

    /// Restarts processes that have ended on their own.
    pub fn revive(&mut self) -> Result<()> {
        for broker in &mut self.brokers {
            if let Some(status) = broker.ended() {
                self.exits += 1;
                let what = What::Fault(format!("{} ended by itself: {status}", broker.node));
                self.history.add("fault", self.history.now(), [what]);
            }
            broker.run()?;
        }
        self.runners.iter_mut().try_for_each(Runner::run)
    }

    /// The broker that leads, or a random one if that is unknown.
    pub async fn leader(&self, random: &mut Random) -> usize {
        let leader = self
            .client
            .stats()
            .await
            .ok()
            .and_then(|stats| stats.leader);
        let place = leader.and_then(|leader| {
            let is_it = |broker: &Broker| broker.node == leader.as_str();
            self.brokers.iter().position(is_it)
        });
        let guess = random.index(self.brokers.len());
        place.unwrap_or(guess)
    }

    async fn kill(&mut self, places: &[usize], wait: Duration) -> Result<String> {
        for &place in places {
            self.brokers[place].signal(Signal::KILL)?;
        }
        for &place in places {
            self.brokers[place].wait(LEAVE_PATIENCE).await?;
        }
        sleep(wait).await;
        for &place in places {
            self.brokers[place].run()?;
        }
        Ok(self.names(places))
    }

    async fn pause(&mut self, place: usize, wait: Duration) -> Result<String> {
        self.brokers[place].signal(Signal::STOP)?;
        sleep(wait).await;
        self.brokers[place].signal(Signal::CONT)?;
        Ok(self.names(&[place]))
    }

    async fn terminate(&mut self, place: usize) -> Result<String> {
        let broker = &mut self.brokers[place];
        broker.signal(Signal::TERM)?;
        match broker.wait(LEAVE_PATIENCE).await {
            Ok(status) if status.success() => {}
            Ok(status) => {
                let node = &broker.node;
                self.history
                    .broken(format!("{node} was asked to stop, and ended with {status}"));
            }
            Err(error) => {
                self.history.broken(format!("asked to stop, {error}"));
                broker.signal(Signal::KILL)?;
                broker.wait(LEAVE_PATIENCE).await?;
            }
        }
        self.brokers[place].run()?;
        Ok(self.names(&[place]))
    }

    async fn line(&mut self, places: &[usize], line: Line, wait: Duration) -> String {
        let lines = |targets: &Self, line| {
            for &place in places {
                if let Some(proxy) = &targets.brokers[place].line {
                    proxy.set(line);
                }
            }
        };
        lines(self, line);
        sleep(wait).await;
        lines(self, Line::Good);
        self.names(places)
    }

    async fn fill(&mut self, wait: Duration) -> Result<String> {
        self.disk.fill()?;
        sleep(wait).await;
        self.disk.free()?;
        Ok("the disk".to_owned())
    }

    async fn read_only(&mut self, wait: Duration) -> Result<String> {
        self.disk.make_read_only()?;
        sleep(wait).await;
        self.disk.make_writable()?;
        Ok("the disk".to_owned())
    }

    async fn disturb_runner(
        &mut self,
        kind: Kind,
        wait: Duration,
        random: &mut Random,
    ) -> Result<String> {
        let runner = random.index(self.runners.len());
        let runner = &mut self.runners[runner];
        match kind {
            Kind::KillRunner => {
                runner.signal(Signal::KILL)?;
                runner.wait().await?;
            }
            Kind::CutRunner => {
                if let Some(line) = &runner.line {
                    line.set(Line::Cut);
                    sleep(wait).await;
                    line.set(Line::Good);
                }
            }
            _ => {
                runner.signal(Signal::STOP)?;
                sleep(wait).await;
                runner.signal(Signal::CONT)?;
            }
        }
        Ok(runner.node.clone())
    }

    fn names(&self, places: &[usize]) -> String {
        let names: Vec<&str> = places
            .iter()
            .map(|&place| self.brokers[place].node.as_str())
            .collect();
        names.join(", ")
    }

    /// Asks all brokers to leave, and waits until they have.
    pub async fn end(&mut self) -> Result<()> {
        for broker in &self.brokers {
            broker.signal(Signal::TERM)?;
        }
        for broker in &mut self.brokers {
            match broker.wait(LEAVE_PATIENCE).await {
                Ok(status) if status.success() => {}
                Ok(status) => self.history.broken(format!(
                    "{} was asked to stop in the end, and ended with {status}",
                    broker.node
                )),
                Err(error) => self.history.broken(format!("in the end, {error}")),
            }
        }
        for runner in &mut self.runners {
            runner.signal(Signal::TERM)?;
            runner.wait().await?;
        }
        Ok(())
    }
}
