//! Many elections in one process: until all are led, and while they are.
//!
//! `make bench-election` runs it on every engine at hand. `ELECTIONS="1 100"` picks sizes, `ENGINES="file sqlite"`
//! engines, and `HOLD=600` holds all elections for ten minutes instead of twenty seconds. Ends with an error if not
//! all are led within three ttl, one is lost, or a heartbeat is late.
//!
//! The ttl is the default one, ten seconds, for every size: nobody should have to choose another because there are many.
//! `TENURE_BENCH_FOLDER` says where file and SQLite stores are: the folder for temporary files may be in memory, where a
//! flush costs nothing.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark talks, and may fail"
)]

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use tenure::core::session::Config;
use tenure::store::wrap::metered::{Meter, Metered};
use tenure::store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};
use tenure::{Leadership, Node, NodeOptions};

/// A heartbeat is late when it comes after more than its interval and this part of it.
const LATE: f64 = 0.1;

#[tokio::main]
async fn main() -> ExitCode {
    let words = |variable: &str, default: &str| -> Vec<String> {
        let text = std::env::var(variable).unwrap_or(default.to_owned());
        text.split_whitespace().map(str::to_owned).collect()
    };
    let sizes = words("ELECTIONS", "1 100 1000 10000");
    let engines = words("ENGINES", "file sqlite postgres ceph");
    let hold = std::env::var("HOLD").map_or(20, |seconds| seconds.parse().unwrap());
    let folder = match std::env::var("TENURE_BENCH_FOLDER") {
        Ok(folder) => tempfile::tempdir_in(folder),
        Err(_) => tempfile::tempdir(),
    };
    let folder = folder.unwrap();
    let mut holds = true;
    println!("ttl {:?}", Config::default().ttl);
    println!(
        "engine    elections  all led after   requests each   lost   latest heartbeat   requests per second"
    );
    for engine in &engines {
        let url = match &**engine {
            "file" | "sqlite" => Some(format!("{engine}:{}", folder.path().join(engine).display())),
            "postgres" => std::env::var("TENURE_TEST_POSTGRES").ok(),
            "mariadb" => std::env::var("TENURE_TEST_MYSQL").ok(),
            "ceph" => std::env::var("TENURE_TEST_S3_CEPH").ok(),
            other => panic!("{other} is not an engine of this benchmark"),
        };
        let Some(url) = url else {
            println!("{engine:<9} not run: scripts/with-servers starts the server");
            continue;
        };
        for size in &sizes {
            let size = size.parse().unwrap();
            holds &= measure(engine, &url, size, Duration::from_secs(hold)).await;
        }
    }
    ExitCode::from(u8::from(!holds))
}

async fn measure(engine: &str, url: &str, size: usize, hold: Duration) -> bool {
    let config = Config::default();
    let meter = Arc::new(Meter::default());
    let metered = Metered::with_meter(tenure::store::open(url).await.unwrap(), meter.clone());
    let store = Arc::new(Watched {
        inner: metered,
        confirmed: Mutex::default(),
    });
    let namespace = format!("bench-{}", uuid::Uuid::new_v4());
    let mut options = NodeOptions::new(url, namespace);
    options.node = Some("a".to_owned());
    options.session = config.clone();
    let node = Node::start_with(store.clone(), options).await.unwrap();
    node.joined().await.unwrap();

    let (started, requests_before) = (Instant::now(), requests(&meter));
    let mut elections = Vec::new();
    for number in 0..size {
        elections.push(node.join(&format!("election-{number:06}")).await.unwrap());
    }
    let elected = async {
        let mut terms: Vec<Leadership> = Vec::new();
        for election in &elections {
            terms.push(election.elected().await.unwrap());
        }
        terms
    };
    let limit = config.ttl * 12;
    let Ok(terms) = tokio::time::timeout(limit, elected).await else {
        let led = elections.iter().filter(|election| election.is_leader());
        let led = led.count();
        let each = (requests(&meter) - requests_before) as f64 / size as f64;
        println!(
            "{engine:<9} {size:>9}  {led} of them are led after {limit:?}, {each:.1} requests each: not in time"
        );
        node.shutdown().await;
        return false;
    };
    let all_led = started.elapsed();

    let before = requests(&meter);
    let each = (before - requests_before) as f64 / size as f64;
    tokio::time::sleep(hold).await;
    let rate = (requests(&meter) - before) as f64 / hold.as_secs_f64();
    let lost = terms.iter().filter(|term| term.check().is_err()).count();
    let latest = store.longest_pause().as_secs_f64() / config.heartbeat.as_secs_f64();
    let is_late = latest > 1.0 + LATE;
    let holds = all_led <= config.ttl * 3 && lost == 0 && !is_late;
    println!(
        "{engine:<9} {size:>9} {:>14.1?} {each:>15.1} {lost:>6} {:>17.0} % {rate:>21.1}{}",
        all_led,
        latest * 100.0,
        if holds { "" } else { "   <- not good" }
    );
    node.shutdown().await;
    holds
}

fn requests(meter: &Meter) -> u64 {
    meter.snapshot().ended.iter().map(|ended| ended.count).sum()
}

/// Notes when heartbeats were confirmed.
#[derive(Debug)]
struct Watched {
    inner: Metered,
    confirmed: Mutex<Vec<Instant>>,
}

impl Watched {
    fn longest_pause(&self) -> Duration {
        let confirmed = self.confirmed.lock().unwrap();
        let last = confirmed.last().map(Instant::elapsed).unwrap_or_default();
        let pauses = confirmed.windows(2).map(|pair| pair[1] - pair[0]);
        pauses.chain([last]).max().unwrap_or_default()
    }
}

#[async_trait]
impl Store for Watched {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.inner.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.inner.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        let put = self.inner.put(key, value, expect).await;
        if put.is_ok() && key.as_str().contains("/nodes/") {
            self.confirmed.lock().unwrap().push(Instant::now());
        }
        put
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.inner.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.inner.watch(prefix)
    }
}
