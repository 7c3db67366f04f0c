//! Sets clocks by minutes, forward and back, while real programs lead.
//!
//! Three processes of `tenure run` and three callers of `tenure elect` compete on one store. Step by step its clock
//! changes:
//!
//! - **PostgreSQL** is crashed and restarted under faketime, as after a failover to a host with another time.
//! - **S3** is behind two gateways that each set `Date` from their own clock.
//! - **A folder and SQLite** use the clock of the process. Each process has its own wall clock: libfaketime as
//!   `LD_PRELOAD` changes what the standard library reads, even while the process runs. It does not change
//!   `CLOCK_BOOTTIME`, which the product reads directly. A time namespace does, so some processes are started in one
//!   (`unshare --time`, root only).
//!
//! At every step one of the programs is also killed, or asked to end, and restarted: a process that has just opened
//! the store has only the store's word for how old a lease is. Two programs at once are detected by a file lock, and
//! by terms that go back; two callers at once by their [answers](crate::callers).

use std::fmt;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tenure_random::Random;
use tenure_testkit::http_proxy::HttpProxy;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::callers::Answers;
use crate::electorate::read_acts;
use crate::engine::{Engine, through, upstream};

/// Longer than a server needs to restart, so that a leader is still trusted when the clock has changed.
const TTL: Duration = Duration::from_secs(6);

/// The longest time between two steps.
const PAUSE: Duration = Duration::from_millis(1500);

/// How many programs, and how many callers.
const EACH: usize = 3;

/// How far a clock is set.
const STEP_SECONDS: (u64, u64) = (30, 900);

/// How long the programs may take at the end until one leads.
const PATIENCE: Duration = Duration::from_secs(60);

/// Holds the lock while it runs, and reports it if another program holds it.
const PROGRAM: &str = "exec 9>>\"$LOCK\"
echo \"$TENURE_NODE\" >\"$LEADING\"
flock -n 9 || echo \"$TENURE_NODE runs beside another program, token $TENURE_TOKEN\" >>\"$BROKEN\"
while echo \"$TENURE_TOKEN\" >>\"$ACTS\"; do sleep 0.02 9>&-; done";

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The engine.
    pub engine: Engine,
    /// How often clocks were set.
    pub steps: u64,
    /// How often programs acted.
    pub acts: u64,
    /// Their last term.
    pub terms: u64,
    /// How many calls were answered.
    pub calls: u64,
    /// How many of the answers were "leader".
    pub led: u64,
    /// How often the leading caller changed.
    pub changes: u64,
    /// How many processes had another `CLOCK_BOOTTIME`.
    pub moved: u64,
    /// How long it took.
    pub took: Duration,
    /// The times when two led at once.
    pub violations: Vec<String>,
}

/// The clocks of one process.
#[derive(Debug, Clone, Default)]
struct Clock {
    /// The file that sets its wall clock.
    wall: Option<PathBuf>,
    /// How far `CLOCK_BOOTTIME` is moved.
    boot: Option<i64>,
}

/// What all processes share.
#[derive(Debug)]
struct Scene {
    engine: Engine,
    binary: PathBuf,
    folder: PathBuf,
    namespace: String,
    preload: PathBuf,
    /// Whether processes can be given another `CLOCK_BOOTTIME`.
    can_move: bool,
    gateways: Vec<HttpProxy>,
    stores: Vec<String>,
    moved: AtomicU64,
}

/// A process of `tenure run`.
#[derive(Debug)]
struct Runner {
    name: String,
    place: usize,
    clock: Clock,
    process: Child,
}

/// Sets clocks this many times.
pub async fn run(
    steps: u64,
    engine: Engine,
    binary: &Path,
    folder: &Path,
    seed: u64,
) -> Result<Report> {
    let started = Instant::now();
    let mut random = Random::of_actor(seed, "clocks");
    let scene = Arc::new(Scene::new(engine, binary, folder, seed).await?);
    let mut runners = Vec::new();
    for place in 0..EACH {
        runners.push(scene.start(place, &mut random)?);
    }
    let answers = Arc::new(Answers::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for place in 0..EACH {
        let random = Random::of_actor(seed, &format!("caller {place}"));
        let (scene, answers, stop) = (scene.clone(), answers.clone(), stop.clone());
        callers.spawn(async move { scene.call(place, random, &answers, &stop).await });
    }
    scene.led(0).await?;
    for _ in 0..steps {
        scene.step(&runners, &mut random).await?;
        let runner = runners.remove(scene.victim(&runners, &mut random));
        let place = runner.place;
        runner.end(random.below(3) > 0).await?;
        sleep(random.between(Duration::ZERO, PAUSE / 4)).await;
        runners.push(scene.start(place, &mut random)?);
        sleep(random.between(PAUSE / 4, PAUSE)).await;
    }
    // There still is a leader, whatever the clocks show.
    let (acts, _, _) = read_acts(&scene.file("acts"))?;
    scene.led(acts).await?;
    stop.store(true, Ordering::Relaxed);
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    for runner in runners {
        runner.end(false).await?;
    }
    if engine == Engine::Postgres {
        scene.restart_server(0).await?;
    }
    let (acts, terms, mut violations) = read_acts(&scene.file("acts"))?;
    let broken = fs::read_to_string(scene.file("broken")).unwrap_or_default();
    violations.extend(broken.lines().map(str::to_owned));
    let told = answers.sum();
    violations.extend(told.broken);
    Ok(Report {
        engine,
        steps,
        acts,
        terms,
        calls: told.calls,
        led: told.led,
        changes: told.changes,
        moved: scene.moved.load(Ordering::Relaxed),
        took: started.elapsed(),
        violations,
    })
}

impl Scene {
    async fn new(engine: Engine, binary: &Path, folder: &Path, seed: u64) -> Result<Self> {
        let preload = preload()?;
        let mut gateways = Vec::new();
        let mut stores = Vec::new();
        if engine == Engine::S3 {
            let store = engine.store(folder)?;
            for _ in 0..2 {
                let gateway = HttpProxy::start(upstream(&store)?).await;
                stores.push(through(&store, gateway.address())?);
                gateways.push(gateway);
            }
        } else {
            stores.push(engine.store(&folder.join("store"))?);
        }
        let scene = Self {
            engine,
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            namespace: format!("clocks{seed}"),
            preload,
            can_move: can_move().await,
            gateways,
            stores,
            moved: AtomicU64::new(0),
        };
        scene.check_clocks().await?;
        scene.moved.store(0, Ordering::Relaxed);
        Ok(scene)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Checks that setting clocks has an effect: otherwise the run would find nothing.
    async fn check_clocks(&self) -> Result<()> {
        let clock = Clock {
            wall: Some(self.wall("check", 86_400)?),
            boot: self.can_move.then_some(86_400),
        };
        const SHOW: [&str; 2] = ["-c", "date +%s; cut -d. -f1 /proc/uptime"];
        let shifted = self.command("sh", &clock).args(SHOW).output().await?;
        let plain = Command::new("sh").args(SHOW).output().await?;
        let read = |output: &[u8]| -> Vec<i64> {
            let text = String::from_utf8_lossy(output);
            text.lines().filter_map(|line| line.parse().ok()).collect()
        };
        let (shifted, plain) = (read(&shifted.stdout), read(&plain.stdout));
        let ahead = |at: usize| Some(shifted.get(at)? - plain.get(at)?);
        ensure!(
            ahead(0).is_some_and(|ahead| ahead > 86_000),
            "libfaketime does not set the wall clock: {shifted:?}, {plain:?}"
        );
        ensure!(
            !self.can_move || ahead(1).is_some_and(|ahead| ahead > 86_000),
            "a time namespace does not move CLOCK_BOOTTIME: {shifted:?}, {plain:?}"
        );
        Ok(())
    }

    /// Writes the file that sets a process's wall clock.
    fn wall(&self, name: &str, seconds: i64) -> Result<PathBuf> {
        let path = self.file(&format!("{name}.clock"));
        fs::write(&path, format!("{seconds:+}\n"))?;
        Ok(path)
    }

    /// Random clocks for a process that starts.
    fn clock(&self, name: &str, random: &mut Random) -> Result<Clock> {
        if !matches!(self.engine, Engine::File | Engine::Sqlite) {
            return Ok(Clock::default());
        }
        let wall = Some(self.wall(name, seconds(random))?);
        let boot = (self.can_move && random.below(2) == 0).then(|| seconds(random));
        Ok(Clock {
            wall,
            boot: boot.filter(|&by| uptime() > by.unsigned_abs() + 60),
        })
    }

    /// A command with these clocks.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, clock: &Clock) -> Command {
        let mut command = match clock.boot {
            Some(by) => {
                self.moved.fetch_add(1, Ordering::Relaxed);
                let mut command = Command::new("unshare");
                command.args(["--time", &format!("--boottime={by}"), "--"]);
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        if let Some(wall) = &clock.wall {
            command
                .env("LD_PRELOAD", &self.preload)
                .env("FAKETIME_TIMESTAMP_FILE", wall)
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("FAKETIME_DISABLE_SHM", "1");
        }
        command.kill_on_drop(true).stdin(Stdio::null());
        command
    }

    fn start(&self, place: usize, random: &mut Random) -> Result<Runner> {
        let name = format!("program-{place}");
        let clock = self.clock(&name, random)?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.file(&format!("{name}.log")))?;
        let ttl = format!("{}ms", TTL.as_millis());
        let process = self
            .command(&self.binary, &clock)
            .args(["run", "--namespace", &self.namespace, "--ttl", &ttl])
            .args(["--node", &name, "--", "sh", "-c", PROGRAM])
            .env("TENURE_STORE", &self.stores[place % self.stores.len()])
            .env("TENURE_LOG", "info")
            .env("ACTS", self.file("acts"))
            .env("LOCK", self.file("lock"))
            .env("LEADING", self.file("leading"))
            .env("BROKEN", self.file("broken"))
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting tenure run")?;
        Ok(Runner {
            name,
            place,
            clock,
            process,
        })
    }

    /// Which program is restarted: mostly one that does not lead, since without the leader there is none for a ttl.
    fn victim(&self, runners: &[Runner], random: &mut Random) -> usize {
        let leading = fs::read_to_string(self.file("leading")).unwrap_or_default();
        let victim = random.index(EACH);
        if runners[victim].name == leading.trim() && random.below(3) > 0 {
            (victim + 1) % EACH
        } else {
            victim
        }
    }

    /// Sets the clocks that this engine uses.
    async fn step(&self, runners: &[Runner], random: &mut Random) -> Result<()> {
        match self.engine {
            Engine::Postgres => self.restart_server(seconds(random)).await?,
            Engine::S3 => {
                for gateway in &self.gateways {
                    gateway.set_date_ahead(seconds(random));
                }
            }
            _ => {
                for runner in runners.iter().filter(|runner| runner.clock.wall.is_some()) {
                    self.wall(&runner.name, seconds(random))?;
                }
            }
        }
        Ok(())
    }

    async fn restart_server(&self, seconds: i64) -> Result<()> {
        let server = self.engine.server().context("this engine has no server")?;
        server.restart_ahead(seconds).await.map(drop)
    }

    /// Waits until programs have acted more often than that.
    async fn led(&self, acts: u64) -> Result<()> {
        let started = Instant::now();
        while read_acts(&self.file("acts"))?.0 <= acts {
            if started.elapsed() > PATIENCE {
                bail!("nobody led within {PATIENCE:?}");
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Calls again and again until it is told to stop; now and then it pauses for a while.
    async fn call(
        &self,
        place: usize,
        mut random: Random,
        answers: &Answers,
        stop: &AtomicBool,
    ) -> Result<()> {
        let caller = format!("caller-{place}");
        let store = &self.stores[place % self.stores.len()];
        while !stop.load(Ordering::Relaxed) {
            let clock = self.clock(&caller, &mut random)?;
            let mut command = self.command(&self.binary, &clock);
            command.env("TENURE_STORE", store);
            let told = answers.call(command, &caller, &self.namespace, TTL, None);
            let Some(is_leader) = told.await? else {
                sleep(PAUSE / 4).await;
                continue;
            };
            let pause = if is_leader && random.below(6) == 0 {
                TTL + PAUSE
            } else {
                random.between(PAUSE / 10, PAUSE / 2)
            };
            sleep(pause).await;
        }
        Ok(())
    }
}

impl Runner {
    /// Kills it, or asks it to end.
    async fn end(mut self, at_once: bool) -> Result<()> {
        let id = self.process.id().and_then(|id| i32::try_from(id).ok());
        let Some(id) = id.and_then(Pid::from_raw) else {
            bail!("{} ended by itself: see its log", self.name);
        };
        let signal = if at_once { Signal::KILL } else { Signal::TERM };
        // It may have ended just now.
        let _ = kill_process(id, signal);
        let ended = timeout(PATIENCE, self.process.wait()).await;
        ended.with_context(|| format!("{} does not end", self.name))??;
        Ok(())
    }
}

/// A random number of seconds, forward or back.
fn seconds(random: &mut Random) -> i64 {
    let (least, most) = STEP_SECONDS;
    let by = i64::try_from(least + random.below(most - least)).unwrap_or(0);
    if random.below(2) == 0 { by } else { -by }
}

/// How long the host has been up.
fn uptime() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split('.').next().and_then(|text| text.parse().ok());
    seconds.unwrap_or(0)
}

async fn can_move() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--time", "--boottime=60", "--", "true"]);
    let status = command.stderr(Stdio::null()).status().await;
    status.is_ok_and(|status| status.success())
}

/// faketime's library for programs with threads.
fn preload() -> Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib")?.filter_map(Result::ok);
    let mut paths = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let found = paths.find(|path| path.exists());
    found.context("there is no libfaketime: install faketime, or run scripts/with-servers")
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            steps,
            acts,
            terms,
            calls,
            led,
            changes,
            moved,
            ..
        } = self;
        let (engine, took) = (self.engine.name(), self.took.as_secs());
        writeln!(
            formatter,
            "{engine}: {steps} steps of clocks in {took} s: programs acted {acts} times in {terms} terms; \
             {calls} calls, {led} of them leading, {changes} changes; {moved} processes with another CLOCK_BOOTTIME"
        )?;
        for violation in self.violations.iter().take(20) {
            writeln!(formatter, "  BROKEN: {violation}")?;
        }
        write!(formatter, "{} violations", self.violations.len())
    }
}
