//! What must hold after every event, one file per property.

use std::fmt;

pub mod decided_after_installed;
pub mod ended_for_a_reason;
pub mod ended_stays_ended;
pub mod every_shard_runs;
pub mod evicted_after_ttl;
pub mod fence_only_grows;
pub mod generations_only_grow;
pub mod gone_after_work;
pub mod installed_first;
pub mod never_made_again;
pub mod no_hot_loop;
pub mod one_leader;
pub mod one_shard_holder;
pub mod paired_events;
pub mod started_alone;
pub mod taken_from_ended;
pub mod terms_only_grow;
pub mod trust_is_backed;
pub mod vacated_after_work;

/// An invariant that was broken.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The property, as a claim.
    pub property: &'static str,
    /// How the property was broken.
    pub message: String,
}

impl Violation {
    /// A property and how it was broken.
    pub fn new(property: &'static str, message: impl Into<String>) -> Self {
        Self {
            property,
            message: message.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "broken: {}: {}", self.property, self.message)
    }
}
