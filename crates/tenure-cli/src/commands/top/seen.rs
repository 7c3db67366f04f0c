//! What a broker reported, at one time.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::Wall;
use tenure_client::{Client, Error, Listing, State, api};

use super::inside::{Found, Inside};
use crate::output::last_line;
use crate::times;

/// The result of a fetch: the data or the error, and what was open at the time.
pub(crate) type Answer = (Inside, Result<Arc<Seen>, String>);

/// A queue with a job that has been ready for longer than this without a worker needs attention.
const PATIENCE_MS: u64 = 60_000;

/// How long a view of the cluster is reused, unless the term changes.
const CLUSTER_FRESH: Duration = Duration::from_secs(5);

/// How many dead jobs are fetched: a tall screen has room for some.
const DEAD_MAX: u32 = 30;

/// Everything that is shown.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) at: Wall,
    pub(crate) stats: api::Stats,
    pub(crate) cluster: Arc<api::Cluster>,
    /// When that was read.
    pub(crate) cluster_at: Wall,
    /// The jobs that died last.
    pub(crate) dead: Vec<api::Job>,
    /// The content of what is open.
    pub(crate) found: Option<Found>,
}

impl Seen {
    /// Fetches everything; the cluster only now and then, since that costs requests to the store.
    pub(crate) async fn ask(
        client: &Client,
        before: Option<&Seen>,
        inside: &Inside,
    ) -> Result<Self, Error> {
        let listing = Listing::new().state(State::Dead).newest_first();
        let listing = listing.limit(DEAD_MAX);
        let (stats, dead) = tokio::try_join!(client.stats(), client.jobs(&listing))?;
        let found = inside.ask(client).await;
        let at = times::now();
        let fresh = before.filter(|before| {
            before.stats.term == stats.term && times::between(before.cluster_at, at) < CLUSTER_FRESH
        });
        let (cluster, cluster_at) = match fresh {
            Some(before) => (before.cluster.clone(), before.cluster_at),
            None => (Arc::new(client.cluster().await?), at),
        };
        Ok(Self {
            at,
            stats,
            cluster,
            cluster_at,
            dead: dead.jobs,
            found,
        })
    }

    /// The leader, its term, and for how long it has led.
    pub(crate) fn leader(&self) -> String {
        match &self.cluster.leader {
            Some(leader) => {
                // The broker's duration plus the time since the fetch, measured here; the leader's clock is not used.
                let led_for = self.cluster.led_for_ms.map(|led_for_ms| {
                    let led_for = Duration::from_millis(led_for_ms);
                    led_for + times::between(self.cluster_at, self.at)
                });
                let words = match (led_for, self.cluster.led_for_at_least) {
                    (None, _) => String::new(),
                    (Some(led_for), false) => format!(", for {}", times::duration(led_for)),
                    (Some(led_for), true) => {
                        format!(", for at least {}", times::duration(led_for))
                    }
                };
                format!("{} in term {}{words}", leader.node, leader.term)
            }
            None => "nobody".to_owned(),
        }
    }

    /// The last failure and its reason.
    pub(crate) fn failure(&self) -> Option<String> {
        let job = self.dead.first()?;
        let reason = job.error.as_deref().unwrap_or("no reason given");
        Some(format!(
            "{} {} in {}, {} ago: {}",
            job.job_type,
            job.id,
            job.queue,
            self.since(job.changed_at),
            last_line(reason)
        ))
    }

    /// The state of a queue, in a word or two.
    pub(crate) fn state(&self, queue: &api::Queue) -> &'static str {
        let waits = |at: u64| self.at.0.saturating_sub(at) > PATIENCE_MS;
        match queue.oldest_ready_at {
            _ if queue.paused => "paused",
            Some(at) if waits(at) => "behind",
            _ => "open",
        }
    }

    /// How long its oldest ready job has waited.
    pub(crate) fn oldest(&self, queue: &api::Queue) -> String {
        queue
            .oldest_ready_at
            .map_or_else(|| "-".to_owned(), |at| self.since(at))
    }

    /// The rates, per second.
    pub(crate) fn rates(&self) -> String {
        let rates = &self.stats.rates;
        format!(
            "submitted {:.1}/s  claimed {:.1}/s  completed {:.1}/s  failed {:.1}/s",
            rates.submitted, rates.claimed, rates.completed, rates.failed
        )
    }

    pub(crate) fn counts(&self) -> String {
        let counts = &self.stats.counts;
        format!(
            "{} ready  {} running  {} scheduled  {} dead",
            counts.ready, counts.running, counts.scheduled, counts.dead
        )
    }

    pub(crate) fn since(&self, at: u64) -> String {
        times::duration(times::between(Wall(at), self.at))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Two nodes, two queues, one of them behind, and a job that died.
    pub(crate) fn seen() -> Seen {
        let counts = |ready: u64, dead: u64| json!({"scheduled": 1, "ready": ready, "blocked": 0, "running": 2, "completed": 9, "cancelled": 0, "dead": dead});
        let stats = json!({
            "namespace": "default", "node": "web-1", "leader": "web-1", "term": 7, "serving": true,
            "counts": counts(5, 1), "rates": {"submitted": 2.0, "claimed": 1.0, "completed": 1.5, "failed": 0.25},
            "queues": [
                {"name": "mail", "paused": false, "options": {}, "counts": counts(5, 1), "oldest_ready_at": 10_000},
                {"name": "reports", "paused": true, "options": {}, "counts": counts(0, 0)},
            ],
        });
        let node = |name: &str, incarnation: &str| json!({"node": name, "incarnation": incarnation, "state": "alive", "joined_at": 1, "ttl_ms": 10_000});
        let (one, two) = (
            "00000000000000000000000000000001",
            "00000000000000000000000000000002",
        );
        let cluster = json!({
            "namespace": "default", "node": "web-1",
            // Its clock is an hour ahead.
            "leader": {"node": "web-1", "term": 7, "incarnation": one, "since_at": 3_640_000}, "led_for_ms": 58_000,
            "nodes": [node("web-1", one), node("web-2", two)],
        });
        let dead = json!({
            "sequence": 4, "id": "job-4", "queue": "mail", "type": "send", "payload": null, "state": "dead",
            "priority": 0, "attempt": 3, "max_attempts": 3, "created_at": 1, "run_at": 1, "changed_at": 90_000,
            "error": "550 no\u{1b}[31m such box",
        });
        Seen {
            at: Wall(100_000),
            stats: serde_json::from_value(stats).unwrap(),
            cluster: Arc::new(serde_json::from_value(cluster).unwrap()),
            cluster_at: Wall(98_000),
            dead: vec![serde_json::from_value(dead).unwrap()],
            found: None,
        }
    }

    #[test]
    fn the_questions_have_answers() {
        let mut seen = seen();
        assert_eq!(seen.leader(), "web-1 in term 7, for 1m 0s");
        Arc::make_mut(&mut seen.cluster).led_for_at_least = true;
        assert_eq!(seen.leader(), "web-1 in term 7, for at least 1m 0s");
        Arc::make_mut(&mut seen.cluster).led_for_ms = None;
        assert_eq!(seen.leader(), "web-1 in term 7");
        assert_eq!(seen.state(&seen.stats.queues[0]), "behind");
        assert_eq!(seen.state(&seen.stats.queues[1]), "paused");
        let failure = seen.failure().unwrap();
        assert!(
            failure.starts_with("send job-4 in mail, 10s ago: 550 no"),
            "{failure}"
        );
        assert!(!failure.contains('\u{1b}'));
    }
}
