//! Claiming jobs: a call that may wait, or bring ends of earlier claims along.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use tenure::queue::Error;
use tenure_api::{
    ClaimAnswer, ClaimCall, ClaimRequest, Code, Ends, EndsAnswer, Outcome, Problem as ProblemBody,
    WAIT_MS_MAX,
};
use tenure_core::queue::{Claimed, Completion, Failure, Key, Limits};
use tokio::time::sleep;

use super::outcome::{done, each, in_order, items};
use crate::app::App;
use crate::extract::{CallName, ClaimBody, EachEnd, Via, ok};
use crate::problem::Problem;

/// Claim jobs
///
/// Waits up to `wait_ms` for a job, and answers as soon as there is one. A client that disconnects while it waits
/// gets none.
///
/// With a random `Idempotency-Key` header, a new one for each claim, the call can be repeated: while the
/// claim holds any job, the same worker with the same key is answered with those jobs and the same tokens, and no attempt
/// is counted twice. So a claim whose answer was lost costs a job nothing.
///
/// With `ends`, claims that the worker has finished are ended first, in the same commit: one call and one commit for what
/// would take two of each. Each end is answered as in its own call. The claim then does not wait, whatever `wait_ms` says, so
/// that the ends are answered at once. Repeated with the same `Idempotency-Key`, the whole call is safe.
#[utoipa::path(post, path = "/v1/jobs/claim", tag = "jobs", request_body = ClaimCall, params(
    ("Idempotency-Key" = Option<String>, Header, description = "Names this claim, so that it can be repeated: 1 to 200 bytes")), responses(
    (status = 200, description = "The jobs; an empty list if there were none in time", body = ClaimAnswer),
    (status = 422, description = "A field is not valid, or there are too many ends; nothing was done", body = ProblemBody),
    (status = 429, description = "Too many calls are already waiting", body = ProblemBody)))]
pub(crate) async fn claim(
    State(app): State<Arc<App>>,
    Via(connection): Via,
    CallName(name): CallName,
    ClaimBody { request, ends }: ClaimBody,
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
    if let Some(ends) = ends.filter(|ends| ends.len() > 0) {
        return end_and_take(&app, ends, request, name.as_ref()).await;
    }
    if let Some(connection) = connection.filter(|_| request.wait_ms > 0) {
        // It may wait for long, and is answered in any case: its body need not be kept.
        drop(connection.take_kept());
    }
    let jobs = take(&app, request, name.as_ref()).await?;
    Ok(ok(&ClaimAnswer { jobs, ends: None }))
}

/// Ends claims, and claims jobs without waiting for them. An end that cannot be carried out is answered so, and keeps no
/// other, nor the claim, from being carried out.
async fn end_and_take(
    app: &App,
    ends: EachEnd,
    mut request: ClaimRequest,
    name: Option<&Key>,
) -> Result<Response, Problem> {
    let limits = app.queue.limits();
    limits.batch("ends", ends.len()).map_err(Error::from)?;
    let check = |limits: &Limits, claim: &mut Completion| limits.completion(claim);
    let (completed, bad_completed) = each(limits, "ends.completed", ends.completed, check);
    let check = |limits: &Limits, claim: &mut Failure| limits.failure(claim);
    let (failed, bad_failed) = each(limits, "ends.failed", ends.failed, check);
    let (released, bad_released) = each(limits, "ends.released", ends.released, |_, _| Ok(()));
    let ends = Ends {
        completed: items(completed),
        failed: items(failed),
        released: items(released),
    };
    let (jobs, ended) = if ends.is_empty() {
        request.wait_ms = 0;
        (take(app, request, name).await?, EndsAnswer::default())
    } else {
        let round = app.queue.end_and_claim(ends, request, name).await;
        let round = round.map_err(|error| Problem::from(error).of_batch("ends"))?;
        app.rates.claimed.add(round.claimed.len());
        let ended = EndsAnswer {
            completed: round.completed.into_iter().map(Outcome::from).collect(),
            failed: round.failed.into_iter().map(Outcome::from).collect(),
            released: round.released.into_iter().map(Outcome::from).collect(),
        };
        app.rates.completed.add(done(&ended.completed));
        app.rates.failed.add(done(&ended.failed));
        (round.claimed, ended)
    };
    let ends = Some(EndsAnswer {
        completed: in_order(ended.completed, bad_completed),
        failed: in_order(ended.failed, bad_failed),
        released: in_order(ended.released, bad_released),
    });
    Ok(ok(&ClaimAnswer { jobs, ends }))
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
