//! `tenure log`, on logs written like a broker's: whole outputs.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tenure::Token;
use tenure::core::election::Term;
use tenure::core::queue::{Command, Queue, Restore};
use tenure::core::{Incarnation, Lineage, Namespace};
use tenure::log::{Config, Log, Machine, Owner, Position, Record, Rules, Writer};
use tenure::queue::Unreadable;
use tenure::store::{Expect, Key, Store};
use tokio_util::sync::CancellationToken;

use crate::run::Scene;
use crate::support::run;

/// A queue like a broker's.
pub(crate) struct Jobs {
    pub(crate) queue: Queue,
    restore: Restore,
}

impl Jobs {
    fn new() -> Self {
        Self {
            queue: Queue::new(1),
            restore: Restore::new(1),
        }
    }
}

impl Machine for Jobs {
    type Command = Record;
    type Answer = ();
    type Error = Unreadable;

    fn apply(&mut self, position: Position, record: Record) {
        self.replay(position, record.as_ref()).unwrap();
    }

    fn replay(&mut self, _: Position, record: &[u8]) -> Result<(), Unreadable> {
        let command: Command = serde_json::from_slice(record)?;
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
        *self = Self::new();
    }

    fn restore(&mut self, lines: &[u8]) -> Result<(), Unreadable> {
        Ok(self.restore.feed(lines)?)
    }

    fn restored(&mut self) -> Result<(), Unreadable> {
        let restore = std::mem::replace(&mut self.restore, Restore::new(1));
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

fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

async fn take_over(scene: &Scene, term: u64, config: Config) -> (Log, Jobs) {
    let url = scene.path("store").display().to_string();
    let store = tenure::store::open(&url).await.unwrap();
    elected(&*store, term).await;
    take_over_in(store, term, config).await
}

/// Writes the lease and the fence that an election leaves after this term.
async fn elected(store: &dyn Store, term: u64) {
    let (incarnation, lineage) = (Incarnation(term.into()), Lineage(1));
    let holder = json!({"node": "n", "incarnation": incarnation, "ttl_ms": 10_000});
    let writer = json!({"incarnation": incarnation, "counter": 1});
    let lease =
        json!({"format": 1, "lineage": lineage, "term": term, "state": "vacant", "writer": writer});
    let fence = json!({"format": 1, "lineage": lineage, "term": term, "holder": holder});
    for (name, value) in [("elections", lease), ("fences", fence)] {
        let key = Key::new(format!("default/{name}/tenure.queue")).unwrap();
        let expect = match store.get(&key).await.unwrap() {
            Some(object) => Expect::Version(object.version),
            None => Expect::Absent,
        };
        let value = Bytes::from(value.to_string());
        store.put(&key, value, &expect).await.unwrap();
    }
}

/// Reads the log of the default namespace, as the leader of a term.
pub(crate) async fn take_over_in(store: Arc<dyn Store>, term: u64, config: Config) -> (Log, Jobs) {
    let owner = Owner {
        token: Token {
            lineage: Lineage(1),
            term: Term(term),
        },
        incarnation: Incarnation(term.into()),
    };
    let mut jobs = Jobs::new();
    let namespace = Namespace::new("default").unwrap();
    let log = Log::take_over(store, &namespace, owner, config, &mut jobs, |_| {}).await;
    (log.unwrap(), jobs)
}

fn record(second: u64, action: &Value) -> Record {
    Record::new(json!({"at": second * 1000, "do": action}).to_string()).unwrap()
}

fn submit(id: &str) -> Value {
    json!({"submit": [{"id": id, "type": "mail", "payload": 1}]})
}

/// Two terms: a and b are submitted, then a is claimed and c is submitted.
pub(crate) fn two_terms(scene: &Scene) {
    in_runtime(async {
        let (mut log, jobs) = take_over(scene, 1, Config::default()).await;
        let records = [record(60, &submit("a")), record(61, &submit("b"))];
        log.commit(&records).await.unwrap();
        // It ends in order, so the next leader continues from its file and not from a copy.
        let (handle, writer) = Writer::new(log, jobs, CancellationToken::new());
        let (ended, ()) = tokio::join!(writer.run(), handle.shutdown());
        ended.unwrap();
        let (mut log, _) = take_over(scene, 5, Config::default()).await;
        let claim = json!({"claim": {"worker": "w", "max": 1, "lease_ms": 30000, "nonce": 7}});
        log.commit(&[record(62, &claim)]).await.unwrap();
        log.commit(&[record(63, &submit("c"))]).await.unwrap();
    });
}

#[track_caller]
fn check(scene: &Scene, arguments: &[&str], code: i32, stdout: &str, stderr: &str) {
    let ended = run(&mut scene.tenure(arguments));
    assert_eq!(
        ended,
        (code, stdout.to_owned(), stderr.to_owned()),
        "tenure {arguments:?}"
    );
}

fn documents(scene: &Scene, arguments: &[&str]) -> Vec<Value> {
    let (_, stdout, stderr) = run(&mut scene.tenure(arguments));
    assert_eq!(stderr, "");
    let document = |line: &str| serde_json::from_str(line).unwrap();
    stdout.lines().map(document).collect()
}

/// Closes the gaps between columns.
fn listed(scene: &Scene) -> String {
    let (code, stdout, stderr) = run(&mut scene.tenure(&["log"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    stdout.lines().map(line).collect()
}

const FIRST: &str = "segments/00000000000000000001-000001";
const SECOND: &str = "segments/00000000000000000002-000001";

#[test]
fn a_namespace_without_a_queue_says_so() {
    let scene = Scene::new();
    let none = "there is no queue in the namespace default";
    check(&scene, &["log"], 1, "", &format!("note: {none}\n"));
    let error = format!(
        "error: {none}\nhint: check that --store and --namespace are the same as the broker's\n"
    );
    check(&scene, &["log", "show", "1"], 2, "", &error);
    check(&scene, &["log", "diff", "1", "2"], 2, "", &error);
    check(&scene, &["log", "verify"], 2, "", &error);
}

#[test]
fn everything_that_is_stored_is_listed() {
    let scene = Scene::new();
    two_terms(&scene);
    assert_eq!(
        listed(&scene),
        format!(
            "stored in segments, takeover 2, term 5\n\
             NAME INDEX RECORD TERM BYTES TIME\n\
             {FIRST} 1-2 1-2 1 630 1970-01-01T00:01:01Z\n\
             {SECOND} 3-5 3-4 5 950 1970-01-01T00:01:03Z\n"
        )
    );
    let rows = documents(&scene, &["log", "--json"]);
    assert_eq!(
        rows[1],
        json!({"name": SECOND, "kind": "segment", "first_place": 3, "place": 5, "first_record": 3,
               "record": 4, "takeover": 2, "term": 5, "bytes": 950, "time": "1970-01-01T00:01:03Z"})
    );
}

#[test]
fn commits_are_shown_record_by_record() {
    let scene = Scene::new();
    two_terms(&scene);
    check(
        &scene,
        &["log", "show", "2"],
        0,
        &format!(
            "index 2: commit of records 1 to 2, term 1, takeover 1 ({FIRST} at offset 245)\n\
             \x20      1  1970-01-01T00:01:00Z  submit [{{\"id\":\"a\",\"payload\":1,\"type\":\"mail\"}}]\n\
             \x20      2  1970-01-01T00:01:01Z  submit [{{\"id\":\"b\",\"payload\":1,\"type\":\"mail\"}}]\n"
        ),
        "",
    );
    let shown = documents(&scene, &["log", "show", SECOND, "--json"]);
    assert_eq!(shown.len(), 3);
    assert_eq!(shown[0]["kind"], "term");
    assert_eq!(
        shown[2],
        json!({"place": 5, "kind": "commit", "term": 5, "takeover": 2,
               "incarnation": "00000000000000000000000000000005", "position": 4,
               "record": {"at": 63000, "do": submit("c")}})
    );
    check(
        &scene,
        &["log", "show", "9"],
        2,
        "",
        "error: there is no index 9 in the log\nhint: `tenure log` lists what is stored\n",
    );
    check(
        &scene,
        &["log", "show", "../origin"],
        2,
        "",
        "error: \"../origin\" is not the name of anything in a log\n\
         hint: use a log index, or a name such as log/00000000000000000007\n",
    );
}

#[test]
fn the_difference_between_two_places_is_told_job_by_job() {
    let scene = Scene::new();
    two_terms(&scene);
    check(
        &scene,
        &["log", "diff", "2", "5"],
        1,
        "~ job a: state ready -> running, attempt 0 -> 1, \
         changed_at 1970-01-01T00:01:00Z -> 1970-01-01T00:01:02Z, lease_ms none -> 30000, worker none -> w\n\
         + job c: ready, queue default, type mail, attempt 0, since 1970-01-01T00:01:03Z\n\
         1 added, 0 removed, 1 changed, 1 unchanged\n",
        "",
    );
    let changes = documents(&scene, &["log", "diff", "2", "5", "--json"]);
    assert_eq!(changes[0]["before"]["state"], "ready");
    assert_eq!(changes[0]["after"]["state"], "running");
    assert_eq!(changes[1]["job"]["id"], "c");
    let nothing = "0 added, 0 removed, 0 changed, 3 unchanged\n";
    check(&scene, &["log", "diff", "5", "5"], 0, nothing, "");
    check(
        &scene,
        &["log", "diff", "5", "2"],
        2,
        "",
        "error: 5 comes after 2\nhint: name the earlier one first\n",
    );
    check(
        &scene,
        &["log", "diff", "2", "6"],
        2,
        "",
        "error: the log ends at index 5; there is no index 6\nhint: use an earlier index\n",
    );
}

#[test]
fn damage_is_named_and_a_torn_end_is_harmless() {
    let scene = Scene::new();
    two_terms(&scene);
    let whole = "intact: 0 snapshots, 5 frames with 4 records, 1580 bytes, up to log index 5 and record 4\n";
    check(&scene, &["log", "verify"], 0, whole, "");

    let second = scene.path("store").join("default/queue").join(SECOND);
    let bytes = std::fs::read(&second).unwrap();
    let torn = [frames(&bytes), b"{\"format\":1,\"kind"].concat();
    std::fs::write(&second, torn).unwrap();
    let location = second.display();
    let harmless = format!(
        "harmless {location} at offset 950: an unfinished frame; it was never acknowledged if a crash tore it\n{whole}"
    );
    check(&scene, &["log", "verify"], 0, &harmless, "");
    std::fs::write(&second, bytes).unwrap();

    let first = scene.path("store").join("default/queue").join(FIRST);
    let mut bytes = std::fs::read(&first).unwrap();
    let last = frames(&bytes).len() - 5;
    bytes[last] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    let (code, stdout, _) = run(&mut scene.tenure(&["log", "verify"]));
    let location = first.display();
    let damaged =
        format!("damaged {location} at offset 245: the checksum of its records is wrong\n");
    assert_eq!(code, 1);
    assert!(stdout.starts_with(&damaged), "{stdout}");
    let (code, _, stderr) = run(&mut scene.tenure(&["log", "show", FIRST]));
    assert_eq!(code, 2);
    assert!(stderr.contains("at offset 245 is damaged"), "{stderr}");
    assert!(listed(&scene).contains("damaged: the checksum of its records is wrong"));
    let document = documents_of(&scene, &["log", "verify", "--json"]);
    assert_eq!(
        document["damage"].as_array().unwrap().len(),
        1,
        "{document}"
    );
}

#[test]
fn a_lease_and_a_fence_that_do_not_fit_the_log_are_named() {
    let scene = Scene::new();
    two_terms(&scene);
    let (lease, fence) = ("elections/tenure.queue", "fences/tenure.queue");
    let path = |name: &str| scene.path("store").join("default").join(name);
    let verify = || {
        let (code, stdout, _) = run(&mut scene.tenure(&["log", "verify"]));
        let damaged = stdout.lines().filter(|line| line.starts_with("damaged "));
        let damaged: Vec<_> = damaged.map(str::to_owned).collect();
        assert_eq!(code, i32::from(!damaged.is_empty()), "{stdout}");
        damaged
    };
    assert_eq!(verify(), [""; 0]);
    for (name, other) in [(lease, fence), (fence, lease)] {
        let whole = std::fs::read(path(name)).unwrap();
        let text = String::from_utf8(whole.clone()).unwrap();
        let older = text.replace(r#""term":5"#, r#""term":4"#);
        assert_ne!(older, text);
        let newer = text.replace(r#""term":5"#, r#""term":6"#);
        let elsewhere = older.replace(r#"000001""#, r#"000002""#);
        let cases = [
            (Some(older), "it has term 4, but term 5 was led"),
            (Some("{".to_owned() + &text), "it cannot be read"),
            (None, "it is missing, although term 5 was led"),
            // Another election has begun since, or continues.
            (Some(newer), ""),
            (Some(elsewhere), ""),
        ];
        for (value, expected) in cases {
            match value {
                Some(value) => std::fs::write(path(name), value).unwrap(),
                None => std::fs::remove_file(path(name)).unwrap(),
            }
            let damaged = verify();
            assert_eq!(
                damaged.len(),
                usize::from(!expected.is_empty()),
                "{damaged:?}"
            );
            if let Some(damaged) = damaged.first() {
                let start = format!("damaged default/{name}: {expected}");
                assert!(damaged.starts_with(&start), "{damaged}");
                assert!(!damaged.starts_with(other), "{damaged}");
            }
            std::fs::write(path(name), &whole).unwrap();
        }
    }
    std::fs::remove_file(path(lease)).unwrap();
    std::fs::remove_file(path(fence)).unwrap();
    let damaged = verify();
    assert_eq!(damaged.len(), 1);
    assert!(damaged[0].contains("starts over at term 1"), "{damaged:?}");
}

/// What a leader wrote to a file, without the zeros after it.
fn frames(file: &[u8]) -> &[u8] {
    let end = file.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    &file[..end]
}

fn documents_of(scene: &Scene, arguments: &[&str]) -> Value {
    let (_, stdout, _) = run(&mut scene.tenure(arguments));
    serde_json::from_str(&stdout).unwrap()
}

/// Fills the log until there are two snapshots, and returns the names of the newest two, since another may have been
/// started by then.
fn two_snapshots(scene: &Scene) -> Vec<String> {
    in_runtime(async {
        let config = Config {
            snapshot_bytes_min: 2000,
            object_cost_bytes: 0,
            ..Config::default()
        };
        let (log, jobs) = take_over(scene, 1, config).await;
        let (handle, writer) = Writer::new(log, jobs, CancellationToken::new());
        let writer = tokio::spawn(writer.run());
        let mut number = 0;
        while handle.statistics().snapshots < 2 {
            let line = record(60, &submit(&format!("job-{number:03}")));
            handle.commit(line.as_bytes().clone()).await.unwrap();
            number += 1;
        }
        handle.shutdown().await;
        writer.await.unwrap().unwrap();
    });
    let rows = documents(scene, &["log", "--json"]);
    let names = rows
        .iter()
        .filter(|row| row["kind"] == "snapshot" && row["remark"].is_null());
    let names = names.map(|row| row["name"].as_str().unwrap().to_owned());
    let mut names: Vec<String> = names.collect();
    names.split_off(names.len() - 2)
}

#[test]
fn snapshots_are_shown_and_compared() {
    let scene = Scene::new();
    let names = two_snapshots(&scene);
    let (code, shown, _) = run(&mut scene.tenure(&["log", "show", &names[0]]));
    assert_eq!(code, 0);
    for line in [
        "settings {",
        "job [{\"sequence\":1,\"id\":\"job-000\"",
        "end {",
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    let (code, between, stderr) = run(&mut scene.tenure(&["log", "diff", &names[0], &names[1]]));
    assert_eq!((code, stderr.as_str()), (1, ""));
    let added = between
        .lines()
        .filter(|line| line.starts_with("+ job job-"))
        .count();
    assert_eq!(added, between.lines().count() - 1);
    assert!(between.contains(&format!("{added} added, 0 removed, 0 changed, ")));
    // A snapshot is the state at its place.
    let place = |name: &str| -> String {
        let digits = name.split_once('/').unwrap().1.split_once('-').unwrap().0;
        digits.parse::<u64>().unwrap().to_string()
    };
    let (_, rebuilt, stderr) =
        run(&mut scene.tenure(&["log", "diff", &place(&names[0]), &place(&names[1])]));
    assert_eq!((rebuilt, stderr.as_str()), (between, ""));
    let (code, _, stderr) = run(&mut scene.tenure(&["log", "verify"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
}

#[test]
fn new_commits_are_followed() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let scene = Scene::new();
    two_terms(&scene);
    let mut command = scene.tenure(&["log", "show", "4", "--follow", "--poll", "10ms", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["place"], 4);
    assert_eq!(next()["place"], 5);
    in_runtime(async {
        let (mut log, _) = take_over(&scene, 6, Config::default()).await;
        log.commit(&[record(64, &submit("d"))]).await.unwrap();
    });
    assert_eq!(next()["kind"], "term");
    assert_eq!(next()["record"]["do"], submit("d"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn objects_are_listed_and_shown_as_well() {
    let scene = Scene::new();
    let url = format!("sqlite:{}", scene.path("database").display());
    in_runtime(async {
        let store: Arc<dyn Store> = tenure::store::open(&url).await.unwrap();
        elected(&*store, 3).await;
        let (mut log, _) = take_over_in(store, 3, Config::default()).await;
        log.commit(&[record(60, &submit("a"))]).await.unwrap();
    });
    let run = |arguments: &[&str]| run(scene.tenure(arguments).env("TENURE_STORE", &url));
    let (code, stdout, stderr) = run(&["log"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let words: Vec<Vec<&str>> = stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(words[0].join(" "), "stored in objects, takeover 1, term 3");
    assert_eq!(
        words[2].join(" "),
        "log/00000000000000000001 1 - 3 245 - takeover"
    );
    assert_eq!(
        words[3].join(" "),
        "log/00000000000000000002 2 1 3 316 1970-01-01T00:01:00Z"
    );
    let (code, stdout, _) = run(&["log", "show", "2"]);
    assert_eq!(code, 0);
    assert!(
        stdout.starts_with("index 2: commit of record 1, term 3"),
        "{stdout}"
    );
    let (code, stdout, _) = run(&["log", "verify"]);
    assert_eq!(code, 0, "{stdout}");
}
