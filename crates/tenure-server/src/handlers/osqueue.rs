//! osqueue's REST dialect, so that its clients and workers move over by changing a URL.
//!
//! Jobs go to and come from the queue `default`. A worker names itself and no token; its claim is found by
//! job and worker. Where osqueue says success to whoever no longer holds a job, this says 409.
//!
//! Errors are problem documents that also have the two fields that osqueue's client reads, `_tag` and
//! `message`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde::{Deserialize, Serialize};
use tenure::queue::PAGE_BYTES_MAX;
use tenure_api::{
    ClaimRequest, Code, Heartbeat, JobId, JobType, PROBLEM_CONTENT_TYPE, QueueName, SubmitStatus,
};
use tenure_core::queue::{
    Completion, Filter, Job, Key, PageStart, Payload, State as JobState, Submission, Token,
};

use crate::app::App;
use crate::auth::Scope;
use crate::budget::Room;
use crate::extract::{CallName, Json, Named, Via, ok, room_for, tagged_within};
use crate::gate::{AnsweredBy, Gate};
use crate::handlers::jobs::claim::take;
use crate::handlers::jobs::outcome::{finish, keep, lost};
use crate::handlers::jobs::search;
use crate::handlers::jobs::submit::full;
use crate::problem::Problem;

/// The type of jobs that were submitted without one. It is not shown to osqueue's workers.
const UNTYPED: &str = "untyped";

/// How long a worker of osqueue may be silent.
const LEASE_MS: u32 = 30_000;

/// How often osqueue tries a job unless told otherwise.
const ATTEMPTS_DEFAULT: u32 = 3;

/// The most jobs that are listed: fewer if they are large, for a list ends at about [`PAGE_BYTES_MAX`]. Its clients know
/// no next page.
const LIST_MAX: usize = 1_000;

/// The calls, under `/osqueue`.
pub(crate) fn router(app: &Arc<App>) -> Router<Arc<App>> {
    let route = |path: &str, scope, place, router: MethodRouter<Arc<App>>| {
        let gate = Gate::new(app, scope, place, path);
        Router::new().route(path, router.layer(gate))
    };
    let look = |path, router| route(path, Some(Scope::Read), AnsweredBy::Leader, router);
    let work = |path, router| route(path, Some(Scope::Worker), AnsweredBy::Leader, router);
    route(
        "/osqueue/healthz",
        None,
        AnsweredBy::AnyBroker,
        get(healthz),
    )
    .merge(look("/osqueue/state", get(state)))
    .merge(look("/osqueue/v1/stats", get(stats)))
    .merge(look("/osqueue/v1/jobs", get(list)))
    .merge(look("/osqueue/v1/throttle-stats", get(throttle)))
    .merge(work("/osqueue/v1/jobs", post(submit)))
    .merge(work("/osqueue/v1/jobs/claim", post(claim)))
    .merge(work("/osqueue/v1/jobs/{id}/heartbeat", post(heartbeat)))
    .merge(work("/osqueue/v1/jobs/{id}/complete", post(complete)))
}

/// A failure, in the words of both.
#[derive(Debug)]
struct Failed(Problem);

impl<E: Into<Problem>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Both<'a> {
            _tag: &'static str,
            message: &'a str,
            #[serde(flatten)]
            problem: &'a tenure_api::Problem,
        }
        let document = self.0.document();
        let tag = match document.code {
            Code::NoLeader => "BrokerLeadershipError",
            Code::StoreUnavailable | Code::UnknownOutcome => "StorageBackendError",
            _ => "BrokerProtocolError",
        };
        let both = Both {
            _tag: tag,
            message: &document.detail,
            problem: document,
        };
        let body = serde_json::to_vec(&both).unwrap_or_default();
        let mut response = self.0.into_response();
        *response.body_mut() = Body::from(body);
        let kind = HeaderValue::from_static(PROBLEM_CONTENT_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Submit {
    #[serde(default)]
    payload: Payload,
    #[serde(rename = "type")]
    job_type: Option<String>,
    max_attempts: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimBody {
    worker_id: Key,
    types: Option<Vec<JobType>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Worker {
    worker_id: Key,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Submitted {
    job_id: JobId,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClaimedJob {
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Payload>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    job_type: Option<JobType>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    total: u64,
    unclaimed: u64,
    in_progress: u64,
    completed_total: u64,
    broker_address: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    id: JobId,
    status: &'static str,
    payload: Payload,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    job_type: Option<JobType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<Key>,
    created_at: u64,
    attempts: u32,
    max_attempts: u32,
    heartbeat: u64,
}

#[derive(Debug, Serialize)]
struct List {
    #[serde(flatten)]
    numbers: Stats,
    jobs: Vec<Listed>,
}

/// The one object that osqueue keeps everything in.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WholeState {
    broker: String,
    broker_heartbeat: u64,
    jobs: Vec<Listed>,
    completed_total: u64,
}

async fn healthz() -> Response {
    ok(&serde_json::json!({ "status": "ok" }))
}

async fn throttle() -> Response {
    ok(&serde_json::json!({ "throttling": false }))
}

async fn submit(
    State(app): State<Arc<App>>,
    body: Result<Json<Submit>, Problem>,
) -> Result<Response, Failed> {
    let Json(body) = body?;
    let job_type = body.job_type.filter(|name| !name.is_empty());
    let job_type = JobType::new(job_type.as_deref().unwrap_or(UNTYPED))
        .map_err(|error| Problem::new(Code::InvalidField, error.to_string()).field("type"))?;
    let mut job = Submission::new(job_type);
    job.payload = body.payload;
    job.max_attempts = Some(body.max_attempts.unwrap_or(ATTEMPTS_DEFAULT));
    let submitted = app.queue.submit(vec![job]).await.map_err(|error| {
        let problem = Problem::from(error).within("jobs[0].");
        problem.renamed("max_attempts", "maxAttempts")
    })?;
    // Without an id of its own, nothing but the number of jobs is in its way.
    let created = submitted
        .into_iter()
        .find(|job| job.status == SubmitStatus::Created);
    let job_id = created.ok_or_else(full)?.id;
    app.rates.submitted.add(1);
    Ok(ok(&Submitted { job_id }))
}

async fn claim(
    State(app): State<Arc<App>>,
    name: Result<CallName, Problem>,
    body: Result<Json<ClaimBody>, Problem>,
) -> Result<Response, Failed> {
    let (CallName(name), Json(body)) = (name?, body?);
    let request = ClaimRequest {
        queues: vec![queue()],
        types: body.types.unwrap_or_default(),
        lease_ms: LEASE_MS,
        ..ClaimRequest::new(body.worker_id)
    };
    let job = take(&app, request, name.as_ref()).await?.into_iter().next();
    Ok(ok(&job.map_or_else(ClaimedJob::default, |job| {
        ClaimedJob {
            job_id: Some(job.id),
            payload: Some(job.payload),
            job_type: typed(job.job_type),
        }
    })))
}

async fn heartbeat(
    State(app): State<Arc<App>>,
    id: Result<Named<JobId>, Problem>,
    body: Result<Json<Worker>, Problem>,
) -> Result<StatusCode, Failed> {
    let (Named(id), Json(body)) = (id?, body?);
    let token = held(&app, &id, &body.worker_id)?;
    let claim = Heartbeat {
        id: id.clone(),
        token,
        progress: None,
    };
    settled(&id, keep(&app, vec![claim]).await?)
}

async fn complete(
    State(app): State<Arc<App>>,
    id: Result<Named<JobId>, Problem>,
    body: Result<Json<Worker>, Problem>,
) -> Result<StatusCode, Failed> {
    let (Named(id), Json(body)) = (id?, body?);
    let token = held(&app, &id, &body.worker_id)?;
    let claim = Completion {
        id: id.clone(),
        token,
        result: None,
    };
    settled(&id, finish(&app, vec![claim]).await?)
}

fn settled(id: &JobId, outcomes: Vec<tenure_api::Outcome>) -> Result<StatusCode, Failed> {
    let reason = outcomes.into_iter().find_map(|outcome| outcome.reason);
    match reason {
        Some(reason) => Err(lost(id, reason).into()),
        None => Ok(StatusCode::NO_CONTENT),
    }
}

/// The token of the claim that a worker has on a job.
fn held(app: &App, id: &JobId, worker: &Key) -> Result<Token, Problem> {
    match app.queue.holder(id)? {
        Some((holder, token)) if holder == *worker => Ok(token),
        _ => Err(Problem::new(
            Code::Lost,
            format!("{worker} does not hold the job {id}; nothing was done"),
        )),
    }
}

async fn stats(State(app): State<Arc<App>>) -> Result<Response, Failed> {
    Ok(ok(&numbers(&app)?))
}

async fn list(State(app): State<Arc<App>>, Via(connection): Via) -> Result<Response, Failed> {
    let room = room_for(&app, connection, PAGE_BYTES_MAX).await?;
    let (jobs, bytes) = unfinished(&app).await?;
    let list = List {
        numbers: numbers(&app)?,
        jobs,
    };
    Ok(large(&list, bytes, room))
}

async fn state(State(app): State<Arc<App>>, Via(connection): Via) -> Result<Response, Failed> {
    let room = room_for(&app, connection, PAGE_BYTES_MAX).await?;
    let numbers = numbers(&app)?;
    let (jobs, bytes) = unfinished(&app).await?;
    let state = WholeState {
        broker: numbers.broker_address,
        broker_heartbeat: app.queue.now_ms()?,
        jobs,
        completed_total: numbers.completed_total,
    };
    Ok(large(&state, bytes, room))
}

fn large(answer: &impl Serialize, bytes: usize, room: Room) -> Response {
    tagged_within(&HeaderMap::new(), answer, bytes, Some(room))
}

fn numbers(app: &App) -> Result<Stats, Problem> {
    let (counts, _) = app.queue.counts()?;
    let unclaimed = counts.scheduled + counts.ready;
    let address = app.url.split_once("://").map_or("", |(_, address)| address);
    Ok(Stats {
        total: unclaimed + counts.running,
        unclaimed,
        in_progress: counts.running,
        completed_total: counts.completed,
        broker_address: address.to_owned(),
    })
}

/// Jobs that have not finished, in order, and about how many bytes they have as JSON.
async fn unfinished(app: &App) -> Result<(Vec<Listed>, usize), Problem> {
    let mut jobs = Vec::new();
    let mut bytes = 0;
    for state in [JobState::Running, JobState::Ready, JobState::Scheduled] {
        let filter = Filter {
            state: Some(state),
            ..Filter::default()
        };
        let page =
            search::filtered(app, filter, PageStart::After(0), LIST_MAX - jobs.len()).await?;
        for job in page.jobs {
            let more = job.json_bytes();
            if bytes + more > PAGE_BYTES_MAX && !jobs.is_empty() {
                break;
            }
            bytes += more;
            jobs.push(job);
        }
    }
    jobs.sort_unstable_by_key(|job| job.sequence);
    Ok((jobs.into_iter().map(listed).collect(), bytes))
}

fn listed(job: Job) -> Listed {
    let (status, heartbeat) = match job.state {
        JobState::Running => ("in_progress", job.changed_at),
        _ => ("unclaimed", 0),
    };
    Listed {
        id: job.id,
        status,
        payload: job.payload,
        job_type: typed(job.job_type),
        worker_id: job.worker,
        created_at: job.created_at,
        attempts: job.attempt,
        max_attempts: job.max_attempts,
        heartbeat,
    }
}

fn typed(job_type: JobType) -> Option<JobType> {
    Some(job_type).filter(|name| name.as_str() != UNTYPED)
}

fn queue() -> QueueName {
    QueueName::new("default").expect("a constant that is a name")
}
