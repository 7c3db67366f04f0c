//! Who is told what.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tenure::cluster::{Definition, Event, Events, Generation, Going, Shard};
use tenure::daemon::{Context, DaemonError, daemon};
use tokio::sync::Semaphore;
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
        Event::Assigned { shard, node, .. } => format!("{shard} assigned to {node}"),
        Event::Started { shard, node, .. } => format!("{shard} started on {node}"),
        Event::Revoked { shard, node, .. } => format!("{shard} revoked from {node}"),
        Event::Stopped { shard, node, .. } => format!("{shard} stopped on {node}"),
        Event::Failed {
            shard, node, error, ..
        } => format!("{shard} failed on {node}: {error}"),
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
    let wanted = [
        "d/0 assigned to a",
        "d/0 started on a",
        "d/0 revoked from a",
        "d/0 stopped on a",
    ];
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

/// Waits for each of these on each node, in this order; others may come in between.
async fn all_hear(listeners: &mut [Events], wanted: &[&str]) {
    for events in listeners {
        for words in wanted {
            up_to(events, words, |_| false).await;
        }
    }
}

#[tokio::test]
async fn every_node_hears_what_becomes_of_every_shard() {
    let (store, gate) = (memory(), Arc::new(Semaphore::new(0)));
    // The first one leads, the second one works, and the third one does neither.
    let leader = Peer::start(&store, "leader").await;
    let mut events = leader.cluster.subscribe();
    up_to(&mut events, "leader leads in term 1", |_| true).await;
    let worker = Peer::start(&store, "worker").await;
    let other = Peer::start(&store, "other").await;
    let mut listeners = [&leader, &worker, &other].map(|peer| peer.cluster.subscribe());

    let let_go = gate.clone();
    let reluctant = daemon("d", move |context: Context| {
        let gate = let_go.clone();
        async move {
            context.stopping().cancelled().await;
            let _permit = gate.acquire().await?;
            Ok::<(), DaemonError>(())
        }
    });
    let definition = Definition::shards(1);
    worker.cluster.register(reluctant, definition).unwrap();
    let wanted = ["d/0 assigned to worker", "d/0 started on worker"];
    all_hear(&mut listeners, &wanted).await;
    worker.cluster.drain().await.unwrap();
    all_hear(&mut listeners, &["d/0 revoked from worker"]).await;
    gate.add_permits(1);
    all_hear(&mut listeners, &["d/0 stopped on worker"]).await;

    let failing = daemon("e", |_| async {
        Err::<(), DaemonError>("no such table".into())
    });
    let definition = Definition::shards(1);
    other.cluster.register(failing, definition).unwrap();
    let wanted = [
        "e/0 assigned to other",
        "e/0 failed on other: no such table",
    ];
    all_hear(&mut listeners, &wanted).await;
    // Whoever comes late hears how things stand, and nothing that is over.
    other.cluster.withdraw("e").unwrap();
    worker.cluster.undrain().await.unwrap();
    all_hear(&mut listeners, &["d/0 started on worker"]).await;
    let mut late = [&leader, &worker, &other].map(|peer| peer.cluster.subscribe());
    all_hear(
        &mut late,
        &["d/0 assigned to worker", "d/0 started on worker"],
    )
    .await;
}

/// What was told of shards last: the generation, and how far it is.
#[derive(Default)]
struct LastStates(BTreeMap<Shard, (Generation, u8, String)>);

impl LastStates {
    /// Takes an event, which must not contradict what was told before.
    fn take(&mut self, event: &Event) {
        let (shard, generation, node, stage) = match event {
            Event::Assigned {
                shard,
                generation,
                node,
            } => (shard, generation, node, 0),
            Event::Started {
                shard,
                generation,
                node,
            } => (shard, generation, node, 1),
            Event::Revoked {
                shard,
                generation,
                node,
            } => (shard, generation, node, 2),
            Event::Stopped {
                shard,
                generation,
                node,
            }
            | Event::Failed {
                shard,
                generation,
                node,
                ..
            } => (shard, generation, node, 3),
            Event::Missed(number) => panic!("{number} were missed"),
            _ => return,
        };
        let now = (*generation, stage, node.to_string());
        let before = self.0.insert(shard.clone(), now);
        let fits = match &before {
            None => stage == 0,
            Some((before, 3, _)) => stage == 0 && generation > before,
            Some((before, earlier, on)) => {
                generation == before && stage > *earlier && *on == node.as_str()
            }
        };
        assert!(fits, "{event:?} after {before:?}");
    }

    /// Where everything runs, if nothing is on its way.
    fn running(&self) -> Option<BTreeMap<String, usize>> {
        let mut loads = BTreeMap::new();
        for (_, stage, node) in self.0.values() {
            match stage {
                1 => *loads.entry(node.clone()).or_default() += 1,
                3 => {}
                _ => return None,
            }
        }
        Some(loads)
    }
}

#[tokio::test]
async fn nothing_that_any_node_is_told_is_contradicted_and_all_agree_in_the_end() {
    let (store, board) = (memory(), Board::new());
    let mut peers = Vec::new();
    let mut listening = Vec::new();
    for name in ["a", "b", "c"] {
        let peer = Peer::with(&store, name, &board, 6).await;
        let mut events = peer.cluster.subscribe();
        listening.push(tokio::spawn(async move {
            let mut told = LastStates::default();
            let wanted = BTreeMap::from([("a".to_owned(), 3), ("b".to_owned(), 3)]);
            while told.running().as_ref() != Some(&wanted) {
                told.take(&events.next().await.expect("the node runs"));
            }
        }));
        peers.push(peer);
    }
    counts_are(&board, &[2, 2, 2]).await;
    for round in 0..6 {
        let peer = &peers[round % 2];
        peer.cluster.drain().await.unwrap();
        counts_are(&board, &[3, 3]).await;
        peer.cluster.undrain().await.unwrap();
        counts_are(&board, &[2, 2, 2]).await;
    }
    // Not before this do a and b have three each.
    let last = peers.pop().unwrap();
    last.cluster.leave(Going::Leaving).await;
    counts_are(&board, &[3, 3]).await;
    for told in listening {
        timeout(PATIENCE, told).await.expect("all agree").unwrap();
    }
}
