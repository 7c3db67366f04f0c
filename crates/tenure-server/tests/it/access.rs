//! Who may do what, and by which connection.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use reqwest::{Certificate, Client, Method, StatusCode};
use serde_json::json;
use tenure_server::{Tls, Tokens};
use tenure_testkit::recording::Recording;

use crate::support::{Broker, PATIENCE, answered, client, config, problem, store_in, until};

const TOKENS: &str = "read rrrrrrrrrrrrrrrr\nworker wwwwwwwwwwwwwwww\nadmin aaaaaaaaaaaaaaaa\n";

/// Every call with the scope that it needs.
const CALLS: &[(&str, &str)] = &[
    ("GET /v1/jobs", "read"),
    ("GET /v1/jobs/a", "read"),
    ("GET /v1/queues", "read"),
    ("GET /v1/queues/q", "read"),
    ("GET /v1/schedules", "read"),
    ("GET /v1/schedules/s", "read"),
    ("GET /v1/settings", "read"),
    ("GET /v1/time", "read"),
    ("GET /v1/workers", "read"),
    ("GET /v1/stats", "read"),
    ("GET /v1/cluster", "read"),
    ("GET /v1/cluster/plan", "read"),
    ("GET /v1/elections/e", "read"),
    ("GET /v1/elections/e/leader", "read"),
    ("GET /v1/events", "read"),
    ("GET /v1/dashboard/stream", "read"),
    ("GET /v1/dashboard/node", "read"),
    ("GET /v1/dashboard/queues", "read"),
    ("GET /v1/dashboard/series", "read"),
    ("GET /v1/dashboard/sparks", "read"),
    ("POST /v1/dashboard/login", "read"),
    ("GET /v1/dashboard/jobs", "read"),
    ("GET /v1/dashboard/jobs/a/history", "read"),
    ("GET /metrics", "read"),
    ("GET /osqueue/state", "read"),
    ("GET /osqueue/v1/stats", "read"),
    ("GET /osqueue/v1/jobs", "read"),
    ("POST /v1/jobs", "worker"),
    ("POST /v1/jobs/claim", "worker"),
    ("POST /v1/jobs/heartbeat", "worker"),
    ("POST /v1/jobs/complete", "worker"),
    ("POST /v1/jobs/fail", "worker"),
    ("POST /v1/jobs/a/heartbeat", "worker"),
    ("POST /v1/jobs/a/complete", "worker"),
    ("POST /v1/jobs/a/fail", "worker"),
    ("POST /v1/jobs/release", "worker"),
    ("POST /v1/jobs/a/release", "worker"),
    ("PUT /v1/elections/e/candidates/a", "worker"),
    ("DELETE /v1/elections/e/candidates/a", "worker"),
    ("POST /v1/elections/e/elect", "worker"),
    ("POST /osqueue/v1/jobs", "worker"),
    ("POST /osqueue/v1/jobs/claim", "worker"),
    ("POST /osqueue/v1/jobs/a/heartbeat", "worker"),
    ("POST /osqueue/v1/jobs/a/complete", "worker"),
    ("POST /v1/jobs/a/cancel", "admin"),
    ("POST /v1/jobs/a/retry", "admin"),
    ("POST /v1/jobs/retry", "admin"),
    ("POST /v1/jobs/move", "admin"),
    ("DELETE /v1/jobs/a", "admin"),
    ("PUT /v1/queues/q", "admin"),
    ("PATCH /v1/queues/q", "admin"),
    ("POST /v1/queues/q/pause", "admin"),
    ("POST /v1/queues/q/resume", "admin"),
    ("PUT /v1/schedules/s", "admin"),
    ("POST /v1/schedules/s/pause", "admin"),
    ("POST /v1/schedules/s/resume", "admin"),
    ("DELETE /v1/schedules/s", "admin"),
    ("PUT /v1/settings", "admin"),
    ("PATCH /v1/settings", "admin"),
    ("PUT /v1/time", "admin"),
    ("POST /v1/nodes/n/drain", "admin"),
    ("POST /v1/nodes/n/undrain", "admin"),
    ("POST /v1/leader/transfer", "admin"),
    // Comes last, since it may make this broker stop leading.
    ("POST /v1/leader/resign", "admin"),
];

/// Calls that need no token.
const OPEN: &[&str] = &["GET /healthz", "GET /readyz"];

#[tokio::test]
async fn every_documented_call_is_in_the_list_of_scopes() {
    let broker = Broker::start().await;
    let (_, document) = broker.get("/openapi.json").await;
    let parts = |call: &str| call.split('/').map(str::to_owned).collect::<Vec<_>>();
    let listed: Vec<_> = CALLS
        .iter()
        .map(|(call, _)| *call)
        .chain(OPEN.iter().copied())
        .map(parts)
        .collect();
    // A parameter in the document matches any value in the list.
    let same = |documented: &[String], listed: &[String]| {
        documented.len() == listed.len()
            && documented
                .iter()
                .zip(listed)
                .all(|(documented, listed)| documented == listed || documented.starts_with('{'))
    };
    let mut documented = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let call = format!("{} {path}", method.to_uppercase());
            assert!(
                listed.iter().any(|listed| same(&parts(&call), listed)),
                "{call} is missing"
            );
            documented += 1;
        }
    }
    assert!(documented > 40, "only {documented} calls in the document");
}

#[tokio::test]
async fn a_call_needs_a_token_of_its_scope() {
    let tokens = Tokens::parse(TOKENS).unwrap();
    let broker = Broker::start_with(|config| config.tokens = tokens).await;
    // Checked before the calls: the last of them makes this broker stop leading, and then it is not ready.
    for path in ["/healthz", "/readyz", "/openapi.json", "/osqueue/healthz"] {
        assert_eq!(broker.get(path).await.0, 200, "{path}");
    }
    let order = ["", "read", "worker", "admin"];
    let place = |scope: &str| order.iter().position(|each| *each == scope).unwrap();
    for (call, needed) in CALLS {
        let (method, path) = call.split_once(' ').unwrap();
        for scope in order {
            let mut request = broker.request(method.parse().unwrap(), path);
            if !scope.is_empty() {
                request = request.bearer_auth(scope[..1].repeat(16));
            }
            if path.contains("/candidates/") {
                // The same secret for everyone, since secrets are not what is tested here.
                request = request.json(&json!({"secret": "one-secret-for-all"}));
            }
            let status = request.send().await.unwrap().status();
            match scope {
                "" => assert_eq!(status, StatusCode::UNAUTHORIZED, "{call}"),
                _ if place(scope) < place(needed) => {
                    assert_eq!(status, StatusCode::FORBIDDEN, "{call} as {scope}");
                }
                _ => assert!(
                    status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN,
                    "{call} as {scope}: {status}"
                ),
            }
        }
    }
    let wrong = broker
        .request(Method::GET, "/v1/jobs")
        .bearer_auth("r".repeat(15));
    problem(
        &answered(wrong).await,
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        None,
    );
}

#[tokio::test]
async fn without_tokens_pages_of_elsewhere_are_kept_out() {
    let broker = Broker::start().await;
    let job = json!({"type":"t"});
    let foreign = broker.request(Method::POST, "/v1/jobs").json(&job);
    let foreign = answered(foreign.header("origin", "https://evil.example")).await;
    problem(&foreign, StatusCode::FORBIDDEN, "forbidden", None);
    let rebound = broker
        .request(Method::GET, "/v1/jobs")
        .header("host", "evil.example");
    problem(
        &answered(rebound).await,
        StatusCode::FORBIDDEN,
        "forbidden",
        None,
    );
    let own = broker.request(Method::POST, "/v1/jobs").json(&job);
    assert_eq!(
        answered(own.header("origin", broker.url.clone())).await.0,
        201
    );
}

#[tokio::test]
async fn without_tokens_pages_of_elsewhere_cannot_look_either() {
    let broker = Broker::start().await;
    for path in ["/v1/jobs", "/v1/cluster", "/metrics", "/osqueue/state"] {
        for (name, value, is_allowed) in [
            ("sec-fetch-site", "cross-site", false),
            ("sec-fetch-site", "same-site", false),
            ("sec-fetch-site", "same-origin", true),
            ("sec-fetch-site", "none", true),
            ("origin", "https://evil.example", false),
            ("origin", &broker.url, true),
        ] {
            let request = broker.request(Method::GET, path).header(name, value);
            let status = request.send().await.unwrap().status();
            let expected = if is_allowed {
                StatusCode::OK
            } else {
                StatusCode::FORBIDDEN
            };
            assert_eq!(status, expected, "{path} with {name}: {value}");
        }
    }
    // Links from other sites to the page are allowed, and health is for everybody.
    for path in ["/", "/healthz"] {
        let request = broker.request(Method::GET, path);
        let request = request.header("sec-fetch-site", "cross-site");
        assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
    }
}

/// The log of this thread, as text.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn changes_and_refusals_leave_a_trail() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("tenure_server::audit=info")
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _recording = Recording::start(subscriber);
    let tokens = Tokens::parse(TOKENS).unwrap();
    let broker = Broker::start_with(|config| config.tokens = tokens).await;
    let admin = |method: Method, path: &str| {
        let request = broker.request(method, path);
        request.bearer_auth("a".repeat(16))
    };
    for (call, body, action) in [
        ("PUT /v1/settings", json!({"jobs_max": 7}), "set_settings"),
        ("PUT /v1/time", json!({"to": 1}), "set_time"),
        ("PUT /v1/queues/q", json!({"concurrency": 2}), "set_queue"),
        ("POST /v1/queues/q/pause", json!({}), "pause_queue"),
        ("POST /v1/queues/q/resume", json!({}), "resume_queue"),
        (
            "PUT /v1/schedules/s",
            json!({"cron":"0 3 * * *","job":{"type":"t","payload":"SECRET"}}),
            "set_schedule",
        ),
        ("POST /v1/schedules/s/pause", json!({}), "pause_schedule"),
        ("POST /v1/schedules/s/resume", json!({}), "resume_schedule"),
        ("DELETE /v1/schedules/s", json!({}), "delete_schedule"),
        ("POST /v1/jobs/none/cancel", json!({}), "cancel_job"),
        ("POST /v1/jobs/none/retry", json!({}), "retry_job"),
        ("POST /v1/jobs/retry", json!({"state":"dead"}), "retry_jobs"),
        (
            "POST /v1/jobs/move",
            json!({"ids":["none"],"queue":"q"}),
            "move_jobs",
        ),
        ("DELETE /v1/jobs/none", json!({}), "delete_job"),
        ("POST /v1/nodes/n1/drain", json!({}), "drain_node"),
        ("POST /v1/nodes/n1/undrain", json!({}), "undrain_node"),
        ("POST /v1/leader/transfer", json!({"node":"n1"}), "transfer"),
        ("POST /v1/leader/resign", json!({}), "resign"),
    ] {
        let (method, path) = call.split_once(' ').unwrap();
        let request = admin(method.parse().unwrap(), path).json(&body);
        let status = request.send().await.unwrap().status();
        let lines = log.lines();
        let line = lines.last().unwrap();
        let outcome = if status.is_success() {
            "outcome=\"done\""
        } else {
            "outcome=\"failed\""
        };
        for part in [
            &format!("action=\"{action}\""),
            outcome,
            "who=\"admin token ",
            "from=\"127.0.0.1:",
            call,
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
    let settings = &log.lines()[0];
    assert!(settings.contains("jobs_max"), "{settings}");
    for _ in 0..50 {
        let request = broker.request(Method::GET, "/v1/jobs");
        let answer = request.bearer_auth("wrongwrongwrongwrong").send().await;
        assert_eq!(answer.unwrap().status(), StatusCode::UNAUTHORIZED);
    }
    let request = broker.request(Method::PUT, "/v1/settings");
    let answer = request.bearer_auth("r".repeat(16)).json(&json!({})).send();
    assert_eq!(answer.await.unwrap().status(), StatusCode::FORBIDDEN);
    let lines = log.lines();
    let refused = lines.iter().filter(|line| line.contains("unauthorized"));
    assert_eq!(refused.count(), 20, "a flood does not flood the log");
    let text = lines.join("\n");
    for secret in ["aaaaaaaaaaaaaaaa", "wrongwrong", "SECRET"] {
        assert!(!text.contains(secret), "{secret} is in the log");
    }
    let page = admin(Method::GET, "/metrics").send().await.unwrap();
    let page = page.text().await.unwrap();
    for line in [
        "tenure_audit_total{action=\"pause_queue\",outcome=\"done\"} 1",
        "tenure_audit_total{action=\"cancel_job\",outcome=\"failed\"} 1",
        "tenure_audit_total{action=\"other\",outcome=\"unauthorized\"} 50",
        "tenure_audit_total{action=\"set_settings\",outcome=\"forbidden\"} 1",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

/// A new certificate for this host, written to files that a server can use. Returned in PEM.
fn certificate_in(folder: &Path) -> (Tls, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let files = Tls {
        certificate: folder.join("cert.pem"),
        key: folder.join("key.pem"),
        authority: None,
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    (files, made.cert.pem())
}

/// A client that trusts only this certificate.
fn trusting(certificate: &str) -> Client {
    let trusted = Certificate::from_pem(certificate.as_bytes()).unwrap();
    let client = Client::builder().no_proxy().timeout(PATIENCE);
    client.tls_certs_only([trusted]).build().unwrap()
}

#[tokio::test]
async fn https_is_served_with_the_certificate_of_a_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (files, certificate) = certificate_in(folder.path());
    let mut broker = Broker::start_with(|config| config.tls = Some(files)).await;
    assert!(broker.url.starts_with("https://"), "{}", broker.url);
    let untrusted = broker.request(Method::GET, "/healthz").send().await;
    assert!(untrusted.is_err(), "not trusted");
    broker.http = trusting(&certificate);
    broker.submit("t").await;
    let plain = broker.url.replace("https://", "http://");
    let plain = client().get(format!("{plain}/healthz")).send().await;
    assert!(plain.is_err());
}

#[tokio::test]
async fn a_server_with_tls_forwards_nothing_in_the_clear() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(&folder.path().join("store"));
    let listening = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut first = config(&store);
    first.advertise = Some(format!("http://{}", listening.local_addr().unwrap()));
    let leader = Broker::started(first).await;
    leader.serving().await;
    let mut second = config(&store);
    let (files, certificate) = certificate_in(folder.path());
    second.tls = Some(files);
    let mut standby = Broker::started(second).await;
    standby.http = trusting(&certificate);
    until(async || standby.handle.queue().election().leader()).await;
    let answer = standby.post("/v1/jobs", json!({"type":"t"})).await;
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
    let detail = answer.1["detail"].as_str().unwrap();
    assert!(detail.contains("without TLS"), "{detail}");
    assert_eq!(standby.get("/readyz").await.0, 503);
    let heard = tokio::time::timeout(std::time::Duration::from_millis(200), listening.accept());
    assert!(heard.await.is_err(), "something was sent in the clear");
}

#[tokio::test]
async fn a_certificate_that_cannot_be_verified_is_named() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let store = store_in(&folders[0].path().join("store"));
    let start = async |folder: &Path| {
        let (files, certificate) = certificate_in(folder);
        let mut config = config(&store);
        config.tls = Some(files);
        config.limits.hold_timeout = std::time::Duration::from_millis(300);
        let mut broker = Broker::started(config).await;
        broker.http = trusting(&certificate);
        broker
    };
    let leader = start(folders[0].path()).await;
    leader.serving().await;
    let standby = start(folders[1].path()).await;
    until(async || standby.handle.queue().election().leader()).await;
    let answer = standby.post("/v1/jobs", json!({"type":"t"})).await;
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
    let (_, ready) = standby.get("/readyz").await;
    for text in [&answer.1["detail"], &ready["reason"]] {
        let text = text.as_str().unwrap();
        assert!(text.contains("certificate cannot be verified"), "{text}");
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (files, first) = certificate_in(folder.path());
    let mut broker = Broker::start_with(|config| config.tls = Some(files)).await;
    broker.http = trusting(&first);
    let id = broker.submit("t").await;
    let (_, second) = certificate_in(folder.path());
    let renewed = trusting(&second);
    let url = format!("{}/healthz", broker.url);
    until(async || renewed.get(&url).send().await.ok()).await;
    // Existing connections continue to work.
    assert_eq!(broker.get(&format!("/v1/jobs/{id}")).await.0, 200);
    broker.http = trusting(&first);
    let old = broker.request(Method::GET, "/healthz").send().await;
    assert!(old.is_err(), "the old one is shown no more");
}
