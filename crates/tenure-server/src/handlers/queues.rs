//! Queues and settings.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tenure::queue::ClockState;
use tenure_api::{
    ClockTrust, Code, Counts, NameError, NamesQuery, Problem as ProblemBody, Queue, QueueChange,
    QueueName, QueueOptions, QueueTime, QueuesAnswer, SetTime, Settings, SettingsChange,
};

use crate::app::App;
use crate::audit::detailed;
use crate::extract::{Json, Named, NoBody, Parameters, ok, tagged};
use crate::problem::Problem;

/// All queues
///
/// In order of name, at most 1,000 at once. `next` is where the next page starts: send it as `after`.
#[utoipa::path(get, path = "/v1/queues", tag = "queues", params(NamesQuery), responses(
    (status = 200, description = "A page of the queues that have jobs or settings, in order of name", body = QueuesAnswer),
    (status = 304, description = "Unchanged since the ETag that was sent"),
    (status = 422, description = "A parameter is not valid", body = ProblemBody)))]
pub(crate) async fn queues(
    State(app): State<Arc<App>>,
    Parameters(query): Parameters<NamesQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (after, limit) = asked::<QueueName>(&query)?;
    Ok(tagged(&headers, &page(&app, after.as_ref(), limit)?))
}

/// The most queues or schedules of one answer.
pub(crate) const NAMES_MAX: u32 = 1_000;

/// Parses where a page of names starts and how long it is.
pub(crate) fn asked<N: FromStr<Err = NameError>>(
    query: &NamesQuery,
) -> Result<(Option<N>, usize), Problem> {
    let limit = query.limit.unwrap_or(NAMES_MAX);
    if !(1..=NAMES_MAX).contains(&limit) {
        let problem = format!("limit is {limit}, but must be from 1 to {NAMES_MAX}");
        return Err(Problem::new(Code::InvalidField, problem).field("limit"));
    }
    let after = query.after.as_deref().map(str::parse).transpose();
    let after = after.map_err(|error: NameError| {
        Problem::new(Code::InvalidField, error.to_string()).field("after")
    })?;
    Ok((after, limit as usize))
}

/// The page of queues after a name.
pub(crate) fn page(
    app: &App,
    after: Option<&QueueName>,
    limit: usize,
) -> Result<QueuesAnswer, Problem> {
    let found = app.queue.queues_behind(after, limit)?;
    let is_full = found.len() == limit;
    let last = found.last().filter(|_| is_full);
    let next = last.map(|queue| queue.name.clone());
    Ok(QueuesAnswer {
        queues: found,
        next,
    })
}

/// One queue
#[utoipa::path(get, path = "/v1/queues/{queue}", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue", body = Queue),
    (status = 304, description = "Unchanged since the ETag that was sent"),
    (status = 404, description = "The queue has neither jobs nor settings", body = ProblemBody),
    (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn queue(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &one(&app, &name)?))
}

/// Set all limits of a queue
///
/// A field that is left out means no limit. To change one limit and keep the others, use `PATCH`.
#[utoipa::path(put, path = "/v1/queues/{queue}", operation_id = "set_queue", tag = "queues", request_body = QueueOptions,
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue", body = Queue),
    (status = 404, description = "The queue has neither jobs nor settings", body = ProblemBody),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn set(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    Json(options): Json<QueueOptions>,
) -> Result<Response, Problem> {
    app.queue.set_queue(name.clone(), options).await?;
    let response = ok(&changed(&app, name)?);
    Ok(detailed(response, text(&options)))
}

/// Change some of a queue's limits
///
/// Fields that are left out stay as they are; `null` removes a limit. Two concurrent calls that change different limits
/// do not undo each other.
#[utoipa::path(patch, path = "/v1/queues/{queue}", operation_id = "change_queue", tag = "queues", request_body = QueueChange,
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue as it is now", body = Queue),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody),
    (status = 429, description = "There is no room for another queue; nothing was done", body = ProblemBody)))]
pub(crate) async fn change(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    Json(change): Json<QueueChange>,
) -> Result<Response, Problem> {
    let apply = move |options: &mut QueueOptions| change.apply(options);
    app.queue.change_queue(name.clone(), apply).await?;
    let response = ok(&changed(&app, name)?);
    Ok(detailed(response, text(&change)))
}

/// Pause a queue: none of its jobs can be claimed
#[utoipa::path(post, path = "/v1/queues/{queue}/pause", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue", body = Queue),
    (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn pause(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    _: NoBody,
) -> Result<Response, Problem> {
    app.queue.pause(name.clone()).await?;
    Ok(ok(&changed(&app, name)?))
}

/// Resume a paused queue
#[utoipa::path(post, path = "/v1/queues/{queue}/resume", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue", body = Queue),
    (status = 422, description = "The name is not valid", body = ProblemBody)))]
pub(crate) async fn resume(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    _: NoBody,
) -> Result<Response, Problem> {
    app.queue.resume(name.clone()).await?;
    Ok(ok(&changed(&app, name)?))
}

/// The settings for all queues
#[utoipa::path(get, path = "/v1/settings", tag = "queues", responses(
    (status = 200, description = "The settings", body = Settings)))]
pub(crate) async fn settings(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    Ok(ok(&app.queue.settings()?))
}

/// Replace the settings for all queues; those left out get their defaults
///
/// To change some and keep the others, use `PATCH`.
#[utoipa::path(put, path = "/v1/settings", tag = "queues", request_body = Settings, responses(
    (status = 200, description = "The settings", body = Settings),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn configure(
    State(app): State<Arc<App>>,
    Json(settings): Json<Settings>,
) -> Result<Response, Problem> {
    app.queue.configure(settings).await?;
    let now = app.queue.settings();
    let now = now.map_err(|error| Problem::from(error).after_change())?;
    let detail = text(&now);
    Ok(detailed(ok(&now), detail))
}

/// Change some of the settings for all queues
///
/// Fields that are left out stay as they are; a field that is named is replaced as a whole. Two concurrent calls that
/// change different fields do not undo each other.
#[utoipa::path(patch, path = "/v1/settings", operation_id = "change_settings", tag = "queues", request_body = SettingsChange,
    responses(
    (status = 200, description = "The settings as they are now", body = Settings),
    (status = 422, description = "A field is not valid; nothing was done", body = ProblemBody)))]
pub(crate) async fn change_settings(
    State(app): State<Arc<App>>,
    Json(change): Json<SettingsChange>,
) -> Result<Response, Problem> {
    let apply = move |settings: &mut Settings| change.apply(settings);
    app.queue.change_settings(apply).await?;
    let now = app.queue.settings();
    let now = now.map_err(|error| Problem::from(error).after_change())?;
    Ok(detailed(ok(&now), text(&change)))
}

/// Settings as text, for the log.
fn text(settings: &impl serde::Serialize) -> String {
    serde_json::to_string(settings).unwrap_or_default()
}

/// The queue's time, and whether it follows the clock of the broker's host
#[utoipa::path(get, path = "/v1/time", tag = "queues", responses(
    (status = 200, description = "The time", body = QueueTime)))]
pub(crate) async fn time(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    Ok(ok(&time_of(&app)?))
}

/// Set the queue's time, forward or back, after a clock was wrong
#[utoipa::path(put, path = "/v1/time", tag = "queues", request_body = SetTime, responses(
    (status = 200, description = "The time", body = QueueTime),
    (status = 422, description = "The time is before 2024, or more than a year ahead of the clock; nothing was done", body = ProblemBody)))]
pub(crate) async fn set_time(
    State(app): State<Arc<App>>,
    Json(SetTime { to }): Json<SetTime>,
) -> Result<Response, Problem> {
    let now_ms = app.queue.set_time(to).await?;
    let now = time_of(&app).map_err(Problem::after_change)?;
    // Somebody else may have set it since.
    let now = QueueTime { now_ms, ..now };
    let detail = format!("now {}", now.now_ms);
    Ok(detailed(ok(&now), detail))
}

fn time_of(app: &App) -> Result<QueueTime, Problem> {
    Ok(QueueTime {
        now_ms: app.queue.now_ms()?,
        wall_ms: app.queue.wall_ms()?,
        clock: match app.queue.clock()? {
            ClockState::Followed => ClockTrust::Followed,
            ClockState::Ahead { .. } => ClockTrust::Ahead,
            ClockState::Behind { .. } => ClockTrust::Behind,
            _ => ClockTrust::Other,
        },
    })
}

fn one(app: &App, name: &QueueName) -> Result<Queue, Problem> {
    app.queue.queue(name)?.ok_or_else(|| {
        Problem::new(
            Code::NotFound,
            format!("there is no queue {name}: it has neither jobs nor settings"),
        )
        .field("queue")
    })
}

/// The queue after a change. One that is back to its defaults and has no jobs does not exist any more.
fn changed(app: &App, name: QueueName) -> Result<Queue, Problem> {
    let queue = app.queue.queue(&name);
    let queue = queue.map_err(|error| Problem::from(error).after_change())?;
    Ok(queue.unwrap_or(Queue {
        name,
        paused: false,
        options: QueueOptions::default(),
        counts: Counts::default(),
        oldest_ready_at: None,
    }))
}
