//! `tenure job move`: put jobs into another queue, a thousand in a call.

use std::process::ExitCode;

use anyhow::Context as _;
use tenure_client::api::{Moved, MovedStatus};
use tenure_client::{JobId, QueueName};

use crate::EXIT_NO;
use crate::args::Move;
use crate::commands::at_server::{ask, document, write};
use crate::output::table;

/// The most jobs that a broker moves in one call.
const CALL_MAX: usize = 1_000;

pub(crate) async fn run(arguments: Move) -> anyhow::Result<ExitCode> {
    let queue = QueueName::new(&arguments.queue)?;
    let jobs = arguments.jobs;
    let ids = jobs
        .ids
        .iter()
        .map(JobId::new)
        .collect::<Result<Vec<_>, _>>()?;
    ask(&jobs.server, async |client| {
        let mut answer = client
            .move_to(&ids[..ids.len().min(CALL_MAX)], &queue)
            .await?;
        for more in ids.chunks(CALL_MAX).skip(1) {
            let moved = client.move_to(more, &queue).await;
            // What was moved is moved; moving it again does no harm.
            let moved =
                moved.with_context(|| format!("{} were looked at before", answer.jobs.len()))?;
            answer.jobs.extend(moved.jobs);
        }
        let rows: Vec<[String; 2]> = answer
            .jobs
            .iter()
            .map(|one| [one.id.to_string(), status(one, &queue)])
            .collect();
        write(&if jobs.json {
            document(&answer)?
        } else {
            table(&rows)
        })?;
        let all = |one: &Moved| one.status == MovedStatus::Moved;
        Ok(if answer.jobs.iter().all(all) {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_NO)
        })
    })
    .await
}

fn status(one: &Moved, queue: &QueueName) -> String {
    match (one.status, &one.existing) {
        (MovedStatus::Moved, _) => format!("in {queue}"),
        (MovedStatus::NotFound, _) => "refused: there is no such job".to_owned(),
        (MovedStatus::State, _) => "refused: it is running or completed".to_owned(),
        (MovedStatus::UniqueKey, Some(existing)) => {
            format!("refused: {existing} in {queue} has the same unique key")
        }
        (MovedStatus::UniqueKey, None) => {
            format!("refused: its unique key is taken in {queue}")
        }
    }
}
