mod groups;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure_store::{Error, Expect, Key, Prefix};

use crate::sql;

fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    sql::keeps_the_contract(&url(&folder.path().join("store.db"))).await;
}

/// People look with the SQLite of their system, which may be years old. A view of an earlier version that needs a newer
/// SQLite is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn views_are_in_words_that_older_versions_know() {
    use sqlx::ConnectOptions;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    drop(tenure_store::open(&url(&path)).await.unwrap());
    let of_late = "DROP VIEW tenure_nodes; \
         CREATE VIEW tenure_nodes AS SELECT key FROM tenure_objects WHERE modified_at < unixepoch('subsec') * 1000";
    execute(&path, of_late).await;
    drop(tenure_store::open(&url(&path)).await.unwrap());

    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut connection = options.connect().await.unwrap();
    let views = sqlx::query_scalar("SELECT sql FROM sqlite_master WHERE type = 'view'");
    let views: Vec<String> = views.fetch_all(&mut connection).await.unwrap();
    assert_eq!(views.len(), 3, "{views:#?}");
    for view in views {
        for new in ["subsec", "timediff", "octet_length", "jsonb", "string_agg"] {
            assert!(!view.contains(new), "{new}: {view}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = tenure_store::open(&url(&path)).await.unwrap();
    let key = counter();
    let written = store.put(&key, "0".into(), &Expect::Absent);
    written.await.unwrap();
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file:?}: {mode:o}");
    }
    drop(store);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let error = tenure_store::open(&url(&path)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
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

async fn execute(path: &Path, statement: &'static str) {
    use sqlx::ConnectOptions;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut connection = options.create_if_missing(true).connect().await.unwrap();
    let done = sqlx::raw_sql(statement).execute(&mut connection).await;
    done.unwrap();
}

/// A writer whose wall clock is 20 s behind, as seen by one whose clock is right.
#[tokio::test]
async fn a_wall_clock_makes_nothing_look_older() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = tenure_store::open(&url(&path)).await.unwrap();
    execute(
        &path,
        "CREATE TRIGGER behind AFTER INSERT ON tenure_objects BEGIN \
         UPDATE tenure_objects SET modified_at = modified_at - 20000 WHERE key = new.key; END",
    )
    .await;
    let started = Instant::now();
    let key = counter();
    store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    // Also for a store that was opened since.
    for store in [store, tenure_store::open(&url(&path)).await.unwrap()] {
        let object = store.get(&key).await.unwrap().unwrap();
        assert!(object.age.unwrap() <= started.elapsed(), "{object:?}");
        assert!(object.shown_age.unwrap() >= Duration::from_secs(19));
    }
}

#[tokio::test]
async fn what_another_host_or_an_older_version_wrote_has_no_age() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    execute(
        &path,
        "CREATE TABLE tenure_objects (key TEXT COLLATE BINARY NOT NULL PRIMARY KEY, \
         version INTEGER NOT NULL, modified_at INTEGER NOT NULL, value BLOB NOT NULL) STRICT; \
         INSERT INTO tenure_objects VALUES ('it/shared/counter', 7, 0, x'30')",
    )
    .await;
    let key = counter();
    let store = tenure_store::open(&url(&path)).await.unwrap();
    let age = async || store.get(&key).await.unwrap().unwrap().age;
    assert_eq!(age().await, None);
    let present = store.get(&key).await.unwrap().unwrap().version;
    let expect = Expect::Version(present);
    store.put(&key, "1".into(), &expect).await.unwrap();
    assert!(age().await.is_some());
    execute(
        &path,
        "UPDATE tenure_objects SET written = version || ' 0abc 7'",
    )
    .await;
    assert_eq!(age().await, None, "another host");
    let present = store.get(&key).await.unwrap().unwrap().version;
    let expect = Expect::Version(present);
    store.put(&key, "2".into(), &expect).await.unwrap();
    assert!(age().await.is_some());
    // As an older version does: it does not write the column.
    execute(
        &path,
        "UPDATE tenure_objects SET version = 8, value = x'33'",
    )
    .await;
    assert_eq!(age().await, None, "an older version of this program");
}

/// Where the processes of `increments_of_four_processes_are_exact` find the counter.
const SHARED: &str = "TENURE_TEST_SQLITE_SHARED";
const SHARE: usize = 100;

fn counter() -> Key {
    Key::new("it/shared/counter").unwrap()
}

/// Each of the four processes runs this too.
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
    // Nobody can create files there, not even root.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_replaced_or_deleted_is_another_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = tenure_store::open(&url(&path)).await.unwrap();
    let key = counter();
    let version = store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    let backup = folder.path().join("backup.db");
    let other = tenure_store::open(&url(&backup)).await.unwrap();
    other.put(&key, "9".into(), &Expect::Absent).await.unwrap();
    drop(other);
    std::fs::rename(&backup, &path).unwrap();
    for _ in 0..2 {
        let expect = Expect::Version(version.clone());
        let errors = [
            store.put(&key, "1".into(), &expect).await.unwrap_err(),
            store.get(&key).await.unwrap_err(),
            store.get_if_changed(&key, &version).await.unwrap_err(),
            store.delete(&key).await.unwrap_err(),
            store.list(&Prefix::root(), None).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Gone { .. }), "{error:?}");
        }
        let _ = std::fs::remove_file(&path);
    }
    assert!(!path.exists(), "the file was made again");
}

#[tokio::test]
async fn a_log_whose_database_was_moved_away_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let store = tenure_store::open(&url(&path("db"))).await.unwrap();
    let key = counter();
    store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
    let log = std::fs::read(path("db-wal")).unwrap();
    assert!(!log.is_empty());
    std::fs::rename(path("db"), path("away")).unwrap();
    for is_empty in [false, true] {
        if is_empty {
            std::fs::write(path("db"), "").unwrap();
        }
        let error = tenure_store::open(&url(&path("db"))).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_eq!(path("db").exists(), is_empty);
        assert_eq!(std::fs::read(path("db-wal")).unwrap(), log);
    }
    std::fs::rename(path("away"), path("db")).unwrap();
    let back = tenure_store::open(&url(&path("db"))).await.unwrap();
    assert_eq!(back.get(&key).await.unwrap().unwrap().value, "1");
}

/// A backup is written over the file while it is in use. The state in memory still refers to the log that was there.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_overwritten_in_place_is_told_as_that() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = tenure_store::open(&url(&path)).await.unwrap();
    let put = store.put(&counter(), "0".into(), &Expect::Absent).await;
    put.unwrap();
    let log = format!("{}-wal", path.display());
    std::fs::OpenOptions::new()
        .write(true)
        .open(log)
        .unwrap()
        .set_len(0)
        .unwrap();
    for error in [
        store.get(&counter()).await.unwrap_err(),
        tenure_store::open(&url(&path)).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.hint().contains("overwritten"), "{error:?}");
    }
}

/// As when somebody restores a backup in place.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_log_is_deleted_is_another_store() {
    for suffix in ["-wal", "-shm"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let store = tenure_store::open(&url(&path)).await.unwrap();
        let key = counter();
        let version = store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
        // Other connections that come and go, and a checkpoint, do not change it.
        let other = tenure_store::open(&url(&path)).await.unwrap();
        assert!(other.get(&key).await.unwrap().is_some());
        drop(other);
        execute(&path, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        assert!(store.get(&key).await.unwrap().is_some());
        std::fs::remove_file(format!("{}{suffix}", path.display())).unwrap();
        let expect = Expect::Version(version);
        let error = store.put(&key, "1".into(), &expect).await.unwrap_err();
        assert!(matches!(error, Error::Gone { .. }), "{error:?}");
        let error = store.get(&key).await.unwrap_err();
        assert!(matches!(error, Error::Gone { .. }), "{error:?}");
    }
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, Error>, why: &str) {
    match result {
        Err(Error::Refused { source, hint, .. }) => {
            assert!(source.to_string().contains(why), "{source} {hint}");
        }
        other => panic!("{other:?}"),
    }
}

/// Under each name SQLite would keep a separate log, and there would be two leaders.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_two_names_is_refused_until_it_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("a.db"), folder.path().join("b.db"));
    let store = tenure_store::open(&url(&path)).await.unwrap();
    let key = counter();
    let version = store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    std::fs::hard_link(&path, &link).unwrap();
    for path in [&path, &link] {
        is_refused(tenure_store::open(&url(path)).await, "2 names");
        is_refused(tenure_store::open_existing(&url(path)).await, "2 names");
    }
    assert!(!folder.path().join("b.db-wal").exists());
    let expect = Expect::Version(version);
    is_refused(store.put(&key, "1".into(), &expect).await, "2 names");
    is_refused(store.get(&key).await, "2 names");
    is_refused(store.list(&Prefix::root(), None).await, "2 names");
    assert!(!store.is_replaced(), "this process can go on later");
    std::fs::remove_file(&link).unwrap();
    store.put(&key, "1".into(), &expect).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_mounted_by_itself_is_refused_and_its_folder_is_not() {
    use std::process::Command;
    if !rustix::process::geteuid().is_root() {
        tenure_testkit::skip::for_want_of("root, to mount a file");
        return;
    }
    let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new(program);
        command.args(arguments).status().unwrap().success()
    };
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a.db"), folder.path().join("b.db"));
    let store = tenure_store::open(&url(&path)).await.unwrap();
    let key = counter();
    store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    std::fs::write(&other, "").unwrap();
    let bind = |from: &Path, to: &Path| {
        let bind = std::ffi::OsStr::new("--bind");
        run("mount", &[bind, from.as_os_str(), to.as_os_str()])
    };
    if !bind(&path, &other) {
        tenure_testkit::skip::for_want_of("a place where something can be mounted");
        return;
    }
    let opened = tenure_store::open(&url(&other)).await;
    // Connections are closed by their own threads, some time after their store was dropped.
    let lazy = std::ffi::OsStr::new("--lazy");
    assert!(run("umount", &[lazy, other.as_os_str()]));
    is_refused(opened, "mounted by itself");
    assert!(!folder.path().join("b.db-wal").exists());
    // Under its own name nothing has changed, and neither has it under another name of its folder.
    let elsewhere = tempfile::tempdir().unwrap();
    assert!(bind(folder.path(), elsewhere.path()));
    let seen = async {
        let there = elsewhere.path().join("a.db");
        let there = tenure_store::open(&url(&there)).await?;
        store.get(&key).await?;
        there.get(&key).await
    };
    let seen = seen.await;
    assert!(run("umount", &[lazy, elsewhere.path().as_os_str()]));
    assert!(seen.unwrap().is_some());
}

/// The log is beside the file that a link leads to.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_behind_a_link_is_watched_with_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("a.db"), folder.path().join("b.db"));
    drop(tenure_store::open(&url(&path)).await.unwrap());
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let store = tenure_store::open(&url(&link)).await.unwrap();
    let key = counter();
    store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    std::fs::remove_file(folder.path().join("a.db-wal")).unwrap();
    let error = store.get(&key).await.unwrap_err();
    assert!(matches!(error, Error::Gone { .. }), "{error:?}");
}

#[tokio::test]
async fn who_only_looks_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typo.db");
    let error = tenure_store::open_existing(&url(&path)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(!path.exists());
    // A database of another program is not a store, and does not become one.
    execute(&path, "CREATE TABLE theirs (a)").await;
    let error = tenure_store::open_existing(&url(&path)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    execute(&path, "DROP TABLE theirs").await;
    // One that an older version made can be read as it is.
    execute(
        &path,
        "CREATE TABLE tenure_objects (key TEXT COLLATE BINARY NOT NULL PRIMARY KEY, \
         version INTEGER NOT NULL, modified_at INTEGER NOT NULL, value BLOB NOT NULL) STRICT; \
         INSERT INTO tenure_objects VALUES ('it/shared/counter', 7, 0, x'30')",
    )
    .await;
    let store = tenure_store::open_existing(&url(&path)).await.unwrap();
    let object = store.get(&counter()).await.unwrap().unwrap();
    assert_eq!((&object.value[..], object.age), (&b"0"[..], None));
    let changed = store.get_if_changed(&counter(), &object.version).await;
    assert_eq!(changed.unwrap(), tenure_store::Change::Unchanged);
    // A read-only open has created nothing. (Dividing by the result would not work: for SQLite that is null, not an
    // error.)
    let others = "CREATE TEMP TABLE found (others INTEGER CHECK (others = 1)); \
                  INSERT INTO found SELECT count(*) FROM sqlite_schema WHERE type IN ('table', 'view')";
    execute(&path, others).await;
}
