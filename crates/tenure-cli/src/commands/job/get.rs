//! `tenure job get`: everything about one job.

use std::process::ExitCode;

use tenure_client::JobId;

use crate::args::Get;
use crate::commands::at_server::{ask, document, write};
use crate::commands::timed::WithTimes;

pub(crate) async fn run(arguments: Get) -> anyhow::Result<ExitCode> {
    let id = JobId::new(&arguments.id)?;
    ask(&arguments.server, async |client| {
        let job = client.job(&id).await?;
        write(&if arguments.json {
            document(&WithTimes::of(&job))?
        } else {
            super::text(&job)
        })?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}
