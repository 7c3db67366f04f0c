//! `tenure::testing`: what it promises to those who test with it.

use std::time::Duration;

use tenure::Election;
use tenure::testing::{Faults, Host, Scene};

const TTL: Duration = Duration::from_secs(10);

async fn candidates(scene: &Scene) -> ((Host, Election), (Host, Election)) {
    let a = scene.host("a").await.unwrap();
    let first = a.node().join("e").await.unwrap();
    first.elected().await.unwrap();
    let b = scene.host("b").await.unwrap();
    let second = b.node().join("e").await.unwrap();
    ((a, first), (b, second))
}

#[tokio::test]
async fn time_alone_changes_no_leader() {
    let scene = Scene::new(1);
    let ((_, first), (_, second)) = candidates(&scene).await;
    let term = first.leadership().unwrap().term();
    scene.pass(5 * TTL).await;
    assert_eq!(first.leadership().unwrap().term(), term);
    assert!(!second.is_leader());
}

#[tokio::test]
async fn every_disturbance_longer_than_the_ttl_changes_it_and_mending_brings_the_host_back() {
    for disturb in [Host::cut, Host::pause, Host::lose_answers] {
        let scene = Scene::new(2);
        let ((a, first), (b, second)) = candidates(&scene).await;
        disturb(&a);
        scene.until(|| second.is_leader()).await;
        assert!(!first.is_leader());
        a.mend();
        disturb(&b);
        scene.until(|| first.is_leader()).await;
        assert!(!second.is_leader());
    }
}

#[tokio::test]
async fn a_paused_host_is_awake_when_it_is_mended() {
    let scene = Scene::new(3);
    let ((a, _), _) = candidates(&scene).await;
    a.awake().await;
    a.pause();
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.awake().await }
    });
    scene.pass(TTL).await;
    assert!(!waiting.is_finished());
    a.mend();
    waiting.await.unwrap();
}

#[tokio::test]
async fn faults_by_chance_happen_and_end() {
    let scene = Scene::new(4);
    let ((a, first), (_, second)) = candidates(&scene).await;
    let faults = Faults {
        answer_lost: 0.5,
        ..Faults::default()
    };
    a.set_faults(faults).unwrap();
    scene.pass(3 * TTL).await;
    assert!(!a.line().injected().is_empty());
    a.mend();
    scene
        .until(|| first.is_leader() || second.is_leader())
        .await;
}
