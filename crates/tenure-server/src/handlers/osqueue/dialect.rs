//! Errors, in the form of each transport.
//!
//! An error is a problem document until it leaves this broker, whether it comes from a handler, the gate or the leader.
//! Only then is it translated. An answer to a standby that has forwarded a call is left as it is: the standby has to
//! know whether there is a leader, and it translates for its own client.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::Serialize;
use tenure_api::{self as api, Code, PROBLEM_CONTENT_TYPE};

use crate::forward::FORWARDED;

/// The most bytes of a problem document.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;

/// osqueue's name for a failure.
pub(super) fn tag(code: Code) -> &'static str {
    match code {
        Code::NoLeader => "BrokerLeadershipError",
        Code::StoreUnavailable | Code::UnknownOutcome => "StorageBackendError",
        _ => "BrokerProtocolError",
    }
}

/// Translates errors of REST calls.
pub(super) async fn rest(request: Request, next: Next) -> Response {
    let is_forwarded = request.headers().contains_key(FORWARDED);
    let response = next.run(request).await;
    if is_forwarded {
        return response;
    }
    translated(response, both).await
}

/// Translates errors of Connect calls.
pub(super) async fn connect(request: Request, next: Next) -> Response {
    translated(next.run(request).await, connect_error).await
}

async fn translated(response: Response, into: fn(Response, &api::Problem) -> Response) -> Response {
    if !is_problem(&response) {
        return response;
    }
    let (parts, body) = response.into_parts();
    // A body that cannot be read came from the leader, and its connection broke.
    let body = to_bytes(body, PROBLEM_BYTES_MAX).await.unwrap_or_default();
    let problem = serde_json::from_slice(&body).unwrap_or_else(|_| {
        api::Problem::new(
            Code::UnknownOutcome,
            "the connection to the leader broke".to_owned(),
        )
    });
    into(Response::from_parts(parts, Body::empty()), &problem)
}

pub(super) fn is_problem(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind == PROBLEM_CONTENT_TYPE)
}

/// A problem document that also has the two fields that osqueue's client reads.
fn both(response: Response, problem: &api::Problem) -> Response {
    #[derive(Serialize)]
    struct Both<'a> {
        _tag: &'static str,
        message: &'a str,
        #[serde(flatten)]
        problem: &'a api::Problem,
    }
    let both = Both {
        _tag: tag(problem.code),
        message: &problem.detail,
        problem,
    };
    with_body(response, &both)
}

/// The same for an answer that is in memory and was not made by a route.
pub(crate) fn tagged(response: Response) -> Response {
    use futures_util::FutureExt as _;
    let translated = translated(response, both).now_or_never();
    translated.unwrap_or_else(|| Response::new(Body::empty()))
}

/// A Connect error: Connect's own code, and the HTTP status that belongs to it.
fn connect_error(mut response: Response, problem: &api::Problem) -> Response {
    #[derive(Serialize)]
    struct Error<'a> {
        code: &'static str,
        message: &'a str,
    }
    let (code, status) = connect_code(problem);
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    let message = &problem.detail;
    with_body(response, &Error { code, message })
}

fn connect_code(problem: &api::Problem) -> (&'static str, StatusCode) {
    use StatusCode as Status;
    // Recognised by its HTTP status: it has no specific code.
    if problem.status == Status::UNSUPPORTED_MEDIA_TYPE.as_u16() {
        return ("unknown", Status::UNSUPPORTED_MEDIA_TYPE);
    }
    match problem.code {
        Code::Unauthorized => ("unauthenticated", Status::UNAUTHORIZED),
        Code::Forbidden => ("permission_denied", Status::FORBIDDEN),
        Code::NotFound => ("not_found", Status::NOT_FOUND),
        Code::MethodNotAllowed => ("unimplemented", Status::NOT_IMPLEMENTED),
        Code::Lost => ("failed_precondition", Status::BAD_REQUEST),
        Code::Overloaded | Code::Full | Code::TooLarge => {
            ("resource_exhausted", Status::TOO_MANY_REQUESTS)
        }
        Code::NoLeader | Code::StoreUnavailable => ("unavailable", Status::SERVICE_UNAVAILABLE),
        Code::Timeout => ("deadline_exceeded", Status::GATEWAY_TIMEOUT),
        Code::Internal => ("internal", Status::INTERNAL_SERVER_ERROR),
        // It may have been done, so not `unavailable`, which clients retry automatically.
        Code::UnknownOutcome => ("unknown", Status::INTERNAL_SERVER_ERROR),
        _ => ("invalid_argument", Status::BAD_REQUEST),
    }
}

fn with_body(mut response: Response, body: &impl Serialize) -> Response {
    let body = serde_json::to_vec(body).unwrap_or_default();
    let headers = response.headers_mut();
    headers.remove(header::TRANSFER_ENCODING);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    *response.body_mut() = Body::from(body);
    response
}
