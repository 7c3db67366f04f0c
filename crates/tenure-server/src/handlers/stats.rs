//! Statistics for people and dashboards, as one document.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use tenure_api::{Latency, LogStats, Stats};

use crate::app::App;
use crate::dashboard::{Buckets, percentiles};
use crate::extract::ok;
use crate::handlers::cluster::namespace;
use crate::handlers::queues;
use crate::problem::Problem;

/// Statistics: jobs, rates, the log and the store
#[utoipa::path(get, path = "/v1/stats", tag = "operations", responses(
    (status = 200, description = "The leader's statistics", body = Stats)))]
pub(crate) async fn stats(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let page = queues::page(&app, None, queues::NAMES_MAX as usize)?;
    let (counts, queues_total) = app.queue.counts()?;
    let leader = app.leader();
    Ok(ok(&Stats {
        namespace: namespace(&app),
        node: app.node.id().clone(),
        term: leader.as_ref().map(|leader| leader.term.0),
        leader: leader.map(|leader| leader.node),
        serving: app.is_serving(),
        counts,
        queues_total: queues_total as u64,
        queues: page.queues,
        rates: app.rates.now(),
        log: log(&app),
        store: store(&app),
    }))
}

fn log(app: &App) -> LogStats {
    let log = app.queue.metrics();
    LogStats {
        position: log.position.0,
        commits: log.commits,
        records: log.records,
        bytes: log.bytes,
        commit_ms: latency(&log.commit_latency.buckets),
        waiting: log.waiting,
        turned_away: log.turned_away,
        snapshots: log.snapshots,
        snapshot_position: log.last_snapshot.map_or(0, |last| last.position.0),
        bytes_since_snapshot: log.log_bytes,
    }
}

fn latency(buckets: &Buckets) -> Latency {
    percentiles(buckets).map_or(Latency::default(), |found| Latency {
        p50: found.p50_ms,
        p95: found.p95_ms,
        p99: found.p99_ms,
    })
}

/// Requests to the store, by kind.
fn store(app: &App) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for ended in app.meter.snapshot().ended {
        let kind = crate::metrics::collector::operation(ended.operation);
        *kinds.entry(kind.to_owned()).or_default() += ended.count;
    }
    kinds
}
