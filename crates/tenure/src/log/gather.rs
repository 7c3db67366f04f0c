//! Whether it is worth a moment to wait for more records before a commit.
//!
//! Callers that were answered together come back together, one shortly after the other. A commit that takes only
//! the first of them costs as much as one that takes all, and lets all others wait for it. So a batch that is far
//! smaller than those before it waits for more, for a fraction of what a commit takes. A caller that is alone
//! never waits, nor do so many that the commit is worth it anyway.

use std::time::Duration;

/// So many records are worth a commit, however many there usually are.
const ENOUGH_MAX: usize = 16;

/// The longest wait, however long a commit took.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// Over about how many commits it is counted what is usual.
const COMMITS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// How many records were lately committed together, times [`COMMITS`].
    usual: usize,
    /// How long the last commit took.
    took: Duration,
}

impl Gather {
    pub(crate) fn committed(&mut self, records: usize, took: Duration) {
        self.usual = self.usual - self.usual / COMMITS + records;
        self.took = took;
    }

    /// So many records need not wait: half of what is usual.
    pub(crate) fn enough(&self) -> usize {
        (self.usual / COMMITS / 2).clamp(1, ENOUGH_MAX)
    }

    /// How much longer so many records are to wait, the first of which were seen so long ago.
    pub(crate) fn wait(&self, records: usize, waited: Duration) -> Duration {
        match records < self.enough() {
            true => (self.took / 2).min(WAIT_MAX).saturating_sub(waited),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: Duration = Duration::from_micros(150);

    fn after(batches: &[(usize, usize)]) -> Gather {
        let mut gather = Gather::default();
        for &(times, records) in batches {
            (0..times).for_each(|_| gather.committed(records, COMMIT));
        }
        gather
    }

    #[test]
    fn a_caller_that_is_alone_never_waits() {
        assert_eq!(after(&[]).wait(1, Duration::ZERO), Duration::ZERO);
        assert_eq!(after(&[(100, 1)]).wait(1, Duration::ZERO), Duration::ZERO);
        // Not for long after there were others either.
        let gather = after(&[(100, 20), (40, 1)]);
        assert_eq!(gather.wait(1, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn the_first_of_many_wait_for_half_of_the_usual() {
        let gather = after(&[(100, 20)]);
        assert_eq!(gather.wait(1, Duration::ZERO), COMMIT / 2);
        assert_eq!(gather.wait(8, COMMIT / 3), COMMIT / 6);
        assert_eq!(gather.wait(8, COMMIT), Duration::ZERO);
        assert_eq!(gather.wait(10, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn neither_a_crowd_nor_a_slow_disk_makes_anyone_wait_for_long() {
        let mut gather = after(&[(100, 10_000)]);
        assert_eq!(gather.wait(ENOUGH_MAX, Duration::ZERO), Duration::ZERO);
        gather.committed(10_000, Duration::from_secs(30));
        assert_eq!(gather.wait(1, Duration::ZERO), WAIT_MAX);
    }
}
