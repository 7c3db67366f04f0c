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
/// With an `id` of the client's own it can be sent again without harm: a job that is there already is
/// answered `duplicate`.
///
/// The header `traceparent`, with `tracestate`, puts every job of the call that has no `traceparent` of its own
/// into the caller's trace (W3C Trace Context). A header that is malformed is ignored, a field is refused.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = SubmitRequest, params(
    ("traceparent" = Option<String>, Header, description = "The caller's span"),
    ("tracestate" = Option<String>, Header, description = "What goes with it")), responses(
    (status = 201, description = "At least one was created, durably", body = SubmitAnswer),
    (status = 200, description = "Nothing new was created", body = SubmitAnswer),
    (status = 409, description = "A single job whose id has other content", body = ProblemBody),
    (status = 413, description = "Too many bytes at once; nothing was done", body = ProblemBody),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody),
    (status = 429, description = "Full or overloaded; nothing was done", body = ProblemBody)))]
pub(crate) async fn submit(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(request): Json<SubmitRequest>,
) -> Result<Response, Problem> {
    let (mut jobs, is_batch) = request.into_jobs();
    jobs.iter_mut().for_each(|job| caller.trace(job));
    let answer = app.queue.submit(jobs).await;
    let jobs = match is_batch {
        true => answer.map_err(|error| Problem::from(error).of_batch("jobs"))?,
        false => {
            let jobs = answer.map_err(|error| Problem::from(error).within("jobs[0]."))?;
            jobs.iter().try_for_each(accepted)?;
            jobs
        }
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

/// To whoever sends one job, a refusal is a failure.
fn accepted(job: &Submitted) -> Result<(), Problem> {
    match job.status {
        SubmitStatus::Created | SubmitStatus::Duplicate => Ok(()),
        SubmitStatus::Conflict => Err(Problem::new(
            Code::Conflict,
            format!(
                "a job with the id {} and other content is there already",
                job.id
            ),
        )
        .field("id")
        .existing(job.id.clone())
        .hint("use a new id for a new job")),
        SubmitStatus::Full => Err(full()
            .hint("wait until some are done and forgotten, or raise jobs_max in the settings")),
    }
}

/// There is no room for a job.
pub(crate) fn full() -> Problem {
    Problem::new(Code::Full, "there are as many jobs as the settings allow")
}
