//! How many queues, types and schedules there may be.
//!
//! Every name costs memory and a place in orders that others walk through, and names are made by clients. So there is
//! a bound, and what needs one more is refused before it is committed. What is under way when the bound is reached
//! still comes in. The log knows nothing of it: a broker with other limits replays the same.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tenure_core::queue::{Schedule, ScheduleSpec, Submission, SubmitStatus, Submitted};
use tenure_core::{JobType, QueueName, ScheduleName, queue};

use super::Error;
use super::broker::Broker;
use super::service::Service;

/// Jobs, as far as there is room for their queues and types.
pub(crate) struct Admitted {
    pub(crate) jobs: Vec<Submission>,
    /// The others: their place among all, and what they are answered.
    refused: Vec<(usize, Submitted)>,
    /// Why the first of them is refused.
    pub(crate) why: Option<Error>,
}

impl Admitted {
    /// All answers, in the order in which the jobs came.
    pub(crate) fn answers(self, mut answers: Vec<Submitted>) -> Vec<Submitted> {
        for (place, refused) in self.refused {
            answers.insert(place, refused);
        }
        answers
    }
}

/// What is there, and what the jobs before bring along.
struct Room<'a> {
    queue: &'a queue::Queue,
    limits: &'a queue::Limits,
    /// Queues that only schedules submit to. Looked for only where there may be too many.
    to_come: Option<BTreeSet<QueueName>>,
    queues: BTreeSet<QueueName>,
    types: BTreeSet<JobType>,
}

impl Room<'_> {
    fn admit(&mut self, job: &Submission) -> Result<(), Error> {
        let (queues_max, types_max) = (self.limits.queues_max, self.limits.types_max);
        let (name, job_type) = (&job.queue, &job.job_type);
        let is_new_type = !self.queue.has_type(job_type) && !self.types.contains(job_type);
        if is_new_type && self.queue.types_len() + self.types.len() >= types_max {
            return Err(Error::Full {
                what: format!(
                    "there are already {types_max} job types; there is no room for {job_type}"
                ),
                hint: "use fewer types, and put the differences into the payload".to_owned(),
            });
        }
        if !self.queue.has_queue(name) && !self.queues.contains(name) {
            let queue = self.queue;
            let to_come = self
                .to_come
                .get_or_insert_with(|| queue.queues_to_come(None).into_iter().cloned().collect());
            if !to_come.contains(name) {
                if queue.queues_len() + to_come.len() + self.queues.len() >= queues_max {
                    return Err(no_room_for(name, queues_max));
                }
                self.queues.insert(name.clone());
            }
        }
        if is_new_type {
            self.types.insert(job_type.clone());
        }
        Ok(())
    }
}

impl Service {
    /// The jobs for whose queues and types there is room. One job more or less is no reason to refuse another, but for those
    /// behind it in its group.
    pub(crate) fn admit_jobs(&self, jobs: Vec<Submission>) -> Result<Admitted, Error> {
        let mut admitted = Admitted {
            jobs,
            refused: Vec::new(),
            why: None,
        };
        let (queues_max, types_max) = (self.limits.queues_max, self.limits.types_max);
        let queues = self.signals.queues.load(Ordering::Relaxed);
        let types = self.signals.types.load(Ordering::Relaxed);
        // Even if each brought new ones there would be room.
        let schedules = self.signals.schedules.load(Ordering::Relaxed);
        let most = admitted.jobs.len();
        if queues + schedules + most <= queues_max && types + most <= types_max {
            return Ok(admitted);
        }
        self.change(|broker| {
            let mut room = Room {
                queue: &broker.queue,
                limits: &self.limits,
                to_come: None,
                queues: BTreeSet::new(),
                types: BTreeSet::new(),
            };
            let mut waiting = BTreeSet::new();
            for (place, job) in std::mem::take(&mut admitted.jobs).into_iter().enumerate() {
                // Behind one of its group that has no room, a job would overtake it.
                let waits = job.group.as_ref().is_some_and(|it| waiting.contains(it));
                let refused = if waits {
                    Some(None)
                } else {
                    room.admit(&job).err().map(Some)
                };
                match refused {
                    None => admitted.jobs.push(job),
                    Some(error) => {
                        waiting.extend(job.group);
                        let refused = Submitted {
                            id: job.id.unwrap_or_else(|| broker.queue.next_id()),
                            status: SubmitStatus::Full,
                            existing: None,
                        };
                        admitted.refused.push((place, refused));
                        admitted.why = admitted.why.take().or(error);
                    }
                }
            }
            admitted
        })
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
        Some(name) => Err(no_room_for(name, most)),
    }
}

fn no_room_for(name: &QueueName, most: usize) -> Error {
    Error::Full {
        what: format!("there are already {most} queues; there is no room for {name}"),
        hint: "use existing queues; a queue without jobs, settings and schedules stops counting when the ids of its finished jobs are dropped, after an hour by default"
            .to_owned(),
    }
}
