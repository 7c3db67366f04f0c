//! osqueue's calls by Connect: unary, over HTTP/1.1 or HTTP/2, as Protocol Buffers or as JSON.
//!
//! Errors are Connect errors with Connect's codes: see `dialect.rs`. A caller may say how long it waits
//! (`Connect-Timeout-Ms`). After that it is answered `deadline_exceeded`, and it is not known whether the call was
//! done, as with any client that goes away.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tenure_api::{self as api, Code};
use tokio::time::timeout;

use super::call::{Asked, Caller};
use super::messages::{
    ClaimJobRequest, ClaimJobResponse, Empty, GetStatsResponse, HeldJobRequest, ListJobsResponse,
    RestClaimed, RestJobs, RestStats, RestSubmitted, SubmitJobRequest, SubmitJobResponse, object,
};
use super::{dialect, route};
use crate::app::App;
use crate::auth::Scope;
use crate::connections::Connection;
use crate::extract::read_whole;
use crate::gate::AnsweredBy;
use crate::problem::Problem;

/// The calls of the service, and the scope that each needs.
const CALLS: [(&str, Call, Scope); 6] = [
    ("SubmitJob", Call::Submit, Scope::Worker),
    ("ClaimJob", Call::Claim, Scope::Worker),
    ("Heartbeat", Call::Heartbeat, Scope::Worker),
    ("CompleteJob", Call::Complete, Scope::Worker),
    ("GetStats", Call::Stats, Scope::Read),
    ("ListJobs", Call::List, Scope::Read),
];

#[derive(Debug, Clone, Copy)]
enum Call {
    Submit,
    Claim,
    Heartbeat,
    Complete,
    Stats,
    List,
}

/// How messages are written.
#[derive(Debug, Clone, Copy)]
enum Format {
    Proto,
    Json,
}

pub(super) fn routes(app: &Arc<App>, rest: &Router) -> Router<Arc<App>> {
    let mut all = Router::new();
    for (name, call, scope) in CALLS {
        let path = format!("/osqueue/osqueue.v1.QueueService/{name}");
        let rest = rest.clone();
        let handler = post(move |State(app): State<Arc<App>>, request: Request| {
            answer(app, rest.clone(), call, request)
        });
        // The REST call that this becomes is forwarded, not this one.
        let place = AnsweredBy::AnyBroker;
        all = all.merge(route(app, &path, Some(scope), place, handler));
    }
    all.layer(axum::middleware::from_fn(dialect::connect))
}

async fn answer(
    app: Arc<App>,
    rest: Router,
    call: Call,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let format = format(&parts.headers)?;
    check(&parts)?;
    let patience = patience(&parts.headers)?;
    let connection = parts.extensions.get::<Arc<Connection>>().cloned();
    let (bytes, _room) = read_whole(body, connection, &app).await?;
    let asked = call.read(format, &bytes)?;
    let caller = Caller::of(&parts);
    let asking = caller.ask(rest, asked);
    let answered = match patience {
        None => asking.await,
        Some(patience) => timeout(patience, asking).await.map_err(|_| {
            Problem::new(
                Code::Timeout,
                "the call took longer than its caller waits; it may or may not have been done",
            )
        })?,
    };
    call.write(format, &answered?)
}

/// The format of a caller's messages and of the answer.
fn format(headers: &HeaderMap) -> Result<Format, Problem> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut parts = kind.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let is_utf8 = parts.all(|rest| rest.eq_ignore_ascii_case("charset=utf-8"));
    match name.as_str() {
        "application/proto" => Ok(Format::Proto),
        "application/json" if is_utf8 => Ok(Format::Json),
        _ => Err(Problem::new(
            Code::UnsupportedMediaType,
            "the body is neither application/proto nor application/json",
        )),
    }
}

fn check(parts: &Parts) -> Result<(), Problem> {
    let wrong = |field: &str, what: &str| Problem::new(Code::InvalidField, what).field(field);
    let headers = &parts.headers;
    let version = headers.get("connect-protocol-version");
    if version.is_some_and(|version| version != "1") {
        let what = "the version of the Connect protocol is not 1";
        return Err(wrong("connect-protocol-version", what));
    }
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding != "identity") {
        // `unimplemented`, as the protocol wants it.
        let what = "compressed messages are not supported: send them as they are";
        return Err(Problem::new(Code::MethodNotAllowed, what));
    }
    Ok(())
}

/// How long a caller waits. The protocol allows at most ten digits.
fn patience(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let Some(value) = headers.get("connect-timeout-ms") else {
        return Ok(None);
    };
    let digits = value.to_str().ok().filter(|text| text.len() <= 10);
    let milliseconds = digits.and_then(|digits| digits.parse().ok());
    let milliseconds = milliseconds.ok_or_else(|| {
        let what = "connect-timeout-ms is not a number of at most ten digits";
        Problem::new(Code::InvalidField, what).field("connect-timeout-ms")
    })?;
    Ok(Some(Duration::from_millis(milliseconds)))
}

impl Call {
    fn read(self, format: Format, bytes: &Bytes) -> Result<Asked, Problem> {
        Ok(match self {
            Call::Submit => {
                let request: SubmitJobRequest = message(format, bytes)?;
                Asked::Submit {
                    payload: payload(&request.payload)?,
                    job_type: Some(request.r#type),
                    max_attempts: request.max_attempts.map(i64::from),
                }
            }
            Call::Claim => {
                let ClaimJobRequest { worker_id, types } = message(format, bytes)?;
                let worker = worker_id;
                Asked::Claim { worker, types }
            }
            Call::Heartbeat => {
                let HeldJobRequest { job_id, worker_id } = message(format, bytes)?;
                let (job, worker) = (job_id, worker_id);
                Asked::Heartbeat { job, worker }
            }
            Call::Complete => {
                let HeldJobRequest { job_id, worker_id } = message(format, bytes)?;
                let (job, worker) = (job_id, worker_id);
                Asked::Complete { job, worker }
            }
            Call::Stats => {
                let Empty {} = message(format, bytes)?;
                Asked::Stats
            }
            Call::List => {
                let Empty {} = message(format, bytes)?;
                Asked::List
            }
        })
    }

    fn write(self, format: Format, answer: &[u8]) -> Result<Response, Problem> {
        match self {
            Call::Submit => {
                let RestSubmitted { job_id } = answered(answer)?;
                Ok(written(format, &SubmitJobResponse { job_id }))
            }
            Call::Claim => {
                let claimed: RestClaimed = answered(answer)?;
                Ok(written(format, &ClaimJobResponse::from(claimed)))
            }
            Call::Heartbeat | Call::Complete => Ok(written(format, &Empty {})),
            Call::Stats => {
                let stats: RestStats = answered(answer)?;
                Ok(written(format, &GetStatsResponse::from(stats)))
            }
            Call::List => {
                let jobs: RestJobs = answered(answer)?;
                let list = ListJobsResponse::new(answered(answer)?, jobs);
                Ok(written(format, &list))
            }
        }
    }
}

fn message<M: Message + Default + DeserializeOwned>(
    format: Format,
    bytes: &Bytes,
) -> Result<M, Problem> {
    match format {
        Format::Proto => M::decode(bytes.clone())
            .map_err(|error| Problem::new(Code::InvalidJson, error.to_string())),
        Format::Json => object(bytes).map_err(|error| Problem::new(Code::InvalidJson, error)),
    }
}

/// A payload is JSON within the message. An empty one means null.
fn payload(bytes: &[u8]) -> Result<Box<RawValue>, Problem> {
    let bytes = if bytes.is_empty() { b"null" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| {
        let what = format!("the payload is not valid JSON: {error}");
        Problem::new(Code::InvalidField, what).field("payload")
    })
}

fn answered<A: DeserializeOwned>(answer: &[u8]) -> Result<A, Problem> {
    serde_json::from_slice(answer).map_err(|error| {
        tracing::error!(%error, "cannot read the leader's answer");
        Problem::internal("the answer cannot be read; the call was done")
    })
}

fn written(format: Format, message: &(impl Message + Serialize)) -> Response {
    let (kind, body) = match format {
        Format::Proto => ("application/proto", message.encode_to_vec()),
        Format::Json => (
            "application/json",
            serde_json::to_vec(message).expect("plain data becomes JSON"),
        ),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::OK;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

impl From<api::Problem> for Problem {
    fn from(problem: api::Problem) -> Self {
        let status = problem.status;
        let mut told = Problem::new(problem.code, problem.detail);
        if let Ok(status) = StatusCode::from_u16(status) {
            told = told.status(status);
        }
        match problem.field {
            Some(field) => told.field(field),
            None => told,
        }
    }
}
