//! Schedules: jobs that are submitted by the clock, each slot once.
//!
//! The next slot is part of the durable state, so a new broker goes on where the old one stopped. When it
//! is due, the broker takes it out ([`Queue::due_schedules`](super::Queue::due_schedules)), plans it
//! ([`Due::plan`]) and sends the plan through the log. The plan names the slot it starts from; applied twice, or after the schedule was
//! changed, it does nothing. Each slot's job has an id made of the schedule and the slot, which is a
//! second lock on the same door.
//!
//! Cron and time zones are looked at only to make a plan. What is applied are times: a newer time zone
//! database changes future plans, never a replay.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};

use super::command::Action;
use super::cron::Cron;
use super::validate::Invalid;
use super::{Missed, ScheduleSpec, Submission};
use crate::{JobId, ScheduleName};

/// The most slots that one firing catches up with.
pub(super) const CATCH_UP_MAX: u32 = 1_000;

/// How late a slot may be before [`Missed::Skip`] leaves it out.
const LATE_MS: u64 = 60_000;

/// A plan: the slots to fire, and the slot after them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// Which schedule.
    pub schedule: ScheduleName,
    /// Which version of it.
    pub revision: u64,
    /// The slot that was next when the plan was made.
    pub due: u64,
    /// The slots to fire: some or none of those from `due` on.
    pub slots: Vec<u64>,
    /// The slot that is next then.
    pub next: Option<u64>,
}

impl Firing {
    /// The same in portions of at most so many slots, each of which goes on where the one before stopped.
    /// Applied in this order they do what the whole does; one that is applied out of order does nothing.
    #[must_use]
    pub fn split(mut self, slots_max: usize) -> Vec<Self> {
        let mut portions = Vec::new();
        while self.slots.len() > slots_max.max(1) {
            let rest = self.slots.split_off(slots_max.max(1));
            let next = rest.first().copied();
            portions.push(Self {
                schedule: self.schedule.clone(),
                revision: self.revision,
                due: self.due,
                slots: std::mem::replace(&mut self.slots, rest),
                next,
            });
            self.due = next.unwrap_or(self.due);
        }
        portions.push(self);
        portions
    }
}

/// A schedule that is due, with what it takes to plan it: no more than that, so that it is cheap to take out of
/// the queue and to plan elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Which schedule.
    pub schedule: ScheduleName,
    /// Which version of it.
    pub revision: u64,
    /// The slot that is next.
    pub due: u64,
    cron: String,
    timezone: String,
    missed: Missed,
}

impl Due {
    /// The plan for everything that is due at `now`. None if its time zone is one that a newer database no
    /// longer has: then the schedule stays where it is, and visible.
    ///
    /// Cost: the slots that it fires; a few dozen times as much if more were missed than it fires.
    #[must_use]
    pub fn plan(&self, now: u64) -> Option<Firing> {
        let clockwork = Clockwork::new(&self.cron, &self.timezone).ok()?;
        let count = match self.missed {
            Missed::All(count) => count.clamp(1, CATCH_UP_MAX) as usize,
            Missed::Once | Missed::Skip => 1,
        };
        let (mut slots, next) = clockwork.latest(self.due, now, count);
        // A slot that is not of the expression: it was to run at once when it was set.
        if self.due <= now && slots.len() < count && slots.first() != Some(&self.due) {
            slots.insert(0, self.due);
        }
        if self.missed == Missed::Skip {
            slots.retain(|&slot| now - slot <= LATE_MS);
        }
        Some(Firing {
            schedule: self.schedule.clone(),
            revision: self.revision,
            due: self.due,
            slots,
            next,
        })
    }

    /// A plan that fires nothing and goes on with the first slot after `now`, if that comes before the next one.
    #[must_use]
    pub fn replan(&self, now: u64) -> Option<Firing> {
        let clockwork = Clockwork::new(&self.cron, &self.timezone).ok()?;
        let next = clockwork.next(now)?;
        (next < self.due).then(|| Firing {
            schedule: self.schedule.clone(),
            revision: self.revision,
            due: self.due,
            slots: Vec::new(),
            next: Some(next),
        })
    }
}

/// A schedule in the state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name.
    pub name: ScheduleName,
    /// What it does.
    pub spec: ScheduleSpec,
    /// Grows with every change of any schedule.
    pub revision: u64,
    /// The next slot; none if there is no further one.
    pub next: Option<u64>,
    /// The last slot that became a job.
    pub last: Option<u64>,
    /// Whether it makes no jobs. Then it has no next slot. Only under [`Rules::THIRD`](super::Rules::THIRD) and later
    /// ones.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paused: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// The end of a pause, planned like a [`Firing`]: applied after the schedule was changed, it does nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumption {
    /// Which schedule.
    pub schedule: ScheduleName,
    /// Which version of it.
    pub revision: u64,
    /// The first slot after the pause; none if there is no further one.
    pub next: Option<u64>,
}

impl Schedule {
    /// The bytes of all its text, its name included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.name.as_str().len() + self.spec.bytes()
    }

    /// The action that sets a schedule whose first slot lies after `now`, or is `now` if it is to run at once: to the millisecond, since
    /// the slot names the job, and another change may follow within the second.
    pub fn command(
        name: ScheduleName,
        mut spec: ScheduleSpec,
        now: u64,
    ) -> Result<Action, Invalid> {
        let mut next = Clockwork::new(&spec.cron, &spec.timezone)?.next(now);
        if next.is_none() {
            return Err(Invalid::new("cron", "has no slot in the next 41 years"));
        }
        // Said once, not kept: the slot says it from then on, and brokers of every version read the rest.
        if std::mem::take(&mut spec.run_on_start) {
            next = Some(now);
        }
        Ok(Action::SetSchedule(name, Box::new(spec), next))
    }

    /// The action that ends its pause. It goes on with the first slot after `now`: slots that fell into the pause were
    /// not missed, nobody wanted them.
    pub fn resumption(&self, now: u64) -> Result<Action, Invalid> {
        let next = Clockwork::new(&self.spec.cron, &self.spec.timezone)?.next(now);
        Ok(Action::ResumeSchedule(Resumption {
            schedule: self.name.clone(),
            revision: self.revision,
            next,
        }))
    }

    /// What it takes to plan the next slot; none if there is no next one.
    pub(crate) fn due(&self) -> Option<Due> {
        Some(Due {
            schedule: self.name.clone(),
            revision: self.revision,
            due: self.next?,
            cron: self.spec.cron.clone(),
            timezone: self.spec.timezone.clone(),
            missed: self.spec.missed,
        })
    }

    /// The plan for everything that is due, if anything is.
    #[cfg(test)]
    pub(crate) fn plan(&self, now: u64) -> Option<Firing> {
        self.due().filter(|due| due.due <= now)?.plan(now)
    }

    /// What a slot submits.
    pub(crate) fn slot(&self, slot: u64) -> Submission {
        let time = i64::try_from(slot)
            .ok()
            .and_then(|slot| Timestamp::from_millisecond(slot).ok())
            .map_or_else(|| slot.to_string(), |time| time.to_string());
        Submission {
            id: JobId::new(format!("schedule:{}@{time}", self.name)).ok(),
            run_at: None,
            delay_ms: None,
            ..self.spec.job.clone()
        }
    }
}

impl From<Schedule> for tenure_api::Schedule {
    fn from(schedule: Schedule) -> Self {
        let ScheduleSpec {
            cron,
            timezone,
            job,
            missed,
            run_on_start: _,
        } = schedule.spec;
        Self {
            name: schedule.name,
            cron,
            timezone,
            job,
            missed,
            next_at: schedule.next,
            last_at: schedule.last,
            paused: schedule.paused,
        }
    }
}

/// An expression and its zone, ready to be asked.
#[derive(Debug)]
struct Clockwork {
    cron: Cron,
    zone: TimeZone,
}

impl Clockwork {
    fn new(cron: &str, timezone: &str) -> Result<Self, Invalid> {
        // The copy inside the binary, never the files of the host: two brokers must plan alike.
        static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
        let cron = Cron::parse(cron).map_err(|problem| Invalid::new("cron", problem))?;
        let zone = ZONES.get(timezone).map_err(|_| {
            let shown: String = timezone.chars().take(40).collect();
            Invalid::new(
                "timezone",
                format!("{shown:?} is not a name in the IANA time zone database"),
            )
        })?;
        Ok(Self { cron, zone })
    }

    fn next(&self, after: u64) -> Option<u64> {
        self.cron.next(&self.zone, after)
    }

    /// The latest `count` slots from `due` to `now`, and the one after `now`.
    ///
    /// A schedule of every second that was missed for a month has millions, and one of every second in January
    /// has them all in one place. So nothing is walked that is not fired: the place from where exactly `count`
    /// are left is searched for by halves.
    fn latest(&self, due: u64, now: u64, count: usize) -> (Vec<u64>, Option<u64>) {
        // Mostly there are no more than that.
        let all = self.walk(due, now, count + 1);
        if all.len() <= count {
            return (all, self.next(now));
        }
        let left_from = |second: u64| self.walk((second * 1_000).max(due), now, count);
        // Slots are whole seconds. From `enough` on there are `count`, from `few` on there are not.
        let (mut enough, mut few) = (due / 1_000, now / 1_000 + 1);
        let mut window = 1;
        while few - enough > 1 {
            let guess = few.saturating_sub(window).max(enough + 1);
            if left_from(guess).len() == count {
                enough = guess;
                break;
            }
            few = guess;
            window *= 2;
        }
        while few - enough > 1 {
            let middle = enough + (few - enough) / 2;
            if left_from(middle).len() == count {
                enough = middle;
            } else {
                few = middle;
            }
        }
        (left_from(enough), self.next(now))
    }

    /// The first `most` slots from `from` to `now`.
    fn walk(&self, from: u64, now: u64, most: usize) -> Vec<u64> {
        let first = self.next(from.saturating_sub(1));
        let slots = std::iter::successors(first, |&slot| self.next(slot));
        slots.take_while(|&slot| slot <= now).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobType;

    fn schedule(cron: &str, missed: Missed, next: u64) -> Schedule {
        Schedule {
            name: ScheduleName::new("nightly").unwrap(),
            spec: ScheduleSpec {
                cron: cron.to_owned(),
                timezone: "UTC".to_owned(),
                job: Submission::new(JobType::new("report").unwrap()),
                missed,
                run_on_start: false,
            },
            revision: 1,
            next: Some(next),
            last: None,
            paused: false,
        }
    }

    const HOUR: u64 = 3_600_000;

    #[test]
    fn missed_slots_follow_the_policy() {
        let plan = |missed, now| schedule("0 * * * *", missed, HOUR).plan(now).unwrap();
        let late = 5 * HOUR + 120_000;
        assert_eq!(plan(Missed::Skip, late).slots, Vec::<u64>::new());
        assert_eq!(plan(Missed::Skip, 5 * HOUR + 1_000).slots, [5 * HOUR]);
        assert_eq!(plan(Missed::Once, late).slots, [5 * HOUR]);
        assert_eq!(
            plan(Missed::All(3), late).slots,
            [3 * HOUR, 4 * HOUR, 5 * HOUR]
        );
        assert_eq!(plan(Missed::All(0), late).slots, [5 * HOUR]);
        assert_eq!(plan(Missed::All(9), late).slots.len(), 5);
        assert_eq!(plan(Missed::Once, late).next, Some(6 * HOUR));
        assert_eq!(
            schedule("0 * * * *", Missed::Once, HOUR).plan(HOUR - 1),
            None
        );
    }

    #[test]
    fn a_schedule_that_is_to_run_at_once_does_so_beside_its_slots() {
        let mut spec = schedule("0 * * * *", Missed::Once, 0).spec;
        spec.run_on_start = true;
        let name = ScheduleName::new("s").unwrap();
        let set = Schedule::command(name, spec.clone(), HOUR + 1_234).unwrap();
        let Action::SetSchedule(name, stored, next) = set else {
            panic!("{set:?}");
        };
        assert_eq!(next, Some(HOUR + 1_234));
        // Brokers that know nothing of it read what is stored.
        assert!(
            !serde_json::to_string(&stored)
                .unwrap()
                .contains("run_on_start")
        );
        let now = Schedule {
            name,
            spec: *stored,
            revision: 1,
            next,
            last: None,
            paused: false,
        };
        let plan = now.plan(HOUR + 1_300).unwrap();
        assert_eq!(
            (plan.slots, plan.next),
            (vec![HOUR + 1_234], Some(2 * HOUR))
        );
        // Once for all that was missed.
        let plan = now.plan(3 * HOUR + 1).unwrap();
        assert_eq!((plan.slots, plan.next), (vec![3 * HOUR], Some(4 * HOUR)));
        let late = Schedule {
            spec: ScheduleSpec {
                missed: Missed::All(9),
                ..now.spec.clone()
            },
            ..now
        };
        let plan = late.plan(3 * HOUR + 1).unwrap();
        assert_eq!(plan.slots, [HOUR + 1_234, 2 * HOUR, 3 * HOUR]);
    }

    #[test]
    fn a_year_of_missed_seconds_is_caught_up_with_at_once() {
        let year = 365 * 24 * HOUR;
        let plan = schedule("* * * * * *", Missed::All(2_000_000), 1_000)
            .plan(year)
            .unwrap();
        assert_eq!(plan.slots.len(), CATCH_UP_MAX as usize);
        assert_eq!(plan.slots.last(), Some(&year));
        let plan = schedule("0 0 1 * *", Missed::All(5), 1_000)
            .plan(year)
            .unwrap();
        assert_eq!(plan.slots.len(), 5);
    }

    #[test]
    fn the_latest_slots_are_found_without_walking_the_others() {
        const YEAR: u64 = 365 * 24 * HOUR;
        let january = 1_768_000_000_000;
        for (cron, due, now) in [
            // Every second, but only in January: millions, and all of them months ago.
            ("* * * * 1 *", january, january + YEAR / 2),
            ("* * 0-23 * * *", january, january + 2 * HOUR),
            ("* * * * * 1", january, january + 30 * 24 * HOUR),
            ("0 0 29 2 *", january, january + 9 * YEAR),
        ] {
            for count in [1, 2, 1_000] {
                let due = Clockwork::new(cron, "Europe/Berlin").unwrap().next(due);
                let due = due.unwrap();
                let clockwork = Clockwork::new(cron, "Europe/Berlin").unwrap();
                let before = crate::queue::cron::looks();
                let (slots, next) = clockwork.latest(due, now, count);
                let looks = crate::queue::cron::looks() - before;
                assert!(
                    looks < 200 * (count + 2),
                    "{cron} of {count}: {looks} looks"
                );
                assert_eq!(next, clockwork.next(now));
                // None is left out before, in between or behind.
                assert!(
                    slots.len() == count || slots.first() == Some(&due),
                    "{cron}"
                );
                assert!(slots.iter().all(|&slot| slot <= now), "{cron}");
                let after = slots
                    .windows(2)
                    .all(|pair| clockwork.next(pair[0]) == Some(pair[1]));
                assert!(
                    after && clockwork.next(*slots.last().unwrap()) == next,
                    "{cron}"
                );
            }
        }
    }

    #[test]
    fn the_portions_of_a_plan_go_on_where_the_one_before_stopped() {
        let plan = schedule("0 * * * *", Missed::All(10), HOUR)
            .plan(8 * HOUR)
            .unwrap();
        assert_eq!(plan.slots.len(), 8);
        let portions = plan.clone().split(3);
        let shape = |firing: &Firing| (firing.due, firing.slots.len(), firing.next);
        assert_eq!(
            portions.iter().map(shape).collect::<Vec<_>>(),
            [
                (HOUR, 3, Some(4 * HOUR)),
                (4 * HOUR, 3, Some(7 * HOUR)),
                (7 * HOUR, 2, Some(9 * HOUR))
            ]
        );
        let slots = portions.into_iter().flat_map(|firing| firing.slots);
        assert_eq!(slots.collect::<Vec<_>>(), plan.slots);
        assert_eq!(plan.clone().split(8), std::slice::from_ref(&plan));
        assert_eq!(plan.clone().split(0).len(), 8);
    }

    #[test]
    fn a_slot_names_its_job() {
        let job = schedule("0 * * * *", Missed::Once, HOUR).slot(1_767_225_600_000);
        assert_eq!(
            job.id.unwrap().as_str(),
            "schedule:nightly@2026-01-01T00:00:00Z"
        );
    }

    #[test]
    fn wrong_expressions_and_zones_are_named_by_field() {
        let set = |cron: &str, zone: &str| {
            let mut spec = schedule(cron, Missed::Once, 0).spec;
            zone.clone_into(&mut spec.timezone);
            Schedule::command(ScheduleName::new("s").unwrap(), spec, 0)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(set("* * *", "UTC"), "cron has 3 fields instead of 5 or 6");
        assert_eq!(
            set("0 0 30 2 *", "UTC"),
            "cron has no slot in the next 41 years"
        );
        assert_eq!(
            set("0 0 * * *", "Mars/Phobos"),
            "timezone \"Mars/Phobos\" is not a name in the IANA time zone database"
        );
    }
}
