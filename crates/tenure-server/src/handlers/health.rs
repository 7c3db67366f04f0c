//! Health checks: is this process alive, and can it answer calls?
//!
//! `/healthz` only says that the process answers: restarting it because the storage is down would not help. `/readyz`
//! says that a call sent here now would be answered, and not only held. Either this server leads and has read the
//! log, or the leader reports this when this server asks it. In both cases the session is trusted, the store answers,
//! and it accepts writes again if it had refused some.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use tenure::core::election::{Fence, Leader, Lease};
use tenure::queue::{Error, Serving};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use crate::app::App;
use crate::extract::{json, ok};
use crate::forward::{self, FORWARDED};
use crate::problem::chain;

/// How long an answer from the store is reused: many clients may probe.
const FRESH: Duration = Duration::from_secs(1);

/// The same for the leader's answer; a standby may report ready for this long after the leader was killed. Asking
/// costs a round trip, but no request to the store.
const LEADER_FRESH: Duration = Duration::from_millis(100);

/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a leader that serves is not ready: the store has no room for more jobs. Calls that need no room there are
/// still answered.
pub(crate) const NO_ROOM: &str =
    "the store refuses to write jobs: it is full or nearly so, or this broker may not write to it";

/// When the store and the leader were last asked, and what was wrong. One probe of each at a time.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    store: Mutex<Option<(Instant, Option<&'static str>)>>,
    room: Mutex<Option<(Instant, &'static str)>>,
    leader: Mutex<Option<(Instant, Leader, Option<&'static str>)>>,
    damage: Mutex<Option<(Instant, Option<String>)>>,
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
    #[schema(value_type = Option<String>)]
    reason: Option<Cow<'static, str>>,
}

/// Whether the process answers
#[utoipa::path(get, path = "/healthz", tag = "operations",
    responses((status = 200, description = "The process answers", body = Health)))]
pub(crate) async fn healthz() -> Response {
    ok(&Health { status: "ok" })
}

/// Whether this broker can answer calls
#[utoipa::path(get, path = "/readyz", tag = "operations", responses(
    (status = 200, description = "Calls can be answered: this broker leads, or has confirmed that the leader serves", body = Readiness),
    (status = 503, description = "Calls cannot be answered", body = Readiness)))]
pub(crate) async fn readyz(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    // A standby that asks whether to forward here wants to know about this server only.
    let of_itself = headers.contains_key(FORWARDED);
    let (status, readiness) = match not_ready(&app, of_itself).await {
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

async fn not_ready(app: &App, of_itself: bool) -> Option<Cow<'static, str>> {
    if app.leaving.is_cancelled() {
        return Some("this broker is stopping".into());
    }
    if app.node.session().is_none() {
        let reason = "this broker has no session: the store is unavailable, or was for too long";
        return Some(reason.into());
    }
    if app.node.metrics().trust_remaining_ms == 0 {
        return Some("no heartbeat of this broker got through for a full ttl".into());
    }
    if let Some(reason) = store_reason(app).await {
        return Some(reason.into());
    }
    if app.is_serving() {
        return room_reason(app).await.map(Cow::from);
    }
    if let Some(damage) = damage(app).await {
        return Some(damage.into());
    }
    let reason = match app.leader() {
        None => Some("there is no leader"),
        Some(leader) if app.is_me(&leader) => Some(forward::not_yet(app)),
        Some(_) if of_itself => Some("this broker does not lead"),
        Some(leader) => leader_reason(app, &leader, LEADER_FRESH).await,
    };
    reason.map(Cow::from)
}

/// Damage in the store that stops every broker from serving until somebody repairs it: an unreadable log, or an
/// unreadable lease or fence of the brokers' election. `None` while another broker leads: that one reports what it
/// finds.
pub(crate) async fn damage(app: &App) -> Option<String> {
    if app.leader().is_some_and(|leader| !app.is_me(&leader)) {
        return None;
    }
    if let Serving::Failed(error) = app.queue.state() {
        return Some(format!("the queue cannot be served: {}", chain(&error)));
    }
    let mut last = app.probe.damage.lock().await;
    if let Some((at, damage)) = &*last
        && at.elapsed() < FRESH
    {
        return damage.clone();
    }
    // A store that does not answer is a different problem, which is reported elsewhere.
    let damage = timeout(PATIENCE, unreadable(app)).await.unwrap_or_default();
    *last = Some((Instant::now(), damage.clone()));
    damage
}

/// Describes the first of lease and fence that exists and cannot be read.
async fn unreadable(app: &App) -> Option<String> {
    let lease = app.store.get(&app.lease_key).await;
    let fence = app.store.get(&app.fence_key).await;
    let read = [
        (
            &app.lease_key,
            lease,
            (|bytes| Lease::decode(bytes).err()) as fn(&[u8]) -> _,
        ),
        (&app.fence_key, fence, |bytes| Fence::decode(bytes).err()),
    ];
    read.into_iter().find_map(|(key, stored, wrong)| {
        let error = wrong(&stored.ok()??.value)?;
        Some(format!(
            "no broker can lead: {key} is damaged: {}",
            chain(&error)
        ))
    })
}

/// Why calls cannot be sent to a leader, from a report no older than `fresh`; `None` if they can.
pub(crate) async fn reason_not_to_ask(
    app: &App,
    leader: &Leader,
    fresh: Duration,
) -> Option<&'static str> {
    // A leader without room in its store answers every call, if only with a refusal.
    let reason = leader_reason(app, leader, fresh).await;
    reason.filter(|&reason| reason != NO_ROOM)
}

/// Why a leader is not ready, from a report no older than `fresh`; `None` if it is.
async fn leader_reason(app: &App, leader: &Leader, fresh: Duration) -> Option<&'static str> {
    let mut last = app.probe.leader.lock().await;
    if let Some((at, asked, reason)) = &*last
        && asked == leader
        && at.elapsed() < fresh
    {
        return *reason;
    }
    let reason = forward::reason_not_to(app, leader).await;
    *last = Some((Instant::now(), leader.clone(), reason));
    reason
}

async fn store_reason(app: &App) -> Option<&'static str> {
    let mut last = app.probe.store.lock().await;
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

/// Why the store would refuse a submit as large as those that it has refused; `None` if it would not, or has refused
/// none. While it has refused none, the check costs nothing, so only a bad answer is cached.
async fn room_reason(app: &App) -> Option<&'static str> {
    let mut last = app.probe.room.lock().await;
    if let Some((at, reason)) = *last
        && at.elapsed() < FRESH
    {
        return Some(reason);
    }
    let reason = match timeout(PATIENCE, app.queue.check_room()).await {
        // Whether this broker serves was checked before.
        Ok(Ok(()) | Err(Error::NotServing { .. })) => None,
        Ok(Err(_)) => Some(NO_ROOM),
        Err(_) => Some("the store does not write in time"),
    };
    *last = reason.map(|reason| (Instant::now(), reason));
    reason
}
