//! A store that does not answer for a while, and a leader that goes in the middle of something.

use std::sync::Arc;
use std::time::Duration;

use tenure::cluster::{Config, Definition, Event};
use tenure::daemon::{Context, daemon};
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::faulty::{Faults, Faulty, Outage};
use tenure::testing::ManualClock;
use tokio::sync::Semaphore;

use super::{
    Board, Peer, counts_are, memory, pass, pass_down_to, pass_in_outage, pass_until, peer_at,
};
use crate::support::until;

async fn outage_of(time: Duration, outage: Outage) -> (usize, Arc<Board>) {
    let faulty = Faulty::new(Arc::new(Memory::new()), Faults::default(), 1).unwrap();
    let (store, board, clock) = (Arc::new(faulty), Board::new(), ManualClock::new());
    let mut peers = Vec::new();
    for name in ["a", "b", "c"] {
        let peer = peer_at(clock.runtime(), &store, name, Config::default()).await;
        let daemon = board.daemon("d");
        peer.cluster
            .register(daemon, Definition::shards(6))
            .unwrap();
        peers.push(peer);
    }
    let peers: Vec<&Peer> = peers.iter().collect();
    let shared = async || board.counts() == [2, 2, 2];
    pass_until(&clock, &peers, "all is shared", shared).await;
    pass(&clock, &peers, Duration::from_secs(10)).await;
    // Everybody has just been heard of.
    let fresh = async || {
        let mut trusts = peers.iter().map(|it| it.node.metrics().trust_remaining_ms);
        trusts.all(|trust| trust >= 7000)
    };
    pass_until(&clock, &peers, "fresh heartbeats", fresh).await;
    let before = board.starts();
    store.set_outage(outage);
    pass_in_outage(&clock, time).await;
    store.set_outage(Outage::Over);
    // Room for two attempts of a heartbeat.
    let trust_min = Duration::from_millis(700);
    pass_down_to(trust_min, &clock, &peers, Duration::from_secs(15)).await;
    let shared = async || board.counts() == [2, 2, 2];
    pass_until(&clock, &peers, "all is shared again", shared).await;
    (board.starts() - before, board)
}

#[tokio::test]
async fn an_outage_of_half_a_ttl_moves_nothing() {
    let (starts, _) = outage_of(Duration::from_secs(5), Outage::Refusing).await;
    assert_eq!(starts, 0);
}

#[tokio::test]
async fn a_store_that_hangs_for_half_a_ttl_moves_nothing() {
    let (starts, _) = outage_of(Duration::from_secs(5), Outage::Hanging).await;
    assert_eq!(starts, 0);
}

#[tokio::test]
async fn an_outage_beyond_trust_stops_everything_and_everything_starts_again() {
    // The board would have noticed two of one shard.
    let (starts, _) = outage_of(Duration::from_secs(20), Outage::Refusing).await;
    assert_eq!(starts, 6);
}

/// The daemon ends when it is told to and is let go.
fn reluctant(board: &Arc<Board>, gate: &Arc<Semaphore>) -> impl tenure::daemon::Daemon + use<> {
    let (board, gate) = (board.clone(), gate.clone());
    daemon("d", move |context: Context| {
        let (board, gate) = (board.clone(), gate.clone());
        async move {
            let _entered = board.enter(&context);
            context.stopping().cancelled().await;
            let _let_go = gate.acquire().await?;
            Ok(())
        }
    })
}

#[tokio::test]
async fn a_leader_that_goes_in_the_middle_of_a_revoke_loses_no_shard_and_doubles_none() {
    let (store, board) = (memory(), Board::new());
    let gate = Arc::new(Semaphore::new(0));
    let leader = Peer::start(&store, "leader").await;
    let mut events = leader.cluster.subscribe();
    while !matches!(events.next().await, Some(Event::LeaderElected { .. })) {}
    let mut peers = Vec::new();
    for name in ["a", "b"] {
        let peer = Peer::start(&store, name).await;
        let daemon = reluctant(&board, &gate);
        peer.cluster
            .register(daemon, Definition::shards(4))
            .unwrap();
        peers.push(peer);
    }
    counts_are(&board, &[2, 2]).await;
    peers[0].cluster.drain().await.unwrap();
    let mut events = peers[0].cluster.subscribe();
    let mut revoked = 0;
    while revoked < 2 {
        revoked += usize::from(matches!(events.next().await, Some(Event::Revoked { .. })));
    }
    // Both are told to end and do not yet.
    leader.node.shutdown().await;
    until("somebody else leads", async || {
        let leads = |peer: &Peer| peer.cluster.election().is_leader();
        peers.iter().any(leads)
    })
    .await;
    assert_eq!(board.counts(), [2, 2]);
    gate.add_permits(100);
    counts_are(&board, &[4]).await;
    assert!(board.loads().contains_key("b"));
    assert_eq!(board.starts(), 6, "two of four have moved, once");
}

#[tokio::test]
async fn assignments_outlive_leaders_one_after_the_other() {
    let (store, board) = (memory(), Board::new());
    let mut peers = Vec::new();
    for name in ["a", "b", "c"] {
        peers.push(Peer::with(&store, name, &board, 9).await);
    }
    counts_are(&board, &[3, 3, 3]).await;
    let before = board.starts();
    for _ in 0..4 {
        let leads = |peer: &&Peer| peer.cluster.election().is_leader();
        let leader = peers.iter().find(leads).map(|peer| peer.node.id().clone());
        if let Some(peer) = peers.iter().find(leads) {
            peer.cluster.election().resign();
        }
        until("another one leads", async || {
            let now = peers.iter().find(leads).map(|peer| peer.node.id().clone());
            now.is_some() && now != leader
        })
        .await;
    }
    // A new leader takes over what is there, and changes nothing about it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(board.counts(), [3, 3, 3]);
    assert_eq!(board.starts(), before);
}
