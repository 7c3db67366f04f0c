//! Who may do what, and by which connection.

use std::path::Path;

use reqwest::{Certificate, Client, Method, StatusCode};
use serde_json::json;
use tenure_server::{Tls, Tokens};

use crate::support::{Broker, PATIENCE, answered, client, problem, until};

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
    ("GET /v1/stats", "read"),
    ("GET /v1/cluster", "read"),
    ("GET /v1/elections/e", "read"),
    ("GET /v1/elections/e/leader", "read"),
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
    ("DELETE /v1/jobs/a", "admin"),
    ("PUT /v1/queues/q", "admin"),
    ("POST /v1/queues/q/pause", "admin"),
    ("POST /v1/queues/q/resume", "admin"),
    ("PUT /v1/schedules/s", "admin"),
    ("DELETE /v1/schedules/s", "admin"),
    ("PUT /v1/settings", "admin"),
    ("POST /v1/leader/transfer", "admin"),
];

#[tokio::test]
async fn a_call_needs_a_token_of_its_scope() {
    let tokens = Tokens::parse(TOKENS).unwrap();
    let broker = Broker::start_with(|config| config.tokens = tokens).await;
    let order = ["", "read", "worker", "admin"];
    let place = |scope: &str| order.iter().position(|each| *each == scope).unwrap();
    for (call, needed) in CALLS {
        let (method, path) = call.split_once(' ').unwrap();
        for scope in order {
            let mut request = broker.request(method.parse().unwrap(), path);
            if !scope.is_empty() {
                request = request.bearer_auth(scope[..1].repeat(16));
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
    for path in ["/healthz", "/readyz", "/openapi.json", "/osqueue/healthz"] {
        assert_eq!(broker.get(path).await.0, 200, "{path}");
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

/// A client that trusts this certificate and no other.
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
    // Who is connected already stays so.
    assert_eq!(broker.get(&format!("/v1/jobs/{id}")).await.0, 200);
    broker.http = trusting(&first);
    let old = broker.request(Method::GET, "/healthz").send().await;
    assert!(old.is_err(), "the old one is shown no more");
}
