//! Times in requests: milliseconds since 1970, or RFC 3339 text.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

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
        Form::Text(text) => match milliseconds(&text) {
            Ok(time) => Ok(Some(time)),
            Err(problem) => Err(D::Error::custom(format_args!("{field} {problem}"))),
        },
    }
}

#[cfg(feature = "text-times")]
fn milliseconds(text: &str) -> Result<u64, &'static str> {
    use jiff::Timestamp;
    use jiff::fmt::temporal::Pieces;

    let time: Timestamp = text.parse().map_err(|_| match Pieces::parse(text) {
        // The last day of the year 9999 is a time, but not one that is calculated with.
        Ok(_) => "is too far away: no time from 9999-12-30T22:00:00Z on can be stored",
        Err(_) => "is not milliseconds since 1970 or an RFC 3339 time",
    })?;
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
