//! Which brokers there are, as one of them says: what a client asks when those that it was given are gone.
//!
//! A broker that has answered is asked for the others, now and then, while the call that it has answered goes on. Those that
//! were given come first; the others are tried behind them. So a list of one that dies is no dead end, once it has answered.
//!
//! Who has another way to find brokers, such as a store that names them, can be asked when none of those that are known answers.
//!
//! A token goes no further than before: a client that was given https addresses uses no others. Nor does a client on another
//! host use addresses that mean the broker's own.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tenure_api::{Cluster, ElectionName};
use tokio::time::Instant;
use url::{Host, Url};

/// How often to ask, at most.
const LOOK: Duration = Duration::from_secs(30);

/// How often to look elsewhere, at most, while nobody answers.
const SEARCH: Duration = Duration::from_secs(2);

/// How many are remembered, besides those that were given.
const FOUND_MAX: usize = 16;

/// The brokers that a client knows.
pub(crate) struct Nodes {
    given: Vec<Url>,
    /// With those that were given first.
    all: RwLock<Arc<[Url]>>,
    /// When to look again; none if never.
    next: Mutex<Option<Instant>>,
    /// Who else knows of brokers, and when it was asked last.
    finder: Option<Finder>,
    searched: Mutex<Option<Instant>>,
}

/// Finds the URLs of brokers.
pub(crate) type Finder =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Vec<String>> + Send>> + Send + Sync>;

impl Nodes {
    pub(crate) fn new(given: Vec<Url>, discovers: bool, finder: Option<Finder>) -> Self {
        Self {
            all: RwLock::new(given.as_slice().into()),
            next: Mutex::new(discovers.then(Instant::now)),
            given,
            finder,
            searched: Mutex::default(),
        }
    }

    /// Nobody who is known answers: looks elsewhere, while the caller goes on.
    pub(crate) fn search(self: &Arc<Self>) {
        let Some(finder) = &self.finder else {
            return;
        };
        let now = Instant::now();
        let mut searched = self.searched.lock().unwrap_or_else(PoisonError::into_inner);
        if searched.is_some_and(|last| now < last + SEARCH) {
            return;
        }
        *searched = Some(now);
        let (nodes, found) = (self.clone(), finder());
        tokio::spawn(async move {
            let found = found.await;
            let urls = found.iter().filter_map(|url| Url::parse(url).ok());
            let new = usable(urls, &nodes.given);
            if !new.is_empty() {
                nodes.remember(new);
            }
        });
    }

    pub(crate) fn all(&self) -> Arc<[Url]> {
        self.all
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether it is time to look; then nobody else does.
    pub(crate) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = next.is_some_and(|next| next <= now);
        if is_due {
            *next = Some(now + LOOK);
        }
        is_due
    }

    /// Remembers who is there.
    pub(crate) fn found(&self, cluster: &Cluster) {
        self.remember(brokers(cluster, &self.given));
    }

    fn remember(&self, found: Vec<Url>) {
        let all: Arc<[Url]> = self.given.iter().cloned().chain(found).collect();
        *self.all.write().unwrap_or_else(PoisonError::into_inner) = all;
    }
}

/// The living brokers that a client may use, without those that it was given.
fn brokers(cluster: &Cluster, given: &[Url]) -> Vec<Url> {
    let election = cluster
        .elections
        .iter()
        .find(|election| election.name.as_str() == ElectionName::QUEUE);
    let candidates = election.map_or(&[][..], |election| &election.candidates);
    let alive = cluster
        .nodes
        .iter()
        .filter(|node| node.state == "alive" && candidates.contains(&node.node));
    let urls = alive.filter_map(|node| Url::parse(node.address.as_deref()?).ok());
    usable(urls, given)
}

/// Those that a client may use, without those that it was given.
fn usable(urls: impl Iterator<Item = Url>, given: &[Url]) -> Vec<Url> {
    let is_secure = given.iter().all(|url| url.scheme() == "https");
    let is_local = given.iter().any(is_loopback);
    let mut known: Vec<Url> = given.to_vec();
    for url in urls {
        let is_usable = url.scheme() == "https" || (url.scheme() == "http" && !is_secure);
        if is_usable
            && (is_local || !is_loopback(&url))
            && known.iter().all(|other| other.origin() != url.origin())
            && known.len() < given.len() + FOUND_MAX
        {
            known.push(url);
        }
    }
    known.split_off(given.len())
}

/// Whether an address means the host that it is used on.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(addresses: &[&str]) -> Cluster {
        let nodes: Vec<_> = addresses
            .iter()
            .enumerate()
            .map(|(place, address)| {
                serde_json::json!({
                    "node": format!("n{place}"), "incarnation": "00000000000000000000000000000001", "state": "alive",
                    "address": address, "joined_at": 0, "ttl_ms": 1,
                })
            })
            .collect();
        let candidates: Vec<_> = (0..nodes.len()).map(|place| format!("n{place}")).collect();
        let election = serde_json::json!({"name": "tenure.queue", "leader": null, "term": 1, "candidates": candidates});
        let all = serde_json::json!({
            "namespace": "default", "node": "n0", "leader": null, "elections": [election], "nodes": nodes,
        });
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn only_living_brokers_that_can_be_reached_are_used() {
        let seen = cluster(&[
            "http://127.0.0.1:8080",
            "http://127.0.0.1:8081",
            "http://10.0.0.5",
        ]);
        let found = |cluster: &Cluster, given: &str| -> Vec<String> {
            let given = [Url::parse(given).unwrap()];
            brokers(cluster, &given)
                .iter()
                .map(Url::to_string)
                .collect()
        };
        let local = "http://127.0.0.1:8080";
        assert_eq!(
            found(&seen, local),
            ["http://127.0.0.1:8081/", "http://10.0.0.5/"]
        );
        assert_eq!(found(&seen, "http://broker"), ["http://10.0.0.5/"]);
        assert!(
            found(&seen, "https://broker").is_empty(),
            "a token that went by TLS goes nowhere else"
        );
        assert_eq!(
            found(&cluster(&["https://b:1"]), "https://broker"),
            ["https://b:1/"]
        );
        let mut dead = cluster(&["http://127.0.0.1:8081"]);
        dead.nodes[0].state = "evicted".to_owned();
        assert!(found(&dead, local).is_empty());
        let mut daemon = cluster(&["http://127.0.0.1:8081"]);
        daemon.elections.clear();
        assert!(
            found(&daemon, local).is_empty(),
            "who cannot serve the queue is no broker"
        );
        let many: Vec<String> = (1..99).map(|port| format!("http://h:{port}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(found(&cluster(&many), local).len(), FOUND_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_all_callers_looks_now_and_then() {
        let url = Url::parse("http://a").unwrap();
        let nodes = Nodes::new(vec![url.clone()], true, None);
        assert!(nodes.is_due() && !nodes.is_due());
        tokio::time::advance(LOOK).await;
        assert!(nodes.is_due() && !nodes.is_due());
        assert!(!Nodes::new(vec![url], false, None).is_due());
    }
}
