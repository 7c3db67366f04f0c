//! Schedules: jobs that are submitted by the clock, each slot once.
//!
//! The next slot is part of the durable state, so a new broker goes on where the old one stopped. When it
//! is due, the broker asks [`Queue::due_firings`](super::Queue::due_firings) for a plan and sends it
//! through the log. The plan names the slot it starts from; applied twice, or after the schedule was
//! changed, it does nothing. Each slot's job has an id made of the schedule and the slot, which is a
//! second lock on the same door.
//!
//! Cron and time zones are looked at only to make a plan. What is applied are times: a newer time zone
//! database changes future plans, never a replay.

use std::collections::VecDeque;
use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::command::Action;
use super::cron::Cron;
use super::job::Submission;
use super::validate::Invalid;
use crate::mutation::{self, Mutation};
use crate::{JobId, ScheduleName};

/// What a schedule does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
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
}

fn utc() -> String {
    "UTC".to_owned()
}

/// What happens to missed slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// They are left out, if they are more than a minute late.
    Skip,
    /// The latest runs, for all of them.
    #[default]
    Once,
    /// The latest so many run.
    All(u32),
}

/// The most slots that one firing catches up with.
pub const CATCH_UP_MAX: u32 = 1_000;

/// How late a slot may be before [`Missed::Skip`] leaves it out.
const LATE_MS: u64 = 60_000;

/// A plan: the slots to fire, and the slot after them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// A schedule in the state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
}

impl Schedule {
    /// The action that sets a schedule whose first slot lies after `now`.
    pub fn command(name: ScheduleName, spec: ScheduleSpec, now: u64) -> Result<Action, Invalid> {
        let next = Clockwork::new(&spec)?.next(now);
        if next.is_none() {
            return Err(Invalid::new("cron", "never comes in the next 41 years"));
        }
        Ok(Action::SetSchedule(name, Box::new(spec), next))
    }

    /// The plan for everything that is due, if anything is.
    pub(crate) fn plan(&self, now: u64) -> Option<Firing> {
        let due = self.next.filter(|&next| next <= now)?;
        // A zone that a newer database no longer has leaves the schedule where it is, and visible.
        let clockwork = Clockwork::new(&self.spec).ok()?;
        let slots = match self.spec.missed {
            _ if mutation::is(Mutation::MissedSlotsForgotten) => clockwork.latest(due, now, 1),
            Missed::All(count) => clockwork.latest(due, now, count.clamp(1, CATCH_UP_MAX) as usize),
            Missed::Once => clockwork.latest(due, now, 1),
            Missed::Skip => {
                let mut slots = clockwork.latest(due, now, 1);
                slots.retain(|&slot| now - slot <= LATE_MS);
                slots
            }
        };
        Some(Firing {
            schedule: self.name.clone(),
            revision: self.revision,
            due,
            slots,
            next: clockwork.next(now),
        })
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

/// An expression and its zone, ready to be asked.
#[derive(Debug)]
struct Clockwork {
    cron: Cron,
    zone: TimeZone,
}

impl Clockwork {
    fn new(spec: &ScheduleSpec) -> Result<Self, Invalid> {
        // The copy inside the binary, never the files of the host: two brokers must plan alike.
        static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
        let cron = Cron::parse(&spec.cron).map_err(|problem| Invalid::new("cron", problem))?;
        let zone = ZONES.get(&spec.timezone).map_err(|_| {
            let shown: String = spec.timezone.chars().take(40).collect();
            Invalid::new(
                "timezone",
                format!("{shown:?} is no name of the IANA time zone database"),
            )
        })?;
        Ok(Self { cron, zone })
    }

    fn next(&self, after: u64) -> Option<u64> {
        self.cron.next(&self.zone, after)
    }

    /// The latest `count` slots from `due` to `now`. Looks back only as far as it must: a schedule of
    /// every second that was missed for a month has millions.
    fn latest(&self, due: u64, now: u64, count: usize) -> Vec<u64> {
        const MINUTE: u64 = 60_000;
        for window in [
            MINUTE,
            60 * MINUTE,
            1_440 * MINUTE,
            44_640 * MINUTE,
            u64::MAX,
        ] {
            let start = now.saturating_sub(window).max(due);
            let mut slots = VecDeque::new();
            let mut at = start.saturating_sub(1);
            while let Some(slot) = self.next(at).filter(|&slot| slot <= now) {
                if slots.len() == count {
                    slots.pop_front();
                }
                slots.push_back(slot);
                at = slot;
            }
            if start == due || slots.len() == count {
                return slots.into();
            }
        }
        Vec::new()
    }
}

/// Milliseconds since 1970, or RFC 3339 text.
pub(crate) fn time_or_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Milliseconds(u64),
        Text(String),
    }
    let Some(form) = Option::<Form>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match form {
        Form::Milliseconds(time) => Ok(Some(time)),
        Form::Text(text) => {
            let time: Timestamp = text.parse().map_err(|_| {
                D::Error::custom("run_at is neither milliseconds since 1970 nor an RFC 3339 time")
            })?;
            u64::try_from(time.as_millisecond())
                .map(Some)
                .map_err(|_| D::Error::custom("run_at is before 1970"))
        }
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
                timezone: utc(),
                job: Submission::new(JobType::new("report").unwrap()),
                missed,
            },
            revision: 1,
            next: Some(next),
            last: None,
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
            "cron never comes in the next 41 years"
        );
        assert_eq!(
            set("0 0 * * *", "Mars/Phobos"),
            "timezone \"Mars/Phobos\" is no name of the IANA time zone database"
        );
    }

    #[test]
    fn times_are_numbers_or_text() {
        let read = |text: &str| {
            serde_json::from_str::<Submission>(&format!(r#"{{"type":"a","run_at":{text}}}"#))
                .map(|job| job.run_at)
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("5"), Ok(Some(5)));
        assert_eq!(read("null"), Ok(None));
        assert_eq!(
            read("\"2026-01-01T01:00:00+01:00\""),
            Ok(Some(1_767_225_600_000))
        );
        assert!(read("\"tomorrow\"").unwrap_err().contains("run_at"));
        assert!(
            read("\"1969-01-01T00:00:00Z\"")
                .unwrap_err()
                .contains("before 1970")
        );
    }
}
