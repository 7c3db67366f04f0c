//! osqueue's messages: as Protocol Buffers (`queue.proto`) and in their JSON form.
//!
//! They are few and small, so they are written here instead of generated: there is no build step.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Parses a JSON object. A list would otherwise be taken for its fields, in order.
pub(super) fn object<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    if text.trim_ascii_start().starts_with(b"[") {
        return Err("it is a list, not an object".to_owned());
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SubmitJobRequest {
    /// JSON.
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "from_base64")]
    pub(super) payload: Vec<u8>,
    #[prost(int32, optional, tag = "2")]
    #[serde(alias = "max_attempts")]
    pub(super) max_attempts: Option<i32>,
    #[prost(string, tag = "3")]
    pub(super) r#type: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SubmitJobResponse {
    #[prost(string, tag = "1")]
    pub(super) job_id: String,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimJobRequest {
    #[prost(string, tag = "1")]
    #[serde(alias = "worker_id")]
    pub(super) worker_id: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) types: Vec<String>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimJobResponse {
    #[prost(string, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job_id: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "to_base64_if_any"
    )]
    pub(super) payload: Option<Vec<u8>>,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) r#type: String,
}

/// The message of heartbeats and of completions.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct HeldJobRequest {
    #[prost(string, tag = "1")]
    #[serde(alias = "job_id")]
    pub(super) job_id: String,
    #[prost(string, tag = "2")]
    #[serde(alias = "worker_id")]
    pub(super) worker_id: String,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GetStatsResponse {
    #[prost(int32, tag = "1")]
    pub(super) total: i32,
    #[prost(int32, tag = "2")]
    pub(super) unclaimed: i32,
    #[prost(int32, tag = "3")]
    pub(super) in_progress: i32,
    #[prost(string, tag = "4")]
    pub(super) broker_address: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JobInfo {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) status: String,
    #[prost(bytes = "vec", tag = "3")]
    #[serde(serialize_with = "to_base64")]
    pub(super) payload: Vec<u8>,
    #[prost(string, tag = "4")]
    pub(super) r#type: String,
    #[prost(string, tag = "5")]
    pub(super) worker_id: String,
    #[prost(int64, tag = "6")]
    #[serde(serialize_with = "as_text")]
    pub(super) created_at: i64,
    #[prost(int32, tag = "7")]
    pub(super) attempts: i32,
    #[prost(int32, tag = "8")]
    pub(super) max_attempts: i32,
    #[prost(int64, tag = "9")]
    #[serde(serialize_with = "as_text")]
    pub(super) heartbeat: i64,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListJobsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) jobs: Vec<JobInfo>,
    #[prost(int32, tag = "2")]
    pub(super) total: i32,
    #[prost(int32, tag = "3")]
    pub(super) unclaimed: i32,
    #[prost(int32, tag = "4")]
    pub(super) in_progress: i32,
    #[prost(int32, tag = "5")]
    pub(super) completed_total: i32,
    #[prost(string, tag = "6")]
    pub(super) broker_address: String,
}

/// A REST answer, as far as the messages can carry it. Their numbers are smaller types, so numbers that do not fit
/// become the largest that does.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RestSubmitted {
    pub(super) job_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RestClaimed {
    pub(super) job_id: Option<String>,
    /// A payload of `null` is still a payload.
    #[serde(deserialize_with = "present")]
    pub(super) payload: Option<Box<RawValue>>,
    pub(super) r#type: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RestStats {
    total: u64,
    unclaimed: u64,
    in_progress: u64,
    completed_total: u64,
    broker_address: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct RestJobs {
    jobs: Vec<RestJob>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RestJob {
    id: String,
    status: String,
    payload: Box<RawValue>,
    r#type: Option<String>,
    worker_id: Option<String>,
    created_at: u64,
    attempts: u32,
    max_attempts: u32,
    heartbeat: u64,
}

fn small(number: u64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn large(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl From<RestClaimed> for ClaimJobResponse {
    fn from(claimed: RestClaimed) -> Self {
        let payload = claimed
            .payload
            .map(|payload| payload.get().as_bytes().to_vec());
        Self {
            job_id: claimed.job_id,
            payload,
            r#type: claimed.r#type.unwrap_or_default(),
        }
    }
}

impl From<RestStats> for GetStatsResponse {
    fn from(stats: RestStats) -> Self {
        Self {
            total: small(stats.total),
            unclaimed: small(stats.unclaimed),
            in_progress: small(stats.in_progress),
            broker_address: stats.broker_address,
        }
    }
}

impl ListJobsResponse {
    pub(super) fn new(numbers: RestStats, RestJobs { jobs }: RestJobs) -> Self {
        Self {
            jobs: jobs.into_iter().map(JobInfo::from).collect(),
            total: small(numbers.total),
            unclaimed: small(numbers.unclaimed),
            in_progress: small(numbers.in_progress),
            completed_total: small(numbers.completed_total),
            broker_address: numbers.broker_address,
        }
    }
}

impl From<RestJob> for JobInfo {
    fn from(job: RestJob) -> Self {
        Self {
            id: job.id,
            status: job.status,
            payload: job.payload.get().as_bytes().to_vec(),
            r#type: job.r#type.unwrap_or_default(),
            worker_id: job.worker_id.unwrap_or_default(),
            created_at: large(job.created_at),
            attempts: small(job.attempts.into()),
            max_attempts: small(job.max_attempts.into()),
            heartbeat: large(job.heartbeat),
        }
    }
}

fn present<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Deserialize::deserialize(input).map(Some)
}

fn from_base64<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(input)?;
    // Both alphabets are allowed, with and without padding.
    let text: String = text
        .trim_end_matches('=')
        .replace('-', "+")
        .replace('_', "/");
    base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(text)
        .map_err(|_| serde::de::Error::custom("not base64"))
}

fn to_base64<S: Serializer>(bytes: &[u8], output: S) -> Result<S::Ok, S::Error> {
    output.serialize_str(&STANDARD.encode(bytes))
}

fn to_base64_if_any<S: Serializer>(bytes: &Option<Vec<u8>>, output: S) -> Result<S::Ok, S::Error> {
    to_base64(bytes.as_deref().unwrap_or_default(), output)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn as_text<S: Serializer>(number: &i64, output: S) -> Result<S::Ok, S::Error> {
    output.collect_str(number)
}
