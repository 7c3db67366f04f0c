//! `tenure-chaos`: injects faults into a cluster of real processes, and reports whether it kept its promises.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use tenure_chaos::clocks;
use tenure_chaos::engine::Engine;
use tenure_chaos::report::Report;
use tenure_chaos::run::{Scenario, run};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "\
usage: tenure-chaos [--binary FILE] [--engines file,postgres,mysql,s3] [--seed SEED]
                    [--logs FOLDER]
                    [--minutes COUNT | --seconds COUNT | --failover JOBS [--kills COUNT] | --clocks STEPS]

The time is shared by the engines. --clocks sets the clocks of each so many times, also of sqlite, not of mysql. Engines other than file need the servers that scripts/with-servers
starts. Exit codes: 0 every promise was kept, 1 one was broken, 2 it could not be found out.";

struct Arguments {
    binary: PathBuf,
    engines: Vec<Engine>,
    seed: u64,
    seconds: u64,
    failover: Option<u64>,
    clocks: Option<u64>,
    kills: u64,
    logs: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            say(&format!("{problem:#}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    // An interrupt drops the run, with everything that it has started.
    let outcome = tokio::select! {
        outcome = all(&arguments) => outcome,
        () = interrupted() => return ExitCode::from(130),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            say(&format!("error: {problem:#}"));
            ExitCode::from(2)
        }
    }
}

async fn interrupted() {
    let Ok(mut asked) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = asked.recv() => {}
    }
}

/// The result of a run.
enum Kind {
    Faults(Box<Report>),
    Clocks(clocks::Report),
}

impl Kind {
    fn is_fine(&self) -> bool {
        match self {
            Kind::Faults(report) => report.violations.is_empty(),
            Kind::Clocks(report) => report.violations.is_empty(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Faults(report) => report.fmt(formatter),
            Kind::Clocks(report) => report.fmt(formatter),
        }
    }
}

/// Runs all engines. Returns whether every one kept its promises.
async fn all(arguments: &Arguments) -> Result<bool> {
    let engines = arguments.engines.len() as u64;
    let scenario = match arguments.failover {
        Some(jobs) => Scenario::Failover {
            jobs,
            kills: arguments.kills,
        },
        None => Scenario::Chaos(Duration::from_secs(arguments.seconds / engines)),
    };
    let mut reports = Vec::new();
    let mut clock_steps = Vec::new();
    for (place, engine) in arguments.engines.iter().enumerate() {
        let seed = arguments.seed + place as u64;
        let what = match arguments.clocks {
            Some(steps) => format!("{steps} steps of clocks"),
            None => format!("{scenario:?}"),
        };
        say(&format!(
            "{}: seed {seed}, {what}; again with --engines {} --seed {seed}",
            engine.name(),
            engine.name()
        ));
        let mut folder = tempfile::Builder::new();
        let folder = folder.prefix("tenure-chaos-");
        let mut folder = match &arguments.logs {
            Some(logs) => folder.tempdir_in(logs)?,
            None => folder.tempdir()?,
        };
        let (binary, path) = (&arguments.binary, folder.path());
        let outcome = match arguments.clocks {
            Some(steps) => {
                let report = clocks::run(steps, *engine, binary, path, seed).await;
                report.map(Kind::Clocks)
            }
            None => run(scenario, *engine, binary, path, seed)
                .await
                .map(|report| Kind::Faults(Box::new(report))),
        };
        let is_fine = outcome.as_ref().is_ok_and(Kind::is_fine);
        if !is_fine || arguments.logs.is_some() {
            folder.disable_cleanup(true);
            say(&format!("the logs are in {}", folder.path().display()));
        }
        let report = outcome.with_context(|| format!("{}, seed {seed}", engine.name()))?;
        writeln!(io::stdout(), "{report}")?;
        match report {
            Kind::Faults(report) => reports.push(*report),
            Kind::Clocks(report) => clock_steps.push(report),
        }
    }
    if arguments.clocks.is_some() {
        return Ok(clock_steps
            .iter()
            .all(|report| report.violations.is_empty()));
    }
    let faults: u64 = reports.iter().map(Report::fault_count).sum();
    let violations: usize = reports.iter().map(|report| report.violations.len()).sum();
    writeln!(
        io::stdout(),
        "{faults} faults over {engines} engines, {violations} violations"
    )?;
    Ok(violations == 0)
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let mut arguments = Arguments {
        binary: beside()?,
        engines: Vec::new(),
        seed: u64::from(now.subsec_nanos()),
        seconds: 60,
        failover: None,
        clocks: None,
        kills: 5,
        logs: None,
    };
    while let Some(word) = words.next() {
        let value = words
            .next()
            .with_context(|| format!("{word} needs a value"))?;
        let number = || {
            let parsed = value.parse::<u64>();
            parsed.with_context(|| format!("{value:?} is no number"))
        };
        match word.as_str() {
            "--binary" => arguments.binary = value.into(),
            "--engines" => {
                arguments.engines = value.split(',').map(engine).collect::<Result<_>>()?;
            }
            "--seed" => arguments.seed = number()?,
            "--seconds" => arguments.seconds = number()?,
            "--minutes" => arguments.seconds = number()? * 60,
            "--failover" => arguments.failover = Some(number()?),
            "--clocks" => arguments.clocks = Some(number()?),
            "--logs" => arguments.logs = Some(value.into()),
            "--kills" => arguments.kills = number()?,
            _ => bail!("{word:?} means nothing"),
        }
    }
    let possible = match arguments.clocks {
        Some(_) => Engine::WITH_CLOCKS,
        None => Engine::ALL,
    };
    if arguments.engines.is_empty() {
        arguments.engines = possible.into();
    }
    for engine in &arguments.engines {
        if !possible.contains(engine) {
            bail!("{} is not for this", engine.name());
        }
    }
    for engine in &arguments.engines {
        if let Some(variable) = engine.variable()
            && std::env::var_os(variable).is_none()
        {
            bail!(
                "{}: set {variable}, or run scripts/with-servers",
                engine.name()
            );
        }
    }
    Ok(arguments)
}

fn engine(name: &str) -> Result<Engine> {
    let mut engines = Engine::ALL.into_iter().chain(Engine::WITH_CLOCKS);
    let found = engines.find(|engine| engine.name() == name);
    found.with_context(|| format!("there is no engine {name:?}"))
}

/// The binary `tenure` of the same build.
fn beside() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.with_file_name("tenure"))
}

fn say(text: &str) {
    // If standard error is closed, there is nowhere to report it.
    let _ = writeln!(io::stderr(), "{text}");
}
