//! The queue itself through the real log: replay of any log equals the live state, and so does a snapshot with
//! the log behind it, whatever the commands were, with leaders that come and go.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tenure::core::queue::*;
use tenure::core::{JobId, JobType, QueueName, ScheduleName};
use tenure::log::inspect::Stored;
use tenure::log::{Answered, Config, Error, Handle, Log, Machine, Position, Record, Writer};
use tenure::queue::Unreadable;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::generator::Generator;
use super::suite::tiny;
use super::world::{World, owner};

#[allow(dead_code, reason = "more than these tests need")]
#[path = "../../../../tenure-core/src/queue/tests/generator.rs"]
mod generator;

/// Commands of one run.
const COMMANDS: usize = 300;

/// How many runs on each store; `TENURE_SEEDS`, set when the tests are built, runs more.
const SEEDS: u64 = 3;

/// The jobs of a namespace.
struct Jobs {
    queue: Queue,
    restore: Restore,
    restored: bool,
}

impl Jobs {
    /// The seed scatters tables, and must have no influence.
    fn new(seed: u64) -> Self {
        Self {
            queue: Queue::new(seed),
            restore: Restore::new(seed),
            restored: false,
        }
    }

    fn text(&self) -> String {
        text(&self.queue)
    }
}

fn text(queue: &Queue) -> String {
    String::from_utf8(queue.encode()).unwrap()
}

impl Machine for Jobs {
    type Command = Record;
    type Answer = Answer;
    type Error = Unreadable;

    fn apply(&mut self, _: Position, record: Record) -> Answer {
        let command = serde_json::from_slice(record.as_ref()).unwrap();
        self.queue.apply(command, &mut Vec::new())
    }

    fn replay(&mut self, _: Position, record: &[u8]) -> Result<(), Unreadable> {
        let command = serde_json::from_slice(record)?;
        let _ = self.queue.apply(command, &mut Vec::new());
        Ok(())
    }

    fn rules_max(&self) -> Rules {
        Rules::LATEST
    }

    fn set_rules(&mut self, rules: Rules) {
        self.queue.set_rules(rules);
    }

    fn digest(&self) -> Option<u64> {
        Some(self.queue.digest())
    }

    fn reset(&mut self) {
        *self = Self::new(7);
    }

    fn restore(&mut self, lines: &[u8]) -> Result<(), Unreadable> {
        Ok(self.restore.feed(lines)?)
    }

    fn restored(&mut self) -> Result<(), Unreadable> {
        let restore = std::mem::replace(&mut self.restore, Restore::new(8));
        self.queue = restore.finish()?;
        self.restored = true;
        Ok(())
    }

    fn begin_snapshot(&mut self) {
        self.queue.begin_snapshot();
    }

    fn snapshot_chunk(&mut self, bytes_max: usize) -> Option<Bytes> {
        // Small pieces, so that commands come in between.
        let chunk = self.queue.snapshot_chunk(bytes_max.min(500));
        chunk.map(Bytes::from)
    }

    fn abandon_snapshot(&mut self) {
        self.queue.abandon_snapshot();
    }
}

/// A leader, and what it wrote before.
struct Leader {
    handle: Handle<Jobs>,
    writer: JoinHandle<Result<(), Error>>,
}

impl Leader {
    async fn elect(world: &World, term: u64, config: Config, expected: &str) -> Self {
        let mut jobs = Jobs::new(term);
        let (store, namespace) = (world.store.clone(), &world.namespace);
        let log = Log::take_over(store, namespace, owner(term), config, &mut jobs, |_| {});
        let log = log.await.unwrap();
        assert_eq!(jobs.text(), expected, "in term {term}");
        let (handle, writer) = Writer::new(log, jobs, CancellationToken::new());
        let writer = tokio::spawn(writer.run());
        Self { handle, writer }
    }

    async fn commit(&self, commands: &[Command]) -> Vec<Answered<Answer>> {
        let line = |command| serde_json::to_string(command).unwrap();
        let commits = commands
            .iter()
            .map(|command| self.handle.commit(line(command)));
        let answers = join_all(commits).await;
        answers.into_iter().map(Result::unwrap).collect()
    }

    /// Ends; returns how many snapshots it made.
    async fn end(self) -> u64 {
        let snapshots = self.handle.statistics().snapshots;
        self.handle.shutdown().await;
        self.writer.await.unwrap().unwrap();
        snapshots
    }
}

async fn replayed(world: &World) -> Jobs {
    let mut jobs = Jobs::new(99);
    let (store, config) = (world.store.clone(), Config::default());
    tenure::log::replay(store, &world.namespace, config, &mut jobs, |_| {})
        .await
        .unwrap();
    jobs
}

/// The same commands with snapshots and without.
async fn run(seed: u64, with: &World, without: &World) {
    let never = Config {
        snapshot_bytes_min: u64::MAX,
        segment_bytes_max: 3000,
        ..Config::default()
    };
    let mut generator = Generator::new(seed);
    let mut live = Queue::new(seed);
    let mut states = vec![text(&live)];
    let (mut sent, mut snapshots, mut term) = (0, 0, 0);
    while sent < COMMANDS {
        term += 1;
        let now = states.last().unwrap().clone();
        let one = Leader::elect(with, term, tiny(), &now).await;
        let other = Leader::elect(without, term, never.clone(), &now).await;
        for _ in 0..20 + generator.below(40) {
            let commands: Vec<Command> = (0..=generator.below(3))
                .map(|_| generator.command(&live))
                .collect();
            sent += commands.len();
            let answers = [one.commit(&commands).await, other.commit(&commands).await];
            for (index, command) in commands.into_iter().enumerate() {
                let answer = live.apply(command, &mut Vec::new());
                generator.follow(&answer);
                states.push(text(&live));
                for answers in &answers {
                    assert_eq!(answers[index].answer, answer, "seed {seed}");
                    assert_eq!(answers[index].position.0, states.len() as u64 - 1);
                }
            }
            tokio::task::yield_now().await;
        }
        // By now one is due.
        while snapshots == 0 && one.handle.statistics().snapshots == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        snapshots += one.end().await;
        assert_eq!(other.end().await, 0);
    }
    let now = states.last().unwrap();
    let from_snapshot = replayed(with).await;
    assert!(from_snapshot.restored);
    assert_eq!(&from_snapshot.text(), now, "seed {seed}");
    let from_log = replayed(without).await;
    assert!(!from_log.restored);
    assert_eq!(&from_log.text(), now, "seed {seed}");
    every_place(without, &states).await;
}

/// The log up to any place gives the state that was live then.
async fn every_place(world: &World, states: &[String]) {
    let stored = Stored::open(world.store.clone(), &world.namespace).await;
    let stored = stored.unwrap().unwrap();
    let (mut places, mut records) = (Vec::new(), Vec::new());
    let mut frames = stored.log(0).await.unwrap();
    while let Some(frame) = frames.next().await.unwrap() {
        places.push(frame.place);
        records.push(usize::try_from(frame.last().0).unwrap());
    }
    let mut records = records.into_iter();
    let mut jobs = Jobs::new(5);
    let compare = |_, jobs: &mut Jobs| assert_eq!(jobs.text(), states[records.next().unwrap()]);
    stored.rebuild(&mut jobs, &places, compare).await.unwrap();
    assert_eq!(jobs.text(), *states.last().unwrap());
}

fn seeds() -> u64 {
    let seeds = option_env!("TENURE_SEEDS").and_then(|text| text.parse().ok());
    seeds.unwrap_or(SEEDS)
}

#[tokio::test]
async fn any_log_of_objects_gives_the_live_state_with_snapshots_and_without() {
    for seed in 0..seeds() {
        run(seed, &World::memory(), &World::memory()).await;
    }
}

#[tokio::test]
async fn any_log_of_files_gives_the_live_state_with_snapshots_and_without() {
    for seed in 0..seeds() {
        run(seed, &World::file().await, &World::file().await).await;
    }
}
