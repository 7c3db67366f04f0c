//! Calls that need the leader, on a server that is not: they are passed on, and held for a moment if nobody can answer.
//!
//! Between two leaders, or while a new one reads the log, nobody can be asked. A call is then held here, until there is
//! somebody, this server included, or until its time is up: it costs its caller time and no error. Only what was
//! certainly not done is held: a call that has reached nobody, or that a server has refused because it does not lead.
//! What may have been done is answered `unknown_outcome` and never sent again.
//!
//! A server that has lost its own session, and does not get another one within a moment, holds nothing: another server may
//! well know the leader. One that has just started, and has no session yet, has lost nothing.
//!
//! So many calls are held at once, and their bodies take of the same budget as all bodies. A call that was forwarded
//! already is not held: the server that forwarded it does that.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tower_service::Service;

use crate::app::App;
use crate::budget::Room;
use crate::forward::{self, FORWARDED, Failed};
use crate::handlers::health;
use crate::problem::{NotServed, Problem};

/// How often a held call looks whether somebody can be asked.
const LOOK: Duration = Duration::from_millis(50);

/// How long what a leader said about itself is good for, while calls are held.
const FRESH: Duration = Duration::from_millis(200);

/// A call that can be made again: nothing was done for it yet.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    /// What its body takes.
    pub(crate) _room: Option<Room>,
}

impl Kept {
    fn request(&self) -> Request {
        Request::from_parts(self.parts.clone(), Body::from(self.body.clone()))
    }
}

/// Answers a call that needs the leader: there, or here once this server leads.
pub(crate) async fn answer<S>(app: Arc<App>, call: Kept, mut inner: S) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let until = Instant::now() + patience(&app, &call.parts.headers);
    let is_forwarded = call.parts.headers.contains_key(FORWARDED);
    let mut place = None;
    // Whether the leader that is known has refused a call, or could not be reached: then it is asked how it is before
    // it is sent anything again.
    let mut is_wary = false;
    loop {
        let answered = if app.is_serving() {
            let Ok(()) = poll_fn(|context| inner.poll_ready(context)).await;
            let Ok(response) = inner.call(call.request()).await;
            match response.extensions().get::<NotServed>() {
                None => return response,
                Some(NotServed) => response,
            }
        } else if is_forwarded {
            // Perhaps by itself, in a session that has ended since.
            let no_leader =
                "this broker does not lead at the moment; if that lasts, its log says why";
            return Problem::no_leader(no_leader).into_response();
        } else {
            match pass_on(&app, &call, is_wary).await {
                Ok(response) => {
                    app.metrics.forwarded.inc();
                    return response;
                }
                Err(Failed::Final(problem)) => {
                    app.metrics.forward_failures.inc();
                    return problem.into_response();
                }
                Err(Failed::NotDone(problem)) => {
                    is_wary = true;
                    problem.into_response()
                }
            }
        };
        if place.is_none() {
            place = app.holds.try_acquire().ok();
        }
        let is_in_vain = app.stop.is_cancelled() || app.is_cut_off();
        if place.is_none() || is_in_vain || Instant::now() >= until {
            app.metrics.forward_failures.inc();
            return why(&app, answered).await;
        }
        let _held = app.metrics.hold();
        tokio::select! {
            () = sleep(LOOK) => {}
            () = app.stop.cancelled() => {}
        }
    }
}

/// The answer to a call that is not held any longer: why nobody could be asked, if more is known than its last attempt
/// has met.
async fn why(app: &App, answered: Response) -> Response {
    if app.stop.is_cancelled() {
        return Problem::no_leader("this broker is stopping, and nobody else leads yet")
            .into_response();
    }
    match health::damage(app).await {
        Some(damage) if !app.is_serving() => Problem::no_leader(&damage).into_response(),
        _ => answered,
    }
}

async fn pass_on(app: &App, call: &Kept, is_wary: bool) -> Result<Response, Failed> {
    let leader = forward::leader(app)?;
    if is_wary && let Some(reason) = health::reason_not_to_ask(app, &leader, FRESH).await {
        return Err(Failed::NotDone(Problem::no_leader(reason)));
    }
    forward::try_forward(app, &leader, call.request()).await
}

/// How long a call may be held: as long as the server does, and as its caller is ready to wait
/// (`Prefer: wait=SECONDS`).
fn patience(app: &App, headers: &HeaderMap) -> Duration {
    let most = app.config.limits.hold_timeout;
    preferred(headers).map_or(most, |wait| most.min(wait))
}

fn preferred(headers: &HeaderMap) -> Option<Duration> {
    let said = headers.get_all("prefer").iter();
    let mut words = said
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']));
    let seconds = words.find_map(|word| {
        let (name, value) = word.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        is_wait.then(|| value.trim().trim_matches('"').parse().ok())?
    });
    seconds.map(|seconds: u32| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_says_how_long_it_waits() {
        for (sent, seconds) in [
            ("wait=8", Some(8)),
            ("respond-async, Wait=\"10\"", Some(10)),
            ("return=minimal; wait = 3", Some(3)),
            ("wait=-1", None),
            ("wait=soon", None),
            ("waits=3", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", sent.parse().unwrap());
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(preferred(&headers), expected, "{sent}");
        }
        assert_eq!(preferred(&HeaderMap::new()), None);
    }
}
