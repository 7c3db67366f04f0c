//! Who is there, what it costs to know, and what is left of those who are not.

use std::sync::Arc;
use std::time::Duration;

use tenure::cluster::{Config, Definition, Event};
use tenure::core::{Namespace, NodeId};
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::metered::{Metered, Operation, Outcome};
use tenure::testing::ManualClock;
use tenure::{NamespaceView, OneShot};

use super::{Board, Peer, memory, pass, peer_at};
use crate::support::until;

#[tokio::test]
async fn what_a_dead_node_leaves_behind_is_removed_much_later() {
    let (store, clock, other) = (memory(), ManualClock::new(), ManualClock::new());
    let a = peer_at(clock.runtime(), &store, "a", Config::default()).await;
    let mut events = a.cluster.subscribe();
    let dead = peer_at(other.runtime(), &store, "dead", Config::default()).await;
    let view = NamespaceView::new(store.clone(), Namespace::new("test").unwrap());
    let sessions = async || view.sessions().await.unwrap().len();
    for peer in [&a, &dead] {
        peer.node.joined().await.unwrap();
    }
    let mut evicted = false;
    let mut passed = Duration::ZERO;
    // Its clock stands still, so it makes no heartbeat.
    until("its session is removed", async || {
        while let Some(Some(event)) = futures_now(events.next()) {
            evicted |= matches!(event, Event::NodeEvicted(it) if it.node.as_str() == "dead");
        }
        if passed < Duration::from_secs(100) {
            assert_eq!(sessions().await, 2, "after {passed:?}");
        }
        if sessions().await == 1 {
            return true;
        }
        pass(&clock, &[&a], Duration::from_secs(1)).await;
        passed += Duration::from_secs(1);
        false
    })
    .await;
    assert!(evicted);
    assert_eq!(a.node.metrics().cluster.sessions_removed, 1);

    // When it wakes up it finds nothing of its session: over, and a new one is begun.
    other.advance(Duration::from_secs(3));
    until("the dead node is back", async || {
        tokio::time::sleep(Duration::from_millis(5)).await;
        other.advance(Duration::from_millis(100));
        dead.node.metrics().sessions == 2
    })
    .await;
    let node = NodeId::new("dead").unwrap();
    let back = view.sessions().await.unwrap();
    assert_eq!(back.iter().filter(|it| it.node == node).count(), 1);
}

/// What is there without waiting.
fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn a_cluster_at_rest_costs_one_write_per_node_and_heartbeat() {
    let store = Arc::new(Metered::new(Arc::new(Memory::new())));
    let (board, clock) = (Board::new(), ManualClock::new());
    let mut peers = Vec::new();
    for name in ["a", "b", "c", "e"] {
        let peer = peer_at(clock.runtime(), &store, name, Config::default()).await;
        let daemon = board.daemon("d");
        peer.cluster
            .register(daemon, Definition::shards(12))
            .unwrap();
        peers.push(peer);
    }
    let count = |operation, outcome| store.meter().snapshot().count(operation, outcome);
    let writes = || count(Operation::Put, Outcome::Done);
    let listings = || count(Operation::List, Outcome::Done);
    let all: Vec<&Peer> = peers.iter().collect();
    let pass = async |seconds| pass(&clock, &all, Duration::from_secs(seconds)).await;
    until("all is at rest", async || {
        pass(10).await;
        let before = peers
            .iter()
            .map(|it| it.node.metrics().cluster.assignment_writes);
        let before: u64 = before.sum();
        pass(10).await;
        let after = peers
            .iter()
            .map(|it| it.node.metrics().cluster.assignment_writes);
        board.counts() == [3; 4] && before == after.sum::<u64>()
    })
    .await;
    let (written, listed) = (writes(), listings());
    pass(60).await;
    // A heartbeat every 2.4 to 3 s from each of four nodes.
    let (written, listed) = (writes() - written, listings() - listed);
    let heartbeats = 4 * 60 * 10 / 24;
    assert!(written <= heartbeats + 4, "{written} writes in a minute");
    // One by each for the nodes, and now and then one for duplicates.
    assert!(listed <= heartbeats * 2, "{listed} listings in a minute");
}

/// They run nothing that could be handed to another, so nobody needs to know at once when they end.
#[tokio::test]
async fn one_shot_candidates_are_not_watched_and_are_removed_when_they_are_dead() {
    let store = Arc::new(Metered::new(Arc::new(Memory::new())));
    let clock = ManualClock::new();
    let a = peer_at(clock.runtime(), &store, "a", Config::default()).await;
    a.node.joined().await.unwrap();
    let reads = || {
        let snapshot = store.meter().snapshot();
        let ended = snapshot.ended.iter();
        let reads = ended
            .filter(|ended| matches!(ended.operation, Operation::Get | Operation::GetIfChanged));
        reads.map(|ended| ended.count).sum::<u64>()
    };
    let passes = async |seconds| pass(&clock, &[&a], Duration::from_secs(seconds)).await;
    let in_a_minute = async || {
        let before = reads();
        passes(60).await;
        reads() - before
    };
    passes(60).await;
    let alone = in_a_minute().await;
    let long = OneShot::new(store.clone(), "test", Duration::from_secs(3600)).unwrap();
    for number in 0..100 {
        let id = format!("c{number}").parse().unwrap();
        long.register_candidate(&id).await.unwrap();
    }
    // Each is read once when it is new, which a busy machine may do late. To watch them would take a read of each per
    // heartbeat: more than a thousand.
    passes(60).await;
    let beside_many = in_a_minute().await;
    assert!(
        beside_many <= alone + 200,
        "{alone} reads in a minute alone, and {beside_many} beside a hundred candidates"
    );

    let short = OneShot::new(store.clone(), "test", Duration::from_secs(10)).unwrap();
    short
        .register_candidate(&"short".parse().unwrap())
        .await
        .unwrap();
    let view = NamespaceView::new(store.clone(), Namespace::new("test").unwrap());
    let is_there = async || {
        let sessions = view.sessions().await.unwrap();
        sessions.iter().any(|it| it.node.as_str() == "short")
    };
    until("the dead one is removed", async || {
        passes(10).await;
        !is_there().await
    })
    .await;
    assert_eq!(view.sessions().await.unwrap().len(), 101);
}
