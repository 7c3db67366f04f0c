use std::path::Path;
use std::process::Command;

use tenure_store::{Error, Expect, Key};

use crate::sql;

fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    sql::keeps_the_contract(&url(&folder.path().join("store.db"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_increments_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    sql::thousand_increments_are_exact(&url(&folder.path().join("store.db"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_open_an_empty_database_at_once() {
    for _ in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        sql::open_at_once(&url(&folder.path().join("store.db"))).await;
    }
}

/// Where the processes of `increments_of_four_processes_are_exact` find the counter.
const SHARED: &str = "TENURE_TEST_SQLITE_SHARED";
const SHARE: usize = 100;

fn counter() -> Key {
    Key::new("it/shared/counter").unwrap()
}

/// Also what each of the four processes runs.
#[tokio::test(flavor = "multi_thread")]
async fn increments_of_one_process_are_exact() {
    let shared = std::env::var(SHARED).ok();
    let folder = tempfile::tempdir().unwrap();
    let own = url(&folder.path().join("store.db"));
    let store = tenure_store::open(shared.as_ref().unwrap_or(&own))
        .await
        .unwrap();
    match store.put(&counter(), "0".into(), &Expect::Absent).await {
        Ok(_) | Err(Error::Conflict { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
    sql::add(&*store, &counter(), SHARE).await;
    if shared.is_none() {
        assert_eq!(sql::count(&*store, &counter()).await.0, SHARE as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn increments_of_four_processes_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    let url = url(&folder.path().join("store.db"));
    let process = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite::increments_of_one_process_are_exact"])
            .env(SHARED, &url)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..4).map(|_| process()).collect();
    for mut process in processes {
        let status = tokio::task::spawn_blocking(move || process.wait());
        assert!(status.await.unwrap().unwrap().success());
    }
    let store = tenure_store::open(&url).await.unwrap();
    assert_eq!(sql::count(&*store, &counter()).await.0, 4 * SHARE as u64);
}

#[tokio::test]
async fn objects_survive_and_are_seen_by_another_store() {
    let folder = tempfile::tempdir().unwrap();
    let url = url(&folder.path().join("store.db"));
    let key = sql::fresh_key();
    let first = tenure_store::open(&url).await.unwrap();
    let version = first
        .put(&key, "kept".into(), &Expect::Absent)
        .await
        .unwrap();
    drop(first);
    let second = tenure_store::open(&url).await.unwrap();
    let object = second.get(&key).await.unwrap().unwrap();
    assert_eq!((&*object.value, object.version), (&b"kept"[..], version));
}

#[tokio::test]
async fn a_folder_that_is_missing_or_not_writable_is_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("store.db");
    // Nobody may make files there, root neither.
    for path in [&*missing, Path::new("/proc/store.db")] {
        let error = tenure_store::open(&url(path)).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.hint().contains("create the folder"), "{error:?}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_damaged_database_is_corrupt_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    std::fs::write(
        &path,
        "no database, but long enough to look at\n".repeat(100),
    )
    .unwrap();
    let error = tenure_store::open(&url(&path)).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
}

#[tokio::test]
async fn names_that_sqlite_takes_for_more_are_files() {
    let folder = tempfile::tempdir().unwrap();
    for name in [":memory:", "file:x?mode=memory"] {
        let path = folder.path().join(name);
        tenure_store::open(&url(&path)).await.unwrap();
        assert!(path.is_file(), "{name}");
    }
}

/// Another process that holds the write lock for longer than a writer waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_waits_in_vain_has_written_nothing() {
    use sqlx::{Connection, Executor};
    let folder = tempfile::tempdir().unwrap();
    let url = url(&folder.path().join("store.db"));
    let store = tenure_store::open(&url).await.unwrap();
    let key = sql::fresh_key();
    let mut other = sqlx::SqliteConnection::connect(&url).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let put = store.put(&key, "late".into(), &Expect::Absent).await;
    assert!(matches!(put, Err(Error::Unavailable { .. })), "{put:?}");
    other.execute("ROLLBACK").await.unwrap();
    assert_eq!(store.get(&key).await.unwrap(), None);
    store
        .put(&key, "now".into(), &Expect::Absent)
        .await
        .unwrap();
}
