//! What must hold at every step, whatever fails: one file per property.

pub(crate) mod acknowledged_is_kept;
pub(crate) mod applied_is_committed;
pub(crate) mod asked_again_is_the_same;
pub(crate) mod attempts_are_bounded;
pub(crate) mod calls_fit;
pub(crate) mod claimed_by_priority;
pub(crate) mod claimed_in_turn;
pub(crate) mod claims_are_bounded;
pub(crate) mod completed_once;
pub(crate) mod ends_are_told_again;
pub(crate) mod forgotten_in_time;
pub(crate) mod held_once;
pub(crate) mod ids_are_kept;
pub(crate) mod leases_are_kept;
pub(crate) mod limits_are_kept;
pub(crate) mod noted_is_committed;
pub(crate) mod nothing_is_damaged;
pub(crate) mod one_active_shard;
pub(crate) mod one_trusted_leader;
pub(crate) mod one_worker_at_a_time;
pub(crate) mod one_writer_per_term;
pub(crate) mod outbox_is_relayed;
pub(crate) mod places_are_taken_once;
pub(crate) mod reads_are_committed;
pub(crate) mod recovered_is_committed;
pub(crate) mod releases_are_free;
pub(crate) mod results_are_kept;
pub(crate) mod schedules_keep_their_slots;
pub(crate) mod time_is_believed_in_steps;
pub(crate) mod unique_keys;
pub(crate) mod waits_its_time;

use super::world::World;

/// Those that follow from clocks, so that they may break at any time. A host whose clock stands still promises
/// none of them, for that long and a ttl more; all others do.
pub(crate) fn check_trust(world: &World) {
    let doubted = world.doubted();
    world.judge(one_trusted_leader::check(world, &doubted));
    let verdict = world.shards().check(&doubted);
    world.judge(verdict);
}
