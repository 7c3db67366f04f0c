//! What people do to jobs by hand.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use tenure_core::JobId;
use tenure_core::api::{
    Code, Job, LIMIT_DEFAULT, LIMIT_MAX, Problem as ProblemBody, Retried, RetriedStatus,
    RetryAnswer, RetryRequest,
};
use tenure_core::queue::{Event, Filter, Place, Refusal, State as JobState};

use super::{not_found, only, refused, search, unexpected};
use crate::app::App;
use crate::audit::detailed;
use crate::extract::{Json, Named, NoBody, ok};
use crate::problem::Problem;

/// Cancel a job
///
/// A running job is only marked: its worker learns of it with its next heartbeat.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), responses(
    (status = 200, description = "The job", body = Job),
    (status = 404, description = "There is no such job", body = ProblemBody),
    (status = 409, description = "The state of the job does not allow this", body = ProblemBody),
    (status = 422, description = "The id is not valid", body = ProblemBody)))]
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
    _: NoBody,
) -> Result<Response, Problem> {
    match only(app.queue.cancel(vec![id]).await?)? {
        Event::Cancelled { id, .. } | Event::CancelRequested { id } => show(&app, &id),
        Event::Refused { id, .. } if is_remnant(&app, &id)? => Err(Problem::new(
            Code::State,
            format!(
                "the job {id} was deleted: only its id is left, and there is nothing to cancel"
            ),
        )),
        Event::Refused { id, refusal } => Err(refused(&id, refusal)),
        event => Err(unexpected(&event)),
    }
}

/// Retry a job, or run a scheduled one now
#[utoipa::path(post, path = "/v1/jobs/{id}/retry", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), responses(
    (status = 200, description = "The job", body = Job),
    (status = 404, description = "There is no such job", body = ProblemBody),
    (status = 409, description = "The state of the job does not allow this", body = ProblemBody),
    (status = 422, description = "The id is not valid", body = ProblemBody)))]
pub(crate) async fn retry(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
    _: NoBody,
) -> Result<Response, Problem> {
    match only(app.queue.retry(vec![id]).await?)? {
        Event::Retried { id, .. } => show(&app, &id),
        Event::Refused {
            id,
            refusal: Refusal::NotFound,
        } if is_remnant(&app, &id)? => Err(Problem::new(
            Code::State,
            format!("the job {id} was deleted: only its id is left, and it cannot be retried"),
        )
        .hint("submit it again with another id")),
        Event::Refused { id, refusal } => Err(refused(&id, refusal)),
        event => Err(unexpected(&event)),
    }
}

/// Delete a finished job
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), responses(
    (status = 204, description = "The job is deleted"),
    (status = 404, description = "There is no such job", body = ProblemBody),
    (status = 409, description = "The job has not finished", body = ProblemBody),
    (status = 422, description = "The id is not valid", body = ProblemBody)))]
pub(crate) async fn forget(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    match only(app.queue.forget(vec![id]).await?)? {
        Event::Forgotten { .. } => Ok(StatusCode::NO_CONTENT),
        Event::Refused { id, refusal } => Err(refused(&id, refusal)),
        event => Err(unexpected(&event)),
    }
}

/// Retry many jobs
///
/// By `ids`, or the oldest in a `state` (dead, cancelled or scheduled), up to `limit`. Each is answered on its own; an id
/// that cannot be refuses the whole, before anything is done.
#[utoipa::path(post, path = "/v1/jobs/retry", tag = "jobs", request_body = RetryRequest, responses(
    (status = 200, description = "The outcome for each job", body = RetryAnswer),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn retry_many(
    State(app): State<Arc<App>>,
    Json(request): Json<RetryRequest>,
) -> Result<Response, Problem> {
    let ids = chosen(&app, request).await?;
    let jobs = match ids.is_empty() {
        true => Vec::new(),
        false => app
            .queue
            .retry(ids)
            .await
            .map_err(|error| Problem::from(error).renamed("jobs", "ids"))?
            .into_iter()
            .map(|event| retried(&app, event))
            .collect::<Result<Vec<_>, _>>()?,
    };
    let count = jobs.len();
    let response = ok(&RetryAnswer { jobs });
    Ok(detailed(response, format!("{count} jobs")))
}

async fn chosen(app: &App, request: RetryRequest) -> Result<Vec<JobId>, Problem> {
    let wrong = |field: &str, problem: &str| {
        Problem::new(Code::InvalidField, format!("{field} {problem}")).field(field)
    };
    match (request.ids, request.state) {
        (Some(ids), None) => {
            let alone = request.queue.is_none() && request.job_type.is_none();
            match (ids.is_empty(), alone && request.limit.is_none()) {
                (true, _) => Err(wrong("ids", "has no items")),
                (false, false) => Err(wrong("ids", "cannot be combined with queue, type or limit")),
                (false, true) => Ok(ids),
            }
        }
        (None, Some(state)) => {
            let retryable = [JobState::Dead, JobState::Cancelled, JobState::Scheduled];
            if !retryable.contains(&state) {
                return Err(wrong("state", "is not dead, cancelled or scheduled"));
            }
            let limit = request.limit.unwrap_or(LIMIT_DEFAULT);
            if !(1..=LIMIT_MAX).contains(&limit) {
                return Err(wrong("limit", &format!("must be from 1 to {LIMIT_MAX}")));
            }
            let filter = Filter {
                state: Some(state),
                queue: request.queue,
                job_type: request.job_type,
            };
            oldest(app, &filter, limit as usize).await
        }
        (Some(_), Some(_)) => Err(wrong("ids", "cannot be combined with state")),
        (None, None) => Err(wrong("ids", "or state is required")),
    }
}

/// The ids of the oldest jobs of a filter. Pages of large jobs are short, so it may take several.
async fn oldest(app: &App, filter: &Filter, limit: usize) -> Result<Vec<JobId>, Problem> {
    let mut ids = Vec::new();
    let mut from = 0;
    loop {
        let left = limit - ids.len();
        let page = search::filtered(app, filter.clone(), Place::After(from), left).await?;
        ids.extend(page.jobs.into_iter().map(|job| job.id));
        match page.next {
            Some(next) if ids.len() < limit => from = next,
            _ => return Ok(ids),
        }
    }
}

fn retried(app: &App, event: Event) -> Result<Retried, Problem> {
    let (id, status, existing) = match event {
        Event::Retried { id, .. } => (id, RetriedStatus::Retried, None),
        Event::Refused { id, refusal } => match refusal {
            // One that cannot be read any more after the others were retried is as good as not there.
            Refusal::NotFound if is_remnant(app, &id).unwrap_or(false) => {
                (id, RetriedStatus::State, None)
            }
            Refusal::NotFound => (id, RetriedStatus::NotFound, None),
            Refusal::State { .. } => (id, RetriedStatus::State, None),
            Refusal::UniqueKey { existing } => (id, RetriedStatus::UniqueKey, Some(existing)),
            refusal => return Err(refused(&id, refusal)),
        },
        event => return Err(unexpected(&event)),
    };
    Ok(Retried {
        id,
        status,
        existing,
    })
}

/// Whether only the id and the outcome of a job are left: it is shown, but has no payload to be retried with.
fn is_remnant(app: &App, id: &JobId) -> Result<bool, Problem> {
    Ok(app.queue.job(id)?.is_some_and(|job| job.remnant))
}

/// A job that was just changed.
fn show(app: &App, id: &JobId) -> Result<Response, Problem> {
    let job = app.queue.job(id);
    match job.map_err(|error| Problem::from(error).after_change())? {
        Some(job) => Ok(ok(&Job::from(job))),
        None => Err(not_found(id)),
    }
}
