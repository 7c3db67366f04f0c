//! Times in requests: milliseconds since 1970, or RFC 3339 text.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Milliseconds since 1970, or RFC 3339 text.
pub(crate) fn time_or_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    time_of_field(deserializer, "run_at")
}

/// The same in a field of another name.
pub(crate) fn time_of_field<'de, D: Deserializer<'de>>(
    deserializer: D,
    field: &str,
) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_option(Time { field })
}

/// By hand: an untagged enum would say of every mistake only that it did not match.
struct Time<'a> {
    field: &'a str,
}

impl<'de> Visitor<'de> for Time<'_> {
    type Value = Option<u64>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("milliseconds since 1970 or an RFC 3339 time")
    }

    fn visit_none<E: Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_u64<E: Error>(self, time: u64) -> Result<Option<u64>, E> {
        Ok(Some(time))
    }

    fn visit_i64<E: Error>(self, time: i64) -> Result<Option<u64>, E> {
        let time = u64::try_from(time);
        time.map(Some)
            .map_err(|_| E::custom(format_args!("{} is before 1970", self.field)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<u64>, E> {
        let time = milliseconds(text);
        time.map(Some)
            .map_err(|problem| E::custom(format_args!("{} {problem}", self.field)))
    }
}

#[cfg(feature = "text-times")]
const DAY_SECONDS: i32 = 24 * 3_600;

#[cfg(feature = "text-times")]
fn milliseconds(text: &str) -> Result<u64, &'static str> {
    use jiff::Timestamp;
    use jiff::fmt::temporal::Pieces;

    let time: Timestamp = text.parse().map_err(|_| match Pieces::parse(text) {
        Ok(pieces) if pieces.time().is_none() || pieces.to_numeric_offset().is_none() => {
            "is not a whole time: it needs a time of day and an offset, as in 2026-12-01T09:00:00Z or 2026-12-01T09:00:00+01:00"
        }
        // The last day of the year 9999 is a time, but not one that is calculated with.
        Ok(_) => "is too far away: no time from 9999-12-30T22:00:00Z on can be stored",
        Err(_) => "is not milliseconds since 1970 or an RFC 3339 time",
    })?;
    // What reads it takes offsets that no place has.
    let offset = Pieces::parse(text)
        .ok()
        .and_then(|it| it.to_numeric_offset());
    if offset.is_some_and(|offset| offset.seconds().abs() >= DAY_SECONDS) {
        return Err("has an offset of a day or more");
    }
    u64::try_from(time.as_millisecond()).map_err(|_| "is before 1970")
}

#[cfg(not(feature = "text-times"))]
fn milliseconds(_: &str) -> Result<u64, &'static str> {
    Err("is not milliseconds since 1970; text is read with the feature text-times")
}

#[cfg(all(test, feature = "text-times"))]
mod tests {
    use crate::Submission;

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
        for (text, problem) in [
            ("\"tomorrow\"", "run_at is not milliseconds since 1970 or"),
            ("\"9999-12-31T23:59:59Z\"", "run_at is too far away"),
            ("\"2026-12-01\"", "run_at is not a whole time"),
            ("\"2026-12-01T09:00:00\"", "run_at is not a whole time"),
            ("\"2026-12-01 09:00\"", "run_at is not a whole time"),
            ("\"2026-01-01T01:00:00+25:00\"", "run_at has an offset of"),
            ("\"2026-01-01T01:00:00-24:00\"", "run_at has an offset of"),
            ("-1", "run_at is before 1970"),
            (
                "true",
                "expected milliseconds since 1970 or an RFC 3339 time",
            ),
            (
                "[5]",
                "expected milliseconds since 1970 or an RFC 3339 time",
            ),
            (
                "1.5",
                "expected milliseconds since 1970 or an RFC 3339 time",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        assert!(
            read("\"1969-01-01T00:00:00Z\"")
                .unwrap_err()
                .contains("before 1970")
        );
    }
}
