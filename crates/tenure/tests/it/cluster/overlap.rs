//! Whatever is done to real processes, no two generations of a shard are trusted at one time, and generations
//! only grow; and workers that do not care are found out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_random::Random;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::troupe::{Last, SHARDS, TTL, Troupe};
use crate::support::{until, url};

/// How long everything is disturbed; `make overlap` sets five minutes.
const OVERLAP_VARIABLE: &str = "TENURE_OVERLAP_SECONDS";
const OVERLAP_SECONDS_DEFAULT: u64 = 20;

/// A way to a server that can be closed.
struct Gate {
    address: String,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, mut is_open) = (server.clone(), is_open.clone());
                tokio::spawn(async move {
                    if !*is_open.borrow_and_update() {
                        return;
                    }
                    let Ok(mut upstream) = TcpStream::connect(server).await else {
                        return;
                    };
                    let mut client = client;
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                        _ = is_open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { address, open }
    }
}

#[allow(clippy::print_stderr, reason = "what was done is for people to read")]
async fn no_two_generations_overlap(
    engine: &str,
    url: impl FnOnce(&Path) -> String,
    gate: Option<Gate>,
) {
    let seconds = std::env::var(OVERLAP_VARIABLE).ok();
    let seconds = seconds.map_or(OVERLAP_SECONDS_DEFAULT, |it| it.parse().unwrap());
    let mut troupe = Troupe::start(url, &["a", "b", "c", "e"]).await;
    let mut random = Random::new(std::process::id().into());
    let started = Instant::now();
    let mut done: BTreeMap<&str, u32> = BTreeMap::new();
    while started.elapsed() < Duration::from_secs(seconds) {
        let names = ["a", "b", "c", "e"];
        let node = random.pick(&names);
        let pause = Duration::from_millis(200 + random.below(5000));
        let what = match random.below(4) {
            0 => {
                troupe.signal(node, Signal::KILL);
                troupe.wait(node);
                tokio::time::sleep(pause / 4).await;
                troupe.add(node);
                "kill -9"
            }
            1 => {
                troupe.signal(node, Signal::STOP);
                tokio::time::sleep(pause).await;
                troupe.signal(node, Signal::CONT);
                "stop and continue"
            }
            2 => {
                troupe.signal(node, Signal::TERM);
                tokio::time::sleep(pause / 8).await;
                // One that could not drain in time is killed: it has had its time.
                troupe.signal(node, Signal::KILL);
                troupe.wait(node);
                troupe.add(node);
                "leave"
            }
            _ => match &gate {
                Some(gate) => {
                    gate.open.send_replace(false);
                    tokio::time::sleep(pause).await;
                    gate.open.send_replace(true);
                    "outage"
                }
                None => continue,
            },
        };
        *done.entry(what).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(random.below(800))).await;
        troupe.revive();
        troupe.shards();
    }
    // Long enough for a program that cannot be started to say so.
    tokio::time::sleep(TTL).await;
    troupe.revive();
    troupe.settles(4).await;
    let generations: usize = troupe.shards().values().map(BTreeMap::len).sum();
    eprintln!("{engine}: {generations} generations of {SHARDS} shards without overlap; {done:?}");
}

#[tokio::test]
async fn no_two_generations_overlap_in_a_folder() {
    let url = |folder: &Path| format!("file:{}", folder.join("store").display());
    no_two_generations_overlap("file", url, None).await;
}

#[tokio::test]
async fn no_two_generations_overlap_on_postgres_with_outages() {
    let Some(url) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    // postgres://user:password@host:port/database
    let (head, rest) = url.split_once('@').unwrap_or(("postgres://", &url[11..]));
    let (server, database) = rest.split_once('/').unwrap();
    let head = head.trim_end_matches('@');
    let gate = Gate::before(server.to_owned()).await;
    let at = if head.ends_with('/') { "" } else { "@" };
    let through = format!("{head}{at}{}/{database}", gate.address);
    no_two_generations_overlap("postgres", |_| through, Some(gate)).await;
}

/// The same disturbance as above, with workers that go on after their trust has ended: the check notices.
#[tokio::test]
async fn workers_that_never_ask_whether_they_are_trusted_overlap() {
    let url = |folder: &Path| format!("file:{}", folder.join("store").display());
    let troupe = Troupe::start_reckless(url, &["a", "b"]).await;
    // On a machine that is slow enough they overlap before they are made to.
    let works = |last: Result<Last, String>, is_right: fn(&[&str]) -> bool| match last {
        Ok(last) => {
            let nodes: Vec<&str> = last.values().map(|(_, held)| held.node.as_str()).collect();
            nodes.len() == SHARDS as usize && is_right(&nodes)
        }
        Err(problem) => problem.contains("two generations overlap"),
    };
    until("a runs something", async || {
        works(troupe.try_last(), |nodes| nodes.contains(&"a"))
    })
    .await;
    troupe.stop_between_writes("a").await;
    until("b runs everything", async || {
        works(troupe.try_last(), |nodes| {
            nodes.iter().all(|node| *node == "b")
        })
    })
    .await;
    troupe.signal("a", Signal::CONT);
    until("the overlap is found", async || {
        let found = troupe.try_shards();
        found.is_err_and(|problem| problem.contains("two generations overlap"))
    })
    .await;
}
