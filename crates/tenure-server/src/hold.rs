//! Calls that need the leader, on a server that does not lead: they are forwarded, and held for a moment if no server
//! can answer.
//!
//! Between two leaders, or while a new one reads the log, no server can answer. A call is then held here until one can
//! (which may be this server), or until its time is up: the caller waits, but gets no error. A call that was certainly
//! not done is held: it reached no server, or was refused by one that does not lead. A call that may have been done is
//! held only if it can be sent again without harm, as `repeat.rs` decides. If there is no leader in time, or the call
//! is of another kind, it is answered `unknown_outcome`.
//!
//! If a leader hangs, a call forwarded to it is abandoned when another one leads, or when the call has taken longer
//! than calls are held or than its caller said it waits (`Prefer: wait`). The time that a claim waits for a job comes
//! on top.
//!
//! A server that has lost its own session, and does not soon get another one, holds nothing: another server may well
//! know the leader. A server that has just started and has no session yet does hold calls.
//!
//! The number of held calls is limited, and their bodies count against the same budget as all bodies. A call that was
//! already forwarded is not held: the server that forwarded it does that.

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
use tenure_api::Code;
use tokio::time::{Instant, sleep, timeout_at};
use tower_service::Service;

use crate::app::App;
use crate::budget::Room;
use crate::forward::{self, FORWARDED, Failed};
use crate::handlers::health;
use crate::problem::{NotServed, Problem};
use crate::repeat::{Repeat, SENDINGS_MAX, Settled};

/// How often a held call checks whether a server can answer it.
const LOOK: Duration = Duration::from_millis(50);

/// How long a leader's health report is reused while calls are held.
const FRESH: Duration = Duration::from_millis(200);

/// A leader gets at least this long to answer, even if calls are held for less: it may well be alive.
const ANSWER_TIME_MIN: Duration = Duration::from_secs(2);

/// A call that can be made again: nothing was done for it yet.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    /// The memory of its body.
    pub(crate) _room: Option<Room>,
}

impl Kept {
    fn request(&self) -> Request {
        Request::from_parts(self.parts.clone(), Body::from(self.body.clone()))
    }
}

/// Answers a call that needs the leader: forwards it, or handles it here once this server leads.
pub(crate) async fn answer<S>(app: Arc<App>, mut call: Kept, mut inner: S) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let started = Instant::now();
    let is_forwarded = call.parts.headers.contains_key(FORWARDED);
    let bytes_max = app.config.limits.body_bytes_max;
    let repeat = Repeat::prepare(&mut call.parts, &mut call.body, bytes_max);
    let hold_timeout = app.config.limits.hold_timeout;
    // The caller's patience counts from its call, and excludes the wait for a job.
    let patience = hold_timeout.max(ANSWER_TIME_MIN);
    let patience = preferred(&call.parts.headers).map_or(patience, |asked| asked.min(patience));
    let deadline = started + repeat.wait() + patience;
    // Until when it is held, counted from its first failure: before that a claim may have waited for a job.
    let mut until = None;
    let mut place = None;
    // Once the call may have been done: the answer if no other comes. And how often the call was sent.
    let mut unknown = None;
    let mut sendings = 0;
    // Whether the known leader has refused the call or could not be reached: then its health is checked before it is
    // sent anything again.
    let mut is_wary = false;
    loop {
        let answered = if app.is_serving() {
            let Ok(()) = poll_fn(|context| inner.poll_ready(context)).await;
            let Ok(response) = inner.call(call.request()).await;
            match (response.extensions().get::<NotServed>(), &unknown) {
                (Some(NotServed), _) => response,
                (None, None) => return response,
                (None, Some(_)) => match repeat.settle(response).await {
                    Settled::Answer(response) => return response,
                    Settled::Unknown(told) => return given_up(&app, told.or(unknown)),
                    Settled::Lost => return given_up(&app, unknown),
                },
            }
        } else if is_forwarded {
            // The server that forwarded it may be this one, in an earlier session.
            let no_leader =
                "this broker does not lead at the moment; if that lasts, its log says why";
            return Problem::no_leader(no_leader).into_response();
        } else {
            match pass_on(&app, &call, is_wary, deadline).await {
                Ok(response) if unknown.is_none() => {
                    app.metrics.forwarded.inc();
                    return response;
                }
                Ok(response) => match repeat.settle(response).await {
                    Settled::Answer(response) => {
                        app.metrics.forwarded.inc();
                        return response;
                    }
                    Settled::Unknown(told) => return given_up(&app, told.or(unknown)),
                    Settled::Lost => lost(&mut sendings, &mut unknown, None),
                },
                Err(Failed::Final(problem)) => {
                    return given_up(&app, unknown.or(Some(problem)));
                }
                Err(Failed::Lost(problem)) if !repeat.is_possible() => {
                    return given_up(&app, Some(problem.hint(repeat.hint())));
                }
                Err(Failed::Lost(problem)) => {
                    is_wary = true;
                    repeat.shorten(&mut call.body);
                    let problem = problem.hint(repeat.hint());
                    lost(&mut sendings, &mut unknown, Some(problem))
                }
                Err(Failed::NotDone(problem)) => {
                    is_wary = true;
                    problem.into_response()
                }
            }
        };
        let until = *until.get_or_insert_with(|| deadline.min(Instant::now() + hold_timeout));
        if place.is_none() {
            place = app.holds.try_acquire().ok();
        }
        let is_in_vain = app.stop.is_cancelled() || app.is_cut_off();
        let is_over = Instant::now() >= until || sendings >= SENDINGS_MAX;
        if place.is_none() || is_in_vain || is_over {
            if unknown.is_some() {
                return given_up(&app, unknown);
            }
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

/// The answer to a call that is not held any longer: a better reason than the last attempt's, if one is known.
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

async fn pass_on(
    app: &App,
    call: &Kept,
    is_wary: bool,
    until: Instant,
) -> Result<Response, Failed> {
    let leader = forward::leader(app)?;
    if is_wary {
        let asked = health::reason_not_to_ask(app, &leader, FRESH);
        let asked = timeout_at(until, asked).await;
        if let Some(reason) = asked.unwrap_or(Some("the leader does not answer")) {
            return Err(Failed::NotDone(Problem::no_leader(reason)));
        }
    }
    forward::try_forward(app, &leader, call.request(), until).await
}

/// The answer to a call that is abandoned: what is known about it.
fn given_up(app: &App, problem: Option<Problem>) -> Response {
    app.metrics.forward_failures.inc();
    let unknown = || {
        Problem::new(
            Code::UnknownOutcome,
            "the call may or may not have been done",
        )
    };
    problem.unwrap_or_else(unknown).into_response()
}

/// Notes that a call was sent and its answer was lost.
fn lost(sendings: &mut u32, unknown: &mut Option<Problem>, problem: Option<Problem>) -> Response {
    *sendings += 1;
    if unknown.is_none() {
        *unknown = problem;
    }
    Response::default()
}

/// How long a caller is ready to wait (`Prefer: wait=SECONDS`). A call is held no longer than that, nor than the server
/// holds any.
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
