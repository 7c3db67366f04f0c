//! What this node knows without asking the leader: who leads, which nodes are there, and how its store does.
//!
//! Leadership is checked five times a second, in memory, and pages hear at once when it changes. The nodes and the
//! past terms are in the store: they are read when leadership changes, and now and then while a page is open. A store
//! that does not answer delays nothing: the page keeps what was last read, and shows the problem.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure::core::election::{Leader, Term};
use tenure::queue::Serving;
use tenure_api::{Cluster, Incarnation, Namespace, NodeId};
use tenure_store::Store as _;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::store::StoreSummary;
use super::{Frame, locked, now};
use crate::app::App;
use crate::handlers::cluster;
use crate::problem::{Problem, chain};

/// How often leadership is checked.
const LOOK: Duration = Duration::from_millis(200);

/// How often pages are sent an event when nothing has changed.
const TELL: Duration = Duration::from_secs(1);

/// How often nodes are read from the store while a page is open.
const READ: Duration = Duration::from_secs(2);

/// The same, on stores that bill each request.
const READ_BILLED: Duration = Duration::from_secs(10);

/// How long a reading of the store may take.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// What was read from the store last.
#[derive(Debug, Default)]
pub(super) struct Looked {
    cluster: Option<Cluster>,
    /// How long ago each session was written, when it was read.
    heartbeats: BTreeMap<Incarnation, u64>,
    /// Why the last reading failed.
    problem: Option<String>,
    begun: Option<Instant>,
    is_reading: bool,
    /// Since when no leader has been seen, while there is none.
    leaderless_since: Option<u64>,
    /// The leader that was last seen, and when it was first seen: by the wall clock, to show, and by the monotonic
    /// clock, to count from.
    leader: Option<(Leader, u64, Instant)>,
    /// When the cluster was read.
    read_at: Option<Instant>,
}

impl Looked {
    /// For how long this leader has been seen, if it is the one that was last seen.
    pub(super) fn seen_for(&self, term: Term) -> Option<Duration> {
        let (leader, _, seen) = self.leader.as_ref()?;
        (leader.term == term).then(|| seen.elapsed())
    }

    /// For how long the leader has led, and whether it may be longer. Uses no other host's clock.
    fn led_for(&self, term: Term) -> Option<(Duration, bool)> {
        let read = self.cluster.as_ref().zip(self.read_at);
        let read = read.and_then(|(cluster, read_at)| {
            let is_its = cluster.leader.as_ref()?.term == term.0;
            let led_for = Duration::from_millis(cluster.led_for_ms.filter(|_| is_its)?);
            Some((led_for + read_at.elapsed(), cluster.led_for_at_least))
        });
        read.or_else(|| Some((self.seen_for(term)?, true)))
    }
}

/// The `node` event.
#[derive(Debug, Serialize)]
struct Summary {
    at: u64,
    version: &'static str,
    started_at: u64,
    namespace: Namespace,
    node: NodeId,
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    leader: Option<LeaderSummary>,
    /// The last term that is known of.
    term: u64,
    leaderless_since_at: Option<u64>,
    /// As last read from the store.
    cluster: Option<Cluster>,
    /// How long ago each node was heard from, in milliseconds, by incarnation.
    heartbeats: BTreeMap<Incarnation, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_problem: Option<String>,
    store: StoreSummary,
}

#[derive(Debug, Serialize)]
struct LeaderSummary {
    node: NodeId,
    incarnation: Incarnation,
    term: u64,
    /// When the term began by the leader's clock, or was first seen here. Only to show, not to count from.
    since_at: u64,
    /// For how long it has led, by the store's clock or this broker's, and whether it may be longer.
    for_ms: Option<u64>,
    for_at_least: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

/// Watches until the server stops.
pub(super) async fn watch(app: Arc<App>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Instant::now();
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = app.stop.cancelled() => return,
        }
        let changed = look(&app);
        if app.dashboard.node.receiver_count() == 0 {
            continue;
        }
        if changed || is_due(&app) {
            read(&app);
        }
        if changed || told.elapsed() >= TELL || app.dashboard.node.borrow().is_empty() {
            told = Instant::now();
            tell(&app);
        }
    }
}

/// Checks who leads. True if that has changed.
fn look(app: &App) -> bool {
    let leader = app.leader();
    let mut looked = locked(&app.dashboard.looked);
    if looked.leader.as_ref().map(|(leader, ..)| leader) == leader.as_ref() {
        if leader.is_none() {
            looked.leaderless_since.get_or_insert_with(now);
        }
        return false;
    }
    looked.leaderless_since = leader.is_none().then(now);
    looked.leader = leader.map(|leader| (leader, now(), Instant::now()));
    true
}

fn is_due(app: &App) -> bool {
    let pause = if is_billed(app) { READ_BILLED } else { READ };
    let begun = locked(&app.dashboard.looked).begun;
    begun.is_none_or(|begun| begun.elapsed() >= pause)
}

fn is_billed(app: &App) -> bool {
    matches!(app.store.describe().engine, "s3" | "gcs" | "azure")
}

/// Reads the cluster in the background, unless that is already under way.
fn read(app: &Arc<App>) {
    {
        let mut looked = locked(&app.dashboard.looked);
        if looked.is_reading {
            return;
        }
        looked.is_reading = true;
        looked.begun = Some(Instant::now());
    }
    let app = app.clone();
    tokio::spawn(async move {
        refresh(&app).await;
        tell(&app);
    });
}

async fn refresh(app: &Arc<App>) {
    // It is read anew when leadership has changed: an older reading shows the former leader.
    let read = timeout(READ_TIMEOUT, app.looks.cluster(app, Instant::now())).await;
    let mut looked = locked(&app.dashboard.looked);
    looked.is_reading = false;
    match read {
        Ok(Ok(overview)) => {
            let milliseconds = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            looked.cluster = Some(overview.cluster.clone());
            looked.read_at = Some(Instant::now());
            let ages = overview.ages.iter();
            looked.heartbeats = ages.map(|(of, age)| (*of, milliseconds(*age))).collect();
            looked.problem = None;
        }
        Ok(Err(problem)) => looked.problem = Some(problem.document().detail.clone()),
        Err(_) => looked.problem = Some("the store did not answer in time".to_owned()),
    }
}

fn tell(app: &App) {
    let frame = Frame::new("node", &summary(app));
    app.dashboard.node.send_replace(frame);
}

/// What the `node` event holds, for those who do not follow
pub(super) async fn show(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    look(&app);
    if is_due(&app) {
        locked(&app.dashboard.looked).begun = Some(Instant::now());
        refresh(&app).await;
    }
    let json = Frame::new("node", &summary(&app)).json();
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, kind)], json).into_response())
}

fn summary(app: &App) -> Summary {
    let now = now();
    let store =
        locked(&app.dashboard.readings).summary(now, app.meter.snapshot(), &app.store.describe());
    let looked = locked(&app.dashboard.looked);
    let leader = looked
        .leader
        .as_ref()
        .map(|(leader, seen_at, _)| described(leader, *seen_at, &looked));
    let (role, detail) = role(app);
    let past = looked.cluster.iter().flat_map(|cluster| &cluster.elections);
    let own = app.queue.election().name();
    let past = past.filter(|election| election.name == *own);
    let past = past.map(|election| election.term).next();
    Summary {
        at: now,
        version: env!("CARGO_PKG_VERSION"),
        started_at: app.dashboard.started_at,
        namespace: cluster::namespace(app),
        node: app.node.id().clone(),
        role,
        detail,
        term: leader
            .as_ref()
            .map(|leader| leader.term)
            .or(past)
            .unwrap_or(0),
        leader,
        leaderless_since_at: looked.leaderless_since,
        cluster: looked.cluster.clone(),
        heartbeats: looked.heartbeats.clone(),
        cluster_problem: looked.problem.clone(),
        store,
    }
}

/// A leader, with what the store says about the same term.
fn described(leader: &Leader, seen_at: u64, looked: &Looked) -> LeaderSummary {
    let cluster = looked.cluster.as_ref();
    let stored = cluster
        .and_then(|cluster| cluster.leader.as_ref())
        .filter(|stored| stored.term == leader.term.0);
    let led_for = looked.led_for(leader.term);
    LeaderSummary {
        for_ms: led_for.map(|(led_for, _)| u64::try_from(led_for.as_millis()).unwrap_or(u64::MAX)),
        for_at_least: led_for.is_some_and(|(_, at_least)| at_least),
        node: leader.node.clone(),
        incarnation: leader.incarnation,
        term: leader.term.0,
        since_at: stored.and_then(|stored| stored.since_at).unwrap_or(seen_at),
        address: stored.and_then(|stored| stored.address.clone()),
    }
}

fn role(app: &App) -> (&'static str, Option<String>) {
    match app.queue.state() {
        Serving::Serving { .. } => ("leader", None),
        Serving::Recovering(_) => ("recovering", None),
        Serving::Failed(error) => ("failed", Some(chain(&error))),
        Serving::Standby { .. } => ("standby", None),
        Serving::Stopped => ("stopped", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the store cannot tell, this broker counts from when it first saw the leader, and marks that.
    #[test]
    fn a_leader_leads_at_least_since_it_was_seen() {
        let mut looked = Looked::default();
        assert_eq!(looked.led_for(Term(3)), None);
        let leader = Leader {
            node: NodeId::new("web-1").unwrap(),
            incarnation: Incarnation(1),
            term: Term(3),
        };
        looked.leader = Some((leader, 0, Instant::now()));
        let (led_for, at_least) = looked.led_for(Term(3)).unwrap();
        assert!(at_least && led_for < Duration::from_secs(60), "{led_for:?}");
        assert_eq!(looked.led_for(Term(4)), None, "of another term");

        let mut cluster: Cluster = serde_json::from_value(serde_json::json!({
            "namespace": "default", "node": "web-1", "leader": {"node": "web-1", "term": 3, "since_at": 5}, "led_for_ms": 90_000,
        }))
        .unwrap();
        looked.read_at = Some(Instant::now());
        looked.cluster = Some(cluster.clone());
        let (led_for, at_least) = looked.led_for(Term(3)).unwrap();
        assert!(!at_least && led_for >= Duration::from_secs(90));
        // The reading is about the term before.
        cluster.leader.as_mut().unwrap().term = 2;
        looked.cluster = Some(cluster);
        let (led_for, at_least) = looked.led_for(Term(3)).unwrap();
        assert!(at_least && led_for < Duration::from_secs(60), "{led_for:?}");
    }
}
