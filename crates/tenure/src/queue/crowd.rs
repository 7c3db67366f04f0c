//! How many queues, types and schedules there may be.
//!
//! Every name costs memory and a place in orders that others walk through, and names are made by clients. So there is
//! a bound, and what needs one more is refused before it is committed. What is under way when the bound is reached
//! still comes in. The log knows nothing of it: a broker with other limits replays the same.

use std::sync::atomic::Ordering;

use tenure_core::queue::{Schedule, ScheduleSpec, Submission};
use tenure_core::{QueueName, ScheduleName, queue};

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
        let schedules = self.signals.schedules.load(Ordering::Relaxed);
        if queues + schedules + jobs.len() <= queues_max && types + jobs.len() <= types_max {
            return Ok(());
        }
        self.change(|broker| {
            let queue = &broker.queue;
            let new = jobs.iter().map(|job| &job.queue);
            room_for_queues(queue, queues_max, None, new)?;
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
        self.change(|broker| room_for_queues(&broker.queue, most, None, [name].into_iter()))?
    }

    /// Whether there is room for this schedule.
    pub(crate) fn admit_schedule(
        &self,
        name: &ScheduleName,
        spec: &ScheduleSpec,
    ) -> Result<(), Error> {
        let (most, bytes_max) = (self.limits.schedules_max, self.limits.schedules_bytes_max);
        let queues_max = self.limits.queues_max;
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
            let new = [&spec.job.queue].into_iter();
            room_for_queues(&broker.queue, queues_max, Some(name), new)?;
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

/// Whether there is room for those of these queues that are not there. A queue that a schedule submits to has its room
/// from the start, since its slots are not asked; what is to be replaced needs none.
fn room_for_queues<'a>(
    queue: &queue::Queue,
    most: usize,
    replaced: Option<&ScheduleName>,
    names: impl Iterator<Item = &'a QueueName>,
) -> Result<(), Error> {
    let (there, schedules) = (queue.queues_len(), queue.schedules_size().0);
    let mut new = names.filter(|name| !queue.has_queue(name)).peekable();
    if there + schedules < most || new.peek().is_none() {
        return Ok(());
    }
    let to_come = queue.queues_to_come(replaced);
    match new.find(|name| there + to_come.len() >= most && !to_come.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Error::Full {
            what: format!("there are already {most} queues; there is no room for {name}"),
            hint:
                "use existing queues; a queue without jobs, settings and schedules does not count"
                    .to_owned(),
        }),
    }
}
