//! osqueue's calls by WebSocket: JSON messages with an id, a method and its parameters, and an answer for each.
//!
//! A limited number of calls of one socket run at the same time; further ones are read when there is room. A message
//! counts against the budget for bodies as it arrives, and an answer against the budget for answers until it is
//! written.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::FuturesUnordered;
use futures_util::{SinkExt as _, StreamExt as _};
use ring::digest;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_api::Code;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Utf8Bytes};

use super::call::{Asked, Caller};
use super::messages::object;
use super::{dialect, route};
use crate::app::App;
use crate::auth::Scope;
use crate::budget::Room;
use crate::connections::Connection;
use crate::gate::AnsweredBy;
use crate::problem::Problem;

/// The most concurrent calls of one socket.
const CALLS_MAX: usize = 32;

/// How much is read at once. A message may be larger.
const BUFFER_BYTES: usize = 4 * 1024;

/// How long a client may take to confirm that the socket is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The close code and reason when this broker closes a socket.
const STOPPING: (CloseCode, &str) = (CloseCode::Away, "this broker is stopping");
const NOT_TEXT: (CloseCode, &str) = (CloseCode::Invalid, "a message is not UTF-8");

/// The suffix that a client's key is hashed with (RFC 6455).
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A connection that has become a socket.
#[derive(Debug)]
pub(crate) struct Switched {
    app: Arc<App>,
    rest: Router,
    caller: Caller,
    connection: Arc<Connection>,
    _place: OwnedSemaphorePermit,
}

pub(super) fn routes(app: &Arc<App>, rest: &Router) -> Router<Arc<App>> {
    let rest = rest.clone();
    let handler = get(
        move |State(app): State<Arc<App>>, request: Request| async move {
            switch(app, rest, &request.into_parts().0)
        },
    );
    // The socket's calls are forwarded, not the socket.
    let place = AnsweredBy::AnyBroker;
    route(app, "/osqueue/v1/ws", Some(Scope::Worker), place, handler)
        .layer(axum::middleware::from_fn(dialect::rest))
}

/// Answers that the protocol switches. The connection switches once that answer is written: see `listen.rs`.
fn switch(app: Arc<App>, rest: Router, parts: &Parts) -> Result<Response, Problem> {
    let headers = &parts.headers;
    let wrong = |what: &str| Problem::new(Code::InvalidField, what).status(StatusCode::BAD_REQUEST);
    if parts.version != Version::HTTP_11
        || !has(headers, header::UPGRADE, "websocket")
        || !has(headers, header::CONNECTION, "upgrade")
    {
        let what = "this is a WebSocket: it takes an upgrade of an HTTP/1.1 connection";
        return Err(wrong(what).status(StatusCode::UPGRADE_REQUIRED));
    }
    if !has(headers, header::SEC_WEBSOCKET_VERSION, "13") {
        return Err(wrong("the version of WebSocket is not 13"));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| wrong("the header Sec-WebSocket-Key is missing"))?;
    let accept = accept(key.as_bytes());
    let connection = parts.extensions.get::<Arc<Connection>>().cloned();
    let connection = connection.ok_or_else(|| Problem::internal("a request without connection"))?;
    let place = app.sockets.clone().try_acquire_owned();
    let place = place.map_err(|_| Problem::overloaded("there are too many WebSockets"))?;
    connection.switch(Switched {
        caller: Caller::of(parts),
        connection: connection.clone(),
        app,
        rest,
        _place: place,
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

/// Whether a header's list contains a word.
fn has(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name);
    let mut values = values.iter().filter_map(|value| value.to_str().ok());
    values.any(|value| {
        let mut words = value.split(',');
        words.any(|one| one.trim().eq_ignore_ascii_case(word))
    })
}

fn accept(key: &[u8]) -> HeaderValue {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(KEY_SUFFIX.as_bytes());
    let text = STANDARD.encode(context.finish());
    HeaderValue::try_from(text).expect("base64 is a header's value")
}

/// A message, as far as it is the frame of a call.
#[derive(Debug, Deserialize)]
struct Frame {
    #[serde(default)]
    id: Option<Box<RawValue>>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Parameters {
    payload: Option<Box<RawValue>>,
    r#type: Option<String>,
    max_attempts: Option<i64>,
    worker_id: String,
    job_id: String,
    types: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    id: Option<&'a RawValue>,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure<'a>>,
}

#[derive(Debug, Serialize)]
struct Failure<'a> {
    _tag: &'static str,
    message: &'a str,
    code: Code,
}

impl Switched {
    /// Handles calls until either side closes the socket. `read` is what arrived after the request.
    pub(crate) async fn run<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S, read: Vec<u8>) {
        let limits = &self.app.config.limits;
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(limits.body_bytes_max))
            .max_frame_size(Some(limits.body_bytes_max));
        let counting = Counting {
            stream,
            app: self.app.clone(),
            room: self.app.bodies.room(Some(self.connection.clone())),
        };
        let role = Role::Server;
        let socket = WebSocketStream::from_partially_read(counting, read, role, Some(config)).await;
        if let Err(error) = self.talk(socket).await {
            tracing::debug!(%error, "a WebSocket ended");
        }
    }

    async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut socket: WebSocketStream<Counting<S>>,
    ) -> Result<(), Error> {
        let patience = self.app.config.limits.head_timeout;
        let mut calls = FuturesUnordered::new();
        let mut heard = Instant::now();
        let mut was_asked = false;
        let (code, reason) = loop {
            tokio::select! {
                biased;
                () = self.app.stop.cancelled() => break STOPPING,
                Some((answer, room)) = calls.next(), if !calls.is_empty() => {
                    socket.send(Message::Text(answer)).await?;
                    drop(room);
                }
                message = socket.next(), if calls.len() < CALLS_MAX => {
                    heard = Instant::now();
                    was_asked = false;
                    let room = socket.get_mut().taken();
                    match message {
                        None => return Ok(()),
                        Some(message) => match message? {
                            Message::Text(text) => calls.push(self.answer(text, room)),
                            Message::Binary(bytes) => match Utf8Bytes::try_from(bytes) {
                                Ok(text) => calls.push(self.answer(text, room)),
                                Err(_) => break NOT_TEXT,
                            },
                            Message::Close(_) => return socket.close(None).await,
                            // Pings are answered by the library.
                            _ => {}
                        }
                    }
                }
                () = sleep_until(heard + patience), if calls.is_empty() => {
                    if was_asked {
                        return Ok(());
                    }
                    was_asked = true;
                    heard = Instant::now();
                    socket.send(Message::Ping(bytes::Bytes::new())).await?;
                }
            }
        };
        // Calls that were begun are still answered, so that no outcome is left unknown.
        while let Some((answer, room)) = calls.next().await {
            socket.send(Message::Text(answer)).await?;
            drop(room);
        }
        let frame = CloseFrame {
            code,
            reason: Utf8Bytes::from_static(reason),
        };
        socket.close(Some(frame)).await?;
        let rest = async { while let Some(Ok(_)) = socket.next().await {} };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, rest).await;
        Ok(())
    }

    /// The answer to a message, and the room that it takes.
    async fn answer(&self, text: Utf8Bytes, body: Room) -> (Utf8Bytes, Room) {
        let (id, asked) = read(&text);
        drop(text);
        let answered = match asked {
            Ok(asked) => self.caller.ask(self.rest.clone(), asked).await,
            Err(problem) => Err(problem),
        };
        drop(body);
        let text = written(id.as_deref(), answered);
        let mut room = self.app.answers.room(Some(self.connection.clone()));
        if !room.try_grow(text.len()) {
            self.app.connections.shed_slow(text.len());
            // The call was done, so its answer has to be sent even without room.
            room.set(text.len());
        }
        (text, room)
    }
}

fn read(text: &str) -> (Option<Box<RawValue>>, Result<Asked, Problem>) {
    let wrong = |what: String| Problem::new(Code::InvalidJson, what);
    let frame: Frame = match object(text.as_bytes()) {
        Ok(frame) => frame,
        Err(error) => return (None, Err(wrong(format!("Invalid JSON: {error}")))),
    };
    let params = frame.params.as_deref().map_or("{}", RawValue::get);
    let params = match object(params.as_bytes()) {
        Ok(params) => params,
        Err(error) => return (frame.id, Err(wrong(format!("wrong params: {error}")))),
    };
    (frame.id, asked(frame.method.as_deref(), params))
}

fn asked(method: Option<&str>, params: Parameters) -> Result<Asked, Problem> {
    let (job, worker) = (params.job_id, params.worker_id);
    Ok(match method.unwrap_or_default() {
        "submitJob" => Asked::Submit {
            payload: params.payload.unwrap_or_else(null),
            job_type: params.r#type,
            max_attempts: params.max_attempts,
        },
        "claimJob" => Asked::Claim {
            worker,
            types: params.types.unwrap_or_default(),
        },
        "heartbeat" => Asked::Heartbeat { job, worker },
        "completeJob" => Asked::Complete { job, worker },
        "getStats" => Asked::Stats,
        "listJobs" => Asked::List,
        other => {
            let other: String = other.chars().take(100).collect();
            let what = format!("Unsupported WS method: {other}");
            return Err(Problem::new(Code::NotFound, what));
        }
    })
}

fn null() -> Box<RawValue> {
    RawValue::from_string("null".to_owned()).expect("null is JSON")
}

fn written(id: Option<&RawValue>, answered: Result<bytes::Bytes, Problem>) -> Utf8Bytes {
    let empty = || RawValue::from_string("{}".to_owned()).expect("an object is JSON");
    let text = match answered {
        Ok(body) => {
            // A call without an answer gets an empty object, as in osqueue.
            let result = serde_json::from_slice(&body).unwrap_or_else(|_| empty());
            let result: Box<RawValue> = result;
            json(&Answer {
                id,
                ok: true,
                result: Some(&result),
                error: None,
            })
        }
        Err(problem) => {
            let document = problem.document();
            json(&Answer {
                id,
                ok: false,
                result: None,
                error: Some(Failure {
                    _tag: dialect::tag(document.code),
                    message: &document.detail,
                    code: document.code,
                }),
            })
        }
    };
    Utf8Bytes::from(text)
}

fn json(answer: &Answer<'_>) -> String {
    serde_json::to_string(answer).expect("plain data becomes JSON")
}

/// A stream that takes room for what arrives, until it is a whole message.
struct Counting<S> {
    stream: S,
    app: Arc<App>,
    room: Room,
}

impl<S> Counting<S> {
    /// Takes the room of the message that has just arrived.
    fn taken(&mut self) -> Room {
        let none = self.app.bodies.room(None);
        let mut room = std::mem::replace(&mut self.room, none);
        self.room = room.another();
        room.settle();
        room
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counting<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let bytes = buffer.filled().len() - before;
        if !self.room.try_grow(bytes) {
            self.app.connections.shed_slow(bytes);
            if !self.room.try_grow(bytes) {
                let full = "too many bytes are being received at the same time";
                return Poll::Ready(Err(io::Error::other(full)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counting<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_accepted_as_the_standard_says() {
        let accepted = accept(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accepted, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn every_message_has_an_answer_with_its_id() {
        let told = |text: &str| {
            let (id, asked) = read(text);
            let asked = asked.map(|_| bytes::Bytes::new());
            written(id.as_deref(), asked).as_str().to_owned()
        };
        assert_eq!(
            told(r#"{"id":7,"method":"getStats"}"#),
            r#"{"id":7,"ok":true,"result":{}}"#
        );
        let unknown = told(r#"{"id":"a","method":"drop"}"#);
        assert!(
            unknown.starts_with(r#"{"id":"a","ok":false,"error":{"_tag":"BrokerProtocolError""#),
            "{unknown}"
        );
        for broken in ["{", r#"[7,"getStats"]"#] {
            let broken = told(broken);
            assert!(broken.starts_with(r#"{"id":null,"ok":false"#), "{broken}");
        }
        for params in [r#"{"types":3}"#, "[]", r#" ["x"]"#] {
            let wrong = told(&format!(
                r#"{{"id":1,"method":"claimJob","params":{params}}}"#
            ));
            assert!(wrong.starts_with(r#"{"id":1,"ok":false"#), "{wrong}");
        }
    }
}
