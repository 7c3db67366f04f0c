//! Who may do what, and by which connection.

use reqwest::{Certificate, Client, Method, StatusCode};
use serde_json::json;
use tenure_server::{Tls, Tokens};

use crate::support::{Broker, PATIENCE, answered, client, problem};

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

#[tokio::test]
async fn https_is_served_with_the_certificate_of_a_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut broker = Broker::start_with(|config| {
        config.tls = Some(Tls {
            certificate,
            key,
            authority: None,
        });
    })
    .await;
    assert!(broker.url.starts_with("https://"), "{}", broker.url);
    assert!(
        broker
            .request(Method::GET, "/healthz")
            .send()
            .await
            .is_err(),
        "not trusted"
    );
    let trusted = Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    let trusting = Client::builder().no_proxy().timeout(PATIENCE);
    broker.http = trusting.tls_certs_only([trusted]).build().unwrap();
    broker.submit("t").await;
    let plain = broker.url.replace("https://", "http://");
    assert!(
        client()
            .get(format!("{plain}/healthz"))
            .send()
            .await
            .is_err()
    );
}
