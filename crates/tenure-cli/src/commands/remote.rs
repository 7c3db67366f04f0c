//! `status`, `history`, `nodes` and `daemons` through a broker, for users who may not read the store.
//!
//! The output is the same as with `--store`, as far as the HTTP interface has the data. It does not show which nodes
//! are silent: a node counts as alive until it is evicted. And it has the past terms of the queue's election only.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::core::{ElectionName, Wall};
use tenure_client::{Client, api};

use super::at_server::{ask, document, write};
use super::history::Line;
use crate::EXIT_NO;
use crate::args::AtServer;
use crate::output::{self, printable, table};
use crate::times::{self, rfc3339};

/// An election, as a broker reports it.
struct ElectionStatus {
    name: ElectionName,
    now: api::Election,
    /// The holder of the lease, dead or alive.
    holder: Option<api::Leader>,
    history: Vec<api::PastTerm>,
}

pub(super) async fn status(
    server: AtServer,
    named: Option<ElectionName>,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    ask(&server, async |client| {
        let cluster = client.cluster().await?;
        let names = match named {
            Some(name) => vec![name],
            None => cluster.elections.iter().map(|it| it.name.clone()).collect(),
        };
        let mut elections = Vec::new();
        for name in names {
            elections.push(told(&client, &cluster, name).await?);
        }
        let namespace = &cluster.namespace;
        if elections.is_empty() {
            output::note(&format!(
                "there are no elections in the namespace {namespace}"
            ));
        }
        write(&if is_json {
            let elections: Vec<Value> = elections.iter().map(ElectionStatus::json).collect();
            document(&json!({ "namespace": namespace, "elections": elections }))?
        } else {
            let texts: Vec<String> = elections.iter().map(ElectionStatus::text).collect();
            texts.join("\n")
        })?;
        let all_led = elections.iter().all(|told| told.now.leader.is_some());
        Ok(yes_if(all_led && !elections.is_empty()))
    })
    .await
}

async fn told(
    client: &Client,
    cluster: &api::Cluster,
    name: ElectionName,
) -> anyhow::Result<ElectionStatus> {
    let now = client.election(&name).await?;
    let known = cluster.elections.iter().find(|it| it.name == name);
    Ok(ElectionStatus {
        holder: known.and_then(|it| it.leader.clone()),
        history: if name.is_of_queue() {
            cluster.history.clone()
        } else {
            Vec::new()
        },
        name,
        now,
    })
}

impl ElectionStatus {
    fn state(&self) -> &'static str {
        match (&self.now.leader, &self.holder) {
            (Some(_), _) => "held",
            (None, Some(_)) => "expired",
            (None, None) if self.now.reserved_for.is_some() => "reserved",
            (None, None) if self.now.term.is_none() => "missing",
            (None, None) => "vacant",
        }
    }

    fn leader(&self) -> String {
        let term = self.now.term.unwrap_or_default();
        let holder = self.now.leader.as_ref().or(self.holder.as_ref());
        match (self.state(), holder, &self.now.reserved_for) {
            ("held", Some(leader), _) => format!("{}, term {}", leader.node, leader.term),
            ("expired", Some(leader), _) => format!(
                "{}, term {}, not heard from for its ttl: the next candidate replaces it",
                leader.node, leader.term
            ),
            (_, _, Some(candidate)) => {
                let left = self.now.reserved_for_ms.map_or(String::new(), |left| {
                    format!(", for up to {} more", milliseconds(left))
                });
                format!("nobody since term {term}, reserved for {candidate}{left}")
            }
            ("missing", ..) => "nobody yet".to_owned(),
            _ => format!("nobody since term {term}"),
        }
    }

    /// Describes a request to the leader.
    fn request(&self, request: &api::LeaderRequest) -> String {
        let leader = self.now.leader.as_ref();
        let leader = leader.and_then(|leader| leader.incarnation);
        let by = &request.by;
        let asked = match (&request.kind, &request.to) {
            (api::LeaderRequestKind::Resign, _) => format!("{by} asked it to resign"),
            _ if leader.is_some() && request.to_incarnation == leader => {
                return format!("{by} asked it to keep leading");
            }
            (_, Some(to)) => format!("{by} asked it to hand over to {to}"),
            (_, None) => format!("{by} asked it to hand over"),
        };
        match request.lapses_in_ms {
            _ if !request.lapses => asked,
            None => format!("{asked}; its lease lapses a ttl after that"),
            Some(0) => format!("{asked}; its lease has lapsed"),
            Some(left) => format!("{asked}; its lease lapses in {}", milliseconds(left)),
        }
    }

    fn text(&self) -> String {
        let named = match self.name.purpose() {
            Some(purpose) => format!("{}, {purpose}", self.name),
            None => self.name.to_string(),
        };
        let mut rows = vec![["election".to_owned(), named]];
        let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
        row("leader", self.leader());
        if let Some(since) = self.now.leader.as_ref().and_then(|leader| leader.since_at) {
            let led_for = self.now.led_for_ms.map(milliseconds);
            let led_for = led_for.map_or(String::new(), |led_for| format!(", for {led_for}"));
            row(
                "since",
                format!("{} by its clock{led_for}", rfc3339(Wall(since))),
            );
        }
        if let Some(ago) = self.now.seen_ago_ms {
            row("heard", format!("{} ago", milliseconds(ago)));
        }
        if let Some(request) = &self.now.request {
            row("request", self.request(request));
        }
        let mut heading = "candidates";
        if self.now.candidates.is_empty() {
            row(heading, "none".to_owned());
        }
        let leader = self.now.leader.as_ref().map(|leader| &leader.node);
        for candidate in &self.now.candidates {
            let leads = if leader == Some(&candidate.id) {
                "  leads"
            } else {
                ""
            };
            row(
                std::mem::take(&mut heading),
                format!("{}{leads}", candidate.id),
            );
        }
        table(&rows)
    }

    fn json(&self) -> Value {
        let holder = self.now.leader.as_ref().or(self.holder.as_ref());
        json!({
            "election": self.name,
            "state": self.state(),
            "leader": holder.map(|leader| json!({
                "node": leader.node,
                "incarnation": leader.incarnation,
                "since": leader.since_at.map(|at| rfc3339(Wall(at))),
                "for_ms": self.now.led_for_ms,
                "seen_ago_ms": self.now.seen_ago_ms,
                "live": self.now.leader.is_some(),
            })),
            "term": self.now.term,
            "reserved_for": self.now.reserved_for,
            "reserved_for_incarnation": self.now.reserved_for_incarnation,
            "reserved_for_ms": self.now.reserved_for_ms,
            "request": self.now.request,
            "candidates": self.now.candidates.iter().map(|candidate| json!({
                "node": candidate.id,
                "ttl_ms": candidate.ttl_ms,
                "seen_ago_ms": candidate.seen_ago_ms,
            })).collect::<Vec<_>>(),
            "history": self.history.iter().map(|past| json!({
                "term": past.term,
                "node": past.node,
                "since": rfc3339(Wall(past.since_at)),
                "until": rfc3339(Wall(past.until_at)),
                "lasted_ms": past.lasted_ms,
                "reason": past.reason,
            })).collect::<Vec<_>>(),
        })
    }
}

pub(super) async fn history(
    server: AtServer,
    named: Option<ElectionName>,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    if named.as_ref().is_some_and(|name| !name.is_of_queue()) {
        return Err(output::Hinted::new(
            "a broker knows the past terms of tenure.queue only",
            "for other elections name the store with --store",
        )
        .into());
    }
    ask(&server, async |client| {
        let cluster = client.cluster().await?;
        let past = cluster.history.iter().map(|past| {
            let line = Line {
                term: Some((past.term, past.node.to_string())),
                from: Wall(past.since_at),
                to: Some(Wall(past.until_at)),
                lasted: past.lasted_ms.map(Duration::from_millis),
                why: Some(past.reason.clone()),
            };
            (line, past.vacant_ms.map(Duration::from_millis))
        });
        let led_for = cluster.led_for_ms.filter(|_| !cluster.led_for_at_least);
        let current = cluster.leader.as_ref().and_then(|leader| {
            let line = Line {
                term: Some((leader.term, leader.node.to_string())),
                from: Wall(leader.since_at?),
                to: None,
                lasted: led_for.map(Duration::from_millis),
                why: None,
            };
            Some((line, None))
        });
        let lines = super::history::with_gaps(past.chain(current));
        super::history::tell(&ElectionName::queue(), &lines, is_json)
    })
    .await
}

pub(super) async fn nodes(server: AtServer, is_json: bool) -> anyhow::Result<ExitCode> {
    ask(&server, async |client| {
        let cluster = client.cluster().await?;
        let nodes: Vec<&api::Node> = cluster
            .nodes
            .iter()
            .filter(|node| node.state == "alive")
            .collect();
        if nodes.is_empty() {
            let namespace = &cluster.namespace;
            output::note(&format!("there are no nodes in the namespace {namespace}"));
        }
        let rows = nodes.iter().map(|node| Row::of(&cluster, node));
        write(&if is_json {
            let nodes: Vec<Value> = rows.map(|row| row.json()).collect();
            document(&json!({ "namespace": cluster.namespace, "nodes": nodes }))?
        } else if nodes.is_empty() {
            String::new()
        } else {
            let heading = [
                "NODE", "STATE", "SHARDS", "LOAD", "SINCE", "VERSION", "ADDRESS", "LABELS",
            ];
            let heading = heading.map(str::to_owned);
            let rows: Vec<_> = std::iter::once(heading)
                .chain(rows.map(|row| row.cells()))
                .collect();
            table(&rows)
        })?;
        Ok(yes_if(!nodes.is_empty()))
    })
    .await
}

/// A node, and what it runs.
struct Row<'a> {
    node: &'a api::Node,
    leads: Vec<&'a str>,
    shards: usize,
    load: u64,
}

impl<'a> Row<'a> {
    fn of(cluster: &'a api::Cluster, node: &'a api::Node) -> Self {
        let is_led = |it: &&api::ClusterElection| {
            let leader = it.leader.as_ref().and_then(|leader| leader.incarnation);
            it.name.is_reserved() && leader == Some(node.incarnation)
        };
        let shards = cluster.daemons.iter().map(|daemon| {
            let its = |shard: &&api::DaemonShard| shard.node.as_ref() == Some(&node.node);
            (daemon.shards.iter().filter(its).count(), daemon.weight)
        });
        let (mut count, mut load) = (0, 0);
        for (its, weight) in shards {
            count += its;
            load += its as u64 * u64::from(weight);
        }
        let leads = cluster.elections.iter().filter(is_led);
        let mut leads: Vec<&str> = leads.map(|it| it.name.as_str()).collect();
        // The queue's election first.
        leads.sort_unstable_by(|one, other| other.cmp(one));
        Self {
            node,
            leads,
            shards: count,
            load,
        }
    }

    fn state(&self) -> &'static str {
        match self.node {
            it if it.going => "leaving",
            it if it.drained && self.shards > 0 => "draining",
            it if it.drained => "drained",
            _ => "alive",
        }
    }

    fn cells(&self) -> [String; 8] {
        let node = self.node;
        let leads: Vec<&str> = self
            .leads
            .iter()
            .filter_map(|name| name.strip_prefix(ElectionName::RESERVED))
            .collect();
        let leads = match leads[..] {
            [] => String::new(),
            _ => format!(", leads {}", leads.join(" and ")),
        };
        let labels = node.labels.iter();
        let labels: Vec<_> = labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let shown = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), printable);
        [
            node.node.to_string(),
            format!("{}{leads}", self.state()),
            self.shards.to_string(),
            match node.capacity {
                Some(capacity) => format!("{}/{capacity}", self.load),
                None => self.load.to_string(),
            },
            rfc3339(Wall(node.joined_at)),
            shown(&node.version),
            shown(&node.address),
            printable(&labels.join(" ")),
        ]
    }

    fn json(&self) -> Value {
        let node = self.node;
        json!({
            "node": node.node,
            "incarnation": node.incarnation,
            "leads": !self.leads.is_empty(),
            "elections": self.leads,
            "going": node.going,
            "drained": node.drained.then(|| json!({})),
            "shards": self.shards,
            "load": self.load,
            "capacity": node.capacity,
            "since": rfc3339(Wall(node.joined_at)),
            "version": node.version,
            "address": node.address,
            "labels": node.labels,
        })
    }
}

pub(super) async fn daemons(server: AtServer, is_json: bool) -> anyhow::Result<ExitCode> {
    ask(&server, async |client| {
        let cluster = client.cluster().await?;
        if cluster.daemons.is_empty() {
            let namespace = &cluster.namespace;
            output::note(&format!(
                "there are no daemons in the namespace {namespace}"
            ));
        }
        write(&if is_json {
            let daemons: Vec<Value> = cluster.daemons.iter().map(daemon_json).collect();
            document(&json!({ "namespace": cluster.namespace, "daemons": daemons }))?
        } else {
            daemons_text(&cluster.daemons)
        })?;
        let mut shards = cluster.daemons.iter().flat_map(|daemon| &daemon.shards);
        let all_run = shards.all(|shard| shard_state(shard) == "running");
        Ok(yes_if(all_run && !cluster.daemons.is_empty()))
    })
    .await
}

/// In the words of `--store`.
fn shard_state(shard: &api::DaemonShard) -> &str {
    match &*shard.state {
        "failing" => "failing",
        _ if shard.error.is_some() => "failed",
        "active" => "running",
        "assigning" => "assigned",
        "revoking" => "draining",
        other => other,
    }
}

fn daemons_text(daemons: &[api::Daemon]) -> String {
    if daemons.is_empty() {
        return String::new();
    }
    let heading = ["SHARD", "NODE", "GENERATION", "STATE", "SINCE"];
    let mut rows = vec![heading.map(str::to_owned)];
    for daemon in daemons {
        rows.extend(daemon.shards.iter().map(|shard| {
            let dash = || "-".to_owned();
            [
                format!("{}/{}", daemon.daemon, shard.index),
                shard.node.as_ref().map_or_else(dash, ToString::to_string),
                shard.generation.map_or_else(dash, |it| it.to_string()),
                super::daemons::shown(shard_state(shard), shard.error.as_deref(), shard.failures),
                shard.since_at.map_or_else(dash, |at| rfc3339(Wall(at))),
            ]
        }));
    }
    table(&rows)
}

fn daemon_json(daemon: &api::Daemon) -> Value {
    let shards = daemon.shards.iter().map(|shard| {
        json!({
            "shard": shard.index,
            "state": shard_state(shard),
            "node": shard.node,
            "generation": shard.generation,
            "since": shard.since_at.map(|at| rfc3339(Wall(at))),
            "error": shard.error,
            "failures": shard.failures,
        })
    });
    json!({
        "daemon": daemon.daemon,
        "weight": daemon.weight,
        "shards": shards.collect::<Vec<_>>(),
    })
}

fn milliseconds(count: u64) -> String {
    times::duration(Duration::from_millis(count))
}

fn yes_if(is_so: bool) -> ExitCode {
    if is_so {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(request: &Value) -> ElectionStatus {
        let now = json!({
            "leader": {"node": "a", "term": 3, "incarnation": "0000000000000000000000000000000a"},
            "term": 3,
            "request": request,
        });
        ElectionStatus {
            name: ElectionName::new("reports").unwrap(),
            now: serde_json::from_value(now).unwrap(),
            holder: None,
            history: Vec::new(),
        }
    }

    #[test]
    fn what_the_leader_is_asked_is_shown() {
        let resign = json!({"kind": "resign", "by": "ops", "lapses": true, "lapses_in_ms": 50_000});
        let to = |incarnation: &str| json!({"kind": "transfer", "by": "ops", "to": "b", "to_incarnation": incarnation, "lapses": false});
        for (request, words) in [
            (resign, "ops asked it to resign; its lease lapses in 50s"),
            (
                to("0000000000000000000000000000000b"),
                "ops asked it to hand over to b",
            ),
            (
                to("0000000000000000000000000000000a"),
                "ops asked it to keep leading",
            ),
        ] {
            let status = shown(&request);
            let text = status.text();
            assert!(text.contains(&format!("request     {words}\n")), "{text}");
            assert_eq!(status.json()["request"]["by"], "ops");
        }
    }
}
