//! osqueue's calls by REST.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use tenure::queue::PAGE_BYTES_MAX;
use tenure_api::{
    ClaimRequest, Code, Counts, Heartbeat, JobId, QUEUE_DEFAULT, QueueName, SubmitStatus,
};
use tenure_core::queue::{
    Completion, Filter, Job, PageStart, Payload, State as JobState, Submission, Token,
};
use tenure_store::wrap::throttled::Turns;

use super::{names, route};
use crate::app::App;
use crate::auth::Scope;
use crate::budget::Room;
use crate::extract::{CallName, LooseJson, Named, Via, ok, room_for, tagged_within};
use crate::gate::AnsweredBy;
use crate::handlers::jobs::claim::take;
use crate::handlers::jobs::outcome::{finish, keep, lost};
use crate::handlers::jobs::search;
use crate::handlers::jobs::submit::full;
use crate::metrics::collector::operation;
use crate::problem::Problem;

/// How long a worker of osqueue may be silent.
const LEASE_MS: u32 = 30_000;

/// osqueue's default number of attempts.
const ATTEMPTS_DEFAULT: u32 = 3;

/// The most attempts of a job. osqueue has no limit, but this one is too high to be noticed.
const ATTEMPTS_MAX: i64 = 10_000;

/// The most jobs that are listed; fewer if they are large, since a list ends at about [`PAGE_BYTES_MAX`]. osqueue's
/// clients cannot ask for a next page.
const LIST_MAX: usize = 1_000;

/// The calls.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let look = |path, router| route(app, path, Some(Scope::Read), AnsweredBy::Leader, router);
    let work = |path, router| route(app, path, Some(Scope::Worker), AnsweredBy::Leader, router);
    let here = |path, scope, router| route(app, path, scope, AnsweredBy::AnyBroker, router);
    here("/osqueue/healthz", None, get(healthz))
        .merge(look("/osqueue/state", get(state)))
        .merge(look("/osqueue/v1/stats", get(stats)))
        .merge(look("/osqueue/v1/jobs", get(list)))
        .merge(here(
            "/osqueue/v1/throttle-stats",
            Some(Scope::Read),
            get(throttle),
        ))
        .merge(work("/osqueue/v1/jobs", post(submit)))
        .merge(work("/osqueue/v1/jobs/claim", post(claim)))
        .merge(work("/osqueue/v1/jobs/{id}/heartbeat", post(heartbeat)))
        .merge(work("/osqueue/v1/jobs/{id}/complete", post(complete)))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Submit {
    #[serde(default)]
    payload: Payload,
    #[serde(rename = "type")]
    job_type: Option<String>,
    max_attempts: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimBody {
    worker_id: String,
    types: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Worker {
    worker_id: String,
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
    job_type: Option<String>,
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
    job_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
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
    /// Whether there are more than are listed.
    truncated: bool,
}

/// The one object that osqueue keeps everything in.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WholeState {
    broker: String,
    broker_heartbeat: u64,
    jobs: Vec<Listed>,
    completed_total: u64,
    truncated: bool,
}

async fn healthz() -> Response {
    ok(&serde_json::json!({ "status": "ok" }))
}

/// Counts this broker's requests to the store since it was started, and how the ceilings limited them.
async fn throttle(State(app): State<Arc<App>>) -> Response {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Throttling {
        throttling: bool,
        total_reads: u64,
        total_writes: u64,
        throttled_reads: u64,
        throttled_writes: u64,
        total_read_delay_ms: u64,
        total_write_delay_ms: u64,
        daily_write_count: u64,
        daily_budget_exceeded: bool,
    }
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (mut reads, mut writes) = (0, 0);
    for ended in app.meter.snapshot().ended {
        match operation(ended.operation) {
            "get" | "get_if_changed" | "list" => reads += ended.count,
            _ => writes += ended.count,
        }
    }
    let throttled = app.throttle.as_ref().map(|throttle| throttle.statistics());
    let (waited, spent, is_used_up) = throttled.as_ref().map_or_else(
        || ([Turns::default(); 2], 0, false),
        |now| ([now.reads, now.writes], now.spent_today, now.is_used_up),
    );
    ok(&Throttling {
        throttling: throttled.is_some(),
        total_reads: reads,
        total_writes: writes,
        throttled_reads: waited[0].waited,
        throttled_writes: waited[1].waited,
        total_read_delay_ms: milliseconds(waited[0].waited_total),
        total_write_delay_ms: milliseconds(waited[1].waited_total),
        daily_write_count: spent,
        daily_budget_exceeded: is_used_up,
    })
}

async fn submit(
    State(app): State<Arc<App>>,
    name: Result<CallName, Problem>,
    body: Result<LooseJson<Submit>, Problem>,
) -> Result<Response, Problem> {
    let (CallName(name), LooseJson(body)) = (name?, body?);
    let mut job = Submission::new(names::job_type(body.job_type.as_deref())?);
    // A standby gives each call a name, so that it can send it again.
    job.id = Some(match name {
        None => uuid()?,
        Some(name) => JobId::new(name.as_str()).map_err(|error| {
            Problem::new(Code::InvalidField, error.to_string()).field("Idempotency-Key")
        })?,
    });
    job.payload = body.payload;
    job.max_attempts = Some(attempts(body.max_attempts));
    let submitted = app.queue.submit(vec![job]).await.map_err(|error| {
        let problem = Problem::from(error).within("jobs[0].");
        problem.renamed("max_attempts", "maxAttempts")
    })?;
    let submitted = submitted.into_iter().next().ok_or_else(full)?;
    match submitted.status {
        SubmitStatus::Created => app.rates.submitted.add(1),
        // The call was sent again.
        SubmitStatus::Duplicate => {}
        SubmitStatus::Conflict => {
            let what = "another job was submitted with this Idempotency-Key";
            return Err(Problem::new(Code::Conflict, what).field("Idempotency-Key"));
        }
        SubmitStatus::Full => return Err(full()),
    }
    Ok(ok(&Submitted {
        job_id: submitted.id,
    }))
}

/// An osqueue job with no attempts allowed is tried once, as in osqueue.
fn attempts(wanted: Option<i64>) -> u32 {
    let wanted = wanted.map(|wanted| wanted.clamp(1, ATTEMPTS_MAX));
    let wanted = wanted.and_then(|wanted| u32::try_from(wanted).ok());
    wanted.unwrap_or(ATTEMPTS_DEFAULT)
}

/// A new random id, a UUID of version 4 as in osqueue.
fn uuid() -> Result<JobId, Problem> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Problem::internal("the system has no random numbers"))?;
    let number = u128::from_be_bytes(bytes);
    let number = number & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let digits = format!("{number:032x}");
    let parts = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    Ok(JobId::new(parts.join("-")).expect("digits and dashes make an id"))
}

async fn claim(
    State(app): State<Arc<App>>,
    name: Result<CallName, Problem>,
    body: Result<LooseJson<ClaimBody>, Problem>,
) -> Result<Response, Problem> {
    let (CallName(name), LooseJson(body)) = (name?, body?);
    let wanted = body.types.unwrap_or_default();
    // No job has a type that is too long to encode as a name. The empty type means jobs without a type.
    let types: Vec<_> = wanted
        .iter()
        .filter_map(|name| names::job_type(Some(name)).ok())
        .collect();
    if types.is_empty() && !wanted.is_empty() {
        return Ok(ok(&ClaimedJob::default()));
    }
    let request = ClaimRequest {
        queues: vec![queue()],
        types,
        lease_ms: LEASE_MS,
        ..ClaimRequest::new(names::worker(&body.worker_id))
    };
    let job = take(&app, request, name.as_ref()).await?.into_iter().next();
    Ok(ok(&job.map_or_else(ClaimedJob::default, |job| {
        ClaimedJob {
            job_id: Some(job.id),
            payload: Some(job.payload),
            job_type: names::shown_type(&job.job_type),
        }
    })))
}

async fn heartbeat(
    State(app): State<Arc<App>>,
    id: Result<Named<JobId>, Problem>,
    body: Result<LooseJson<Worker>, Problem>,
) -> Result<StatusCode, Problem> {
    let (Named(id), LooseJson(body)) = (id?, body?);
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
    body: Result<LooseJson<Worker>, Problem>,
) -> Result<StatusCode, Problem> {
    let (Named(id), LooseJson(body)) = (id?, body?);
    let token = held(&app, &id, &body.worker_id)?;
    let claim = Completion {
        id: id.clone(),
        token,
        result: None,
    };
    settled(&id, finish(&app, vec![claim]).await?)
}

fn settled(id: &JobId, outcomes: Vec<tenure_api::Outcome>) -> Result<StatusCode, Problem> {
    let reason = outcomes.into_iter().find_map(|outcome| outcome.reason);
    match reason {
        Some(reason) => Err(lost(id, reason)),
        None => Ok(StatusCode::NO_CONTENT),
    }
}

/// The token of the claim that a worker has on a job.
fn held(app: &App, id: &JobId, worker: &str) -> Result<Token, Problem> {
    let name = names::worker(worker);
    match app.queue.holder(id)? {
        Some((holder, token)) if holder == name => Ok(token),
        _ => Err(Problem::new(
            Code::Lost,
            format!("{name} does not hold the job {id}; nothing was done"),
        )),
    }
}

async fn stats(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    Ok(ok(&numbers(&app)?))
}

async fn list(State(app): State<Arc<App>>, Via(connection): Via) -> Result<Response, Problem> {
    let room = room_for(&app, connection, PAGE_BYTES_MAX).await?;
    let (jobs, bytes) = unfinished(&app).await?;
    let numbers = numbers(&app)?;
    let list = List {
        truncated: numbers.total > jobs.len() as u64,
        numbers,
        jobs,
    };
    Ok(large(&list, bytes, room))
}

async fn state(State(app): State<Arc<App>>, Via(connection): Via) -> Result<Response, Problem> {
    let room = room_for(&app, connection, PAGE_BYTES_MAX).await?;
    let numbers = numbers(&app)?;
    let (jobs, bytes) = unfinished(&app).await?;
    let state = WholeState {
        truncated: numbers.total > jobs.len() as u64,
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
    let of_queue = app.queue.queue(&queue())?;
    let counts = of_queue.map_or_else(Counts::default, |queue| queue.counts);
    let unclaimed = counts.scheduled + counts.ready;
    let address = app.url.split_once("://").map_or("", |(_, address)| address);
    Ok(Stats {
        total: unclaimed + counts.running,
        unclaimed,
        in_progress: counts.running,
        completed_total: app.queue.completed_total()?,
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
            queue: Some(queue()),
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
    let now = app.queue.now_ms()?;
    let silences = app.queue.silences(jobs.iter().map(|job| &job.id))?;
    let heard = silences.into_iter().map(|silence| {
        let silence = silence?.as_millis();
        Some(now.saturating_sub(u64::try_from(silence).unwrap_or(u64::MAX)))
    });
    let jobs = jobs.into_iter().zip(heard);
    let jobs = jobs.map(|(job, heard)| listed(job, heard)).collect();
    Ok((jobs, bytes))
}

fn listed(job: Job, heard: Option<u64>) -> Listed {
    let (status, heartbeat) = match job.state {
        JobState::Running => ("in_progress", heard.unwrap_or(job.changed_at)),
        _ => ("unclaimed", 0),
    };
    Listed {
        id: job.id,
        status,
        payload: job.payload,
        job_type: names::shown_type(&job.job_type),
        worker_id: job.worker.map(|worker| worker.as_str().to_owned()),
        created_at: job.created_at,
        attempts: job.attempt,
        max_attempts: job.max_attempts,
        heartbeat,
    }
}

fn queue() -> QueueName {
    QueueName::new(QUEUE_DEFAULT).expect("a constant that is a name")
}
