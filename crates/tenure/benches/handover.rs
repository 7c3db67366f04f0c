//! How long nobody leads when a leader resigns: from the call to the next elected, with three candidates.
//!
//! `make bench-election` runs it on every engine at hand. Set `HANDOVERS` for more or fewer than 50. Also
//! counts what a hand-over asks of the store, all candidates together, since on a slow store every request
//! is time.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark talks, and may fail"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use tenure::core::session::Config;
use tenure::store::wrap::metered::{Meter, Metered, Operation, Snapshot};
use tenure::{Election, Leadership, Node, NodeOptions};

/// How long the one who resigned stands back, and a pause that is longer: all three are candidates again.
const STAND_BACK: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(250);

#[tokio::main]
async fn main() {
    let handovers = std::env::var("HANDOVERS").map_or(50, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let local = |scheme: &str| {
        let path = folder.path().join(scheme);
        Some(format!("{scheme}:{}", path.display()))
    };
    let server = |variable: &str| std::env::var(variable).ok();
    println!("engine      median       p99      best   requests per hand-over");
    for (engine, url) in [
        ("file", local("file")),
        ("sqlite", local("sqlite")),
        ("postgres", server("TENURE_TEST_POSTGRES")),
        ("mariadb", server("TENURE_TEST_MYSQL")),
        ("ceph", server("TENURE_TEST_S3_CEPH")),
        ("azurite", server("TENURE_TEST_AZURE")),
    ] {
        match url {
            Some(url) => measure(engine, &url, handovers).await,
            None => println!("{engine:<9} not run: scripts/with-servers starts the server"),
        }
    }
}

async fn measure(engine: &str, url: &str, handovers: usize) {
    let meter = Arc::new(Meter::default());
    let namespace = format!("bench-{}", uuid::Uuid::new_v4());
    let mut nodes = Vec::new();
    let mut elections = Vec::new();
    for name in ["a", "b", "c"] {
        let node = start(url, &namespace, name, &meter).await;
        elections.push(node.join("e").await.unwrap());
        nodes.push(node);
    }
    let mut leading = next(&elections).await;
    tokio::time::sleep(PAUSE).await;

    let before = meter.snapshot();
    let mut times = Vec::new();
    for _ in 0..handovers {
        let old = leading.term();
        let started = Instant::now();
        leading.resign();
        leading = loop {
            let next = next(&elections).await;
            if next.term() > old {
                break next;
            }
            // The old term has not ended yet.
            tokio::task::yield_now().await;
        };
        times.push(started.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    let after = meter.snapshot();
    for node in nodes {
        node.shutdown().await;
    }
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    let requests: Vec<String> = [
        Operation::Put,
        Operation::Get,
        Operation::GetIfChanged,
        Operation::List,
    ]
    .into_iter()
    .map(|operation| {
        let count = total(&after, operation) - total(&before, operation);
        format!("{operation:?} {:.1}", count as f64 / handovers as f64)
    })
    .collect();
    println!(
        "{engine:<9} {:>8.1?} {:>9.1?} {:>9.1?}   {}",
        at(50),
        at(99),
        at(0),
        requests.join(", ")
    );
}

async fn start(url: &str, namespace: &str, name: &str, meter: &Arc<Meter>) -> Node {
    let mut options = NodeOptions::new(url, namespace);
    options.node = Some(name.to_owned());
    options.session = Config {
        stand_back: STAND_BACK,
        ..Config::default()
    };
    let store = tenure::store::open(url).await.unwrap();
    let metered = Metered::with_meter(store, meter.clone());
    Node::start_with(Arc::new(metered), options).await.unwrap()
}

/// Whoever leads now or next.
async fn next(elections: &[Election]) -> Leadership {
    let elected = elections
        .iter()
        .map(|election| Box::pin(election.elected()));
    select_all(elected).await.0.unwrap()
}

fn total(snapshot: &Snapshot, operation: Operation) -> u64 {
    let ended = snapshot.ended.iter();
    ended
        .filter(|ended| ended.operation == operation)
        .map(|ended| ended.count)
        .sum()
}
