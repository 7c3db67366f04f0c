//! What the tests of several processes run: shards that append lines to a file.
//!
//! The arguments are store, node, file to append to, ttl in milliseconds, namespace and number of shards. With
//! `reckless` after them a node works on threads that never ask whether it is trusted, and never stop.
//!
//! Lines that are appended are `SHARD GENERATION EVENT NANOSECONDS NODE`: at that time, on the clock that all
//! processes of the host share, the node was trusted with the shard in that generation.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tenure::cluster::{Config, Definition, Options};
use tenure::core::session;
use tenure::daemon::{Context, Daemon, DaemonError, daemon};
use tenure::{Node, NodeOptions};
use tokio::signal::unix::{SignalKind, signal};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let store = arguments.next().ok_or("which store?")?;
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
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    node.shutdown().await;
    Ok(())
}

/// Decides sooner than it would have to: the tests wait for it.
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
