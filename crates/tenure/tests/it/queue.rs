//! The queue in a process: served by the leader, on every store.

mod claims;
mod engines;
mod stage;
