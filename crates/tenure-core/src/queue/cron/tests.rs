use super::*;

#[track_caller]
fn slots(cron: &str, zone: &str, after: &str, expected: &[&str]) {
    let cron = Cron::parse(cron).unwrap();
    let zone = jiff::tz::TimeZoneDatabase::bundled().get(zone).unwrap();
    let after: Timestamp = after.parse().unwrap();
    let mut after = u64::try_from(after.as_millisecond()).unwrap();
    let mut found = Vec::new();
    for _ in expected {
        after = cron.next(&zone, after).unwrap();
        let instant = Timestamp::from_millisecond(i64::try_from(after).unwrap()).unwrap();
        found.push(instant.to_string());
    }
    assert_eq!(found, expected);
}

#[test]
fn fields_lists_ranges_steps_and_names_match() {
    slots(
        "*/20 9-17/4 * * MON-FRI",
        "UTC",
        "2026-01-02T13:30:00Z",
        &[
            "2026-01-02T13:40:00Z",
            "2026-01-02T17:00:00Z",
            "2026-01-02T17:20:00Z",
            "2026-01-02T17:40:00Z",
            "2026-01-05T09:00:00Z",
        ],
    );
    slots(
        "0 0 29 feb *",
        "UTC",
        "2026-01-01T00:00:00Z",
        &["2028-02-29T00:00:00Z"],
    );
    slots(
        "0 0 * * 7",
        "UTC",
        "2026-01-01T00:00:00Z",
        &["2026-01-04T00:00:00Z"],
    );
    slots(
        "@yearly",
        "UTC",
        "2026-01-01T00:00:00Z",
        &["2027-01-01T00:00:00Z"],
    );
    slots(
        "5/25 * * * * *",
        "UTC",
        "2026-01-01T00:00:05.500Z",
        &[
            "2026-01-01T00:00:30Z",
            "2026-01-01T00:00:55Z",
            "2026-01-01T00:01:05Z",
        ],
    );
}

#[test]
fn two_restricted_day_fields_mean_either() {
    slots(
        "0 0 13 * fri",
        "UTC",
        "2026-02-06T00:00:00Z",
        &["2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"],
    );
    slots(
        "0 0 13 * *",
        "UTC",
        "2026-02-13T00:00:00Z",
        &["2026-03-13T00:00:00Z"],
    );
}

#[test]
fn a_time_of_day_fires_once_whatever_the_clocks_do() {
    // Berlin skips 02:00-03:00 on 2026-03-29 and repeats 02:00-03:00 on 2026-10-25.
    slots(
        "30 2 * * *",
        "Europe/Berlin",
        "2026-03-27T23:00:00Z",
        &[
            "2026-03-28T01:30:00Z",
            "2026-03-29T01:30:00Z",
            "2026-03-30T00:30:00Z",
        ],
    );
    slots(
        "30 2 * * *",
        "Europe/Berlin",
        "2026-10-24T12:00:00Z",
        &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
    );
}

#[test]
fn a_time_put_forward_does_not_swallow_the_ones_it_overtakes() {
    // Lord Howe skips 02:00-02:30 on 2026-10-04: 02:15 becomes 02:45, after 02:30.
    slots(
        "15,30 2 * * *",
        "Australia/Lord_Howe",
        "2026-10-03T12:00:00Z",
        &[
            "2026-10-03T15:30:00Z",
            "2026-10-03T15:45:00Z",
            "2026-10-04T15:15:00Z",
        ],
    );
}

#[test]
fn an_interval_follows_real_time_whatever_the_clocks_do() {
    slots(
        "0,30 * * * *",
        "Europe/Berlin",
        "2026-10-24T23:45:00Z",
        &[
            "2026-10-25T00:00:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T01:30:00Z",
            "2026-10-25T02:00:00Z",
        ],
    );
    slots(
        "0 * * * *",
        "Europe/Berlin",
        "2026-03-29T00:00:00Z",
        &["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"],
    );
    // Half an hour of summer time.
    slots(
        "15 */2 * * *",
        "Australia/Lord_Howe",
        "2026-04-04T12:00:00Z",
        &[
            "2026-04-04T13:15:00Z",
            "2026-04-04T15:45:00Z",
            "2026-04-04T17:45:00Z",
        ],
    );
}

#[test]
fn the_rarest_day_is_found_and_an_impossible_one_is_never() {
    slots(
        "0 0 29 2 *",
        "UTC",
        "2097-01-01T00:00:00Z",
        &["2104-02-29T00:00:00Z"],
    );
    let never = Cron::parse("0 0 30 2 *").unwrap();
    assert_eq!(never.next(&TimeZone::UTC, 0), None);
    let never = Cron::parse("0 * 31 2,4 *").unwrap();
    let zone = jiff::tz::TimeZoneDatabase::bundled()
        .get("Europe/Berlin")
        .unwrap();
    assert_eq!(never.next(&zone, 1_700_000_000_000), None);
    assert_eq!(never.next(&zone, u64::MAX), None);
}

#[test]
fn wrong_expressions_are_named() {
    for (text, problem) in [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("61 * * * *", "invalid minute \"61\": not between 0 and 59"),
        (
            "* 5-3 * * *",
            "invalid hour \"5-3\": the range ends before it starts",
        ),
        (
            "* * 0 * *",
            "invalid day of month \"0\": not between 1 and 31",
        ),
        (
            "* * * foo *",
            "invalid month \"foo\": not a number, name or range",
        ),
        (
            "* * * * */0",
            "invalid day of week \"*/0\": the step must be between 1 and 7",
        ),
        ("* * L * *", "invalid day of month \"L\""),
        ("-1 * * * *", "invalid minute \"-1\""),
        ("1,,2 * * * *", "invalid minute \"\""),
        ("99999999999 * * * *", "invalid minute"),
    ] {
        let error = Cron::parse(text).unwrap_err();
        assert!(error.contains(problem), "{text:?}: {error}");
    }
}

#[test]
fn slots_agree_with_a_search_minute_by_minute() {
    let zone = jiff::tz::TimeZoneDatabase::bundled()
        .get("America/New_York")
        .unwrap();
    for text in [
        "*/7 * * * *",
        "13 */5 * * *",
        "0 0-23/3 * 3,11 sun",
        "59 * 1,8 3,11 *",
    ] {
        let cron = Cron::parse(text).unwrap();
        for start in ["2026-03-07T20:00:00Z", "2026-10-31T20:00:00Z"] {
            let start: Timestamp = start.parse().unwrap();
            let start = u64::try_from(start.as_millisecond()).unwrap();
            let end = start + 2 * 24 * 3_600_000;
            let naive: Vec<u64> = (start / 60_000 + 1..=end / 60_000)
                .map(|minute| minute * 60_000)
                .filter(|&at| {
                    let instant = Timestamp::from_millisecond(i64::try_from(at).unwrap());
                    let local = zone.to_datetime(instant.unwrap());
                    cron.matches_day(local.date())
                        && bit(cron.months, local.month())
                        && bit(cron.hours, local.hour())
                        && bit(cron.minutes, local.minute())
                })
                .collect();
            let mut found = Vec::new();
            let mut at = start;
            while let Some(next) = cron.next(&zone, at).filter(|&next| next <= end) {
                found.push(next);
                at = next;
            }
            if cron.by_interval {
                assert_eq!(found, naive, "{text} from {start}");
            } else {
                assert!(
                    found.len().abs_diff(naive.len()) <= 1,
                    "{text} from {start}"
                );
            }
        }
    }
}

/// What a time of day means, word for word: every local time, at the instant that "compatible" gives it.
fn next_by_the_book(cron: &Cron, zone: &TimeZone, after: u64) -> Option<u64> {
    let after = Timestamp::from_millisecond(i64::try_from(after).unwrap()).unwrap();
    let mut from = zone.to_datetime(after).checked_sub(26.hours()).unwrap();
    let mut best: Option<Timestamp> = None;
    while let Some(local) = cron.next_local(from) {
        if best.is_some_and(|best| local > zone.to_datetime(best)) {
            break;
        }
        let instant = zone.to_ambiguous_timestamp(local).compatible().unwrap();
        if instant > after {
            best = Some(best.map_or(instant, |best| best.min(instant)));
        }
        from = local.checked_add(1.second()).unwrap();
    }
    best.and_then(|best| u64::try_from(best.as_millisecond()).ok())
}

#[test]
fn times_of_day_agree_with_a_search_of_every_local_time() {
    for (zone, change) in [
        ("Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("Europe/Berlin", "2026-10-25T01:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
        ("America/Santiago", "2026-09-06T04:00:00Z"),
        // A day that never was.
        ("Pacific/Apia", "2011-12-30T10:00:00Z"),
        ("UTC", "2026-10-25T01:00:00Z"),
    ] {
        let zone = jiff::tz::TimeZoneDatabase::bundled().get(zone).unwrap();
        let change: Timestamp = change.parse().unwrap();
        let change = u64::try_from(change.as_millisecond()).unwrap();
        for text in [
            "*/13 0-23 * * *",
            "15,30 2 * * *",
            "0 0 * * *",
            "59 1-3 * * 0",
            "30 10 30,31 * *",
        ] {
            let cron = Cron::parse(text).unwrap();
            for step in 0..400 {
                let after = change - 30 * 3_600_000 + step * 541_317;
                assert_eq!(
                    cron.next(&zone, after),
                    next_by_the_book(&cron, &zone, after),
                    "{text} after {after}, {} s from the change",
                    (after as i64 - change as i64) / 1_000,
                );
            }
        }
    }
}

#[test]
fn a_slot_is_found_without_walking_the_seconds_before_it() {
    let cron = Cron::parse("* * 0-23 * * *").unwrap();
    let zone = jiff::tz::TimeZoneDatabase::bundled()
        .get("Europe/Berlin")
        .unwrap();
    for around in [
        "2026-01-01T12:00:00Z",
        "2026-03-29T01:20:00Z",
        "2026-10-25T01:20:00Z",
    ] {
        let around: Timestamp = around.parse().unwrap();
        let around = u64::try_from(around.as_millisecond()).unwrap();
        let before = looks();
        assert!(cron.next(&zone, around).is_some());
        assert!(looks() - before <= 3, "{} looks", looks() - before);
    }
}
