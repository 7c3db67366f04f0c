//! Keeping claims and ending them, one at a time or many.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use tenure::queue::Heartbeat as Beat;
use tenure_api::{
    ClaimsAnswer, Code, Complete, CompleteRequest, Fail, FailRequest, Heartbeat, HeartbeatRequest,
    HeartbeatSingle, JobId, Outcome, OutcomeStatus, Problem as ProblemBody, Release,
    ReleaseRequest,
};
use tenure_core::queue::{Claim, Completion, Failure};

use crate::app::App;
use crate::extract::{Held, Json, ok};
use crate::problem::Problem;

/// Keep claims
#[utoipa::path(post, path = "/v1/jobs/heartbeat", tag = "jobs", request_body = HeartbeatRequest, responses(
    (status = 200, description = "What became of each claim", body = ClaimsAnswer),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn heartbeat(
    State(app): State<Arc<App>>,
    Json(request): Json<HeartbeatRequest>,
) -> Result<Response, Problem> {
    let claims = keep(&app, request.claims).await?;
    Ok(ok(&ClaimsAnswer { claims }))
}

/// Complete claims
#[utoipa::path(post, path = "/v1/jobs/complete", tag = "jobs", request_body = CompleteRequest, responses(
    (status = 200, description = "What became of each claim, durably", body = ClaimsAnswer),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Json(request): Json<CompleteRequest>,
) -> Result<Response, Problem> {
    let claims = finish(&app, request.claims).await?;
    Ok(ok(&ClaimsAnswer { claims }))
}

/// Fail claims
#[utoipa::path(post, path = "/v1/jobs/fail", tag = "jobs", request_body = FailRequest, responses(
    (status = 200, description = "What became of each claim, durably", body = ClaimsAnswer),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
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
    (status = 200, description = "What became of each claim, durably", body = ClaimsAnswer),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn release(
    State(app): State<Arc<App>>,
    Json(request): Json<ReleaseRequest>,
) -> Result<Response, Problem> {
    let claims = hand_back(&app, request.claims).await?;
    Ok(ok(&ClaimsAnswer { claims }))
}

/// Keep one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/heartbeat", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = HeartbeatSingle, responses(
    (status = 200, description = "It is kept, or to be given up", body = Outcome),
    (status = 409, description = "The claim does not hold", body = ProblemBody),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn heartbeat_one(
    State(app): State<Arc<App>>,
    Held(claim): Held<Heartbeat>,
) -> Result<Response, Problem> {
    single(keep(&app, vec![claim]).await)
}

/// Complete one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/complete", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Complete, responses(
    (status = 200, description = "Done, durably", body = Outcome),
    (status = 409, description = "The claim does not hold", body = ProblemBody),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn complete_one(
    State(app): State<Arc<App>>,
    Held(claim): Held<Completion>,
) -> Result<Response, Problem> {
    single(finish(&app, vec![claim]).await)
}

/// Fail one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/fail", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Fail, responses(
    (status = 200, description = "Done, durably", body = Outcome),
    (status = 409, description = "The claim does not hold", body = ProblemBody),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn fail_one(
    State(app): State<Arc<App>>,
    Held(claim): Held<Failure>,
) -> Result<Response, Problem> {
    single(give_up(&app, vec![claim]).await)
}

/// Hand one claim back
///
/// As if it had never been made: the job can be claimed again at once, and the attempt does not count.
#[utoipa::path(post, path = "/v1/jobs/{id}/release", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Release, responses(
    (status = 200, description = "Done, durably; or the job was to be cancelled, and is now", body = Outcome),
    (status = 409, description = "The claim does not hold", body = ProblemBody),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn release_one(
    State(app): State<Arc<App>>,
    Held(claim): Held<Claim>,
) -> Result<Response, Problem> {
    single(hand_back(&app, vec![claim]).await)
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
    let ended = app.queue.complete(claims).await.map_err(of_batch)?;
    let outcomes: Vec<Outcome> = ended.into_iter().map(Outcome::from).collect();
    app.rates.completed.add(done(&outcomes));
    Ok(outcomes)
}

async fn give_up(app: &App, claims: Vec<Failure>) -> Result<Vec<Outcome>, Problem> {
    let ended = app.queue.fail(claims).await.map_err(of_batch)?;
    let outcomes: Vec<Outcome> = ended.into_iter().map(Outcome::from).collect();
    app.rates.failed.add(done(&outcomes));
    Ok(outcomes)
}

async fn hand_back(app: &App, claims: Vec<Claim>) -> Result<Vec<Outcome>, Problem> {
    let ended = app.queue.release(claims).await.map_err(of_batch)?;
    Ok(ended.into_iter().map(Outcome::from).collect())
}

fn of_batch(error: tenure::queue::Error) -> Problem {
    Problem::from(error).of_batch("claims")
}

fn done(outcomes: &[Outcome]) -> usize {
    let is_done = |outcome: &&Outcome| outcome.status == OutcomeStatus::Ok;
    outcomes.iter().filter(is_done).count()
}

/// The answer about one claim: lost is a refusal.
fn single(outcomes: Result<Vec<Outcome>, Problem>) -> Result<Response, Problem> {
    let outcomes = outcomes.map_err(|problem| problem.within("claims[0]."))?;
    let outcome = outcomes.into_iter().next();
    let outcome = outcome.expect("a call about one claim has one answer");
    match outcome.reason {
        Some(reason) => Err(lost(&outcome.id, reason)),
        None => Ok(ok(&outcome)),
    }
}

pub(crate) fn lost(id: &JobId, reason: tenure_api::LostReason) -> Problem {
    Problem::new(
        Code::Lost,
        format!("the claim of {id} does not hold: {reason}; nothing was done"),
    )
    .reason(reason)
}
