//! `tenure drain` and `tenure undrain`: keeps a node free of daemons, or allows them there again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::NamespaceView;
use tenure::core::NodeId;
use tenure_client::Client;
use tokio::time::{sleep, timeout};

use super::at_server;
use crate::args::{Drain, InNamespace, OrServer, Undrain};
use crate::output::{self, Data};
use crate::{EXIT_NO, times};

/// How often to check whether the node is free.
const POLL: Duration = Duration::from_millis(500);

/// Fields are only ever added.
#[derive(Debug, Serialize)]
struct Now<'a> {
    node: &'a str,
    /// `drained`, `asked` (the caller did not wait), `not_yet` or `undrained`.
    outcome: &'a str,
    /// How many shards are still assigned to it.
    shards: usize,
}

pub(crate) async fn drain(arguments: Drain) -> anyhow::Result<ExitCode> {
    super::interruptible(at_server::no_is_an_answer(drain_and_wait(arguments))).await
}

async fn drain_and_wait(arguments: Drain) -> anyhow::Result<ExitCode> {
    let node = NodeId::new(&arguments.to_drain)?;
    let by = super::node(arguments.node.node)?;
    let cluster = Cluster::open(&arguments.place, arguments.broker).await?;
    if !arguments.absent && cluster.shards_of(&node).await?.is_none() {
        output::error(&anyhow::anyhow!("there is no node {node}"));
        output::hint("`tenure nodes` shows the nodes; with --absent it is drained before it joins");
        return Ok(ExitCode::from(EXIT_NO));
    }
    cluster.drain(&node, &by).await?;
    let Some(mut shards) = cluster.shards_of(&node).await? else {
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
            shards = cluster.shards_of(&node).await?.unwrap_or_default();
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
        let cluster = Cluster::open(&arguments.place, arguments.broker).await?;
        if !cluster.undrain(&node).await? {
            output::note(&format!("{node} was not drained"));
        }
        let shards = cluster.shards_of(&node).await?;
        tell(
            &node,
            "undrained",
            shards.unwrap_or_default(),
            arguments.json,
        )
    };
    super::interruptible(at_server::no_is_an_answer(undrain)).await
}

/// Where drains are requested and read: in the store, or at a broker.
enum Cluster {
    Stored(Box<NamespaceView>),
    Served(Client),
}

impl Cluster {
    async fn open(place: &InNamespace, broker: OrServer) -> anyhow::Result<Self> {
        Ok(match broker.named() {
            Some(server) => Self::Served(at_server::client(&server).await?),
            None => Self::Stored(Box::new(super::open(place).await?.view)),
        })
    }

    async fn drain(&self, node: &NodeId, by: &NodeId) -> anyhow::Result<()> {
        match self {
            Self::Stored(view) => view.drain(node, by.as_str()).await.map(drop)?,
            Self::Served(client) => client.drain_node(node).await?,
        }
        Ok(())
    }

    /// Whether it was drained before.
    async fn undrain(&self, node: &NodeId) -> anyhow::Result<bool> {
        match self {
            Self::Stored(view) => Ok(view.undrain(node).await? != tenure::cluster::Drain::Already),
            Self::Served(client) => {
                let nodes = client.cluster().await?.nodes;
                client.undrain_node(node).await?;
                // A node that is not there may be drained as well.
                let mut named = nodes.iter().filter(|it| it.node == *node).peekable();
                Ok(named.peek().is_none() || named.any(|it| it.drained))
            }
        }
    }

    /// How many shards are assigned to a node; `None` if it is not there.
    async fn shards_of(&self, node: &NodeId) -> anyhow::Result<Option<usize>> {
        match self {
            Self::Stored(view) => Ok(shards_of(view, node).await?),
            Self::Served(client) => {
                let cluster = client.cluster().await?;
                let mut nodes = cluster.nodes.iter();
                if !nodes.any(|it| it.node == *node && it.state == "alive") {
                    return Ok(None);
                }
                let shards = cluster.daemons.iter().flat_map(|daemon| &daemon.shards);
                Ok(Some(
                    shards.filter(|it| it.node.as_ref() == Some(node)).count(),
                ))
            }
        }
    }
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
