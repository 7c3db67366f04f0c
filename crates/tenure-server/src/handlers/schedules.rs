//! Cron schedules.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use tenure_api::{
    Code, NamesQuery, Problem as ProblemBody, Schedule, ScheduleName, SchedulesAnswer,
};
use tenure_core::queue::ScheduleSpec;

use crate::app::App;
use crate::audit::detailed;
use crate::extract::{Json, Named, NoBody, Parameters, ok, tagged};
use crate::handlers::queues::asked;
use crate::problem::Problem;

/// All schedules
///
/// In order of name, at most 1,000 at once, and fewer if they are large. `next` is where the next page starts:
/// send it as `after`.
#[utoipa::path(get, path = "/v1/schedules", tag = "queues", params(NamesQuery), responses(
    (status = 200, description = "A page of the schedules, in order of name", body = SchedulesAnswer),
    (status = 304, description = "Unchanged since the ETag that was sent"),
    (status = 422, description = "A parameter is not valid", body = ProblemBody)))]
pub(crate) async fn schedules(
    State(app): State<Arc<App>>,
    Parameters(query): Parameters<NamesQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (after, limit) = asked::<ScheduleName>(&query)?;
    let found = app.queue.schedules_behind(after.as_ref(), limit)?;
    let last = found.last().map(|schedule| &schedule.name);
    let more = match last {
        Some(_) => !app.queue.schedules_behind(last, 1)?.is_empty(),
        None => false,
    };
    let next = last.filter(|_| more).cloned();
    let answer = SchedulesAnswer {
        schedules: found.into_iter().map(Schedule::from).collect(),
        next,
    };
    Ok(tagged(&headers, &answer))
}

/// One schedule
#[utoipa::path(get, path = "/v1/schedules/{name}", tag = "queues",
    params(("name" = ScheduleName, Path, description = "The schedule")), responses(
    (status = 200, description = "The schedule", body = Schedule),
    (status = 304, description = "Unchanged since the ETag that was sent"),
    (status = 404, description = "There is no such schedule", body = ProblemBody),
    (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn schedule(
    State(app): State<Arc<App>>,
    Named(name): Named<ScheduleName>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &one(&app, &name)?))
}

/// Create or replace a schedule
#[utoipa::path(put, path = "/v1/schedules/{name}", operation_id = "set_schedule", tag = "queues", request_body = ScheduleSpec,
    params(("name" = ScheduleName, Path, description = "The schedule")), responses(
    (status = 200, description = "The schedule", body = Schedule),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn set(
    State(app): State<Arc<App>>,
    Named(name): Named<ScheduleName>,
    Json(spec): Json<ScheduleSpec>,
) -> Result<Response, Problem> {
    let detail = format!("{} {}", spec.cron, spec.timezone);
    app.queue.set_schedule(name.clone(), spec).await?;
    let schedule = one(&app, &name).map_err(Problem::after_change)?;
    Ok(detailed(ok(&schedule), detail))
}

/// Pause a schedule: it submits no jobs until it is resumed
///
/// It stays paused if it is set again. The slots that fall into the pause are skipped, whatever `missed` says.
#[utoipa::path(post, path = "/v1/schedules/{name}/pause", operation_id = "pause_schedule", tag = "queues",
    params(("name" = ScheduleName, Path, description = "The schedule")), responses(
    (status = 200, description = "The schedule", body = Schedule),
    (status = 404, description = "There is no such schedule", body = ProblemBody),
    (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn pause(
    State(app): State<Arc<App>>,
    Named(name): Named<ScheduleName>,
    _: NoBody,
) -> Result<Response, Problem> {
    if !app.queue.pause_schedule(name.clone()).await? {
        return Err(not_found(&name));
    }
    Ok(ok(&one(&app, &name).map_err(Problem::after_change)?))
}

/// Resume a paused schedule, with its next slot
#[utoipa::path(post, path = "/v1/schedules/{name}/resume", operation_id = "resume_schedule", tag = "queues",
    params(("name" = ScheduleName, Path, description = "The schedule")), responses(
    (status = 200, description = "The schedule", body = Schedule),
    (status = 404, description = "There is no such schedule", body = ProblemBody),
    (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn resume(
    State(app): State<Arc<App>>,
    Named(name): Named<ScheduleName>,
    _: NoBody,
) -> Result<Response, Problem> {
    if !app.queue.resume_schedule(name.clone()).await? {
        return Err(not_found(&name));
    }
    Ok(ok(&one(&app, &name).map_err(Problem::after_change)?))
}

/// Delete a schedule; its jobs are kept
#[utoipa::path(delete, path = "/v1/schedules/{name}", operation_id = "delete_schedule", tag = "queues",
    params(("name" = ScheduleName, Path, description = "The schedule")), responses(
    (status = 204, description = "The schedule is deleted"),
    (status = 404, description = "There is no such schedule", body = ProblemBody),
    (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Named(name): Named<ScheduleName>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    if app.queue.delete_schedule(name.clone()).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(not_found(&name))
    }
}

fn one(app: &App, name: &ScheduleName) -> Result<Schedule, Problem> {
    match app.queue.schedule(name)? {
        Some(schedule) => Ok(schedule.into()),
        None => Err(not_found(name)),
    }
}

fn not_found(name: &ScheduleName) -> Problem {
    Problem::new(Code::NotFound, format!("there is no schedule {name}")).field("name")
}
