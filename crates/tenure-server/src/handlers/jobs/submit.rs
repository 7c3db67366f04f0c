//! Submitting jobs: the call that has to be fast.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use tenure_api::{
    Code, Problem as ProblemBody, SubmitAnswer, SubmitRequest, SubmitStatus, Submitted,
};

use crate::app::App;
use crate::extract::{Json, json};
use crate::problem::Problem;
use crate::trace::Caller;

/// Submit a job, or several
///
/// With your own `id` the call can be repeated without harm: a job that already exists is answered
/// `duplicate`.
///
/// Jobs of a batch are created or refused separately, but an invalid field in one of them refuses the whole batch,
/// before anything is done.
///
/// The headers `traceparent` and `tracestate` put every job of the call that has no `traceparent` field into the
/// caller's trace (W3C Trace Context). Malformed headers are ignored, malformed fields are refused.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = SubmitRequest, params(
    ("traceparent" = Option<String>, Header, description = "The caller's span"),
    ("tracestate" = Option<String>, Header, description = "The caller's trace state")), responses(
    (status = 201, description = "At least one job was created; it is durable", body = SubmitAnswer),
    (status = 200, description = "No job was created", body = SubmitAnswer),
    (status = 409, description = "A job with this id and different content exists", body = ProblemBody),
    (status = 413, description = "Too many bytes at once; nothing was done", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody),
    (status = 429, description = "The queue is full or the broker is overloaded; nothing was done", body = ProblemBody)))]
pub(crate) async fn submit(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(request): Json<SubmitRequest>,
) -> Result<Response, Problem> {
    let (mut jobs, is_batch) = request.into_jobs();
    jobs.iter_mut().for_each(|job| caller.trace(job));
    let answer = app.queue.submit(jobs).await;
    let jobs = if is_batch {
        answer.map_err(|error| Problem::from(error).of_batch("jobs"))?
    } else {
        let jobs = answer.map_err(|error| Problem::from(error).within("jobs[0]."))?;
        jobs.iter().try_for_each(accepted)?;
        jobs
    };
    let created = jobs
        .iter()
        .filter(|job| job.status == SubmitStatus::Created)
        .count();
    app.rates.submitted.add(created);
    let status = match created {
        0 => StatusCode::OK,
        _ => StatusCode::CREATED,
    };
    Ok(json(status, &SubmitAnswer { jobs }))
}

/// For a caller that sends one job, a refusal is a failure.
fn accepted(job: &Submitted) -> Result<(), Problem> {
    match job.status {
        SubmitStatus::Created | SubmitStatus::Duplicate => Ok(()),
        SubmitStatus::Conflict => Err(Problem::new(
            Code::Conflict,
            format!("there is already a job {} with different content", job.id),
        )
        .field("id")
        .existing(job.id.clone())
        .hint("use a new id for a new job")),
        SubmitStatus::Full => Err(full()
            .hint("wait until some are finished and deleted, or raise jobs_max in the settings")),
    }
}

/// There is no room for a job.
pub(crate) fn full() -> Problem {
    Problem::new(
        Code::Full,
        "the queue has as many jobs as the settings allow",
    )
}
