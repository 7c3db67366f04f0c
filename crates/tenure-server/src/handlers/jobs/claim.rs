//! Claiming jobs: a call that may wait.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use tenure::queue::Error;
use tenure_api::{ClaimAnswer, ClaimRequest, Code, Problem as ProblemBody, WAIT_MS_MAX};
use tenure_core::queue::{Claimed, Key};
use tokio::time::sleep;

use crate::app::App;
use crate::extract::{CallName, Json, Via, ok};
use crate::problem::Problem;

/// Claim jobs
///
/// Waits up to `wait_ms` for a job, and answers as soon as there is one. A client that disconnects while it waits
/// gets none.
///
/// With a header `Idempotency-Key`, something random that is another for each claim, the call can be repeated: while the
/// claim holds any job, the same worker with the same key is answered with those jobs and the same tokens, and no attempt
/// is counted twice. So a claim whose answer was lost costs a job nothing.
#[utoipa::path(post, path = "/v1/jobs/claim", tag = "jobs", request_body = ClaimRequest, params(
    ("Idempotency-Key" = Option<String>, Header, description = "Names this claim, so that it can be repeated: 1 to 200 bytes")), responses(
    (status = 200, description = "The jobs; an empty list if there were none in time", body = ClaimAnswer),
    (status = 422, description = "A field is not valid", body = ProblemBody),
    (status = 429, description = "Too many calls are already waiting", body = ProblemBody)))]
pub(crate) async fn claim(
    State(app): State<Arc<App>>,
    Via(connection): Via,
    CallName(name): CallName,
    Json(request): Json<ClaimRequest>,
) -> Result<Response, Problem> {
    if request.wait_ms > WAIT_MS_MAX {
        return Err(Problem::new(
            Code::InvalidField,
            format!(
                "wait_ms is {}, but may be at most {WAIT_MS_MAX}",
                request.wait_ms
            ),
        )
        .field("wait_ms")
        .hint("wait for a shorter time, then call again"));
    }
    if let Some(connection) = connection.filter(|_| request.wait_ms > 0) {
        // It may wait for long, and is answered in any case: its body need not be kept.
        drop(connection.take_kept());
    }
    let jobs = take(&app, request, name.as_ref()).await?;
    Ok(ok(&ClaimAnswer { jobs }))
}

/// How long a claim that waits goes on waiting when this server stops leading, so that its worker does not come back
/// before there is another leader, again and again.
const PAUSE: Duration = Duration::from_millis(100);

/// Claims jobs. When the server stops, nobody waits any longer.
pub(crate) async fn take(
    app: &App,
    request: ClaimRequest,
    name: Option<&Key>,
) -> Result<Vec<Claimed>, Problem> {
    let waits = request.wait_ms > 0;
    let _permit = if waits {
        Some(app.wait_permit()?)
    } else {
        None
    };
    let claimed = app
        .queue
        .claim_named(request, name, app.leaving.cancelled());
    let jobs = match claimed.await {
        // It took none, and who waits asks again.
        Err(Error::NotServing { .. } | Error::Stopped) if waits => {
            sleep(PAUSE).await;
            Vec::new()
        }
        jobs => jobs?,
    };
    app.rates.claimed.add(jobs.len());
    Ok(jobs)
}
