//! `tenure plan`: what the leader would do now, and why. Reads only.

use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;
use tenure::cluster::Decision;

use crate::EXIT_NO;
use crate::args::Plan;
use crate::output::{self, Data, printable};

pub(crate) async fn run(arguments: Plan) -> anyhow::Result<ExitCode> {
    super::interruptible(plan(arguments)).await
}

async fn plan(arguments: Plan) -> anyhow::Result<ExitCode> {
    let opened = super::open(&arguments.place).await?;
    let plan = opened.view.plan().await?;
    let mut data = Data::new();
    data.write(&if arguments.json {
        json(&arguments.place.namespace, &plan)?
    } else {
        plan.iter().map(line).collect()
    });
    data.finish().context("cannot write the plan")?;
    if plan.is_empty() && !arguments.json {
        output::note("nothing to do");
    }
    Ok(if plan.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO)
    })
}

/// The reason may be an error in a daemon's own words.
fn line(decision: &Decision) -> String {
    printable(&decision.to_string()) + "\n"
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    namespace: &'a str,
    decisions: Vec<DecisionDocument<'a>>,
}

/// Fields are only ever added.
#[derive(Debug, Serialize)]
struct DecisionDocument<'a> {
    /// `define`, `forget`, `assign`, `activate`, `revoke`, `free` or `wait`.
    decision: &'static str,
    daemon: &'a str,
    shard: Option<u32>,
    /// Where to, or where from.
    node: Option<&'a str>,
    generation: Option<u64>,
    reason: Option<String>,
    /// All of it, for people.
    text: String,
}

fn json(namespace: &str, plan: &[Decision]) -> serde_json::Result<String> {
    let document = Document {
        namespace,
        decisions: plan.iter().map(DecisionDocument::of).collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

impl<'a> DecisionDocument<'a> {
    fn of(of: &'a Decision) -> Self {
        let (decision, node, generation, reason) = match of {
            Decision::Define { .. } => ("define", None, None, None),
            Decision::Forget { .. } => ("forget", None, None, None),
            Decision::Assign {
                generation,
                to,
                reason,
                ..
            } => ("assign", Some(&to.node), Some(generation.0), Some(reason)),
            Decision::Activate { on, .. } => ("activate", Some(on), None, None),
            Decision::Revoke { from, reason, .. } => ("revoke", Some(from), None, Some(reason)),
            Decision::Free { from, reason, .. } => ("free", Some(&from.node), None, Some(reason)),
            Decision::Wait { reason, .. } => ("wait", None, None, Some(reason)),
        };
        let (daemon, shard) = match of {
            Decision::Define { daemon, .. } | Decision::Forget { daemon } => (daemon, None),
            Decision::Assign { shard, .. }
            | Decision::Activate { shard, .. }
            | Decision::Revoke { shard, .. }
            | Decision::Free { shard, .. }
            | Decision::Wait { shard, .. } => (&shard.daemon, Some(shard.index)),
        };
        Self {
            decision,
            daemon: daemon.as_str(),
            shard,
            node: node.map(tenure::core::NodeId::as_str),
            generation,
            reason: reason.map(ToString::to_string),
            text: of.to_string(),
        }
    }
}
