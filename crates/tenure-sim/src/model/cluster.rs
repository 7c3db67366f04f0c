//! The exhaustive check of assignments: who runs which shard, on the very machines that run in production.
//!
//! A process is a whole [`Node`](tenure_core::node::Node) with its part in the cluster, wired as in production. Only
//! the leader is chosen from outside, at any step, and a former leader learns of it at any later step or never. So
//! this check does not depend on elections.
//!
//! Requests without a fault are carried out and answered in the order in which they were sent, and work starts and
//! ends when it is told to. Slow requests and hanging work represent every other order. Each of these is a fault and
//! costs one of [`Bounds::faults`]; so does the death or pause of a process, an election, a drain, a failing daemon,
//! and a deleted object. A fault can strike at every step until [`Bounds::window`]; its delayed effects happen at
//! every later step until [`Bounds::horizon`], or never.
//!
//! After every step, at most one process trusts itself with a shard. At every start, the generation has grown, and no
//! older one runs in the same process. Before a leader decides, its term is written to the assignments. And once
//! nothing more can go wrong, every shard that some node can run is running in time.
//!
//! # What it does not look at
//!
//! - Other orders of prompt requests than that of sending, except with [`Bounds::any_order`].
//! - Weights, labels, capacity, replicas and more than one daemon: they decide where, not when.
//! - Assignments that were replaced with an older copy, where less is promised.
//! - The events about shards and nodes, which nothing acts on.

mod action;
mod calm;
mod events;
mod faults;
mod process;
pub mod scenarios;
mod state;
mod store;

use std::time::Duration;

pub use action::{Action, KINDS, Kind};
use state::State;

use super::search::{Counterexample, Explored, search};

/// The bounds of a check.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Its name, which says what is special about it.
    pub name: &'static str,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many shards.
    pub shards: u32,
    /// The most faults.
    pub faults: u8,
    /// Whether all shards run before the first fault.
    pub settled: bool,
    /// Whether the first node is drained at the beginning.
    pub drained: bool,
    /// Faults strike until then, counted from the beginning.
    pub window: Duration,
    /// The check ends then, counted from the beginning.
    pub horizon: Duration,
    /// Whether one clock runs fast and one slow, instead of all alike.
    pub skewed: bool,
    /// Whether every change is hinted at once to all who may need it.
    pub hints: bool,
    /// Whether prompt requests are carried out in every order.
    pub any_order: bool,
    /// The kinds of faults.
    pub kinds: Vec<Kind>,
    /// The most states, which ends the search for rules that are broken on purpose.
    pub states_max: u64,
}

/// Explores everything within the bounds.
///
/// # Errors
///
/// The first violation, with the steps that led to it.
pub fn explore(bounds: &Bounds) -> Result<Explored<Kind>, Box<Counterexample>> {
    search::<State>(bounds, bounds.states_max)
}
