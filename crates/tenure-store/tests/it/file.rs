// Clippy treats only the test functions themselves as tests. Output says why a test was skipped, or
// is for another process to read.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeSet;
use std::error::Error as _;
use std::fs;
use std::io::ErrorKind::NotFound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use tenure_store::conformance::{Options, Suite};
use tenure_store::engine::file::File;
use tenure_store::{Change, Error, Expect, Hint, IfMissing, Key, Prefix, Store, Watch, list_all};
use tokio::task::JoinSet;
use tokio::time::timeout;

mod disk;
mod privacy;
mod processes;

async fn open(folder: &Path) -> File {
    File::open(folder).await.unwrap()
}

async fn fresh() -> (TempDir, File) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    (folder, store)
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// The temporary files of every open store, and of those that were killed.
fn temporary_files(root: &Path) -> usize {
    fs::read_dir(root.join(".tenure/tmp"))
        .unwrap()
        .map(|folder| fs::read_dir(folder.unwrap().path()).unwrap().count())
        .sum()
}

#[tokio::test]
async fn keeps_the_contract() {
    let (folder, store) = fresh().await;
    Suite::new(Arc::new(store), Options::default())
        .run(|_| {})
        .await
        .assert_passed();
    assert_eq!(temporary_files(folder.path()), 0);
}

#[tokio::test]
async fn is_chosen_by_url_and_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("a/b");
    let path = path.to_str().unwrap();
    for url in [
        path.to_owned(),
        format!("file:{path}"),
        format!("file://{path}"),
    ] {
        let description = tenure_store::open(&url).await.unwrap().describe();
        assert_eq!(description.engine, "file");
        assert_eq!(description.location, format!("file:{path}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_increments_from_sixteen_tasks_are_exact() {
    let (_folder, store) = fresh().await;
    let (store, left) = (Arc::new(store), Arc::new(AtomicUsize::new(1000)));
    let key = key("counter");
    store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (store, left, key) = (store.clone(), left.clone(), key.clone());
        tasks.spawn(async move {
            let take = |left: usize| left.checked_sub(1);
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
            {
                while !increment(&*store, &key).await {}
            }
        });
    }
    tasks.join_all().await;
    let object = store.get(&key).await.unwrap().unwrap();
    assert_eq!(object.value, "1000");
}

/// One attempt; returns whether it succeeded.
async fn increment(store: &dyn Store, key: &Key) -> bool {
    let object = store.get(key).await.unwrap().unwrap();
    let count: u64 = std::str::from_utf8(&object.value).unwrap().parse().unwrap();
    let value = (count + 1).to_string().into();
    match store
        .put(key, value, &Expect::Version(object.version))
        .await
    {
        Ok(_) => true,
        Err(Error::Conflict { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn create_replace_and_delete_race_without_a_lost_object() {
    let (folder, store) = fresh().await;
    let store = Arc::new(store);
    let key = key("contended");
    // Every successful writer knows the version that it made. A version can be replaced only once,
    // so no two writers may succeed on the same version.
    let mut tasks = JoinSet::new();
    for writer in 0..8 {
        let (store, key) = (store.clone(), key.clone());
        tasks.spawn(async move {
            let mut replaced = Vec::new();
            for round in 0..100 {
                let value = format!("{writer} {round}");
                let Some(object) = store.get(&key).await.unwrap() else {
                    let created = store.put(&key, value.into(), &Expect::Absent).await;
                    assert!(matches!(created, Ok(_) | Err(Error::Conflict { .. })));
                    continue;
                };
                if writer == 0 {
                    store.delete(&key).await.unwrap();
                    continue;
                }
                let tag = object.version.tag().to_owned();
                let expect = Expect::Version(object.version);
                match store.put(&key, value.into(), &expect).await {
                    Ok(_) => replaced.push(tag),
                    Err(Error::Conflict { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            replaced
        });
    }
    let replaced: Vec<String> = tasks.join_all().await.concat();
    let distinct: BTreeSet<&String> = replaced.iter().collect();
    assert!(!replaced.is_empty(), "nothing was ever replaced");
    assert_eq!(replaced.len(), distinct.len(), "one version, two winners");
    assert_eq!(temporary_files(folder.path()), 0);
}

#[tokio::test]
async fn a_folder_that_is_emptied_goes_and_those_near_the_root_stay() {
    let (folder, store) = fresh().await;
    let (one, two) = (key("space/nodes/a/1"), key("space/nodes/a/2"));
    for key in [&one, &two] {
        store.put(key, "1".into(), &Expect::Absent).await.unwrap();
    }
    store.delete(&one).await.unwrap();
    assert!(folder.path().join("space/nodes/a").exists());
    store.delete(&two).await.unwrap();
    assert!(!folder.path().join("space/nodes/a").exists());
    assert!(folder.path().join("space/nodes").exists());
    // Nothing is left to be deleted, and that is not an error.
    store.delete(&two).await.unwrap();
    store.put(&two, "2".into(), &Expect::Absent).await.unwrap();
    assert_eq!(&*store.get(&two).await.unwrap().unwrap().value, b"2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_folder_that_comes_and_goes_loses_no_object() {
    let (_folder, store) = fresh().await;
    let store = Arc::new(store);
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let store = store.clone();
        tasks.spawn(async move {
            // Half of them in a folder below that folder.
            let folder = ["space/nodes/a", "space/nodes/a/b"][task % 2];
            let key = key(&format!("{folder}/{task}"));
            for round in 0..50 {
                // The folder may go as often as others delete; then nothing was written.
                loop {
                    match store.put(&key, "1".into(), &Expect::Absent).await {
                        Ok(_) => break,
                        Err(Error::Unavailable { .. }) => {}
                        Err(error) => panic!("{task} in round {round}: {error:?}"),
                    }
                }
                assert!(store.get(&key).await.unwrap().is_some());
                store.delete(&key).await.unwrap();
                assert!(store.get(&key).await.unwrap().is_none());
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_misses_nothing_that_is_being_replaced() {
    // On a file system in memory if possible: there, names move when files are replaced.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.unwrap();
    let store = Arc::new(open(folder.path()).await);
    let prefix = Prefix::new("renewed").unwrap();
    let mut tasks = JoinSet::new();
    for writer in 0..4 {
        let store = store.clone();
        let keys: Vec<Key> = (writer..1500)
            .step_by(4)
            .map(|index| prefix.key(index.to_string()).unwrap())
            .collect();
        for key in &keys {
            store.put(key, "".into(), &Expect::Absent).await.unwrap();
        }
        tasks.spawn(async move {
            for key in keys.iter().cycle() {
                let version = store.get(key).await.unwrap().unwrap().version;
                let expect = Expect::Version(version);
                store.put(key, "again".into(), &expect).await.unwrap();
            }
        });
    }
    for _ in 0..50 {
        let listed = list_all(&*store, &prefix).await.unwrap();
        assert_eq!(listed.len(), 1500);
    }
    tasks.shutdown().await;
}

#[tokio::test]
async fn a_file_put_there_by_hand_is_an_object() {
    let (folder, store) = fresh().await;
    let (path, key) = (folder.path().join("by/hand"), key("by/hand"));
    fs::create_dir(folder.path().join("by")).unwrap();
    let mut seen = Vec::new();
    // The content comes back, but it is another version.
    for content in ["x", "y", "x", ""] {
        fs::write(&path, content).unwrap();
        let object = store.get(&key).await.unwrap().unwrap();
        assert_eq!(object.value, content);
        assert!(!seen.contains(&object.version), "{:?}", object.version);
        let again = store.get_if_changed(&key, &object.version);
        assert_eq!(again.await.unwrap(), Change::Unchanged);
        let listed = list_all(&store, &Prefix::root()).await.unwrap();
        assert_eq!(listed[0].version, object.version);
        seen.push(object.version);
    }
    let changed = store.get_if_changed(&key, &seen[0]).await;
    assert!(matches!(changed, Ok(Change::Changed(object)) if object.value.is_empty()));

    let stale = Expect::Version(seen[2].clone());
    let late = store.put(&key, "late".into(), &stale).await;
    assert!(matches!(late, Err(Error::Conflict { .. })));
    let expect = Expect::Version(seen[3].clone());
    store.put(&key, "{}".into(), &expect).await.unwrap();
    // An editor shows the value and white space.
    assert_eq!(fs::read_to_string(path).unwrap().trim_end(), "{}");
}

#[tokio::test]
async fn what_is_no_object_is_left_alone() {
    let (folder, store) = fresh().await;
    let root = folder.path();
    fs::write(root.join("real"), "real").unwrap();
    std::os::unix::fs::symlink("real", root.join("link")).unwrap();
    fs::create_dir(root.join("folder")).unwrap();
    fs::File::create(root.join("huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let status = std::process::Command::new("mkfifo")
        .arg(root.join("pipe"))
        .status();
    assert!(status.unwrap().success());

    for name in ["link", "folder", "pipe"] {
        assert_eq!(store.get(&key(name)).await.unwrap(), None, "{name}");
        let error = store.put(&key(name), "".into(), &Expect::Absent).await;
        assert!(matches!(error, Err(Error::Refused { .. })), "{error:?}");
    }
    let huge = store.get(&key("huge")).await;
    assert!(matches!(huge, Err(Error::Corrupt { .. })), "{huge:?}");
    let listed = list_all(&store, &Prefix::root()).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].key, key("real"));
}

#[tokio::test]
async fn a_name_cannot_be_both_object_and_folder() {
    let (_folder, store) = fresh().await;
    let version = store
        .put(&key("a/b"), "value".into(), &Expect::Absent)
        .await
        .unwrap();
    for name in ["a", "a/b/c", "a/b/c/d"] {
        let name = key(name);
        assert_eq!(store.get(&name).await.unwrap(), None);
        store.delete(&name).await.unwrap();
        let error = store.put(&name, "".into(), &Expect::Absent).await;
        let error = error.expect_err("both object and folder");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.hint().contains("both an object and a folder"));
        let expect = Expect::Version(version.clone());
        let error = store.put(&name, "".into(), &expect).await;
        assert!(matches!(error, Err(Error::Conflict { .. })), "{error:?}");
    }
    let object = store.get(&key("a/b")).await.unwrap().unwrap();
    assert_eq!((object.value, object.version), ("value".into(), version));
}

#[tokio::test]
async fn a_store_inside_a_store_is_refused() {
    let (folder, _store) = fresh().await;
    let inner = folder.path().join("some/where");
    let error = File::open(&inner)
        .await
        .expect_err("two locks for one file");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.hint().contains("outer folder"), "{}", error.hint());
}

/// As if a folder above it may not be entered, which cannot be set up in a test that runs as root.
#[tokio::test]
async fn a_store_that_cannot_be_looked_at_is_not_called_none() {
    let folder = tempfile::tempdir().unwrap();
    let circle = folder.path().join("circle");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    let error = File::open_existing(&circle).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("symbolic links"), "{cause}");
}

/// Otherwise the store inside could no longer be opened.
#[tokio::test]
async fn a_store_around_a_store_is_refused_and_is_none() {
    let outer = tempfile::tempdir().unwrap();
    for name in ["x", "some/where", "a/b/c", "a/b/c/d/e/f"] {
        let inner = outer.path().join(name);
        let store = File::open(&inner).await.unwrap();
        let error = File::open(outer.path()).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("there is a store inside it"), "{cause}");
        let error = File::open_existing(outer.path()).await.unwrap_err();
        let cause = error.source().unwrap().to_string();
        assert_eq!(cause, "there is no such store");
        assert!(error.hint().contains(name), "{}", error.hint());
        // Nothing was created around it, so it can be opened as before.
        drop(store);
        File::open_existing(&inner).await.unwrap();
        fs::remove_dir_all(outer.path().join(name)).unwrap();
    }
    File::open(outer.path()).await.unwrap();
}

/// As `cp -r store/* copy/` leaves it.
#[tokio::test]
async fn a_copy_without_its_hidden_folder_is_told_from_nothing_at_all() {
    let (folder, store) = fresh().await;
    let key = Key::new("a/b").unwrap();
    let put = store.put(&key, "1".into(), &Expect::Absent);
    put.await.unwrap();
    drop(store);
    fs::remove_dir_all(folder.path().join(".tenure")).unwrap();
    let error = File::open_existing(folder.path()).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("is no store: it has no .tenure"), "{cause}");
    assert!(error.hint().contains("copy of a store"), "{}", error.hint());
    // Nothing was created, and the objects are there once the rest is created.
    assert!(!folder.path().join(".tenure").exists());
    let store = File::open(folder.path()).await.unwrap();
    assert!(store.get(&key).await.unwrap().is_some());
    fs::remove_dir_all(folder.path().join(".tenure")).unwrap();
    fs::remove_dir_all(folder.path().join("a")).unwrap();
    let error = File::open_existing(folder.path()).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert_eq!(cause, "there is no such store");
}

/// The search downwards is bounded. The search upwards is not, and finds what the other has missed.
#[tokio::test]
async fn a_store_behind_too_many_names_is_refused_when_it_is_opened_next() {
    let outer = tempfile::tempdir().unwrap();
    for number in 0..10_000 {
        fs::write(outer.path().join(number.to_string()), "").unwrap();
    }
    let inner = outer.path().join("a/b/c");
    drop(File::open(&inner).await.unwrap());
    drop(File::open(outer.path()).await.unwrap());
    let error = File::open(&inner).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("it is inside the store in"), "{cause}");
}

#[tokio::test]
async fn a_store_that_is_gone_is_not_made_anew() {
    let (folder, store) = fresh().await;
    fs::remove_dir_all(folder.path()).unwrap();
    let error = store.put(&key("a/b"), "".into(), &Expect::Absent).await;
    let error = error.expect_err("a new history in an empty place");
    assert!(matches!(error, Error::Gone { .. }), "{error:?}");
    assert!(!folder.path().exists());
}

#[tokio::test]
async fn an_old_time_of_a_file_makes_nothing_look_older() {
    let (folder, store) = fresh().await;
    let started = Instant::now();
    store
        .put(&key("lease"), "".into(), &Expect::Absent)
        .await
        .unwrap();
    // As if restored from a backup.
    let file = fs::File::options()
        .write(true)
        .open(folder.path().join("lease"))
        .unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    let age = store.get(&key("lease")).await.unwrap().unwrap().age;
    assert!(age.unwrap() <= started.elapsed(), "{age:?}");
}

#[tokio::test]
async fn a_copy_that_is_put_back_does_not_look_as_old_as_it_once_was() {
    let (folder, store) = fresh().await;
    let lease = key("lease");
    store.put(&lease, "".into(), &Expect::Absent).await.unwrap();
    let path = folder.path().join("lease");
    let copy = fs::read(&path).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let age = store.get(&lease).await.unwrap().unwrap().age.unwrap();
    assert!(age > Duration::from_millis(400), "{age:?}");
    let restored = Instant::now();
    fs::write(folder.path().join("copy"), copy).unwrap();
    fs::rename(folder.path().join("copy"), &path).unwrap();
    let age = store.get(&lease).await.unwrap().unwrap().age.unwrap();
    // The times of files move once per tick.
    let most = restored.elapsed() + Duration::from_millis(20);
    assert!(age <= most, "{age:?}");
}

#[tokio::test]
async fn what_another_host_wrote_has_no_age() {
    let (folder, store) = fresh().await;
    let lease = key("lease");
    let version = store
        .put(&lease, "x".into(), &Expect::Absent)
        .await
        .unwrap();
    assert!(store.get(&lease).await.unwrap().unwrap().age.is_some());
    // The last blank of the host's id, before 64 of the wall clock.
    let path = folder.path().join("lease");
    let mut stored = fs::read(&path).unwrap();
    let at = stored.len() - 65;
    stored[at] = if stored[at] == b' ' { b'\t' } else { b' ' };
    fs::write(&path, stored).unwrap();
    let object = store.get(&lease).await.unwrap().unwrap();
    assert_eq!((&object.value[..], object.age), (&b"x"[..], None));
    assert!(object.shown_age.is_some());
    assert_eq!(object.version, version);
}

/// Older versions wrote such stamps, and may still write them beside this version.
#[tokio::test]
async fn an_object_with_a_stamp_of_old_is_read_and_has_no_age() {
    let (folder, store) = fresh().await;
    let stamp = [&b"{}\n"[..], &[b' '; 63], b"\t"].concat();
    fs::write(folder.path().join("old"), stamp).unwrap();
    let object = store.get(&key("old")).await.unwrap().unwrap();
    assert_eq!((&object.value[..], object.age), (&b"{}"[..], None));
    let expect = Expect::Version(object.version);
    store.put(&key("old"), "{}".into(), &expect).await.unwrap();
    let object = store.get(&key("old")).await.unwrap().unwrap();
    assert!(object.age.is_some());
}

#[tokio::test]
async fn a_lock_that_is_never_released_keeps_nobody_for_ever() {
    let (folder, store) = fresh().await;
    let a = key("a");
    let version = store.put(&a, "old".into(), &Expect::Absent).await.unwrap();
    let locks: Vec<fs::File> = (0..64)
        .map(|number| {
            let path = folder.path().join(format!(".tenure/lock/{number:02x}"));
            let file = fs::File::create(path).unwrap();
            flock(&file, FlockOperation::LockExclusive).unwrap();
            file
        })
        .collect();

    let expect = Expect::Version(version.clone());
    // To delete between a compare and its rename would let the rename bring the object back.
    let answers = async { tokio::join!(store.put(&a, "new".into(), &expect), store.delete(&a)) };
    let (put, delete) = timeout(Duration::from_secs(30), answers).await.unwrap();
    assert!(matches!(put, Err(Error::Unavailable { .. })), "{put:?}");
    assert!(
        matches!(delete, Err(Error::Unavailable { .. })),
        "{delete:?}"
    );
    let object = store.get(&a).await.unwrap().unwrap();
    assert_eq!((object.value, &object.version), ("old".into(), &version));
    store
        .put(&key("b"), "".into(), &Expect::Absent)
        .await
        .expect("a create needs no lock");
    assert_eq!(temporary_files(folder.path()), 0);

    drop(locks);
    store.put(&a, "new".into(), &expect).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_openers_leave_each_other_alone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("made/by/the/first");
    let mut tasks = JoinSet::new();
    for opener in 0..16 {
        let root = root.clone();
        tasks.spawn(async move {
            for round in 0..10 {
                let store = open(&root).await;
                let key = key(&format!("made/{opener}/{round}"));
                let put = store.put(&key, "value".into(), &Expect::Absent).await;
                put.expect("another opener took the temporary file away");
            }
        });
    }
    tasks.join_all().await;
    let store = open(&root).await;
    let listed = list_all(&store, &Prefix::root()).await.unwrap();
    assert_eq!(listed.len(), 160);
    assert_eq!(fs::read_dir(root.join(".tenure/tmp")).unwrap().count(), 1);
}

/// The next hint, within the second that the contract gives it.
async fn hinted(watch: &mut Watch) -> Hint {
    timeout(Duration::from_secs(1), watch.next())
        .await
        .expect("no hint within a second")
        .expect("the watch ended")
}

#[tokio::test]
async fn hints_reach_into_folders_that_did_not_exist() {
    let (_folder, store) = fresh().await;
    let prefix = Prefix::new("not/yet").unwrap();
    let mut watch = store.watch(&prefix).unwrap();
    assert_eq!(hinted(&mut watch).await, Hint::Anything, "in place");
    for index in 0..50 {
        // The new folders may be filled before they can be watched.
        let key = prefix.key(format!("{index}/new/folders")).unwrap();
        store.put(&key, "".into(), &Expect::Absent).await.unwrap();
        while hinted(&mut watch).await != Hint::Changed(key.clone()) {}
    }
}

#[tokio::test]
async fn each_change_gives_one_hint_and_temporary_files_give_none() {
    let (_folder, store) = fresh().await;
    let mut watch = store.watch(&Prefix::root()).unwrap();
    assert_eq!(hinted(&mut watch).await, Hint::Anything, "in place");
    let (a, b) = (key("a"), key("b"));
    let version = store.put(&a, "1".into(), &Expect::Absent).await.unwrap();
    let expect = Expect::Version(version);
    store.put(&a, "2".into(), &expect).await.unwrap();
    store.put(&a, "late".into(), &expect).await.unwrap_err();
    store.delete(&a).await.unwrap();
    store.put(&b, "1".into(), &Expect::Absent).await.unwrap();
    for changed in [&a, &a, &a, &b] {
        assert_eq!(hinted(&mut watch).await, Hint::Changed(changed.clone()));
    }
}

#[tokio::test]
async fn files_are_appended_to_beside_objects_and_not_through_what_changes_requests() {
    let (folder, store) = fresh().await;
    let root = folder.path().canonicalize().unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let (object, prefix) = (key("a/origin"), Prefix::new("a/files").unwrap());
    let files = store.append_folder(&prefix).unwrap();
    assert_eq!(files.names().await.unwrap_err().kind(), NotFound);
    assert_eq!(
        files.holds(&object, b"value").await.unwrap_err().kind(),
        NotFound
    );
    let put = store.put(&object, "value".into(), &Expect::Absent);
    let version = put.await.unwrap();
    assert!(files.holds(&object, b"value").await.unwrap());
    let expect = Expect::Version(version);
    store.put(&object, "other".into(), &expect).await.unwrap();
    assert!(!files.holds(&object, b"value").await.unwrap());

    files.make().await.unwrap();
    files.make().await.unwrap();
    let file = files.create("1").await.unwrap();
    file.write_all_at(b"first ", 0).await.unwrap();
    file.write_all_at(b"second", 6).await.unwrap();
    file.sync_data().await.unwrap();
    files.sync().await.unwrap();
    assert_eq!(files.names().await.unwrap(), ["1"]);
    assert_eq!(files.read("1", 5).await.unwrap(), b"first");
    assert_eq!(files.read("1", usize::MAX).await.unwrap(), b"first second");
    assert_eq!(files.location(), root.join("a/files").display().to_string());
    assert!(file.is_in_place().await.unwrap());
    files.remove("1").await.unwrap();
    assert!(!file.is_in_place().await.unwrap());
    files.create("1").await.unwrap();
    assert!(
        !file.is_in_place().await.unwrap(),
        "another file of that name"
    );

    use tenure_store::wrap::Prefixed;
    use tenure_store::wrap::metered::Metered;
    let prefixed = Prefixed::new(store.clone(), Prefix::new("p").unwrap());
    assert!(prefixed.append_folder(&prefix).is_none());
    assert!(Metered::new(store).append_folder(&prefix).is_some());
}

#[tokio::test]
async fn a_folder_that_is_replaced_or_deleted_is_another_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = open(&path).await;
    let version = store
        .put(&key("a"), "old".into(), &Expect::Absent)
        .await
        .unwrap();
    // As if restored from a backup.
    let (backup, aside) = (folder.path().join("backup"), folder.path().join("aside"));
    drop(open(&backup).await);
    fs::copy(path.join("a"), backup.join("a")).unwrap();
    fs::rename(&path, &aside).unwrap();
    fs::rename(&backup, &path).unwrap();
    for _ in 0..2 {
        let expect = Expect::Version(version.clone());
        let errors = [
            store
                .put(&key("a"), "new".into(), &expect)
                .await
                .unwrap_err(),
            store
                .put(&key("b"), "new".into(), &Expect::Absent)
                .await
                .unwrap_err(),
            store.get(&key("a")).await.unwrap_err(),
            store.get_if_changed(&key("a"), &version).await.unwrap_err(),
            store.delete(&key("a")).await.unwrap_err(),
            store.list(&Prefix::root(), None).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Gone { .. }), "{error:?}");
            assert!(error.is_not_applied());
        }
        // The same holds when it is gone.
        fs::remove_dir_all(&path).unwrap_or_default();
    }
    assert!(!path.exists(), "the folder was made again");
    fs::rename(&aside, &path).unwrap();
    assert_eq!(
        store.get(&key("a")).await.unwrap().unwrap().version,
        version
    );
}

/// A process that created it again would start everything in it from nothing.
#[tokio::test]
async fn a_prefix_that_is_pinned_must_stay() {
    let (folder, store) = fresh().await;
    let path = |name: &str| folder.path().join(name);
    store.pin(&Prefix::new("pinned").unwrap(), IfMissing::Make);
    // It makes no requests.
    let watcher = open(folder.path()).await;
    watcher.pin(&Prefix::new("pinned").unwrap(), IfMissing::Make);
    for name in ["pinned/a", "other/a"] {
        store
            .put(&key(name), "old".into(), &Expect::Absent)
            .await
            .unwrap();
    }
    // A prefix that is not pinned may go and come back.
    fs::remove_dir_all(path("other")).unwrap();
    store
        .put(&key("other/a"), "new".into(), &Expect::Absent)
        .await
        .unwrap();
    assert!(!watcher.is_replaced());
    fs::rename(path("pinned"), path("aside")).unwrap();
    for is_replaced in [false, true] {
        let pinned = key("pinned/a");
        let created = store.put(&pinned, "new".into(), &Expect::Absent).await;
        for error in [created.unwrap_err(), store.get(&pinned).await.unwrap_err()] {
            assert!(matches!(error, Error::Gone { .. }), "{error:?}");
            assert!(error.is_not_applied());
        }
        assert_eq!(store.is_replaced(), is_replaced);
        assert_eq!(watcher.is_replaced(), is_replaced);
        assert_eq!(path("pinned").exists(), is_replaced, "it was made again");
        // A process that opens the store now creates it.
        let other = open(folder.path()).await;
        other.pin(&Prefix::new("pinned").unwrap(), IfMissing::Make);
        let created = other
            .put(&key("pinned/a"), "2".into(), &Expect::Absent)
            .await;
        assert_eq!(created.is_ok(), !is_replaced);
        assert!(!other.is_replaced());
    }
    fs::remove_dir_all(path("pinned")).unwrap();
    fs::rename(path("aside"), path("pinned")).unwrap();
    let back = store.get(&key("pinned/a")).await.unwrap().unwrap();
    assert_eq!(back.value, "old");
}

#[tokio::test]
async fn a_prefix_is_pinned_before_anything_is_in_it() {
    let (folder, store) = fresh().await;
    let path = |name: &str| folder.path().join(name);
    store.pin(&Prefix::new("pinned/").unwrap(), IfMissing::Make);
    // This process has not written anything yet.
    fs::rename(path("pinned"), path("aside")).unwrap();
    fs::create_dir(path("pinned")).unwrap();
    assert!(store.is_replaced());
    let pinned = key("pinned/a");
    let created = store.put(&pinned, "1".into(), &Expect::Absent).await;
    let error = created.unwrap_err();
    assert!(matches!(error, Error::Gone { .. }), "{error:?}");
}

/// A process has two connections. The second does not create again what the first has created.
#[tokio::test]
async fn a_prefix_that_went_before_the_second_connection_is_not_made_again() {
    let (folder, first) = fresh().await;
    let path = |name: &str| folder.path().join(name);
    first.pin(&Prefix::new("pinned/").unwrap(), IfMissing::Make);
    fs::rename(path("pinned"), path("aside")).unwrap();
    let second = open(folder.path()).await;
    second.pin(&Prefix::new("pinned/").unwrap(), IfMissing::Gone);
    for store in [&first, &second] {
        let created = store
            .put(&key("pinned/a"), "1".into(), &Expect::Absent)
            .await;
        let error = created.unwrap_err();
        assert!(matches!(error, Error::Gone { .. }), "{error:?}");
    }
    assert!(!path("pinned").exists(), "it was made again");
    // It is back: a disk that was mounted again.
    fs::rename(path("aside"), path("pinned")).unwrap();
    for (store, name) in [(&first, "pinned/a"), (&second, "pinned/b")] {
        let put = store.put(&key(name), "1".into(), &Expect::Absent).await;
        put.unwrap();
    }
}

#[tokio::test]
async fn a_folder_for_temporary_files_that_is_removed_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let mut version = store
        .put(&key("a"), "0".into(), &Expect::Absent)
        .await
        .unwrap();
    for removed in [".tenure/tmp", ".tenure/lock/*", ".tenure/tmp/*"] {
        let line = format!("rm -r {}/{removed}", folder.path().display());
        let ended = std::process::Command::new("sh")
            .args(["-c", &line])
            .status();
        assert!(ended.unwrap().success(), "{line}");
        let expect = Expect::Version(version);
        version = store.put(&key("a"), "1".into(), &expect).await.unwrap();
        assert!(!store.is_replaced());
    }
}

/// A process that opens the store now creates new locks, which exclude nobody who uses the old
/// ones.
#[tokio::test]
async fn a_store_whose_locks_are_removed_is_another_store() {
    for removed in [".tenure/lock", ".tenure"] {
        let (folder, store) = fresh().await;
        let created = store.put(&key("a"), "0".into(), &Expect::Absent).await;
        let expect = Expect::Version(created.unwrap());
        fs::remove_dir_all(folder.path().join(removed)).unwrap();
        // Also after another process has created them again.
        for _ in 0..2 {
            let error = store.put(&key("a"), "1".into(), &expect).await.unwrap_err();
            assert!(matches!(error, Error::Gone { .. }), "{error:?}");
            assert!(error.is_not_applied() && store.is_replaced());
            assert!(!open(folder.path()).await.is_replaced());
        }
        let other = open(folder.path()).await;
        other.put(&key("a"), "2".into(), &expect).await.unwrap();
    }
}

#[tokio::test]
async fn a_new_file_to_append_to_leaves_alone_what_had_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store")).await;
    let appended = store.append_folder(&Prefix::new("p").unwrap()).unwrap();
    appended.make().await.unwrap();
    let path = |name: &str| folder.path().join("store/p").join(name);
    let first = appended.create("first").await.unwrap();
    first.write_all_at(b"kept", 0).await.unwrap();
    fs::hard_link(path("first"), path("hard")).unwrap();
    std::os::unix::fs::symlink("first", path("soft")).unwrap();
    for name in ["hard", "soft"] {
        let new = appended.create(name).await.unwrap();
        new.write_all_at(b"new", 0).await.unwrap();
        assert!(new.is_in_place().await.unwrap());
        assert_eq!(fs::read(path(name)).unwrap(), b"new");
        assert_eq!(fs::read(path("first")).unwrap(), b"kept");
    }
}

/// A process that opens the store by the same name now gets another store.
#[tokio::test]
async fn a_folder_behind_a_link_that_is_set_to_another_is_another_store() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| folder.path().join(name);
    let point_at = |target: &str| {
        std::os::unix::fs::symlink(target, named("new")).unwrap();
        fs::rename(named("new"), named("link")).unwrap();
    };
    fs::create_dir(named("first")).unwrap();
    fs::create_dir(named("second")).unwrap();
    point_at("first");
    // The link itself, and one above the folder.
    for path in [named("link"), named("link").join("below")] {
        let store = open(&path).await;
        store
            .put(&key("a"), "old".into(), &Expect::Absent)
            .await
            .unwrap();
        let prefix = Prefix::new("p").unwrap();
        let appended = store.append_folder(&prefix).unwrap();
        appended.make().await.unwrap();
        let file = appended.create("f").await.unwrap();
        assert!(file.is_in_place().await.unwrap());
        point_at("second");
        let error = store.get(&key("a")).await.unwrap_err();
        assert!(matches!(error, Error::Gone { .. }), "{error:?}");
        assert!(!file.is_in_place().await.unwrap());
        point_at("first");
        assert!(store.get(&key("a")).await.unwrap().is_some());
        assert!(file.is_in_place().await.unwrap());
        drop(store);
        fs::remove_dir_all(path.canonicalize().unwrap()).unwrap();
        fs::create_dir_all(named("first")).unwrap();
    }
}

#[tokio::test]
async fn who_only_looks_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typo");
    let error = File::open_existing(&path).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(!path.exists());
    // A folder of another program is not a store.
    let error = File::open_existing(folder.path()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

    let store = open(&path).await;
    store
        .put(&key("a"), "x".into(), &Expect::Absent)
        .await
        .unwrap();
    drop(store);
    let looking = File::open_existing(&path).await.unwrap();
    assert!(looking.get(&key("a")).await.unwrap().is_some());
    assert_eq!(temporary_files(&path), 0);
    assert_eq!(fs::read_dir(path.join(".tenure/tmp")).unwrap().count(), 0);
    // It can still write.
    looking
        .put(&key("b"), "x".into(), &Expect::Absent)
        .await
        .unwrap();
}
