//! Forwards calls from a standby to the leader, so that any server answers any call.
//!
//! Answers are streamed, so a standby keeps none of them in memory, and long polls and event streams pass through. A
//! call is forwarded only once: if it arrives forwarded and this server does not lead, it is answered `no_leader`. So
//! two servers that each believe the other leads cannot pass a call back and forth. A call whose connection broke
//! after it was sent may have been done; `repeat.rs` decides what is sent again, and `hold.rs` for how long.
//!
//! A server with TLS does not forward to a leader without it: the call and its token would cross the network
//! unencrypted.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tenure::core::Incarnation;
use tenure::core::election::Leader;
use tenure::queue::Serving;
use tenure_api::{self as api, Code};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

use crate::app::App;
use crate::connections::Connection;
use crate::files::Room;
use crate::handlers::health::NO_ROOM;
use crate::problem::{Problem, chain};
use crate::{Error, Tls, config, tls};

/// Says that a call was already forwarded, and for which client.
pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("tenure-forwarded");

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the leader may take to begin the stream of its dashboard.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a former leader may take to answer what it was sent while it led: it finishes what it has begun, and
/// answers.
const GRACE: Duration = Duration::from_secs(3);

/// The same once another one leads. A leader that is alive answers everything before it releases its term, so this
/// covers answers in transit; one that hangs answers nothing.
const GRACE_REPLACED: Duration = Duration::from_millis(100);

/// How long a leader may take to report its health.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// The most bytes of a problem document, or of a leader's health report.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;

/// How often a waiting call checks whether the leader is still the same.
const LEADER_CHECK: Duration = Duration::from_millis(100);

/// Shorter than the time after which the leader closes an idle connection.
const CONNECTION_IDLE: Duration = Duration::from_secs(20);

/// Headers that belong to one connection, not to the message.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Headers that are meant for this server, which has checked them: to another server they would mean something else.
const OF_THIS_SERVER: [HeaderName; 6] = [
    header::HOST,
    header::ORIGIN,
    HeaderName::from_static("sec-fetch-site"),
    HeaderName::from_static("sec-fetch-mode"),
    HeaderName::from_static("sec-fetch-dest"),
    HeaderName::from_static("sec-fetch-user"),
];

/// Marks an answer that came from another server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassedOn;

/// Why a call got no answer from the leader.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Nothing was done, and another attempt may soon succeed.
    NotDone(Problem),
    /// It may have been done.
    Lost(Problem),
    /// Trying again would not help.
    Final(Problem),
}

/// Connects to the leader.
#[derive(Debug)]
pub(crate) struct Forwarder {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    /// Room for connections to the leader that carry a call.
    connections: Arc<Semaphore>,
    /// Whether to forward over TLS only.
    is_secure: bool,
    /// The leader's address, once known. One look-up at a time, and one per leader.
    found: Mutex<Option<(Incarnation, Origin)>>,
    /// The leader whose certificate could not be verified, if that was already logged.
    distrusted: std::sync::Mutex<Option<Incarnation>>,
}

#[derive(Debug, Clone)]
struct Origin {
    scheme: Scheme,
    authority: Authority,
}

impl Forwarder {
    pub(crate) fn new(tls: Option<&Tls>, room: &Room) -> Result<Self, Error> {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        // Notices a leader whose host is gone: nothing else would answer.
        tcp.set_keepalive(Some(Duration::from_secs(10)));
        tcp.enforce_http(false);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls::client(tls)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(CONNECTION_IDLE)
            .pool_max_idle_per_host(room.idle_max)
            .build(connector);
        Ok(Self {
            client,
            connections: Arc::new(Semaphore::new(room.forwards_max)),
            is_secure: tls.is_some(),
            found: Mutex::default(),
            distrusted: std::sync::Mutex::default(),
        })
    }

    /// The reason to give if a leader could not be reached because its certificate cannot be verified. Somebody has
    /// to fix that, so it is logged, once per leader.
    fn distrust(
        &self,
        leader: &Leader,
        error: &(dyn std::error::Error + 'static),
    ) -> Option<&'static str> {
        if !is_distrust(error) {
            return None;
        }
        let mut said = self
            .distrusted
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if said.replace(leader.incarnation) != Some(leader.incarnation) {
            tracing::warn!(
                node = %leader.node, error = %chain(error),
                "the leader's certificate cannot be verified, so nothing is forwarded to it"
            );
        }
        Some("the leader's certificate cannot be verified, so nothing is forwarded to it")
    }

    /// The leader's address. Reads the store if the leader is new.
    async fn origin(&self, app: &App, leader: &Leader) -> Result<Origin, Failed> {
        let mut found = self.found.lock().await;
        if let Some((incarnation, origin)) = &*found
            && *incarnation == leader.incarnation
        {
            return Ok(origin.clone());
        }
        let view = app.node.view();
        let session = view.session(&leader.node, leader.incarnation).await;
        let session = session.map_err(|error| Failed::NotDone(error.into()))?;
        let Some(session) = session else {
            let gone = "the leader's session is gone, and there is no new leader yet";
            return Err(Failed::NotDone(Problem::no_leader(gone)));
        };
        // The session is this node's own, of this process or an earlier one. It does not serve the queue, or the call
        // would not be forwarded.
        if session.about.address.is_none() && leader.node == *app.node.id() {
            let own = Problem::no_leader(
                "this broker holds the lease, but does not serve the queue at the moment",
            );
            let hint = "try again; if this persists, look at the broker's log and at the store";
            return Err(Failed::NotDone(own.hint(hint)));
        }
        let Some(address) = session.about.address else {
            let node = &leader.node;
            return Err(Failed::Final(
                Problem::no_leader(&format!("{node} leads, but does not advertise an address"))
                    .hint("start it with --advertise URL"),
            ));
        };
        let origin = parse(&address).map_err(|problem| {
            tracing::error!(node = %leader.node, problem, "cannot reach the leader");
            let problem = Problem::no_leader("the leader advertises a URL that cannot be used");
            Failed::Final(problem)
        })?;
        if self.is_secure && origin.scheme != Scheme::HTTPS {
            tracing::error!(
                node = %leader.node,
                "the leader advertises an http URL, but this broker has TLS: calls are not forwarded in the clear"
            );
            return Err(Failed::Final(
                Problem::no_leader(
                    "the leader can be reached only without TLS, so nothing is forwarded to it",
                )
                .hint(
                    "give every broker of the cluster a certificate and an https URL to advertise",
                ),
            ));
        }
        *found = Some((leader.incarnation, origin.clone()));
        Ok(origin)
    }
}

fn parse(address: &str) -> Result<Origin, String> {
    let url = config::advertised(address)?;
    let uri: Uri = url.as_str().parse().map_err(|_| "not a URL".to_owned())?;
    let parts = uri.into_parts();
    match (parts.scheme, parts.authority) {
        (Some(scheme), Some(authority)) => Ok(Origin { scheme, authority }),
        _ => Err("no host".to_owned()),
    }
}

/// Forwards a call to the leader and returns the answer. Tries only once.
pub(crate) async fn forward(app: Arc<App>, request: Request) -> Response {
    let forwarded = async {
        let leader = leader(&app)?;
        let until = Instant::now() + ANSWER_TIMEOUT;
        try_forward(&app, &leader, request, until).await
    };
    match forwarded.await {
        Ok(response) => {
            app.metrics.forwarded.inc();
            response
        }
        Err(Failed::NotDone(problem) | Failed::Lost(problem) | Failed::Final(problem)) => {
            app.metrics.forward_failures.inc();
            problem.into_response()
        }
    }
}

/// The leader to forward to.
pub(crate) fn leader(app: &App) -> Result<Leader, Failed> {
    let not_done = |detail| Err(Failed::NotDone(Problem::no_leader(detail)));
    match app.leader() {
        None => not_done("there is no leader at the moment"),
        Some(leader) if app.is_me(&leader) => not_done(if app.leaving.is_cancelled() {
            "this broker is stopping"
        } else {
            not_yet(app)
        }),
        Some(leader) => Ok(leader),
    }
}

/// Why this broker does not serve yet, although it leads.
pub(crate) fn not_yet(app: &App) -> &'static str {
    match app.queue.state() {
        Serving::Recovering(_) => "this broker leads and is reading the log",
        _ => "this broker is about to lead, and does not serve yet",
    }
}

/// Sends a call to a leader. Waits for the answer until another one leads, or until the deadline.
pub(crate) async fn try_forward(
    app: &App,
    leader: &Leader,
    request: Request,
    until: Instant,
) -> Result<Response, Failed> {
    let _permit = app.waits.try_acquire().map_err(|_| {
        Failed::Final(Problem::overloaded(
            "too many calls are waiting for the leader",
        ))
    })?;
    let connection = app.forwarder.connections.clone().try_acquire_owned();
    let connection = connection.map_err(|_| {
        Failed::Final(Problem::overloaded(
            "too many calls are being forwarded to the leader",
        ))
    })?;
    let origin = timeout_at(until, app.forwarder.origin(app, leader)).await;
    let origin = origin.map_err(|_| {
        let unknown = "the store does not say in time where the leader is";
        Failed::NotDone(Problem::no_leader(unknown))
    })??;
    let is_safe = request.method().is_safe();
    let request = outgoing(request, &origin).map_err(Failed::Final)?;
    let answer = timeout_at(until, app.forwarder.client.request(request));
    let answered = tokio::select! {
        answered = answer => answered,
        () = replaced(app, leader) => return Err(lost(is_safe, "the leader has changed")),
        () = stopped(app) => return Err(lost(is_safe, "this broker is stopping")),
    };
    match answered {
        Ok(Ok(response)) => {
            let response = read(incoming(response), is_safe).await?;
            Ok(holding(response, connection))
        }
        Ok(Err(error)) if error.is_connect() => {
            if let Some(reason) = app.forwarder.distrust(leader, &error) {
                return Err(Failed::NotDone(Problem::no_leader(reason)));
            }
            tracing::debug!(error = %chain(&error), "cannot reach the leader");
            Err(Failed::NotDone(Problem::no_leader(
                "cannot reach the leader; nothing was done",
            )))
        }
        Ok(Err(error)) => {
            tracing::debug!(error = %chain(&error), "the leader did not answer");
            Err(lost(is_safe, "the connection to the leader broke"))
        }
        Err(_) => Err(lost(is_safe, "the leader did not answer in time")),
    }
}

/// Keeps the connection's permit until the last byte of the answer has been read.
fn holding(response: Response, connection: OwnedSemaphorePermit) -> Response {
    response.map(|body| {
        Body::new(body.map_err(move |error| {
            let _held = &connection;
            error
        }))
    })
}

/// Resolves when this server stops and its forwarded calls have had time to be answered. Most are answered at once,
/// by the leader that it has just handed over to. A claim may wait for longer.
async fn stopped(app: &App) {
    app.stop.cancelled().await;
    sleep(GRACE.min(app.config.limits.stop_timeout / 2)).await;
}

/// Reads a leader's answer. An error if it says that it no longer leads and did nothing.
async fn read(response: Response, is_safe: bool) -> Result<Response, Failed> {
    if response.status() != StatusCode::SERVICE_UNAVAILABLE {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, PROBLEM_BYTES_MAX)
        .await
        .map_err(|_| lost(is_safe, "the connection to the leader broke"))?;
    match serde_json::from_slice::<api::Problem>(&body) {
        Ok(problem) if problem.code == Code::NoLeader => {
            Err(Failed::NotDone(Problem::no_leader(&problem.detail)))
        }
        // Its term ended while it was handling the call.
        Ok(problem) if problem.code == Code::UnknownOutcome && !is_safe => Err(Failed::Lost(
            Problem::new(Code::UnknownOutcome, problem.detail)
                .hint("send it again with the same id"),
        )),
        _ => Ok(Response::from_parts(parts, Body::from(body))),
    }
}

/// Asks a leader whether it serves: `None` if it does, otherwise the reason.
pub(crate) async fn reason_not_to(app: &App, leader: &Leader) -> Option<&'static str> {
    #[derive(serde::Deserialize)]
    struct Readiness {
        status: String,
        reason: Option<String>,
    }
    let origin = match app.forwarder.origin(app, leader).await {
        Ok(origin) => origin,
        Err(Failed::Final(_) | Failed::Lost(_)) => {
            return Some("the leader has no URL that this broker can use");
        }
        Err(Failed::NotDone(_)) => return Some("the leader's address is not known"),
    };
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = Uri::from_static("/readyz");
    let request = outgoing(request, &origin).ok()?;
    let silent = "the leader does not answer";
    let asked = async {
        let response = app.forwarder.client.request(request).await;
        let response =
            response.map_err(|error| app.forwarder.distrust(leader, &error).unwrap_or(silent))?;
        let body = Body::new(response.into_body());
        let body = axum::body::to_bytes(body, PROBLEM_BYTES_MAX).await;
        let body = body.map_err(|_| silent)?;
        serde_json::from_slice::<Readiness>(&body).map_err(|_| silent)
    };
    match timeout(ASK_TIMEOUT, asked).await {
        Ok(Ok(answer)) if answer.status == "leader" => None,
        Ok(Ok(answer)) if answer.reason.as_deref() == Some(NO_ROOM) => Some(NO_ROOM),
        Ok(Ok(_)) => Some("the leader does not serve at the moment"),
        Ok(Err(reason)) => Some(reason),
        Err(_) => Some(silent),
    }
}

/// Whether a connection failed because the other side's certificate cannot be verified.
fn is_distrust(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return matches!(error, rustls::Error::InvalidCertificate(_));
    }
    // The source of an I/O error skips the error that it wraps, so look at that one first.
    let held = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref);
    match held {
        Some(held) => is_distrust(held),
        None => error.source().is_some_and(is_distrust),
    }
}

/// The failure when a call was sent and its answer did not come.
fn lost(is_safe: bool, what: &str) -> Failed {
    if is_safe {
        return Failed::NotDone(Problem::no_leader(what));
    }
    let problem = Problem::new(
        Code::UnknownOutcome,
        format!("{what}; the call may or may not have been done"),
    );
    Failed::Lost(problem.hint("send it again with the same id"))
}

/// Waits until another one leads (or this server), or no one has led for a while, and the old leader has had time to
/// answer.
async fn replaced(app: &App, leader: &Leader) {
    let mut looks = interval(LEADER_CHECK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut vacant = None;
    loop {
        looks.tick().await;
        match app.leader() {
            Some(present) if present == *leader => vacant = None,
            Some(_) => return sleep(GRACE_REPLACED).await,
            None => {
                let since = *vacant.get_or_insert_with(Instant::now);
                if since.elapsed() >= GRACE {
                    return;
                }
            }
        }
    }
}

fn outgoing(request: Request, origin: &Origin) -> Result<Request, Problem> {
    let (mut parts, body) = request.into_parts();
    let path = parts
        .uri
        .path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"));
    parts.uri = Uri::builder()
        .scheme(origin.scheme.clone())
        .authority(origin.authority.clone())
        .path_and_query(path)
        .build()
        .map_err(|_| Problem::internal("cannot forward this address"))?;
    without_hops(&mut parts.headers);
    for name in &OF_THIS_SERVER {
        parts.headers.remove(name);
    }
    let connection = parts.extensions.get::<Arc<Connection>>();
    let caller = connection.and_then(|connection| {
        let peer = connection.peer().to_string();
        HeaderValue::try_from(peer).ok()
    });
    let caller = caller.unwrap_or_else(|| HeaderValue::from_static("1"));
    parts.headers.insert(FORWARDED, caller);
    parts.extensions.clear();
    Ok(Request::from_parts(parts, body))
}

fn incoming(response: http::Response<hyper::body::Incoming>) -> Response {
    let (mut parts, body) = response.into_parts();
    without_hops(&mut parts.headers);
    parts.extensions.clear();
    parts.extensions.insert(PassedOn);
    Response::from_parts(parts, Body::new(body))
}

fn without_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_has_its_connection_until_it_was_read() {
        let connections = Arc::new(Semaphore::new(1));
        let connection = connections.clone().try_acquire_owned().unwrap();
        let answer = holding(Response::new(Body::from("12345")), connection);
        assert_eq!(http_body::Body::size_hint(answer.body()).exact(), Some(5));
        assert_eq!(connections.available_permits(), 0);
        let read = axum::body::to_bytes(answer.into_body(), 9).await.unwrap();
        assert_eq!((read.len(), connections.available_permits()), (5, 1));
    }

    #[test]
    fn a_certificate_that_cannot_be_verified_is_told_apart() {
        use rustls::{CertificateError, Error};
        use std::io;
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(is_distrust(&unknown));
        assert!(is_distrust(&io::Error::other(unknown.clone())));
        assert!(is_distrust(&io::Error::other(io::Error::other(unknown))));
        assert!(!is_distrust(&io::Error::other(Error::HandshakeNotComplete)));
        assert!(!is_distrust(&io::Error::from(io::ErrorKind::TimedOut)));
    }

    #[test]
    fn what_is_about_the_connection_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("keep-alive", "timeout=5"),
            ("x-mine", "1"),
            ("upgrade", "h2c"),
            ("authorization", "Bearer t"),
            ("content-type", "application/json"),
        ] {
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        without_hops(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "content-type"]);
    }
}
