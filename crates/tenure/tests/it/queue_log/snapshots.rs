//! Snapshots: half-written ones, slow readers, and what clean-up leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tenure::log::{Config, Error, Form, Handle, Machine, Position, Record, Writer};
use tenure::store::wrap::faulty::{Fault, Faults, Faulty, Kind};
use tenure::store::wrap::metered::Operation;
use tenure::store::{Expect, Prefix, list_all};
use tokio_util::sync::CancellationToken;

use super::suite::tiny;
use super::world::{Memo, World};

async fn start(world: &World, term: u64) -> (Handle<Memo>, Vec<String>) {
    let (log, machine) = world.lead(term, tiny()).await.unwrap();
    let records = machine.records.clone();
    let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
    tokio::spawn(writer.run());
    (handle, records)
}

async fn fill(handle: &Handle<Memo>, sent: &mut Vec<String>, snapshots: u64) {
    let until = handle.statistics().snapshots + snapshots;
    while handle.statistics().snapshots < until {
        let line = format!("{{\"filler\":{}}}", sent.len());
        handle.commit(line.clone()).await.unwrap();
        sent.push(line);
        tokio::task::yield_now().await;
    }
}

async fn until_hung(faulty: &Faulty, count: u64) {
    while faulty.injected()[&Kind::Hung] < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_last_two_snapshots_and_the_log_between_stay() {
    for world in [World::memory(), World::file().await] {
        let (handle, mut sent) = start(&world, 1).await;
        fill(&handle, &mut sent, 4).await;
        handle.shutdown().await;
        let all = list_all(
            &*world.store,
            &Prefix::new(world.key("snapshot").as_str()).unwrap(),
        )
        .await
        .unwrap();
        let manifests: Vec<_> = all
            .iter()
            .filter(|entry| entry.key.name() == "manifest")
            .map(|entry| entry.key.clone())
            .collect();
        assert_eq!(manifests.len(), 2);
        // The older one and its log are whole.
        world.store.delete(&manifests[1]).await.unwrap();
        assert_eq!(world.replay().await.unwrap().records, sent);
        if world.form == Form::Segments {
            assert!(world.segments()[0].to_str().unwrap().contains("-0000"));
            assert!(
                !world.segments()[0].ends_with("00000000000000000001-000001"),
                "cleaned up"
            );
        } else {
            assert!(
                world.store.get(&world.place(1)).await.unwrap().is_some(),
                "the term record"
            );
            assert!(world.store.get(&world.place(2)).await.unwrap().is_none());
        }
    }
}

#[tokio::test]
async fn a_snapshot_without_its_manifest_is_ignored_and_cleaned_up_later() {
    let world = World::memory();
    let (handle, mut sent) = start(&world, 1).await;
    fill(&handle, &mut sent, 1).await;
    let half = world.key("snapshot/00000000000000000005-0000000000000000/000000");
    let rubbish = Bytes::from_static(b"half a par");
    world
        .store
        .put(&half, rubbish, &Expect::Absent)
        .await
        .unwrap();
    assert_eq!(world.replay().await.unwrap().records, sent);
    fill(&handle, &mut sent, 2).await;
    handle.shutdown().await;
    assert!(world.store.get(&half).await.unwrap().is_none());
    assert_eq!(world.replay().await.unwrap().records, sent);
}

#[tokio::test]
async fn a_snapshot_that_fails_loses_nothing_and_is_tried_again() {
    let world = World::memory();
    let faulty = Arc::new(Faulty::new(world.store.clone(), Faults::default(), 1).unwrap());
    let wrapped = world.through(faulty.clone());
    let (handle, mut sent) = start(&wrapped, 1).await;
    // Nothing can be listed, so the snapshot is published and clean-up fails.
    for _ in 0..3 {
        let prefix = Prefix::new(world.key("snapshot").as_str()).unwrap();
        faulty
            .script(Operation::List, &prefix, Fault::Refuse)
            .unwrap();
    }
    fill(&handle, &mut sent, 4).await;
    handle.shutdown().await;
    assert_eq!(world.replay().await.unwrap().records, sent);
    assert!(
        world.store.get(&world.place(2)).await.unwrap().is_none(),
        "cleaned up with the next"
    );
}

/// Gives something else than lines, once.
struct Careless {
    memo: Memo,
    is_careless: bool,
    abandoned: Arc<AtomicUsize>,
}

impl Machine for Careless {
    type Command = Record;
    type Answer = usize;
    type Error = Error;
    fn apply(&mut self, position: Position, record: Record) -> usize {
        self.memo.apply(position, record)
    }
    fn replay(&mut self, position: Position, record: &[u8]) -> Result<(), Error> {
        self.memo.replay(position, record)
    }
    fn reset(&mut self) {
        self.memo.reset();
    }
    fn restore(&mut self, lines: &[u8]) -> Result<(), Error> {
        self.memo.restore(lines)
    }
    fn begin_snapshot(&mut self) {
        self.memo.begin_snapshot();
    }
    fn snapshot_chunk(&mut self, bytes_max: usize) -> Option<Bytes> {
        if std::mem::take(&mut self.is_careless) {
            Some(Bytes::from_static(b"no line"))
        } else {
            self.memo.snapshot_chunk(bytes_max)
        }
    }
    fn abandon_snapshot(&mut self) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_written_is_abandoned_and_tried_again() {
    let world = World::memory();
    let (log, memo) = world.lead(1, tiny()).await.unwrap();
    let abandoned = Arc::<AtomicUsize>::default();
    let machine = Careless {
        memo,
        is_careless: true,
        abandoned: abandoned.clone(),
    };
    let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
    tokio::spawn(writer.run());
    let mut sent = Vec::new();
    while handle.statistics().snapshots == 0 {
        let line = sent.len().to_string();
        handle.commit(line.clone()).await.unwrap();
        sent.push(line);
        tokio::task::yield_now().await;
    }
    assert_eq!(abandoned.load(Ordering::Relaxed), 1);
    handle.shutdown().await;
    assert_eq!(world.replay().await.unwrap().records, sent);
}

/// What it wants to read next is cleaned up, twice over: it begins again with what replaced it.
#[tokio::test]
async fn a_slow_reader_that_was_overtaken_begins_again() {
    let world = World::memory();
    let (handle, mut sent) = start(&world, 1).await;
    fill(&handle, &mut sent, 1).await;
    let faulty = Arc::new(Faulty::new(world.store.clone(), Faults::default(), 1).unwrap());
    let all = list_all(&*world.store, &Prefix::root()).await.unwrap();
    let part = all
        .iter()
        .find(|entry| entry.key.name() == "000000")
        .unwrap()
        .key
        .clone();
    faulty.script(Operation::Get, &part, Fault::Hang).unwrap();
    let slow = world.through(faulty.clone());
    let reader = tokio::spawn(async move { slow.replay().await.unwrap() });
    until_hung(&faulty, 1).await;
    fill(&handle, &mut sent, 2).await;
    assert!(
        world.store.get(&part).await.unwrap().is_none(),
        "cleaned up"
    );
    faulty.release();
    let read = reader.await.unwrap();
    assert_eq!(read.resets, 2);
    assert_eq!(read.records, sent);

    // The same with the log. Each record here has a place of its own, behind that of the term.
    handle.commit("1").await.unwrap();
    sent.push("1".to_owned());
    let next = world.place(sent.len() as u64 + 1);
    faulty.script(Operation::Get, &next, Fault::Hang).unwrap();
    let slow = world.through(faulty.clone());
    let reader = tokio::spawn(async move { slow.replay().await.unwrap() });
    until_hung(&faulty, 2).await;
    fill(&handle, &mut sent, 2).await;
    assert!(
        world.store.get(&next).await.unwrap().is_none(),
        "cleaned up"
    );
    faulty.release();
    let read = reader.await.unwrap();
    assert_eq!((read.resets, read.records), (2, sent));
    handle.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn commits_go_on_while_a_snapshot_is_written() {
    let world = World::memory();
    let slow = Faults {
        delayed: 1.0,
        delay: Duration::from_millis(30)..=Duration::from_millis(30),
        ..Faults::default()
    };
    let faulty = Arc::new(Faulty::new(world.store.clone(), slow, 1).unwrap());
    let (handle, mut sent) = start(&world.through(faulty), 1).await;
    let mut longest = Duration::ZERO;
    while handle.statistics().snapshots < 3 {
        let started = tokio::time::Instant::now();
        let line = format!("{{\"filler\":{}}}", sent.len());
        handle.commit(line.clone()).await.unwrap();
        sent.push(line);
        longest = longest.max(started.elapsed());
    }
    // On the clock of the test: a commit takes one request, snapshot or not.
    assert!(longest < Duration::from_millis(35), "{longest:?}");
    handle.shutdown().await;
    assert_eq!(world.replay().await.unwrap().records, sent);
}

#[tokio::test]
async fn progress_is_told_and_ends_at_what_was_read() {
    let world = World::memory();
    let (handle, mut sent) = start(&world, 1).await;
    fill(&handle, &mut sent, 2).await;
    for _ in 0..5 {
        handle.commit("\"more\"").await.unwrap();
    }
    handle.shutdown().await;
    let mut machine = Memo::default();
    let mut told = Vec::new();
    let store = world.store.clone();
    tenure::log::replay(
        store,
        &world.namespace,
        Config::default(),
        &mut machine,
        |progress| {
            told.push(progress);
        },
    )
    .await
    .unwrap();
    let last = told.last().unwrap();
    assert_eq!(last.lines, machine.restored as u64);
    assert_eq!(
        last.records,
        (machine.records.len() - machine.restored) as u64
    );
    assert!(told.is_sorted_by_key(|progress| (progress.lines, progress.records, progress.bytes)));
}
