//! `tenure drain` and `tenure undrain`: keeps a node free of daemons, or lets it be given some again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::NamespaceView;
use tenure::core::NodeId;
use tokio::time::{sleep, timeout};

use crate::args::{Drain, Undrain};
use crate::output::{self, Data};
use crate::{EXIT_NO, times};

/// How often to look whether the node is free.
const POLL: Duration = Duration::from_millis(500);

/// Fields are only ever added.
#[derive(Debug, Serialize)]
struct Now<'a> {
    node: &'a str,
    /// `drained`, `asked` (nobody waited for it), `not_yet` or `undrained`.
    outcome: &'a str,
    /// How many shards are still assigned to it.
    shards: usize,
}

pub(crate) async fn drain(arguments: Drain) -> anyhow::Result<ExitCode> {
    super::interruptible(drain_and_wait(arguments)).await
}

async fn drain_and_wait(arguments: Drain) -> anyhow::Result<ExitCode> {
    let node = NodeId::new(&arguments.to_drain)?;
    let by = super::node(arguments.node.node)?;
    let opened = super::open(&arguments.place).await?;
    if !arguments.absent && shards_of(&opened.view, &node).await?.is_none() {
        output::error(&anyhow::anyhow!("there is no node {node}"));
        output::hint("`tenure nodes` shows the nodes; with --absent it is drained before it joins");
        return Ok(ExitCode::from(EXIT_NO));
    }
    opened.view.drain(&node, by.as_str()).await?;
    let Some(mut shards) = shards_of(&opened.view, &node).await? else {
        output::note(&format!(
            "there is no node {node} now; when it joins it gets no shards"
        ));
        return tell(&node, "drained", 0, arguments.json);
    };
    if arguments.wait.is_zero() {
        return tell(&node, "asked", shards, arguments.json);
    }
    let freed = async {
        while shards > 0 {
            sleep(POLL).await;
            shards = shards_of(&opened.view, &node).await?.unwrap_or_default();
        }
        anyhow::Ok(())
    };
    match timeout(arguments.wait, freed).await {
        Ok(freed) => {
            freed?;
            tell(&node, "drained", 0, arguments.json)
        }
        Err(_) => {
            tell(&node, "not_yet", shards, arguments.json)?;
            let waited = times::duration(arguments.wait);
            output::warning(&format!("{node} still runs shards after {waited}"));
            output::hint("the request stays in effect; `tenure plan` shows what it waits for");
            Ok(ExitCode::from(EXIT_NO))
        }
    }
}

pub(crate) async fn undrain(arguments: Undrain) -> anyhow::Result<ExitCode> {
    let undrain = async {
        let node = NodeId::new(&arguments.drained)?;
        let opened = super::open(&arguments.place).await?;
        if opened.view.undrain(&node).await? == tenure::cluster::Drain::Already {
            output::note(&format!("{node} was not drained"));
        }
        let shards = shards_of(&opened.view, &node).await?;
        tell(
            &node,
            "undrained",
            shards.unwrap_or_default(),
            arguments.json,
        )
    };
    super::interruptible(undrain).await
}

/// How many shards are assigned to a node; `None` if it is not there.
async fn shards_of(view: &NamespaceView, node: &NodeId) -> Result<Option<usize>, tenure::Error> {
    let nodes = view.nodes().await?;
    let mut of_node = nodes.iter().filter(|it| it.member.node == *node).peekable();
    if of_node.peek().is_none() {
        return Ok(None);
    }
    Ok(Some(of_node.map(|it| it.shards).sum()))
}

fn tell(node: &NodeId, outcome: &str, shards: usize, json: bool) -> anyhow::Result<ExitCode> {
    let mut data = Data::new();
    data.write(&if json {
        let now = Now {
            node: node.as_str(),
            outcome,
            shards,
        };
        serde_json::to_string_pretty(&now)? + "\n"
    } else {
        match outcome {
            "drained" => format!("{node} is drained\n"),
            "undrained" => format!("{node} may run shards again\n"),
            "asked" => format!("{node} was asked to drain, {}\n", left(shards)),
            _ => format!("{node} is being drained, {}\n", left(shards)),
        }
    });
    data.finish().context("cannot write the answer")?;
    Ok(ExitCode::SUCCESS)
}

fn left(shards: usize) -> String {
    let are = if shards == 1 { "is" } else { "are" };
    format!("{} {are} left", output::counted(shards, "shard"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_is_left_and_two_are() {
        assert_eq!(left(1), "1 shard is left");
        assert_eq!(left(2), "2 shards are left");
    }
}
