//! Which kinds of events a client wants.

use tenure_api::{Code, EVENT_KINDS};

use crate::problem::Problem;

/// Kinds of events, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kinds(Vec<&'static str>);

const OF_QUEUE: [&str; 3] = ["job", "queue", "schedule"];
const OF_CLUSTER: [&str; 3] = ["leader", "node", "daemon"];

impl Kinds {
    /// Parses kinds, separated by commas; the default is those of the queue.
    pub(super) fn of(named: Option<&str>) -> Result<Self, Problem> {
        let Some(named) = named else {
            return Ok(Self(OF_QUEUE.to_vec()));
        };
        let known = named.split(',').map(|name| {
            let known = EVENT_KINDS.into_iter().find(|kind| *kind == name);
            known.ok_or_else(|| {
                let shown: String = name.chars().take(40).collect();
                let detail = format!("{shown:?} is not a kind of event");
                let hint = format!("the kinds are {}", EVENT_KINDS.join(", "));
                Problem::new(Code::InvalidField, detail)
                    .field("kinds")
                    .hint(hint)
            })
        });
        Ok(Self(known.collect::<Result<_, _>>()?))
    }

    pub(super) fn have(&self, kind: &str) -> bool {
        self.0.contains(&kind)
    }

    pub(super) fn are_of_queue(&self) -> bool {
        OF_QUEUE.iter().any(|kind| self.have(kind))
    }

    pub(super) fn are_of_cluster(&self) -> bool {
        OF_CLUSTER.iter().any(|kind| self.have(kind))
    }
}

/// The kind of an event, by its name.
pub(super) fn kind_of(event: &str) -> &'static str {
    match event {
        "queue_set" | "paused" | "resumed" | "configured" | "time_set" => "queue",
        "schedule_set" | "schedule_deleted" | "schedule_paused" | "schedule_resumed" | "fired"
        | "slot_fired" => "schedule",
        name if name.starts_with("leader_") => "leader",
        name if name.starts_with("node_") => "node",
        name if name.starts_with("daemon_") => "daemon",
        _ => "job",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_or_refused() {
        let kinds = |named| Kinds::of(Some(named)).ok();
        assert_eq!(
            Kinds::of(None).unwrap(),
            kinds("job,queue,schedule").unwrap()
        );
        let nodes = kinds("node,leader").unwrap();
        assert!(nodes.have("node") && nodes.are_of_cluster() && !nodes.are_of_queue());
        for wrong in ["", "nodes", "node,", "node, leader"] {
            assert_eq!(kinds(wrong), None, "{wrong:?}");
        }
        assert!(
            EVENT_KINDS
                .iter()
                .all(|kind| OF_QUEUE.contains(kind) != OF_CLUSTER.contains(kind))
        );
    }
}
