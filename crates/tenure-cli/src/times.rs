//! Times as people write and read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::core::Wall;

/// Longer than any time that makes sense here, and short enough to calculate with.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads a duration such as `10s`, `500ms`, `1.5m`, `2h` or `1d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit_at = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit_seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 24.0 * 3600.0,
        _ => return Err("use a number and a unit: 500ms, 10s, 2m, 1h or 1d".to_owned()),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "use a number and a unit: 500ms, 10s, 2m, 1h or 1d".to_owned())?;
    Duration::try_from_secs_f64(number * unit_seconds)
        .ok()
        .filter(|duration| *duration <= DURATION_MAX)
        .ok_or_else(|| "at most 365d".to_owned())
}

/// A duration in the two units that matter, such as `3m 20s`.
pub(crate) fn duration(duration: Duration) -> String {
    let (days, rest) = (duration.as_secs() / 86_400, duration.as_secs() % 86_400);
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    match (days, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{}ms", duration.as_millis()),
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (0, hours, minutes, _) => format!("{hours}h {minutes}m"),
        (days, hours, _, _) => format!("{days}d {hours}h"),
    }
}

/// The wall clock of this host, now.
pub(crate) fn now() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let milliseconds = since.unwrap_or_default().as_millis();
    Wall(u64::try_from(milliseconds).unwrap_or(u64::MAX))
}

/// How long one wall clock reading is after another. They may come from two hosts, so this is for people.
pub(crate) fn between(from: Wall, to: Wall) -> Duration {
    Duration::from_millis(to.0.saturating_sub(from.0))
}

/// How long ago that was, on this host's clock.
pub(crate) fn age(then: Wall) -> String {
    format!("{} ago", duration(between(then, now())))
}

/// How long ago that was, or how far ahead it is, on this host's clock.
pub(crate) fn distance(then: Wall) -> String {
    match then.0 > now().0 {
        true => format!("in {}", duration(between(now(), then))),
        false => age(then),
    }
}

/// The time as RFC 3339 has it, in UTC: `2026-02-28T09:05:03Z`.
pub(crate) fn rfc3339(wall: Wall) -> String {
    let seconds = wall.0 / 1000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The civil date, a number of days after 1 January 1970: years are counted from March, in eras of 400
/// years, so that the day that is sometimes there comes last.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    const DAYS_FROM_YEAR_0: u64 = 719_468;
    let days = days + DAYS_FROM_YEAR_0;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_unit() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("0s", 0),
        ] {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(parse_duration(text), Ok(duration), "{text}");
        }
        for text in [
            "", "10", "s", "-1s", "1 s", "1.2.3s", "ten", "1w", "400d", "1e9s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_short() {
        for (milliseconds, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (59_999, "59s"),
            (60_000, "1m 0s"),
            (3_725_000, "1h 2m"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(duration(Duration::from_millis(milliseconds)), text);
        }
    }

    #[test]
    fn dates_are_right_over_leap_years() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(Wall(seconds * 1000 + 999)), text);
        }
    }
}
