//! Cron expressions, time zones and times: whatever is accepted goes forward, and at a bounded cost.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use tenure_fuzz::Fuzz;

use crate::ScheduleName;
use crate::queue::cron::Cron;
use crate::queue::{Limits, Schedule, ScheduleSpec, Submission};

const CRONS: [&str; 14] = [
    "* * * * *",
    "0 3 * * *",
    "*/5 * * * * *",
    "0 0 29 2 1",
    "0 0 13 * fri",
    "30 2 * * *",
    "0-30/7 1,2,3 1-15 jan-jun mon-fri",
    "5/15 * * * ?",
    "0 0 31 4,6,9,11 *",
    "59 59 23 31 12 7",
    "@hourly",
    "@weekly",
    "@yearly",
    "0 0 1 1 *",
];

/// A zone with clock changes, one that skipped a day, one with half hours, and one that never changes.
const ZONES: [&str; 5] = [
    "Europe/Berlin",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "UTC",
    "Africa/Casablanca",
];

#[test]
fn a_schedule_only_goes_forward() {
    let zones: Vec<TimeZone> = ZONES
        .iter()
        .map(|zone| TimeZoneDatabase::bundled().get(zone).unwrap())
        .collect();
    let times = [
        0,
        1_767_225_600_000,
        253_402_207_200_000,
        i64::MAX as u64,
        u64::MAX,
    ];
    // The first use of a zone is paid for by nobody.
    let fuzz = Fuzz::new("cron", CRONS).within(1 << 20, 64);
    fuzz.run(|input| {
        let text = String::from_utf8_lossy(input);
        let Ok(cron) = Cron::parse(&text) else {
            return;
        };
        let zone = &zones[input.len() % zones.len()];
        let mut after = times[input.first().map_or(0, |&byte| usize::from(byte)) % times.len()];
        for _ in 0..5 {
            let Some(next) = cron.next(zone, after) else {
                break;
            };
            assert!(next > after, "{next} does not come after {after}");
            after = next;
        }
    });
}

#[test]
fn a_schedule_that_was_missed_for_long_is_caught_up_with() {
    let corpus = CRONS.iter().zip(ZONES.iter().cycle()).zip(["\"once\"", "\"skip\"", "{\"all\":9}"].iter().cycle())
        .map(|((cron, zone), missed)| {
            format!(r#"{{"cron":"{cron}","timezone":"{zone}","job":{{"type":"mail"}},"missed":{missed}}}"#)
        });
    let fuzz = Fuzz::new("schedules", corpus).within(1 << 20, 64);
    fuzz.run(|input| {
        let Ok(spec) = serde_json::from_slice::<ScheduleSpec>(input) else {
            return;
        };
        let text = serde_json::to_vec(&spec).unwrap();
        assert_eq!(serde_json::from_slice::<ScheduleSpec>(&text).unwrap(), spec);
        let name = ScheduleName::new("nightly").unwrap();
        let now = 1_767_225_600_000;
        let limits = Limits::default();
        if limits.schedule(&name, &spec, now).is_err() {
            return;
        }
        let mut schedule = Schedule {
            name,
            spec,
            revision: 1,
            next: Some(now),
            last: None,
            paused: false,
        };
        for late in [0, 61_000, 3_600_000, 40 * 86_400_000] {
            let plan = schedule.plan(now + late).expect("it is due");
            assert!(plan.slots.is_sorted() && plan.slots.len() <= 1_000);
            assert!(
                plan.slots
                    .iter()
                    .all(|slot| (now..=now + late).contains(slot))
            );
            assert!(plan.next.is_none_or(|next| next > now + late));
            schedule.next = Some(now);
        }
    });
}

#[test]
fn a_time_reads_back() {
    let corpus = [
        r#"{"type":"a","run_at":"2026-01-01T00:00:00Z"}"#,
        r#"{"type":"a","run_at":"2026-01-01T01:00:00.123456789+01:00"}"#,
        r#"{"type":"a","run_at":1767225600000}"#,
        r#"{"type":"a","run_at":"2026-06-30T23:59:60Z[Europe/Berlin]"}"#,
    ];
    Fuzz::new("times", corpus).run(|input| {
        if let Ok(job) = serde_json::from_slice::<Submission>(input) {
            let text = serde_json::to_vec(&job).unwrap();
            assert_eq!(serde_json::from_slice::<Submission>(&text).unwrap(), job);
        }
    });
}
