//! Is it alive, and is it of use?
//!
//! `/healthz` says that the process answers, and nothing else: restarting it because the storage is away
//! would help nobody. `/readyz` says that a call sent here now can be answered: this server leads and has
//! read the log, or it knows a leader to forward to; and in both cases its session is trusted and the store
//! answers.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use crate::app::App;
use crate::extract::{json, ok};

/// How long an answer of the store is good for: probes come from many sides.
const FRESH: Duration = Duration::from_secs(1);

/// How long the store may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// When the store was asked last, and what was wrong then.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    last: Mutex<Option<(Instant, Option<&'static str>)>>,
}

/// The answer of `/healthz`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    #[schema(example = "ok")]
    status: &'static str,
}

/// The answer of `/readyz`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Readiness {
    /// `leader`, `standby` or `not_ready`.
    status: &'static str,
    /// Why it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// Whether the process answers
#[utoipa::path(get, path = "/healthz", tag = "operations",
    responses((status = 200, description = "It does", body = Health)))]
pub(crate) async fn healthz() -> Response {
    ok(&Health { status: "ok" })
}

/// Whether calls sent here can be answered
#[utoipa::path(get, path = "/readyz", tag = "operations", responses(
    (status = 200, description = "They can: this server leads, or knows who does", body = Readiness),
    (status = 503, description = "They cannot", body = Readiness)))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    let (status, readiness) = match not_ready(&app).await {
        None if app.is_serving() => (StatusCode::OK, ("leader", None)),
        None => (StatusCode::OK, ("standby", None)),
        reason => (StatusCode::SERVICE_UNAVAILABLE, ("not_ready", reason)),
    };
    let (word, reason) = readiness;
    json(
        status,
        &Readiness {
            status: word,
            reason,
        },
    )
}

async fn not_ready(app: &App) -> Option<&'static str> {
    if app.stop.is_cancelled() {
        return Some("the server is stopping");
    }
    if app.node.session().is_none() {
        return Some("this node has no session: the store was away too long, or is");
    }
    if app.node.metrics().trust_remaining_ms == 0 {
        return Some("no heartbeat of this node got through for a whole ttl");
    }
    if let Some(reason) = store_reason(app).await {
        return Some(reason);
    }
    if app.is_serving() {
        return None;
    }
    match app.leader() {
        None => Some("nobody leads"),
        Some(leader) if app.is_me(&leader) => Some("this server leads and is reading the log"),
        Some(_) => None,
    }
}

async fn store_reason(app: &App) -> Option<&'static str> {
    let mut last = app.probe.last.lock().await;
    if let Some((at, reason)) = *last
        && at.elapsed() < FRESH
    {
        return reason;
    }
    let reason = match timeout(PATIENCE, app.store.get(&app.lease_key)).await {
        Ok(Ok(_)) => None,
        Ok(Err(_)) => Some("the store does not answer"),
        Err(_) => Some("the store does not answer in time"),
    };
    *last = Some((Instant::now(), reason));
    reason
}
