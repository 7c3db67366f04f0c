//! Commits that are on their way when their writer crashes, and that arrive at the worst of all moments: when
//! somebody else has just begun to serve, and has committed nothing yet.

use std::sync::Arc;

use bytes::Bytes;
use tenure_store::Key;

use super::chaos::crash;
use super::faults::Fault;
use super::ledger::header;
use super::world::World;

/// Of a thousand commits.
const HELD_PER_MILLE: u64 = 4;

/// Whether a write to the log is held up, and its writer never hears of it.
pub(crate) fn hold(world: &Arc<World>, key: &Key, value: &Bytes) -> bool {
    let Some(number) = writer(world, value) else {
        return false;
    };
    if !world.strikes(Fault::CommitHeld, HELD_PER_MILLE) {
        return false;
    }
    let (world, key, value) = (world.clone(), key.clone(), value.clone());
    tokio::spawn(async move {
        let served = world.served.notified();
        world.say(&world.hosts[number].name, &format!("leaves {key} behind"));
        crash(&world, number);
        served.await;
        world.store.land(&key, value).await;
    });
    true
}

fn writer(world: &World, value: &Bytes) -> Option<usize> {
    let incarnation = header(value).incarnation;
    world.hosts.iter().position(|host| {
        let session = host.running().and_then(|running| running.node.session());
        session.is_some_and(|session| session.incarnation == incarnation)
    })
}
