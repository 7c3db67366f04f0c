//! Helpers for several tests.

use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tenure_server::{Config, Handle, Server};
use tokio::time::{Instant, sleep, timeout};

/// Long enough for a slow machine; nothing is measured against it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server and a client.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) handle: Handle,
    pub(crate) http: Client,
    pub(crate) url: String,
}

/// The configuration of a server on a free port. Its ttl is long, so that a machine that stalls for a while does not
/// lose leadership, and with it a pending request to hand over.
pub(crate) fn config(store: &str) -> Config {
    let mut config = Config::new(store);
    config.listen = "127.0.0.1:0".parse().unwrap();
    config.ttl = Duration::from_secs(60);
    config
}

/// The URL of a folder as a store.
pub(crate) fn store_in(folder: &Path) -> String {
    format!("file:{}", folder.display())
}

/// The server that a test needs, from the environment; without it the test is skipped, with a message.
#[allow(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn url(variable: &str) -> Option<String> {
    if let Ok(url) = std::env::var(variable) {
        return Some(url);
    }
    let all = std::env::var("TENURE_TEST_REQUIRE").is_ok_and(|value| value == "all");
    assert!(
        !all,
        "{variable} is not set, and TENURE_TEST_REQUIRE is all"
    );
    let test = std::thread::current().name().unwrap_or("test").to_owned();
    eprintln!("skipped: {test}: set {variable}, or run scripts/with-servers");
    None
}

pub(crate) fn client() -> Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        let provider = rustls::crypto::ring::default_provider();
        // A store's engine may have done this already.
        let _ = provider.install_default();
    });
    Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .unwrap()
}

impl Broker {
    /// A serving broker on a store in memory.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config("memory:");
        change(&mut config);
        let broker = Self::started(config).await;
        broker.serving().await;
        broker
    }

    /// A server that may be a standby.
    pub(crate) async fn started(config: Config) -> Self {
        let handle = Server::start(config).await.unwrap();
        let url = handle.url().to_owned();
        Self {
            handle,
            http: client(),
            url,
        }
    }

    pub(crate) async fn serving(&self) {
        timeout(PATIENCE, self.handle.queue().serving())
            .await
            .unwrap()
            .unwrap();
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        answered(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        answered(self.request(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> (u16, Value) {
        answered(self.request(Method::PUT, path).json(&body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (u16, Value) {
        answered(self.request(Method::DELETE, path)).await
    }

    pub(crate) async fn delete_with(&self, path: &str, body: Value) -> (u16, Value) {
        answered(self.request(Method::DELETE, path).json(&body)).await
    }

    /// Submits a job of this type and returns its id.
    pub(crate) async fn submit(&self, job_type: &str) -> String {
        let (status, answer) = self.post("/v1/jobs", json!({ "type": job_type })).await;
        assert_eq!(status, 201, "{answer}");
        answer["jobs"][0]["id"].as_str().unwrap().to_owned()
    }

    /// Claims one job, which must exist, and returns it.
    pub(crate) async fn claim(&self) -> Value {
        let (status, answer) = self.post("/v1/jobs/claim", json!({ "worker": "w" })).await;
        assert_eq!(status, 200, "{answer}");
        answer["jobs"][0].clone()
    }
}

/// The status and the JSON of an answer; null if it has no body.
pub(crate) async fn answered(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    if text.is_empty() {
        return (status, Value::Null);
    }
    let value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}"));
    (status, value)
}

/// Repeats a call until the answer is right, for what another server has to learn first.
pub(crate) async fn until<F: Future<Output = Option<T>>, T>(mut ask: impl FnMut() -> F) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < give_up, "it did not come about in time");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A problem document: its code, and its field if it has one.
#[track_caller]
pub(crate) fn problem(answer: &(u16, Value), status: StatusCode, code: &str, field: Option<&str>) {
    let (got, document) = answer;
    assert_eq!(*got, status.as_u16(), "{document}");
    assert_eq!(document["code"], code, "{document}");
    assert_eq!(document["status"], status.as_u16(), "{document}");
    assert_eq!(document["field"].as_str(), field, "{document}");
    assert!(
        document["title"].is_string() && document["detail"].is_string(),
        "{document}"
    );
}
