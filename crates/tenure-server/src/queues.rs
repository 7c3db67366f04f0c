//! Queues and settings.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tenure_core::QueueName;
use tenure_core::api::{Code, Problem as ProblemBody, Queue, QueuesAnswer, Settings};
use tenure_core::queue::{QueueOptions, QueueView, Settings as NewSettings};

use crate::app::App;
use crate::extract::{Json, Named, NoBody, ok, tagged};
use crate::problem::Problem;

/// All queues
#[utoipa::path(get, path = "/v1/queues", tag = "queues", responses(
    (status = 200, description = "Every queue that has jobs or settings, by name", body = QueuesAnswer),
    (status = 304, description = "The same as with the ETag that was sent")))]
pub(crate) async fn queues(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &QueuesAnswer { queues: all(&app)? }))
}

/// One queue
#[utoipa::path(get, path = "/v1/queues/{queue}", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue", body = Queue),
    (status = 304, description = "The same as with the ETag that was sent"),
    (status = 404, description = "It has neither jobs nor settings", body = ProblemBody),
    (status = 422, description = "The name cannot be", body = ProblemBody)))]
pub(crate) async fn queue(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &one(&app, &name)?))
}

/// Set a queue's limits, all of them
#[utoipa::path(put, path = "/v1/queues/{queue}", operation_id = "set_queue", tag = "queues", request_body = QueueOptions,
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue as it is now", body = Queue),
    (status = 404, description = "It has neither jobs nor settings", body = ProblemBody),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn set(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    Json(options): Json<QueueOptions>,
) -> Result<Response, Problem> {
    app.queue.set_queue(name.clone(), options).await?;
    Ok(ok(&one_or_empty(&app, name)?))
}

/// Let no job of a queue be claimed
#[utoipa::path(post, path = "/v1/queues/{queue}/pause", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue as it is now", body = Queue),
    (status = 422, description = "The name cannot be", body = ProblemBody)))]
pub(crate) async fn pause(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    _: NoBody,
) -> Result<Response, Problem> {
    app.queue.pause(name.clone()).await?;
    Ok(ok(&one_or_empty(&app, name)?))
}

/// Let jobs of a queue be claimed again
#[utoipa::path(post, path = "/v1/queues/{queue}/resume", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")), responses(
    (status = 200, description = "The queue as it is now", body = Queue),
    (status = 422, description = "The name cannot be", body = ProblemBody)))]
pub(crate) async fn resume(
    State(app): State<Arc<App>>,
    Named(name): Named<QueueName>,
    _: NoBody,
) -> Result<Response, Problem> {
    app.queue.resume(name.clone()).await?;
    Ok(ok(&one_or_empty(&app, name)?))
}

/// What holds for all queues
#[utoipa::path(get, path = "/v1/settings", tag = "queues", responses(
    (status = 200, description = "The settings", body = Settings)))]
pub(crate) async fn settings(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    Ok(ok(&Settings(app.queue.settings()?)))
}

/// Set what holds for all queues; what is left out gets its default
#[utoipa::path(put, path = "/v1/settings", tag = "queues", request_body = NewSettings, responses(
    (status = 200, description = "The settings as they are now", body = Settings),
    (status = 422, description = "A field is wrong; nothing was done", body = ProblemBody)))]
pub(crate) async fn configure(
    State(app): State<Arc<App>>,
    Json(settings): Json<NewSettings>,
) -> Result<Response, Problem> {
    app.queue.configure(settings).await?;
    Ok(ok(&Settings(app.queue.settings()?)))
}

/// Every queue.
pub(crate) fn all(app: &App) -> Result<Vec<Queue>, Problem> {
    let views = app.queue.queues()?;
    views
        .into_iter()
        .map(|view| with_oldest(app, view))
        .collect()
}

fn one(app: &App, name: &QueueName) -> Result<Queue, Problem> {
    match app.queue.queue(name)? {
        Some(view) => with_oldest(app, view),
        None => Err(Problem::new(
            Code::NotFound,
            format!("there is no queue {name}: it has neither jobs nor settings"),
        )
        .field("queue")),
    }
}

/// A queue that was just changed: one that is back to its defaults and has no jobs is gone.
fn one_or_empty(app: &App, name: QueueName) -> Result<Queue, Problem> {
    match app.queue.queue(&name)? {
        Some(view) => with_oldest(app, view),
        None => Ok(Queue::new(
            QueueView {
                name,
                paused: false,
                options: QueueOptions::default(),
                counts: tenure_core::queue::Counts::default(),
            },
            None,
        )),
    }
}

fn with_oldest(app: &App, view: QueueView) -> Result<Queue, Problem> {
    let oldest = match view.counts.ready {
        0 => None,
        _ => app.queue.oldest_ready(&view.name)?,
    };
    // Since when it could have been claimed: a delayed or retried job waits from its time on.
    let since = oldest.map(|job| job.changed_at);
    Ok(Queue::new(view, since))
}
