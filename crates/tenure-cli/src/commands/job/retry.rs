//! `tenure job retry`: run dead or cancelled jobs again.

use std::process::ExitCode;

use tenure_client::JobId;
use tenure_client::api::{Retried, RetriedStatus, RetryRequest};

use crate::EXIT_NO;
use crate::args::Retry;
use crate::commands::at_server::{ask, document, write};
use crate::output::{self, table};

pub(crate) async fn run(arguments: Retry) -> anyhow::Result<ExitCode> {
    let request = request(&arguments)?;
    ask(&arguments.server, async |client| {
        let answer = client.retry_all(&request).await?;
        let rows: Vec<[String; 2]> = answer
            .jobs
            .iter()
            .map(|one| [one.id.to_string(), status(one)])
            .collect();
        write(&if arguments.json {
            document(&answer)?
        } else {
            table(&rows)
        })?;
        if answer.jobs.is_empty() {
            output::note("no jobs match");
        }
        let all = |one: &Retried| one.status == RetriedStatus::Retried;
        Ok(if answer.jobs.iter().all(all) {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_NO)
        })
    })
    .await
}

fn request(arguments: &Retry) -> anyhow::Result<RetryRequest> {
    let Some(state) = arguments.filter.state else {
        let ids = arguments.ids.iter().map(JobId::new);
        return Ok(RetryRequest {
            ids: Some(ids.collect::<Result<_, _>>()?),
            ..RetryRequest::default()
        });
    };
    let (queue, job_type) = arguments.filter.names()?;
    Ok(RetryRequest {
        ids: None,
        state: Some(state.into()),
        queue,
        job_type,
        limit: arguments.limit,
    })
}

fn status(one: &Retried) -> String {
    match (one.status, &one.existing) {
        (RetriedStatus::Retried, _) => "runs again".to_owned(),
        (RetriedStatus::NotFound, _) => "refused: there is no such job".to_owned(),
        (RetriedStatus::State, _) => "refused: it is ready, running or completed".to_owned(),
        (RetriedStatus::UniqueKey, Some(existing)) => {
            format!("refused: {existing} has the same unique key")
        }
        (RetriedStatus::UniqueKey, None) => "refused: its unique key is taken".to_owned(),
    }
}
