//! Looking at jobs.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tenure::queue::PAGE_BYTES_MAX;
use tenure_api::{
    Code, Job, JobId, JobsAnswer, JobsQuery, LIMIT_DEFAULT, LIMIT_MAX, Problem as ProblemBody,
};

use super::{not_found, search};
use crate::app::App;
use crate::extract::{Named, Parameters, Via, room_for, tagged, tagged_within};
use crate::problem::Problem;

/// One job
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), responses(
    (status = 200, description = "The job", body = Job),
    (status = 304, description = "Unchanged since the ETag that was sent"),
    (status = 404, description = "There is no such job, or it was deleted", body = ProblemBody),
    (status = 422, description = "The id is not valid", body = ProblemBody)))]
pub(crate) async fn job(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    match app.queue.job(&id)? {
        Some(job) => Ok(tagged(&headers, &job)),
        None => Err(not_found(&id)),
    }
}

/// List jobs by state, queue, type and text
///
/// In the order in which they were accepted, or newest first. `next` is where the next page starts: send
/// it as `after`, or as `before` if the newest come first. A page ends at about 4 MiB, so it may have fewer jobs than
/// `limit` and still a `next`.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(JobsQuery), responses(
    (status = 200, description = "A page of jobs", body = JobsAnswer),
    (status = 304, description = "Unchanged since the ETag that was sent"),
    (status = 422, description = "A parameter is not valid", body = ProblemBody)))]
pub(crate) async fn jobs(
    State(app): State<Arc<App>>,
    Parameters(query): Parameters<JobsQuery>,
    Via(connection): Via,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::new(
            Code::InvalidField,
            format!("limit is {limit}, but must be from 1 to {LIMIT_MAX}"),
        )
        .field("limit"));
    }
    let Some(place) = search::place(&query) else {
        return Err(Problem::new(
            Code::InvalidField,
            "after and before cannot be combined: after lists upwards, before lists back from the newest",
        )
        .field("after"));
    };
    let room = room_for(&app, connection, PAGE_BYTES_MAX).await?;
    let page = search::page(&app, &query, place, limit as usize).await?;
    let bytes = search::bytes(&page.jobs);
    Ok(tagged_within(&headers, &page, bytes, Some(room)))
}
