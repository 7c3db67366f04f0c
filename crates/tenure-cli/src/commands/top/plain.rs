//! One screen as plain text, for `--once`.

use tenure::core::Wall;
use tenure_client::api;

use super::seen::Seen;
use crate::output::table;
use crate::times;

pub(crate) fn text(seen: &Seen) -> String {
    let mut text = format!(
        "namespace {}, as seen by {}\nleader    {}\njobs      {}\nrates     {}\n",
        seen.stats.namespace,
        seen.cluster.node,
        seen.leader(),
        seen.counts(),
        seen.rates(),
    );
    if let Some(failure) = seen.failure() {
        text.push_str(&format!("last dead {failure}\n"));
    }
    text.push('\n');
    text.push_str(&table(&nodes(seen)));
    text.push('\n');
    let all: Vec<_> = seen.stats.queues.iter().collect();
    text.push_str(&table(&queues(seen, &all)));
    text
}

/// The nodes, with a heading first.
pub(super) fn nodes(seen: &Seen) -> Vec<[String; 4]> {
    let leader = seen.cluster.leader.as_ref();
    let leader = leader.and_then(|leader| leader.incarnation);
    let mut rows = vec![["NODE", "STATE", "JOINED", "ADDRESS"].map(str::to_owned)];
    rows.extend(seen.cluster.nodes.iter().map(|node| {
        let state = if Some(node.incarnation) == leader {
            "leader"
        } else {
            &node.state
        };
        [
            node.node.to_string(),
            state.to_owned(),
            // By the node's own clock, so "how long ago" cannot be computed.
            times::rfc3339(Wall(node.joined_at)),
            node.address.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    }));
    rows
}

/// These queues, with a heading first.
pub(super) fn queues(seen: &Seen, queues: &[&api::Queue]) -> Vec<[String; 7]> {
    let heading = [
        "QUEUE",
        "STATE",
        "READY",
        "RUNNING",
        "SCHEDULED",
        "DEAD",
        "OLDEST",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(queues.iter().map(|queue| {
        [
            queue.name.to_string(),
            seen.state(queue).to_owned(),
            queue.counts.ready.to_string(),
            queue.counts.running.to_string(),
            queue.counts.scheduled.to_string(),
            queue.counts.dead.to_string(),
            seen.oldest(queue),
        ]
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_screen_says_all_of_it() {
        let text = text(&super::super::seen::tests::seen());
        for expected in [
            "leader    web-1 in term 7, for 1m 0s\n",
            "jobs      5 ready  2 running  1 scheduled  1 dead\n",
            "rates     submitted 2.0/s  claimed 1.0/s  completed 1.5/s  failed 0.2/s\n",
            "web-2  alive   1970-01-01T00:00:00Z  -\n",
            "mail     behind  5      2        1          1     1m 30s\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }
}
