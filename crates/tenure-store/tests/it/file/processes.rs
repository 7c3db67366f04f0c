//! What only several processes can test: exact counts, writers that are killed or stopped, hints.
//!
//! The processes are this very test program. An environment variable tells it to do nothing but write.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use tenure_store::{Error, Expect, Hint, Key, Prefix, Store, list_all};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

use super::{fresh, hinted, key, open};

/// `PLACE TIMES ROOT`: raise the count at index PLACE of the tally TIMES times.
const WORK: &str = "TENURE_TEST_FILE_WORK";

/// Counts, one per writer, and enough filler that depends on them to show a torn write.
#[derive(Debug, Clone, Default, PartialEq)]
struct Tally([u64; 4]);

impl Tally {
    fn encode(&self) -> Bytes {
        let Self(counts) = self;
        let sum: u64 = counts.iter().sum();
        let word = sum.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Mostly small, now and then up to a megabyte.
        let words = if sum.is_multiple_of(8) {
            word % 131_072
        } else {
            word % 512
        };
        let mut bytes: Vec<u8> = counts
            .iter()
            .flat_map(|count| count.to_le_bytes())
            .collect();
        bytes.extend(word.to_le_bytes().repeat(words.try_into().unwrap()));
        bytes.into()
    }

    /// Panics unless the bytes are exactly what was encoded.
    fn decode(bytes: &Bytes) -> Self {
        let mut counts = [0; 4];
        for (count, bytes) in counts.iter_mut().zip(bytes.chunks_exact(8)) {
            *count = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        let tally = Self(counts);
        assert!(tally.encode() == bytes, "a torn value: {tally:?}");
        tally
    }
}

fn shared() -> Key {
    key("shared/tally")
}

fn made(place: usize, count: u64) -> Key {
    key(&format!("made/{place}/{count:08}"))
}

/// Raises one count by one, and returns its new value.
async fn raise(store: &dyn Store, place: usize) -> u64 {
    loop {
        let (mut tally, expect) = match store.get(&shared()).await.unwrap() {
            Some(object) => (
                Tally::decode(&object.value),
                Expect::Version(object.version),
            ),
            None => (Tally::default(), Expect::Absent),
        };
        tally.0[place] += 1;
        match store.put(&shared(), tally.encode(), &expect).await {
            Ok(_) => return tally.0[place],
            // A stopped writer held the lock.
            Err(Error::Conflict { .. } | Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What the other tests start as a process. On its own it does nothing.
#[tokio::test]
async fn works_for_another_test() {
    let Ok(work) = env::var(WORK) else { return };
    let mut words = work.splitn(3, ' ');
    let mut word = || words.next().unwrap();
    let place: usize = word().parse().unwrap();
    let times: u64 = word().parse().unwrap();
    let store = open(Path::new(word())).await;
    // The test harness has already started a line.
    println!();
    for _ in 0..times {
        let count = raise(&store, place).await;
        // Printed at once, so that the parent that kills this process knows how far it got.
        println!("raised {count}");
        let value = Tally([count; 4]).encode();
        match store.put(&made(place, count), value, &Expect::Absent).await {
            Ok(_) => println!("made {count}"),
            Err(error) => panic!("{error}"),
        }
    }
    println!("end 0");
}

struct Worker {
    process: tokio::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    raised: u64,
    made: u64,
}

impl Worker {
    fn start(root: &Path, place: usize, times: u64) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "file::processes::works_for_another_test"])
            .args(["--nocapture", "--test-threads=1"])
            .env(WORK, format!("{place} {times} {}", root.display()))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self {
            process,
            lines,
            raised: 0,
            made: 0,
        }
    }

    /// Records what the process prints, until it prints `until` or ends. Returns whether it printed that.
    async fn listen(&mut self, until: Option<&str>) -> bool {
        while let Some(line) = self.lines.next_line().await.unwrap() {
            let Some((what, Ok(count))) = line
                .split_once(' ')
                .map(|(what, count)| (what, count.parse()))
            else {
                continue;
            };
            match what {
                "raised" => self.raised = count,
                "made" => self.made = count,
                _ => {}
            }
            if until == Some(what) {
                return true;
            }
        }
        false
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.id().expect("not waited for yet");
        kill_process(Pid::from_raw(id.try_into().unwrap()).unwrap(), signal).unwrap();
    }
}

async fn tally(store: &dyn Store) -> Tally {
    Tally::decode(&store.get(&shared()).await.unwrap().unwrap().value)
}

/// A delay that differs from run to run, for what cannot be timed.
fn somewhen() -> Duration {
    let random = uuid::Uuid::new_v4().as_u64_pair().0;
    Duration::from_micros(random % 15_000)
}

#[tokio::test]
async fn a_thousand_increments_from_four_processes_are_exact() {
    let (folder, store) = fresh().await;
    let mut workers: Vec<Worker> = (0..4)
        .map(|place| Worker::start(folder.path(), place, 250))
        .collect();
    for worker in &mut workers {
        assert!(worker.listen(Some("end")).await, "a process gave up");
    }
    assert_eq!(tally(&store).await, Tally([250; 4]));
    let made = list_all(&store, &Prefix::new("made").unwrap())
        .await
        .unwrap();
    assert_eq!(made.len(), 1000);
}

#[tokio::test]
async fn a_killed_writer_leaves_the_old_object_or_the_new() {
    let (folder, store) = fresh().await;
    let (mut raised, mut created) = (0, 0);
    for _ in 0..120 {
        let mut worker = Worker::start(folder.path(), 0, u64::MAX);
        assert!(worker.listen(Some("made")).await, "a process gave up");
        tokio::time::sleep(somewhen()).await;
        worker.signal(Signal::KILL);
        worker.listen(None).await;
        worker.process.wait().await.unwrap();

        // Everything reported as done is there, and at most the one write under way.
        raised = tally(&store).await.0[0];
        assert!([worker.raised, worker.raised + 1].contains(&raised));
        for count in [worker.made, worker.made + 1] {
            let Some(object) = store.get(&made(0, count)).await.unwrap() else {
                assert_eq!(count, worker.made + 1, "an object that was made is gone");
                continue;
            };
            assert_eq!(Tally::decode(&object.value), Tally([count; 4]));
            created = count;
        }
        // The next one starts at the current count.
        assert!(created <= raised);
    }
    assert!(raised > 120, "killed before there was anything to kill");

    // The last killed process left its own temporary folder, which is not an object and is removed by the next open.
    let temporary = folder.path().join(".tenure/tmp");
    assert!(fs::read_dir(&temporary).unwrap().count() >= 2);
    for entry in list_all(&store, &Prefix::root()).await.unwrap() {
        assert!(entry.key == shared() || entry.key.as_str().starts_with("made/"));
    }
    let _second = open(folder.path()).await;
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 2);

    // The tally can still be written.
    assert_eq!(raise(&store, 0).await, raised + 1);
}

#[tokio::test]
async fn a_stopped_writer_neither_blocks_the_others_nor_overwrites_them() {
    let (folder, store) = fresh().await;
    let mut worker = Worker::start(folder.path(), 0, u64::MAX);
    let mut done = 0;
    for _ in 0..20 {
        assert!(worker.listen(Some("made")).await, "the process gave up");
        tokio::time::sleep(somewhen()).await;
        worker.signal(Signal::STOP);
        let object = store.get(&shared()).await.unwrap().unwrap();
        let mut tally = Tally::decode(&object.value);
        tally.0[1] += 1;
        let (key, expect) = (shared(), Expect::Version(object.version));
        let put = store.put(&key, tally.encode(), &expect);
        match timeout(Duration::from_secs(20), put).await.unwrap() {
            Ok(_) => done += 1,
            // It was stopped while holding the lock, or it wrote between our read and our write.
            Err(Error::Unavailable { .. } | Error::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        worker.signal(Signal::CONT);
    }
    worker.signal(Signal::KILL);
    worker.listen(None).await;
    assert!(done > 0, "every write was held up");
    let tally = tally(&store).await;
    assert_eq!(tally.0[1], done, "a writer that woke up overwrote others");
    assert!([worker.raised, worker.raised + 1].contains(&tally.0[0]));
}

#[tokio::test]
async fn hints_come_from_other_processes() {
    let (folder, store) = fresh().await;
    let mut watch = store.watch(&Prefix::new("shared").unwrap()).unwrap();
    assert_eq!(hinted(&mut watch).await, Hint::Anything, "in place");
    let mut worker = Worker::start(folder.path(), 0, 1);
    assert!(worker.listen(Some("raised")).await);
    assert_eq!(hinted(&mut watch).await, Hint::Changed(shared()));
}
