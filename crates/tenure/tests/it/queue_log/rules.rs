//! Replay has a version: every log is replayed by the rules under which it was written, and one that comes to
//! another state is noticed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tenure::core::Namespace;
use tenure::core::queue::{
    Action, Answer, Command, Filter, PageStart, Queue, Restore, SubmitStatus,
};
use tenure::log::{Config, Error, Handle, Log, Machine, Position, Record, Rules, Writer};
use tenure::queue::Unreadable;
use tenure::store::engine::file::File;
use tenure::store::engine::memory::Memory;
use tenure::store::{Expect, Key, Store};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::world::{Memo, World, owner};

/// The jobs of a namespace, as some version of this program has them.
struct Jobs {
    queue: Queue,
    restore: Restore,
    /// What another version does: it hands out at most so many jobs at once.
    claims_max: u32,
}

impl Jobs {
    fn new() -> Self {
        Self {
            queue: Queue::new(3),
            restore: Restore::new(4),
            claims_max: u32::MAX,
        }
    }
}

impl Machine for Jobs {
    type Command = Record;
    type Answer = Answer;
    type Error = Unreadable;

    fn apply(&mut self, _: Position, record: Record) -> Answer {
        let mut command: Command = serde_json::from_slice(record.as_ref()).unwrap();
        if let Action::Claim(claim) = &mut command.action {
            claim.request.max = claim.request.max.min(self.claims_max);
        }
        self.queue.apply(command, &mut Vec::new())
    }

    fn replay(&mut self, position: Position, record: &[u8]) -> Result<(), Unreadable> {
        let record = Record::new(record.to_vec()).unwrap();
        self.apply(position, record);
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
        let claims_max = self.claims_max;
        *self = Self {
            claims_max,
            ..Self::new()
        };
    }

    fn restore(&mut self, lines: &[u8]) -> Result<(), Unreadable> {
        Ok(self.restore.feed(lines)?)
    }

    fn restored(&mut self) -> Result<(), Unreadable> {
        let restore = std::mem::replace(&mut self.restore, Restore::new(5));
        self.queue = restore.finish()?;
        Ok(())
    }

    fn begin_snapshot(&mut self) {
        self.queue.begin_snapshot();
    }

    fn snapshot_chunk(&mut self, bytes_max: usize) -> Option<Bytes> {
        self.queue.snapshot_chunk(bytes_max).map(Bytes::from)
    }
}

struct Leader {
    handle: Handle<Jobs>,
    writer: JoinHandle<Result<(), Error>>,
}

impl Leader {
    async fn elect(world: &World, term: u64, rules_max: Rules) -> Self {
        let mut jobs = Jobs::new();
        let config = Config {
            rules_max,
            ..Config::default()
        };
        let (store, namespace) = (world.store.clone(), &world.namespace);
        let log = Log::take_over(store, namespace, owner(term), config, &mut jobs, |_| {}).await;
        let log = log.unwrap();
        assert_eq!(log.rules(), jobs.queue.rules());
        let (handle, writer) = Writer::new(log, jobs, CancellationToken::new());
        let writer = tokio::spawn(writer.run());
        Self { handle, writer }
    }

    async fn act(&self, action: Value) -> Answer {
        let command = json!({"at": 1_700_000_000_000_u64, "do": action}).to_string();
        self.handle.commit(command).await.unwrap().answer
    }

    async fn stop(self) -> Vec<u8> {
        self.handle.shutdown().await;
        self.writer.await.unwrap().unwrap();
        self.handle.read(|jobs| jobs.queue.encode()).unwrap()
    }
}

async fn replay(world: &World, jobs: &mut Jobs) -> Result<Position, Error> {
    let (store, namespace) = (world.store.clone(), &world.namespace);
    tenure::log::replay(store, namespace, Config::default(), jobs, |_| {}).await
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn submits(from: usize, count: usize) -> Value {
    let job = |number| json!({"id": format!("job-{number}"), "type": "t"});
    json!({"submit": (from..from + count).map(job).collect::<Vec<_>>()})
}

/// Claims so many and completes them; says how many.
async fn work(leader: &Leader, max: u32) -> usize {
    let claim = json!({"claim": {"worker": "w", "max": max, "lease_ms": 1000, "nonce": 7}});
    let claims: Vec<Value> = leader
        .act(claim)
        .await
        .claimed()
        .iter()
        .map(|claimed| json!({"id": claimed.id, "token": claimed.token}))
        .collect();
    let count = claims.len();
    for claim in claims {
        leader.act(json!({"complete": [claim]})).await;
    }
    count
}

#[tokio::test]
async fn a_replay_that_comes_to_another_state_is_noticed() {
    for world in [World::memory(), World::file().await] {
        let leader = Leader::elect(&world, 1, Rules::LATEST).await;
        leader.act(submits(0, 100)).await;
        assert_eq!(work(&leader, 100).await, 100);
        leader.stop().await;
        // Another version hands out fifty: of the hundred that were acknowledged, fifty would be left.
        let mut other = Jobs {
            claims_max: 50,
            ..Jobs::new()
        };
        let error = replay(&world, &mut other).await.unwrap_err();
        let Error::Diverged { place, .. } = error else {
            panic!("{error}");
        };
        // The term record, the submit, the claim.
        assert_eq!(place, 3);
        let mut jobs = Jobs::new();
        replay(&world, &mut jobs).await.unwrap();
        let completed = jobs.queue.queues().next().unwrap().counts.completed;
        assert_eq!(completed, 100);
    }
}

#[tokio::test]
async fn each_term_is_replayed_by_its_own_rules() {
    for world in [World::memory(), World::file().await] {
        let leader = Leader::elect(&world, 1, Rules::FIRST).await;
        let settings = json!({"configure": {"completed": {"count": 1}}});
        leader.act(settings).await;
        leader.act(submits(0, 4)).await;
        assert_eq!(work(&leader, 4).await, 4);
        // The id went with its job.
        let again = leader.act(submits(0, 1)).await;
        assert_eq!(again.submitted()[0].status, SubmitStatus::Created);
        leader.stop().await;
        let leader = Leader::elect(&world, 2, Rules::SECOND).await;
        leader.act(submits(10, 4)).await;
        assert_eq!(work(&leader, 5).await, 5);
        let again = leader.act(submits(10, 1)).await;
        assert_eq!(again.submitted()[0].status, SubmitStatus::Duplicate);
        let state = leader.stop().await;
        let mut jobs = Jobs::new();
        replay(&world, &mut jobs).await.unwrap();
        assert_eq!(text(&jobs.queue.encode()), text(&state));
        assert!(text(&state).contains(r#""rules":2"#));
        // It never goes back, no matter who leads.
        let leader = Leader::elect(&world, 3, Rules::FIRST).await;
        let rules = leader.handle.read(|jobs| jobs.queue.rules()).unwrap();
        assert_eq!(rules, Rules::SECOND);
        assert_eq!(text(&leader.stop().await), text(&state));
    }
}

#[tokio::test]
async fn a_snapshot_goes_on_by_its_rules() {
    for world in [World::memory(), World::file().await] {
        let leader = Leader::elect(&world, 1, Rules::SECOND).await;
        leader
            .act(json!({"configure": {"completed": {"count": 2}}}))
            .await;
        let payload = "x".repeat(200_000);
        for number in 0..30 {
            let job = json!({"id": format!("large-{number}"), "type": "t", "payload": payload});
            leader.act(json!({"submit": [job]})).await;
            assert_eq!(work(&leader, 1).await, 1);
        }
        let mut snapshots = 0;
        for _ in 0..1_000 {
            snapshots = leader.handle.statistics().snapshots;
            if snapshots > 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(snapshots > 0);
        leader.act(submits(0, 1)).await;
        let state = leader.stop().await;
        assert!(text(&state).contains(r#"{"remnant":"#));
        let mut jobs = Jobs::new();
        replay(&world, &mut jobs).await.unwrap();
        assert_eq!(text(&jobs.queue.encode()), text(&state));
    }
}

#[tokio::test]
async fn a_newer_log_is_called_newer_and_is_left_alone() {
    for world in [World::memory(), World::file().await] {
        let leader = Leader::elect(&world, 1, Rules::SECOND).await;
        leader.act(submits(0, 1)).await;
        leader.stop().await;
        // To a machine that knows the first rules only.
        let mut old = Memo::default();
        let (store, namespace) = (world.store.clone(), &world.namespace);
        let read = tenure::log::replay(store, namespace, Config::default(), &mut old, |_| {}).await;
        let error = read.unwrap_err();
        assert!(matches!(error, Error::Newer { .. }), "{error}");
        assert!(error.to_string().contains("nothing is damaged"), "{error}");
        // To this version, when a later one has taken over.
        let key = world.key("origin");
        let origin = world.store.get(&key).await.unwrap().unwrap();
        let mut value: Value = serde_json::from_slice(&origin.value).unwrap();
        assert_eq!((&value["format"], &value["rules"]), (&json!(2), &json!(2)));
        value["rules"] = json!(Rules::LATEST.0 + 1);
        let newer = Bytes::from(value.to_string());
        let expect = Expect::Version(origin.version);
        world.store.put(&key, newer.clone(), &expect).await.unwrap();
        let mut jobs = Jobs::new();
        let (store, namespace) = (world.store.clone(), &world.namespace);
        let config = Config::default();
        let taken = Log::take_over(store, namespace, owner(2), config, &mut jobs, |_| {}).await;
        let error = taken.unwrap_err();
        assert!(matches!(error, Error::Newer { .. }), "{error}");
        // Whoever wrote it still leads.
        let after = world.store.get(&key).await.unwrap().unwrap();
        assert_eq!(after.value, newer);
    }
}

/// What is kept of every version: see the README there.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The log of a version, on a store of its form.
async fn stored(name: &str) -> World {
    let objects = lines(&data().join(name).with_extension("jsonl"));
    let namespace = Namespace::new("default").unwrap();
    let mut world = if name.ends_with("segments") {
        World::file().await
    } else {
        World::objects(Arc::new(Memory::new()))
    };
    world.namespace = namespace;
    let mut folder = None;
    if let Some(temporary) = &world.folder {
        // As the version wrote them, with whatever its store put around them.
        let root = temporary.path().join("default/queue");
        folder = Some(root);
    }
    for object in objects {
        let (name, text) = (
            object["name"].as_str().unwrap(),
            object["text"].as_str().unwrap(),
        );
        match &folder {
            Some(folder) => {
                let path = folder.join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            None => {
                let key = Key::new(format!("default/queue/{name}")).unwrap();
                let value = Bytes::from(text.to_owned());
                world.store.put(&key, value, &Expect::Absent).await.unwrap();
            }
        }
    }
    if let Some(temporary) = &world.folder {
        world.store = Arc::new(File::open(temporary.path()).await.unwrap()) as Arc<dyn Store>;
    }
    world
}

/// The state as its broker showed it.
fn shown(queue: &Queue) -> Vec<Value> {
    let value = |shown: Result<Value, _>| shown.unwrap();
    let queues = queue.queues().map(|mut view| {
        let oldest = queue.oldest_ready(&view.name);
        view.oldest_ready_at = oldest.map(|job| job.created_at);
        view
    });
    let schedules = queue.schedules().cloned().map(tenure_api::Schedule::from);
    let head = json!({
        "queues": value(serde_json::to_value(queues.collect::<Vec<_>>())),
        "schedules": value(serde_json::to_value(schedules.collect::<Vec<_>>())),
        "settings": value(serde_json::to_value(queue.settings())),
    });
    let jobs = queue.page(&Filter::default(), PageStart::After(0), usize::MAX);
    let jobs = jobs
        .jobs
        .into_iter()
        .map(|job| value(serde_json::to_value(job)));
    [head].into_iter().chain(jobs).collect()
}

/// Whether everything that is expected is there. Later versions may show more.
fn has(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => expected
            .iter()
            .all(|(name, value)| found.get(name).is_some_and(|found| has(found, value))),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found
                    .iter()
                    .zip(expected)
                    .all(|(one, other)| has(one, other))
        }
        _ => found == expected,
    }
}

async fn replays(name: &str, rules: Rules) {
    let world = stored(name).await;
    let mut jobs = Jobs::new();
    replay(&world, &mut jobs).await.unwrap();
    assert_eq!(jobs.queue.rules(), rules, "{name}");
    let expected = lines(&data().join(format!("{name}.expected.jsonl")));
    let found = shown(&jobs.queue);
    assert_eq!(found.len(), expected.len(), "{name}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!(has(found, expected), "{name}: {found}\n{expected}");
    }
    // And goes on, by the newest rules.
    let leader = Leader::elect(&world, 1_000, Rules::LATEST).await;
    leader.act(submits(0, 3)).await;
    let state = leader.stop().await;
    let mut jobs = Jobs::new();
    replay(&world, &mut jobs).await.unwrap();
    assert_eq!(text(&jobs.queue.encode()), text(&state), "{name}");
}

#[tokio::test]
async fn logs_of_every_version_replay_to_the_state_that_they_had() {
    for (version, rules) in [
        ("rules-1", Rules::FIRST),
        ("rules-2", Rules::SECOND),
        ("rules-3", Rules::THIRD),
    ] {
        for form in ["segments", "objects"] {
            replays(&format!("{version}-{form}"), rules).await;
        }
    }
}
