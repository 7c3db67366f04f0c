//! The search itself: every state that can be reached is entered once, and judged.

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
    /// What is looked at.
    type Bounds;
    /// One step.
    type Action: Debug;
    /// What can go wrong.
    type Kind: Ord;

    /// How it begins.
    fn first(bounds: &Self::Bounds) -> Result<Self, Violation>;
    /// What time it is.
    fn now(&self) -> Duration;
    /// What can happen next.
    fn actions(&self, bounds: &Self::Bounds) -> Vec<Self::Action>;
    /// The fault that an action is.
    fn kind(action: &Self::Action) -> Option<Self::Kind>;
    /// Lets something happen, and judges what comes of it.
    fn take(&mut self, action: &Self::Action) -> Result<(), Violation>;
    /// Whether nothing can go wrong any more, and nothing that went wrong goes on.
    fn is_calm(&self) -> bool;
    /// Whether it is let run right after a fault, too.
    fn converges_after_faults() -> bool;
    /// Lets it run alone: all must come right in time.
    fn converges(self) -> Result<(), Violation>;
}

/// What an exhaustive look found, if nothing was broken.
#[derive(Debug, Clone)]
pub struct Explored<K> {
    /// How many different states there are.
    pub states: u64,
    /// How many steps between them.
    pub steps: u64,
    /// How many times the world was let run alone.
    pub calm_runs: u64,
    /// How often each fault struck.
    pub faults: BTreeMap<K, u64>,
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
    /// How many states were looked at before.
    pub states: u64,
}

/// The steps to a state, shared by all that come after it.
#[derive(Debug)]
struct Trail<A> {
    before: Option<Arc<Trail<A>>>,
    at: Duration,
    action: A,
}

/// The steps to a state of this world; none to the first.
type Steps<W> = Option<Arc<Trail<<W as World>::Action>>>;

/// Looks at everything within the bounds, but at so many states at most.
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
