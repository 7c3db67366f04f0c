//! One stream of server-sent events per open page.
//!
//! Events: `reader` (what this reader's token allows, once), `node` (what this node knows) and `queues` (what the
//! leader knows). The last two come at least once a second and hold the whole state, so a page that misses some has
//! lost nothing. `queues_lost` says why there is no news of the queues.
//!
//! A standby asks the leader for its `queues` events, with the reader's own token or login, and passes them on: a page
//! needs one connection, whichever node it is on. When the leader changes, the standby follows the next one.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tenure::core::election::Term;
use tenure_api as api;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{Frame, now, queues};
use crate::app::App;
use crate::extract::Parameters;
use crate::problem::Problem;
use crate::{forward, login};

/// The most events that wait for a slow page. Beyond that it misses some, which is harmless: each holds the whole
/// state.
const WAITING_MAX: usize = 4;

/// A leader sends every second; one that is silent for this long counts as gone.
const SILENCE: Duration = Duration::from_secs(4);

/// How long to wait before the leader is asked again.
const PAUSE: Duration = Duration::from_millis(300);

/// The largest event of a leader.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Which part of the stream is wanted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Only what the leader knows: how a standby asks.
    #[serde(default)]
    queues_only: bool,
}

#[derive(Debug, Serialize)]
struct Reader {
    scope: crate::Scope,
    /// Whether calls need a token: the page's examples depend on it.
    needs_token: bool,
}

#[derive(Debug, Serialize)]
struct Lost<'a> {
    code: &'a str,
    detail: &'a str,
}

/// One page.
struct Page {
    app: Arc<App>,
    events: mpsc::Sender<Bytes>,
    /// The reader's credentials, for the leader.
    credentials: HeaderMap,
}

/// The page is closed, or the server stops.
struct Gone;

pub(super) async fn stream(
    State(app): State<Arc<App>>,
    Parameters(wanted): Parameters<Wanted>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let permit = app
        .followers
        .clone()
        .try_acquire_owned()
        .map_err(|_| Problem::overloaded("too many pages are already open"))?;
    if wanted.queues_only && !app.is_serving() {
        return Err(Problem::no_leader("this broker does not lead"));
    }
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    let page = Page {
        app: app.clone(),
        events: sender,
        credentials: credentials(&headers),
    };
    let scope = app.config.tokens.scope(&headers);
    tokio::spawn(async move {
        let _permit = permit;
        let work = page.run(scope, wanted.queues_only);
        tokio::select! {
            _ = work => {}
            () = page.app.stop.cancelled() => {}
            () = page.events.closed() => {}
        }
    });
    let events = stream::unfold(receiver, async |mut receiver| {
        let event = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(event), receiver))
    });
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

impl Page {
    async fn run(&self, scope: Option<crate::Scope>, queues_only: bool) -> Result<(), Gone> {
        if queues_only {
            return self.own_queues().await;
        }
        if let Some(scope) = scope {
            let needs_token = !self.app.config.tokens.is_empty();
            let reader = Reader { scope, needs_token };
            self.send(Frame::new("reader", &reader).bytes).await?;
        }
        let (node, queues) = tokio::join!(self.node(), self.queues());
        node.and(queues)
    }

    async fn send(&self, event: Bytes) -> Result<(), Gone> {
        self.events.send(event).await.map_err(|_| Gone)
    }

    async fn node(&self) -> Result<(), Gone> {
        let mut frames = self.app.dashboard.node.subscribe();
        loop {
            let frame = frames.borrow_and_update().clone();
            if !frame.is_empty() {
                self.send(frame.bytes).await?;
            }
            frames.changed().await.map_err(|_| Gone)?;
        }
    }

    /// Sends what the leader knows, whichever broker that is.
    async fn queues(&self) -> Result<(), Gone> {
        loop {
            if self.app.is_serving() {
                self.own_queues().await?;
            } else if let Err(problem) = self.relay().await? {
                let code = match self.app.leader() {
                    Some(leader) if self.app.is_me(&leader) => "recovering",
                    _ => "no_leader",
                };
                let detail = &problem.document().detail;
                self.send(Frame::new("queues_lost", &Lost { code, detail }).bytes)
                    .await?;
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends this server's own events, for as long as it leads.
    async fn own_queues(&self) -> Result<(), Gone> {
        let mut frames = self.app.dashboard.queues.subscribe();
        while self.app.is_serving() {
            let told = frames.borrow_and_update().clone();
            // Nothing is noted yet when the first page comes.
            let frame = told.or_else(|| queues::frame(&self.app, now()));
            if let Some(frame) = frame {
                self.send(frame.bytes).await?;
            }
            // Nothing in time: check whether it still leads.
            if let Ok(Err(_)) = timeout(SILENCE, frames.changed()).await {
                return Err(Gone);
            }
        }
        Ok(())
    }

    /// Passes on what the leader sends, until it falls silent or another one leads.
    async fn relay(&self) -> Result<Result<(), Problem>, Gone> {
        let Some(leader) = self.app.leader() else {
            return Ok(Err(Problem::no_leader("there is no leader at the moment")));
        };
        let response = forward::forward(self.app.clone(), self.question()).await;
        if response.status() != StatusCode::OK {
            return Ok(Err(refused(response).await));
        }
        let mut chunks = response.into_body().into_data_stream();
        let mut waiting = BytesMut::new();
        loop {
            let Some(chunk) = self.chunk(&mut chunks, leader.term).await else {
                let silent = Problem::no_leader("the leader has stopped answering");
                return Ok(Err(silent));
            };
            waiting.extend_from_slice(&chunk);
            while let Some(end) = event_end(&waiting) {
                self.send(waiting.split_to(end).freeze()).await?;
            }
            if waiting.len() > EVENT_BYTES_MAX {
                return Ok(Err(Problem::internal(
                    "the leader sent an unexpected answer",
                )));
            }
        }
    }

    /// The next bytes from the leader of a term; `None` if there are no more.
    async fn chunk(&self, chunks: &mut BodyDataStream, term: Term) -> Option<Bytes> {
        let replaced = async {
            loop {
                sleep(PAUSE).await;
                if self.app.leader().map(|leader| leader.term) != Some(term) {
                    return;
                }
            }
        };
        tokio::select! {
            chunk = timeout(SILENCE, chunks.next()) => chunk.ok()??.ok(),
            () = replaced => None,
        }
    }

    fn question(&self) -> Request {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = http::Uri::from_static("/v1/dashboard/stream?queues_only=true");
        *request.headers_mut() = self.credentials.clone();
        request
    }
}

/// The token of a request, or its login.
fn credentials(headers: &HeaderMap) -> HeaderMap {
    let names = [header::AUTHORIZATION, header::COOKIE, login::PAGE];
    let of = |name: &HeaderName| {
        let values = headers.get_all(name).iter();
        values.map(|value| (name.clone(), value.clone())).collect()
    };
    names
        .iter()
        .flat_map(|name| -> Vec<_> { of(name) })
        .collect()
}

/// The end of the first event.
fn event_end(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(2)
        .position(|pair| pair == b"\n\n")
        .map(|place| place + 2)
}

/// The problem that a leader refused with.
async fn refused(response: Response) -> Problem {
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 64 * 1024).await;
    let document: Option<api::Problem> = body
        .ok()
        .and_then(|body| serde_json::from_slice(&body).ok());
    match document {
        Some(document) => Problem::no_leader(&document.detail),
        None => Problem::no_leader(&format!("the leader answered {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_at_blank_lines() {
        assert_eq!(event_end(b"event: a\ndata: {}\n"), None);
        assert_eq!(event_end(b"event: a\ndata: {}\n\nevent"), Some(19));
        assert_eq!(event_end(b""), None);
    }
}
