//! Claiming jobs: a call that may wait.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use tenure::queue::Claim;
use tenure_core::api::{ClaimAnswer, ClaimRequest, Code, Problem as ProblemBody, WAIT_MS_MAX};
use tenure_core::queue::Claimed;

use crate::app::App;
use crate::extract::{Json, ok};
use crate::problem::Problem;

/// Claim the jobs whose turn it is
///
/// Waits up to `wait_ms` for one, and answers as soon as there is. Whoever disconnects while waiting takes
/// none.
#[utoipa::path(post, path = "/v1/jobs/claim", tag = "jobs", request_body = ClaimRequest, responses(
    (status = 200, description = "The jobs; none if there were none in time", body = ClaimAnswer),
    (status = 422, description = "A field is wrong", body = ProblemBody),
    (status = 429, description = "Too many wait already", body = ProblemBody)))]
pub(crate) async fn claim(
    State(app): State<Arc<App>>,
    Json(request): Json<ClaimRequest>,
) -> Result<Response, Problem> {
    if request.wait_ms > WAIT_MS_MAX {
        return Err(Problem::new(
            Code::InvalidField,
            format!("wait_ms is {}, more than {WAIT_MS_MAX}", request.wait_ms),
        )
        .field("wait_ms")
        .hint("wait for a shorter time, and ask again"));
    }
    let wait = Duration::from_millis(request.wait_ms.into());
    let claim = Claim {
        worker: request.worker,
        queues: request.queues,
        types: request.types,
        max: request.max,
        lease: Duration::from_millis(request.lease_ms.into()),
    };
    let jobs = take(&app, claim, wait).await?;
    Ok(ok(&ClaimAnswer { jobs }))
}

/// Claims jobs. When the server stops, nobody waits any longer.
pub(crate) async fn take(app: &App, claim: Claim, wait: Duration) -> Result<Vec<Claimed>, Problem> {
    let _permit = match wait.is_zero() {
        true => None,
        false => Some(app.wait_permit()?),
    };
    let jobs = tokio::select! {
        biased;
        jobs = app.queue.claim(claim, wait) => jobs?,
        () = app.stop.cancelled(), if !wait.is_zero() => Vec::new(),
    };
    app.rates.claimed.add(jobs.len());
    Ok(jobs)
}
