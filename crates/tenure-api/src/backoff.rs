//! How long a failed job waits before it is tried again.

use serde::{Deserialize, Serialize};

/// The wait between attempts: `first_ms * factor^(attempt - 1)`, at most `max_ms`, less jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
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
