//! One osqueue call of any transport, made as a REST call.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use tenure::queue::PAGE_BYTES_MAX;
use tenure_api::{self as api, Code, JobId};
use tower_service::Service as _;

use super::dialect::is_problem;
use crate::connections::Connection;
use crate::problem::Problem;

/// The most bytes of an answer: a page of jobs, its frame, and room for one job that is larger.
const ANSWER_BYTES_MAX: usize = 16 * PAGE_BYTES_MAX;

/// Headers that are copied from a call to the REST call that it becomes.
const PASSED: [HeaderName; 3] = [
    header::AUTHORIZATION,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// The calls that osqueue's clients make.
#[derive(Debug)]
pub(super) enum Asked {
    Submit {
        payload: Box<RawValue>,
        job_type: Option<String>,
        max_attempts: Option<i64>,
    },
    Claim {
        worker: String,
        types: Vec<String>,
    },
    Heartbeat {
        job: String,
        worker: String,
    },
    Complete {
        job: String,
        worker: String,
    },
    Stats,
    List,
}

/// The caller.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    headers: HeaderMap,
    connection: Option<Arc<Connection>>,
}

impl Caller {
    pub(super) fn of(parts: &Parts) -> Self {
        let mut headers = HeaderMap::new();
        for name in PASSED {
            if let Some(value) = parts.headers.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        Self {
            headers,
            connection: parts.extensions.get::<Arc<Connection>>().cloned(),
        }
    }

    /// Makes the call by REST, and returns its answer: JSON, or nothing.
    pub(super) async fn ask(&self, mut rest: Router, asked: Asked) -> Result<Bytes, Problem> {
        let (method, path, body) = asked.into_rest()?;
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| wrong("jobId", "is not an id"))?;
        *request.headers_mut() = self.headers.clone();
        let kind = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Some(connection) = &self.connection {
            request.extensions_mut().insert(connection.stream());
        }
        let Ok(response) = rest.call(request).await;
        let is_problem = is_problem(&response);
        let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await;
        let body = body.map_err(|_| {
            Problem::new(Code::UnknownOutcome, "the connection to the leader broke")
        })?;
        if !is_problem {
            return Ok(body);
        }
        let problem = serde_json::from_slice::<api::Problem>(&body);
        Err(problem.map_or_else(
            |_| Problem::internal("the answer cannot be read"),
            Problem::from,
        ))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Worker {
    worker_id: String,
}

impl Asked {
    fn into_rest(self) -> Result<(Method, String, Vec<u8>), Problem> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Submit {
            payload: Box<RawValue>,
            #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
            job_type: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            max_attempts: Option<i64>,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Claim {
            worker_id: String,
            types: Vec<String>,
        }
        let post = |path: &str, body| Ok((Method::POST, format!("/osqueue/v1/jobs{path}"), body));
        match self {
            Asked::Submit {
                payload,
                job_type,
                max_attempts,
            } => post(
                "",
                json(&Submit {
                    payload,
                    job_type,
                    max_attempts,
                }),
            ),
            Asked::Claim { worker, types } => post(
                "/claim",
                json(&Claim {
                    worker_id: worker,
                    types,
                }),
            ),
            Asked::Heartbeat { job, worker } => {
                let body = json(&Worker { worker_id: worker });
                post(&format!("/{}/heartbeat", id(&job)?), body)
            }
            Asked::Complete { job, worker } => {
                let body = json(&Worker { worker_id: worker });
                post(&format!("/{}/complete", id(&job)?), body)
            }
            Asked::Stats => Ok((Method::GET, "/osqueue/v1/stats".to_owned(), Vec::new())),
            Asked::List => Ok((Method::GET, "/osqueue/v1/jobs".to_owned(), Vec::new())),
        }
    }
}

/// Checks an id, so that it is safe in a path.
fn id(text: &str) -> Result<JobId, Problem> {
    JobId::new(text).map_err(|error| wrong("jobId", &error.to_string()))
}

fn wrong(field: &str, what: &str) -> Problem {
    Problem::new(Code::InvalidField, what).field(field)
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("plain data becomes JSON")
}
