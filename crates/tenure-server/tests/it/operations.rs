//! Health, readiness, metrics, and the dashboard's page.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;
use tenure_server::{Published, Tokens, Value};

use crate::support::{Broker, answered, config, problem, store_in, until};

#[tokio::test]
async fn a_server_without_its_store_is_alive_and_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("store");
    let mut config = config(&store_in(&place));
    config.ttl = Duration::from_secs(2);
    let broker = Broker::started(config).await;
    broker.serving().await;
    assert_eq!(
        broker.get("/readyz").await,
        (200, json!({"status":"leader"}))
    );
    // Moved away, and replaced by something that is not a folder.
    fs::rename(&place, folder.path().join("away")).unwrap();
    fs::write(&place, "").unwrap();
    let reason = until(async || {
        let (status, answer) = broker.get("/readyz").await;
        (status == 503).then(|| answer["reason"].as_str().unwrap().to_owned())
    })
    .await;
    assert!(!reason.is_empty());
    assert_eq!(broker.get("/healthz").await, (200, json!({"status":"ok"})));
    let (status, answer) = broker.post("/v1/jobs", json!({"type":"t"})).await;
    assert!(status == 503, "{status} {answer}");
}

/// A file system of a few megabytes in memory, unmounted when dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs"]);
        let mounted = mount.arg(folder.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(folder));
        }
        tenure_testkit::skip::for_want_of("a small disk, and a user that may mount one");
        None
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join("filler")
    }

    /// Fills the disk except for this many bytes.
    fn fill(&self, left: u64) {
        let mut file = File::create(self.filler()).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
        let bytes = file.metadata().unwrap().len();
        file.set_len(bytes - left).unwrap();
    }

    fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, since a store that is still open keeps its disk.
        let mut unmount = Command::new("umount");
        let _ = unmount.arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_server_whose_disk_is_full_is_not_ready_until_there_is_room_again() {
    let Some(disk) = Disk::mount() else { return };
    let leader = Broker::started(config(&store_in(&disk.store()))).await;
    leader.serving().await;
    let standby = Broker::started(config(&store_in(&disk.store()))).await;
    let ready = async |broker: &Broker| broker.get("/readyz").await;
    let submit = async |broker: &Broker, bytes: usize| {
        let job = json!({ "type": "t", "payload": "x".repeat(bytes) });
        broker.post("/v1/jobs", job).await
    };
    until(async || (ready(&standby).await.0 == 200).then_some(())).await;

    // Room for heartbeats and for small jobs, but not for this one.
    disk.fill(64 * 1024);
    // The broker reports this before it has refused any submit.
    let (status, answer) = until(async || {
        let answer = ready(&leader).await;
        (answer.0 == 503).then_some(answer)
    })
    .await;
    assert_eq!(status, 503, "{answer}");
    let refused = submit(&leader, 120_000).await;
    problem(
        &refused,
        StatusCode::SERVICE_UNAVAILABLE,
        "store_unavailable",
        None,
    );
    let (status, answer) = ready(&leader).await;
    assert_eq!(status, 503, "{answer}");
    let reason = answer["reason"].as_str().unwrap();
    assert!(reason.contains("refuses to write jobs"), "{reason}");
    let said = until(async || {
        let (status, answer) = ready(&standby).await;
        (status == 503).then(|| answer["reason"].as_str().unwrap().to_owned())
    });
    assert_eq!(said.await, reason);
    // Jobs that fit are accepted, through the standby too, and do not make the broker ready.
    assert_eq!(submit(&leader, 10).await.0, 201);
    assert_eq!(submit(&standby, 10).await.0, 201);
    for _ in 0..3 {
        assert_eq!(ready(&leader).await.0, 503);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }

    // The broker notices without a submit.
    disk.free();
    for broker in [&leader, &standby] {
        until(async || (ready(broker).await.0 == 200).then_some(())).await;
    }
    assert!(!disk.store().join("default/queue/trial").exists());
    assert_eq!(submit(&leader, 120_000).await.0, 201);

    // A commit that is as large also shows that there is room.
    disk.fill(64 * 1024);
    assert_eq!(submit(&leader, 120_000).await.0, 503);
    disk.free();
    assert_eq!(submit(&leader, 120_000).await.0, 201);
    until(async || (ready(&leader).await.0 == 200).then_some(())).await;
    assert_eq!(leader.get("/v1/stats").await.0, 200);
}

#[tokio::test]
async fn the_numbers_of_every_layer_are_published() {
    let broker = Broker::start().await;
    broker.submit("t").await;
    let claimed = broker.claim().await;
    let path = format!("/v1/jobs/{}/complete", claimed["id"].as_str().unwrap());
    broker
        .post(&path, json!({ "token": claimed["token"] }))
        .await;
    let response = broker
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let page = response.text().await.unwrap();
    for line in [
        "tenure_http_requests_total{route=\"/v1/jobs\",status=\"2xx\"} 1",
        "tenure_http_requests_total{route=\"/v1/jobs/{id}/complete\",status=\"2xx\"} 1",
        "tenure_election_leads{election=\"tenure.queue\"} 1.0",
        "tenure_queue_serving 1.0",
        "tenure_queue_jobs{queue=\"default\",state=\"completed\"} 1.0",
        "tenure_queue_submitted_total 1",
        "tenure_queue_completed_total 1",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    for name in [
        "tenure_http_request_seconds_bucket",
        "le=\"+Inf\",operation=\"put\",outcome=\"done\"",
        "tenure_heartbeat_seconds_count",
        "tenure_store_request_seconds_count",
        "tenure_queue_commits_total",
        "tenure_queue_commit_seconds_bucket",
        "tenure_queue_position",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_cpu_seconds",
        "# EOF",
    ] {
        assert!(page.contains(name), "{name} is not in\n{page}");
    }
}

/// Strict readers refuse a page that describes a name twice.
#[tokio::test]
async fn numbers_of_one_name_are_described_once() {
    let broker = Broker::start().await;
    for name in ["orders", "mail"] {
        broker.handle.publish(move || {
            let number = |metric, value| Published {
                name: metric,
                help: "For a test",
                labels: vec![("outbox", name.to_owned())],
                value,
            };
            vec![
                number("tenure_test_waiting", Value::Gauge(3.0)),
                number("tenure_test_delivered", Value::Counter(5)),
            ]
        });
    }
    let page = broker
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let about: Vec<&str> = page
        .lines()
        .filter(|line| line.contains("tenure_test_"))
        .collect();
    assert_eq!(
        about,
        [
            "# HELP tenure_test_delivered For a test",
            "# TYPE tenure_test_delivered counter",
            "tenure_test_delivered_total{outbox=\"orders\"} 5",
            "tenure_test_delivered_total{outbox=\"mail\"} 5",
            "# HELP tenure_test_waiting For a test",
            "# TYPE tenure_test_waiting gauge",
            "tenure_test_waiting{outbox=\"orders\"} 3.0",
            "tenure_test_waiting{outbox=\"mail\"} 3.0",
        ]
    );
    let mut described = std::collections::HashSet::new();
    for line in page.lines().filter(|line| line.starts_with("# TYPE ")) {
        assert!(described.insert(line), "twice: {line}");
    }
    broker.handle.stop().await;
}

#[tokio::test]
async fn the_page_allows_nothing_from_elsewhere() {
    let broker = Broker::start().await;
    let response = broker.request(Method::GET, "/").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let policy = response.headers()["content-security-policy"]
        .to_str()
        .unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    let page = response.text().await.unwrap();
    assert!(page.contains("assets/main.js"), "{page}");
}

/// As on the dashboard, on an object store and where the log is kept in files.
#[tokio::test]
async fn commits_and_objects_can_be_looked_at_by_admins() {
    let folder = tempfile::tempdir().unwrap();
    for store in ["memory:".to_owned(), store_in(folder.path())] {
        let broker = Broker::start_with(|config| {
            config.store.clone_from(&store);
            let tokens = "admin aaaaaaaaaaaaaaaa\nworker wwwwwwwwwwwwwwww";
            config.tokens = Tokens::parse(tokens).unwrap();
        })
        .await;
        let look = async |token: &str, path: &str| {
            let request = broker.request(Method::GET, &format!("/v1/dashboard/{path}"));
            answered(request.bearer_auth(token)).await
        };
        let admin = async |path: &str| look("aaaaaaaaaaaaaaaa", path).await;
        let submit = broker.request(Method::POST, "/v1/jobs");
        let submit = submit.bearer_auth("wwwwwwwwwwwwwwww");
        let (status, _) = answered(submit.json(&json!({"type": "send", "id": "a"}))).await;
        assert_eq!(status, 201);

        let (_, last) = admin("commit").await;
        assert_eq!(
            (&last["kind"], &last["truncated"]),
            (&json!("commit"), &json!(false)),
            "{last}"
        );
        let record = last["lines"][0].as_str().unwrap();
        assert!(record.contains("send"), "{last}");
        let (_, first) = admin("commit?index=1").await;
        assert_eq!(
            (&first["kind"], &first["index"]),
            (&json!("term"), &json!(1)),
            "{first}"
        );
        problem(
            &admin("commit?index=999").await,
            StatusCode::NOT_FOUND,
            "not_found",
            Some("index"),
        );

        let (_, objects) = admin("objects").await;
        let key = "default/elections/tenure.queue";
        assert!(
            objects["keys"].as_array().unwrap().contains(&json!(key)),
            "{objects}"
        );
        let (_, object) = admin(&format!("object?key={key}")).await;
        assert!(
            object["value"].as_str().unwrap().contains("holder"),
            "{object}"
        );
        let other = admin("object?key=other/elections/tenure.queue").await;
        problem(
            &other,
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_field",
            Some("key"),
        );
        // Claims have tokens, and sessions digests of secrets.
        for path in ["commit", "objects", &format!("object?key={key}")] {
            assert_eq!(look("wwwwwwwwwwwwwwww", path).await.0, 403, "{path}");
        }
        broker.handle.stop().await;
    }
}
