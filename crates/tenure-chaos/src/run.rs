//! One run on one engine: start, inject faults, repair, drain, check.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tenure_client::{Client, Keep, Listing, Settings};
use tenure_random::Random;
use tenure_testkit::tcp_proxy::Line;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::broker::{Broker, Setup};
use crate::callers::Answers;
use crate::check::check;
use crate::disk::Disk;
use crate::electorate::{Candidate, Role, Runner, SHARDS, Stage, read_acts, read_shards};
use crate::engine::Engine;
use crate::faults::{Kind, Targets};
use crate::history::{History, Listed};
use crate::report::Report;
use crate::submitter::Submitter;
use crate::worker::{Mood, Worker};

/// How long a leader is trusted: short, so that many terms fit into a run.
const TTL: Duration = Duration::from_secs(2);

/// The lease of a claim: some takeovers take longer, but not all.
const LEASE: Duration = Duration::from_secs(3);

/// How long brokers may take to serve for the first time.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How long a queue may take to drain after the last fault.
const DRAIN_PATIENCE: Duration = Duration::from_secs(240);

/// A run with this much time for each kind of fault covers all kinds.
const EACH_KIND: Duration = Duration::from_secs(15);

const CALLERS: usize = 2;
const WORKERS: usize = 4;
const SUBMITTERS: usize = 2;

/// The scenario of a run.
#[derive(Debug, Clone, Copy)]
pub enum Scenario {
    /// Every kind of fault, for this long.
    Chaos(Duration),
    /// Two brokers, four workers and a number of jobs; the leader is killed a number of times while they run.
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
    shards: PathBuf,
    answers: Arc<Answers>,
    /// Tells submitters to stop.
    stop: Arc<AtomicBool>,
    /// Tells candidates and callers to stop.
    is_over: Arc<AtomicBool>,
    mood: Arc<Mood>,
    submitters: JoinSet<()>,
    others: JoinSet<()>,
    callers: JoinSet<Result<()>>,
}

/// How often each witness has acted. A witness that never acts proves nothing.
type Acts = BTreeMap<String, u64>;

/// Runs a scenario in a folder that must exist and be empty.
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
    let before = cluster.acts(scenario)?;
    cluster.drain(scenario).await?;
    cluster.all_act(scenario, &before).await?;
    cluster.end_clients().await?;
    let drained = cluster.history.now() - faults_end;
    let listed = cluster.list().await?;
    cluster.targets.end().await?;
    let mut record = cluster.history.take();
    record.listed = listed;
    let (_, term, broken) = read_acts(&cluster.acts)?;
    record.broken.extend(broken);
    record.broken.extend(read_shards(&cluster.shards)?.1);
    record.broken.extend(cluster.answers.sum().broken);
    let mut report = Report::of(engine, seed, &record, &check(&record), faults_end);
    report.acts = cluster.acts(scenario)?;
    report.faults = cluster.targets.counts;
    report.not_tried = cluster.targets.not_tried;
    report.exits = cluster.targets.exits;
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
        let (acts, shards) = (folder.join("acts"), folder.join("shards"));
        let mut runners = Vec::new();
        for number in 0..if is_chaos { 2 } else { 0 } {
            for (role, name, acts) in [
                (Role::Leader, "runner", &acts),
                (Role::Daemon, "daemon", &shards),
            ] {
                let node = format!("{name}-{number}");
                runners.push(Runner::start(&setup, node, role, &store, acts.clone()).await?);
            }
        }
        let urls: Vec<String> = brokers.iter().map(|broker| broker.url.clone()).collect();
        let patient = client(&urls, START_PATIENCE)?;
        // Finished jobs are kept, since at the end every job is checked.
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
            not_tried: Vec::new(),
            exits: 0,
        };
        let mut cluster = Self {
            targets,
            client: patient,
            history,
            stage: Arc::default(),
            acts,
            shards,
            answers: Arc::default(),
            stop: Arc::default(),
            is_over: Arc::default(),
            mood: Arc::default(),
            submitters: JoinSet::new(),
            others: JoinSet::new(),
            callers: JoinSet::new(),
        };
        cluster.start_clients(scenario, &urls, seed)?;
        if is_chaos {
            cluster.start_callers(&setup, &store, seed).await?;
        }
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
                    reads: true,
                },
                Scenario::Failover { jobs, .. } => Submitter {
                    name,
                    jobs: Some(jobs / SUBMITTERS as u64),
                    batch: 40,
                    pause: Duration::from_millis(1),
                    // Every job has to be done.
                    has_keys: false,
                    reads: false,
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
                stop: self.is_over.clone(),
            };
            let client = client(urls, Duration::from_secs(4))?;
            self.others.spawn(candidate.run(client, random));
        }
        Ok(())
    }

    /// Programs that call `tenure elect` on the store, each through its own proxy.
    async fn start_callers(&mut self, setup: &Setup, folder: &Path, seed: u64) -> Result<()> {
        for number in 0..CALLERS {
            let name = format!("caller-{number}");
            let mut random = Random::of_actor(seed, &name);
            let (store, line) = setup.engine.reach(folder).await?;
            let (setup, answers) = (setup.clone(), self.answers.clone());
            let is_over = self.is_over.clone();
            self.callers.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let mut command = Command::new(&setup.binary);
                    command.env("TENURE_STORE", &store);
                    // Sometimes a call is killed before its answer is known.
                    let dies = (random.below(8) == 0)
                        .then(|| random.between(Duration::from_millis(1), TTL / 4));
                    let told = answers.call(command, &name, &setup.namespace, TTL, dies);
                    // And sometimes a caller pauses for longer than it may lead.
                    let pause = match told.await? {
                        Some(true) if random.below(6) == 0 => TTL + TTL / 4,
                        _ => random.between(TTL / 8, TTL / 3),
                    };
                    if let Some(line) = &line {
                        let slow = random.below(6) == 0;
                        line.set(if slow {
                            Line::Slow(TTL / 10)
                        } else {
                            Line::Good
                        });
                    }
                    sleep(pause).await;
                }
                Ok(())
            });
        }
        Ok(())
    }

    async fn break_things(&mut self, engine: Engine, duration: Duration, seed: u64) -> Result<()> {
        let mut random = Random::of_actor(seed, "faults");
        let (kinds, lacking) = Kind::all(engine, &self.targets.disk);
        let is_long = duration >= EACH_KIND * u32::try_from(kinds.len())?;
        for (kind, remedy) in lacking {
            let what = format!("{} on {}", kind.words(), engine.name());
            if is_long && std::env::var("TENURE_TEST_REQUIRE").is_ok_and(|what| what == "all") {
                let what = format!("{what} never happened: {remedy}");
                self.history.broken(what);
            } else {
                self.targets.not_tried.push(format!("{what}: {remedy}"));
            }
        }
        // Faults that never happened must show in the report.
        let none = kinds.iter().map(|&kind| (kind, 0));
        self.targets.counts.extend(none);
        let mut left = Vec::new();
        let until = self.history.now() + duration;
        let all = |counts: &BTreeMap<Kind, u64>| counts.values().all(|&count| count > 0);
        // A long run ends only when every fault has happened.
        while self.history.now() < until || is_long && !all(&self.targets.counts) {
            let pause = random.between(Duration::from_millis(500), Duration::from_secs(4));
            sleep(pause).await;
            // All of them in random order, and then again: random draws could leave some out.
            if left.is_empty() {
                left = kinds.clone();
            }
            let setup = random.index(left.len());
            let kind = left.swap_remove(setup);
            self.targets.inject_in_company(kind, &mut random).await?;
        }
        Ok(())
    }

    /// Kills the leader each time another part of the jobs is done.
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

    /// After the repairs, every job has to be done, by workers that behave well.
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
                // The check reports which ones.
                self.history.broken(format!(
                    "{DRAIN_PATIENCE:?} after the last fault the queue has {counts:?}"
                ));
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// How often each witness has acted so far.
    fn acts(&self, scenario: Scenario) -> Result<Acts> {
        let candidates = self.stage.acts.load(Ordering::Relaxed);
        let mut acts = Acts::from([("candidates over HTTP".to_owned(), candidates)]);
        if matches!(scenario, Scenario::Chaos(_)) {
            acts.insert("programs that lead".to_owned(), read_acts(&self.acts)?.0);
            acts.insert("callers of tenure elect".to_owned(), self.answers.led());
            let (shards, _) = read_shards(&self.shards)?;
            for shard in 0..SHARDS {
                let count = shards.get(&shard).copied().unwrap_or_default();
                acts.insert(format!("shard {shard} of the daemon"), count);
            }
        }
        Ok(acts)
    }

    /// After the repairs, each witness has to act again.
    async fn all_act(&mut self, scenario: Scenario, before: &Acts) -> Result<()> {
        let patience = Instant::now() + DRAIN_PATIENCE;
        loop {
            self.targets.revive()?;
            let now = self.acts(scenario)?;
            let mut silent = now.iter().filter(|(who, count)| *count <= &before[*who]);
            let Some((who, count)) = silent.next() else {
                return Ok(());
            };
            if Instant::now() > patience {
                self.history.broken(format!(
                    "{DRAIN_PATIENCE:?} after the last fault there is no act of the {who}: {count} in all"
                ));
                return Ok(());
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn end_clients(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.is_over.store(true, Ordering::Relaxed);
        self.mood.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.others.join_next().await {
            ended?;
        }
        while let Some(ended) = self.callers.join_next().await {
            if let Err(error) = ended? {
                self.history.broken(format!("tenure elect: {error:#}"));
            }
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
