//! `tenure nodes`: the nodes, and how much each has to do. Reads only.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;
use tenure::cluster::NodeStatus;
use tenure::core::ElectionName;

use crate::args::Nodes;
use crate::output::{self, Data, printable, table};
use crate::{EXIT_NO, times};

pub(crate) async fn run(arguments: Nodes) -> anyhow::Result<ExitCode> {
    super::interruptible(nodes(arguments)).await
}

async fn nodes(arguments: Nodes) -> anyhow::Result<ExitCode> {
    if let Some(server) = arguments.broker.named() {
        return super::remote::nodes(server, arguments.json).await;
    }
    let opened = super::open(&arguments.place).await?;
    let nodes = opened.view.nodes().await?;
    let namespace = &arguments.place.namespace;
    if nodes.is_empty() {
        output::note(&format!("there are no nodes in the namespace {namespace}"));
    }
    let mut data = Data::new();
    data.write(&if arguments.json {
        json(namespace, &nodes)?
    } else {
        text(&nodes)
    });
    data.finish().context("cannot write the nodes")?;
    let all_well = nodes.iter().all(|node| node.is_heard_of);
    Ok(if all_well && !nodes.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO)
    })
}

fn text(nodes: &[NodeStatus]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let heading = [
        "NODE", "STATE", "SHARDS", "LOAD", "SINCE", "VERSION", "ADDRESS", "LABELS",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(nodes.iter().map(|node| {
        let member = &node.member;
        let load = match member.capacity {
            Some(capacity) => format!("{}/{capacity}", node.load),
            None => node.load.to_string(),
        };
        let labels = member.labels.iter();
        let labels: Vec<_> = labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let shown = |text: &Option<String>| match text {
            Some(text) => printable(text),
            None => "-".to_owned(),
        };
        [
            member.node.to_string(),
            state(node),
            node.shards.to_string(),
            load,
            times::rfc3339(member.joined_at),
            shown(&member.version),
            shown(&member.address),
            printable(&labels.join(" ")),
        ]
    }));
    table(&rows)
}

/// The state of a node, in as few words as possible.
fn state(node: &NodeStatus) -> String {
    let state = match node {
        it if !it.is_heard_of => "silent",
        it if it.is_going => "leaving",
        it if it.drained.is_some() && it.shards > 0 => "draining",
        it if it.drained.is_some() => "drained",
        _ => "alive",
    };
    let led: Vec<&str> = led(node)
        .filter_map(|election| election.strip_prefix(ElectionName::RESERVED))
        .collect();
    if led.is_empty() {
        state.to_owned()
    } else {
        format!("{state}, leads {}", led.join(" and "))
    }
}

/// The product's own elections that it leads.
fn led(node: &NodeStatus) -> impl Iterator<Item = &str> {
    node.leads.iter().map(ElectionName::as_str)
}

fn json(namespace: &str, nodes: &[NodeStatus]) -> serde_json::Result<String> {
    let document = Document {
        namespace,
        nodes: nodes.iter().map(NodeDocument::of).collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    namespace: &'a str,
    nodes: Vec<NodeDocument<'a>>,
}

/// Fields are only ever added.
#[derive(Debug, Serialize)]
struct NodeDocument<'a> {
    node: &'a str,
    incarnation: String,
    /// Whether it was heard from within its ttl.
    live: bool,
    /// Whether it leads one of the product's own elections.
    leads: bool,
    /// The elections that it leads: `tenure.queue` if it serves the queue, `tenure.cluster` if it assigns the
    /// daemons.
    elections: Vec<&'a str>,
    going: bool,
    drained: Option<DrainedDocument<'a>>,
    shards: usize,
    load: u64,
    capacity: Option<u32>,
    since: String,
    version: Option<&'a str>,
    address: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct DrainedDocument<'a> {
    by: &'a str,
    since: String,
}

impl<'a> NodeDocument<'a> {
    fn of(node: &'a NodeStatus) -> Self {
        let member = &node.member;
        Self {
            node: member.node.as_str(),
            incarnation: member.incarnation.to_string(),
            live: node.is_heard_of,
            leads: !node.leads.is_empty(),
            elections: led(node).collect(),
            going: node.is_going,
            drained: node.drained.as_ref().map(|drained| DrainedDocument {
                by: &drained.by,
                since: times::rfc3339(drained.since),
            }),
            shards: node.shards,
            load: node.load,
            capacity: member.capacity,
            since: times::rfc3339(member.joined_at),
            version: member.version.as_deref(),
            address: member.address.as_deref(),
            labels: &member.labels,
        }
    }
}
