//! What people do to jobs by hand.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use tenure_api::{
    Code, Job, JobId, LIMIT_DEFAULT, LIMIT_MAX, MoveAnswer, MoveRequest, Moved, MovedStatus,
    Problem as ProblemBody, Retried, RetriedStatus, RetryAnswer, RetryRequest,
};
use tenure_core::queue::{Changed, Filter, Item, PageStart, Refusal, State as JobState};

use super::{not_found, one, search};
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
    let answers = app.queue.cancel(vec![id]).await?;
    if let [
        Item {
            id,
            outcome: Err(_),
        },
    ] = &answers[..]
        && is_remnant(&app, id)?
    {
        let problem = format!(
            "the job {id} was deleted: only its id is left, and there is nothing to cancel"
        );
        return Err(Problem::new(Code::State, problem));
    }
    let (id, _) = one(answers)?;
    show(&app, &id)
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
    let answers = app.queue.retry(vec![id]).await?;
    if let [
        Item {
            id,
            outcome: Err(Refusal::NotFound),
        },
    ] = &answers[..]
        && is_remnant(&app, id)?
    {
        let problem =
            format!("the job {id} was deleted: only its id is left, and it cannot be retried");
        return Err(Problem::new(Code::State, problem).hint("submit it again with another id"));
    }
    let (id, ()) = one(answers)?;
    show(&app, &id)
}

/// Delete a finished job
///
/// If it finished less than an hour ago (`ids` in the settings), its id is kept until the hour is over, with its state and
/// its result, marked `remnant`: a repeated submit is answered `duplicate`, also after a deletion. Deleting what is left
/// changes nothing. To run a dead or cancelled job again, retry it instead.
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
    one(app.queue.forget(vec![id]).await?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Retry many jobs
///
/// By `ids`, or the oldest in a `state` (dead, cancelled or scheduled), up to `limit`. Each job is answered separately; an
/// invalid id refuses the whole call, before anything is done.
#[utoipa::path(post, path = "/v1/jobs/retry", tag = "jobs", request_body = RetryRequest, responses(
    (status = 200, description = "The outcome for each job", body = RetryAnswer),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn retry_many(
    State(app): State<Arc<App>>,
    Json(request): Json<RetryRequest>,
) -> Result<Response, Problem> {
    let ids = chosen(&app, request).await?;
    let jobs = if ids.is_empty() {
        Vec::new()
    } else {
        app.queue
            .retry(ids)
            .await
            .map_err(|error| Problem::from(error).renamed("jobs", "ids"))?
            .into_iter()
            .map(|answer| retried(&app, answer))
            .collect()
    };
    let count = jobs.len();
    let response = ok(&RetryAnswer { jobs });
    Ok(detailed(response, format!("{count} jobs")))
}

/// Move jobs to another queue
///
/// Each keeps its turn there: by priority, and then by when it was submitted. Jobs that are running or completed are refused;
/// dead and cancelled ones can be moved, and run there when they are retried. Each job is answered separately; an invalid
/// id refuses the whole call, before anything is done. A job that is in the queue already counts as moved, so the call can
/// be repeated.
#[utoipa::path(post, path = "/v1/jobs/move", tag = "jobs", request_body = MoveRequest, responses(
    (status = 200, description = "The outcome for each job", body = MoveAnswer),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody),
    (status = 429, description = "There is no room for another queue; nothing was done", body = ProblemBody)))]
pub(crate) async fn move_many(
    State(app): State<Arc<App>>,
    Json(MoveRequest { ids, queue }): Json<MoveRequest>,
) -> Result<Response, Problem> {
    if ids.is_empty() {
        return Err(Problem::new(Code::InvalidField, "ids has no items").field("ids"));
    }
    let moved = app.queue.move_jobs(ids, queue.clone()).await;
    let jobs: Vec<_> = moved
        .map_err(|error| Problem::from(error).renamed("jobs", "ids"))?
        .into_iter()
        .map(|answer| moved_as(&app, answer))
        .collect();
    let count = jobs.len();
    let response = ok(&MoveAnswer { jobs });
    Ok(detailed(response, format!("{count} jobs to {queue}")))
}

fn moved_as(app: &App, answer: Changed<()>) -> Moved {
    let (status, existing) = match answer.outcome {
        Ok(()) => (MovedStatus::Moved, None),
        Err(Refusal::NotFound) if is_remnant(app, &answer.id).unwrap_or(false) => {
            (MovedStatus::State, None)
        }
        Err(Refusal::NotFound) => (MovedStatus::NotFound, None),
        Err(Refusal::State { .. }) => (MovedStatus::State, None),
        Err(Refusal::UniqueKey { existing }) => (MovedStatus::UniqueKey, Some(existing)),
    };
    Moved {
        id: answer.id,
        status,
        existing,
    }
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
        let page = search::filtered(app, filter.clone(), PageStart::After(from), left).await?;
        ids.extend(page.jobs.into_iter().map(|job| job.id));
        match page.next {
            Some(next) if ids.len() < limit => from = next,
            _ => return Ok(ids),
        }
    }
}

fn retried(app: &App, answer: Changed<()>) -> Retried {
    let (status, existing) = match answer.outcome {
        Ok(()) => (RetriedStatus::Retried, None),
        // One that cannot be read any more after the others were retried is as good as not there.
        Err(Refusal::NotFound) if is_remnant(app, &answer.id).unwrap_or(false) => {
            (RetriedStatus::State, None)
        }
        Err(Refusal::NotFound) => (RetriedStatus::NotFound, None),
        Err(Refusal::State { .. }) => (RetriedStatus::State, None),
        Err(Refusal::UniqueKey { existing }) => (RetriedStatus::UniqueKey, Some(existing)),
    };
    Retried {
        id: answer.id,
        status,
        existing,
    }
}

/// Whether only the id and the outcome of a job are left: it is shown, but has no payload to be retried with.
fn is_remnant(app: &App, id: &JobId) -> Result<bool, Problem> {
    Ok(app.queue.job(id)?.is_some_and(|job| job.remnant))
}

/// A job that was just changed.
fn show(app: &App, id: &JobId) -> Result<Response, Problem> {
    let job = app.queue.job(id);
    match job.map_err(|error| Problem::from(error).after_change())? {
        Some(job) => Ok(ok(&job)),
        None => Err(not_found(id)),
    }
}
