//! The detail screens: the jobs of a queue, or one job.

use ratatui::style::{Color, Style};
use ratatui::text::Line;
use tenure_client::{Client, JobId, Listing, QueueName, State, api};

use super::seen::Seen;
use crate::commands::job;
use crate::output::{last_line, printable};

/// How many jobs of a queue are fetched, enough for a tall screen.
const JOBS_MAX: u32 = 100;

/// The most lines of one job that are kept, since a payload can be large.
const LINES_MAX: usize = 2_000;

/// What the user has opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Inside {
    #[default]
    Nothing,
    Queue(QueueName),
    Job(JobId),
}

/// What was found for it.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    Jobs(Vec<api::Job>),
    Job(Box<api::Job>),
    /// Why nothing was found.
    Problem(String),
}

impl Inside {
    pub(crate) async fn ask(&self, client: &Client) -> Option<Found> {
        let found = match self {
            Self::Nothing => return None,
            Self::Queue(queue) => {
                let listing = Listing::new().queue(queue.clone());
                let listing = listing.newest_first().limit(JOBS_MAX);
                let answer = client.jobs(&listing).await;
                answer.map(|answer| Found::Jobs(answer.jobs))
            }
            Self::Job(id) => client.job(id).await.map(|job| Found::Job(Box::new(job))),
        };
        Some(found.unwrap_or_else(|error| Found::Problem(printable(&error.to_string()))))
    }

    pub(crate) fn title(&self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Queue(queue) => format!(" jobs of {queue}, newest first "),
            Self::Job(id) => format!(" job {} ", printable(id.as_str())),
        }
    }
}

/// Jobs as rows, with a heading first.
pub(crate) fn rows(seen: &Seen, jobs: &[api::Job]) -> Vec<[String; 6]> {
    let mut rows =
        vec![["JOB", "STATE", "TYPE", "ATTEMPT", "CHANGED", "LAST ERROR"].map(str::to_owned)];
    rows.extend(jobs.iter().map(|job| {
        [
            job.id.to_string(),
            job.state.to_string(),
            job.job_type.to_string(),
            format!("{}/{}", job.attempt, job.max_attempts),
            format!("{} ago", seen.since(job.changed_at)),
            last_line(job.error.as_deref().unwrap_or_default()),
        ]
    }));
    rows
}

/// The colour of a job's row.
pub(crate) fn style(state: State) -> Style {
    match state {
        State::Dead => Style::new().fg(Color::Red),
        State::Running => Style::new().fg(Color::Green),
        _ => Style::new(),
    }
}

/// One job in full.
pub(crate) fn lines(job: &api::Job) -> Vec<Line<'static>> {
    let text = job::text(job);
    let lines = text.lines().take(LINES_MAX);
    lines.map(|line| Line::raw(line.to_owned())).collect()
}
