//! Remnants: what is left of a finished job that was forgotten early, so that sending its submit again is safe.
//!
//! Retention drops finished jobs by age and by number. Under load the number is reached within seconds, and a client
//! that sends a submit again after a failover would enqueue its job a second time. So a job that goes before its id
//! is old enough ([`KeepIds`](super::KeepIds)) leaves a remnant: its id, the hash of what was submitted, how
//! it ended, when, and its result. The same submission is still a duplicate, another one with its id still a conflict,
//! and a read of the job tells how it ended.
//!
//! Remnants are no jobs: they are not listed, do not count towards `jobs_max`, and cannot be retried, since their
//! payload is gone. They are bounded in bytes; beyond that the oldest goes early, and is counted.

use std::collections::BTreeMap;

use super::Payload;
use super::end::{LastEnd, Said};
use super::hash::Hash;
use super::machine::{Queue, hash_of};
use super::rules::Rules;
use super::shelves::Class;
use super::slab::{Handle, Slab};
use super::table::Table;
use crate::JobId;

/// What a remnant counts for, besides the text of its id and its result: what it takes in memory, indexes included.
/// A part of the rules, since it decides when the oldest goes.
const REMNANT_BYTES: u64 = 160;

/// In the order in which they came.
#[derive(Debug)]
pub(crate) struct Remnants {
    entries: Slab<Remnant>,
    ids: Table,
    order: BTreeMap<u64, Handle>,
    /// The number of the last.
    last: u64,
    bytes: u64,
    /// How many went before their time. Counted since this process read the log.
    dropped: u64,
    ceilings: Ceilings,
}

/// When remnants ended at the latest, since time was set back: so that nobody has to look at all of them then.
///
/// Both the numbers and the times grow from one to the next, so the first that holds for a remnant decides. A snapshot has
/// the time that counts, and needs none of this.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ceilings(Vec<Ceiling>);

/// Up to this number they ended at this time at the latest.
#[derive(Debug, Clone, Copy)]
struct Ceiling {
    last: u64,
    time: u64,
}

/// If time is set back more often than this within the age of an id, the remnants are looked at after all.
const CEILINGS_MAX: usize = 64;

impl Ceilings {
    /// When it counts as ended.
    pub(crate) fn ended_at(&self, remnant: &Remnant) -> u64 {
        let place = self
            .0
            .partition_point(|ceiling| ceiling.last < remnant.number);
        let latest = self.0.get(place).map_or(u64::MAX, |ceiling| ceiling.time);
        remnant.changed_at.min(latest)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[derive(Debug)]
pub(crate) struct Remnant {
    pub(crate) id: JobId,
    /// The hash of what was submitted.
    pub(crate) content: u64,
    /// When it finished, if that is no later than its [ceiling](Ceilings).
    pub(crate) changed_at: u64,
    /// Its place among the others.
    pub(crate) number: u64,
    pub(crate) queue: Handle,
    pub(crate) job_type: Handle,
    pub(crate) class: Class,
    pub(crate) result: Option<Payload>,
    /// The last claim of the job that its worker has ended.
    pub(crate) last_end: Option<LastEnd>,
    /// What was said then.
    pub(crate) said: Said,
}

/// How many ids are kept beyond their jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemnantCounts {
    /// How many there are.
    pub ids: u64,
    /// What they count for.
    pub bytes: u64,
    /// How many went before their time, for want of room, since this process read the log.
    pub dropped: u64,
}

impl Remnants {
    pub(crate) fn new() -> Self {
        Self {
            entries: Slab::new(),
            ids: Table::new(),
            order: BTreeMap::new(),
            last: 0,
            bytes: 0,
            dropped: 0,
            ceilings: Ceilings::default(),
        }
    }

    pub(crate) const fn ceilings(&self) -> &Ceilings {
        &self.ceilings
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of the last one that came.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Those behind one, in order.
    pub(crate) fn after(&self, number: u64) -> impl Iterator<Item = (u64, &Remnant)> {
        let behind = self.order.range(number.saturating_add(1)..);
        behind.map(|(&number, &handle)| (number, &self.entries[handle]))
    }

    fn oldest(&self) -> Option<Handle> {
        self.order.first_key_value().map(|(_, &handle)| handle)
    }
}

impl Remnant {
    fn bytes(&self) -> u64 {
        let result = self.result.as_ref().map_or(0, Payload::bytes);
        REMNANT_BYTES + (self.id.as_str().len() + result) as u64
    }
}

impl Queue {
    /// How many ids are kept beyond their jobs.
    #[must_use]
    pub fn remnants(&self) -> RemnantCounts {
        RemnantCounts {
            ids: self.remnants.len() as u64,
            bytes: self.remnants.bytes,
            dropped: self.remnants.dropped,
        }
    }

    /// When the oldest remnant has been there for long enough.
    pub(crate) fn remnants_due_at(&self) -> Option<u64> {
        let oldest = self.remnants.oldest()?;
        if self.remnants.bytes > self.settings.ids.bytes_max {
            return Some(self.now);
        }
        let changed_at = self.ended_at(oldest);
        Some(changed_at.saturating_add(self.settings.ids.age_ms))
    }

    pub(crate) fn find_remnant(&self, id: &JobId) -> Option<&Remnant> {
        let handle = self.remnant_handle(id)?;
        Some(&self.remnants.entries[handle])
    }

    fn remnant_handle(&self, id: &JobId) -> Option<Handle> {
        let is = |handle| self.remnants.entries[handle].id == *id;
        self.remnants.ids.find(self.hash_of_id(id), is)
    }

    /// Drops a finished job that retention does not keep, with its id if that is old enough.
    pub(crate) fn retire(&mut self, handle: Handle) {
        let age = self.now.saturating_sub(self.jobs[handle].changed_at);
        // The first rules dropped the id along with the job.
        if self.rules < Rules::SECOND || age >= self.settings.ids.age_ms {
            return self.forget(handle);
        }
        let job = self.take_out(handle);
        let said = job.extra.as_ref().map_or(Said::NOTHING, |extra| extra.said);
        let last_end = job.course().last_end;
        let result = job.extra.and_then(|extra| extra.result);
        // It goes on using the names that the job used.
        self.insert_remnant(Remnant {
            id: job.id,
            content: job.content,
            // It may not have been looked at yet since time was set back.
            changed_at: job.changed_at.min(self.now),
            number: 0,
            queue: job.queue,
            job_type: job.job_type,
            class: job.class,
            result,
            last_end,
            said,
        });
    }

    /// Takes one in, behind all others.
    pub(crate) fn insert_remnant(&mut self, mut remnant: Remnant) {
        let (hash, seed) = (self.hash_of_id(&remnant.id), self.seed());
        let remnants = &mut self.remnants;
        remnants.last += 1;
        remnant.number = remnants.last;
        remnants.bytes += remnant.bytes();
        let handle = remnants.entries.insert(remnant);
        let entries = &remnants.entries;
        let rehash = |handle| hash_of(seed, entries[handle].id.as_str());
        remnants.ids.insert(hash, handle, rehash);
        remnants.order.insert(remnants.last, handle);
    }

    /// Forgets remnants that are old enough, and the oldest as long as there are too many.
    pub(crate) fn forget_remnants(&mut self, portion: usize) {
        for _ in 0..portion {
            let Some(oldest) = self.remnants.oldest() else {
                return;
            };
            let changed_at = self.ended_at(oldest);
            let is_old = self.now.saturating_sub(changed_at) >= self.settings.ids.age_ms;
            if !is_old && self.remnants.bytes <= self.settings.ids.bytes_max {
                return;
            }
            self.remnants.dropped += u64::from(!is_old);
            self.forget_remnant(oldest);
        }
    }

    /// Forgets the remnant of this id; says whether there was one.
    pub(crate) fn forget_remnant_of(&mut self, id: &JobId) -> bool {
        let handle = self.remnant_handle(id);
        if let Some(handle) = handle {
            self.forget_remnant(handle);
        }
        handle.is_some()
    }

    fn forget_remnant(&mut self, handle: Handle) {
        let number = self.remnants.entries[handle].number;
        self.keep_remnant_image(number);
        let remnant = self.remnants.entries.remove(handle);
        self.remnants.bytes -= remnant.bytes();
        self.remnants.order.remove(&number);
        let hash = self.hash_of_id(&remnant.id);
        self.remnants.ids.remove(hash, handle);
        self.queues.release(remnant.queue);
        self.types.release(remnant.job_type);
    }

    fn ended_at(&self, handle: Handle) -> u64 {
        let remnants = &self.remnants;
        remnants.ceilings.ended_at(&remnants.entries[handle])
    }

    /// Time goes back: an id is kept from then on for as long as any other, and no longer.
    pub(crate) fn set_remnants_back(&mut self, to: u64) {
        let oldest = self.remnants.order.first_key_value();
        let oldest = oldest.map_or(u64::MAX, |(&number, _)| number);
        let ceilings = &mut self.remnants.ceilings.0;
        ceilings.retain(|ceiling| ceiling.last >= oldest && ceiling.time < to);
        if ceilings.len() >= CEILINGS_MAX {
            self.lower_remnants();
        }
        let last = self.remnants.last;
        self.remnants.ceilings.0.push(Ceiling { last, time: to });
    }

    /// Gives each the time at which it counts as ended, which decides nothing.
    fn lower_remnants(&mut self) {
        let all: Vec<_> = self
            .remnants
            .order
            .iter()
            .map(|(&number, &handle)| (number, handle))
            .collect();
        for (number, handle) in all {
            let ended_at = self.ended_at(handle);
            if ended_at != self.remnants.entries[handle].changed_at {
                self.keep_remnant_image(number);
                self.remnants.entries[handle].changed_at = ended_at;
            }
        }
        self.remnants.ceilings.0.clear();
    }

    /// What a digest says of them.
    pub(crate) fn hash_remnants(&self, hash: &mut Hash) {
        hash.number(self.remnants.len() as u64);
        hash.number(self.remnants.bytes);
    }

    #[cfg(test)]
    pub(crate) fn remnant_names(&self) -> impl Iterator<Item = (Handle, Handle)> {
        let all = self.remnants.after(0);
        all.map(|(_, remnant)| (remnant.queue, remnant.job_type))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobType, QueueName};

    /// Many enough that what grows by doubling does not decide.
    const COUNT: u64 = 60_000;

    #[test]
    fn a_remnant_takes_what_it_counts_for() {
        let mut queue = Queue::new(1);
        let name = QueueName::new("q").unwrap();
        let job_type = JobType::new("t").unwrap();
        let taken = allocation_counter::measure(|| {
            for number in 0..COUNT {
                let remnant = Remnant {
                    id: JobId::new(format!("{number:036}")).unwrap(),
                    content: number,
                    changed_at: number,
                    number: 0,
                    queue: queue.queues.take(&name),
                    job_type: queue.types.take(&job_type),
                    class: Class::Completed,
                    result: None,
                    last_end: None,
                    said: Said::NOTHING,
                };
                queue.insert_remnant(remnant);
            }
        });
        let taken = u64::try_from(taken.bytes_current).unwrap() / COUNT;
        let counted = queue.remnants().bytes / COUNT;
        assert_eq!(counted, REMNANT_BYTES + 36);
        let right = counted * 3 / 4..=counted;
        assert!(
            right.contains(&taken),
            "{taken} bytes, counted as {counted}"
        );
    }
}
