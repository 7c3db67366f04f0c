//! Queues, schedules and settings over HTTP.
//!
//! Requests are the queue's own [`QueueOptions`], [`ScheduleSpec`](crate::queue::ScheduleSpec) and
//! [`Settings`].

use serde::{Deserialize, Serialize};

use super::tolerant;
use crate::queue::{
    self, Counts, Keep, KeepIds, Missed, QueueOptions, QueueView, Rate, Submission,
};
use crate::{QueueName, ScheduleName};

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
    #[serde(with = "tolerant::queue_options")]
    pub options: QueueOptions,
    /// Its jobs.
    pub counts: Counts,
    /// When the job that is next was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ready_at: Option<u64>,
}

impl Queue {
    /// The queue, and when its next job was submitted.
    #[must_use]
    pub fn new(view: QueueView, oldest_ready_at: Option<u64>) -> Self {
        Self {
            name: view.name,
            paused: view.paused,
            options: view.options,
            counts: view.counts,
            oldest_ready_at,
        }
    }
}

/// `PATCH /v1/queues/{queue}`: what changes of a queue's limits. What is left out stays as it is; `null` takes a limit
/// away. Whatever others change at the same time, each field is what was last said of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
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

/// A field that is there, and not `null`.
fn some<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// `GET /v1/schedules`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SchedulesAnswer {
    /// Schedules, by name.
    pub schedules: Vec<Schedule>,
    /// Where the next page starts; absent if this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<ScheduleName>,
}

/// One schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Schedule {
    /// Its name.
    pub name: ScheduleName,
    /// Five fields, or six with seconds first.
    pub cron: String,
    /// A name of the IANA database.
    pub timezone: String,
    /// What each slot submits.
    #[serde(with = "tolerant::submission")]
    pub job: Submission,
    /// What happens to slots that passed while no broker could fire them.
    pub missed: Missed,
    /// The next slot; none if there is no further one.
    pub next_at: Option<u64>,
    /// The last slot that became a job.
    pub last_at: Option<u64>,
}

impl From<queue::Schedule> for Schedule {
    fn from(schedule: queue::Schedule) -> Self {
        let queue::ScheduleSpec {
            cron,
            timezone,
            job,
            missed,
        } = schedule.spec;
        Self {
            name: schedule.name,
            cron,
            timezone,
            job,
            missed,
            next_at: schedule.next,
            last_at: schedule.last,
        }
    }
}

/// `GET /v1/settings`, and the answer to `PUT`: [`queue::Settings`], read with tolerance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Settings(#[serde(with = "tolerant::settings")] pub queue::Settings);

/// `PATCH /v1/settings`: what changes of the settings. What is left out stays as it is; what is named is replaced as a
/// whole. Whatever others change at the same time, each field is what was last said of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SettingsChange {
    /// How long completed jobs are kept.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    pub completed: Option<Keep>,
    /// How long cancelled jobs are kept.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    pub cancelled: Option<Keep>,
    /// How long dead jobs are kept.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    pub dead: Option<Keep>,
    /// The most jobs of all states together.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    pub jobs_max: Option<u64>,
    /// How long ids are known at least.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    pub ids: Option<KeepIds>,
}

impl SettingsChange {
    /// Changes what it names.
    pub fn apply(self, settings: &mut queue::Settings) {
        let queue::Settings {
            completed,
            cancelled,
            dead,
            jobs_max,
            ids,
        } = *settings;
        *settings = queue::Settings {
            completed: self.completed.unwrap_or(completed),
            cancelled: self.cancelled.unwrap_or(cancelled),
            dead: self.dead.unwrap_or(dead),
            jobs_max: self.jobs_max.unwrap_or(jobs_max),
            ids: self.ids.unwrap_or(ids),
        };
    }
}

/// `GET /v1/time`, and the answer to `PUT`: the queue's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueTime {
    /// The queue's time, in milliseconds since 1970: what jobs, schedules and retention go by.
    pub now_ms: u64,
    /// What the wall clock of the broker's host shows.
    pub wall_ms: u64,
    /// What the queue makes of that clock.
    pub clock: ClockTrust,
}

/// What the queue makes of the wall clock of its broker's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClockTrust {
    /// It is followed.
    Followed,
    /// It is too far ahead to be believed.
    Ahead,
    /// It is behind the queue's time, which goes on at half speed.
    Behind,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

/// `PUT /v1/time`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
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
    queue::schedule::time_of_field(deserializer, "to")
}
