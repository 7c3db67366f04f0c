//! From a standby to the leader: any server answers any call.
//!
//! Bodies stream both ways, so a standby holds none of them, and long polls and event streams pass through.
//! A call is forwarded once: one that arrives forwarded and finds no leader here is answered `no_leader`,
//! so two servers that each take the other for the leader cannot pass a call back and forth. Nothing is
//! sent twice either: what broke after it was sent is answered `unknown_outcome`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tenure::core::Incarnation;
use tenure::core::election::machine::Leader;
use tenure_core::api::{Code, WAIT_MS_MAX};
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::app::App;
use crate::problem::{Problem, chain};
use crate::{Error, Tls, config, tls};

/// Says that a call was forwarded already.
pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("tenure-forwarded");

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the leader may take to begin its answer: the longest wait for a job, and some.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(WAIT_MS_MAX as u64 + 15_000);

/// How often a waiting call looks whether the leader is still the same.
const LEADER_CHECK: Duration = Duration::from_millis(250);

const CONNECTIONS_IDLE_MAX: usize = 256;

/// Shorter than the time after which the leader closes an idle connection.
const CONNECTION_IDLE: Duration = Duration::from_secs(20);

/// Headers that are about one connection, not about the message.
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

/// The way to the leader.
#[derive(Debug)]
pub(crate) struct Forwarder {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    /// Where the leader was found. One look-up at a time, and one per leader.
    found: Mutex<Option<(Incarnation, Origin)>>,
}

#[derive(Debug, Clone)]
struct Origin {
    scheme: Scheme,
    authority: Authority,
}

impl Forwarder {
    pub(crate) fn new(tls: Option<&Tls>) -> Result<Self, Error> {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        // A leader whose host is gone answers nothing at all, not even that.
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
            .pool_max_idle_per_host(CONNECTIONS_IDLE_MAX)
            .build(connector);
        Ok(Self {
            client,
            found: Mutex::default(),
        })
    }

    /// Where a leader can be reached. Reads the store when the leader is a new one.
    async fn origin(&self, app: &App, leader: &Leader) -> Result<Origin, Problem> {
        let mut found = self.found.lock().await;
        if let Some((incarnation, origin)) = &*found
            && *incarnation == leader.incarnation
        {
            return Ok(origin.clone());
        }
        let sessions = app.node.view().sessions().await?;
        let address = sessions
            .into_iter()
            .find(|session| session.incarnation == leader.incarnation)
            .and_then(|session| session.about.address);
        let Some(address) = address else {
            let node = &leader.node;
            return Err(Problem::no_leader(&format!(
                "{node} leads, and does not say where it can be reached"
            ))
            .hint("start it with --advertise URL"));
        };
        let origin = parse(&address).map_err(|problem| {
            tracing::error!(node = %leader.node, problem, "the leader cannot be reached");
            Problem::no_leader("the leader advertises a URL that cannot be used")
        })?;
        *found = Some((leader.incarnation, origin.clone()));
        Ok(origin)
    }
}

fn parse(address: &str) -> Result<Origin, String> {
    let url = config::advertised(address)?;
    let uri: Uri = url.as_str().parse().map_err(|_| "no URL".to_owned())?;
    let parts = uri.into_parts();
    match (parts.scheme, parts.authority) {
        (Some(scheme), Some(authority)) => Ok(Origin { scheme, authority }),
        _ => Err("no host".to_owned()),
    }
}

/// Passes a call on to the leader, and its answer back.
pub(crate) async fn forward(app: Arc<App>, request: Request) -> Response {
    match try_forward(&app, request).await {
        Ok(response) => {
            app.metrics.forwarded.inc();
            response
        }
        Err(problem) => {
            app.metrics.forward_failures.inc();
            problem.into_response()
        }
    }
}

async fn try_forward(app: &App, request: Request) -> Result<Response, Problem> {
    if request.headers().contains_key(FORWARDED) {
        return Err(Problem::no_leader(
            "this server was taken for the leader, and is not",
        ));
    }
    let Some(leader) = app.leader() else {
        return Err(Problem::no_leader("nobody leads at the moment"));
    };
    if app.is_me(&leader) {
        return Err(Problem::no_leader(
            "this server was just elected and is reading the log",
        ));
    }
    let _permit = app
        .waits
        .try_acquire()
        .map_err(|_| Problem::overloaded("too many calls wait for the leader"))?;
    let origin = app.forwarder.origin(app, &leader).await?;
    let is_safe = request.method().is_safe();
    let request = outgoing(request, &origin)?;
    let answer = timeout(ANSWER_TIMEOUT, app.forwarder.client.request(request));
    let answered = tokio::select! {
        answered = answer => answered,
        () = replaced(app, &leader) => return Err(lost(is_safe, "the leader has changed")),
        () = app.stop.cancelled() => return Err(lost(is_safe, "this server is stopping")),
    };
    match answered {
        Ok(Ok(response)) => Ok(incoming(response)),
        Ok(Err(error)) if error.is_connect() => {
            tracing::debug!(error = %chain(&error), "the leader cannot be reached");
            Err(Problem::no_leader(
                "the leader cannot be reached; nothing was done",
            ))
        }
        Ok(Err(error)) => {
            tracing::debug!(error = %chain(&error), "the leader did not answer");
            Err(lost(is_safe, "the connection to the leader broke"))
        }
        Err(_) => Err(lost(is_safe, "the leader did not answer in time")),
    }
}

/// What to say when a call was sent and its answer did not come.
fn lost(is_safe: bool, what: &str) -> Problem {
    if is_safe {
        return Problem::no_leader(what);
    }
    Problem::new(
        Code::UnknownOutcome,
        format!("{what}; it may or may not have been done"),
    )
    .hint("send it again with the same id")
}

/// Waits until somebody else leads, or nobody.
async fn replaced(app: &App, leader: &Leader) {
    let mut looks = interval(LEADER_CHECK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if app.leader().as_ref() != Some(leader) {
            return;
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
        .map_err(|_| Problem::internal("the address cannot be passed on"))?;
    without_hops(&mut parts.headers);
    parts.headers.remove(header::HOST);
    parts
        .headers
        .insert(FORWARDED, HeaderValue::from_static("1"));
    parts.extensions.clear();
    Ok(Request::from_parts(parts, body))
}

fn incoming(response: http::Response<hyper::body::Incoming>) -> Response {
    let (mut parts, body) = response.into_parts();
    without_hops(&mut parts.headers);
    parts.extensions.clear();
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
