//! Each slot of a schedule becomes a job once, and none is left out but those that the missed-run policy of
//! the schedule leaves out.
//!
//! The schedules of a run fire every so many seconds of the day, so that their slots can be counted here
//! without any calendar.

use std::collections::BTreeMap;

use tenure_core::ScheduleName;
use tenure_core::queue::{Action, Command, Event, Firing, Missed};

use crate::invariants::Violation;

/// The schedules of a run: name, cron, period in milliseconds, and what becomes of missed runs.
pub(crate) const SCHEDULES: [(&str, &str, u64, Missed); 3] = [
    ("every", "*/20 * * * * *", 20_000, Missed::All(50)),
    ("latest", "*/30 * * * * *", 30_000, Missed::Once),
    ("timely", "0 * * * * *", 60_000, Missed::Skip),
];

/// What the names of the many begin with, when they all fire, how often, and what becomes of missed runs.
pub(crate) const MANY: (&str, &str, u64, Missed) =
    ("many-", "0 2 * * * *", 3_600_000, Missed::Once);

/// How late a slot may be before it is skipped.
const LATE_MS: u64 = 60_000;

/// The slot that comes next, of each schedule.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    next: BTreeMap<ScheduleName, u64>,
}

impl Schedules {
    pub(crate) fn apply(&mut self, command: &Command, events: &[Event]) -> Result<(), Violation> {
        for event in events {
            if let Event::ScheduleSet {
                schedule,
                next: Some(next),
            } = event
            {
                self.next.insert(schedule.clone(), *next);
            }
        }
        let Action::Fire(firings) = &command.action else {
            return Ok(());
        };
        for firing in firings {
            // A plan for another slot is stale, and does nothing.
            let is_current = self.next.get(&firing.schedule) == Some(&firing.due);
            let created = events.iter().filter(|event| {
                matches!(event, Event::SlotFired { schedule, created: true, .. } if *schedule == firing.schedule)
            });
            let created = created.count();
            let is_right = if is_current {
                created == firing.slots.len() && follows_policy(firing, command.at)
            } else {
                created == 0
            };
            if !is_right {
                let message = format!("{firing:?} at {}, of which {created} are new", command.at);
                return Err(Violation::new("schedules keep their slots", message));
            }
            if let Some(next) = firing.next.filter(|_| is_current) {
                self.next.insert(firing.schedule.clone(), next);
            }
        }
        Ok(())
    }
}

impl Schedules {
    /// The schedules that are behind a time.
    pub(crate) fn behind(&self, at: u64) -> impl Iterator<Item = &ScheduleName> {
        let behind = self.next.iter().filter(move |&(_, &next)| next < at);
        behind.map(|(name, _)| name)
    }
}

/// Whether a plan fires what its schedule's policy says, of the slots from the one that was due to the one that
/// is next. It was made at some time before `at`, when it was committed.
fn follows_policy(firing: &Firing, at: u64) -> bool {
    let name = firing.schedule.as_str();
    let known = if name.starts_with(MANY.0) {
        Some(&MANY)
    } else {
        SCHEDULES.iter().find(|(known, ..)| *known == name)
    };
    let (_, _, period, missed) = known.expect("the operator sets no other");
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
    match missed {
        Missed::All(most) => latest(*most as usize),
        Missed::Once => latest(1),
        Missed::Skip => latest(1) || (firing.slots.is_empty() && at - last > LATE_MS),
    }
}
