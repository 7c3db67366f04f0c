//! Logs when a store starts to fail, now and then while it goes on failing, and when it works again.
//!
//! While a store is down, many requests of every process that uses it fail. A line for each of them would hide
//! everything else, and add nothing to the first one.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often to log that a store still fails.
const REPEAT: Duration = Duration::from_secs(10);

/// How long there must be no failure before the outage counts as over. A store that fails now and then has not
/// recovered each time it answers.
const QUIET: Duration = Duration::from_secs(5);

/// Keeps count of failures and logs only what is worth reading. The others are logged at level debug.
#[derive(Debug, Default)]
pub struct Outage {
    spell: Mutex<Option<Spell>>,
}

/// A series of failures with little time between them.
#[derive(Debug, Clone, Copy)]
struct Spell {
    began: Instant,
    last: Instant,
    told: Instant,
    /// All failures, and those that were not reported yet.
    failures: u64,
    untold: u64,
}

/// What is worth logging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    Begun,
    GoesOn { failures: u64, since: Duration },
    Over { failures: u64, since: Duration },
}

impl Outage {
    /// Starts without failures.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            spell: Mutex::new(None),
        }
    }

    /// Notes a failed request; `why` says which one, and what happened.
    pub fn failed(&self, why: impl Display) {
        match self.change(|spell| failed(spell, Instant::now())) {
            Some(Notice::Begun) => tracing::warn!("the store fails: {why}"),
            Some(Notice::GoesOn { failures, since }) => {
                tracing::warn!(
                    failures,
                    ?since,
                    "the store still fails; the last error: {why}"
                );
            }
            _ => tracing::debug!("the store fails: {why}"),
        }
    }

    /// Notes an answered request.
    pub fn answered(&self) {
        let told = self.change(|spell| answered(spell, Instant::now()));
        if let Some(Notice::Over { failures, since }) = told {
            tracing::info!(failures, ?since, "the store answers again");
        }
    }

    fn change(&self, change: impl FnOnce(&mut Option<Spell>) -> Option<Notice>) -> Option<Notice> {
        // Each change is one step that cannot panic half way, so a poisoned lock is still consistent.
        change(&mut self.spell.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn failed(spell: &mut Option<Spell>, now: Instant) -> Option<Notice> {
    let present = spell.filter(|spell| now.duration_since(spell.last) < REPEAT + QUIET);
    let Some(mut present) = present else {
        *spell = Some(Spell {
            began: now,
            last: now,
            told: now,
            failures: 1,
            untold: 0,
        });
        return Some(Notice::Begun);
    };
    present.last = now;
    present.failures += 1;
    present.untold += 1;
    let told = (now.duration_since(present.told) >= REPEAT).then(|| {
        present.told = now;
        Notice::GoesOn {
            failures: std::mem::take(&mut present.untold),
            since: now.duration_since(present.began),
        }
    });
    *spell = Some(present);
    told
}

fn answered(spell: &mut Option<Spell>, now: Instant) -> Option<Notice> {
    let present = spell.take_if(|spell| now.duration_since(spell.last) >= QUIET)?;
    Some(Notice::Over {
        failures: present.failures,
        since: now.duration_since(present.began),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_outage_takes_few_words() {
        let start = Instant::now();
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        let (mut spell, mut told) = (None, Vec::new());
        assert_eq!(answered(&mut spell, at(0)), None);
        for failure in 0..1000 {
            // A request gets through now and then.
            if failure % 7 == 3 {
                assert_eq!(answered(&mut spell, at(failure * 30)), None);
            }
            told.extend(failed(&mut spell, at(failure * 30)));
        }
        let [
            Notice::Begun,
            Notice::GoesOn { failures: 334, .. },
            Notice::GoesOn { failures: 334, .. },
        ] = told[..]
        else {
            panic!("{told:?}");
        };
        let last = 999 * 30;
        assert_eq!(answered(&mut spell, at(last + 4999)), None);
        let over = Notice::Over {
            failures: 1000,
            since: Duration::from_millis(last + 5000),
        };
        assert_eq!(answered(&mut spell, at(last + 5000)), Some(over));
        assert_eq!(answered(&mut spell, at(last + 5000)), None);
        assert_eq!(failed(&mut spell, at(last + 5001)), Some(Notice::Begun));
    }

    #[test]
    fn failures_far_apart_are_told_each_though_nobody_says_that_one_is_over() {
        let start = Instant::now();
        let mut spell = None;
        for minute in 0..3 {
            let now = start + Duration::from_secs(60 * minute);
            assert_eq!(failed(&mut spell, now), Some(Notice::Begun));
        }
    }
}
