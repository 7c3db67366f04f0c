//! Every wrapper keeps the contract, and injected faults stay within it.

// Test helpers are test code too.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_store::conformance::{Options, Suite};
use tenure_store::engine::memory::Memory;
use tenure_store::wrap::Prefixed;
use tenure_store::wrap::faulty::{Faults, Faulty, Kind, Outage};
use tenure_store::wrap::metered::{Metered, Operation, Outcome};
use tenure_store::wrap::throttled::{self, Throttled};
use tenure_store::{Error, Expect, KEY_BYTES_MAX, Key, Prefix, Store, Version};
use tokio::task::JoinSet;

fn memory() -> Arc<dyn Store> {
    Arc::new(Memory::new())
}

async fn assert_keeps_the_contract(store: Arc<dyn Store>, options: Options) {
    Suite::new(store, options).run(|_| {}).await.assert_passed();
}

/// High enough that nothing ever waits.
fn generous() -> throttled::Config {
    throttled::Config {
        reads_per_minute: Some(u32::MAX),
        writes_per_minute: Some(u32::MAX),
        writes_per_day: Some(u32::MAX),
        reserved_per_day: 0,
        burst: 1_000_000,
        waiters_max: 1000,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixed_keeps_the_contract() {
    let prefix = Prefix::new("tenants/a").unwrap();
    let options = Options {
        key_bytes_max: KEY_BYTES_MAX - prefix.as_str().len(),
        ..Options::default()
    };
    let store = Arc::new(Prefixed::new(memory(), prefix));
    assert_keeps_the_contract(store, options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metered_keeps_the_contract_and_counts_every_request() {
    let store = Arc::new(Metered::new(memory()));
    assert_keeps_the_contract(store.clone(), Options::default()).await;
    let snapshot = store.meter().snapshot();
    assert_eq!(snapshot.in_flight(), 0);
    let ended = |operation, outcome| snapshot.count(operation, outcome);
    // 20 rounds of 16 writers, create and replace, have 15 losers each.
    assert!(ended(Operation::Put, Outcome::Conflict) >= 2 * 20 * 15);
    assert!(ended(Operation::Put, Outcome::Done) > 1100);
    assert_eq!(ended(Operation::Put, Outcome::Invalid), 1);
    assert!(ended(Operation::Get, Outcome::Missing) > 0);
    assert_eq!(ended(Operation::GetIfChanged, Outcome::Unchanged), 1);
    assert!(snapshot.read_bytes > 8 * 1024 * 1024);
    assert!(snapshot.written_bytes > 8 * 1024 * 1024);
}

#[tokio::test(flavor = "multi_thread")]
async fn throttled_keeps_the_contract() {
    let store = Arc::new(Throttled::new(memory(), generous()).unwrap());
    assert_keeps_the_contract(store.clone(), Options::default()).await;
    let statistics = store.statistics();
    assert_eq!(statistics.writes.sent, statistics.spent_today);
    assert!(statistics.writes.sent > 1100 && statistics.refused == 0);
}

#[tokio::test(start_paused = true)]
async fn throttled_keeps_the_contract_while_every_request_waits() {
    let config = throttled::Config {
        reads_per_minute: Some(60_000),
        writes_per_minute: Some(60_000),
        burst: 1,
        ..throttled::Config::default()
    };
    let store = Arc::new(Throttled::new(memory(), config).unwrap());
    assert_keeps_the_contract(store.clone(), Options::default()).await;
    assert!(store.statistics().writes.waited > 1000);
}

#[tokio::test(start_paused = true)]
async fn faults_that_hide_nothing_keep_the_contract() {
    // Slow answers, duplicate requests, and duplicate or slightly late hints: a caller cannot tell.
    let faults = Faults {
        delayed: 0.5,
        duplicated: 0.3,
        hint_doubled: 0.4,
        hint_late: 0.4,
        late_by: Duration::ZERO..=Duration::from_millis(30),
        ..Faults::default()
    };
    let store = Arc::new(Faulty::new(memory(), faults, 11).unwrap());
    assert_keeps_the_contract(store.clone(), Options::default()).await;
    let injected = store.injected();
    assert!(injected[&Kind::Delayed] > 500 && injected[&Kind::Duplicated] > 300);
}

#[tokio::test(start_paused = true)]
async fn wrappers_stack_in_any_order() {
    type Wrap = fn(Arc<dyn Store>) -> Arc<dyn Store>;
    let wraps: [Wrap; 4] = [
        |store| Arc::new(Prefixed::new(store, Prefix::new("p").unwrap())),
        |store| Arc::new(Metered::new(store)),
        |store| Arc::new(Throttled::new(store, generous()).unwrap()),
        |store| Arc::new(Faulty::new(store, Faults::default(), 1).unwrap()),
    ];
    let options = Options {
        key_bytes_max: KEY_BYTES_MAX - "p/".len(),
        ..Options::quick()
    };
    for turn in 0..4 {
        for reversed in [false, true] {
            let mut order = wraps;
            order.rotate_left(turn);
            if reversed {
                order.reverse();
            }
            let store = order.iter().fold(memory(), |store, wrap| wrap(store));
            assert_keeps_the_contract(store, options.clone()).await;
        }
    }
}

const WRITERS: usize = 16;
const INCREMENTS: u64 = 60;

/// Every kind of request fault at once, a third of all writes affected.
fn heavy() -> Faults {
    Faults {
        delayed: 0.3,
        delay: Duration::ZERO..=Duration::from_millis(3),
        refused: 0.05,
        answer_lost: 0.06,
        request_lost: 0.05,
        late: 0.06,
        late_by: Duration::ZERO..=Duration::from_millis(40),
        duplicated: 0.05,
        retried: 0.06,
        young: 0.2,
        hint_lost: 0.2,
        hint_doubled: 0.2,
        hint_late: 0.2,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn increments_are_exact_under_heavy_faults_on_threads() {
    race(1).await;
}

#[tokio::test(start_paused = true)]
async fn increments_are_exact_under_heavy_faults_for_many_seeds() {
    for seed in 0..20 {
        race(seed).await;
    }
}

/// 16 writers count in one object while every kind of fault happens.
async fn race(seed: u64) {
    let memory = Arc::new(Memory::new());
    let store = Arc::new(Faulty::new(memory.clone(), heavy(), seed).unwrap());
    let key = Key::new("race/counts").unwrap();
    memory
        .put(&key, encode(&[0; WRITERS]), &Expect::Absent)
        .await
        .unwrap();
    let mut watch = store.watch(&Prefix::new("race").unwrap()).unwrap();
    let watcher = tokio::spawn(async move {
        let mut hints = 0;
        while watch.next().await.is_some() {
            hints += 1;
        }
        hints
    });

    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let (store, key) = (store.clone(), key.clone());
        tasks.spawn(async move {
            for count in 1..=INCREMENTS {
                raise(&*store, &key, writer, count).await;
            }
        });
    }
    outages(&store).await;
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // A late write that arrived after its writer was done would show now.
    store.settled().await;
    let counts = read(&*memory, &key).await.unwrap().0;
    assert_eq!(counts, [INCREMENTS; WRITERS], "seed {seed}");

    let injected = store.injected();
    let never: BTreeMap<_, _> = injected.iter().filter(|(_, count)| **count == 0).collect();
    assert!(never.is_empty(), "seed {seed} never injected {never:?}");
    // The watch ends with the store that feeds it.
    drop((store, memory));
    assert!(watcher.await.unwrap() > 0);
}

/// One outage of each sort while the writers work, each long enough to affect them.
async fn outages(store: &Faulty) {
    for (outage, kind) in [
        (Outage::Refusing, Kind::Outage),
        (Outage::Breaking, Kind::Outage),
        (Outage::Hanging, Kind::Hung),
    ] {
        let before = store.injected()[&kind];
        store.set_outage(outage);
        while store.injected()[&kind] < before + 5 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        store.set_outage(Outage::Over);
    }
}

/// Raises this writer's count to `count`, exactly once, whatever the answers are.
async fn raise(store: &dyn Store, key: &Key, writer: usize, count: u64) {
    for attempt in 0..10_000_u64 {
        // The pace differs per writer, so that the losers of a race spread out.
        let pause = (attempt * 3 + writer as u64 * 7) % 20;
        if attempt > 0 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let Ok((mut counts, version)) = read(store, key).await else {
            continue;
        };
        // This is where a write whose answer was lost or false is recognised, so it is never
        // repeated.
        if counts[writer] == count {
            return;
        }
        assert_eq!(counts[writer], count - 1, "an update was lost or doubled");
        counts[writer] = count;
        let expect = Expect::Version(version);
        match store.put(key, encode(&counts), &expect).await {
            Ok(_) => return,
            Err(Error::Conflict { .. } | Error::Unknown { .. } | Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("writer {writer} never got {count} in");
}

async fn read(store: &dyn Store, key: &Key) -> Result<(Vec<u64>, Version), Error> {
    let object = store.get(key).await?.expect("nobody deletes it");
    let counts = serde_json::from_slice(&object.value).expect("nobody writes anything else");
    Ok((counts, object.version))
}

fn encode(counts: &[u64]) -> bytes::Bytes {
    serde_json::to_vec(counts)
        .expect("numbers are valid")
        .into()
}

/// A writer that asks before it writes counts as one wait, however often it asks.
#[tokio::test(start_paused = true)]
async fn pauses_before_a_write_are_counted_once() {
    let config = throttled::Config {
        writes_per_minute: Some(60),
        burst: 1,
        ..throttled::Config::default()
    };
    let store = Throttled::new(memory(), config).unwrap();
    let put = async |name: &str| {
        let key = Key::new(name).unwrap();
        store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
    };
    put("a").await;
    assert_eq!(store.statistics().writes.waited, 0);
    let start = tokio::time::Instant::now();
    for _ in 0..3 {
        let pause = store.pause_before_write();
        assert!(pause > Duration::ZERO);
        tokio::time::sleep(pause / 2).await;
    }
    tokio::time::sleep(store.pause_before_write()).await;
    let waited = start.elapsed();
    let writes = store.statistics().writes;
    assert_eq!((writes.waited, writes.waited_total), (1, waited));
    put("b").await;
    assert!(store.pause_before_write() > Duration::ZERO);
    assert_eq!(store.statistics().writes.waited, 2);
}
