//! What other users of the host can do with a store: nothing.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::*;

/// The user `nobody`, or any other that owns nothing here.
const STRANGER: u32 = 65_534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A folder that every user can look into, as `/tmp` and `/var/lib` are.
fn open_to_all() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o755);
    folder
}

fn everything_in(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(everything_in(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Whether a stranger can do this. Only a test that runs as root can find out.
fn stranger(command: &str, path: &Path) -> Option<bool> {
    if !rustix::process::geteuid().is_root() {
        tenure_testkit::skip::for_want_of("root, to run a command as somebody else");
        return None;
    }
    let done = Command::new("sh")
        .args(["-c", command, "sh", path.to_str().unwrap()])
        .current_dir("/")
        .uid(STRANGER)
        .gid(STRANGER)
        .output()
        .unwrap();
    Some(done.status.success())
}

#[tokio::test]
async fn what_is_made_is_for_its_owner_alone() {
    let folder = open_to_all();
    let root = folder.path().join("a/store");
    let store = open(&root).await;
    let key = key("x/y/z");
    let version = store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
    let expect = Expect::Version(version);
    store.put(&key, "2".into(), &expect).await.unwrap();
    let found = everything_in(&folder.path().join("a"));
    assert!(found.len() > 6, "{found:?}");
    for path in found {
        let mode = fs::metadata(&path).unwrap().mode() & 0o777;
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{}: {mode:o}", path.display());
    }
    if let Some(can) = stranger("cat \"$1\"", &root.join("x/y/z")) {
        assert!(!can, "a stranger has read an object");
    }
}

#[tokio::test]
async fn a_folder_that_others_can_write_or_own_is_refused() {
    let folder = open_to_all();
    for mode in [0o777, 0o1777, 0o775, 0o757] {
        let root = folder.path().join(format!("{mode:o}"));
        fs::create_dir(&root).unwrap();
        set_mode(&root, mode);
        let error = File::open(&root).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.hint().contains("chmod"), "{error:?}");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "left untouched");
    }
    for inside in ["default", "default/queue", "default/queue/segments"] {
        let root = folder.path().join(inside.replace('/', "-"));
        let open = root.join(inside);
        fs::create_dir_all(&open).unwrap();
        let mut above = open.clone();
        while above != folder.path() {
            set_mode(&above, 0o755);
            above.pop();
        }
        File::open(&root).await.unwrap();
        set_mode(&open, 0o777);
        let error = File::open(&root).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        // If others cannot reach it, its mode does not matter.
        set_mode(&root, 0o700);
        File::open(&root).await.unwrap();
    }
    let root = folder.path().join("theirs");
    fs::create_dir(&root).unwrap();
    if chown(&root, Some(STRANGER), Some(STRANGER)).is_ok() {
        let error = File::open(&root).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.hint().contains("chown"), "{error:?}");
    }
}

#[tokio::test]
async fn a_folder_that_others_can_read_is_used_and_its_locks_are_closed_to_them() {
    let folder = open_to_all();
    // As an older version has left it.
    let root = folder.path().join("store");
    let locks = root.join(".tenure/lock");
    fs::create_dir_all(&locks).unwrap();
    for path in [&root, &root.join(".tenure"), &locks] {
        set_mode(path, 0o755);
    }
    let lock = locks.join("00");
    fs::write(&lock, "").unwrap();
    set_mode(&lock, 0o644);
    if let Some(can) = stranger("flock -n \"$1\" true", &lock) {
        assert!(can, "nothing has kept a stranger from the lock");
    }
    let store = open(&root).await;
    if let Some(can) = stranger("flock -n \"$1\" true", &lock) {
        assert!(!can, "a stranger has held a lock");
    }
    store
        .put(&key("a"), "1".into(), &Expect::Absent)
        .await
        .unwrap();
    assert_eq!(fs::metadata(&root).unwrap().mode() & 0o777, 0o755);
}
