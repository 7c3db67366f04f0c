//! Within a term a wall clock that jumps moves the queue's time by no more than is believed of a clock: minutes. So no
//! delay ends earlier than by that.

use tenure::queue::{ClockState, Options, Queue};
use tenure_core::election::Term;

use crate::invariants::Violation;

/// How far a clock is off that is wrong for a moment: much more than is believed, and than clocks here are off otherwise.
pub(crate) const GLITCH_MS: u64 = 2 * 3_600_000;

/// What is not the glitch's doing: a clock that was set back earlier in the term may be set right by as much, and
/// clocks run at different rates.
const BESIDES_MS: u64 = 25 * 60_000;

/// The queue's time before its broker's clock went wrong.
#[derive(Debug)]
pub(crate) struct Glitch {
    term: Term,
    before: u64,
}

impl Glitch {
    /// Only where a broker serves and follows its clock.
    pub(crate) fn begin(queue: &Queue) -> Option<Self> {
        let term = queue.election().leadership()?.term();
        let followed = queue.clock().ok()? == ClockState::Followed;
        let before = queue.now_ms().ok()?;
        followed.then_some(Self { term, before })
    }

    pub(crate) fn check(&self, queue: &Queue) -> Result<(), Violation> {
        let term = queue.election().leadership().map(|leading| leading.term());
        let Ok(now) = queue.now_ms() else {
            return Ok(());
        };
        let believed = Options::default().clock_step_max.as_millis();
        let most = u64::try_from(believed).unwrap_or(u64::MAX) + BESIDES_MS;
        if term != Some(self.term) || now.saturating_sub(self.before) <= most {
            return Ok(());
        }
        let message = format!(
            "in term {} the queue's time went from {} to {now} within about a second",
            self.term, self.before
        );
        Err(Violation::new("time is believed in steps", message))
    }
}
