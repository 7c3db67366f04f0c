//! The queue in a process: served by the leader, on every store.

mod claims;
mod ends;
mod engines;
mod faults;
mod follow;
mod stage;
mod time;
mod zombies;
