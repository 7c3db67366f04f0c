//! Whose turn it is.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Turns;
use crate::Error;

const MINUTE_NANOSECONDS: u64 = 60_000_000_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What requests of one kind pass through.
#[derive(Debug)]
pub(super) struct Gate {
    /// The time that one request takes up; `None` without a rate.
    interval: Option<Duration>,
    /// How much time may be taken up at once.
    burst: Duration,
    pub(super) per_day: Option<u64>,
    waiters_max: usize,
    state: Mutex<State>,
    /// Held by the first of those who wait, while the others queue for it. Tokio's mutex hands itself
    /// on in the order of arrival, and forgets waiters that are dropped.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(super) struct State {
    /// When the bucket will be full again: each request moves it on by one interval. One moment instead of
    /// a count and a time leaves nothing to round.
    full_at: Instant,
    pub(super) day_ends: Option<Instant>,
    pub(super) spent: u64,
    pub(super) refused: u64,
    pub(super) turns: Turns,
}

/// Why a request was not sent.
#[derive(Debug)]
pub(super) enum Stop {
    Spent { budget: u64, resets_in: Duration },
    Crowded { waiters_max: usize },
}

impl Gate {
    pub(super) fn new(
        per_minute: Option<u32>,
        per_day: Option<u32>,
        burst: u32,
        waiters_max: usize,
    ) -> Self {
        // Rounded up, so that the rate is never exceeded.
        let interval = per_minute
            .map(|rate| Duration::from_nanos(MINUTE_NANOSECONDS.div_ceil(u64::from(rate))));
        let burst = burst.min(per_minute.unwrap_or(u32::MAX));
        Self {
            interval,
            burst: interval.unwrap_or_default() * burst,
            per_day: per_day.map(u64::from),
            waiters_max,
            state: Mutex::new(State {
                full_at: Instant::now(),
                day_ends: None,
                spent: 0,
                refused: 0,
                turns: Turns::default(),
            }),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Every change of the state is one step that cannot panic half way.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this request's turn. The token is taken in the last step, so a caller that is dropped
    /// while it waits has taken none.
    pub(super) async fn pass(&self) -> Result<(), Stop> {
        let Some(_waiting) = self.enter()? else {
            return Ok(());
        };
        let _turn = self.turn.lock().await;
        loop {
            let ready = self.take(&mut self.state())?;
            match ready {
                None => return Ok(()),
                Some(ready) => sleep_until(ready).await,
            }
        }
    }

    /// Passes at once, or joins those who wait.
    fn enter(&self) -> Result<Option<Waiting<'_>>, Stop> {
        let mut state = self.state();
        // Whoever waits goes first, even if there is a token by now.
        if state.turns.waiting == 0 && self.take(&mut state)?.is_none() {
            return Ok(None);
        }
        if state.turns.waiting >= self.waiters_max {
            state.turns.turned_away += 1;
            return Err(Stop::Crowded {
                waiters_max: self.waiters_max,
            });
        }
        state.turns.waiting += 1;
        Ok(Some(Waiting {
            gate: self,
            since: Instant::now(),
        }))
    }

    /// Takes a token, or says when there will be one.
    fn take(&self, state: &mut State) -> Result<Option<Instant>, Stop> {
        let now = Instant::now();
        state.begin_day(now);
        if let (Some(budget), Some(ends)) = (self.per_day, state.day_ends)
            && state.spent >= budget
        {
            state.refused += 1;
            return Err(Stop::Spent {
                budget,
                resets_in: ends - now,
            });
        }
        if let Some(interval) = self.interval {
            let full_at = state.full_at.max(now) + interval;
            let ahead = full_at - now;
            if ahead > self.burst {
                return Ok(Some(now + (ahead - self.burst)));
            }
            state.full_at = full_at;
        }
        state.spent += 1;
        state.day_ends.get_or_insert(now + DAY);
        state.turns.sent += 1;
        Ok(None)
    }
}

impl State {
    /// Forgets a day that has ended; the next write begins a new one.
    pub(super) fn begin_day(&mut self, now: Instant) {
        if self.day_ends.is_some_and(|ends| ends <= now) {
            self.day_ends = None;
            self.spent = 0;
        }
    }
}

/// A request that waits, until it passes, is refused or is dropped.
struct Waiting<'a> {
    gate: &'a Gate,
    since: Instant,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        let turns = &mut self.gate.state().turns;
        turns.waiting -= 1;
        turns.waited += 1;
        turns.waited_total += waited;
        turns.waited_longest = turns.waited_longest.max(waited);
    }
}

impl Stop {
    pub(super) fn explain(self, doing: String) -> Error {
        match self {
            Stop::Spent { budget, resets_in } => Error::refused(
                doing,
                format!(
                    "the ceiling of {budget} writes per day resets in {}; raise writes_per_day, or \
                     write less often",
                    hours(resets_in)
                ),
                format!("this process has used up its {budget} writes for the day"),
            ),
            Stop::Crowded { waiters_max } => Error::unavailable(
                doing,
                format!("{waiters_max} requests are already waiting because of the ceiling"),
            ),
        }
    }
}

/// In hours and minutes, rounded up: never a promise that is too early.
fn hours(duration: Duration) -> String {
    let minutes = duration.as_nanos().div_ceil(MINUTE_NANOSECONDS.into());
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) => format!("{hours} h"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_told_rounded_up() {
        for (seconds, text) in [
            (0, "0 min"),
            (1, "1 min"),
            (3600, "1 h"),
            (3601, "1 h 1 min"),
            (86_400, "24 h"),
        ] {
            assert_eq!(hours(Duration::from_secs(seconds)), text);
        }
    }
}
