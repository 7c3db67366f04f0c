//! Leaders that overlap, crash anywhere and sleep at the worst time, on a store that fails in every way it may.
//! Whatever happens, every answer is true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::log::{Config, Error, Handle, Log, Writer};
use tenure::store::Store;
use tenure::store::wrap::faulty::{Faults, Faulty, Outage};
use tenure_random::Random;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::suite::tiny;
use super::world::{Memo, World, owner};

const STEPS: usize = 120;

#[tokio::test(start_paused = true)]
async fn every_answer_is_true_on_a_store_that_fails() {
    let mut seen = Seen::default();
    for seed in 0..150 {
        let world = World::memory();
        Chaos::new(&world, seed, true).run(&mut seen).await;
    }
    // Chaos that nobody suffers from proves nothing.
    assert!(seen.acknowledged > 2_000, "{seen:?}");
    assert!(seen.fenced > 50 && seen.unknown > 20, "{seen:?}");
    assert!(seen.snapshots > 20, "{seen:?}");
}

#[tokio::test]
async fn every_answer_is_true_on_files() {
    let mut seen = Seen::default();
    for seed in 0..15 {
        let world = World::file().await;
        Chaos::new(&world, seed, false).run(&mut seen).await;
    }
    assert!(seen.acknowledged > 200, "{seen:?}");
    assert!(seen.fenced > 5, "{seen:?}");
}

#[derive(Debug, Default)]
struct Seen {
    acknowledged: usize,
    fenced: usize,
    unknown: usize,
    snapshots: u64,
}

/// What was told to callers.
#[derive(Debug, Default)]
struct Oracle {
    sent: BTreeSet<String>,
    acknowledged: BTreeMap<u64, String>,
    refused: BTreeSet<String>,
    fenced: usize,
    unknown: usize,
}

struct Leader {
    slot: Arc<Mutex<Option<Handle<Memo>>>>,
    task: JoinHandle<()>,
    faulty: Option<Arc<Faulty>>,
}

struct Chaos<'a> {
    world: &'a World,
    seed: u64,
    random: Random,
    has_faults: bool,
    term: u64,
    records: usize,
    leaders: Vec<Leader>,
    callers: Vec<JoinHandle<()>>,
    oracle: Arc<Mutex<Oracle>>,
}

impl<'a> Chaos<'a> {
    fn new(world: &'a World, seed: u64, has_faults: bool) -> Self {
        Self {
            world,
            seed,
            random: Random::of_run(seed),
            has_faults,
            term: 0,
            records: 0,
            leaders: Vec::new(),
            callers: Vec::new(),
            oracle: Arc::default(),
        }
    }

    async fn run(mut self, seen: &mut Seen) {
        for _ in 0..STEPS {
            match self.random.index(20) {
                0 | 1 => self.elect(),
                2 => self.crash(),
                3 => self.set_outage(Outage::Hanging),
                4 => self.set_outage(Outage::Breaking),
                5..=7 => self.set_outage(Outage::Over),
                _ => self.send(),
            }
            let milliseconds = self.random.index(20);
            sleep(Duration::from_millis(milliseconds as u64)).await;
        }
        self.check(seen).await;
    }

    fn elect(&mut self) {
        self.term += 1;
        let faults = Faults {
            delayed: 0.5,
            refused: 0.03,
            answer_lost: 0.03,
            request_lost: 0.03,
            late: 0.03,
            duplicated: 0.03,
            retried: 0.03,
            ..Faults::default()
        };
        let mut store = self.world.store.clone();
        let faulty = self.has_faults.then(|| {
            let faulty = Faulty::new(store.clone(), faults, self.seed + self.term).unwrap();
            Arc::new(faulty)
        });
        if let Some(faulty) = &faulty {
            store = faulty.clone();
        }
        let slot = Arc::new(Mutex::new(None));
        let task = tokio::spawn(lead(
            store,
            self.world.namespace.clone(),
            self.term,
            slot.clone(),
        ));
        self.leaders.push(Leader { slot, task, faulty });
    }

    fn crash(&mut self) {
        if !self.leaders.is_empty() {
            let index = self.random.index(self.leaders.len());
            self.leaders[index].task.abort();
        }
    }

    fn set_outage(&mut self, outage: Outage) {
        if !self.leaders.is_empty() {
            let index = self.random.index(self.leaders.len());
            if let Some(faulty) = &self.leaders[index].faulty {
                faulty.set_outage(outage);
            }
        }
    }

    /// To any leader that ever was, mostly to the last.
    fn send(&mut self) {
        let count = self.leaders.len();
        let back = self.random.index(3).saturating_sub(1) * self.random.index(4);
        let Some(index) = count.checked_sub(1 + back) else {
            return;
        };
        let handle = self.leaders[index].slot.lock().unwrap().clone();
        let Some(handle) = handle else { return };
        for _ in 0..=self.random.index(4) {
            self.records += 1;
            let record = format!("{{\"seed\":{},\"record\":{}}}", self.seed, self.records);
            let (handle, oracle) = (handle.clone(), self.oracle.clone());
            oracle.lock().unwrap().sent.insert(record.clone());
            self.callers.push(tokio::spawn(async move {
                let result = handle.commit(record.clone()).await;
                oracle
                    .lock()
                    .unwrap()
                    .note(record, result.map(|answered| answered.position.0));
            }));
        }
    }

    async fn check(mut self, seen: &mut Seen) {
        for leader in &self.leaders {
            if let Some(faulty) = &leader.faulty {
                faulty.set_outage(Outage::Over);
                faulty.set_faults(Faults::default()).unwrap();
            }
        }
        for caller in self.callers.drain(..) {
            let answered = timeout(Duration::from_secs(600), caller).await;
            answered.expect("every caller gets an answer").unwrap();
        }
        for leader in &self.leaders {
            if let Some(handle) = leader.slot.lock().unwrap().take() {
                seen.snapshots += handle.statistics().snapshots;
                assert!(handle.statistics().in_flight_max <= 1);
            }
            if let Some(faulty) = &leader.faulty {
                faulty.settled().await;
            }
        }
        for leader in &mut self.leaders {
            if leader.task.is_finished()
                && let Err(error) = (&mut leader.task).await
            {
                assert!(error.is_cancelled(), "seed {}: {error}", self.seed);
            }
        }
        // The zombies still run. A last leader takes over, and a reader looks at what it wrote.
        self.term += 1;
        let (mut log, machine) = self.world.lead(self.term, Config::default()).await.unwrap();
        let last = super::world::record("last");
        log.commit(std::slice::from_ref(&last)).await.unwrap();
        let read = self.world.replay().await.unwrap();
        assert_eq!(read.records[..machine.records.len()], machine.records);
        assert_eq!(read.records.len(), machine.records.len() + 1);
        let oracle = self.oracle.lock().unwrap();
        oracle.check(&machine.records, self.seed);
        seen.acknowledged += oracle.acknowledged.len();
        seen.fenced += oracle.fenced;
        seen.unknown += oracle.unknown;
    }
}

async fn lead(
    store: Arc<dyn Store>,
    namespace: tenure::core::Namespace,
    term: u64,
    slot: Arc<Mutex<Option<Handle<Memo>>>>,
) {
    let mut machine = Memo::default();
    let log = Log::take_over(store, &namespace, owner(term), tiny(), &mut machine, |_| {}).await;
    match log {
        Ok(log) => {
            let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
            *slot.lock().unwrap() = Some(handle);
            let _ = writer.run().await;
        }
        Err(error) => assert!(
            matches!(error, Error::Fenced | Error::Store(_)),
            "nothing is damaged: {error:?}"
        ),
    }
}

impl Oracle {
    fn note(&mut self, record: String, result: Result<u64, Error>) {
        match result {
            Ok(position) => {
                let other = self.acknowledged.insert(position, record);
                assert_eq!(other, None, "one position for two records");
            }
            Err(Error::Fenced) => self.fenced += 1,
            Err(Error::Unknown { .. }) => self.unknown += 1,
            Err(error) => {
                assert!(error.is_not_applied());
                self.refused.insert(record);
            }
        }
    }

    fn check(&self, records: &[String], seed: u64) {
        let mut once = BTreeSet::new();
        for (index, record) in records.iter().enumerate() {
            assert!(once.insert(record), "seed {seed}: {record} twice");
            assert!(
                self.sent.contains(record),
                "seed {seed}: {record} was never sent"
            );
            assert!(
                !self.refused.contains(record),
                "seed {seed}: {record} was refused"
            );
            let position = index as u64 + 1;
            if let Some(acknowledged) = self.acknowledged.get(&position) {
                assert_eq!(record, acknowledged, "seed {seed}: at position {position}");
            }
        }
        let last = self.acknowledged.keys().last().copied().unwrap_or(0);
        assert!(
            last <= records.len() as u64,
            "seed {seed}: position {last} is lost"
        );
    }
}

/// A crash every few milliseconds of a leader's life, with another seed each time: taking over, committing, writing snapshots, cleaning up.
#[tokio::test(start_paused = true)]
async fn a_crash_at_any_moment_loses_nothing_that_was_acknowledged() {
    let faults = || Faults {
        delayed: 1.0,
        delay: Duration::from_millis(2)..=Duration::from_millis(6),
        ..Faults::default()
    };
    let mut longest = 0;
    for moment in (0..700).step_by(3) {
        let world = World::memory();
        let mut expected = Vec::new();
        let mut acknowledged = 0;
        for term in 1..=2 {
            let faulty = Faulty::new(world.store.clone(), faults(), moment + term).unwrap();
            let slot = Arc::new(Mutex::new(None));
            let namespace = world.namespace.clone();
            let leader = tokio::spawn(lead(Arc::new(faulty), namespace, term, slot.clone()));
            let life = sleep(Duration::from_millis(moment));
            tokio::pin!(life);
            loop {
                let handle = slot.lock().unwrap().clone();
                let Some(handle): Option<Handle<Memo>> = handle else {
                    tokio::select! {
                        biased;
                        () = &mut life => break,
                        () = sleep(Duration::from_millis(1)) => continue,
                    }
                };
                let record = format!("{{\"term\":{term},\"record\":{}}}", expected.len());
                expected.push(record.clone());
                tokio::select! {
                    biased;
                    () = &mut life => break,
                    answered = handle.commit(record) => {
                        answered.unwrap();
                        acknowledged = expected.len();
                    }
                }
            }
            leader.abort();
            let _ = leader.await;
            let read = world.replay().await.unwrap().records;
            // The last one was under way: it is there or not, and that is settled now.
            assert!(
                read.len() >= acknowledged,
                "moment {moment}: {acknowledged} lost"
            );
            assert_eq!(read, expected[..read.len()], "moment {moment}");
            expected.truncate(read.len());
            acknowledged = read.len();
        }
        longest = longest.max(expected.len());
    }
    assert!(longest > 100, "{longest}");
}
