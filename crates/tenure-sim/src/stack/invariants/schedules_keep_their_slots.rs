//! Each slot of a schedule becomes a job once, and none is left out but those that the missed-run policy of
//! the schedule leaves out, and those of a pause.
//!
//! The schedules of a run fire every so many seconds of the day, or once a day in a month without a change of clocks, so that
//! their slots can be counted here without any calendar.

use std::collections::BTreeMap;

use tenure_core::ScheduleName;
use tenure_core::queue::{Action, Command, Event, Firing, Missed, Queue, Rules, ScheduleSpec};

use crate::invariants::Violation;

/// The schedules of a run: name, cron, time zone, and what becomes of missed runs.
pub(crate) const SCHEDULES: [(&str, &str, &str, Missed); 4] = [
    ("every", "*/20 * * * * *", "UTC", Missed::All(50)),
    ("latest", "*/30 * * * * *", "Europe/Berlin", Missed::Once),
    ("timely", "0 * * * * *", "Asia/Kathmandu", Missed::Skip),
    ("daily", "0 30 2 * * *", "America/New_York", Missed::All(3)),
];

/// One that is set to something else, and deleted, again and again.
pub(crate) const CHANGING: &str = "changing";

/// What the names of the many begin with, when they all fire, and what becomes of missed runs.
pub(crate) const MANY: (&str, &str, Missed) = ("many-", "0 2 * * * *", Missed::Once);

/// How often each of them fires.
const PERIODS: [(&str, u64); 5] = [
    ("*/20 * * * * *", 20_000),
    ("*/30 * * * * *", 30_000),
    ("0 * * * * *", 60_000),
    ("0 2 * * * *", 3_600_000),
    ("0 30 2 * * *", 24 * 3_600_000),
];

/// How late a slot may be before it is skipped.
const LATE_MS: u64 = 60_000;

/// What is set, and the slot that comes next, of each schedule.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    set: BTreeMap<ScheduleName, (ScheduleSpec, u64)>,
    next: BTreeMap<ScheduleName, u64>,
    /// How often any of them was changed.
    revision: u64,
    /// Slots may come again since time was set back: those whose jobs are there make none.
    was_set_back: bool,
}

impl Schedules {
    pub(crate) fn apply(
        &mut self,
        command: &Command,
        events: &[Event],
        queue: &Queue,
    ) -> Result<(), Violation> {
        if let Action::SetSchedule(name, spec, _) = &command.action {
            let is_same = self.set.get(name).is_some_and(|(set, _)| *set == **spec);
            if !is_same {
                self.revision += 1;
                let set = ((**spec).clone(), self.revision);
                self.set.insert(name.clone(), set);
            }
        }
        for event in events {
            match event {
                Event::TimeSet { from, to } if to < from => self.was_set_back = true,
                Event::ScheduleSet { schedule, next } => self.goes_on(schedule, *next),
                Event::SchedulePaused { schedule } => {
                    self.changed(schedule);
                    self.goes_on(schedule, None);
                }
                Event::ScheduleResumed { schedule, next } => {
                    // Its slot may come due on the way to the log.
                    if next.is_none_or(|next| next + LATE_MS < queue.now()) {
                        let message = format!("{schedule} is resumed with a slot of its pause");
                        return Err(Violation::new("schedules keep their slots", message));
                    }
                    self.changed(schedule);
                    self.goes_on(schedule, *next);
                }
                Event::ScheduleDeleted { schedule } => {
                    self.set.remove(schedule);
                    self.next.remove(schedule);
                }
                _ => {}
            }
        }
        let Action::Fire(firings) = &command.action else {
            return Ok(());
        };
        for firing in firings {
            // A plan for another slot, or for the schedule as it was, is stale and does nothing.
            let set = self.set.get(&firing.schedule);
            let set = set.filter(|(_, revision)| *revision == firing.revision);
            let is_due = self.next.get(&firing.schedule) == Some(&firing.due);
            let set = set.filter(|_| is_due);
            let was_set_back = self.was_set_back;
            let created = events.iter().filter(|event| {
                matches!(event, Event::SlotFired { schedule, created, .. }
                    if *schedule == firing.schedule && (*created || was_set_back))
            });
            let created = created.count();
            let now = queue.now();
            let is_early = firing.slots.iter().take(created).any(|&slot| slot > now);
            if is_early && queue.rules() >= Rules::THIRD {
                let message = format!("{firing:?} fires at {now}, ahead of its time");
                return Err(Violation::new("schedules keep their slots", message));
            }
            // After time was set back: a plan of the time before does nothing, and another brings the next slot forward.
            let is_back =
                firing.slots.is_empty() && firing.next.is_some_and(|next| next < firing.due);
            let is_ahead =
                !is_back && firing.slots.last().unwrap_or(&firing.due).max(&firing.due) > &now;
            let set = set.filter(|_| !is_ahead || queue.rules() < Rules::THIRD);
            let next = events.iter().find_map(|event| match event {
                Event::Fired { schedule, next, .. } if *schedule == firing.schedule => *next,
                _ => None,
            });
            // Where there is no room the rest stays due. The first rules lost it.
            let stays_due = next.is_some() && next == firing.slots.get(created).copied();
            let is_lost = queue.rules() < Rules::SECOND;
            let is_complete = created == firing.slots.len() || stays_due || is_lost;
            let is_right = match set {
                Some(_) if is_back && was_set_back => created == 0,
                Some((spec, _)) => is_complete && follows_policy(spec, firing, command.at),
                None => created == 0,
            };
            if !is_right {
                let message = format!("{firing:?} at {}, of which {created} are new", command.at);
                return Err(Violation::new("schedules keep their slots", message));
            }
            let is_kept = next == firing.next || stays_due;
            if set.is_some() && !is_kept {
                let message = format!("after {firing:?} {next:?} is next");
                return Err(Violation::new("schedules keep their slots", message));
            }
            if let Some(next) = next.filter(|_| set.is_some()) {
                self.next.insert(firing.schedule.clone(), next);
            }
        }
        Ok(())
    }
}

impl Schedules {
    /// Plans for the schedule as it was are stale.
    fn changed(&mut self, schedule: &ScheduleName) {
        self.revision += 1;
        if let Some((_, revision)) = self.set.get_mut(schedule) {
            *revision = self.revision;
        }
    }

    fn goes_on(&mut self, schedule: &ScheduleName, next: Option<u64>) {
        match next {
            Some(next) => self.next.insert(schedule.clone(), next),
            // It is paused.
            None => self.next.remove(schedule),
        };
    }

    /// The schedules that are behind a time.
    pub(crate) fn behind(&self, at: u64) -> impl Iterator<Item = &ScheduleName> {
        let behind = self.next.iter().filter(move |&(_, &next)| next < at);
        behind.map(|(name, _)| name)
    }
}

/// Whether a plan fires what its schedule's policy says, of the slots from the one that was due to the one that
/// is next. It was made at some time before `at`, when it was committed.
fn follows_policy(spec: &ScheduleSpec, firing: &Firing, at: u64) -> bool {
    let mut periods = PERIODS.iter();
    let known = periods.find(|(cron, _)| *cron == spec.cron);
    let (_, period) = known.expect("the operator sets no other");
    let Some(next) = firing.next else {
        return false;
    };
    let passed: Vec<u64> = (firing.due..next)
        .step_by(usize::try_from(*period).unwrap_or(1))
        .collect();
    let Some(&last) = passed.last() else {
        return false;
    };
    // Nothing is fired before its time, or left out for a time to come.
    if last > at || last + period != next {
        return false;
    }
    let latest = |most: usize| passed[passed.len().saturating_sub(most)..] == firing.slots[..];
    match &spec.missed {
        Missed::All(most) => latest(*most as usize),
        Missed::Once => latest(1),
        Missed::Skip => latest(1) || (firing.slots.is_empty() && at - last > LATE_MS),
    }
}
