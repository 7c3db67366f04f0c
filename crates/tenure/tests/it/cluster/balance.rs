//! Nodes come and go.

use tenure::cluster::Going;

use super::{Board, Peer, counts_are, memory};

#[tokio::test]
async fn three_nodes_share_twelve_shards_and_a_fourth_gets_three_of_them() {
    let (store, board) = (memory(), Board::new());
    let mut peers = Vec::new();
    for name in ["a", "b", "c"] {
        peers.push(Peer::with(&store, name, &board, 12).await);
    }
    counts_are(&board, &[4, 4, 4]).await;
    let before = board.starts();
    peers.push(Peer::with(&store, "e", &board, 12).await);
    counts_are(&board, &[3, 3, 3, 3]).await;
    let moved = board.starts_since(before);
    assert_eq!(moved.len(), 3, "{moved:?}");
    assert!(moved.iter().all(|(_, node)| node == "e"), "{moved:?}");
    for peer in peers {
        peer.node.shutdown().await;
    }
    assert_eq!(board.counts(), [0; 0]);
}

#[tokio::test]
async fn whoever_leaves_is_drained_first_and_only_its_shards_move() {
    let (store, board) = (memory(), Board::new());
    let mut peers = Vec::new();
    for name in ["a", "b", "c"] {
        peers.push(Peer::with(&store, name, &board, 12).await);
    }
    counts_are(&board, &[4, 4, 4]).await;
    // The leader too.
    for (left, wanted) in [(2, vec![6, 6]), (1, vec![12])] {
        let before = board.starts();
        let leaver = peers.remove(0);
        let held = board.loads()[leaver.node.id().as_str()].clone();
        leaver.cluster.leave(Going::Leaving).await;
        assert!(!board.loads().contains_key(leaver.node.id().as_str()));
        leaver.node.shutdown().await;
        counts_are(&board, &wanted).await;
        let moved = board.starts_since(before);
        assert_eq!(moved.len(), held.len(), "{left}: {moved:?}");
        assert!(moved.iter().all(|(shard, _)| held.contains(shard)));
    }
}

#[tokio::test]
async fn a_node_that_an_operator_drains_stays_free_until_it_is_undrained() {
    let (store, board) = (memory(), Board::new());
    let a = Peer::with(&store, "a", &board, 4).await;
    let b = Peer::with(&store, "b", &board, 4).await;
    counts_are(&board, &[2, 2]).await;
    b.cluster.drain().await.unwrap();
    counts_are(&board, &[4]).await;
    assert!(board.loads().contains_key("a"));
    let nodes = a.cluster.nodes().await.unwrap();
    let drained = |name: &str| {
        let node = nodes.iter().find(|it| it.member.node.as_str() == name);
        node.unwrap().drained.as_ref().map(|it| it.by.clone())
    };
    assert_eq!(drained("a"), None);
    assert_eq!(drained("b"), Some("b".to_owned()));
    a.cluster.undrain().await.unwrap();
    b.cluster.undrain().await.unwrap();
    counts_are(&board, &[2, 2]).await;
}

#[tokio::test]
async fn what_is_withdrawn_goes_elsewhere() {
    let (store, board) = (memory(), Board::new());
    let a = Peer::with(&store, "a", &board, 4).await;
    let b = Peer::with(&store, "b", &board, 4).await;
    counts_are(&board, &[2, 2]).await;
    a.cluster.withdraw("d").unwrap();
    counts_are(&board, &[4]).await;
    assert!(board.loads().contains_key("b"));
    b.cluster.withdraw("d").unwrap();
    counts_are(&board, &[]).await;
}
