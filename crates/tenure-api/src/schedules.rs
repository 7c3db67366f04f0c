//! Cron schedules over HTTP.

use serde::{Deserialize, Serialize};

use crate::{ScheduleName, Submission};

/// What a schedule does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleSpec {
    /// Five fields, or six with seconds first.
    pub cron: String,
    /// A name of the IANA database.
    #[serde(default = "utc")]
    pub timezone: String,
    /// What each slot submits: no id, no `run_at`, no `delay_ms`.
    pub job: Submission,
    /// What happens to slots that passed while no broker could fire them.
    #[serde(default)]
    pub missed: Missed,
    /// Whether a job is submitted at once when the schedule is created or changed, besides its slots. Not part of the
    /// schedule: the same one set again does nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub run_on_start: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

fn utc() -> String {
    "UTC".to_owned()
}

impl ScheduleSpec {
    /// The bytes of all its text: what clients choose the length of.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.cron.len() + self.timezone.len() + self.job.bytes()
    }
}

/// What happens to missed slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// The latest one runs if it is at most a minute late; all others are skipped.
    Skip,
    /// The latest one runs, in place of all of them.
    #[default]
    Once,
    /// The latest ones run, at most this many.
    All(u32),
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
    pub job: Submission,
    /// What happens to slots that passed while no broker could fire them.
    pub missed: Missed,
    /// The next slot; none if it is paused, or if there is no further one.
    pub next_at: Option<u64>,
    /// The last slot that became a job.
    pub last_at: Option<u64>,
    /// Whether it submits nothing until it is resumed. What falls into a pause is skipped.
    #[serde(default)]
    pub paused: bool,
}
