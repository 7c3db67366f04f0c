//! `tenure plan`: what the leader would do now, and why. Reads only.

use std::process::ExitCode;

use tenure::core::Namespace;
use tenure_client::{Error, api};

use super::at_server::{ask, document, write};
use crate::EXIT_NO;
use crate::args::{AtServer, InNamespace, Plan};
use crate::output::{self, Hinted, printable};

pub(crate) async fn run(arguments: Plan) -> anyhow::Result<ExitCode> {
    let Plan {
        place,
        broker,
        json,
    } = arguments;
    match broker.named() {
        Some(server) => by_broker(server, json).await,
        None => super::interruptible(by_store(&place, json)).await,
    }
}

async fn by_store(place: &InNamespace, is_json: bool) -> anyhow::Result<ExitCode> {
    let opened = super::open(place).await?;
    let decisions = opened.view.plan().await?;
    let plan = api::Plan {
        namespace: Namespace::new(&place.namespace)?,
        decisions: decisions.iter().map(api::Decision::from).collect(),
    };
    tell(&plan, is_json)
}

async fn by_broker(server: AtServer, is_json: bool) -> anyhow::Result<ExitCode> {
    ask(&server, async |client| match client.plan().await {
        Ok(plan) => tell(&plan, is_json),
        // Not exit code 1, which would mean that there is something to do.
        Err(Error::NotFound(_)) => Err(Hinted::new(
            "this broker runs an older version, which cannot show the plan",
            "upgrade it, or name the store with --store",
        )
        .into()),
        Err(error) => Err(error.into()),
    })
    .await
}

fn tell(plan: &api::Plan, is_json: bool) -> anyhow::Result<ExitCode> {
    write(&if is_json {
        document(plan)?
    } else {
        plan.decisions.iter().map(line).collect()
    })?;
    if !plan.decisions.is_empty() {
        return Ok(ExitCode::from(EXIT_NO));
    }
    if !is_json {
        output::note("nothing to do");
    }
    Ok(ExitCode::SUCCESS)
}

/// The reason may contain an error message of a daemon.
fn line(decision: &api::Decision) -> String {
    printable(&decision.text) + "\n"
}
