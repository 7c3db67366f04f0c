//! Queues, schedules and settings over HTTP.
//!
//! Requests are the queue's own [`QueueOptions`], [`ScheduleSpec`](crate::queue::ScheduleSpec) and
//! [`Settings`].

use serde::{Deserialize, Serialize};

use super::tolerant;
use crate::queue::{self, Counts, Missed, QueueOptions, QueueView, Submission};
use crate::{QueueName, ScheduleName};

/// `GET /v1/queues`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuesAnswer {
    /// Every queue that has jobs or settings, by name.
    pub queues: Vec<Queue>,
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

/// `GET /v1/schedules`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SchedulesAnswer {
    /// Every schedule, by name.
    pub schedules: Vec<Schedule>,
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
