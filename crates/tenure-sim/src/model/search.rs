//! The search itself: every reachable state is entered once, and checked.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fingerprint::fingerprint;
use crate::invariants::Violation;

/// A whole world at one moment.
pub(super) trait World: Clone + Hash {
    /// The bounds of a check.
    type Bounds;
    /// One step.
    type Action: Debug;
    /// The kinds of faults.
    type Kind: Ord;

    /// The first state.
    fn first(bounds: &Self::Bounds) -> Result<Self, Violation>;
    /// The present time.
    fn now(&self) -> Duration;
    /// The possible actions.
    fn actions(&self, bounds: &Self::Bounds) -> Vec<Self::Action>;
    /// The kind of fault of an action, if it is one.
    fn kind(action: &Self::Action) -> Option<Self::Kind>;
    /// Takes an action, and checks the result.
    fn take(&mut self, action: &Self::Action) -> Result<(), Violation>;
    /// Whether no fault can strike any more, and none still has effects.
    fn is_calm(&self) -> bool;
    /// Whether convergence is also checked right after each fault.
    fn converges_after_faults() -> bool;
    /// Runs on without faults: it must converge in time.
    fn converges(self) -> Result<(), Violation>;
}

/// The figures of a check without a violation.
#[derive(Debug, Clone)]
pub struct Explored<K> {
    /// The number of different states.
    pub states: u64,
    /// The number of steps between them.
    pub steps: u64,
    /// How many times the world ran on without faults.
    pub calm_runs: u64,
    /// How often each fault struck.
    pub faults: BTreeMap<K, u64>,
    /// Whether everything was explored.
    pub is_complete: bool,
    /// How long it took.
    pub took: Duration,
}

/// A violation, with the steps that led to it.
#[derive(Debug, Clone)]
pub struct Counterexample {
    /// What was broken.
    pub violation: Violation,
    /// The steps.
    pub path: Vec<String>,
    /// How many states were explored before.
    pub states: u64,
}

/// The steps to a state, shared by all later states.
#[derive(Debug)]
struct Trail<A> {
    before: Option<Arc<Trail<A>>>,
    at: Duration,
    action: A,
}

/// The steps to a state of this world; `None` for the first.
type Steps<W> = Option<Arc<Trail<<W as World>::Action>>>;

/// Explores everything within the bounds, but at most this many states.
pub(super) fn search<W: World>(
    bounds: &W::Bounds,
    states_max: u64,
) -> Result<Explored<W::Kind>, Box<Counterexample>> {
    let started = Instant::now();
    let mut explored = Explored {
        states: 0,
        steps: 0,
        calm_runs: 0,
        faults: BTreeMap::new(),
        is_complete: false,
        took: Duration::ZERO,
    };
    let mut seen: HashSet<u128> = HashSet::new();
    let first = guarded(|| W::first(bounds))
        .map_err(|violation| counterexample::<W::Action>(violation, None, 0))?;
    let mut stack: Vec<(W, Steps<W>)> = vec![(first, None)];
    while let Some((state, trail)) = stack.pop() {
        if explored.states >= states_max {
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
            let kind = W::kind(&action);
            let is_fault = kind.is_some();
            if let Some(kind) = kind {
                *explored.faults.entry(kind).or_default() += 1;
            }
            let trail = Some(Arc::new(Trail {
                before: trail.clone(),
                at,
                action,
            }));
            let states = explored.states;
            let broken = |violation| counterexample(violation, trail.as_deref(), states);
            let next = next.map_err(broken)?;
            if !seen.insert(fingerprint(&next)) {
                continue;
            }
            explored.states += 1;
            let is_calm = next.is_calm();
            if is_calm || is_fault && W::converges_after_faults() {
                explored.calm_runs += 1;
                guarded(|| next.clone().converges()).map_err(broken)?;
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

/// Turns a machine's panic into a violation.
fn guarded<T>(run: impl FnOnce() -> Result<T, Violation>) -> Result<T, Violation> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => Err(Violation::new(
            "no machine panics",
            crate::panic_message(panic.as_ref()),
        )),
    }
}

fn counterexample<A: Debug>(
    violation: Violation,
    trail: Option<&Trail<A>>,
    states: u64,
) -> Box<Counterexample> {
    let mut path = Vec::new();
    let mut step = trail;
    while let Some(Trail { before, at, action }) = step {
        path.push(format!("{:9.3} {action:?}", at.as_secs_f64()));
        step = before.as_deref();
    }
    path.reverse();
    Box::new(Counterexample {
        violation,
        path,
        states,
    })
}
