//! The dashboard: one page with live data, served by every node.
//!
//! | file | what it does |
//! | --- | --- |
//! | `assets.rs` | serves the page; `assets/` are its files |
//! | `login.rs` | gives a browser its cookie, so that it shows a token once |
//! | `stream.rs` | one stream of events per open page; a standby relays the leader's |
//! | `node.rs` | what this node knows itself: who leads, who is there, what its store does |
//! | `queues.rs` | what the leader knows of the queues, once a second |
//! | `recorder.rs` | rates, latencies, failures and the last hour, from the queue's own events |
//! | `outboxes.rs` | what waits in the outboxes that this broker was told of |
//! | `views.rs` | what a page asks for beside the stream: series, lists of jobs, histories |
//! | `raw.rs` | objects and commits as they are stored, for admins |
//!
//! Everything is computed once a second for all pages together, so an additional page costs only the bytes that are
//! sent. What is kept in memory is bounded, and starts from nothing with each term, which the page shows where it
//! matters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::routing::{delete, get, post};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::sync::watch;

use crate::app::App;
use crate::auth::Scope;
use crate::gate::{AnsweredBy, Gate};

mod assets;
mod flow;
mod histogram;
mod history;
mod login;
mod node;
mod outboxes;
mod queues;
mod raw;
mod recorder;
mod series;
mod store;
mod stream;
mod stuck;
mod views;

pub use outboxes::{DeadRow, OutboxTables, OutboxView};
pub(crate) use store::{Buckets, percentiles};

/// What the pages of one server share.
#[derive(Debug)]
pub(crate) struct Dashboard {
    started_at: u64,
    /// What this node knows; newest only.
    node: watch::Sender<Frame>,
    /// What the leader knows; none while this server is not the leader.
    queues: watch::Sender<Option<Frame>>,
    /// The past of this term; none while this server is not the leader.
    recorder: Mutex<Option<recorder::Recorder>>,
    readings: Mutex<store::Readings>,
    commits: Mutex<store::CommitReadings>,
    looked: Mutex<node::Looked>,
    pub(crate) outboxes: outboxes::Outboxes,
}

impl Default for Dashboard {
    fn default() -> Self {
        Self {
            started_at: now(),
            node: watch::Sender::new(Frame::default()),
            queues: watch::Sender::new(None),
            recorder: Mutex::default(),
            readings: Mutex::default(),
            commits: Mutex::default(),
            looked: Mutex::default(),
            outboxes: outboxes::Outboxes::default(),
        }
    }
}

impl Dashboard {
    /// For how long this broker has seen the leader of a term, by its own clock; `None` if it last saw another one.
    pub(crate) fn seen_for(
        &self,
        term: tenure::core::election::Term,
    ) -> Option<std::time::Duration> {
        locked(&self.looked).seen_for(term)
    }
}

/// Keeps what the pages show up to date, until the server stops.
pub(crate) fn start(app: &Arc<App>) {
    tokio::spawn(node::watch(app.clone()));
    tokio::spawn(queues::watch(app.clone()));
}

/// The page, and what it asks for.
pub(crate) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let open = |path| Gate::new(app, None, AnsweredBy::AnyBroker, path);
    let read = |path| Gate::new(app, Some(Scope::Read), AnsweredBy::AnyBroker, path);
    let leader = |path| Gate::new(app, Some(Scope::Read), AnsweredBy::Leader, path);
    let admin = |path| Gate::new(app, Some(Scope::Admin), AnsweredBy::AnyBroker, path);
    Router::new()
        .route("/", get(assets::page).layer(open("/")))
        .route(
            "/assets/{*name}",
            get(assets::file).layer(open("/assets/{name}")),
        )
        .route(
            "/v1/dashboard/login",
            post(login::login)
                .layer(read("/v1/dashboard/login"))
                .merge(delete(login::logout).layer(open("/v1/dashboard/login"))),
        )
        .route(
            "/v1/dashboard/stream",
            get(stream::stream).layer(read("/v1/dashboard/stream")),
        )
        .route(
            "/v1/dashboard/node",
            get(node::show).layer(read("/v1/dashboard/node")),
        )
        .route(
            "/v1/dashboard/outboxes",
            get(outboxes::show).layer(read("/v1/dashboard/outboxes")),
        )
        .route(
            "/v1/dashboard/queues",
            get(queues::show).layer(leader("/v1/dashboard/queues")),
        )
        .route(
            "/v1/dashboard/series",
            get(views::series).layer(leader("/v1/dashboard/series")),
        )
        .route(
            "/v1/dashboard/sparks",
            get(views::sparks).layer(leader("/v1/dashboard/sparks")),
        )
        .route(
            "/v1/dashboard/jobs",
            get(views::jobs).layer(leader("/v1/dashboard/jobs")),
        )
        .route(
            "/v1/dashboard/activity",
            get(views::activity).layer(leader("/v1/dashboard/activity")),
        )
        .route(
            "/v1/dashboard/objects",
            get(raw::objects).layer(admin("/v1/dashboard/objects")),
        )
        .route(
            "/v1/dashboard/object",
            get(raw::object).layer(admin("/v1/dashboard/object")),
        )
        .route(
            "/v1/dashboard/commit",
            get(raw::commit).layer(admin("/v1/dashboard/commit")),
        )
        .route(
            "/v1/dashboard/jobs/{id}/history",
            get(views::history).layer(leader("/v1/dashboard/jobs/{id}/history")),
        )
}

/// One event of the stream, ready to be sent to any number of pages.
#[derive(Debug, Clone, Default)]
struct Frame {
    bytes: Bytes,
    /// Where the JSON begins.
    json_from: usize,
}

impl Frame {
    fn new(event: &str, data: &impl Serialize) -> Self {
        let mut bytes = BytesMut::with_capacity(16 * 1024);
        bytes.extend_from_slice(format!("event: {event}\ndata: ").as_bytes());
        let json_from = bytes.len();
        let json = serde_json::to_vec(data).expect("a summary is plain data with text for keys");
        bytes.extend_from_slice(&json);
        bytes.extend_from_slice(b"\n\n");
        Self {
            bytes: bytes.freeze(),
            json_from,
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The JSON alone.
    fn json(&self) -> Bytes {
        let end = self.bytes.len().saturating_sub(2);
        self.bytes.slice(self.json_from.min(end)..end)
    }
}

/// This host's wall clock, in milliseconds since 1970: for people, never for a decision.
fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The lock guards plain data, which stays consistent if another thread panics.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_an_event_and_holds_its_json() {
        let frame = Frame::new("node", &serde_json::json!({"a": "b\nc"}));
        assert_eq!(frame.bytes, "event: node\ndata: {\"a\":\"b\\nc\"}\n\n");
        assert_eq!(frame.json(), "{\"a\":\"b\\nc\"}");
        assert!(Frame::default().json().is_empty());
    }
}
