//! CORS: what browsers need to be told before they let web pages of other, named origins call this server.
//!
//! Browser credentials are never allowed: a page that has a token sends it itself.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

/// How long a browser may cache the answer, in seconds.
const REMEMBERED: &str = "600";

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";

/// The headers that clients send, osqueue's included.
const HEADERS: &str = "authorization, content-type, connect-protocol-version, connect-timeout-ms, idempotency-key, \
    if-none-match, last-event-id, prefer, traceparent, tracestate";

/// The headers that pages may read.
const EXPOSED: &str = "connect-protocol-version, etag, retry-after, tenure-repeated";

/// The origin of a request, if it is one of the named ones.
pub(crate) fn named_origin<'a>(
    headers: &'a HeaderMap,
    named: &[String],
) -> Option<&'a HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let is_named = named
        .iter()
        .any(|name| name.as_bytes() == origin.as_bytes());
    is_named.then_some(origin)
}

/// Adds CORS headers to all answers of a router, for pages of these origins. Without origins, adds nothing.
pub(crate) fn around(router: Router, named: &[String]) -> Router {
    if named.is_empty() {
        return router;
    }
    let named: Arc<[String]> = named.into();
    router.layer(from_fn_with_state(named, answer))
}

async fn answer(State(named): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let origin = named_origin(request.headers(), &named).cloned();
    let is_question = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_question && origin.is_some() {
        let mut response = StatusCode::NO_CONTENT.into_response();
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
            (header::ACCESS_CONTROL_MAX_AGE, REMEMBERED),
        ] {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static(EXPOSED);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}
