//! The exhaustive check: every order of events, with a bounded number of faults at every possible point, for a few
//! processes and a bounded time, on the very machines that run in production.
//!
//! A state is the whole world at one moment. From each state, every possible [`Action`] is taken; a state that was
//! seen before is not entered again. Requests without a fault are carried out and answered at the moment they are
//! sent, in every order. A fault costs one of the [`Bounds::faults`] and can strike at every step until
//! [`Bounds::window`]. Its delayed effects (a late copy of a write, a slow answer, a paused process, work that does
//! not stop) then happen at every later step, or never. When nothing is left to happen at this moment, time passes to
//! the next moment that anything waits for.
//!
//! The invariants of the simulation are checked after every step. After every fault, the world also runs on without
//! any other fault, and there must be one leader in time: no crash at any step causes a stall.
//!
//! # What it does not look at
//!
//! - Once no fault can strike any more and no delayed effect is left, a state runs on in only one order of events,
//!   with the invariants checked.
//! - A window of zero means the first moment: everything that can happen until there is a leader, or none is possible.
//! - There is no jitter, there are no hints (which change when something happens, not what), no ages of
//!   objects, no priorities, and one election. The simulation has all of these, at random.
//! - Listings have one page. Leases are read through a listing only with [`Bounds::lists`].
//! - A one-shot caller is not the production code, which is in `tenure`, but follows its description in `election`,
//!   and it takes no lease; [`callers`](crate::callers) covers the rest.
//! - The machines of the cluster: they have a separate model, see [`cluster`].
//!
//! Versions, counters and times are kept exactly, so states that could behave differently are never merged.

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

/// The bounds of a check.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Its name, which says what is special about it.
    pub name: &'static str,
    /// How many processes start.
    pub processes: usize,
    /// The most faults.
    pub faults: u8,
    /// Faults strike until then.
    pub window: Duration,
    /// The check ends then.
    pub horizon: Duration,
    /// Whether one clock runs fast and one slow, instead of all alike.
    pub skewed: bool,
    /// Whether each process has a ttl twice as long as the one before.
    pub ttls_differ: bool,
    /// Whether all run under one node id.
    pub twins: bool,
    /// Whether they read leases through listings, as processes in many elections do.
    pub lists: bool,
    /// Whether at first the lease is held by a one-shot caller, whose session is renewed for another election.
    pub caller: bool,
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
