//! Writes that wait are committed together, and each has its own outcome.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{ConnectOptions, SqliteConnection};
use tenure_store::{Error, Expect, Key, Store, Version, urgent};
use tokio::task::JoinSet;

use super::{execute, url};

/// A store whose writers wait, since another connection is in a transaction.
struct Held {
    _folder: tempfile::TempDir,
    path: PathBuf,
    store: Arc<dyn Store>,
    other: SqliteConnection,
    commits: usize,
}

impl Held {
    async fn new(prepare: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let store = tenure_store::open(&url(&path)).await.unwrap();
        let first = key("first");
        let put = store.put(&first, "0".into(), &Expect::Absent);
        put.await.unwrap();
        execute(&path, prepare).await;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
        let mut other = options.connect().await.unwrap();
        let begun = sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await;
        begun.unwrap();
        let commits = commits(&path);
        Self {
            _folder: folder,
            path,
            store,
            other,
            commits,
        }
    }

    /// Writes that must wait until [`Held::release`].
    async fn put(&self, numbers: std::ops::Range<usize>, expect: Expect) -> Puts {
        let mut puts = JoinSet::new();
        for number in numbers {
            let (store, expect) = (self.store.clone(), expect.clone());
            puts.spawn(async move {
                let key = key(&number.to_string());
                (number, store.put(&key, "1".into(), &expect).await)
            });
        }
        // There is no signal that they wait. If some come too late, they share fewer commits.
        tokio::time::sleep(Duration::from_millis(300)).await;
        puts
    }

    /// Lets the writes go. The function that it returns counts the commits from now on.
    async fn release(self) -> (Arc<dyn Store>, impl Fn() -> usize) {
        let Self {
            _folder,
            path,
            store,
            mut other,
            commits: before,
        } = self;
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
        // The last connection to be closed would delete the log.
        let kept = Mutex::new(other);
        let count = move || {
            let (_folder, _kept) = (&_folder, &kept);
            commits(&path) - before
        };
        (store, count)
    }
}

type Puts = JoinSet<(usize, Result<Version, Error>)>;

fn key(name: &str) -> Key {
    Key::new(format!("it/groups/{name}")).unwrap()
}

/// The number of commits in the write-ahead log: a frame that ends one has the size of the database.
fn commits(database: &Path) -> usize {
    let mut path = database.to_owned().into_os_string();
    path.push("-wal");
    let log = std::fs::read(path).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let page = usize::try_from(number(8)).unwrap();
    let frames = (32..log.len()).step_by(24 + page);
    frames.filter(|&frame| number(frame + 4) != 0).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_share_a_flush_and_keep_their_ends() {
    let held = Held::new("SELECT 1").await;
    let mut done = held.put(0..100, Expect::Absent).await;
    let mut conflicts = held.put(100..110, Expect::Version(Version::new("7"))).await;
    let (store, commits) = held.release().await;
    while let Some(put) = done.join_next().await {
        let (number, version) = put.unwrap();
        let object = store.get(&key(&number.to_string())).await.unwrap().unwrap();
        assert_eq!(object.version, version.unwrap());
    }
    while let Some(put) = conflicts.join_next().await {
        let (number, end) = put.unwrap();
        assert!(matches!(end, Err(Error::Conflict { .. })), "{end:?}");
        let object = store.get(&key(&number.to_string())).await;
        assert_eq!(object.unwrap(), None);
    }
    assert!(commits() <= 5, "{} commits of 100 writes", commits());
}

/// Two of a group are refused: one at its own statement, the other at the commit.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_refused_does_not_undo_the_others() {
    let held = Held::new(
        "CREATE TABLE parents (id INTEGER PRIMARY KEY); \
         CREATE TABLE children (parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED); \
         CREATE TRIGGER no AFTER INSERT ON tenure_objects WHEN new.key = 'it/groups/7' BEGIN \
         SELECT RAISE (ABORT, 'not this one'); END; \
         CREATE TRIGGER not_yet AFTER INSERT ON tenure_objects WHEN new.key = 'it/groups/9' BEGIN \
         INSERT INTO children VALUES (1); END",
    )
    .await;
    let mut puts = held.put(0..40, Expect::Absent).await;
    let (store, _commits) = held.release().await;
    while let Some(put) = puts.join_next().await {
        let (number, end) = put.unwrap();
        let object = store.get(&key(&number.to_string())).await.unwrap();
        if [7, 9].contains(&number) {
            assert!(
                matches!(end, Err(Error::Refused { .. })),
                "{number}: {end:?}"
            );
            assert_eq!(object, None);
        } else {
            assert_eq!(object.unwrap().version, end.unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_write_waits_for_no_crowd() {
    let held = Held::new("SELECT 1").await;
    let mut puts = held.put(0..400, Expect::Absent).await;
    let store = held.store.clone();
    puts.spawn(async move {
        let put = store.put(&key("late"), "1".into(), &Expect::Absent).await;
        (1000, put)
    });
    let store = held.store.clone();
    puts.spawn(async move {
        let (key, expect) = (key("session"), Expect::Absent);
        (2000, urgent(store.put(&key, "1".into(), &expect)).await)
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (_, commits) = held.release().await;
    let mut order = Vec::new();
    while let Some(put) = puts.join_next().await {
        let (number, end) = put.unwrap();
        end.unwrap();
        order.push(number);
    }
    let at = |number| order.iter().position(|&one| one == number).unwrap();
    assert!(at(2000) < 70, "{order:?}");
    assert!(at(1000) > 300, "{order:?}");
    assert!(commits() < 20, "{} commits", commits());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_given_up_while_it_waits_is_not_made() {
    let held = Held::new("SELECT 1").await;
    let mut puts = held.put(0..1, Expect::Absent).await;
    let given_up = key("given-up");
    let put = held.store.put(&given_up, "1".into(), &Expect::Absent);
    let waited = tokio::time::timeout(Duration::from_millis(100), put).await;
    waited.unwrap_err();
    let (store, _commits) = held.release().await;
    puts.join_next().await.unwrap().unwrap().1.unwrap();
    // Any change that waited with it would have been made by now.
    let after = key("after");
    let put = store.put(&after, "1".into(), &Expect::Absent);
    put.await.unwrap();
    assert_eq!(store.get(&given_up).await.unwrap(), None);
}

/// A program whose handler never yields blocks its own runtime, and the writes that it has begun there. The session of
/// the same process runs on another thread.
#[test]
fn a_blocked_runtime_holds_up_nobody_else() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("db").display());
    let (blocked, session) = (runtime(), runtime());
    let store = blocked.block_on(tenure_store::open(&url)).unwrap();
    let begun = store.clone();
    blocked.block_on(async {
        for number in 0..20 {
            let store = begun.clone();
            tokio::spawn(async move {
                let key = key(&number.to_string());
                store.put(&key, "1".into(), &Expect::Absent).await
            });
        }
        tokio::task::yield_now().await;
    });
    // From here on no task of that runtime makes progress.
    session.block_on(async {
        let key = key("session");
        let put = urgent(store.put(&key, "1".into(), &Expect::Absent));
        let put = tokio::time::timeout(Duration::from_secs(30), put);
        put.await.expect("it waits for the blocked one").unwrap();
    });
}
