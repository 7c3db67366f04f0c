//! How long a failed job waits before it is tried again.
//!
//! The wait grows by a factor with every attempt up to a bound, less a share of jitter. The jitter comes
//! from the job's id and the attempt, so a replay waits exactly as long, while jobs that failed together
//! come back apart.

use serde::{Deserialize, Serialize};

use super::hash::Hash;

/// The wait between attempts: `first_ms * factor^(attempt - 1)`, at most `max_ms`, less jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// The wait after the first failed attempt. Default 1 s.
    pub first_ms: u32,
    /// What the wait grows by with each attempt; 1 for a constant wait. Default 2.
    pub factor: u8,
    /// The longest wait. Default 1 hour.
    pub max_ms: u32,
    /// Up to this share of the wait is taken off at random. Default 20.
    pub jitter_percent: u8,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first_ms: 1_000,
            factor: 2,
            max_ms: 3_600_000,
            jitter_percent: 20,
        }
    }
}

impl Backoff {
    /// The wait after this attempt (counted from 1) of the job with this id.
    #[must_use]
    pub fn wait_ms(&self, id: &str, attempt: u32) -> u64 {
        let growth = u64::from(self.factor).saturating_pow(attempt.saturating_sub(1));
        let whole = u64::from(self.first_ms)
            .saturating_mul(growth)
            .min(self.max_ms.into());
        let band = whole * u64::from(self.jitter_percent.min(100)) / 100;
        if band == 0 {
            return whole;
        }
        let mut hash = Hash::new(attempt.into());
        hash.text(id);
        whole - hash.finish() % (band + 1)
    }

    pub(crate) fn hash(&self, hash: &mut Hash) {
        hash.number(u64::from(self.first_ms) << 32 | u64::from(self.max_ms));
        hash.number(u64::from(self.factor) << 8 | u64::from(self.jitter_percent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_bound_and_never_exceed_it() {
        let steady = Backoff {
            jitter_percent: 0,
            ..Backoff::default()
        };
        let waits: Vec<_> = [1, 2, 3, 12, 13, u32::MAX]
            .map(|attempt| steady.wait_ms("a", attempt))
            .into();
        assert_eq!(
            waits,
            [1_000, 2_000, 4_000, 2_048_000, 3_600_000, 3_600_000]
        );
        let constant = Backoff {
            factor: 1,
            ..steady
        };
        assert_eq!(constant.wait_ms("a", 50), 1_000);
    }

    #[test]
    fn jitter_is_repeatable_stays_in_its_band_and_spreads() {
        let backoff = Backoff::default();
        let waits: Vec<_> = (0..100)
            .map(|number| backoff.wait_ms(&format!("job-{number}"), 3))
            .collect();
        assert!(waits.iter().all(|wait| (3_200..=4_000).contains(wait)));
        let distinct: std::collections::BTreeSet<_> = waits.iter().collect();
        assert!(distinct.len() > 50, "{} of 100 differ", distinct.len());
        assert_eq!(waits[7], backoff.wait_ms("job-7", 3));
        assert_ne!(waits[7], backoff.wait_ms("job-7", 4) / 2);
    }
}
