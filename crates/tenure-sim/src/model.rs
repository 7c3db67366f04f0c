//! The exhaustive check: every order of events, and every placing of a bounded number of faults, for a few
//! processes and a bounded time, on the very machines that run in production.
//!
//! A state is the whole world at one moment. From each, every [`Action`] that is possible is taken; a
//! state that was seen before is not entered twice. Requests that nothing happens to are carried out and
//! answered at the moment they are sent, in every order. A fault costs one of the [`Bounds::faults`] and can
//! strike at every step until [`Bounds::window`]; what a fault has set loose (a late copy of a write, a slow
//! answer, a paused process, work that will not stop) then happens at every later step, or never. Time passes
//! when nothing is left to happen at this moment, to the next that anyone waits for.
//!
//! After every state the invariants of the simulation are asked. After every fault the world is let run, alone
//! and without any other fault, and one leader must be there in time: no crash at any step leaves a stall.
//!
//! # What it does not look at
//!
//! - Once no fault can strike any more and nothing that one has set loose is left, a state is let run in one
//!   order of events, with the invariants asked, and not in every order.
//! - A window of zero means the first moment: everything that can happen until somebody leads, or nobody can.
//! - There is no jitter, there are no hints (which change when something happens, not what), no ages of
//!   objects, no priorities, and one election. The simulation has all of these, at random.
//! - Listings have one page. A look at a lease goes by one only where [`Bounds::lists`] says so.
//! - A caller is not the production code, which is in `tenure`, but what `election` says of it, and it takes no lease;
//!   [`callers`](crate::callers) has the rest.
//! - The machines of the cluster: they have a model of their own, see [`cluster`].
//!
//! Versions, counters and times are not folded, so no two states are taken for one that could differ.

mod action;
mod calm;
pub mod cluster;
mod fingerprint;
pub mod scenarios;
mod search;
mod state;

use std::time::Duration;

pub use action::{Action, FAULTS, Kind};
use search::search;
pub use search::{Counterexample, Explored};
use state::State;

/// What is looked at.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// What is special about it.
    pub name: &'static str,
    /// How many processes start.
    pub processes: usize,
    /// How many faults there are at most.
    pub faults: u8,
    /// Faults begin until then.
    pub window: Duration,
    /// Nothing is looked at after that.
    pub horizon: Duration,
    /// One clock runs fast and one slow, instead of all alike.
    pub skewed: bool,
    /// Each process has a ttl twice as long as the one before.
    pub ttls_differ: bool,
    /// All run under one node id.
    pub twins: bool,
    /// They look at leases by listings, as processes in many elections do.
    pub lists: bool,
    /// At first the lease is held by a program that only calls now and then, whose session is renewed for another election.
    pub caller: bool,
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
