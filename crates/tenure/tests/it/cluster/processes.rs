//! Real processes on every engine: nodes join, leave, die and pause, and the shards go where they should.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::troupe::{TTL, Troupe, moved};
use crate::support::{until, url};

/// A fourth node takes no more than its share.
async fn one_joins(troupe: &mut Troupe, node: &str) {
    let (before, nodes) = (troupe.last(), troupe.nodes.len() + 1);
    troupe.add(node);
    troupe.settles(nodes).await;
    let joined = moved(&before, &troupe.last());
    let share = before.len() / nodes;
    assert!(joined.len() <= share, "a new node moved {joined:?}");
}

/// A node leaves in good order: its shards are drained first, and no others move.
#[allow(
    clippy::print_stderr,
    reason = "how long it took is for people to read"
)]
async fn one_leaves(engine: &str, troupe: &mut Troupe, leaver: &str, who: &str) {
    let before = troupe.last();
    let asked = Instant::now();
    troupe.signal(leaver, Signal::TERM);
    troupe.wait(leaver);
    let left = asked.elapsed();
    troupe.settles(troupe.nodes.len()).await;
    let after = troupe.last();
    let of_leaver = |shard: &&String| before[*shard].1.node == leaver;
    let shards = troupe.shards();
    let mut longest = Duration::ZERO;
    for shard in before.keys().filter(of_leaver) {
        let (generation, _) = before[shard];
        let held = &shards[shard][&generation];
        assert!(held.drained, "{shard} was not drained first");
        let next = shards[shard].range(generation + 1..).next().unwrap().1;
        let nanoseconds = u64::try_from(next.first - held.last).unwrap();
        longest = longest.max(Duration::from_nanos(nanoseconds));
    }
    eprintln!("{engine}: {who} left after {left:?}, no shard was idle for more than {longest:?}");
    let moved = moved(&before, &after);
    assert!(moved.iter().all(|shard| of_leaver(&shard)), "{moved:?}");
}

/// A node is killed: its shards move when its ttl is over, and no others.
#[allow(
    clippy::print_stderr,
    reason = "how long it took is for people to read"
)]
async fn one_dies(engine: &str, troupe: &mut Troupe, victim: &str) {
    let before = troupe.last();
    let killed = Instant::now();
    troupe.signal(victim, Signal::KILL);
    troupe.wait(victim);
    let of_victim: BTreeSet<String> = before
        .iter()
        .filter(|(_, (_, held))| held.node == victim)
        .map(|(shard, _)| shard.clone())
        .collect();
    until("what the dead node ran runs elsewhere", async || {
        let last = troupe.last();
        of_victim.iter().all(|shard| last[shard].1.node != victim)
    })
    .await;
    eprintln!(
        "{engine}: {:?} after kill -9 with a ttl of {TTL:?}",
        killed.elapsed()
    );
    troupe.settles(troupe.nodes.len()).await;
    let moved = moved(&before, &troupe.last());
    assert_eq!(moved, of_victim, "only those of the dead node move");
}

/// The leader is stopped past its ttl, and goes on.
async fn the_leader_pauses(troupe: &mut Troupe) {
    let leader = troupe.leader().await;
    troupe.signal(&leader, Signal::STOP);
    until("somebody else runs everything", async || {
        troupe.last().values().all(|(_, held)| held.node != leader)
    })
    .await;
    troupe.signal(&leader, Signal::CONT);
    troupe.settles(troupe.nodes.len()).await;
    troupe.shards();
}

/// Somebody who does not lead.
async fn follower(troupe: &Troupe) -> String {
    let leader = troupe.leader().await;
    let mut nodes = troupe.nodes.keys();
    nodes.find(|node| **node != leader).unwrap().clone()
}

async fn nodes_join_leave_die_and_pause(engine: &str, url: impl FnOnce(&Path) -> String) {
    let mut troupe = Troupe::start(url, &["a", "b", "c"]).await;
    one_joins(&mut troupe, "e").await;
    let leaver = follower(&troupe).await;
    one_leaves(engine, &mut troupe, &leaver, "a follower").await;
    let leader = troupe.leader().await;
    one_leaves(engine, &mut troupe, &leader, "the leader").await;
    one_joins(&mut troupe, "f").await;
    let victim = follower(&troupe).await;
    one_dies(engine, &mut troupe, &victim).await;
    the_leader_pauses(&mut troupe).await;
}

/// The shorter form, for engines whose store differs from those above and whose cluster does not.
async fn a_leader_leaves_and_a_node_dies(engine: &str, url: impl FnOnce(&Path) -> String) {
    let mut troupe = Troupe::start(url, &["a", "b", "c"]).await;
    let victim = follower(&troupe).await;
    one_dies(engine, &mut troupe, &victim).await;
    let leader = troupe.leader().await;
    one_leaves(engine, &mut troupe, &leader, "the leader").await;
}

#[tokio::test]
async fn nodes_in_a_folder_join_leave_die_and_pause() {
    let url = |folder: &Path| format!("file:{}", folder.join("store").display());
    nodes_join_leave_die_and_pause("file", url).await;
}

#[tokio::test]
async fn nodes_on_postgres_join_leave_die_and_pause() {
    if let Some(url) = url("TENURE_TEST_POSTGRES") {
        nodes_join_leave_die_and_pause("postgres", |_| url).await;
    }
}

#[tokio::test]
async fn nodes_on_ceph_join_leave_die_and_pause() {
    if let Some(url) = url("TENURE_TEST_S3_CEPH") {
        nodes_join_leave_die_and_pause("ceph", |_| url).await;
    }
}

#[tokio::test]
async fn on_sqlite_a_leader_leaves_and_a_node_dies() {
    let url = |folder: &Path| format!("sqlite:{}", folder.join("store").display());
    a_leader_leaves_and_a_node_dies("sqlite", url).await;
}

#[tokio::test]
async fn on_mariadb_a_leader_leaves_and_a_node_dies() {
    if let Some(url) = url("TENURE_TEST_MYSQL") {
        a_leader_leaves_and_a_node_dies("mariadb", |_| url).await;
    }
}

#[tokio::test]
async fn on_azurite_a_leader_leaves_and_a_node_dies() {
    if let Some(url) = url("TENURE_TEST_AZURE") {
        a_leader_leaves_and_a_node_dies("azurite", |_| url).await;
    }
}
