//! The workers and their jobs, known from their claims.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use tenure_api::{Key, State as JobState, Worker, WorkerJob, WorkersAnswer};
use tenure_core::queue::{Filter, PageStart};

use super::jobs::search;
use crate::app::App;
use crate::extract::{Via, ok, room_for};
use crate::problem::Problem;

/// The most workers that are listed.
const WORKERS_MAX: usize = 1_000;

/// The most running jobs that are read, earliest submitted first, and the most pages that they are read in: pages of
/// large jobs hold few.
const JOBS_MAX: usize = 2_000;
const PAGE_JOBS_MAX: usize = 1_000;
const PAGES_MAX: usize = 20;

/// The most jobs that are shown of one worker.
const JOBS_OF_ONE_MAX: usize = 100;

/// The workers, and the jobs that they run
///
/// Workers are known by their claims: listed are those that run a job or wait for one.
#[utoipa::path(get, path = "/v1/workers", tag = "jobs", responses(
    (status = 200, description = "The workers, by name", body = WorkersAnswer)))]
pub(crate) async fn workers(
    State(app): State<Arc<App>>,
    Via(connection): Via,
) -> Result<Response, Problem> {
    // Pages of jobs are read one after the other, with their payloads.
    let _room = room_for(&app, connection, tenure::queue::PAGE_BYTES_MAX).await?;
    let (running, are_running_all) = running(&app).await?;
    let (waiting, are_waiting_all) = app.queue.waiting_workers(WORKERS_MAX)?;
    let is_all = are_running_all && are_waiting_all;
    Ok(ok(&grouped(waiting, running, is_all)))
}

/// The running jobs with their workers, and whether these are all.
async fn running(app: &App) -> Result<(Vec<(Key, WorkerJob)>, bool), Problem> {
    let filter = Filter {
        state: Some(JobState::Running),
        ..Filter::default()
    };
    let mut found = Vec::new();
    let mut next = Some(0);
    for _ in 0..PAGES_MAX {
        let (Some(from), left @ 1..) = (next, JOBS_MAX - found.len()) else {
            break;
        };
        let (from, limit) = (PageStart::After(from), left.min(PAGE_JOBS_MAX));
        let page = search::filtered(app, filter.clone(), from, limit).await?;
        next = page.next;
        let silences = app.queue.silences(page.jobs.iter().map(|job| &job.id))?;
        for (job, silence) in page.jobs.into_iter().zip(silences) {
            let Some(worker) = job.worker else { continue };
            let run = WorkerJob {
                id: job.id,
                queue: job.queue,
                job_type: job.job_type,
                attempt: job.attempt,
                since_at: job.changed_at,
                heard_ago_ms: silence.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            };
            found.push((worker, run));
        }
    }
    Ok((found, next.is_none()))
}

fn grouped(
    waiting: Vec<(Key, u32)>,
    running: Vec<(Key, WorkerJob)>,
    is_all: bool,
) -> WorkersAnswer {
    let mut workers: BTreeMap<Key, Worker> = BTreeMap::new();
    for (name, count) in waiting {
        named(&mut workers, &name).waiting = count;
    }
    for (name, job) in running {
        let worker = named(&mut workers, &name);
        worker.running += 1;
        worker.jobs.push(job);
    }
    for worker in workers.values_mut() {
        worker.jobs.sort_by_key(|job| job.since_at);
        worker.jobs.truncate(JOBS_OF_ONE_MAX);
    }
    WorkersAnswer {
        truncated: !is_all || workers.len() > WORKERS_MAX,
        workers: workers.into_values().take(WORKERS_MAX).collect(),
    }
}

fn named<'a>(workers: &'a mut BTreeMap<Key, Worker>, name: &Key) -> &'a mut Worker {
    workers.entry(name.clone()).or_insert_with(|| Worker {
        worker: name.clone(),
        waiting: 0,
        running: 0,
        jobs: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use tenure_api::{JobId, JobType, QueueName};

    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    fn run(worker: &str, number: usize) -> (Key, WorkerJob) {
        let job = WorkerJob {
            id: JobId::new(format!("job-{number}")).unwrap(),
            queue: QueueName::new("mail").unwrap(),
            job_type: JobType::new("send").unwrap(),
            attempt: 1,
            since_at: 10_000 - number as u64,
            heard_ago_ms: None,
        };
        (key(worker), job)
    }

    #[test]
    fn each_worker_has_its_longest_job_first() {
        let running = vec![run("a", 1), run("b", 2), run("b", 3)];
        let found = grouped(vec![(key("b"), 2), (key("c"), 1)], running, true);
        assert!(!found.truncated);
        let shown = found.workers.iter().map(|it| {
            let jobs = it.jobs.iter().map(|job| job.id.as_str());
            (
                it.worker.as_str(),
                it.waiting,
                it.running,
                jobs.collect::<Vec<_>>(),
            )
        });
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                ("a", 0, 1, vec!["job-1"]),
                ("b", 2, 2, vec!["job-3", "job-2"]),
                ("c", 1, 0, vec![])
            ]
        );
    }

    #[test]
    fn what_is_shown_is_bounded_and_says_so() {
        let many = (0..=WORKERS_MAX).map(|number| run(&format!("w{number}"), number));
        let found = grouped(Vec::new(), many.collect(), true);
        assert_eq!((found.workers.len(), found.truncated), (WORKERS_MAX, true));
        let many = (0..=JOBS_OF_ONE_MAX).map(|number| run("w", number));
        let found = grouped(Vec::new(), many.collect(), false);
        let worker = &found.workers[0];
        assert_eq!(worker.running as usize, JOBS_OF_ONE_MAX + 1);
        assert_eq!(worker.jobs.len(), JOBS_OF_ONE_MAX);
        let longest = format!("job-{JOBS_OF_ONE_MAX}");
        assert_eq!(worker.jobs[0].id.as_str(), longest);
        assert!(found.truncated);
    }
}
