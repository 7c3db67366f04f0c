//! Times as people write and read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use tenure::core::Wall;

/// Longer than any sensible time here, and short enough to calculate with.
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
        (0, 0, 0, 0) if duration.is_zero() => "0s".to_owned(),
        // Not shown as 0, which would mean that it took no time at all.
        (0, 0, 0, 0) if duration.as_millis() == 0 => format!("0.{:03}ms", duration.as_micros()),
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

/// The time in the format of the log, to the microsecond.
pub(crate) fn stamp() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = i64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(i64::MAX);
    let timestamp = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
    format!("{timestamp:.6}")
}

/// The time between two wall clock readings. They may come from two hosts, so this is only for people.
pub(crate) fn between(from: Wall, to: Wall) -> Duration {
    Duration::from_millis(to.0.saturating_sub(from.0))
}

/// How long ago that was, on this host's clock.
pub(crate) fn age(then: Wall) -> String {
    format!("{} ago", duration(between(then, now())))
}

/// How long ago that was, or how far ahead it is, on this host's clock.
pub(crate) fn distance(then: Wall) -> String {
    if then.0 > now().0 {
        format!("in {}", duration(between(now(), then)))
    } else {
        age(then)
    }
}

/// The time in RFC 3339, in UTC: `2026-02-28T09:05:03Z`. The standard ends with the year 9999; a damaged record may
/// hold a later time.
pub(crate) fn rfc3339(wall: Wall) -> String {
    let milliseconds = i64::try_from(wall.0).unwrap_or(i64::MAX);
    let timestamp = Timestamp::from_millisecond(milliseconds).unwrap_or(Timestamp::MAX);
    format!("{timestamp:.0}")
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
        assert_eq!(duration(Duration::from_micros(20)), "0.020ms");
        for (milliseconds, text) in [
            (0, "0s"),
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
        assert_eq!(rfc3339(Wall(u64::MAX)), "9999-12-30T22:00:00Z");
    }
}
