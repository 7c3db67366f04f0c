//! All schedules, by name and by their next slot.
//!
//! The second order is there so that what is due costs what is due, however many schedules there are.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Values};
use std::ops::Bound;

use super::schedule::Schedule;
use crate::ScheduleName;

#[derive(Debug, Default)]
pub(crate) struct Schedules {
    by_name: BTreeMap<ScheduleName, Schedule>,
    /// Those that have a next slot, by that slot.
    by_slot: BTreeMap<u64, BTreeSet<ScheduleName>>,
    /// The bytes of all their text.
    bytes: usize,
}

impl Schedules {
    pub(crate) fn get(&self, name: &ScheduleName) -> Option<&Schedule> {
        self.by_name.get(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The bytes of all their text.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// In the order of the names.
    pub(crate) fn values(&self) -> Values<'_, ScheduleName, Schedule> {
        self.by_name.values()
    }

    /// The same behind a name.
    pub(crate) fn behind(&self, name: Option<&ScheduleName>) -> impl Iterator<Item = &Schedule> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let range = (from, Bound::Unbounded);
        self.by_name
            .range::<ScheduleName, _>(range)
            .map(|(_, schedule)| schedule)
    }

    /// Adds a schedule, or replaces it. Returns what was there.
    pub(crate) fn insert(&mut self, schedule: Schedule) -> Option<Schedule> {
        let name = schedule.name.clone();
        let after = schedule.next;
        self.bytes += schedule.bytes();
        let before = self.by_name.insert(name.clone(), schedule);
        if let Some(before) = &before {
            self.bytes -= before.bytes();
        }
        self.moved(&name, before.as_ref().and_then(|before| before.next), after);
        before
    }

    pub(crate) fn remove(&mut self, name: &ScheduleName) -> Option<Schedule> {
        let before = self.by_name.remove(name)?;
        self.bytes -= before.bytes();
        self.moved(name, before.next, None);
        Some(before)
    }

    /// Gives a schedule another next slot, and notes the last one that became a job.
    pub(crate) fn advance(&mut self, name: &ScheduleName, next: Option<u64>, last: Option<u64>) {
        if let Some(schedule) = self.by_name.get_mut(name) {
            let before = std::mem::replace(&mut schedule.next, next);
            schedule.last = last.or(schedule.last);
            self.moved(name, before, next);
        }
    }

    /// The first slot at or after a time, of any schedule.
    pub(crate) fn slot_from(&self, time: u64) -> Option<u64> {
        self.by_slot.range(time..).next().map(|(&slot, _)| slot)
    }

    /// The schedules whose next slot is at or before `now`, the longest due first; those behind one of them
    /// only, if it is named.
    pub(crate) fn due<'a>(
        &'a self,
        now: u64,
        behind: Option<&'a (u64, ScheduleName)>,
    ) -> impl Iterator<Item = &'a Schedule> {
        let from = behind.map_or(0, |&(slot, _)| slot);
        let slots = (from <= now).then(|| self.by_slot.range(from..=now));
        let names = slots.into_iter().flatten().flat_map(move |(&slot, names)| {
            let after = behind.filter(|&&(behind, _)| behind == slot);
            let after = after.map_or(Bound::Unbounded, |(_, name)| Bound::Excluded(name));
            names.range::<ScheduleName, _>((after, Bound::Unbounded))
        });
        names.filter_map(|name| self.by_name.get(name))
    }

    fn moved(&mut self, name: &ScheduleName, before: Option<u64>, after: Option<u64>) {
        if before == after {
            return;
        }
        if let Some(before) = before
            && let Some(names) = self.by_slot.get_mut(&before)
        {
            names.remove(name);
            if names.is_empty() {
                self.by_slot.remove(&before);
            }
        }
        if let Some(after) = after {
            self.by_slot.entry(after).or_default().insert(name.clone());
        }
    }
}
