//! Keeping claims and ending them, one at a time or many.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use tenure::queue::HeartbeatAnswer;
use tenure_api::{
    ClaimsAnswer, Code, Complete, CompleteRequest, Fail, FailRequest, Heartbeat, HeartbeatRequest,
    HeartbeatSingle, JobId, Outcome, OutcomeStatus, Problem as ProblemBody, Release,
    ReleaseRequest,
};
use tenure_core::queue::{Claim, Completion, Failure, Invalid, Limits};

use crate::app::App;
use crate::extract::{Claims, Held, Unread, ok};
use crate::problem::Problem;

/// Renew claims
///
/// Each claim is answered separately. Progress that cannot be shown, for example because it is too large, does not cost
/// the claim: it is renewed, and `problem` says what is wrong with the progress. A claim that cannot be read is answered
/// `invalid`.
#[utoipa::path(post, path = "/v1/jobs/heartbeat", tag = "jobs", request_body = HeartbeatRequest, responses(
    (status = 200, description = "The outcome for each claim", body = ClaimsAnswer),
    (status = 422, description = "The list is empty, too long, or malformed; nothing was done", body = ProblemBody)))]
pub(crate) async fn heartbeat(
    State(app): State<Arc<App>>,
    Claims(claims): Claims<Heartbeat>,
) -> Result<Response, Problem> {
    let (mut claims, refused) = sorted(&app, claims, |_, _| Ok(()))?;
    let mut unshown = without_unfit_progress(&app, &mut claims);
    let (places, claims): (Vec<usize>, Vec<_>) = claims.into_iter().unzip();
    let mut outcomes = if claims.is_empty() {
        Vec::new()
    } else {
        keep(&app, claims).await?
    };
    for (place, outcome) in places.iter().zip(&mut outcomes) {
        outcome.problem = unshown.remove(place).map(Box::new);
    }
    Ok(answer(outcomes, refused))
}

/// Complete claims
///
/// Each claim is answered separately. `invalid`, with a `problem`, means that nothing was done about that claim.
#[utoipa::path(post, path = "/v1/jobs/complete", tag = "jobs", request_body = CompleteRequest, responses(
    (status = 200, description = "The outcome for each claim; it is durable", body = ClaimsAnswer),
    (status = 422, description = "The list is empty, too long, or malformed; nothing was done", body = ProblemBody)))]
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Claims(claims): Claims<Completion>,
) -> Result<Response, Problem> {
    let check = |limits: &Limits, claim: &mut Completion| limits.completion(claim);
    let (claims, refused) = sorted(&app, claims, check)?;
    let outcomes = if claims.is_empty() {
        Vec::new()
    } else {
        finish(&app, items(claims)).await?
    };
    Ok(answer(outcomes, refused))
}

/// Fail claims
///
/// Each claim is answered separately. `invalid`, with a `problem`, means that nothing was done about that claim.
#[utoipa::path(post, path = "/v1/jobs/fail", tag = "jobs", request_body = FailRequest, responses(
    (status = 200, description = "The outcome for each claim; it is durable", body = ClaimsAnswer),
    (status = 422, description = "The list is empty, too long, or malformed; nothing was done", body = ProblemBody)))]
pub(crate) async fn fail(
    State(app): State<Arc<App>>,
    Claims(claims): Claims<Failure>,
) -> Result<Response, Problem> {
    let check = |limits: &Limits, claim: &mut Failure| limits.failure(claim);
    let (claims, refused) = sorted(&app, claims, check)?;
    let outcomes = if claims.is_empty() {
        Vec::new()
    } else {
        give_up(&app, items(claims)).await?
    };
    Ok(answer(outcomes, refused))
}

/// Hand claims back
///
/// As if they had never been made: the jobs can be claimed again at once, and the attempts do not count. Each claim
/// is answered separately. `invalid`, with a `problem`, means that nothing was done about that claim.
#[utoipa::path(post, path = "/v1/jobs/release", tag = "jobs", request_body = ReleaseRequest, responses(
    (status = 200, description = "The outcome for each claim; it is durable", body = ClaimsAnswer),
    (status = 422, description = "The list is empty, too long, or malformed; nothing was done", body = ProblemBody)))]
pub(crate) async fn release(
    State(app): State<Arc<App>>,
    Claims(claims): Claims<Claim>,
) -> Result<Response, Problem> {
    let (claims, refused) = sorted(&app, claims, |_, _| Ok(()))?;
    let outcomes = if claims.is_empty() {
        Vec::new()
    } else {
        hand_back(&app, items(claims)).await?
    };
    Ok(answer(outcomes, refused))
}

/// Renew one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/heartbeat", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = HeartbeatSingle, responses(
    (status = 200, description = "The claim is renewed; the answer says whether cancellation was requested", body = Outcome),
    (status = 409, description = "The claim is lost", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn heartbeat_one(
    State(app): State<Arc<App>>,
    Held(claim): Held<Heartbeat>,
) -> Result<Response, Problem> {
    let id = claim.id.clone();
    single(&id, keep(&app, vec![claim]).await)
}

/// Complete one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/complete", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Complete, responses(
    (status = 200, description = "Done and durable", body = Outcome),
    (status = 409, description = "The claim is lost", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn complete_one(
    State(app): State<Arc<App>>,
    Held(claim): Held<Completion>,
) -> Result<Response, Problem> {
    let id = claim.id.clone();
    single(&id, finish(&app, vec![claim]).await)
}

/// Fail one claim
#[utoipa::path(post, path = "/v1/jobs/{id}/fail", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Fail, responses(
    (status = 200, description = "Done and durable", body = Outcome),
    (status = 409, description = "The claim is lost", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn fail_one(
    State(app): State<Arc<App>>,
    Held(claim): Held<Failure>,
) -> Result<Response, Problem> {
    let id = claim.id.clone();
    single(&id, give_up(&app, vec![claim]).await)
}

/// Hand one claim back
///
/// As if it had never been made: the job can be claimed again at once, and the attempt does not count.
#[utoipa::path(post, path = "/v1/jobs/{id}/release", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")), request_body = Release, responses(
    (status = 200, description = "Done and durable; if cancellation was requested, the job is cancelled now", body = Outcome),
    (status = 409, description = "The claim is lost", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn release_one(
    State(app): State<Arc<App>>,
    Held(claim): Held<Claim>,
) -> Result<Response, Problem> {
    let id = claim.id.clone();
    single(&id, hand_back(&app, vec![claim]).await)
}

/// Items of a list with their places in it.
pub(crate) type Placed<T> = Vec<(usize, T)>;

/// An item of a list, which says whose claim it is.
pub(crate) trait Item {
    fn id(&self) -> &JobId;
}

macro_rules! items {
    ($($kind:ident),*) => {$(
        impl Item for $kind {
            fn id(&self) -> &JobId {
                &self.id
            }
        }
    )*};
}

items!(Heartbeat, Completion, Failure, Claim);

/// Those that can be done, and the answers to those that cannot. A list that is empty or too long is refused.
fn sorted<T: Item>(
    app: &App,
    claims: Vec<Result<T, Unread>>,
    check: impl Fn(&Limits, &mut T) -> Result<(), Invalid>,
) -> Result<(Placed<T>, Placed<Outcome>), Problem> {
    let limits = app.queue.limits();
    limits
        .batch("claims", claims.len())
        .map_err(tenure::queue::Error::from)?;
    Ok(each(limits, "claims", claims, check))
}

/// The same for a list that may have any length, by its name in the request.
pub(crate) fn each<T: Item>(
    limits: &Limits,
    list: &str,
    claims: Vec<Result<T, Unread>>,
    check: impl Fn(&Limits, &mut T) -> Result<(), Invalid>,
) -> (Placed<T>, Placed<Outcome>) {
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for (place, claim) in claims.into_iter().enumerate() {
        let claim = claim.and_then(|mut claim| match check(limits, &mut claim) {
            Ok(()) => Ok(claim),
            Err(invalid) => Err(Unread {
                id: Some(claim.id().clone()),
                problem: invalid_item(invalid, list, place),
            }),
        });
        match claim {
            Ok(claim) => done.push((place, claim)),
            Err(Unread { id, problem }) => {
                refused.push((place, Outcome::invalid(id, problem.into_document())));
            }
        }
    }
    (done, refused)
}

fn invalid_item(invalid: Invalid, list: &str, place: usize) -> Problem {
    Problem::from(tenure::queue::Error::from(invalid)).of_item(list, place)
}

/// Takes out what cannot be shown, by place: a claim is kept all the same.
fn without_unfit_progress(
    app: &App,
    claims: &mut Placed<Heartbeat>,
) -> BTreeMap<usize, ProblemBody> {
    let limits = app.queue.limits();
    let mut unfit = BTreeMap::new();
    for (place, claim) in claims {
        let check = claim.progress.as_ref().map(|shown| limits.progress(shown));
        if let Some(Err(invalid)) = check {
            claim.progress = None;
            let problem = invalid_item(invalid, "claims", *place)
                .hint("only the progress was left out of the heartbeat; change it");
            unfit.insert(*place, problem.into_document());
        }
    }
    unfit
}

pub(crate) fn items<T>(placed: Placed<T>) -> Vec<T> {
    placed.into_iter().map(|(_, item)| item).collect()
}

fn answer(outcomes: Vec<Outcome>, refused: Placed<Outcome>) -> Response {
    let claims = in_order(outcomes, refused);
    ok(&ClaimsAnswer { claims })
}

/// The outcome of each, in the order of the request.
pub(crate) fn in_order(mut outcomes: Vec<Outcome>, refused: Placed<Outcome>) -> Vec<Outcome> {
    for (place, outcome) in refused {
        outcomes.insert(place, outcome);
    }
    outcomes
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
        Ok(HeartbeatAnswer::Renewed(_)) => Outcome::ok(id),
        Ok(HeartbeatAnswer::Cancelled) => Outcome::cancelled(id),
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

pub(crate) fn done(outcomes: &[Outcome]) -> usize {
    let is_done = |outcome: &&Outcome| outcome.status == OutcomeStatus::Ok;
    outcomes.iter().filter(is_done).count()
}

/// The answer about one claim: lost is a refusal.
fn single(id: &JobId, outcomes: Result<Vec<Outcome>, Problem>) -> Result<Response, Problem> {
    let outcomes = outcomes.map_err(|problem| problem.within("claims[0]."))?;
    let outcome = outcomes.into_iter().next();
    let outcome = outcome.expect("a call about one claim has one answer");
    match outcome.reason {
        Some(reason) => Err(lost(id, reason)),
        None => Ok(ok(&outcome)),
    }
}

pub(crate) fn lost(id: &JobId, reason: tenure_api::LostReason) -> Problem {
    Problem::new(
        Code::Lost,
        format!("the claim of {id} is lost: {reason}; nothing was done"),
    )
    .reason(reason)
}
