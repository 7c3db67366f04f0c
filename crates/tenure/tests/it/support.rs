//! What several tests need.

use std::time::Duration;

use tenure::core::session::Config;
use tenure::{Election, Leadership, Node, NodeOptions};
use tokio::time::timeout;

/// Long enough for a slow machine; nothing is measured against it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The server that a test wants, from the environment; without it the test is skipped, out loud.
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

/// A namespace that no other test uses: servers are shared.
pub(crate) fn namespace() -> String {
    format!("it-{}", uuid::Uuid::new_v4())
}

pub(crate) async fn node(url: &str, namespace: &str, name: &str, ttl: Duration) -> Node {
    let mut options = NodeOptions::new(url, namespace);
    options.node = Some(name.to_owned());
    options.session = Config::for_ttl(ttl);
    Node::start(options).await.unwrap()
}

pub(crate) async fn elected(election: &Election) -> Leadership {
    timeout(PATIENCE, election.elected())
        .await
        .expect("nobody is elected")
        .unwrap()
}
