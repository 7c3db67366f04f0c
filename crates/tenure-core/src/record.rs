//! How records are written: JSON, readable with standard tools, with a format number in front.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The format of every record that this version writes. It reads no other.
const FORMAT: u32 = 1;

/// A stored record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It was written by a version with another format. Upgrade this one.
    #[error("the record has format {0}, this version reads format {FORMAT}")]
    Format(u32),
    /// It is no record at all.
    #[error("the record cannot be read: {0}")]
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
    let malformed = |error: serde_json::Error| RecordError::Malformed(error.to_string());
    let Header { format } = serde_json::from_slice(bytes).map_err(malformed)?;
    if format != FORMAT {
        return Err(RecordError::Format(format));
    }
    serde_json::from_slice(bytes).map_err(malformed)
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
