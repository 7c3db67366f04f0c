//! `tenure job list`: many jobs, a line each.

use std::process::ExitCode;

use serde::Serialize;
use tenure::core::Wall;
use tenure_client::api::JobsAnswer;
use tenure_client::{Client, Listing, api};

use crate::args::List;
use crate::commands::at_server::{ask, document, write};
use crate::commands::timed::WithTimes;
use crate::output::{self, last_line, table};
use crate::times;

pub(crate) async fn run(arguments: List) -> anyhow::Result<ExitCode> {
    let listing = listing(&arguments)?;
    ask(&arguments.server, async |client| {
        let answer = all(&client, &listing, arguments.limit).await?;
        write(&if arguments.json {
            document(&Document {
                jobs: WithTimes::all(&answer.jobs),
                next: answer.next,
            })?
        } else {
            text(&answer.jobs)
        })?;
        if let (Some(next), false) = (answer.next, arguments.json) {
            output::note(&format!("there are more: --from {next}"));
        }
        Ok(ExitCode::SUCCESS)
    })
    .await
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    jobs: Vec<WithTimes<'a, api::Job>>,
    next: Option<u64>,
}

/// Gets as many jobs as were asked for: a search may answer with fewer, and where to continue.
async fn all(client: &Client, listing: &Listing, limit: u32) -> anyhow::Result<JobsAnswer> {
    let mut all = client.jobs(listing).await?;
    while let Some(next) = all.next
        && let Some(left) = (limit as usize).checked_sub(all.jobs.len())
        && left > 0
    {
        let left = u32::try_from(left).unwrap_or(limit);
        let more = client.jobs(&listing.clone().limit(left).from(next)).await?;
        all.jobs.extend(more.jobs);
        all.next = more.next;
    }
    Ok(all)
}

fn listing(arguments: &List) -> anyhow::Result<Listing> {
    let (queue, job_type) = arguments.filter.names()?;
    let mut listing = Listing::new().limit(arguments.limit);
    if let Some(state) = arguments.filter.state {
        listing = listing.state(state.into());
    }
    if let Some(queue) = queue {
        listing = listing.queue(queue);
    }
    if let Some(job_type) = job_type {
        listing = listing.job_type(job_type);
    }
    if !arguments.oldest {
        listing = listing.newest_first();
    }
    if let Some(text) = &arguments.search {
        listing = listing.search(text);
    }
    Ok(match arguments.from {
        Some(next) => listing.from(next),
        None => listing,
    })
}

fn text(jobs: &[api::Job]) -> String {
    let heading = ["ID", "TYPE", "QUEUE", "STATE", "ATTEMPT", "SUBMITTED"].map(str::to_owned);
    let rows = jobs.iter().map(|job| {
        [
            job.id.to_string(),
            job.job_type.to_string(),
            job.queue.to_string(),
            job.state.to_string(),
            format!("{}/{}", job.attempt, job.max_attempts),
            times::age(Wall(job.created_at)),
        ]
    });
    let rows: Vec<[String; 6]> = std::iter::once(heading).chain(rows).collect();
    if jobs.iter().all(|job| job.error.is_none()) {
        return table(&rows);
    }
    let errors = jobs.iter().map(|job| job.error.as_deref());
    let errors = errors.map(|error| error.map_or_else(String::new, last_line));
    let errors = std::iter::once("LAST ERROR".to_owned()).chain(errors);
    let rows = rows.into_iter().zip(errors).map(|(row, error)| {
        let [id, job_type, queue, state, attempt, submitted] = row;
        [id, job_type, queue, state, attempt, submitted, error]
    });
    table(&rows.collect::<Vec<_>>())
}
