//! The exhaustive check of assignments: who runs which shard, on the very machines that run in production.
//!
//! A process is a whole [`Node`](tenure_core::node::Node) with its part in the cluster, wired as in production. Only
//! who leads is decided from outside, at every step, and an old leader hears of it at every later step or never. So
//! nothing here rests on elections.
//!
//! Requests that nothing happens to are carried out and answered in the order in which they were sent, and work
//! starts and ends when it is told to; a request that is slow, or work that hangs, stands for every other order.
//! Each of these is a fault and costs one of [`Bounds::faults`]; so do the death and the pause of a process, an
//! election, a drain, a daemon that fails, and a deleted object. A fault can strike at every step until
//! [`Bounds::window`]; what it has set loose happens at every later step until [`Bounds::horizon`], or never.
//!
//! After every step: a shard is trusted by one process at most. At every start: its generation has grown, and no
//! older one runs beside it. Before a leader decides: its term stands on the assignments. And once nothing more
//! can go wrong, every shard that some node can run is running in good time.
//!
//! # What it does not look at
//!
//! - Other orders of prompt requests than that of sending, but for [`Bounds::any_order`].
//! - Weights, labels, capacity, replicas and more than one daemon: they decide where, not when.
//! - Assignments that were replaced with an older copy, of which less is promised.
//! - What is told of shards and nodes, which nobody acts on.

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

/// What is looked at.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// What is special about it.
    pub name: &'static str,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many shards.
    pub shards: u32,
    /// How many faults there are at most.
    pub faults: u8,
    /// All shards run before anything goes wrong.
    pub settled: bool,
    /// The first node is drained when it begins.
    pub drained: bool,
    /// Faults begin until then, counted from the beginning.
    pub window: Duration,
    /// Nothing is looked at after that, counted from the beginning.
    pub horizon: Duration,
    /// One clock runs fast and one slow, instead of all alike.
    pub skewed: bool,
    /// Whoever may want to know is told of every change at once.
    pub hints: bool,
    /// Prompt requests are carried out in every order.
    pub any_order: bool,
    /// The faults that there are.
    pub kinds: Vec<Kind>,
    /// To give up, for rules that are broken on purpose.
    pub states_max: u64,
}

/// Looks at everything within the bounds.
///
/// # Errors
///
/// The first violation, with the steps that led to it.
pub fn explore(bounds: &Bounds) -> Result<Explored<Kind>, Box<Counterexample>> {
    search::<State>(bounds, bounds.states_max)
}
