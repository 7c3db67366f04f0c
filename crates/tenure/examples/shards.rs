//! Ten shards on as many nodes as there are: watch them move.
//!
//! ```text
//! cargo run --example shards                               a demonstration of three nodes, which ends
//! cargo run --example shards -- file:./data web-1          in as many terminals as you like
//! ```
//!
//! The arguments are store, node, file to append to, ttl in milliseconds, namespace and number of shards. With
//! `reckless` after them a node works on threads that never ask whether it is trusted, and never stop.
//! Each node prints what it runs whenever that changes. Stop one with Ctrl-C and its shards are drained and
//! go to the others at once; kill it with -9 and they go when its ttl is over; stop it with Ctrl-Z past its
//! ttl, and see what it says when it goes on.
//!
//! Lines that are appended are `SHARD GENERATION EVENT NANOSECONDS NODE`: at that time, on the clock that all
//! processes of the host share, the node was trusted with the shard in that generation.

#![allow(clippy::print_stdout, reason = "this is what the example does")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tenure::cluster::{Cluster, Config, Definition, Event, Events, Options};
use tenure::core::{NodeId, session};
use tenure::daemon::{Context, Daemon, DaemonError, daemon};
use tenure::{Node, NodeOptions};
use tokio::signal::unix::{SignalKind, signal};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(store) = arguments.next() else {
        return demonstrate().await;
    };
    let mut options = NodeOptions::new(store, "example");
    options.node = arguments.next();
    let path = arguments.next().unwrap_or("/dev/null".to_owned());
    if let Some(ttl) = arguments.next() {
        options.session = session::Config::for_ttl(Duration::from_millis(ttl.parse()?));
    }
    if let Some(namespace) = arguments.next() {
        options.namespace = namespace;
    }
    let shards = arguments.next().map_or(Ok(10), |number| number.parse())?;
    let is_reckless = arguments.next().is_some_and(|word| word == "reckless");
    let file = Arc::new(File::options().append(true).create(true).open(path)?);

    let node = Node::start(options).await?;
    let cluster = node.cluster(quick()).await?;
    let definition = Definition::shards(shards);
    if is_reckless {
        cluster.register(reckless(file), definition)?;
    } else {
        cluster.register(worker(file), definition)?;
    }
    tokio::spawn(tell(node.id().to_string(), cluster.subscribe()));
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    node.shutdown().await;
    Ok(())
}

/// Decides sooner than it would have to, for people who watch.
fn quick() -> Options {
    Options {
        config: Config {
            cycle: Duration::from_millis(100),
            settle: Duration::from_millis(500),
            ..Config::default()
        },
        ..Options::default()
    }
}

/// What each shard does, until it is told to stop: appends lines to a file.
fn worker(file: Arc<File>) -> impl Daemon {
    daemon("worker", move |context| work(context, file.clone()))
}

async fn work(context: Context, file: Arc<File>) -> std::result::Result<(), DaemonError> {
    // Asked right before the act: the process may have been paused. The time is taken before that, so that
    // what the line says is true however late it is written.
    let note = |event: &str| -> std::result::Result<(), DaemonError> {
        let at = now();
        context.check()?;
        let (shard, generation) = (context.shard(), context.generation());
        let line = format!("{shard} {generation} {event} {at} {}\n", context.node());
        Ok((&*file).write_all(line.as_bytes())?)
    };
    note("started")?;
    while !context.stopping().is_cancelled() {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
            () = context.stopping().cancelled_owned() => {}
        }
        note("works")?;
    }
    note("drained")
}

/// How not to do it: the work does not ask before it acts, so it goes on when the shard is another's.
fn reckless(file: Arc<File>) -> impl Daemon {
    daemon("worker", move |context: Context| {
        let file = file.clone();
        async move {
            let (shard, generation) = (context.shard().clone(), context.generation());
            let node = context.node().clone();
            let note = move |event: &str| {
                let line = format!("{shard} {generation} {event} {} {node}\n", now());
                (&*file).write_all(line.as_bytes())
            };
            note("started")?;
            std::thread::spawn(move || {
                while note("works").is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            context.stopping().cancelled().await;
            Ok(())
        }
    })
}

/// Nanoseconds since the start of the host, which is the same clock for all its processes.
fn now() -> u128 {
    let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u128::try_from(uptime.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u128::try_from(uptime.tv_nsec).unwrap_or_default()
}

/// Prints what runs here whenever that changes, and who comes and goes.
async fn tell(node: String, mut events: Events) {
    let mut shards = BTreeSet::new();
    let is_here = |other: &NodeId| other.as_str() == node;
    while let Some(event) = events.next().await {
        match event {
            Event::Started { shard, node, .. } if is_here(&node) => {
                shards.insert(shard.index);
            }
            Event::Stopped { shard, node, .. } if is_here(&node) => {
                shards.remove(&shard.index);
            }
            Event::Failed {
                shard,
                node: on,
                error,
                ..
            } => {
                println!("{node}: {shard} failed on {on}: {error}");
                if !is_here(&on) {
                    continue;
                }
                shards.remove(&shard.index);
            }
            Event::LeaderElected { node: leader, term } => {
                println!("{node}: {leader} leads in term {term}");
                continue;
            }
            Event::NodeJoined(member) => {
                println!("{node}: {} has joined", member.node);
                continue;
            }
            Event::NodeLeft(member) => {
                println!("{node}: {} has left", member.node);
                continue;
            }
            Event::NodeEvicted(member) => {
                println!("{node}: {} was evicted", member.node);
                continue;
            }
            _ => continue,
        }
        println!("{node}: runs {shards:?}");
    }
}

/// Three nodes in one process; one leaves, and another one comes.
async fn demonstrate() -> Result<()> {
    let store = Arc::new(tenure::store::engine::memory::Memory::new());
    let start = async |name: &str| -> Result<(Node, Cluster)> {
        let mut options = NodeOptions::new("memory:", "example");
        options.node = Some(name.to_owned());
        options.session = session::Config::for_ttl(Duration::from_secs(5));
        let node = Node::start_with(store.clone(), options).await?;
        let cluster = node.cluster(quick()).await?;
        let file = Arc::new(File::options().write(true).open("/dev/null")?);
        cluster.register(worker(file), Definition::shards(10))?;
        tokio::spawn(tell(name.to_owned(), cluster.subscribe()));
        Ok((node, cluster))
    };
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(start(name).await?);
    }
    balanced(&nodes).await?;
    println!("a leaves");
    nodes.remove(0).0.shutdown().await;
    balanced(&nodes).await?;
    println!("d comes");
    nodes.push(start("d").await?);
    balanced(&nodes).await?;
    for (node, _) in nodes {
        node.shutdown().await;
    }
    Ok(())
}

/// Waits until every shard runs, and no node has more than one shard more than another.
async fn balanced(nodes: &[(Node, Cluster)]) -> Result<()> {
    for _ in 0..3000 {
        let loads = nodes.iter().map(|(node, _)| node.metrics().cluster.shards);
        let loads: Vec<u64> = loads.collect();
        let (most, least) = (loads.iter().max(), loads.iter().min());
        let is_even = most
            .zip(least)
            .is_some_and(|(most, least)| most - least <= 1);
        if is_even && loads.iter().sum::<u64>() == 10 {
            println!("balanced: {loads:?}");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("the shards are not balanced".into())
}
