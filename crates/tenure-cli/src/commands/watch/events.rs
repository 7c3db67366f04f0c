//! `tenure watch --server`: a broker's events about leaders, nodes and daemons.

use std::process::ExitCode;

use anyhow::Context;
use tenure::core::Wall;
use tenure_client::api::{Event, EventsQuery, RESET};

use crate::args::AtServer;
use crate::commands::at_server::client;
use crate::output::{Data, printable};
use crate::times;

pub(super) async fn watch(
    server: &AtServer,
    kinds: String,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    let client = client(server).await?;
    // A wrong address or token is reported at once, instead of being retried for ever.
    client.cluster().await?;
    let mut events = client.events_of(EventsQuery {
        kinds: Some(kinds),
        ..EventsQuery::default()
    });
    let mut data = Data::new();
    let mut is_first = true;
    loop {
        let event = events.next().await?;
        // The first reset only means that the stream has just begun, which the reader knows.
        let is_start = std::mem::take(&mut is_first) && event.event == RESET;
        if is_start {
            continue;
        }
        data.write(&if is_json {
            serde_json::to_string(&event)? + "\n"
        } else {
            format!("{}  {}\n", at(&event), text(&event))
        });
        if data.is_over() {
            data.finish().context("cannot write the output")?;
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// When it happened, by the broker's clock.
fn at(event: &Event) -> String {
    times::rfc3339(match event.at {
        0 => times::now(),
        at => Wall(at),
    })
}

fn text(event: &Event) -> String {
    let node = event.node.as_ref().map_or("?", |node| node.as_str());
    let election = event.election.as_ref().map_or("?", |name| name.as_str());
    let shard = || {
        let daemon = event.daemon.as_ref().map_or("?", |daemon| daemon.as_str());
        let index = event.shard.unwrap_or_default();
        let generation = event.generation.unwrap_or_default();
        format!("{daemon}/{index}, generation {generation}")
    };
    let term = event.term.unwrap_or_default();
    let said = match event.event.as_str() {
        "leader_elected" => format!("elected {node} in {election}, term {term}"),
        "leader_lost" => format!("ended {node} in {election}, term {term}"),
        "node_joined" => format!("joined {node}"),
        "node_left" => format!("left {node}"),
        "node_evicted" => format!("evicted {node}"),
        "daemon_assigned" => format!("assigned {} to {node}", shard()),
        "daemon_started" => format!("started {} on {node}", shard()),
        "daemon_revoked" => format!("revoked {} from {node}", shard()),
        "daemon_stopped" => format!("stopped {} on {node}", shard()),
        "daemon_failed" => {
            let error = event.error.as_deref().unwrap_or("no reason was given");
            format!("failed {} on {node}: {}", shard(), printable(error))
        }
        RESET => {
            let reason = event.reason.as_deref().unwrap_or("events were missed");
            format!("reset: {}", printable(reason))
        }
        // Events of the queue: the name, and what it is about.
        name => {
            let about = [
                event.id.as_ref().map(|id| id.as_str()),
                event.queue.as_ref().map(|queue| queue.as_str()),
                event.schedule.as_ref().map(|schedule| schedule.as_str()),
            ];
            let about: Vec<&str> = about.into_iter().flatten().collect();
            format!("{} {}", printable(name), about.join(" in "))
        }
    };
    if event.initial {
        format!("{said} (before)")
    } else {
        said
    }
}
