//! Cron schedules.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use tenure_core::ScheduleName;
use tenure_core::api::{Code, Problem as ProblemBody, Schedule, SchedulesAnswer};
use tenure_core::queue::{Event, ScheduleSpec};

use crate::app::App;
use crate::extract::{Json, Named, NoBody, ok, tagged};
use crate::problem::Problem;

/// All schedules
#[utoipa::path(get, path = "/v1/schedules", tag = "queues", responses(
    (status = 200, description = "Every schedule, by name", body = SchedulesAnswer),
    (status = 304, description = "The same as with the ETag that was sent")))]
pub(crate) async fn schedules(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let schedules = app.queue.schedules()?.into_iter().map(Schedule::from);
    let answer = SchedulesAnswer {
        schedules: schedules.collect(),
    };
    Ok(tagged(&headers, &answer))
}

/// One schedule
#[utoipa::path(get, path = "/v1/schedules/{name}", tag = "queues",
    params(("name" = ScheduleName, Path, description = "The schedule")), responses(
    (status = 200, description = "The schedule", body = Schedule),
    (status = 304, description = "The same as with the ETag that was sent"),
    (status = 404, description = "There is none", body = ProblemBody),
    (status = 422, description = "The name cannot be", body = ProblemBody)))]
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
    (status = 200, description = "The schedule as it is now", body = Schedule),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn set(
    State(app): State<Arc<App>>,
    Named(name): Named<ScheduleName>,
    Json(spec): Json<ScheduleSpec>,
) -> Result<Response, Problem> {
    app.queue.set_schedule(name.clone(), spec).await?;
    Ok(ok(&one(&app, &name)?))
}

/// Delete a schedule; its jobs stay
#[utoipa::path(delete, path = "/v1/schedules/{name}", operation_id = "delete_schedule", tag = "queues",
    params(("name" = ScheduleName, Path, description = "The schedule")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is none", body = ProblemBody),
    (status = 422, description = "The name cannot be", body = ProblemBody)))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Named(name): Named<ScheduleName>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    match app.queue.delete_schedule(name.clone()).await? {
        Event::ScheduleDeleted { existed: true, .. } => Ok(StatusCode::NO_CONTENT),
        _ => Err(not_found(&name)),
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
