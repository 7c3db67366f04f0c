//! Routes: which handler answers each call, who may make it, and which server answers.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler as _;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post_service};
use bytes::Bytes;
use tenure_api::Code;
use tower_layer::Layer as _;
use utoipa::OpenApi as _;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use crate::app::App;
use crate::auth::Scope;
use crate::gate::{AnsweredBy, Gate};
use crate::handlers::jobs::{claim, manage, outcome, read, submit};
use crate::handlers::{
    cluster, elections, events, health, osqueue, queues, schedules, stats, workers,
};
use crate::openapi::{self, Document};
use crate::problem::Problem;
use crate::{dashboard, metrics};

/// All of it.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let gated = |router: UtoipaMethodRouter<Arc<App>>, scope, place| {
        let path = path_of(&router);
        router.layer(Gate::new(app, scope, place, &path))
    };
    let open = |router| gated(router, None, AnsweredBy::AnyBroker);
    let read = |router| gated(router, Some(Scope::Read), AnsweredBy::AnyBroker);
    let admin = |router| gated(router, Some(Scope::Admin), AnsweredBy::AnyBroker);
    let worker = |router| gated(router, Some(Scope::Worker), AnsweredBy::AnyBroker);

    // About the queue: answered by the leader.
    let look = |router| gated(router, Some(Scope::Read), AnsweredBy::Leader);
    let work = |router| gated(router, Some(Scope::Worker), AnsweredBy::Leader);
    let manage = |router| gated(router, Some(Scope::Admin), AnsweredBy::Leader);

    // Like `work`, without the boxes that a layer around a route costs: this call has to be fast.
    let submit = |router: UtoipaMethodRouter<Arc<App>>| {
        let path = path_of(&router);
        let gate = Gate::new(app, Some(Scope::Worker), AnsweredBy::Leader, &path);
        let (schemas, paths, _) = router;
        let handler = submit::submit.with_state(app.clone());
        (schemas, paths, post_service(gate.layer(handler)))
    };

    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(submit(routes!(submit::submit)))
        .routes(work(routes!(claim::claim)))
        .routes(work(routes!(outcome::heartbeat)))
        .routes(work(routes!(outcome::complete)))
        .routes(work(routes!(outcome::fail)))
        .routes(work(routes!(outcome::release)))
        .routes(work(routes!(outcome::heartbeat_one)))
        .routes(work(routes!(outcome::complete_one)))
        .routes(work(routes!(outcome::fail_one)))
        .routes(work(routes!(outcome::release_one)))
        .routes(look(routes!(read::jobs)))
        .routes(look(routes!(read::job)))
        .routes(manage(routes!(manage::forget)))
        .routes(manage(routes!(manage::cancel)))
        .routes(manage(routes!(manage::retry)))
        .routes(manage(routes!(manage::retry_many)))
        .routes(manage(routes!(manage::move_many)))
        .routes(look(routes!(queues::queues)))
        .routes(look(routes!(queues::queue)))
        .routes(manage(routes!(queues::set)))
        .routes(manage(routes!(queues::change)))
        .routes(manage(routes!(queues::pause)))
        .routes(manage(routes!(queues::resume)))
        .routes(look(routes!(queues::settings)))
        .routes(manage(routes!(queues::configure)))
        .routes(manage(routes!(queues::change_settings)))
        .routes(look(routes!(queues::time)))
        .routes(manage(routes!(queues::set_time)))
        .routes(look(routes!(schedules::schedules)))
        .routes(look(routes!(schedules::schedule)))
        .routes(manage(routes!(schedules::set)))
        .routes(manage(routes!(schedules::pause)))
        .routes(manage(routes!(schedules::resume)))
        .routes(manage(routes!(schedules::delete)))
        .routes(look(routes!(stats::stats)))
        .routes(look(routes!(workers::workers)))
        .routes(look(routes!(events::events)))
        .routes(worker(routes!(elections::stand)))
        .routes(worker(routes!(elections::withdraw)))
        .routes(worker(routes!(elections::elect)))
        .routes(read(routes!(elections::show)))
        .routes(read(routes!(elections::leader)))
        .routes(read(routes!(cluster::show)))
        .routes(read(routes!(cluster::plan)))
        .routes(admin(routes!(cluster::resign)))
        .routes(admin(routes!(cluster::transfer)))
        .routes(admin(routes!(cluster::drain)))
        .routes(admin(routes!(cluster::undrain)))
        .routes(read(routes!(metrics::page)))
        .routes(open(routes!(health::healthz)))
        .routes(open(routes!(health::readyz)))
        .split_for_parts();

    let document = openapi::finished(document);
    // A job's id may be the same word as a call about jobs. Those calls are POSTs, so the job can still be read.
    let router = WORDS_OF_JOBS.iter().fold(router, |router, word| {
        let gate = |scope| Gate::new(app, Some(scope), AnsweredBy::Leader, "/v1/jobs/{id}");
        let look = get(read::job).layer(gate(Scope::Read));
        let forget = delete(manage::forget).layer(gate(Scope::Admin));
        router.route(&format!("/v1/jobs/{word}"), look.merge(forget))
    });
    router
        .merge(osqueue::router(app))
        // Not part of the interface that programs build on.
        .merge(dashboard::routes(app))
        .route("/openapi.json", get(move || spec(document.clone())))
        .method_not_allowed_fallback(wrong_method)
        .fallback(wrong_path)
        .with_state(app.clone())
}

/// The words that replace an id in the paths of calls about many jobs.
const WORDS_OF_JOBS: [&str; 7] = [
    "claim",
    "heartbeat",
    "complete",
    "fail",
    "release",
    "retry",
    "move",
];

/// The path of a route as in the OpenAPI document; metrics use it too.
fn path_of(router: &UtoipaMethodRouter<Arc<App>>) -> String {
    let (_, paths, _) = router;
    let path = paths.paths.keys().next();
    path.expect("a route has a path").clone()
}

async fn spec(document: Bytes) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], document).into_response()
}

async fn wrong_path(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(100).collect();
    let problem = Problem::new(Code::NotFound, format!("there is nothing at {path}"))
        .hint("see /openapi.json for all paths");
    in_dialect(&path, problem.into_response())
}

fn in_dialect(path: &str, response: Response) -> Response {
    match path.strip_prefix(osqueue::PREFIX) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => osqueue::tagged(response),
        _ => response,
    }
}

/// axum adds the `Allow` header.
async fn wrong_method(method: Method, uri: Uri) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let problem = Problem::new(
        Code::MethodNotAllowed,
        format!("{method} is not allowed here"),
    );
    in_dialect(uri.path(), problem.into_response())
}
