//! How records are written: JSON, readable with standard tools, with a format number in front.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The format of every record that this version writes. It reads no other.
const FORMAT: u32 = 1;

/// A stored record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It was written by a version with another format. Upgrade this one.
    #[error("the record has format {0}, but this version reads format {FORMAT}")]
    Format(u32),
    /// It is not a record.
    #[error("cannot read the record: {0}")]
    Malformed(String),
}

#[derive(serde::Deserialize)]
struct Header {
    format: u32,
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    format: u32,
    #[serde(flatten)]
    record: &'a T,
}

/// One line of JSON.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    let envelope = Envelope {
        format: FORMAT,
        record,
    };
    serde_json::to_vec(&envelope).expect("records have string keys and no failing serializers")
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    let malformed = |error: serde_json::Error| RecordError::Malformed(shown(&error));
    let Header { format } = serde_json::from_slice(bytes).map_err(malformed)?;
    if format != FORMAT {
        return Err(RecordError::Format(format));
    }
    serde_json::from_slice(bytes).map_err(malformed)
}

/// The most characters of an error that are shown.
const SHOWN_MAX: usize = 300;

/// What the error says, on one line and not too long: it repeats pieces of what could not be read, and will be logged.
pub(crate) fn shown(error: &serde_json::Error) -> String {
    let mut text: Vec<char> = error.to_string().chars().collect();
    if text.len() > SHOWN_MAX {
        // The position comes last.
        let place = text.split_off(text.len() - SHOWN_MAX / 3);
        text.truncate(SHOWN_MAX / 3 * 2);
        text.extend([' ', '…', ' '].into_iter().chain(place));
    }
    let printable = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    text.into_iter().map(printable).collect()
}

/// Reads a stored number that only grows. Real ones never come near the end of the range. One that does is refused,
/// since it could not grow any more.
pub(crate) fn growing<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = <u64 as serde::Deserialize>::deserialize(deserializer)?;
    if number > u64::MAX / 2 {
        let problem = format!("{number} is too large");
        return Err(serde::de::Error::custom(problem));
    }
    Ok(number)
}

/// Durations as whole milliseconds.
pub(crate) mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use crate::election::{Fence, Lease, Term};

    #[test]
    fn what_cannot_be_read_is_shown_on_one_short_line() {
        let hostile = format!(r#"{{"format":1,"lineage":"{}\n"}}"#, "x".repeat(10_000));
        let error = Fence::decode(hostile.as_bytes()).unwrap_err().to_string();
        assert!(error.len() < 1_000, "{error}");
        let hostile = "{\"format\":1,\"term\":1,\"state\":{\"\\u001b[2J\\n\":1}}";
        let error = Lease::decode(hostile.as_bytes()).unwrap_err();
        assert!(!error.to_string().contains(char::is_control), "{error}");
    }

    #[test]
    fn a_term_that_could_not_grow_is_damage() {
        let read = |term: u64| serde_json::from_str::<Term>(&term.to_string());
        assert_eq!(read(u64::MAX / 2).unwrap(), Term(u64::MAX / 2));
        assert!(
            read(u64::MAX)
                .unwrap_err()
                .to_string()
                .contains("too large")
        );
    }
}
