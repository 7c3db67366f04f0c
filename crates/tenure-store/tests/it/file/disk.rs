//! A disk that is full or read-only, made of a small file system in memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use tenure_store::{Error, Expect, Store};

use super::{fresh, key, open, temporary_files};

/// A file system of one megabyte, until dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Path) -> Option<Self> {
        if mount(&["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"], folder) {
            return Some(Self(folder.to_owned()));
        }
        tenure_testkit::skip::for_want_of("a small disk, and a user that may mount one");
        None
    }

    fn remount(&self, how: &str) {
        assert!(mount(&["-o", &format!("remount,{how}")], &self.0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a store that is still open keeps using its disk.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(arguments: &[&str], folder: &Path) -> bool {
    Command::new("mount")
        .args(arguments)
        .arg(folder)
        .output()
        .is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn a_full_disk_refuses_and_keeps_the_old_object() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = Disk::mount(folder.path()) else {
        return;
    };
    let store = open(folder.path()).await;
    let old = vec![1; 100_000];
    let version = store
        .put(&key("a"), old.clone().into(), &Expect::Absent)
        .await
        .unwrap();
    let too_much = vec![2; 2_000_000];
    for (name, expect) in [
        ("a", Expect::Version(version.clone())),
        ("b", Expect::Absent),
    ] {
        let error = store
            .put(&key(name), too_much.clone().into(), &expect)
            .await;
        let error = error.expect_err("more than there is room for");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.hint().contains("free some space"), "{}", error.hint());
        assert_eq!(temporary_files(folder.path()), 0, "takes up the last room");
    }
    let object = store.get(&key("a")).await.unwrap().unwrap();
    assert_eq!((object.value, &object.version), (old.into(), &version));
    assert_eq!(store.get(&key("b")).await.unwrap(), None);
    let expect = Expect::Version(version);
    store.put(&key("a"), "fits".into(), &expect).await.unwrap();
}

#[tokio::test]
async fn a_read_only_disk_refuses_writes_and_serves_reads() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(folder.path()) else {
        return;
    };
    let store = open(folder.path()).await;
    let version = store
        .put(&key("a"), "value".into(), &Expect::Absent)
        .await
        .unwrap();
    disk.remount("ro");
    let expect = Expect::Version(version);
    let answers = [
        store.put(&key("a"), "".into(), &expect).await.map(drop),
        store
            .put(&key("b"), "".into(), &Expect::Absent)
            .await
            .map(drop),
        store.delete(&key("a")).await,
    ];
    for answer in answers {
        let error = answer.expect_err("the disk is read-only");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.hint().contains("read and write"), "{}", error.hint());
    }
    let object = store.get(&key("a")).await.unwrap().unwrap();
    assert_eq!(object.value, "value");
    disk.remount("rw");
    store.put(&key("a"), "".into(), &expect).await.unwrap();
}

#[tokio::test]
async fn a_folder_on_another_file_system_is_refused() {
    let (folder, store) = fresh().await;
    let mounted = folder.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    let Some(_disk) = Disk::mount(&mounted) else {
        return;
    };
    let error = store
        .put(&key("mounted/a"), "".into(), &Expect::Absent)
        .await;
    let error = error.expect_err("a rename cannot cross file systems");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.hint().contains("one file system"), "{}", error.hint());
}
