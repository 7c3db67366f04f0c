//! The queue's own types as answers are read: fields that this version does not know are ignored.
//!
//! In the log, in snapshots and in requests those types refuse unknown fields, and rightly so. Each mirror
//! here has the same fields without that rule; a field that is missing here does not compile.

use serde::{Deserialize, Deserializer};

use crate::queue::{
    Backoff, Keep, KeepIds, Key, Payload, QueueOptions, Rate, Settings, Submission, Traceparent,
    Tracestate,
};
use crate::{JobId, JobType, QueueName};

#[derive(Deserialize)]
#[serde(remote = "Rate")]
struct RateMirror {
    jobs: u32,
    period_ms: u32,
    #[serde(default)]
    burst: Option<u32>,
}

#[derive(Deserialize)]
#[serde(remote = "QueueOptions")]
struct OptionsMirror {
    #[serde(default)]
    concurrency: Option<u32>,
    #[serde(default, deserialize_with = "rate_option")]
    rate: Option<Rate>,
}

fn rate_option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Rate>, D::Error> {
    #[derive(Deserialize)]
    struct Tolerant(#[serde(with = "RateMirror")] Rate);
    let rate = Option::<Tolerant>::deserialize(deserializer)?;
    Ok(rate.map(|Tolerant(rate)| rate))
}

#[derive(Deserialize)]
#[serde(remote = "Backoff")]
struct BackoffMirror {
    #[serde(default = "first_ms")]
    first_ms: u32,
    #[serde(default = "factor")]
    factor: u8,
    #[serde(default = "max_ms")]
    max_ms: u32,
    #[serde(default = "jitter_percent")]
    jitter_percent: u8,
}

fn first_ms() -> u32 {
    Backoff::default().first_ms
}

fn factor() -> u8 {
    Backoff::default().factor
}

fn max_ms() -> u32 {
    Backoff::default().max_ms
}

fn jitter_percent() -> u8 {
    Backoff::default().jitter_percent
}

pub(super) fn backoff_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Backoff>, D::Error> {
    #[derive(Deserialize)]
    struct Tolerant(#[serde(with = "BackoffMirror")] Backoff);
    let backoff = Option::<Tolerant>::deserialize(deserializer)?;
    Ok(backoff.map(|Tolerant(backoff)| backoff))
}

#[derive(Deserialize)]
#[serde(remote = "Submission")]
struct SubmissionMirror {
    #[serde(default)]
    id: Option<JobId>,
    #[serde(default = "crate::queue::job::queue_default")]
    queue: QueueName,
    #[serde(rename = "type")]
    job_type: JobType,
    #[serde(default)]
    payload: Payload,
    #[serde(default)]
    priority: i8,
    #[serde(default, deserialize_with = "crate::queue::schedule::time_or_text")]
    run_at: Option<u64>,
    #[serde(default)]
    delay_ms: Option<u64>,
    #[serde(default)]
    max_attempts: Option<u32>,
    #[serde(default)]
    unique_key: Option<Key>,
    #[serde(default)]
    group: Option<Key>,
    #[serde(default, deserialize_with = "backoff_option")]
    backoff: Option<Backoff>,
    #[serde(default)]
    traceparent: Option<Traceparent>,
    #[serde(default)]
    tracestate: Option<Tracestate>,
}

#[derive(Deserialize)]
#[serde(remote = "Keep")]
struct KeepMirror {
    #[serde(default)]
    age_ms: Option<u64>,
    #[serde(default)]
    count: Option<u64>,
}

#[derive(Deserialize)]
#[serde(remote = "Settings")]
struct SettingsMirror {
    #[serde(with = "KeepMirror")]
    completed: Keep,
    #[serde(with = "KeepMirror")]
    cancelled: Keep,
    #[serde(with = "KeepMirror")]
    dead: Keep,
    jobs_max: u64,
    #[serde(default, with = "KeepIdsMirror")]
    ids: KeepIds,
}

#[derive(Deserialize)]
#[serde(remote = "KeepIds", default = "KeepIds::default")]
struct KeepIdsMirror {
    age_ms: u64,
    bytes_max: u64,
}

/// What `#[serde(with = …)]` wants: written as ever, read with tolerance.
macro_rules! tolerant {
    ($($module:ident: $kind:ident by $mirror:ident;)*) => {$(
        pub(super) mod $module {
            use serde::{Deserializer, Serialize, Serializer};

            use crate::queue::$kind;

            pub(in crate::api) fn serialize<S: Serializer>(
                value: &$kind,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                value.serialize(serializer)
            }

            pub(in crate::api) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$kind, D::Error> {
                super::$mirror::deserialize(deserializer)
            }
        }
    )*};
}

tolerant! {
    queue_options: QueueOptions by OptionsMirror;
    submission: Submission by SubmissionMirror;
}

/// All settings are written, also those that are at their defaults and that a log leaves out: whoever changes some reads
/// them, and sends all of them back.
pub(super) mod settings {
    use serde::{Deserializer, Serialize, Serializer};

    use crate::queue::{Keep, KeepIds, Settings};

    pub(in crate::api) fn serialize<S: Serializer>(
        value: &Settings,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct All {
            completed: Keep,
            cancelled: Keep,
            dead: Keep,
            jobs_max: u64,
            ids: KeepIds,
        }
        let Settings {
            completed,
            cancelled,
            dead,
            jobs_max,
            ids,
        } = *value;
        let all = All {
            completed,
            cancelled,
            dead,
            jobs_max,
            ids,
        };
        all.serialize(serializer)
    }

    pub(in crate::api) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Settings, D::Error> {
        super::SettingsMirror::deserialize(deserializer)
    }
}
