//! How long a failed job waits before it is tried again.
//!
//! The wait grows by a factor with every attempt up to a bound, less a share of jitter. The jitter comes
//! from the job's id and the attempt, so a replay waits exactly as long, while jobs that failed together
//! come back apart.

use tenure_api::Backoff;

use super::hash::Hash;

/// The wait after this attempt (counted from 1) of the job with this id.
pub(crate) fn wait_ms(backoff: Backoff, id: &str, attempt: u32) -> u64 {
    let growth = u64::from(backoff.factor).saturating_pow(attempt.saturating_sub(1));
    let whole = u64::from(backoff.first_ms)
        .saturating_mul(growth)
        .min(backoff.max_ms.into());
    let band = whole * u64::from(backoff.jitter_percent.min(100)) / 100;
    if band == 0 {
        return whole;
    }
    let mut hash = Hash::new(attempt.into());
    hash.text(id);
    whole - hash.finish() % (band + 1)
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
            .map(|attempt| wait_ms(steady, "a", attempt))
            .into();
        assert_eq!(
            waits,
            [1_000, 2_000, 4_000, 2_048_000, 3_600_000, 3_600_000]
        );
        let constant = Backoff {
            factor: 1,
            ..steady
        };
        assert_eq!(wait_ms(constant, "a", 50), 1_000);
    }

    #[test]
    fn jitter_is_repeatable_stays_in_its_band_and_spreads() {
        let backoff = Backoff::default();
        let waits: Vec<_> = (0..100)
            .map(|number| wait_ms(backoff, &format!("job-{number}"), 3))
            .collect();
        assert!(waits.iter().all(|wait| (3_200..=4_000).contains(wait)));
        let distinct: std::collections::BTreeSet<_> = waits.iter().collect();
        assert!(distinct.len() > 50, "{} of 100 differ", distinct.len());
        assert_eq!(waits[7], wait_ms(backoff, "job-7", 3));
        assert_ne!(waits[7], wait_ms(backoff, "job-7", 4) / 2);
    }
}
