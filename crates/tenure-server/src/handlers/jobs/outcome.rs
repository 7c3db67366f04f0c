//! Keeping claims and ending them, one at a time or many.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use tenure::queue::Heartbeat as Beat;
use tenure_core::JobId;
use tenure_core::api::{
    ClaimsAnswer, Code, Complete, CompleteRequest, Fail, FailRequest, Heartbeat, HeartbeatRequest,
    HeartbeatSingle, Outcome, OutcomeStatus, Problem as ProblemBody, Release, ReleaseRequest,
};
use tenure_core::queue::{Claim, Completion, Event, Failure};

use super::unexpected;
use crate::app::App;
use crate::extract::{Json, Named, ok};
use crate::problem::Problem;

/// Renew claims
#[utoipa::path(post, path = "/v1/jobs/heartbeat", tag = "jobs", request_body = HeartbeatRequest, responses(
    (status = 200, description = "The outcome for each claim", body = ClaimsAnswer),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn heartbeat(
    State(app): State<Arc<App>>,
    Json(request): Json<HeartbeatRequest>,
) -> Result<Response, Problem> {
    let claims = keep(&app, request.claims).await?;
    Ok(ok(&ClaimsAnswer { claims }))
}

/// Complete claims
#[utoipa::path(post, path = "/v1/jobs/complete", tag = "jobs", request_body = CompleteRequest, responses(
    (status = 200, description = "The outcome for each claim; it is durable", body = ClaimsAnswer),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Json(request): Json<CompleteRequest>,
) -> Result<Response, Problem> {
    let claims = finish(&app, request.claims).await?;
    Ok(ok(&ClaimsAnswer { claims }))
}

/// Fail claims
#[utoipa::path(post, path = "/v1/jobs/fail", tag = "jobs", request_body = FailRequest, responses(
    (status = 200, description = "The outcome for each claim; it is durable", body = ClaimsAnswer),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn fail(
    State(app): State<Arc<App>>,
    Json(request): Json<FailRequest>,
) -> Result<Response, Problem> {
    let claims = give_up(&app, request.claims).await?;
    Ok(ok(&ClaimsAnswer { claims }))
}

/// Hand claims back
///
/// As if they had never been made: the jobs can be claimed again at once, and the attempts do not count.
#[utoipa::path(post, path = "/v1/jobs/release", tag = "jobs", request_body = ReleaseRequest, responses(
    (status = 200, description = "The outcome for each claim; it is durable", body = ClaimsAnswer),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn release(
    State(app): State<Arc<App>>,
    Json(request): Json<ReleaseRequest>,
) -> Result<Response, Problem> {
    let claims = hand_back(&app, request.claims).await?;
    Ok(ok(&ClaimsAnswer { claims }))
}

/// Renew one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/heartbeat", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = HeartbeatSingle, responses(
    (status = 200, description = "The claim is renewed; the answer says if the job is to be cancelled", body = Outcome),
    (status = 409, description = "The claim is lost", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn heartbeat_one(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
    Json(request): Json<HeartbeatSingle>,
) -> Result<Response, Problem> {
    single(keep(&app, vec![request.of(id)]).await)
}

/// Complete one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/complete", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Complete, responses(
    (status = 200, description = "Done and durable", body = Outcome),
    (status = 409, description = "The claim is lost", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn complete_one(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
    Json(request): Json<Complete>,
) -> Result<Response, Problem> {
    single(finish(&app, vec![request.of(id)]).await)
}

/// Fail one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/fail", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Fail, responses(
    (status = 200, description = "Done and durable", body = Outcome),
    (status = 409, description = "The claim is lost", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn fail_one(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
    Json(request): Json<Fail>,
) -> Result<Response, Problem> {
    single(give_up(&app, vec![request.of(id)]).await)
}

/// Hand one claim back
///
/// As if it had never been made: the job can be claimed again at once, and the attempt does not count.
#[utoipa::path(post, path = "/v1/jobs/{id}/release", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Release, responses(
    (status = 200, description = "Done and durable; if the job was to be cancelled, it is cancelled now", body = Outcome),
    (status = 409, description = "The claim is lost", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn release_one(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
    Json(request): Json<Release>,
) -> Result<Response, Problem> {
    single(hand_back(&app, vec![request.of(id)]).await)
}

pub(crate) async fn keep(app: &App, claims: Vec<Heartbeat>) -> Result<Vec<Outcome>, Problem> {
    let ids: Vec<JobId> = claims.iter().map(|claim| claim.id.clone()).collect();
    let claims = claims.into_iter().map(|claim| {
        let held = Claim {
            id: claim.id,
            token: claim.token,
        };
        (held, claim.progress)
    });
    let beats = app.queue.heartbeat(claims.collect()).await?;
    let outcome = |(id, beat)| match beat {
        Ok(Beat::Renewed(_)) => Outcome::ok(id),
        Ok(Beat::Cancelled) => Outcome::cancelled(id),
        Err(lost) => Outcome::lost(id, lost),
    };
    Ok(ids.into_iter().zip(beats).map(outcome).collect())
}

pub(crate) async fn finish(app: &App, claims: Vec<Completion>) -> Result<Vec<Outcome>, Problem> {
    let events = app.queue.complete(claims).await.map_err(of_batch)?;
    let outcomes = outcomes(events)?;
    app.rates.completed.add(done(&outcomes));
    Ok(outcomes)
}

async fn give_up(app: &App, claims: Vec<Failure>) -> Result<Vec<Outcome>, Problem> {
    let events = app.queue.fail(claims).await.map_err(of_batch)?;
    let outcomes = outcomes(events)?;
    app.rates.failed.add(done(&outcomes));
    Ok(outcomes)
}

async fn hand_back(app: &App, claims: Vec<Claim>) -> Result<Vec<Outcome>, Problem> {
    outcomes(app.queue.release(claims).await.map_err(of_batch)?)
}

fn of_batch(error: tenure::queue::Error) -> Problem {
    Problem::from(error).of_batch("claims")
}

fn done(outcomes: &[Outcome]) -> usize {
    let is_done = |outcome: &&Outcome| outcome.status == OutcomeStatus::Ok;
    outcomes.iter().filter(is_done).count()
}

fn outcomes(events: Vec<Event>) -> Result<Vec<Outcome>, Problem> {
    let outcome = |event| match event {
        Event::Completed { id, .. }
        | Event::Failed { id, .. }
        | Event::Died { id, .. }
        | Event::Released { id, .. } => Ok(Outcome::ok(id)),
        Event::Cancelled { id, .. } => Ok(Outcome::cancelled(id)),
        Event::Lost { id, reason } => Ok(Outcome::lost(id, reason)),
        event => Err(unexpected(&event)),
    };
    events.into_iter().map(outcome).collect()
}

/// The answer about one claim: lost is a refusal.
fn single(outcomes: Result<Vec<Outcome>, Problem>) -> Result<Response, Problem> {
    let outcomes = outcomes.map_err(|problem| problem.within("claims[0]."))?;
    let outcome = outcomes
        .into_iter()
        .next()
        .ok_or_else(|| Problem::internal("the queue gave no answer"))?;
    match outcome.reason {
        Some(reason) => Err(lost(&outcome.id, reason)),
        None => Ok(ok(&outcome)),
    }
}

pub(crate) fn lost(id: &JobId, reason: tenure_core::api::LostReason) -> Problem {
    Problem::new(
        Code::Lost,
        format!("the claim of {id} is lost: {reason}; nothing was done"),
    )
    .reason(reason)
}
