//! `tenure job cancel`: one call per job, since each has its own answer.

use std::process::ExitCode;

use serde::Serialize;
use tenure_client::{Client, Error, JobId, State, api};

use crate::EXIT_NO;
use crate::args::Cancel;
use crate::commands::at_server::{ask, document, write};
use crate::output::{printable, table};

pub(crate) async fn run(arguments: Cancel) -> anyhow::Result<ExitCode> {
    let ids = arguments
        .ids
        .iter()
        .map(JobId::new)
        .collect::<Result<Vec<JobId>, _>>()?;
    ask(&arguments.server, async |client| {
        let changed = each(&client, &ids).await?;
        let is_refused = changed.iter().any(|one| one.status == "refused");
        write(&if arguments.json {
            document(&Document { jobs: &changed })?
        } else {
            table(&changed.iter().map(Changed::row).collect::<Vec<_>>())
        })?;
        Ok(if is_refused {
            ExitCode::from(EXIT_NO)
        } else {
            ExitCode::SUCCESS
        })
    })
    .await
}

async fn each(client: &Client, ids: &[JobId]) -> Result<Vec<Changed>, Error> {
    let mut changed = Vec::new();
    for id in ids {
        changed.push(match client.cancel(id).await {
            Ok(job) => Changed::of(&job),
            Err(error @ (Error::NotFound(_) | Error::State(_))) => Changed {
                id: id.clone(),
                status: "refused",
                why: Some(error.to_string()),
            },
            Err(error) => return Err(error),
        });
    }
    Ok(changed)
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    jobs: &'a [Changed],
}

/// Fields are only ever added.
#[derive(Debug, Serialize)]
struct Changed {
    id: JobId,
    /// `cancelled`, `requested` or `refused`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Changed {
    fn of(job: &api::Job) -> Self {
        Self {
            id: job.id.clone(),
            status: match job.state {
                State::Cancelled => "cancelled",
                _ => "requested",
            },
            why: None,
        }
    }

    fn row(&self) -> [String; 2] {
        let said = match (&self.why, self.status) {
            (Some(why), _) => format!("refused: {}", printable(why)),
            (None, "requested") => "cancellation requested; its worker will stop it".to_owned(),
            (None, status) => status.to_owned(),
        };
        [self.id.to_string(), said]
    }
}
