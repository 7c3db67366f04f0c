//! What a queue may do at once and per time, and how long finished jobs are kept.
//!
//! All of it is part of the state, set by commands: a replay must not depend on the configuration of the
//! process that replays.

use serde::{Deserialize, Serialize};

/// The limits of one queue. Setting them replaces them all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct QueueOptions {
    /// At most this many jobs run at once; no limit if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// At most this many jobs are claimed per time; no limit if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// How many jobs may start per period, on average; up to `burst` of them at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rate {
    /// Jobs per period.
    pub jobs: u32,
    /// The period.
    pub period_ms: u32,
    /// How many may be claimed at once after a quiet time; `jobs` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// The settings of all queues in the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Settings {
    /// How long completed jobs, and with them their ids and results, are kept. Default: a day, and the
    /// latest 100,000.
    pub completed: Keep,
    /// How long cancelled jobs are kept. Default: a day, and the latest 100,000.
    pub cancelled: Keep,
    /// How long dead jobs are kept. Default: for ever.
    pub dead: Keep,
    /// The maximum number of jobs in all states; more submits are refused until jobs are deleted.
    /// Default 10,000,000.
    pub jobs_max: u64,
    /// How long ids are remembered at least, whatever happens to their jobs.
    pub ids: KeepIds,
}

/// How long the id of a finished job is kept at least, with its final state and its result, if the job itself is deleted
/// earlier. During that time a submit can be repeated. Not counted in `jobs_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct KeepIds {
    /// For this long after the job has finished. Default an hour. Make it longer than clients keep repeating a submit;
    /// with 0, an id is deleted with its job.
    pub age_ms: u64,
    /// How much memory all ids may take, in bytes; beyond that the oldest are deleted early. Default 512 MiB, enough
    /// for about 2.7 million ids.
    pub bytes_max: u64,
}

impl Default for KeepIds {
    fn default() -> Self {
        Self {
            age_ms: 3_600_000,
            bytes_max: 512 * 1024 * 1024,
        }
    }
}

/// How long finished jobs are kept: whichever bound is reached first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Keep {
    /// For this long; for ever if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// At most this many, the latest; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        let keep = Keep {
            age_ms: Some(24 * 3_600_000),
            count: Some(100_000),
        };
        Self {
            completed: keep,
            cancelled: keep,
            dead: Keep::default(),
            jobs_max: 10_000_000,
            ids: KeepIds::default(),
        }
    }
}

/// `PATCH /v1/settings`: change some settings. Fields that are left out stay as they are; a field that is named is
/// replaced as a whole. Calls that change different fields at the same time do not undo each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SettingsChange {
    /// How long completed jobs are kept.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Keep, required = false))]
    pub completed: Option<Keep>,
    /// How long cancelled jobs are kept.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Keep, required = false))]
    pub cancelled: Option<Keep>,
    /// How long dead jobs are kept.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Keep, required = false))]
    pub dead: Option<Keep>,
    /// The maximum number of jobs in all states.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = u64, required = false))]
    pub jobs_max: Option<u64>,
    /// How long ids are known at least.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = KeepIds, required = false))]
    pub ids: Option<KeepIds>,
}

impl SettingsChange {
    /// Changes what it names.
    pub fn apply(self, settings: &mut Settings) {
        let Settings {
            completed,
            cancelled,
            dead,
            jobs_max,
            ids,
        } = *settings;
        *settings = Settings {
            completed: self.completed.unwrap_or(completed),
            cancelled: self.cancelled.unwrap_or(cancelled),
            dead: self.dead.unwrap_or(dead),
            jobs_max: self.jobs_max.unwrap_or(jobs_max),
            ids: self.ids.unwrap_or(ids),
        };
    }
}

/// A field that is there, and not `null`.
fn some<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
