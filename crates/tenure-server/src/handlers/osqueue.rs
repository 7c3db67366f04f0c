//! Speaks osqueue's interface, so that its clients and workers can move here by changing an address.
//!
//! There are the three transports that its clients use: REST (`rest.rs`), on which the others are built; Connect
//! (`connect.rs`), their default; and WebSocket (`socket.rs`). A call by Connect or WebSocket becomes a REST call
//! within this process. So it passes the same gate, uses the same budgets, and is forwarded to the leader in the same
//! way.
//!
//! All of it is under `/osqueue`, and at the root of a separate listener if there is one (`door.rs`).
//!
//! Jobs go to and come from the queue `default`. A worker sends its name and no claim token; its claim is found by
//! job and worker. Where osqueue reports success to a worker that no longer holds a job, this answers 409.

mod call;
mod connect;
mod dialect;
mod door;
mod messages;
mod names;
mod rest;
mod socket;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use tenure_api::{Code, JobType};

use crate::app::App;
use crate::auth::Scope;
use crate::gate::{AnsweredBy, Gate};
use crate::problem::Problem;

pub(crate) use dialect::tagged;
pub(crate) use door::Door;
pub use door::Network;
pub(crate) use socket::Switched;

/// The path prefix of all of it.
pub(crate) const PREFIX: &str = "/osqueue";

/// The calls, under `/osqueue`.
pub(crate) fn router(app: &Arc<App>) -> Router<Arc<App>> {
    let rest = rest::routes(app);
    // The same calls without translated errors, for the other transports.
    let inner = rest.clone().with_state(app.clone());
    rest.layer(axum::middleware::from_fn(dialect::rest))
        .merge(connect::routes(app, &inner))
        .merge(socket::routes(app, &inner))
}

/// The calls, for a listener that serves nothing else.
pub(crate) fn router_alone(app: &Arc<App>) -> Router {
    router(app)
        .fallback(nothing)
        .method_not_allowed_fallback(nothing)
        .with_state(app.clone())
}

async fn nothing(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(100).collect();
    let path = path.strip_prefix(PREFIX).unwrap_or(&path);
    let problem = format!("there is nothing at {} {path}", request.method());
    tagged(Problem::new(Code::NotFound, problem).into_response())
}

fn route(
    app: &Arc<App>,
    path: &str,
    scope: Option<Scope>,
    place: AnsweredBy,
    router: MethodRouter<Arc<App>>,
) -> Router<Arc<App>> {
    let gate = Gate::new(app, scope, place, path);
    Router::new().route(path, router.layer(gate))
}

/// The queue's name for an osqueue job type, which can be any text; `None` if it is too long.
#[must_use]
pub fn osqueue_type(text: Option<&str>) -> Option<JobType> {
    names::job_type(text).ok()
}
