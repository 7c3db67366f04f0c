//! Checks linearizability: whether what clients saw could have happened one call after the other. Uses the search of
//! Wing and Gong with Lowe's memoisation, like Porcupine.
//!
//! A history is a list of calls, with the times just before each was sent and just after it was answered. A call
//! takes effect at one moment in between. A call whose answer was lost takes effect at any later moment, or never.
//! [`check`] looks for an order that fits all answers, using a [`Model`] of the called object: it tries each call
//! that may come next, remembers which calls were taken and the state that was reached, and goes back where nothing
//! fits.
//!
//! It is exponential in calls that overlap, and linear in those that do not. So histories are split as far as
//! possible, one for each [job], and the search stops after a number of steps: then it has no result, and callers
//! count that.
//!
//! A crate without dependencies, for simulated and for real histories.

pub mod job;

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// A model of the called object, which handles one call after the other.
pub trait Model {
    /// Everything that later answers depend on.
    type State: Clone + Eq + Hash + Debug;
    /// A call with its answer, or without one if it was lost.
    type Call: Debug;

    /// The possible states after a call with this answer; empty if the answer is not possible in this state.
    fn after(&self, state: &Self::State, call: &Self::Call) -> Vec<Self::State>;

    /// The states that it can reach without a call, in one step.
    fn settles(&self, state: &Self::State) -> Vec<Self::State>;
}

/// A call, with its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<C> {
    /// Before it was sent.
    pub begun: u64,
    /// After it was answered; `None` if it never was.
    pub ended: Option<u64>,
    /// The call and its answer.
    pub call: C,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that fits.
    Fits,
    /// There is none. This call, the first in the order of answers, fits nowhere, whatever the order of the calls
    /// before it.
    Broken(usize),
    /// Unknown: the search took too long.
    GaveUp,
}

/// The most steps of a search.
const STEPS_MAX: usize = 200_000;

/// Which calls were taken, one bit each.
type Taken = Vec<u64>;

/// Looks for an order of calls that fits all answers.
///
/// ```
/// use tenure_linear::job::{Call, Job, Seen, State, Submitted};
/// use tenure_linear::{Entry, Verdict, check};
///
/// let call = |begun, ended, call| Entry { begun, ended: Some(ended), call };
/// let job = Job::default();
/// let fits = [
///     call(1, 2, Call::Submit(Some(Submitted::Created))),
///     call(3, 4, Call::Read(Seen::Waiting)),
/// ];
/// assert_eq!(check(&job, State::ABSENT, &fits), Verdict::Fits);
/// let stale = [
///     call(1, 2, Call::Submit(Some(Submitted::Created))),
///     call(3, 4, Call::Read(Seen::Nothing)),
/// ];
/// assert_eq!(check(&job, State::ABSENT, &stale), Verdict::Broken(1));
/// ```
pub fn check<M: Model>(model: &M, first: M::State, history: &[Entry<M::Call>]) -> Verdict {
    let mut order: Vec<usize> = (0..history.len()).collect();
    order.sort_by_key(|&at| history[at].begun);
    let none = vec![0; history.len().div_ceil(64)];
    let mut seen: HashSet<(Taken, M::State)> = HashSet::new();
    seen.insert((none.clone(), first.clone()));
    let mut open = vec![(none, first)];
    // The latest call, in the order of answers, that had to come next and never fitted.
    let mut furthest: Option<(u64, usize)> = None;
    while let Some((taken, state)) = open.pop() {
        let is_open = |at: usize| taken[at / 64] & (1 << (at % 64)) == 0;
        let next = order
            .iter()
            .copied()
            .filter(|&at| is_open(at))
            .filter_map(|at| Some((history[at].ended?, at)))
            .min();
        let Some((deadline, at)) = next else {
            return Verdict::Fits;
        };
        furthest = furthest.max(Some((deadline, at)));
        let mut found = |taken: Taken, state: M::State| {
            let place = (taken, state);
            if !seen.contains(&place) {
                seen.insert(place.clone());
                open.push(place);
            }
        };
        // A call that was sent after another one was answered comes after it.
        let may_be_next = order
            .iter()
            .copied()
            .take_while(|&at| history[at].begun < deadline);
        for at in may_be_next.filter(|&at| is_open(at)) {
            let entry = &history[at];
            for after in model.after(&state, &entry.call) {
                // A call without an answer that changed nothing can be left out.
                if entry.ended.is_none() && after == state {
                    continue;
                }
                let mut taken = taken.clone();
                taken[at / 64] |= 1 << (at % 64);
                found(taken, after);
            }
        }
        for settled in model.settles(&state) {
            found(taken.clone(), settled);
        }
        if seen.len() > STEPS_MAX {
            return Verdict::GaveUp;
        }
    }
    let (_, at) = furthest.unwrap_or_default();
    Verdict::Broken(at)
}

#[cfg(test)]
mod tests;
