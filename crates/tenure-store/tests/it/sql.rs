//! Claims that hold on every SQL engine.

use std::sync::Arc;

use tenure_store::conformance::{Options, Suite};
use tenure_store::{Error, Expect, Key, Store};
use tokio::task::JoinSet;

/// A password that no error may show.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const PASSWORD: &str = "hunter2-is-secret";

pub(crate) async fn keeps_the_contract(url: &str) {
    let store = tenure_store::open(url).await.unwrap();
    Suite::new(store, Options::default())
        .run(|_| {})
        .await
        .assert_passed();
}

/// A key that no other test or run uses.
pub(crate) fn fresh_key() -> Key {
    Key::new(format!("it/{}/object", uuid::Uuid::new_v4())).unwrap()
}

/// A clock that can be set, and that may be another one after a failover, gives no ages by default.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) async fn has_an_age_only_if_asked(url: &str) {
    let key = fresh_key();
    let store = tenure_store::open(url).await.unwrap();
    let started = std::time::Instant::now();
    store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    let object = store.get(&key).await.unwrap().unwrap();
    assert_eq!(object.age, None);
    assert!(object.shown_age.is_some());
    assert!(!store.describe().capabilities.age);

    let separator = if url.contains('?') { '&' } else { '?' };
    let asked = format!("{url}{separator}age=server-clock");
    let asked = tenure_store::open(&asked).await.unwrap();
    assert_eq!(
        asked.get(&key).await.unwrap().unwrap().age,
        None,
        "untested"
    );
    let own = fresh_key();
    asked.put(&own, "0".into(), &Expect::Absent).await.unwrap();
    let age = asked.get(&key).await.unwrap().unwrap().age.unwrap();
    assert!(age <= started.elapsed(), "{age:?}");

    let wrong = tenure_store::open(&format!("{url}{separator}age=wall")).await;
    assert!(matches!(wrong, Err(Error::Invalid { .. })));
    for key in [key, own] {
        store.delete(&key).await.unwrap();
    }
}

/// Callers time out, one after the other, on three stores whose table is locked. The server never has more connections
/// than the stores may open.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) async fn a_locked_table_costs_no_more_than_the_pool<C: AsyncFnMut() -> i64>(
    url: &str,
    connections_max: i64,
    mut connections: C,
    unlock: impl Future<Output = ()>,
) {
    use std::time::{Duration, Instant};
    use tokio::time::{sleep, timeout};
    let key = fresh_key();
    let mut stores = Vec::new();
    for _ in 0..3 {
        // The table may be locked already, so it was created before.
        stores.push(tenure_store::open_existing(url).await.unwrap());
    }
    let started = Instant::now();
    let mut most = 0;
    while started.elapsed() < Duration::from_secs(12) {
        for store in &stores {
            for _ in 0..2 {
                let (store, key) = (store.clone(), key.clone());
                tokio::spawn(async move {
                    let read = store.get(&key);
                    drop(timeout(Duration::from_millis(300), read).await);
                });
            }
        }
        sleep(Duration::from_millis(200)).await;
        most = most.max(connections().await);
    }
    assert!(most <= connections_max, "{most} connections");
    assert!(most > 1, "nobody waited");
    unlock.await;
    let unlocked = Instant::now();
    for store in &stores {
        while store.get(&key).await.is_err() {
            assert!(unlocked.elapsed() < Duration::from_secs(5));
        }
    }
}

/// 16 tasks on two stores add to one counter 1,000 times in total.
pub(crate) async fn thousand_increments_are_exact(url: &str) {
    let key = fresh_key();
    let first = tenure_store::open(url).await.unwrap();
    let second = tenure_store::open(url).await.unwrap();
    first.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let store = [&first, &second][task % 2].clone();
        let key = key.clone();
        let share = 1000 / 16 + usize::from(task < 1000 % 16);
        tasks.spawn(async move { add(&*store, &key, share).await });
    }
    tasks.join_all().await;
    assert_eq!(count(&*first, &key).await.0, 1000);
    first.delete(&key).await.unwrap();
}

/// Adds to the counter `times` times, one at a time.
pub(crate) async fn add(store: &dyn Store, key: &Key, times: usize) {
    for _ in 0..times {
        loop {
            let (count, expect) = count(store, key).await;
            let value = (count + 1).to_string();
            match store.put(key, value.into(), &expect).await {
                Ok(_) => break,
                Err(Error::Conflict { .. } | Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

pub(crate) async fn count(store: &dyn Store, key: &Key) -> (u64, Expect) {
    let object = store.get(key).await.unwrap().expect("the counter is there");
    let text = std::str::from_utf8(&object.value).unwrap();
    (text.parse().unwrap(), Expect::Version(object.version))
}

/// 16 nodes open the same empty database at once, and all can use it.
pub(crate) async fn open_at_once(url: &str) {
    let barrier = Arc::new(tokio::sync::Barrier::new(16));
    let mut tasks = JoinSet::new();
    for node in 0..16 {
        let (url, barrier) = (url.to_owned(), barrier.clone());
        tasks.spawn(async move {
            barrier.wait().await;
            let store = tenure_store::open(&url).await.unwrap();
            let key = Key::new(format!("it/nodes/{node}")).unwrap();
            store.put(&key, "here".into(), &Expect::Absent).await
        });
    }
    for put in tasks.join_all().await {
        put.unwrap();
    }
}

/// An error as a log would show it in full.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {}", error.hint());
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text} {error} {error:?}");
        cause = error.source();
    }
    text
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use lost_answers::*;

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod lost_answers {
    use super::*;
    use crate::proxy::Proxy;

    /// A proxy in front of the server that a URL names, and the URL that leads through it.
    pub(crate) async fn through_a_proxy(url: &str) -> (Proxy, String) {
        let mut url: url::Url = url.parse().unwrap();
        let server = url.socket_addrs(|| None).unwrap()[0];
        let proxy = Proxy::start(server).await;
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(proxy.address().port())).unwrap();
        (proxy, url.to_string())
    }

    /// Writes whose answer is lost after they were applied are unknown, and were applied exactly once.
    pub(crate) async fn a_lost_answer_is_unknown(url: &str) {
        let (proxy, proxied) = through_a_proxy(url).await;
        let store = tenure_store::open(&proxied).await.unwrap();
        let direct = tenure_store::open(url).await.unwrap();
        let key = fresh_key();
        let mut expect = Expect::Absent;
        for round in 0..5 {
            let value = format!("round {round}");
            proxy.lose_answer_to(key.as_str());
            let put = store.put(&key, value.clone().into(), &expect).await;
            assert!(matches!(put, Err(Error::Unknown { .. })), "{put:?}");
            proxy.lost().await;
            let object = direct.get(&key).await.unwrap().unwrap();
            assert_eq!(object.value, value);
            // The writer finds it through the same store, which has recovered.
            assert_eq!(
                store.get(&key).await.unwrap().unwrap().version,
                object.version
            );
            // A write that was repeated behind our back would have made a newer version.
            let again = direct.get(&key).await.unwrap().unwrap();
            assert_eq!(again.version, object.version);
            expect = Expect::Version(object.version);
        }
        proxy.lose_answer_to(key.as_str());
        let deleted = store.delete(&key).await;
        assert!(matches!(deleted, Err(Error::Unknown { .. })), "{deleted:?}");
        assert_eq!(direct.get(&key).await.unwrap(), None);
        // A lost answer to a read ends as an error that says that nothing was written.
        proxy.lose_answer_to(key.as_str());
        let read = store.get(&key).await;
        assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
    }

    /// When all connections have died while idle, one call may notice; the next is done, not unknown.
    pub(crate) async fn dead_connections_are_replaced(url: &str) {
        let (proxy, proxied) = through_a_proxy(url).await;
        let store = tenure_store::open(&proxied).await.unwrap();
        let key = fresh_key();
        let mut expect = Expect::Absent;
        for round in 0..5 {
            // Several connections, all of them idle.
            let mut tasks = JoinSet::new();
            for _ in 0..8 {
                let (store, key) = (store.clone(), key.clone());
                tasks.spawn(async move { store.get(&key).await.unwrap() });
            }
            tasks.join_all().await;
            proxy.cut().await;
            match store.get(&key).await {
                Ok(_) | Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
            let value = format!("round {round}");
            let version = store.put(&key, value.into(), &expect).await.unwrap();
            expect = Expect::Version(version);
        }
        store.delete(&key).await.unwrap();
    }
}
