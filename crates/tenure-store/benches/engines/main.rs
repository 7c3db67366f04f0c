//! What each engine costs, next to the bare operation below it (its floor), measured in the same run.
//!
//! `make bench-store` runs this on real servers. Every round does each operation once and the floor once,
//! so that noise of a shared machine hits all of them alike; read the ratios, not the seconds.
//!
//! The floors: for files a bare create, sync, rename and sync of the folder, and a bare append with
//! fdatasync; for SQL a bare one-row UPDATE that commits; for object stores a bare PUT without condition.
//!
//! `cargo bench -p tenure-store --bench engines -- [--rounds N] [ENGINE…]`

#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_store::{Expect, Prefix, Store, Version};

mod floors;

use floors::Floor;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// About the size of a session or a lease.
const VALUE_BYTES: usize = 300;

const ROUNDS_DEFAULT: usize = 300;

/// An engine, where its URL comes from, and what part of the rounds it runs: a bucket is slow.
const ENGINES: &[(&str, Source, usize)] = &[
    ("memory", Source::Url("memory:"), 1),
    ("file", Source::Folder("file:"), 1),
    ("sqlite", Source::Folder("sqlite:"), 1),
    ("postgres", Source::Variable("TENURE_TEST_POSTGRES"), 1),
    ("mysql", Source::Variable("TENURE_TEST_MYSQL"), 1),
    ("s3-ceph", Source::Variable("TENURE_TEST_S3_CEPH"), 3),
    ("azure", Source::Variable("TENURE_TEST_AZURE"), 3),
];

enum Source {
    Url(&'static str),
    Folder(&'static str),
    Variable(&'static str),
}

#[tokio::main]
async fn main() -> Result<()> {
    let (rounds, wanted) = arguments()?;
    println!(
        "{VALUE_BYTES}-byte values, one caller, {rounds} rounds; each operation once per round\n"
    );
    println!(
        "{:<10} {:<22} {:>9} {:>10} {:>10}   ratio of medians",
        "engine", "operation", "per s", "median", "p99"
    );
    for (name, source, share) in ENGINES {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        // Next to the build output: that is on a real disk, and a temporary folder may not be.
        let folder = tempfile::Builder::new().tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let url = match source {
            Source::Url(url) => (*url).to_owned(),
            Source::Folder(scheme) => format!("{scheme}{}", folder.path().join("store").display()),
            Source::Variable(variable) => match std::env::var(variable) {
                Ok(url) => url,
                Err(_) => {
                    println!("{name:<10} not measured: {variable} is not set");
                    continue;
                }
            },
        };
        let store = tenure_store::open(&url).await?;
        let floors = floors::of(name, &url, folder.path()).await?;
        measure(name, store, floors, rounds / share).await?;
    }
    Ok(())
}

fn arguments() -> Result<(usize, Vec<String>)> {
    let (mut rounds, mut wanted) = (ROUNDS_DEFAULT, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => rounds = arguments.next().ok_or("--rounds needs a number")?.parse()?,
            // Cargo adds this.
            "--bench" => {}
            engine => wanted.push(engine.to_owned()),
        }
    }
    Ok((rounds, wanted))
}

/// How long each round of one operation took.
struct Series {
    operation: &'static str,
    /// The floor it is compared with, if any.
    floor: Option<&'static str>,
    took: Vec<Duration>,
}

impl Series {
    fn new(operation: &'static str, floor: Option<&'static str>) -> Self {
        Self {
            operation,
            floor,
            took: Vec::new(),
        }
    }

    fn percentile(&mut self, percent: usize) -> Duration {
        self.took.sort_unstable();
        self.took[(self.took.len() - 1) * percent / 100]
    }
}

async fn measure(
    name: &str,
    store: Arc<dyn Store>,
    mut floors: Vec<Floor>,
    rounds: usize,
) -> Result<()> {
    let folder = Prefix::new(format!("tenure-bench/{}", uuid::Uuid::new_v4()))?;
    let key = folder.key("replaced")?;
    let mut version = store.put(&key, value(0), &Expect::Absent).await?;
    let floor = floors.first().map(|floor| floor.name);
    let mut get = Series::new("get", None);
    let mut poll = Series::new("get_if_changed", None);
    let mut create = Series::new("create", floor);
    let mut replace = Series::new("replace", floor);
    let mut bare: Vec<Series> = floors
        .iter()
        .map(|floor| Series::new(floor.name, None))
        .collect();

    for round in 0..rounds {
        for (floor, series) in floors.iter_mut().zip(&mut bare) {
            let value = value(round);
            let started = Instant::now();
            floor.run(round, value).await?;
            series.took.push(started.elapsed());
        }
        let fresh = folder.key(format!("created/{round:06}"))?;
        let started = Instant::now();
        store.put(&fresh, value(round), &Expect::Absent).await?;
        create.took.push(started.elapsed());

        let started = Instant::now();
        version = put(&*store, &key, round, version).await?;
        replace.took.push(started.elapsed());

        let started = Instant::now();
        store.get(&key).await?;
        get.took.push(started.elapsed());

        let started = Instant::now();
        store.get_if_changed(&key, &version).await?;
        poll.took.push(started.elapsed());
    }

    let medians: Vec<(&str, Duration)> = bare
        .iter_mut()
        .map(|series| (series.operation, series.percentile(50)))
        .collect();
    for series in [&mut get, &mut poll, &mut create, &mut replace]
        .into_iter()
        .chain(&mut bare)
    {
        let median = series.percentile(50);
        let per_second = 1.0 / median.as_secs_f64();
        let below = series
            .floor
            .and_then(|name| medians.iter().find(|(floor, _)| *floor == name));
        let ratio = below.map_or(String::new(), |(floor, below)| {
            format!(
                "{:.2} x {floor}",
                median.as_secs_f64() / below.as_secs_f64()
            )
        });
        let slow = series.percentile(99);
        println!(
            "{name:<10} {:<22} {per_second:>9.0} {:>10} {:>10}   {ratio}",
            series.operation,
            milliseconds(median),
            milliseconds(slow)
        );
    }
    for entry in tenure_store::list_all(&*store, &folder).await? {
        store.delete(&entry.key).await?;
    }
    Ok(())
}

async fn put(
    store: &dyn Store,
    key: &tenure_store::Key,
    round: usize,
    version: Version,
) -> Result<Version> {
    Ok(store
        .put(key, value(round), &Expect::Version(version))
        .await?)
}

fn value(round: usize) -> Bytes {
    format!("{round:0VALUE_BYTES$}").into()
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.3} ms", duration.as_secs_f64() * 1000.0)
}
