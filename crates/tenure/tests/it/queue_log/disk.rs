//! A disk that is full, made of a small file system: refused, nothing lost, and on it goes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tenure::log::{Config, Error, Form, Log, Record};
use tenure::store::engine::file::File;

use super::world::{World, frames_of, lines, record, records};

/// A file system of a few megabytes at most, until dropped.
struct Disk {
    world: World,
    root: PathBuf,
}

impl Disk {
    /// In memory: exactly as large as it says.
    async fn in_memory() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        if mount(
            &["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"],
            folder.path(),
        ) {
            return Some(Self::on(folder).await);
        }
        tenure_testkit::skip::for_want_of("a small disk, and a user that may mount one");
        None
    }

    /// With a journal and delayed allocation, which find a little room now and then. Only where there is a
    /// loop device for it.
    async fn with_journal() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(4 * 1024 * 1024).unwrap();
        let path = image.path().to_str().unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", path]).output();
        if made.is_ok_and(|output| output.status.success())
            && mount(&["-o", "loop", path], folder.path())
        {
            return Some(Self::on(folder).await);
        }
        tenure_testkit::skip::note("ext4 needs a loop device");
        None
    }

    async fn both() -> impl Iterator<Item = Self> {
        let disks = [Self::in_memory().await, Self::with_journal().await];
        disks.into_iter().flatten()
    }

    async fn on(folder: tempfile::TempDir) -> Self {
        let root = folder.path().to_owned();
        let store = Arc::new(File::open(&root).await.unwrap());
        let mut world = World::objects(store);
        world.form = Form::Segments;
        world.folder = Some(folder);
        Self { world, root }
    }

    /// Takes all the room there is, but for `left` bytes.
    fn fill(&self, left: usize) {
        let path = self.filler();
        let mut file = fs::File::create(&path).unwrap();
        // Once synced, a disk may have room for more than it promised before.
        let mut size = 0;
        loop {
            let full = loop {
                if let Err(error) = file.write_all(&[7; 512]) {
                    break error;
                }
            };
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
            file.sync_all().unwrap();
            let before = std::mem::replace(&mut size, file.metadata().unwrap().len());
            if before == size {
                break;
            }
        }
        file.set_len(size - left as u64).unwrap();
        // What was given back can be had only then.
        file.sync_all().unwrap();
    }

    fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
        fs::File::open(&self.root).unwrap().sync_all().unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.root.join("filler")
    }

    fn last_segment(&self) -> PathBuf {
        self.world.segments().pop().unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a store that is still open keeps its disk.
        let _ = Command::new("umount").arg("-l").arg(&self.root).status();
    }
}

fn mount(arguments: &[&str], folder: &Path) -> bool {
    let mounted = Command::new("mount").args(arguments).arg(folder).output();
    mounted.is_ok_and(|output| output.status.success())
}

/// A record of so many bytes, more or less.
fn large(bytes: usize) -> Record {
    record(&"x".repeat(bytes))
}

#[track_caller]
fn refused(error: &Error) {
    assert!(error.is_not_applied(), "{error:?}");
    let Error::Store(store) = error else {
        panic!("{error:?}");
    };
    assert!(store.hint().contains("free some space"), "{}", store.hint());
}

async fn commit(log: &mut Log, texts: &[&str]) {
    log.commit(&records(texts)).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_refuses_a_commit_and_takes_the_next_when_there_is_room() {
    for disk in Disk::both().await {
        let (mut log, _) = disk.world.lead(1, Config::default()).await.unwrap();
        commit(&mut log, &["a"]).await;
        // Room for a part of the frame: it is begun, and taken back.
        disk.fill(64 * 1024);
        let before = frames_of(&disk.last_segment());
        for _ in 0..3 {
            let error = log.commit(&[large(400_000)]).await.unwrap_err();
            refused(&error);
            assert_eq!(fs::read(disk.last_segment()).unwrap(), before);
        }
        assert_eq!(disk.world.replay().await.unwrap().records, lines(&["a"]));
        // What fits is still committed, by the same leader.
        commit(&mut log, &["b"]).await;
        disk.free();
        log.commit(&[large(400_000)]).await.unwrap();
        commit(&mut log, &["c"]).await;
        let (_, machine) = disk.world.lead(2, Config::default()).await.unwrap();
        assert_eq!(machine.records.len(), 4);
        assert_eq!(machine.records[..2], lines(&["a", "b"]));
        assert_eq!(machine.records[3..], lines(&["c"]));
    }
}

#[tokio::test]
async fn a_new_file_that_finds_no_room_is_made_when_there_is() {
    if let Some(disk) = Disk::in_memory().await {
        let config = Config {
            segment_bytes_max: 1000,
            ..Config::default()
        };
        let (mut log, _) = disk.world.lead(1, config.clone()).await.unwrap();
        commit(
            &mut log,
            &[
                "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m",
            ],
        )
        .await;
        commit(
            &mut log,
            &[
                "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x", "y", "z",
            ],
        )
        .await;
        let files = disk.world.segments().len();
        disk.fill(0);
        let error = log.commit(&records(&["late"])).await.unwrap_err();
        refused(&error);
        let whole = disk.world.replay().await.unwrap().records;
        assert_eq!(whole.len(), 26);
        // A leader that dies here leaves a file without a beginning. Nobody minds.
        let left: Vec<PathBuf> = disk.world.segments().split_off(files);
        assert!(
            left.iter()
                .all(|path| fs::metadata(path).unwrap().len() == 0)
        );
        disk.free();
        let (mut new, machine) = disk.world.lead(2, config).await.unwrap();
        assert_eq!(machine.records, whole);
        commit(&mut new, &["on"]).await;
        let late = log.commit(&records(&["late"])).await;
        assert!(matches!(late, Err(Error::Fenced)), "{late:?}");
        assert_eq!(disk.world.replay().await.unwrap().records.len(), 27);
    }
}

#[tokio::test]
async fn nobody_takes_over_on_a_full_disk_and_the_next_one_loses_nothing() {
    if let Some(disk) = Disk::in_memory().await {
        let (mut log, _) = disk.world.lead(1, Config::default()).await.unwrap();
        commit(&mut log, &["a"]).await;
        disk.fill(0);
        let error = disk.world.lead(2, Config::default()).await.unwrap_err();
        refused(&error);
        disk.free();
        // Whether the old leader was replaced does not matter, only that one of them leads.
        let (mut new, machine) = disk.world.lead(3, Config::default()).await.unwrap();
        assert_eq!(machine.records, lines(&["a"]));
        commit(&mut new, &["b"]).await;
        assert!(matches!(
            log.commit(&records(&["late"])).await,
            Err(Error::Fenced)
        ));
    }
}

/// What a leader leaves that is killed while the disk refuses the rest of its frame.
fn tear(path: &Path, frame: &[u8]) -> usize {
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    let mut written = 0;
    loop {
        match file.write(&frame[written..]) {
            Ok(bytes) => written += bytes,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
                return written;
            }
        }
    }
}

#[tokio::test]
async fn a_frame_that_a_full_disk_tore_is_no_damage_and_hides_none() {
    for disk in Disk::both().await {
        let (mut log, _) = disk.world.lead(1, Config::default()).await.unwrap();
        commit(&mut log, &["a"]).await;
        commit(&mut log, &["b"]).await;
        let path = disk.last_segment();
        let acknowledged = frames_of(&path);
        // The frame as the log would have written it.
        log.commit(&[large(200_000)]).await.unwrap();
        let frame = frames_of(&path).split_off(acknowledged.len());
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(acknowledged.len() as u64).unwrap();
        drop((file, log));

        disk.fill(32 * 1024);
        let written = tear(&path, &frame);
        assert!(written > 0 && written < frame.len(), "{written}");
        disk.free();
        assert_eq!(
            disk.world.replay().await.unwrap().records,
            lines(&["a", "b"])
        );

        // A bit of what was acknowledged is damage, though what follows it is torn.
        let torn = fs::read(&path).unwrap();
        for at in [acknowledged.len() / 2, acknowledged.len() - 4] {
            let mut damaged = torn.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let error = disk.world.replay().await.unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
        }
        fs::write(&path, &torn).unwrap();

        let (mut new, machine) = disk.world.lead(2, Config::default()).await.unwrap();
        assert_eq!(machine.records, lines(&["a", "b"]));
        commit(&mut new, &["c"]).await;
        assert_eq!(
            disk.world.replay().await.unwrap().records,
            lines(&["a", "b", "c"])
        );
    }
}
