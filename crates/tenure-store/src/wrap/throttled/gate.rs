//! Whose turn it is.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Turns;
use crate::Error;

const MINUTE_NANOSECONDS: u64 = 60_000_000_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The budget runs low when less than one part in this many is left.
const LOW_SHARE: u64 = 5;

/// The longest pause that a write is asked for.
const PACE_MAX: Duration = Duration::from_secs(60);

/// Who sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Session,
    Others,
}

/// What requests of one kind pass through.
#[derive(Debug)]
pub(super) struct Gate {
    /// The time that one request uses up; `None` without a rate.
    interval: Option<Duration>,
    /// How much time may be used up at once.
    burst: Duration,
    /// How many requests may be sent in a day, and how many of them are reserved for the session.
    pub(super) per_day: Option<(u64, u64)>,
    waiters_max: usize,
    state: Mutex<State>,
    /// Held by the first of those who wait, while the others queue for it. Tokio's mutex is handed on in the order of
    /// arrival, and drops waiters that are cancelled.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(super) struct State {
    /// When the bucket will be full again: each request moves it on by one interval. One moment instead of
    /// a count and a time leaves nothing to round.
    full_at: Instant,
    pub(super) day_ends: Option<Instant>,
    pub(super) spent: u64,
    /// When the last request was sent that was not the session's own.
    last: Option<Instant>,
    /// Until when callers were told to pause.
    paused_until: Instant,
    was_low: bool,
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
        per_day: Option<(u64, u64)>,
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
            per_day,
            waiters_max,
            state: Mutex::new(State {
                full_at: Instant::now(),
                day_ends: None,
                spent: 0,
                last: None,
                paused_until: Instant::now(),
                was_low: false,
                refused: 0,
                turns: Turns::default(),
            }),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Each change of the state is one step that cannot panic half way, so a poisoned lock is still consistent.
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
            let ready = self.take(&mut self.state(), Whose::Others)?;
            match ready {
                None => return Ok(()),
                Some(ready) => sleep_until(ready).await,
            }
        }
    }

    /// As [`Gate::pass`], for the session: takes a token without waiting, even ahead of those who wait.
    pub(super) fn pass_at_once(&self) -> Result<(), Stop> {
        let mut state = self.state();
        self.take(&mut state, Whose::Session).map(drop)
    }

    /// Takes no token.
    pub(super) fn pass_unlimited(&self) {
        self.state().turns.sent += 1;
    }

    /// Whether the budget of the day runs low.
    pub(super) fn is_low(&self) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        state.begin_day(now);
        self.pace(&state, now).is_some()
    }

    /// How long a caller that can wait, and has something to send, should wait before the next request. Counts the
    /// wait, but only once however often the caller asks.
    pub(super) fn pause(&self) -> Duration {
        let mut state = self.state();
        let now = Instant::now();
        state.begin_day(now);
        let turn = self.interval.map_or(Duration::ZERO, |interval| {
            let ahead = (state.full_at.max(now) + interval) - now;
            ahead.saturating_sub(self.burst)
        });
        let paced = match (self.pace(&state, now), state.last) {
            (Some(pace), Some(last)) => (last + pace).saturating_duration_since(now),
            _ => Duration::ZERO,
        };
        let pause = turn.max(paced);
        state.count_pause(now, pause);
        pause
    }

    /// What is left of the day's budget for everything but the session.
    pub(super) fn spendable(&self, state: &State, now: Instant) -> Option<u64> {
        let (budget, reserved) = self.per_day?;
        let left = state.day_ends.map_or(DAY, |ends| ends - now);
        // Rounded up, so that the last heartbeat of the day is covered.
        let kept = (u128::from(reserved) * left.as_millis()).div_ceil(DAY.as_millis());
        let kept = u64::try_from(kept).unwrap_or(u64::MAX);
        Some(budget.saturating_sub(state.spent).saturating_sub(kept))
    }

    /// The interval between requests that makes what is left last the day, if the budget runs low.
    pub(super) fn pace(&self, state: &State, now: Instant) -> Option<Duration> {
        let (budget, reserved) = self.per_day?;
        let left = state.day_ends? - now;
        let (spendable, whole) = (self.spendable(state, now)?, budget - reserved);
        // Once low, it stays low until what is left lasts the day. Without this it would flip: the reserve shrinks
        // every minute, which frees a little to spend.
        let is_little = state.was_low || spendable.saturating_mul(LOW_SHARE) < whole;
        let lasts = u128::from(spendable) * DAY.as_millis() >= u128::from(whole) * left.as_millis();
        if !is_little || lasts {
            return None;
        }
        let requests = u32::try_from(spendable).unwrap_or(u32::MAX).max(1);
        Some((left / requests).min(PACE_MAX))
    }

    /// Passes at once, or joins those who wait.
    fn enter(&self) -> Result<Option<Waiting<'_>>, Stop> {
        let mut state = self.state();
        // A waiting request goes first, even if there is a token by now.
        if state.turns.waiting == 0 && self.take(&mut state, Whose::Others)?.is_none() {
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
    fn take(&self, state: &mut State, whose: Whose) -> Result<Option<Instant>, Stop> {
        let now = Instant::now();
        state.begin_day(now);
        if let (Some((budget, _)), Some(ends)) = (self.per_day, state.day_ends) {
            let left = match whose {
                Whose::Session => budget.saturating_sub(state.spent),
                Whose::Others => self.spendable(state, now).unwrap_or_default(),
            };
            if left == 0 {
                state.refused += 1;
                return Err(Stop::Spent {
                    budget,
                    resets_in: ends - now,
                });
            }
        }
        if let Some(interval) = self.interval {
            let full_at = state.full_at.max(now) + interval;
            let ahead = full_at - now;
            if ahead > self.burst && whose == Whose::Others {
                return Ok(Some(now + (ahead - self.burst)));
            }
            state.full_at = full_at;
        }
        state.spent += 1;
        state.day_ends.get_or_insert(now + DAY);
        state.turns.sent += 1;
        if whose == Whose::Others {
            state.last = Some(now);
        }
        self.warn_if_low(state, now);
        Ok(None)
    }
}

impl Gate {
    /// Says once a day that the budget runs low, while there is still time to do something about it.
    fn warn_if_low(&self, state: &mut State, now: Instant) {
        if state.was_low {
            return;
        }
        if let (Some(pace), Some((budget, _)), Some(ends)) =
            (self.pace(state, now), self.per_day, state.day_ends)
        {
            state.was_low = true;
            let left = self.spendable(state, now).unwrap_or_default();
            tracing::warn!(
                budget,
                left,
                resets_in = hours(ends - now),
                pace = ?pace,
                "the budget of writes for the day runs low: commits and heartbeats become rarer; heartbeats are kept in reserve"
            );
        }
    }
}

impl State {
    /// Drops a day that has ended; the next write begins a new one.
    pub(super) fn begin_day(&mut self, now: Instant) {
        if self.day_ends.is_some_and(|ends| ends <= now) {
            self.day_ends = None;
            self.spent = 0;
            self.was_low = false;
        }
    }

    /// Counts the part of a pause that was not counted before.
    fn count_pause(&mut self, now: Instant, pause: Duration) {
        let until = now + pause;
        if pause.is_zero() || until <= self.paused_until {
            return;
        }
        self.turns.waited += u64::from(self.paused_until <= now);
        self.turns.waited_total += until - self.paused_until.max(now);
        self.turns.waited_longest = self.turns.waited_longest.max(pause);
        self.paused_until = until;
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
                     write less often; heartbeats go on",
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

/// In hours and minutes, rounded up, so that it never promises too early a time.
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
