//! osqueue's protocol, tested with the libraries that its own client uses, against the real binary.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{server, tenure};

const TRANSPORTS: [&str; 5] = ["connect", "connect-json", "connect-h2", "ws", "rest"];

const WORKER: &str = "worker-token-0123456789";

/// The libraries.
fn modules() -> Option<String> {
    server("TENURE_TEST_OSQUEUE")
}

/// A broker, and where clients of osqueue reach it.
struct Broker {
    child: Child,
    url: String,
    osqueue: String,
}

impl Broker {
    fn start(folder: &Path, change: impl FnOnce(&mut Command)) -> Self {
        let store = format!("file:{}", folder.display());
        let mut command = tenure(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--osqueue",
            "127.0.0.1:0",
        ]);
        command.args(["--store", &store, "--ttl", "3s"]);
        change(&mut command);
        command.stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut found = |name: &str| {
            let mut all = lines.by_ref().map(|line| line.unwrap());
            let line = all.find(|line| line.trim_start().starts_with(name));
            let line = line.unwrap_or_else(|| panic!("no {name}"));
            line.split_whitespace().last().unwrap().to_owned()
        };
        let url = found("dashboard").trim_end_matches('/').to_owned();
        let osqueue = found("osqueue");
        // Its further output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            url,
            osqueue,
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends one request to its osqueue listener with curl, and returns status and body.
    fn curl(&self, arguments: &[&str]) -> String {
        let output = Command::new("curl")
            .args(["-s", "-i", "--max-time", "60"])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn is_leading(&self) -> bool {
        let answer = self.curl(&[&format!("{}/readyz", self.url)]);
        answer.contains(r#""leader""#)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn node(modules: &str, transport: &str, url: &str, what: &str) -> (Child, ChildStdin) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/osqueue/client.mjs");
    let mut command = Command::new("node");
    command.args([script, modules, transport, url, what]);
    // For a WebSocket, osqueue's client drops the URL's path, so it has to be in the option `wsPath`.
    let (_, address) = url.split_once("://").unwrap();
    if let Some((_, path)) = address.split_once('/') {
        command.env("WS_PATH", format!("/{path}/v1/ws"));
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take().unwrap();
    (child, input)
}

fn told(mut child: Child) -> Value {
    let mut text = String::new();
    let mut output = child.stdout.take().unwrap();
    output.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn every_transport_answers_the_libraries_of_osqueue() {
    let Some(modules) = modules() else {
        return;
    };
    for transport in TRANSPORTS {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::start(folder.path(), |_| {});
        let standby = Broker::start(folder.path(), |_| {});
        // Through the osqueue listener, the main one, and a standby.
        let places = [
            broker.osqueue.clone(),
            format!("{}/osqueue", broker.url),
            standby.osqueue.clone(),
        ];
        for (round, place) in places.iter().enumerate() {
            let mut seen = told(node(&modules, transport, place, "calls").0);
            let id = seen["id"].take();
            let text = id.as_str().unwrap();
            assert_eq!((text.len(), &text[14..15]), (36, "4"), "{text} is no UUID");
            let [lost, wrong] = match transport {
                "ws" | "rest" => [json!("BrokerProtocolError"), json!("BrokerProtocolError")],
                // failed_precondition, invalid_argument
                _ => [json!(9), json!(3)],
            };
            // Clients normalise the path, so this becomes another call.
            let wrong = if transport == "rest" {
                seen["wrong"].clone()
            } else {
                wrong
            };
            let expected = json!({
                "id": null,
                "none": null,
                "claimed": {"jobId": id, "payload": {"n": [1, "ü"]}, "type": "img/resize"},
                "stats": {"total": 2, "unclaimed": 1, "inProgress": 1},
                "listed": {
                    "id": id, "status": "in_progress", "type": "img/resize", "payload": {"n": [1, "ü"]},
                    "workerId": "w", "attempts": 1, "maxAttempts": 2,
                },
                "moved": true,
                "stranger": lost,
                "wrong": wrong,
                "again": lost,
                "untyped": "",
                "completedTotal": 1,
                "attempts": 1,
                "together": 100,
            });
            if transport == "ws" {
                assert_eq!(seen["broken"].take(), json!(false));
                seen.as_object_mut().unwrap().remove("broken");
            }
            if round == 0 {
                assert_eq!(seen, expected, "{transport} at {place}");
            } else {
                // The jobs of the rounds before are there, too.
                for field in [
                    "claimed", "listed", "moved", "stranger", "again", "together",
                ] {
                    assert_eq!(
                        seen[field], expected[field],
                        "{transport} at {place}: {field}"
                    );
                }
            }
        }
    }
}

#[test]
fn nothing_is_lost_or_run_twice_when_the_leader_is_killed() {
    let Some(modules) = modules() else {
        return;
    };
    let with_token = |command: &mut Command| {
        command.env("TENURE_WORKER_TOKEN", WORKER);
    };
    for transport in ["connect", "connect-h2", "ws", "rest"] {
        let folder = tempfile::tempdir().unwrap();
        let mut leader = Broker::start(folder.path(), with_token);
        until(|| leader.is_leading());
        let standby = Broker::start(folder.path(), with_token);
        let place = format!("{}/t/{WORKER}", standby.osqueue);
        let (child, input) = node(&modules, transport, &place, "storm");
        let completed = |broker: &Broker| {
            let answer = broker.curl(&[&format!("{}/t/{WORKER}/v1/stats", broker.osqueue)]);
            let body = answer
                .split("\r\n\r\n")
                .last()
                .unwrap_or_default()
                .to_owned();
            let stats: Value = serde_json::from_str(&body).unwrap_or_default();
            stats["completedTotal"].as_u64().unwrap_or(0)
        };
        until(|| completed(&standby) > 50);
        leader.kill();
        until(|| standby.is_leading());
        let before = completed(&standby);
        until(|| completed(&standby) > before + 50);
        drop(input);
        let seen = told(child);
        let ids =
            |field: &str| -> Vec<String> { serde_json::from_value(seen[field].clone()).unwrap() };
        let set = |field: &str| -> BTreeSet<String> { ids(field).into_iter().collect() };
        let (submitted, done) = (set("submitted"), set("completed"));
        assert!(submitted.len() > 100, "{transport}: {}", submitted.len());
        assert_eq!(
            done.len(),
            ids("completed").len(),
            "{transport}: completed twice"
        );
        // Claimed again only if its completion is in doubt.
        let doubtful = set("doubtful");
        let mut once = BTreeSet::new();
        for id in ids("claimed") {
            assert!(
                once.insert(id.clone()) || doubtful.contains(&id),
                "{transport}: {id} ran twice"
            );
        }
        // A job that is neither done nor in doubt was claimed for a client that did not get the answer: it runs again
        // when its lease is over.
        let answer = standby.curl(&[&format!("{place}/v1/jobs")]);
        let body = answer.split("\r\n\r\n").last().unwrap();
        let list: Value = serde_json::from_str(body).unwrap();
        let left: BTreeSet<_> = list["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_str().unwrap())
            .collect();
        for id in &submitted {
            let is_kept = done.contains(id) || doubtful.contains(id) || left.contains(id.as_str());
            assert!(is_kept, "{transport}: {id} is lost");
        }
    }
}

#[test]
fn a_token_in_the_address_is_enough_off_a_named_network() {
    let Some(modules) = modules() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let with_token = |command: &mut Command| {
        command.env("TENURE_WORKER_TOKEN", WORKER);
    };
    let broker = Broker::start(folder.path(), with_token);
    let standby = Broker::start(folder.path(), |command| {
        with_token(command);
        command.env("TENURE_OSQUEUE_TOKEN", WORKER);
        command.args(["--osqueue-network", "127.0.0.0/8"]);
    });
    let refused = broker.curl(&[&format!("{}/v1/stats", broker.osqueue)]);
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    assert!(
        refused.contains(r#""_tag":"BrokerProtocolError""#),
        "{refused}"
    );
    for transport in ["connect", "connect-h2", "ws", "rest"] {
        let place = format!("{}/t/{WORKER}", broker.osqueue);
        let seen = told(node(&modules, transport, &place, "calls").0);
        assert_eq!(seen["together"], 100, "{transport} by path: {seen}");
        // From a configured network, and forwarded to the leader with that network's token.
        let seen = told(node(&modules, transport, &standby.osqueue, "calls").0);
        assert_eq!(seen["together"], 100, "{transport} by network: {seen}");
    }
    // REST is left out: `fetch` refuses an address with a user.
    let place = broker.osqueue.replace("//", &format!("//tenure:{WORKER}@"));
    for transport in ["connect", "ws"] {
        let seen = told(node(&modules, transport, &place, "calls").0);
        assert_eq!(seen["together"], 100, "{transport} by user: {seen}");
    }
}

#[test]
fn pages_of_named_origins_may_call() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), |command| {
        command.args(["--cors-origin", "https://app.example.org"]);
    });
    let asked = |origin: &str, url: &str, more: &[&str]| {
        let origin = format!("Origin: {origin}");
        let mut arguments = vec!["-H", &origin, url];
        arguments.extend(more);
        broker.curl(&arguments).to_ascii_lowercase()
    };
    let allowed = "access-control-allow-origin: https://app.example.org";
    let question = ["-X", "OPTIONS", "-H", "Access-Control-Request-Method: POST"];
    for url in [
        format!("{}/v1/jobs", broker.url),
        format!("{}/v1/jobs", broker.osqueue),
        format!("{}/osqueue.v1.QueueService/SubmitJob", broker.osqueue),
    ] {
        let preflight = asked("https://app.example.org", &url, &question);
        assert!(
            preflight.starts_with("http/1.1 204") && preflight.contains(allowed),
            "{preflight}"
        );
        let other = asked("https://evil.example", &url, &question);
        assert!(!other.contains("access-control-allow-origin"), "{other}");
    }
    let submit = ["--json", r#"{"type":"x","payload":1}"#];
    for url in [
        format!("{}/v1/jobs", broker.url),
        format!("{}/v1/jobs", broker.osqueue),
    ] {
        let done = asked("https://app.example.org", &url, &submit);
        assert!(
            done.starts_with("http/1.1 20") && done.contains(allowed),
            "{done}"
        );
        let refused = asked("https://evil.example", &url, &submit);
        assert!(refused.starts_with("http/1.1 403"), "{refused}");
    }
}

#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "it did not come about in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The file of a bucket as osqueue leaves it.
fn queue_file(folder: &Path) -> std::path::PathBuf {
    let id = |number: u32| format!("00000000-0000-4000-8000-{number:012}");
    let job = |number: u32, status: &str, payload: Value, more: Value| {
        let mut job = json!({
            "id": id(number), "status": status, "payload": payload, "createdAt": 1, "attempts": 0,
        });
        job.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job
    };
    let large = "x".repeat(300 * 1024);
    let state = json!({
        "broker": "10.0.0.1:8080", "brokerHeartbeat": 5, "completedTotal": 9,
        "jobs": [
            job(1, "unclaimed", json!({"to": "a"}), json!({"type": "mail", "maxAttempts": 7})),
            job(2, "in_progress", json!(2), json!({"type": "img/resize", "attempts": 2, "workerId": "w", "heartbeat": 4})),
            job(3, "unclaimed", json!(large), json!({"type": "mail"})),
            job(4, "unclaimed", json!(null), json!({"attempts": 9, "maxAttempts": 3})),
            // As something else than osqueue may have left them: they keep no other out.
            job(5, "unclaimed", json!(5), json!({"maxAttempts": "3"})),
            json!(6),
        ],
    });
    let path = folder.join("queue.json");
    std::fs::write(&path, state.to_string()).unwrap();
    path
}

#[test]
fn the_jobs_of_a_bucket_are_taken_over_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = queue_file(folder.path());
    let broker = Broker::start(&folder.path().join("data"), |_| {});
    let import = || {
        let file = file.display().to_string();
        let arguments = [
            "import",
            "osqueue",
            &file,
            "--json",
            "--server",
            &broker.url,
        ];
        let (code, stdout, stderr) = crate::support::run(&mut tenure(&arguments));
        let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stderr}"));
        (code, report)
    };
    let (code, mut report) = import();
    for (refused, words) in [(0, "expected i64"), (1, "invalid type"), (2, "262144")] {
        let reason = report["refused"][refused]["reason"].take();
        assert!(reason.as_str().unwrap().contains(words), "{reason}");
    }
    let refused = json!([
        {"id": "00000000-0000-4000-8000-000000000005", "reason": null},
        {"id": "job number 6", "reason": null},
        {"id": "00000000-0000-4000-8000-000000000003", "reason": null},
    ]);
    assert_eq!(code, 1, "three were refused");
    assert_eq!(
        report,
        json!({"jobs": 6, "created": 3, "duplicates": 0, "held_back": 1, "refused": refused})
    );
    let (_, again) = import();
    assert_eq!(
        (&again["created"], &again["duplicates"]),
        (&json!(0), &json!(3))
    );
    let job = |number: u32| -> Value {
        let url = format!(
            "{}/v1/jobs/00000000-0000-4000-8000-{number:012}",
            broker.url
        );
        let answer = broker.curl(&[&url]);
        serde_json::from_str(answer.split("\r\n\r\n").last().unwrap()).unwrap()
    };
    let (first, held, last) = (job(1), job(2), job(4));
    assert_eq!(
        (&first["payload"], &first["max_attempts"]),
        (&json!({"to": "a"}), &json!(7))
    );
    // Its worker may still run it: nobody else gets it earlier than osqueue would have allowed.
    assert_eq!(
        (&held["state"], &held["type"]),
        (&json!("scheduled"), &json!("=img=2Fresize"))
    );
    assert_eq!(held["max_attempts"], 1, "two of three attempts are gone");
    assert_eq!(
        (&last["type"], &last["max_attempts"]),
        (&json!("="), &json!(1))
    );
    assert!(
        first["sequence"].as_u64() < last["sequence"].as_u64(),
        "in their order"
    );
}

/// It holds nothing of ours, and nothing is written there.
#[test]
fn the_jobs_of_a_bucket_on_s3_are_taken_over() {
    let Some(url) = server("TENURE_TEST_S3_CEPH") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = queue_file(folder.path()).display().to_string();
    let broker = Broker::start(&folder.path().join("data"), |_| {});
    let (place, parameters) = url.split_once('?').unwrap();
    let bucket = place.strip_prefix("s3://").unwrap();
    let mut parameters = parameters.split('&');
    let endpoint = parameters.find_map(|it| it.strip_prefix("endpoint="));
    let prefix = format!("osqueue-{}", std::process::id());
    let variable = |name: &str| std::env::var(name).unwrap();
    let region = variable("AWS_REGION");
    let uploaded = broker.curl(&[
        "--aws-sigv4",
        &format!("aws:amz:{region}:s3"),
        "--user",
        &format!(
            "{}:{}",
            variable("AWS_ACCESS_KEY_ID"),
            variable("AWS_SECRET_ACCESS_KEY")
        ),
        "-H",
        "x-amz-content-sha256: UNSIGNED-PAYLOAD",
        "-T",
        &file,
        &format!("{}/{bucket}/{prefix}/queue.json", endpoint.unwrap()),
    ]);
    assert!(uploaded.contains("200 OK"), "{uploaded}");
    let source = url.replace(bucket, &format!("{bucket}/{prefix}"));
    let arguments = [
        "import",
        "osqueue",
        &source,
        "--json",
        "--server",
        &broker.url,
    ];
    let (_, stdout, stderr) = crate::support::run(&mut tenure(&arguments));
    let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stderr}"));
    assert_eq!(
        (&report["jobs"], &report["created"]),
        (&json!(6), &json!(3))
    );
    let empty = url.replace(bucket, &format!("{bucket}/{prefix}-other"));
    let arguments = ["import", "osqueue", &empty, "--server", &broker.url];
    let (code, _, stderr) = crate::support::run(&mut tenure(&arguments));
    assert!(
        code == 2 && stderr.contains("there is no queue.json"),
        "{code} {stderr}"
    );
}

#[test]
fn a_bucket_that_is_still_written_to_is_not_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = queue_file(folder.path());
    let broker = Broker::start(&folder.path().join("data"), |_| {});
    let path = file.display().to_string();
    let mut command = tenure(&["import", "osqueue", &path, "--server", &broker.url]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A heartbeat of osqueue's broker, again and again until it was seen.
    let done = std::sync::atomic::AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let text = std::fs::read_to_string(&file).unwrap();
            for beat in 6.. {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                let next = file.with_extension("next");
                std::fs::write(
                    &next,
                    text.replace(
                        r#""brokerHeartbeat":5"#,
                        &format!(r#""brokerHeartbeat":{beat}"#),
                    ),
                )
                .unwrap();
                std::fs::rename(&next, &file).unwrap();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let output = child.wait_with_output().unwrap();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        output
    });
    let (code, stdout, stderr) = crate::support::ended(output);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(
        stderr.contains("an osqueue broker is still running"),
        "{stderr}"
    );
}

#[test]
fn one_address_of_a_broker_that_dies_is_no_dead_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut leader = Broker::start(folder.path(), |_| {});
    until(|| leader.is_leading());
    let standby = Broker::start(folder.path(), |_| {});
    let submit = |server: &str| {
        let arguments = [
            "job",
            "submit",
            "echo",
            "1",
            "--wait",
            "1m",
            "--timeout",
            "1m",
            "--server",
            server,
        ];
        crate::support::run(&mut tenure(&arguments))
    };
    // A worker that knows only the first broker.
    let mut worker = tenure(&[
        "worker",
        "--type",
        "echo",
        "--server",
        &leader.url,
        "--timeout",
        "1m",
        "--",
        "cat",
    ])
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    let (code, _, stderr) = submit(&leader.url);
    assert_eq!(code, 0, "{stderr}");
    leader.kill();
    until(|| standby.is_leading());
    // Clients that may read the store can find the remaining brokers there.
    let store = format!("file:{}", folder.path().display());
    let (code, stdout, stderr) = submit(&store);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("completed"), "{stdout}");
    worker.kill().unwrap();
    worker.wait().unwrap();
}

/// As in the README: the worker has not been told about the second broker when the first is killed.
#[test]
fn a_worker_that_knows_the_store_finds_brokers_that_are_started_later() {
    let folder = tempfile::tempdir().unwrap();
    let mut leader = Broker::start(folder.path(), |_| {});
    until(|| leader.is_leading());
    let store = format!("file:{}", folder.path().display());
    let arguments = [
        "worker",
        "--type",
        "echo",
        "--server",
        &store,
        "--timeout",
        "1m",
        "--",
        "cat",
    ];
    let mut worker = tenure(&arguments).stderr(Stdio::null()).spawn().unwrap();
    let submit = || {
        let arguments = [
            "job",
            "submit",
            "echo",
            "1",
            "--wait",
            "1m",
            "--timeout",
            "1m",
            "--server",
            &store,
        ];
        let (code, stdout, stderr) = crate::support::run(&mut tenure(&arguments));
        assert!(
            code == 0 && stdout.contains("completed"),
            "{stdout}{stderr}"
        );
    };
    submit();
    let standby = Broker::start(folder.path(), |_| {});
    until(|| {
        standby
            .curl(&[&format!("{}/readyz", standby.url)])
            .contains("standby")
    });
    leader.kill();
    submit();
    worker.kill().unwrap();
    worker.wait().unwrap();
}
