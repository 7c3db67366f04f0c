//! The thread that commits to files: what it does at the same time as others, and who is told what when it ends.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use tenure::log::inspect::{Finding, Stored};
use tenure::log::{Config, Error, Handle, Writer};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::world::{Memo, World, frames_of, lines, record, records};

/// How often, a millisecond apart, it is seen whether someone looks at the fence.
const LOOKS_MAX: usize = 20_000;

struct Running {
    world: World,
    handle: Handle<Memo>,
    writer: JoinHandle<Result<(), Error>>,
    stop: CancellationToken,
}

impl Running {
    async fn start(config: Config) -> Self {
        let world = World::file().await;
        let (log, machine) = world.lead(1, config).await.unwrap();
        let stop = CancellationToken::new();
        let (handle, writer) = Writer::new(log, machine, stop.clone());
        let writer = tokio::spawn(writer.run());
        Self {
            world,
            handle,
            writer,
            stop,
        }
    }

    fn send(&self, text: &str) -> JoinHandle<Result<u64, Error>> {
        let (handle, record) = (self.handle.clone(), record(text));
        tokio::spawn(async move {
            let answered = handle.commit(record.as_bytes().clone()).await;
            answered.map(|answered| answered.position.0)
        })
    }

    /// Returns when so many records wait.
    async fn until_waiting(&self, count: u64) {
        while self.handle.statistics().waiting < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn applied(&self) -> Vec<String> {
        self.handle.read(|memo| memo.records.clone()).unwrap()
    }

    fn origin(&self) -> PathBuf {
        let root = self.world.folder.as_ref().unwrap().path();
        root.join(self.world.namespace.as_str())
            .join("queue/origin")
    }

    fn segment(&self) -> PathBuf {
        self.world.segments().remove(0)
    }
}

fn holds(path: &Path, text: &str) -> bool {
    let file = frames_of(path);
    let line = lines(&[text]).remove(0);
    file.windows(line.len())
        .any(|window| window == line.as_bytes())
}

/// Whoever looks at the fence waits until this says what is there.
struct Gate {
    fence: fs::File,
    origin: Vec<u8>,
}

impl Gate {
    /// Puts a pipe where the fence is, and `send`s. Returns when the commit has been synced and its fence is
    /// looked at; by then the origin is where it was.
    async fn at_fence<T>(running: &Running, send: impl FnOnce() -> T) -> (Self, T) {
        let path = running.origin();
        let origin = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let sent = send();
        let fence = Self::looked_at(&path).await;
        fs::remove_file(&path).unwrap();
        fs::write(&path, &origin).unwrap();
        (Self { fence, origin }, sent)
    }

    /// Returns when someone reads the pipe. Asks again and again, since an `open` that waits for a reader who never
    /// comes would keep the test for ever.
    async fn looked_at(path: &Path) -> fs::File {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = fs::OpenOptions::new();
        options.write(true).custom_flags(nonblocking);
        for _ in 0..LOOKS_MAX {
            match options.open(path) {
                Ok(fence) => return fence,
                Err(error) => assert_eq!(
                    rustix::io::Errno::from_io_error(&error),
                    Some(rustix::io::Errno::NXIO)
                ),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("the commit does not look at the fence");
    }

    fn open(mut self, origin: &[u8]) {
        self.fence.write_all(origin).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_next_batch_is_committed_while_the_one_before_is_applied() {
    let running = Running::start(Config::default()).await;
    let (held, is_held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let holder = {
        let handle = running.handle.clone();
        std::thread::spawn(move || {
            handle.read(|_| {
                held.send(()).unwrap();
                let _ = released.recv();
            })
        })
    };
    is_held.recv().unwrap();
    let first = running.send("a");
    while !holds(&running.segment(), "a") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = running.send("b");
    while !holds(&running.segment(), "b") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Both are durable, and nobody is told before the machine knows.
    assert!(!first.is_finished() && !second.is_finished());
    drop(release);
    holder.join().unwrap().unwrap();
    assert_eq!(first.await.unwrap().unwrap(), 1);
    assert_eq!(second.await.unwrap().unwrap(), 2);
    assert_eq!(running.applied(), lines(&["a", "b"]));
    assert_eq!(running.handle.statistics().in_flight_max, 1);
}

#[tokio::test]
async fn a_fence_raised_between_sync_and_answer_is_seen_though_more_waits() {
    let running = Running::start(Config::default()).await;
    running.send("a").await.unwrap().unwrap();
    let (gate, in_flight) = Gate::at_fence(&running, || running.send("b")).await;
    let waiting = running.send("c");
    running.until_waiting(1).await;
    // It was synced before the other leader read, so that one has it.
    let (mut new, machine) = running.world.lead(2, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a", "b"]));
    gate.open(&fs::read(running.origin()).unwrap());
    let error = in_flight.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Fenced), "{error:?}");
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    let ended = running.writer.await.unwrap();
    assert!(matches!(ended, Err(Error::Fenced)), "{ended:?}");
    let applied = running.handle.read(|memo| memo.records.clone()).unwrap();
    assert_eq!(applied, lines(&["a"]), "what failed is not applied");
    new.commit(&records(&["d"])).await.unwrap();
    let replayed = running.world.replay().await.unwrap().records;
    assert_eq!(replayed, lines(&["a", "b", "d"]));
}

#[tokio::test]
async fn whoever_waits_for_a_commit_that_hangs_is_answered_when_leadership_ends() {
    let config = Config {
        stop_patience: Duration::from_millis(10),
        ..Config::default()
    };
    let running = Running::start(config).await;
    running.send("a").await.unwrap().unwrap();
    let (gate, in_flight) = Gate::at_fence(&running, || running.send("b")).await;
    let waiting = running.send("c");
    running.until_waiting(1).await;
    running.stop.cancel();
    let error = in_flight.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    let ended = running.writer.await.unwrap();
    assert!(matches!(ended, Err(Error::Unknown { .. })), "{ended:?}");
    let origin = gate.origin.clone();
    gate.open(&origin);
    let (_, machine) = running.world.lead(2, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a", "b"]), "reading settles it");
}

#[tokio::test]
async fn a_writer_of_files_that_is_aborted_leaves_nobody_waiting() {
    let running = Running::start(Config::default()).await;
    let (gate, in_flight) = Gate::at_fence(&running, || running.send("a")).await;
    let waiting = running.send("b");
    running.until_waiting(1).await;
    running.writer.abort();
    let error = in_flight.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    running.handle.shutdown().await;
    let origin = gate.origin.clone();
    gate.open(&origin);
}

#[tokio::test]
async fn a_writer_of_files_commits_what_was_taken_and_leaves_no_zeros() {
    let running = Running::start(Config::default()).await;
    running.send("a").await.unwrap().unwrap();
    let path = running.segment();
    assert!(
        fs::metadata(&path).unwrap().len() > frames_of(&path).len() as u64,
        "zeros ahead of what comes next"
    );
    let (gate, first) = Gate::at_fence(&running, || running.send("b")).await;
    let second = running.send("c");
    running.until_waiting(1).await;
    let shutdown = {
        let handle = running.handle.clone();
        tokio::spawn(async move { handle.shutdown().await })
    };
    let origin = gate.origin.clone();
    gate.open(&origin);
    assert_eq!(first.await.unwrap().unwrap(), 2);
    assert_eq!(second.await.unwrap().unwrap(), 3);
    shutdown.await.unwrap();
    running.writer.await.unwrap().unwrap();
    assert_eq!(fs::read(&path).unwrap(), frames_of(&path));
    let replayed = running.world.replay().await.unwrap().records;
    assert_eq!(replayed, lines(&["a", "b", "c"]));
}

#[tokio::test]
async fn zeros_behind_a_leader_that_was_killed_are_the_end_of_its_log() {
    let world = World::file().await;
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    drop(log);
    let path = world.segments().remove(0);
    assert!(fs::metadata(&path).unwrap().len() > frames_of(&path).len() as u64);
    let stored = Stored::open(world.store.clone(), &world.namespace);
    let stored = stored.await.unwrap().unwrap();
    assert_eq!(stored.verify().await.unwrap().1, []);
    let (mut log, machine) = world.lead(2, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a"]));
    log.commit(&records(&["b"])).await.unwrap();
    // The file that the new leader has copied is in no log any more.
    let (_, findings) = stored.verify().await.unwrap();
    assert!(
        matches!(&findings[..], [Finding::Remains { location, .. }] if location.contains("-000001")),
        "{findings:?}"
    );
    assert_eq!(world.replay().await.unwrap().records, lines(&["a", "b"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_reads_beside_a_leader_finds_a_beginning_and_no_damage() {
    let running = Running::start(Config::default()).await;
    // Large enough that a frame is not there at once.
    let text = |number: usize| format!("{number}-{}", "x".repeat(3000));
    let sent: Vec<String> = (0..100).map(text).collect();
    let expected = lines(&sent.iter().map(String::as_str).collect::<Vec<_>>());
    let stored = Stored::open(running.world.store.clone(), &running.world.namespace);
    let stored = stored.await.unwrap().unwrap();
    let handle = running.handle.clone();
    let leader = tokio::spawn(async move {
        for text in sent {
            let line = record(&text).as_bytes().clone();
            handle.commit(line).await.unwrap();
        }
    });
    let mut read = 0;
    while !leader.is_finished() {
        let records = running.world.replay().await.unwrap().records;
        assert!(records.len() >= read && records == expected[..records.len()]);
        read = records.len();
        let (_, findings) = stored.verify().await.unwrap();
        let is_damage = |finding: &_| matches!(finding, Finding::Damage { .. });
        assert!(!findings.iter().any(is_damage), "{findings:?}");
    }
    leader.await.unwrap();
    assert_eq!(running.world.replay().await.unwrap().records, expected);
}
