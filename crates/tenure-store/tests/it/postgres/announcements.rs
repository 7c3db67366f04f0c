//! Changes are announced after they are committed: no commit waits for an announcement.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection, Row};
use tenure_store::{Expect, Hint, Key, Prefix, Store};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::restart::Server;
use super::{SERVER, connections, execute, fresh_database, hint};
use crate::support;

const WRITERS: usize = 8;
const WRITES_EACH: usize = 10;

/// A transaction that announces something holds this lock of the whole server until its commit is flushed or, if that
/// is configured, has reached a standby.
const LOCK: &str = "SELECT count(*) FILTER (WHERE granted), count(*) FILTER (WHERE NOT granted) FROM pg_locks \
     WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND objid = 0 \
     AND mode = 'AccessExclusiveLock'";

fn folder() -> Prefix {
    Prefix::new("it/announced").unwrap()
}

fn key(name: impl std::fmt::Display) -> Key {
    folder().key(name.to_string()).unwrap()
}

/// How many connections hold the lock, and how many wait for it.
async fn lock(connection: &mut PgConnection) -> (i64, i64) {
    let row = connection.fetch_one(LOCK).await.unwrap();
    (row.get(0), row.get(1))
}

async fn write_on(store: &dyn Store, writer: usize) {
    let key = key(writer);
    let mut expect = Expect::Absent;
    for count in 0..WRITES_EACH {
        let version = store.put(&key, count.to_string().into(), &expect).await;
        expect = Expect::Version(version.expect("it waits for nobody"));
    }
    store.delete(&key).await.expect("neither does a delete");
}

/// Waits for a hint about each of these, or for one that anything may have changed.
async fn hears_of(watch: &mut tenure_store::Watch, mut awaited: BTreeSet<Key>) {
    while !awaited.is_empty() {
        match hint(watch).await {
            Hint::Changed(key) => drop(awaited.remove(&key)),
            Hint::Anything => return,
        }
    }
}

/// Another program of the same server announces something, and its commit never ends.
#[tokio::test(flavor = "multi_thread")]
async fn no_change_waits_for_the_announcements_of_others() {
    let Some(server) = Server::start("trust") else {
        return;
    };
    let url = server.url("");
    let mut admin = PgConnection::connect(&url).await.unwrap();
    for statement in [
        // For every connection from now on, unless it has its own setting.
        "ALTER DATABASE postgres SET synchronous_commit = local",
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
        "SELECT pg_reload_conf()",
    ] {
        admin.execute(statement).await.unwrap();
    }
    let store = tenure_store::open(&url).await.unwrap();
    let mut watch = store.watch(&folder()).unwrap();
    assert_eq!(hint(&mut watch).await, Hint::Anything);

    let mut other = PgConnection::connect(&url).await.unwrap();
    other.execute("SET synchronous_commit = on").await.unwrap();
    // A transaction that only announces is not flushed either. One that also writes something waits while holding the
    // lock.
    let announces = "CREATE TABLE other (); NOTIFY other";
    let other = tokio::spawn(async move { sqlx::raw_sql(announces).execute(&mut other).await });
    while lock(&mut admin).await.0 == 0 {
        assert!(!other.is_finished(), "the commit waits for the standby");
        sleep(Duration::from_millis(10)).await;
    }

    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move { write_on(&*store, writer).await });
    }
    let mut most_waiting = 0;
    while !writers.is_empty() {
        most_waiting = most_waiting.max(lock(&mut admin).await.1);
        if let Some(ended) = writers.try_join_next() {
            ended.unwrap();
        }
    }
    assert!(!other.is_finished(), "it held the lock all the while");
    assert!(
        most_waiting <= 1,
        "{most_waiting} wait for the lock: one announces for all"
    );

    // Hints come again as soon as it releases the lock.
    for statement in [
        "ALTER SYSTEM SET synchronous_standby_names = ''",
        "SELECT pg_reload_conf()",
    ] {
        admin.execute(statement).await.unwrap();
    }
    other.await.unwrap().unwrap();
    while lock(&mut admin).await != (0, 0) {
        sleep(Duration::from_millis(10)).await;
    }
    let late = key("late");
    store.put(&late, "1".into(), &Expect::Absent).await.unwrap();
    hears_of(&mut watch, BTreeSet::from([late])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_many_writers_change_is_heard_of_at_no_more_connections() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, name) = fresh_database(&url).await;
    let writer = tenure_store::open(&fresh).await.unwrap();
    let listener = tenure_store::open(&fresh).await.unwrap();
    let mut watch = listener.watch(&folder()).unwrap();
    assert_eq!(hint(&mut watch).await, Hint::Anything);
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let writer = writer.clone();
        writers.spawn(async move { write_on(&*writer, number).await });
    }
    writers.join_all().await;
    hears_of(&mut watch, (0..WRITERS).map(key).collect()).await;
    // The writers' pool, the listener's connection, and the one that the listener was opened with.
    assert!(connections(&url, &name).await <= 8 + 2);
    drop((writer, listener));
    execute(&url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

/// A process that writes and exits at once is still heard.
#[test]
fn a_change_is_announced_though_its_runtime_ends_at_once() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let key = crate::sql::fresh_key();
    let listening = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (_listener, mut watch) = listening.block_on(async {
        let listener = tenure_store::open(&url).await.unwrap();
        let mut watch = listener.watch(&super::folder_of(&key)).unwrap();
        assert_eq!(hint(&mut watch).await, Hint::Anything);
        (listener, watch)
    });
    let short = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = short.block_on(async {
        let store = tenure_store::open(&url).await.unwrap();
        store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
        store
    });
    drop(short);
    drop(store);
    let heard = listening.block_on(hint(&mut watch));
    assert_eq!(heard, Hint::Changed(key));
}

/// A dropped store leaves neither a connection nor a task that opens one.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_store_announces_no_more() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, name) = fresh_database(&url).await;
    let store = tenure_store::open(&fresh).await.unwrap();
    for number in 0..WRITERS {
        let key = key(number);
        store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
    }
    drop(store);
    let started = Instant::now();
    while connections(&url, &name).await > 0 {
        assert!(started.elapsed() < Duration::from_secs(30));
        sleep(Duration::from_millis(20)).await;
    }
    execute(&url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

/// `?hints=off` announces nothing.
#[tokio::test(flavor = "multi_thread")]
async fn without_hints_nothing_is_announced() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, name) = fresh_database(&url).await;
    let listener = tenure_store::open(&fresh).await.unwrap();
    let mut watch = listener.watch(&folder()).unwrap();
    assert_eq!(hint(&mut watch).await, Hint::Anything);
    let quiet = tenure_store::open(&format!("{fresh}?hints=off")).await;
    let quiet = quiet.unwrap();
    let unheard = key("unheard");
    let put = quiet.put(&unheard, "1".into(), &Expect::Absent);
    put.await.unwrap();
    sleep(Duration::from_millis(200)).await;
    let heard = key("heard");
    let put = listener.put(&heard, "1".into(), &Expect::Absent);
    put.await.unwrap();
    assert_eq!(hint(&mut watch).await, Hint::Changed(heard));
    drop((quiet, listener));
    execute(&url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
}
