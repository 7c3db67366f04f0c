//! Decides how soon a program that has ended is started again.

use std::time::Duration;

use crate::commands::guard::message::Status;

const DELAY_MIN: Duration = Duration::from_millis(250);
const DELAY_MAX: Duration = Duration::from_secs(30);

/// A program that has run for this long was healthy; earlier failures no longer count.
const WELL_AFTER: Duration = Duration::from_secs(60);

/// After this many failures in a row, this host may well be the cause.
const FAILURES_MAX: u32 = 5;

/// Counts a program's ends and failures in this term.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    ends: u32,
    failures: u32,
}

/// What to do now that a program has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start it again after this long.
    After(Duration),
    /// It failed here this many times in a row: let another node lead.
    GiveUp(u32),
}

impl BackOff {
    pub(super) fn next(&mut self, status: Status, ran_for: Duration) -> Next {
        if ran_for >= WELL_AFTER {
            *self = Self::default();
        }
        self.failures = match status {
            Status::Exited(0) => 0,
            Status::Exited(_) | Status::Killed(_) => self.failures + 1,
        };
        if self.failures >= FAILURES_MAX {
            return Next::GiveUp(self.failures);
        }
        // Doubles each time, up to the maximum; the exponent is bounded so that it cannot overflow.
        let delay = DELAY_MIN * 2_u32.pow(self.ends.min(10));
        self.ends += 1;
        Next::After(delay.min(DELAY_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn failures_are_retried_later_each_time_and_then_left_to_others() {
        let mut back_off = BackOff::default();
        for milliseconds in [250, 500, 1000, 2000] {
            let next = back_off.next(Status::Exited(1), SOON);
            assert_eq!(next, Next::After(Duration::from_millis(milliseconds)));
        }
        assert_eq!(back_off.next(Status::Killed(9), SOON), Next::GiveUp(5));
    }

    #[test]
    fn a_program_that_succeeds_is_started_again_for_ever() {
        let mut back_off = BackOff::default();
        let last = (0..100)
            .map(|_| back_off.next(Status::Exited(0), SOON))
            .last();
        assert_eq!(last, Some(Next::After(DELAY_MAX)));
    }

    #[test]
    fn a_long_run_makes_up_for_failures() {
        let mut back_off = BackOff::default();
        for _ in 0..20 {
            let next = back_off.next(Status::Exited(1), WELL_AFTER);
            assert_eq!(next, Next::After(DELAY_MIN));
        }
    }
}
