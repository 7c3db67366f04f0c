//! `tenure job cancel` and `tenure job delete`: one call per job, since each has its own answer.

use std::process::ExitCode;

use serde::Serialize;
use tenure_client::{Client, Error, JobId, State};

use crate::EXIT_NO;
use crate::args::{Cancel, Delete, NamedJobs};
use crate::commands::at_server::{ask, document, write};
use crate::output::{printable, table};

pub(crate) async fn run(arguments: Cancel) -> anyhow::Result<ExitCode> {
    let cancel = async |client: &Client, id: &JobId| {
        let job = client.cancel(id).await?;
        Ok(match job.state {
            State::Cancelled => "cancelled",
            _ => "requested",
        })
    };
    each(arguments.jobs, cancel).await
}

/// `tenure job delete`
pub(crate) async fn delete(arguments: Delete) -> anyhow::Result<ExitCode> {
    let delete = async |client: &Client, id: &JobId| {
        client.forget(id).await?;
        Ok("deleted")
    };
    each(arguments.jobs, delete).await
}

/// Changes one job after the other, and prints each result: a word for its status, or why it was refused.
async fn each(
    arguments: NamedJobs,
    change: impl AsyncFn(&Client, &JobId) -> Result<&'static str, Error>,
) -> anyhow::Result<ExitCode> {
    let ids = arguments
        .ids
        .iter()
        .map(JobId::new)
        .collect::<Result<Vec<JobId>, _>>()?;
    ask(&arguments.server, async |client| {
        let mut changed = Vec::new();
        for id in &ids {
            let (status, why) = match change(&client, id).await {
                Ok(status) => (status, None),
                Err(error @ (Error::NotFound(_) | Error::State(_))) => {
                    ("refused", Some(error.to_string()))
                }
                Err(error) => return Err(error.into()),
            };
            let id = id.clone();
            changed.push(Changed { id, status, why });
        }
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

#[derive(Debug, Serialize)]
struct Document<'a> {
    jobs: &'a [Changed],
}

/// Fields are only ever added.
#[derive(Debug, Serialize)]
struct Changed {
    id: JobId,
    /// `cancelled`, `requested`, `deleted` or `refused`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Changed {
    fn row(&self) -> [String; 2] {
        let said = match (&self.why, self.status) {
            (Some(why), _) => format!("refused: {}", printable(why)),
            (None, "requested") => "cancellation requested; its worker will stop it".to_owned(),
            (None, status) => status.to_owned(),
        };
        [self.id.to_string(), said]
    }
}
