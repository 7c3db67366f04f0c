//! The next assignments: decisions, applied to the desired state.

use std::collections::BTreeMap;
use std::time::Duration;

use super::plan::{Decision, Reason};
use super::record::{Assignment, AssignmentState, Assignments, Daemon, Failure, Generation, Shard};
use super::report::{Definition, Part};
use crate::session::Record;
use crate::{NodeId, Wall};

/// How many failures are kept at most, over all daemons; and for how long after the shard runs again.
const FAILURES_MAX: usize = 256;
const FAILURE_KEPT_MS: u64 = 60_000;

/// The assignments after these decisions.
pub(crate) fn apply(assignments: &Assignments, decisions: &[Decision], at: Wall) -> Assignments {
    let mut next = assignments.clone();
    for decision in decisions {
        match decision {
            Decision::Define { daemon, definition } => {
                let count = definition.count.number() as usize;
                let entry = next.daemons.entry(daemon.clone());
                let entry = entry.or_insert_with(|| blank(definition));
                entry.definition = definition.clone();
                let length = entry.shards.len().max(count);
                entry.shards.resize(length, None);
            }
            Decision::Forget { daemon } => drop(next.daemons.remove(daemon)),
            Decision::Assign {
                shard,
                generation,
                to,
                ..
            } => {
                assert!(
                    *generation > next.generation,
                    "a generation is given out once, and they only grow"
                );
                next.generation = *generation;
                next.holders.insert(to.incarnation, to.clone());
                let count = next.daemons[&shard.daemon].definition.count.number();
                let place = place(&mut next, shard);
                assert!(place.is_none(), "only what is free is given out");
                *place = Some(Assignment {
                    generation: *generation,
                    incarnation: to.incarnation,
                    state: AssignmentState::Assigning,
                    since: at,
                    count,
                });
            }
            Decision::Activate { shard, .. } => {
                set(&mut next, shard, AssignmentState::Active, at);
            }
            Decision::Revoke {
                shard,
                from,
                reason,
            } => {
                note_failure(&mut next, shard, from, reason, at);
                set(&mut next, shard, AssignmentState::Revoking, at);
            }
            Decision::Free {
                shard,
                from,
                reason,
            } => {
                note_failure(&mut next, shard, &from.node, reason, at);
                *place(&mut next, shard) = None;
            }
            Decision::Wait { .. } => {}
        }
    }
    for daemon in next.daemons.values_mut() {
        let count = daemon.definition.count.number() as usize;
        while daemon.shards.len() > count && daemon.shards.last() == Some(&None) {
            daemon.shards.pop();
        }
    }
    forget_failures(&mut next, at);
    next.retain_holders();
    next
}

/// Notes what went wrong with a shard that is about to be taken from its node, if something did.
fn note_failure(next: &mut Assignments, shard: &Shard, node: &NodeId, reason: &Reason, at: Wall) {
    let error = match reason {
        Reason::Failed { error } => error.clone(),
        Reason::NotAcknowledged => "its node did not acknowledge it in time".to_owned(),
        Reason::NotStarted => "it did not start in time".to_owned(),
        Reason::Unanswered => "it did not end in time".to_owned(),
        _ => return,
    };
    let Some(Assignment { generation, .. }) = *place(next, shard) else {
        return;
    };
    let daemon = next.daemons.get_mut(&shard.daemon);
    let failures = daemon.map(|daemon| &mut daemon.failures);
    if let Some(failures) = failures
        // The first thing that went wrong is the cause.
        && failures.get(&shard.index).is_none_or(|failure| failure.generation < generation)
    {
        let node = node.clone();
        let before = failures.get(&shard.index).map_or(0, |it| it.count);
        failures.insert(
            shard.index,
            Failure {
                generation,
                node,
                at,
                error,
                count: before.saturating_add(1),
            },
        );
    }
}

/// In how many milliseconds a failure is dropped, if its shard runs until then; `None` while it does not run.
fn forgotten_in(failure: &Failure, shard: Option<&Assignment>, at: Wall) -> Option<u64> {
    let runs = shard.is_some_and(|it| {
        it.generation > failure.generation && it.state == AssignmentState::Active
    });
    let age = at.0.saturating_sub(failure.at.0);
    runs.then(|| FAILURE_KEPT_MS.saturating_sub(age))
}

/// How long until the next failure can be dropped; `None` if none can.
pub(crate) fn forgets_in(assignments: &Assignments, at: Wall) -> Option<Duration> {
    let all = assignments.daemons.values().flat_map(|daemon| {
        let failures = daemon.failures.iter();
        failures.filter_map(|(&index, failure)| {
            let shard = daemon.shards.get(index as usize)?;
            forgotten_in(failure, shard.as_ref(), at)
        })
    });
    all.min().map(Duration::from_millis)
}

/// Keeps a failure until the shard has run again for a while, and never too many of them.
fn forget_failures(next: &mut Assignments, at: Wall) {
    for daemon in next.daemons.values_mut() {
        let shards = &daemon.shards;
        daemon.failures.retain(|&index, failure| {
            let shard = shards.get(index as usize);
            shard.is_some_and(|shard| forgotten_in(failure, shard.as_ref(), at) != Some(0))
        });
    }
    let failures = next.daemons.values().flat_map(|it| it.failures.values());
    let mut generations: Vec<Generation> = failures.map(|failure| failure.generation).collect();
    if let Some(surplus) = generations.len().checked_sub(FAILURES_MAX + 1) {
        generations.sort_unstable();
        let last = generations[surplus];
        for daemon in next.daemons.values_mut() {
            daemon
                .failures
                .retain(|_, failure| failure.generation > last);
        }
    }
}

/// Makes assignments from what live nodes report, for when nothing else is left of them.
pub(crate) fn adopt_reports<'a>(
    mut assignments: Assignments,
    live: impl Iterator<Item = &'a Record>,
    at: Wall,
) -> Assignments {
    for record in live {
        let part = Part::of(&record.about);
        for (id, runs) in &part.runs {
            let offered = part.offers.get(id);
            // Every shard up to the reported one takes memory, so the definition that bounds their number must be
            // valid.
            let Some(definition) = offered.filter(|definition| definition.check().is_ok()) else {
                continue;
            };
            for run in runs {
                assignments.generation = assignments.generation.max(run.1);
                if run.2.has_ended() || run.0 >= definition.count.number() {
                    continue;
                }
                let daemon = assignments.daemons.entry(id.clone());
                daemon.or_insert_with(|| blank(definition));
                let shard = Shard {
                    daemon: id.clone(),
                    index: run.0,
                };
                let place = place(&mut assignments, &shard);
                // If two nodes report one shard, the higher generation is right: the node of the lower one was told to
                // end it.
                if place.is_none_or(|other| other.generation < run.1) {
                    *place = Some(Assignment {
                        generation: run.1,
                        incarnation: record.incarnation,
                        state: AssignmentState::Active,
                        since: at,
                        count: definition.count.number(),
                    });
                }
                let holder = record.holder();
                assignments.holders.insert(record.incarnation, holder);
            }
        }
    }
    assignments.retain_holders();
    assignments
}

fn blank(definition: &Definition) -> Daemon {
    Daemon {
        definition: definition.clone(),
        shards: Vec::new(),
        failures: BTreeMap::new(),
    }
}

fn set(assignments: &mut Assignments, shard: &Shard, state: AssignmentState, at: Wall) {
    if let Some(assignment) = place(assignments, shard) {
        assignment.state = state;
        assignment.since = at;
    }
}

fn place<'a>(assignments: &'a mut Assignments, shard: &Shard) -> &'a mut Option<Assignment> {
    let daemon = assignments
        .daemons
        .get_mut(&shard.daemon)
        .expect("what is decided about is defined");
    let index = shard.index as usize;
    if daemon.shards.len() <= index {
        daemon.shards.resize(index + 1, None);
    }
    &mut daemon.shards[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_an_impossible_shard_makes_no_room_for_it() {
        let nothing = r#"{"format":1,"term":3,"writer":{"incarnation":"a","counter":9},"generation":2,"drain_timeout_ms":30000,"force_after_ms":30000,"nodes":[],"daemons":{}}"#;
        let nothing = Assignments::decode(nothing.as_bytes()).unwrap();
        let reports = r#"{"format":1,"node":"web-1","incarnation":"b","counter":7,"ttl_ms":10000,"state":"alive","joined_at":5,"cluster":{"offers":{"indexer":{"count":{"shards":4294967295}}},"runs":{"indexer":[[4294967294,1,"running"]]}}}"#;
        let record = Record::decode(reports.as_bytes()).unwrap();
        let adopted = adopt_reports(nothing, [&record].into_iter(), Wall(1));
        assert!(adopted.daemons.is_empty(), "{adopted:?}");
    }
}
