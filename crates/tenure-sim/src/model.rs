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
//! - The machines of the cluster: they have a simulation of their own.
//!
//! Versions, counters and times are not folded, so no two states are taken for one that could differ.

mod action;
mod calm;
mod fingerprint;
pub mod scenarios;
mod state;

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use action::{Action, FAULTS, Kind};
use fingerprint::fingerprint;
use state::State;

use crate::invariants::Violation;

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
    /// The faults that there are.
    pub kinds: Vec<Kind>,
    /// To give up, for rules that are broken on purpose.
    pub states_max: u64,
}

/// What an exhaustive look found, if nothing was broken.
#[derive(Debug, Clone, Default)]
pub struct Explored {
    /// How many different states there are.
    pub states: u64,
    /// How many steps between them.
    pub steps: u64,
    /// How many times the world was let run after a fault.
    pub calm_runs: u64,
    /// How often each fault struck.
    pub faults: BTreeMap<Kind, u64>,
    /// Whether there was nothing more to look at.
    pub is_complete: bool,
    /// How long it took.
    pub took: Duration,
}

/// What broke something, step by step.
#[derive(Debug, Clone)]
pub struct Counterexample {
    /// What was broken.
    pub violation: Violation,
    /// How.
    pub path: Vec<String>,
}

/// The steps to a state, shared by all that come after it.
#[derive(Debug)]
struct Trail {
    before: Option<Arc<Trail>>,
    at: Duration,
    action: Action,
}

/// Looks at everything within the bounds.
///
/// # Errors
///
/// The first violation, with the steps that led to it.
pub fn explore(bounds: &Bounds) -> Result<Explored, Box<Counterexample>> {
    tenure_core::mutation::steadily(|| explore_steadily(bounds))
}

fn explore_steadily(bounds: &Bounds) -> Result<Explored, Box<Counterexample>> {
    let started = Instant::now();
    let mut explored = Explored::default();
    let mut seen: HashSet<u128> = HashSet::new();
    let first =
        guarded(|| State::new(bounds)).map_err(|violation| counterexample(violation, None))?;
    let mut stack: Vec<(State, Option<Arc<Trail>>)> = vec![(first, None)];
    while let Some((state, trail)) = stack.pop() {
        if explored.states >= bounds.states_max {
            explored.took = started.elapsed();
            return Ok(explored);
        }
        for action in state.actions(bounds) {
            explored.steps += 1;
            let at = state.now();
            let next = guarded(|| {
                let mut next = state.clone();
                next.take(&action)?;
                Ok(next)
            });
            let is_fault = action.kind().is_some();
            if let Some(kind) = action.kind() {
                *explored.faults.entry(kind).or_default() += 1;
            }
            let trail = Some(Arc::new(Trail {
                before: trail.clone(),
                at,
                action,
            }));
            let next = next.map_err(|violation| counterexample(violation, trail.as_deref()))?;
            if !seen.insert(fingerprint(&next)) {
                continue;
            }
            explored.states += 1;
            let is_calm = next.is_calm();
            if is_fault || is_calm {
                explored.calm_runs += 1;
                guarded(|| calm::converges(next.clone()))
                    .map_err(|violation| counterexample(violation, trail.as_deref()))?;
            }
            if !is_calm {
                stack.push((next, trail));
            }
        }
    }
    explored.is_complete = true;
    explored.took = started.elapsed();
    Ok(explored)
}

/// A machine that panics has broken something too.
fn guarded<T>(run: impl FnOnce() -> Result<T, Violation>) -> Result<T, Violation> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => Err(Violation::new(
            "no machine panics",
            crate::panic_message(panic.as_ref()),
        )),
    }
}

fn counterexample(violation: Violation, trail: Option<&Trail>) -> Box<Counterexample> {
    let mut path = Vec::new();
    let mut step = trail;
    while let Some(Trail { before, at, action }) = step {
        path.push(format!("{:9.3} {action:?}", at.as_secs_f64()));
        step = before.as_deref();
    }
    path.reverse();
    Box::new(Counterexample { violation, path })
}
