//! How many queues, types and schedules there may be.
//!
//! Every name costs memory and a place in orders that others walk through, and names are made by clients. So there is
//! a bound, and what needs one more is refused before it is committed. What is under way when the bound is reached
//! still comes in. The log knows nothing of it: a broker with other limits replays the same.

use std::sync::atomic::Ordering;

use tenure_core::queue::{Schedule, ScheduleSpec, Submission};
use tenure_core::{QueueName, ScheduleName};

use super::Error;
use super::broker::Broker;
use super::service::Service;

impl Service {
    /// Whether there is room for the queues and types of these jobs.
    pub(crate) fn admit_jobs(&self, jobs: &[Submission]) -> Result<(), Error> {
        let (queues_max, types_max) = (self.limits.queues_max, self.limits.types_max);
        let queues = self.signals.queues.load(Ordering::Relaxed);
        let types = self.signals.types.load(Ordering::Relaxed);
        // Even if each brought new ones there would be room.
        if queues + jobs.len() <= queues_max && types + jobs.len() <= types_max {
            return Ok(());
        }
        self.change(|broker| {
            let queue = &broker.queue;
            if queue.queues_len() >= queues_max
                && let Some(job) = jobs.iter().find(|job| !queue.has_queue(&job.queue))
            {
                return Err(queues_full(queues_max, &job.queue));
            }
            if queue.types_len() >= types_max
                && let Some(job) = jobs.iter().find(|job| !queue.has_type(&job.job_type))
            {
                let name = &job.job_type;
                return Err(Error::Full {
                    what: format!(
                        "there are already {types_max} job types; there is no room for {name}"
                    ),
                    hint: "use fewer types, and put the differences into the payload".to_owned(),
                });
            }
            Ok(())
        })?
    }

    /// Whether there is room for this queue.
    pub(crate) fn admit_queue(&self, name: &QueueName) -> Result<(), Error> {
        let most = self.limits.queues_max;
        self.change(|broker| {
            let is_full = broker.queue.queues_len() >= most && !broker.queue.has_queue(name);
            if is_full {
                Err(queues_full(most, name))
            } else {
                Ok(())
            }
        })?
    }

    /// Whether there is room for this schedule.
    pub(crate) fn admit_schedule(
        &self,
        name: &ScheduleName,
        spec: &ScheduleSpec,
    ) -> Result<(), Error> {
        let (most, bytes_max) = (self.limits.schedules_max, self.limits.schedules_bytes_max);
        let bytes = name.as_str().len() + spec.bytes();
        self.change(|broker: &mut Broker| {
            let (count, total) = broker.queue.schedules_size();
            let old = broker.queue.schedule(name);
            let old_bytes = old.map_or(0, Schedule::bytes);
            if old.is_none() && count >= most {
                return Err(Error::Full {
                    what: format!("there are already {count} schedules; there is no room for {name}"),
                    hint: "delete some".to_owned(),
                });
            }
            let after = total - old_bytes + bytes;
            if bytes > old_bytes && after > bytes_max {
                return Err(Error::Full {
                    what: format!("the text of all schedules would have {after} bytes; at most {bytes_max} are allowed"),
                    hint: "make them smaller, or delete some".to_owned(),
                });
            }
            Ok(())
        })?
    }
}

fn queues_full(most: usize, name: &QueueName) -> Error {
    Error::Full {
        what: format!("there are already {most} queues; there is no room for {name}"),
        hint: "use existing queues; a queue without jobs and settings does not count".to_owned(),
    }
}
