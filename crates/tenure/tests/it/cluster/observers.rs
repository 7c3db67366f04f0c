//! Who is told what.

use std::sync::mpsc;
use std::time::Duration;

use tenure::cluster::{Definition, Event, Events};
use tokio::time::timeout;

use super::{Board, Peer, counts_are, memory};
use crate::support::PATIENCE;

async fn next(events: &mut Events) -> String {
    let event = timeout(PATIENCE, events.next())
        .await
        .expect("nothing comes");
    words(&event.expect("the node runs"))
}

fn words(event: &Event) -> String {
    match event {
        Event::LeaderElected { node, term } => format!("{node} leads in term {term}"),
        Event::LeaderLost { node, term } => format!("{node} no longer leads in term {term}"),
        Event::NodeJoined(member) => format!("{} joined", member.node),
        Event::NodeLeft(member) => format!("{} left", member.node),
        Event::NodeEvicted(member) => format!("{} evicted", member.node),
        Event::Assigned { shard, .. } => format!("{shard} assigned"),
        Event::Started { shard, .. } => format!("{shard} started"),
        Event::Revoked { shard, .. } => format!("{shard} revoked"),
        Event::Stopped { shard, .. } => format!("{shard} stopped"),
        Event::Failed { shard, error, .. } => format!("{shard} failed: {error}"),
        other => format!("{other:?}"),
    }
}

/// The events up to this one, of those that fit.
async fn up_to(events: &mut Events, last: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        let words = next(events).await;
        let is_last = words == last;
        if fits(&words) {
            told.push(words);
        }
        if is_last {
            return told;
        }
    }
}

#[tokio::test]
async fn every_node_hears_of_every_node_and_of_the_leader() {
    let store = memory();
    let a = Peer::start(&store, "a").await;
    let mut on_a = a.cluster.subscribe();
    up_to(&mut on_a, "a leads in term 1", |_| true).await;
    let b = Peer::start(&store, "b").await;
    let mut on_b = b.cluster.subscribe();
    let told = up_to(&mut on_a, "b joined", |_| true).await;
    assert!(told.len() <= 2, "{told:?}");
    let mut told = [
        next(&mut on_b).await,
        next(&mut on_b).await,
        next(&mut on_b).await,
    ];
    told.sort();
    assert_eq!(told, ["a joined", "a leads in term 1", "b joined"]);
    // A third one, on a clock that nobody winds: it is killed, so to say.
    let members = b.cluster.members();
    let names: Vec<_> = members.iter().map(|it| it.node.as_str()).collect();
    assert_eq!(names.len(), 2);

    a.node.shutdown().await;
    let leaving = |words: &str| words.starts_with('a');
    let told = up_to(&mut on_b, "a left", leaving).await;
    assert_eq!(told, ["a no longer leads in term 1", "a left"]);
    assert_eq!(b.node.metrics().cluster.nodes, 1);
    let late = b.cluster.subscribe();
    drop(late);
    while on_a.next().await.is_some() {}
}

#[tokio::test]
async fn the_life_of_a_shard_is_told_in_order() {
    let (store, board) = (memory(), Board::new());
    let a = Peer::start(&store, "a").await;
    let mut events = a.cluster.subscribe();
    let (sender, seen) = mpsc::channel();
    a.cluster.observe(move |event| {
        // Slow, and in the end it panics: nobody minds.
        std::thread::sleep(Duration::from_millis(20));
        sender.send(words(&event)).unwrap();
        panic!("on purpose");
    });
    a.cluster
        .register(board.daemon("d"), Definition::shards(1))
        .unwrap();
    counts_are(&board, &[1]).await;
    a.node.shutdown().await;
    let of_shard = |words: &String| words.starts_with("d/0");
    let wanted = ["d/0 assigned", "d/0 started", "d/0 revoked", "d/0 stopped"];
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(words(&event));
    }
    told.retain(of_shard);
    assert_eq!(told, wanted);
    let observed: Vec<_> = seen.iter().filter(of_shard).collect();
    assert_eq!(observed, wanted);
    let metrics = a.node.metrics().cluster;
    let counted = [
        metrics.shards,
        metrics.shards_assigned,
        metrics.shards_started,
        metrics.shards_revoked,
        metrics.shards_stopped,
        metrics.shards_failed,
    ];
    assert_eq!(counted, [0, 1, 1, 1, 1, 0]);
}
