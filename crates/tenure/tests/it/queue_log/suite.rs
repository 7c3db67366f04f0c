//! What holds in both forms, on every store.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::Lineage;
use tenure::log::{Config, Error, Log, Writer};
use tenure::store::engine::object::Objects;
use tenure_testkit::gcs::Gcs;
use tokio_util::sync::CancellationToken;

use super::world::{Memo, World, lines, owner, records};

/// Small enough that a few records make snapshots, parts and segments.
pub(crate) fn tiny() -> Config {
    Config {
        batch_bytes_max: 4096,
        batch_records_max: 3,
        segment_bytes_max: 2000,
        part_bytes_max: 300,
        snapshot_bytes_min: 3000,
        object_cost_bytes: 0,
        ..Config::default()
    }
}

async fn suite(world: &World) {
    what_was_committed_is_replayed_in_order(world).await;
    let world = fresh(world);
    a_replaced_leader_is_fenced_and_nothing_of_it_appears(&world).await;
    let world = fresh(&world);
    a_leader_of_an_older_term_cannot_take_over(&world).await;
    let world = fresh(&world);
    snapshot_and_log_equal_log_alone(&world).await;
    let world = fresh(&world);
    a_dropped_commit_closes_the_log(&world).await;
}

/// Another namespace on the same store.
fn fresh(world: &World) -> World {
    let mut other = World::objects(world.store.clone());
    other.form = world.form;
    other
}

#[tokio::test]
async fn memory_keeps_the_log() {
    suite(&World::memory()).await;
}

#[tokio::test]
async fn files_keep_the_log() {
    suite(&World::file().await).await;
}

#[tokio::test]
async fn files_as_objects_keep_the_log() {
    suite(&World::file_as_objects().await).await;
}

#[tokio::test]
async fn sqlite_keeps_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store").display());
    suite(&World::objects(tenure::store::open(&url).await.unwrap())).await;
}

#[tokio::test]
async fn postgres_keeps_the_log() {
    if let Some(world) = World::server("TENURE_TEST_POSTGRES").await {
        suite(&world).await;
    }
}

#[tokio::test]
async fn a_newer_postgres_keeps_the_log() {
    if let Some(world) = World::server("TENURE_TEST_POSTGRES_NEW").await {
        suite(&world).await;
    }
}

#[tokio::test]
async fn mariadb_keeps_the_log() {
    if let Some(world) = World::server("TENURE_TEST_MYSQL").await {
        suite(&world).await;
    }
}

#[tokio::test]
async fn seaweedfs_keeps_the_log() {
    if let Some(world) = World::server("TENURE_TEST_S3_SEAWEED").await {
        suite(&world).await;
    }
}

#[tokio::test]
async fn azure_keeps_the_log() {
    if let Some(world) = World::server("TENURE_TEST_AZURE").await {
        suite(&world).await;
    }
}

#[tokio::test]
async fn gcs_keeps_the_log() {
    let gcs = Gcs::start("bucket").await;
    let url = gcs.url().parse().unwrap();
    let store = Objects::open_with(&url, Gcs::variables()).await.unwrap();
    suite(&World::objects(Arc::new(store))).await;
}

#[tokio::test]
async fn ceph_keeps_the_log() {
    if let Some(world) = World::server("TENURE_TEST_S3_CEPH").await {
        suite(&world).await;
    }
}

async fn what_was_committed_is_replayed_in_order(world: &World) {
    assert!(world.replay().await.unwrap().records.is_empty());
    let (mut log, machine) = world.lead(1, Config::default()).await.unwrap();
    assert_eq!((log.form(), log.takeover()), (world.form, 1));
    assert!(machine.records.is_empty());
    let first = log.commit(&records(&["a", "b"])).await.unwrap();
    let second = log.commit(&records(&["c"])).await.unwrap();
    assert_eq!((first.first.0, second.first.0), (1, 3));
    assert!(second.seq > first.seq);
    assert_eq!(log.position().0, 3);
    assert_eq!(
        world.replay().await.unwrap().records,
        lines(&["a", "b", "c"])
    );

    let (mut log, machine) = world.lead(2, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a", "b", "c"]));
    assert_eq!(log.takeover(), 2);
    let third = log.commit(&records(&["d"])).await.unwrap();
    assert_eq!(third.first.0, 4);
    // A leader that has committed nothing leaves nothing behind but its term.
    drop(world.lead(3, Config::default()).await.unwrap());
    let (_, machine) = world.lead(4, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a", "b", "c", "d"]));
}

async fn a_replaced_leader_is_fenced_and_nothing_of_it_appears(world: &World) {
    let (mut old, _) = world.lead(1, Config::default()).await.unwrap();
    old.commit(&records(&["a"])).await.unwrap();
    let (mut new, machine) = world.lead(2, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a"]));

    let late = old.commit(&records(&["late"])).await;
    assert!(matches!(late, Err(Error::Fenced)), "{late:?}");
    let again = old.commit(&records(&["later"])).await;
    assert!(matches!(again, Err(Error::Stopped)), "{again:?}");
    new.commit(&records(&["b"])).await.unwrap();
    assert_eq!(world.replay().await.unwrap().records, lines(&["a", "b"]));
    // Also for the broker that takes over when both have written.
    let (_, machine) = world.lead(3, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a", "b"]));
}

async fn a_leader_of_an_older_term_cannot_take_over(world: &World) {
    let (mut log, _) = world.lead(7, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    let late = world.lead(6, Config::default()).await;
    assert!(matches!(late, Err(Error::Fenced)), "{late:?}");
    log.commit(&records(&["b"])).await.unwrap();

    // An election that was started over counts from 1 again, and goes on behind what there is.
    let mut restarted = owner(1);
    restarted.token.lineage = Lineage(2);
    let mut machine = Memo::default();
    let (store, config) = (world.store.clone(), Config::default());
    let mut new = Log::take_over(
        store,
        &world.namespace,
        restarted,
        config,
        &mut machine,
        |_| {},
    )
    .await
    .unwrap();
    new.commit(&records(&["c"])).await.unwrap();
    assert!(matches!(
        log.commit(&records(&["late"])).await,
        Err(Error::Fenced)
    ));
    assert_eq!(
        world.replay().await.unwrap().records,
        lines(&["a", "b", "c"])
    );
}

/// Terms, snapshots and clean-up in between: nothing of it shows.
async fn snapshot_and_log_equal_log_alone(world: &World) {
    let mut expected = Vec::new();
    let mut snapshots = 0;
    for term in 1..=5 {
        let (log, machine) = world.lead(term, tiny()).await.unwrap();
        assert_eq!(machine.records, expected, "in term {term}");
        assert_eq!(machine.restored > 0, snapshots > 0);
        let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
        let writer = tokio::spawn(writer.run());
        for number in 0..200 {
            let line = format!("{{\"term\":{term},\"number\":{number}}}");
            handle.commit(line.clone()).await.unwrap();
            expected.push(line);
        }
        // The state grows, and with it the distance from one snapshot to the next.
        while snapshots == 0 && handle.statistics().snapshots == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        snapshots += handle.statistics().snapshots;
        handle.shutdown().await;
        writer.await.unwrap().unwrap();
        assert_eq!(world.replay().await.unwrap().records, expected);
    }
    assert!(snapshots >= 3, "{snapshots}");
}

async fn a_dropped_commit_closes_the_log(world: &World) {
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    {
        let batch = records(&["b"]);
        let commit = log.commit(&batch);
        tokio::pin!(commit);
        // One look at it, and away. On a store in memory that is enough for it to be done.
        let looked = futures_util::poll!(&mut commit);
        if looked.is_ready() {
            return;
        }
    }
    let after = log.commit(&records(&["c"])).await;
    assert!(matches!(after, Err(Error::Stopped)), "{after:?}");
    let (_, machine) = world.lead(2, Config::default()).await.unwrap();
    let known = machine.records == lines(&["a"]) || machine.records == lines(&["a", "b"]);
    assert!(known, "{:?}", machine.records);
}
