//! `tenure daemons`: which node runs which shard. Reads only.

use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;
use tenure::cluster::{AssignmentState, Count, DaemonStatus, RunState, ShardStatus};

use crate::args::Daemons;
use crate::output::{self, Data, printable, table};
use crate::{EXIT_NO, times};

pub(crate) async fn run(arguments: Daemons) -> anyhow::Result<ExitCode> {
    super::interruptible(daemons(arguments)).await
}

async fn daemons(arguments: Daemons) -> anyhow::Result<ExitCode> {
    if let Some(server) = arguments.broker.named() {
        return super::remote::daemons(server, arguments.json).await;
    }
    let opened = super::open(&arguments.place).await?;
    let daemons = opened.view.daemons().await?;
    let namespace = &arguments.place.namespace;
    if daemons.is_empty() {
        output::note(&format!(
            "there are no daemons in the namespace {namespace}"
        ));
    }
    let mut data = Data::new();
    data.write(&if arguments.json {
        json(namespace, &daemons)?
    } else {
        text(&daemons)
    });
    data.finish().context("cannot write the daemons")?;
    let mut shards = daemons.iter().flat_map(|daemon| &daemon.shards);
    let all_run = shards.all(|shard| state(shard) == "running");
    Ok(if all_run && !daemons.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO)
    })
}

fn text(daemons: &[DaemonStatus]) -> String {
    if daemons.is_empty() {
        return String::new();
    }
    let heading = ["SHARD", "NODE", "GENERATION", "STATE", "SINCE"];
    let mut rows = vec![heading.map(str::to_owned)];
    for daemon in daemons {
        for (index, shard) in daemon.shards.iter().enumerate() {
            let name = format!("{}/{index}", daemon.id);
            rows.push(match &shard.assigned {
                None => [
                    name,
                    "-".into(),
                    "-".into(),
                    shown(state(shard), error(shard), failures(shard)),
                    "-".into(),
                ],
                Some((node, assignment)) => [
                    name,
                    node.to_string(),
                    assignment.generation.to_string(),
                    shown(state(shard), error(shard), failures(shard)),
                    times::rfc3339(assignment.since),
                ],
            });
        }
    }
    table(&rows)
}

/// The state of a shard: as its node reports it, or without a report, as the leader wants it.
fn state(shard: &ShardStatus) -> &'static str {
    let Some((_, assignment)) = &shard.assigned else {
        return if shard.is_failing() {
            "failing"
        } else {
            "unassigned"
        };
    };
    // Its node is gone, so there is no report, and the last one is out of date.
    if !shard.has_node {
        return "lost";
    }
    if shard.stuck.is_some() {
        return "stuck";
    }
    match (&shard.reported, assignment.state) {
        // It is restarted again and again: it may run at this moment, but "running" would mislead.
        (Some(RunState::Failed { .. } | RunState::Running | RunState::Starting) | None, state)
            if shard.is_failing() && state != AssignmentState::Revoking =>
        {
            "failing"
        }
        (Some(RunState::Failed { .. }), _) => "failed",
        (Some(RunState::Stopped), _) => "stopped",
        (Some(RunState::Draining), _) | (_, AssignmentState::Revoking) => "draining",
        (Some(RunState::Running), _) => "running",
        (Some(RunState::Starting), _) => "starting",
        (None, AssignmentState::Assigning | AssignmentState::Active) => "assigned",
    }
}

fn error(shard: &ShardStatus) -> Option<&str> {
    match (&shard.stuck, &shard.reported) {
        _ if !shard.has_node && shard.assigned.is_some() => None,
        (Some(error), _) | (None, Some(RunState::Failed { error })) => Some(error),
        _ => {
            let failure = shard.failure.as_ref().filter(|_| shard.is_failing());
            failure.map(|failure| failure.error.as_str())
        }
    }
}

/// How often it has failed since it last ran for a minute.
fn failures(shard: &ShardStatus) -> u32 {
    shard.failure.as_ref().map_or(0, |failure| failure.count)
}

/// A state, with the error and the number of failures.
pub(super) fn shown(state: &str, error: Option<&str>, failures: u32) -> String {
    match error {
        Some(error) if failures > 1 => {
            format!(
                "{}, {failures} times: {}",
                printable(state),
                printable(error)
            )
        }
        Some(error) => format!("{}: {}", printable(state), printable(error)),
        None => printable(state),
    }
}

fn json(namespace: &str, daemons: &[DaemonStatus]) -> serde_json::Result<String> {
    let document = Document {
        namespace,
        daemons: daemons.iter().map(DaemonDocument::of).collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    namespace: &'a str,
    daemons: Vec<DaemonDocument<'a>>,
}

/// Fields are only ever added.
#[derive(Debug, Serialize)]
struct DaemonDocument<'a> {
    daemon: &'a str,
    /// `shards` or `replicas`.
    kind: &'static str,
    count: u32,
    weight: u32,
    shards: Vec<ShardDocument<'a>>,
}

#[derive(Debug, Serialize)]
struct ShardDocument<'a> {
    shard: usize,
    /// `unassigned`, `assigned`, `starting`, `running`, `draining`, `stuck`, `stopped`, `failed`, `failing`
    /// (more than once, and it has not run for a minute since) or `lost`.
    state: &'static str,
    node: Option<&'a str>,
    generation: Option<u64>,
    since: Option<String>,
    error: Option<&'a str>,
    /// How often it has failed since it last ran for a minute.
    failures: u32,
}

impl<'a> DaemonDocument<'a> {
    fn of(daemon: &'a DaemonStatus) -> Self {
        let (kind, count) = match daemon.definition.count {
            Count::Shards(count) => ("shards", count),
            Count::Replicas(count) => ("replicas", count),
        };
        let shards = daemon.shards.iter().enumerate();
        let shards = shards.map(|(number, shard)| {
            let assigned = shard.assigned.as_ref();
            ShardDocument {
                shard: number,
                state: state(shard),
                node: assigned.map(|(node, _)| node.as_str()),
                generation: assigned.map(|(_, assignment)| assignment.generation.0),
                since: assigned.map(|(_, assignment)| times::rfc3339(assignment.since)),
                error: error(shard),
                failures: failures(shard),
            }
        });
        Self {
            daemon: daemon.id.as_str(),
            kind,
            count,
            weight: daemon.definition.weight,
            shards: shards.collect(),
        }
    }
}
