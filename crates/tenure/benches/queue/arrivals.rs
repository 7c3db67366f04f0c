//! Independent arrivals on a slow store: nobody waits for anyone else before coming, as in real life.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use tenure::queue::Config;
use tenure::store::engine::memory::Memory;
use tenure::store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};
use tenure_random::Random;

use crate::report::{Goal, Report};
use crate::rig::{Jobs, PAYLOAD_BYTES, Rig, percentile};

const LASTS: Duration = Duration::from_secs(10);

pub(crate) fn measure(report: &Report) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        for latency_ms in [30, 80] {
            for rate in [200, 2_000] {
                at(report, latency_ms, rate).await;
            }
        }
    });
}

async fn at(report: &Report, latency_ms: u64, rate: u64) {
    let store = Slow {
        store: Memory::new(),
        latency: Duration::from_millis(latency_ms),
    };
    let rig = Rig::open(Arc::new(store), Config::default()).await;
    let (mut jobs, mut random) = (Jobs::new(PAYLOAD_BYTES), Random::new(1));
    let (mut tasks, started) = (Vec::new(), tokio::time::Instant::now());
    let mut next = started;
    while next < started + LASTS {
        tokio::time::sleep_until(next).await;
        let (queue, job, due) = (rig.queue.clone(), jobs.one(), next);
        tasks.push(tokio::spawn(async move {
            let answer = queue.submit(vec![job]).await;
            // Also the time that it was late itself.
            (answer.is_ok(), due.elapsed().as_secs_f64() * 1e3)
        }));
        next += exponential(&mut random, rate);
    }
    let (mut failures, mut took) = (0.0, Vec::new());
    for task in tasks {
        let (is_ok, milliseconds) = task.await.unwrap();
        failures += f64::from(!is_ok);
        took.push(milliseconds);
    }
    let statistics = rig.queue.statistics().unwrap();
    let latency = latency_ms as f64;
    let what = |what: &str| format!("{what}, {rate} submits/s at {latency_ms} ms");
    report.row(&what("failures"), failures, "", Goal::AtMost(0.0));
    let p99 = percentile(&mut took, 99);
    report.row(&what("p99"), p99, "ms", Goal::AtMost(3.0 * latency));
    report.row("  p50", percentile(&mut took, 50), "ms", Goal::None);
    let writes = statistics.in_flight_max as f64;
    report.row("  writes in flight at most", writes, "", Goal::AtMost(1.0));
    rig.close().await;
}

/// The time to the next of independent arrivals.
fn exponential(random: &mut Random, rate: u64) -> Duration {
    let unit = ((random.bits() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
    Duration::from_secs_f64(-unit.ln() / rate as f64)
}

/// A store that takes its time for every request.
#[derive(Debug)]
struct Slow {
    store: Memory,
    latency: Duration,
}

impl Slow {
    async fn wait(&self) {
        let started = Instant::now();
        tokio::time::sleep(self.latency).await;
        debug_assert!(started.elapsed() >= self.latency);
    }
}

#[async_trait]
impl Store for Slow {
    fn describe(&self) -> Description {
        self.store.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.wait().await;
        self.store.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.wait().await;
        self.store.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.wait().await;
        self.store.put(key, value, expect).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.wait().await;
        self.store.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.wait().await;
        self.store.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.store.watch(prefix)
    }
}
