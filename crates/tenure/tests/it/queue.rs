//! The queue in a process: served by the leader, on every store.

mod claims;
mod crowd;
mod due;
mod ends;
mod engines;
mod faults;
mod follow;
mod rounds;
mod rules;
mod stage;
mod time;
mod zombies;
