//! One run on one engine: start, break, mend, drain, check.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tenure_client::{Client, Keep, Listing, Settings};
use tenure_random::Random;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::broker::{Broker, Setup};
use crate::check::check;
use crate::disk::Disk;
use crate::electorate::{Candidate, Runner, Stage, read_acts};
use crate::engine::Engine;
use crate::faults::{Kind, Targets};
use crate::history::{History, Listed};
use crate::report::Report;
use crate::submitter::Submitter;
use crate::worker::{Mood, Worker};

/// How long a leader is trusted: short, so that many terms fit into a run.
const TTL: Duration = Duration::from_secs(2);

/// The lease of a claim: outlived by some takeovers, not by all.
const LEASE: Duration = Duration::from_secs(3);

/// How long brokers may take to serve for the first time.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How long a queue may take to drain after the last fault.
const DRAIN_PATIENCE: Duration = Duration::from_secs(240);

const WORKERS: usize = 4;
const SUBMITTERS: usize = 2;

/// What a run is to show.
#[derive(Debug, Clone, Copy)]
pub enum Scenario {
    /// Every kind of fault, for so long.
    Chaos(Duration),
    /// Two brokers, four workers, so many jobs; the leader is killed so many times while they run.
    Failover {
        /// Jobs.
        jobs: u64,
        /// Kills.
        kills: u64,
    },
}

/// A cluster with its clients.
struct Cluster {
    targets: Targets,
    client: Client,
    history: Arc<History>,
    stage: Arc<Stage>,
    acts: PathBuf,
    /// Tells submitters and candidates to stop.
    stop: Arc<AtomicBool>,
    mood: Arc<Mood>,
    submitters: JoinSet<()>,
    others: JoinSet<()>,
}

/// Runs a scenario, in a folder that is there and empty.
pub async fn run(
    scenario: Scenario,
    engine: Engine,
    binary: &Path,
    folder: &Path,
    seed: u64,
) -> Result<Report> {
    let started = Instant::now();
    let mut cluster = Cluster::start(scenario, engine, binary, folder, seed).await?;
    match scenario {
        Scenario::Chaos(duration) => cluster.break_things(engine, duration, seed).await?,
        Scenario::Failover { jobs, kills } => cluster.kill_leaders(jobs, kills, seed).await?,
    }
    let faults_end = cluster.history.now();
    cluster.drain(scenario).await?;
    let drained = cluster.history.now() - faults_end;
    let listed = cluster.list().await?;
    cluster.targets.end().await?;
    let mut record = cluster.history.take();
    record.listed = listed;
    let (acts, term, broken) = read_acts(&cluster.acts)?;
    record.broken.extend(broken);
    let acts = acts + cluster.stage.acts.load(Ordering::Relaxed);
    // Nobody who acts is seen twice at once. That would prove nothing.
    if matches!(scenario, Scenario::Chaos(_)) && acts == 0 {
        record.broken.push("no leader acted at all".to_owned());
    }
    let mut report = Report::of(engine, seed, &record, &check(&record), faults_end);
    report.faults = cluster.targets.counts;
    report.exits = cluster.targets.exits;
    report.acts = acts;
    report.terms = term + cluster.stage.term.load(Ordering::Relaxed);
    (report.drained, report.took) = (drained, started.elapsed());
    Ok(report)
}

impl Cluster {
    async fn start(
        scenario: Scenario,
        engine: Engine,
        binary: &Path,
        folder: &Path,
        seed: u64,
    ) -> Result<Self> {
        let is_chaos = matches!(scenario, Scenario::Chaos(_));
        let setup = Setup {
            binary: binary.to_owned(),
            engine,
            namespace: format!("chaos-{seed:x}-{}", std::process::id()),
            ttl: TTL,
            logs: folder.to_owned(),
        };
        let mount = folder.join("disk");
        std::fs::create_dir(&mount)?;
        let disk = Disk::new(mount);
        let store = disk.store();
        let mut brokers = Vec::new();
        for number in 0..if is_chaos { 3 } else { 2 } {
            let node = format!("broker-{number}");
            brokers.push(Broker::start(&setup, node, &store).await?);
        }
        let acts = folder.join("acts");
        let mut runners = Vec::new();
        for number in 0..if is_chaos { 2 } else { 0 } {
            let node = format!("runner-{number}");
            runners.push(Runner::start(&setup, node, &store, acts.clone()).await?);
        }
        let urls: Vec<String> = brokers.iter().map(|broker| broker.url.clone()).collect();
        let patient = client(&urls, START_PATIENCE)?;
        // Nothing is forgotten: in the end every job is looked at.
        let settings = Settings {
            completed: Keep::default(),
            ..Settings::default()
        };
        let configured = patient.configure(&settings).await;
        configured.context("the brokers do not serve; see their logs")?;
        let history = Arc::new(History::default());
        let targets = Targets {
            brokers,
            runners,
            disk,
            server: engine.server(),
            client: client(&urls, Duration::from_secs(2))?,
            ttl: TTL,
            history: history.clone(),
            counts: BTreeMap::new(),
            exits: 0,
        };
        let mut cluster = Self {
            targets,
            client: patient,
            history,
            stage: Arc::default(),
            acts,
            stop: Arc::default(),
            mood: Arc::default(),
            submitters: JoinSet::new(),
            others: JoinSet::new(),
        };
        cluster.start_clients(scenario, &urls, seed)?;
        Ok(cluster)
    }

    fn start_clients(&mut self, scenario: Scenario, urls: &[String], seed: u64) -> Result<()> {
        for number in 0..SUBMITTERS {
            let name = format!("s{number}");
            let random = Random::of_actor(seed, &name);
            let submitter = match scenario {
                Scenario::Chaos(_) => Submitter {
                    name,
                    jobs: None,
                    batch: 8,
                    pause: Duration::from_millis(80),
                    has_keys: true,
                },
                Scenario::Failover { jobs, .. } => Submitter {
                    name,
                    jobs: Some(jobs / SUBMITTERS as u64),
                    batch: 40,
                    pause: Duration::from_millis(1),
                    // Every one of them is to be done.
                    has_keys: false,
                },
            };
            let (history, stop) = (self.history.clone(), self.stop.clone());
            let client = client(urls, Duration::from_secs(6))?;
            self.submitters
                .spawn(submitter.run(client, history, stop, random));
        }
        if matches!(scenario, Scenario::Failover { .. }) {
            self.mood.is_good.store(true, Ordering::Relaxed);
        }
        for number in 0..WORKERS {
            let name = format!("w{number}");
            let random = Random::of_actor(seed, &name);
            let worker = Worker {
                name,
                batch: 32,
                lease: LEASE,
            };
            let (history, mood) = (self.history.clone(), self.mood.clone());
            let client = client(urls, Duration::from_secs(6))?;
            self.others.spawn(worker.run(client, history, mood, random));
        }
        for number in 0..3 {
            let name = format!("candidate-{number}");
            let random = Random::of_actor(seed, &name);
            let candidate = Candidate {
                name,
                election: "acts".to_owned(),
                ttl: TTL,
                stage: self.stage.clone(),
                history: self.history.clone(),
                stop: self.stop.clone(),
            };
            let client = client(urls, Duration::from_secs(4))?;
            self.others.spawn(candidate.run(client, random));
        }
        Ok(())
    }

    async fn break_things(&mut self, engine: Engine, duration: Duration, seed: u64) -> Result<()> {
        let mut random = Random::of_actor(seed, "faults");
        let kinds = Kind::all(engine, &self.targets.disk);
        // What never happened is to be seen in the report.
        let none = kinds.iter().map(|&kind| (kind, 0));
        self.targets.counts.extend(none);
        let mut left = Vec::new();
        let until = self.history.now() + duration;
        while self.history.now() < until {
            let pause = random.between(Duration::from_millis(500), Duration::from_secs(4));
            sleep(pause).await;
            // All of them, in any order, and then again: chance alone would leave some out.
            if left.is_empty() {
                left = kinds.clone();
            }
            let setup = random.index(left.len());
            let kind = left.swap_remove(setup);
            self.targets.inject_in_company(kind, &mut random).await?;
        }
        Ok(())
    }

    /// Kills the leader whenever another share of the jobs is done.
    async fn kill_leaders(&mut self, jobs: u64, kills: u64, seed: u64) -> Result<()> {
        let mut random = Random::of_actor(seed, "faults");
        for kill in 1..=kills {
            let share = usize::try_from(jobs * kill / (kills + 1))?;
            let patience = Instant::now() + DRAIN_PATIENCE;
            while self.history.completed() < share {
                if Instant::now() > patience {
                    bail!("not even {share} jobs were done within {DRAIN_PATIENCE:?}");
                }
                sleep(Duration::from_millis(10)).await;
            }
            self.targets.inject(Kind::KillLeader, &mut random).await?;
        }
        Ok(())
    }

    /// Everything is mended: every job has to be done, by workers that do their best.
    async fn drain(&mut self, scenario: Scenario) -> Result<()> {
        let patience = Instant::now() + DRAIN_PATIENCE;
        if matches!(scenario, Scenario::Chaos(_)) {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.mood.is_good.store(true, Ordering::Relaxed);
        let submitted = async {
            while let Some(ended) = self.submitters.join_next().await {
                ended?;
            }
            Ok::<(), anyhow::Error>(())
        };
        let left = patience.saturating_duration_since(Instant::now());
        let submitted = tokio::time::timeout(left, submitted).await;
        submitted.context("submits do not end")??;
        loop {
            self.targets.revive()?;
            let counts = self.client.stats().await?.counts;
            if counts.scheduled + counts.ready + counts.running == 0 {
                break;
            }
            if Instant::now() > patience {
                // The check tells which ones.
                self.history.broken(format!(
                    "{DRAIN_PATIENCE:?} after the last fault the queue has {counts:?}"
                ));
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        self.stop.store(true, Ordering::Relaxed);
        self.mood.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.others.join_next().await {
            ended?;
        }
        Ok(())
    }

    async fn list(&self) -> Result<BTreeMap<String, Listed>> {
        let mut listed = BTreeMap::new();
        let mut listing = Listing::new().limit(1_000);
        loop {
            let page = self.client.jobs(&listing).await?;
            listed.extend(page.jobs.into_iter().map(|job| {
                let (state, attempt) = (job.state.to_string(), job.attempt);
                (job.id.to_string(), Listed { state, attempt })
            }));
            match page.next {
                Some(next) => listing = listing.from(next),
                None => return Ok(listed),
            }
        }
    }
}

fn client(urls: &[String], deadline: Duration) -> Result<Client> {
    let builder = Client::builder(urls.iter().cloned());
    let builder = builder.attempt_timeout(Duration::from_secs(2));
    Ok(builder.deadline(deadline).build()?)
}
