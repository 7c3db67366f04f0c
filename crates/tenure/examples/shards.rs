//! Ten shards on as many nodes as there are: watch them move.
//!
//! ```text
//! cargo run --example shards                               a demonstration of three nodes, which ends
//! cargo run --example shards -- file:./data web-1          in as many terminals as you like
//! ```
//!
//! Each node prints what it runs whenever that changes. Stop one with Ctrl-C and its shards are drained and
//! go to the others at once; kill it with -9 and they go when its ttl is over; stop it with Ctrl-Z past its
//! ttl, and see what it says when it goes on.

#![allow(clippy::print_stdout, reason = "this is what the example does")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure::cluster::{Cluster, Config, Definition, Event, Events, Options};
use tenure::core::session;
use tenure::daemon::{Context, DaemonError, daemon};
use tenure::{Node, NodeOptions};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SHARDS: u32 = 10;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(store) = arguments.next() else {
        return demonstrate().await;
    };
    let mut options = NodeOptions::new(store, "example");
    options.node = arguments.next();

    let node = Node::start(options).await?;
    let _cluster = take_part(&node).await?;
    tokio::signal::ctrl_c().await?;
    node.shutdown().await;
    Ok(())
}

/// Offers to run shards, and prints which ones it is given.
async fn take_part(node: &Node) -> Result<Cluster> {
    let options = Options {
        // Decides sooner than it would have to, for people who watch.
        config: Config {
            cycle: Duration::from_millis(100),
            settle: Duration::from_millis(500),
            ..Config::default()
        },
        ..Options::default()
    };
    let cluster = node.cluster(options).await?;
    cluster.register(daemon("worker", work), Definition::shards(SHARDS))?;
    tokio::spawn(tell(node.id().to_string(), cluster.subscribe()));
    Ok(cluster)
}

/// What each shard does, until it is told to stop.
async fn work(context: Context) -> std::result::Result<(), DaemonError> {
    while !context.stopping().is_cancelled() {
        // Asked right before the act: the process may have been paused. What you write to outside should also get the
        // generation, and refuse an older one.
        context.check()?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
            () = context.stopping().cancelled_owned() => {}
        }
    }
    Ok(())
}

/// Prints what runs here whenever that changes, and who comes and goes.
async fn tell(name: String, mut events: Events) {
    let mut shards = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Started { shard, node, .. } if node.as_str() == name => {
                shards.insert(shard.index);
                println!("{name}: runs {shards:?}");
            }
            Event::Stopped { shard, node, .. } | Event::Failed { shard, node, .. }
                if node.as_str() == name =>
            {
                shards.remove(&shard.index);
                println!("{name}: runs {shards:?}");
            }
            Event::LeaderElected { node, term } => println!("{name}: {node} leads in term {term}"),
            Event::NodeJoined(member) => println!("{name}: {} has joined", member.node),
            Event::NodeLeft(member) => println!("{name}: {} has left", member.node),
            Event::NodeEvicted(member) => println!("{name}: {} was evicted", member.node),
            _ => {}
        }
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
        let cluster = take_part(&node).await?;
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
        let loads: Vec<u64> = nodes
            .iter()
            .map(|(node, _)| node.metrics().cluster.shards)
            .collect();
        let (most, least) = (loads.iter().max(), loads.iter().min());
        let is_even = most
            .zip(least)
            .is_some_and(|(most, least)| most - least <= 1);
        if is_even && loads.iter().sum::<u64>() == u64::from(SHARDS) {
            println!("balanced: {loads:?}");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("the shards are not balanced".into())
}
