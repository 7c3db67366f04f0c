//! If nothing else goes wrong, there is a leader in time.

use std::time::Duration;

use super::action::Action;
use super::search::World;
use super::state::State;
use crate::invariants::Violation;

/// Lets the world run without faults: paused processes continue, requests in transit arrive, work ends, and one
/// process must lead within the bound.
pub(super) fn converges(mut state: State) -> Result<(), Violation> {
    let from = state.now();
    let deadline = from + bound(&state);
    state.free();
    while let Some(action) = next(&state, deadline) {
        if state.is_led_since(from) || state.is_led_by_caller() {
            return Ok(());
        }
        state.take(&action)?;
    }
    if state.candidates() == 0 {
        return Ok(());
    }
    let message = format!(
        "{:?} lead at {:?}, with nothing wrong since long",
        state.leaders(),
        state.now()
    );
    Err(Violation::new("one leader when all is well", message))
}

fn next(state: &State, deadline: Duration) -> Option<Action> {
    state
        .next_alone()
        .or_else(|| (state.now() < deadline).then_some(Action::Tick))
}

/// A dead leader is evicted after its ttl. Its successor by transfer may be dead too, or a lease was deleted or
/// restored, which costs another ttl; and a process that has resigned is not a candidate for a while. Then comes the
/// next look.
fn bound(state: &State) -> Duration {
    let ttl = state.ttl_max();
    ttl * 3 + ttl / 50 + state.heartbeat_max() * 3
}
