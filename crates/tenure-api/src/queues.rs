//! Queues, their settings and their time over HTTP.

use serde::{Deserialize, Serialize};

use crate::{QueueName, QueueOptions, Rate};

/// What `GET /v1/queues` and `GET /v1/schedules` may say: which page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema, utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields, default)]
pub struct NamesQuery {
    /// At most this many, up to 1,000. Default 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// By name, after this `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// `GET /v1/queues`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuesAnswer {
    /// Queues that have jobs or settings, by name.
    pub queues: Vec<Queue>,
    /// Where the next page starts; absent if this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<QueueName>,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Queue {
    /// Its name.
    pub name: QueueName,
    /// No job of it is claimed.
    pub paused: bool,
    /// Its limits.
    pub options: QueueOptions,
    /// Its jobs.
    pub counts: Counts,
    /// When the job that is next was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ready_at: Option<u64>,
}

/// `PATCH /v1/queues/{queue}`: change some limits of a queue. Fields that are left out stay as they are; `null` removes a
/// limit. Calls that change different fields at the same time do not undo each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct QueueChange {
    /// At most this many jobs run at once; no limit if `null`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>))]
    pub concurrency: Option<Option<u32>>,
    /// At most this many jobs are claimed per time; no limit if `null`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Rate>))]
    pub rate: Option<Option<Rate>>,
}

impl QueueChange {
    /// Changes what it names.
    pub fn apply(self, options: &mut QueueOptions) {
        if let Some(concurrency) = self.concurrency {
            options.concurrency = concurrency;
        }
        if let Some(rate) = self.rate {
            options.rate = rate;
        }
    }
}

/// A field that is there, `null` or not.
fn given<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Jobs per state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
#[expect(missing_docs, reason = "named like the states")]
pub struct Counts {
    pub scheduled: u64,
    pub ready: u64,
    /// Those of the ready jobs that wait for their turn in a group.
    pub blocked: u64,
    pub running: u64,
    pub completed: u64,
    pub cancelled: u64,
    pub dead: u64,
}

/// `GET /v1/time`, and the answer to `PUT`: the queue's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueTime {
    /// The queue's time, in milliseconds since 1970. Jobs, schedules and retention use it.
    pub now_ms: u64,
    /// What the wall clock of the broker's host shows.
    pub wall_ms: u64,
    /// Whether the queue follows that clock.
    pub clock: ClockTrust,
}

/// Whether the queue follows the wall clock of its broker's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClockTrust {
    /// It is followed.
    Followed,
    /// It is too far ahead to be believed.
    Ahead,
    /// It is behind the queue's time, which goes on more slowly.
    Behind,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

/// `PUT /v1/time`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetTime {
    /// Milliseconds since 1970, or RFC 3339 text; if absent, what the clock of the broker's host shows.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "to"
    )]
    pub to: Option<u64>,
}

fn to<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    crate::time::time_of_field(deserializer, "to")
}
