//! The outbox: a row is enqueued if its transaction committed, once, in the order of its group; it is deleted after that; a relay
//! that was replaced changes nothing; and one that goes on delivers nothing twice.
//!
//! That it is enqueued once follows from "a job is held once", which holds for all jobs.

use std::collections::BTreeMap;

use tenure_core::JobId;
use tenure_core::queue::Token;

use super::super::outbox::{Fate, Gone};
use super::super::world::World;
use crate::invariants::Violation;

/// What the ids of the outbox begin with.
const PREFIX: &str = "o-";

/// A relay is about to hand a row over. That of one take-over does so until it has heard that the row was taken.
pub(crate) fn delivering(takeover: i64, id: &str, is_delivered: bool) -> Result<(), Violation> {
    if is_delivered {
        return Err(Violation::new(
            "what a relay has delivered it does not deliver again",
            format!("take-over {takeover} had {id} taken, and hands it over again"),
        ));
    }
    Ok(())
}

/// A relay wrote down what came of a round: these rows were deleted, or nothing was since another had followed.
pub(crate) fn settled(
    world: &World,
    takeover: i64,
    was_told: bool,
    deleted: Option<&[Gone]>,
) -> Result<(), Violation> {
    if was_told {
        return Err(Violation::new(
            "a relay that was replaced ends",
            format!("take-over {takeover} was told so, and goes on"),
        ));
    }
    for gone in deleted.unwrap_or_default() {
        match gone {
            Gone::Job(id) if !world.ledger().jobs.knows(id) => {
                return Err(Violation::new(
                    "what is deleted from the outbox was enqueued",
                    format!("{id} was deleted, and is in no commit"),
                ));
            }
            Gone::End(id, token) if holds(world, id, *token) => {
                return Err(Violation::new(
                    "an end that is deleted from the outbox was told",
                    format!("the end of {id} by {token} was deleted, and it still runs by it"),
                ));
            }
            Gone::Job(_) | Gone::End(..) => {}
        }
    }
    check(world)
}

/// Whether this claim is in force, by what is committed.
fn holds(world: &World, id: &JobId, token: Token) -> bool {
    let ledger = world.ledger();
    let running = ledger.queue.running_claim(id);
    running.is_some_and(|(_, running)| running == token)
}

/// Everything that was enqueued so far.
pub(crate) fn check(world: &World) -> Result<(), Violation> {
    let ledger = world.ledger();
    let kept = ledger.jobs.jobs.keys().chain(ledger.jobs.forgotten.keys());
    let relayed = kept.filter(|id| id.as_str().starts_with(PREFIX));
    // By the first of each: a relay that was away for longer than the queue knows an id may deliver it once more.
    let relayed: BTreeMap<Option<u64>, &JobId> = relayed
        .map(|id| (ledger.jobs.first_sequence(id), id))
        .collect();
    let mut counts = BTreeMap::<String, u64>::new();
    for id in relayed.into_values() {
        let place = match world.outbox.fate(id) {
            Some(Fate::Committed(place)) => place,
            fate => {
                return Err(Violation::new(
                    "only what was committed leaves the outbox",
                    format!("{id} was enqueued: {fate:?}"),
                ));
            }
        };
        if let Some((group, number)) = place {
            let count = counts.entry(group.clone()).or_default();
            *count += 1;
            if *count != number {
                return Err(Violation::new(
                    "a group leaves the outbox in the order of its commits",
                    format!("{id} is number {number} of {group}, and came as number {count}"),
                ));
            }
        }
    }
    Ok(())
}

/// At the end: all that was committed was enqueued.
pub(crate) fn complete(world: &World) -> Result<(), Violation> {
    check(world)?;
    for id in world.outbox.committed() {
        if !world.ledger().jobs.knows(&id) {
            return Err(Violation::new(
                "what is committed leaves the outbox",
                format!("{id} was committed, and never enqueued"),
            ));
        }
    }
    Ok(())
}
