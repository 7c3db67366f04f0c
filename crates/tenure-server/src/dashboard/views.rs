//! What a page asks for beside the stream. The leader answers all of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure_api::{Code, JobId, JobType, JobsQuery, QueueName};
use tenure_core::queue::{Job, PageStart, State as JobState};

use super::history::shortened;
use super::locked;
use super::recorder::Recorder;
use crate::app::App;
use crate::extract::{Named, Parameters, ok};
use crate::handlers::jobs::search;
use crate::problem::Problem;

/// The most jobs of one answer.
const JOBS_MAX: u32 = 200;

const JOBS_DEFAULT: u32 = 50;

/// The most pages that one answer is made of.
const PAGES_MAX: usize = 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeriesQuery {
    /// If absent: all queues together.
    queue: Option<QueueName>,
    /// What the page already has.
    #[serde(default)]
    after: u64,
}

/// The last hour of a queue
pub(super) async fn series(
    State(app): State<Arc<App>>,
    Parameters(query): Parameters<SeriesQuery>,
) -> Result<Response, Problem> {
    let answer = recorded(&app, |recorder| {
        recorder.series(query.queue.as_ref(), query.after)
    })?;
    match answer {
        Some(answer) => Ok(ok(&answer)),
        None => Err(Problem::new(Code::NotFound, "the queue has no history yet").field("queue")),
    }
}

#[derive(Debug, Serialize)]
struct Sparks {
    queues: BTreeMap<QueueName, Vec<u32>>,
}

/// The last hour of every queue, small
pub(super) async fn sparks(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let queues = recorded(&app, Recorder::sparks)?;
    Ok(ok(&Sparks { queues }))
}

/// What happened last, to any job
pub(super) async fn activity(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    Ok(ok(&recorded(&app, Recorder::activity)?))
}

/// What happened to a job
pub(super) async fn history(
    State(app): State<Arc<App>>,
    Named(id): Named<JobId>,
) -> Result<Response, Problem> {
    Ok(ok(&recorded(&app, |recorder| recorder.history(&id))?))
}

fn recorded<T>(app: &App, read: impl FnOnce(&Recorder) -> T) -> Result<T, Problem> {
    let recorder = locked(&app.dashboard.recorder);
    match &*recorder {
        Some(recorder) => Ok(read(recorder)),
        None => Err(Problem::no_leader("this broker has just been elected")),
    }
}

#[derive(Debug, Serialize)]
struct Jobs {
    jobs: Vec<JobLine>,
    next: Option<u64>,
}

/// A job in a list: without its payload and result, which may be large.
#[derive(Debug, Serialize)]
struct JobLine {
    id: JobId,
    queue: QueueName,
    #[serde(rename = "type")]
    job_type: JobType,
    state: JobState,
    blocked: bool,
    attempt: u32,
    max_attempts: u32,
    changed_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Box<str>>,
}

/// Jobs, newest first, as lines of a table
pub(super) async fn jobs(
    State(app): State<Arc<App>>,
    Parameters(query): Parameters<JobsQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(JOBS_DEFAULT).clamp(1, JOBS_MAX);
    let place = PageStart::Before(query.before.unwrap_or(u64::MAX));
    Ok(ok(&lines(&app, &query, place, limit as usize).await?))
}

/// Lines have no payload, so a table may take several pages of large jobs to fill.
async fn lines(
    app: &App,
    query: &JobsQuery,
    from: PageStart,
    limit: usize,
) -> Result<Jobs, Problem> {
    let mut from = from;
    let mut lines = Jobs {
        jobs: Vec::new(),
        next: None,
    };
    for _ in 0..PAGES_MAX {
        let left = limit - lines.jobs.len();
        let page = search::page(app, query, from, left).await?;
        lines.jobs.extend(page.jobs.into_iter().map(line));
        lines.next = page.next;
        match page.next {
            // A search goes on only when the page asks for it.
            Some(next) if lines.jobs.len() < limit && query.search.is_none() => {
                from = PageStart::Before(next);
            }
            _ => break,
        }
    }
    Ok(lines)
}

fn line(job: Job) -> JobLine {
    JobLine {
        error: job.error.as_deref().map(shortened),
        id: job.id,
        queue: job.queue,
        job_type: job.job_type,
        state: job.state,
        blocked: job.blocked,
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        changed_at: job.changed_at,
    }
}
