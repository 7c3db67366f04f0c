//! A row, as the relay reads it.

use std::time::Duration;

use sqlx::{ColumnIndex, Decode, Type};
use tenure_core::queue::{Backoff, Key, Payload, Submission};
use tenure_core::{JobId, JobType, QueueName};

/// The most bytes of a payload that is read at all. More fits no queue.
pub(super) const PAYLOAD_BYTES_MAX: i64 = 16 * 1024 * 1024;

/// A row of the outbox that is to be delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its number. Numbers are given out at the insert: they are not the order of commits.
    pub seq: i64,
    /// Its id: that of the job, too.
    pub id: String,
    /// Its group.
    pub group: Option<String>,
    /// Its place in the group.
    pub position: i64,
    /// How often its delivery has failed.
    pub attempts: u32,
    /// How long ago it was inserted, by the database's clock: for people.
    pub age: Duration,
    /// About how many bytes it has.
    pub bytes: usize,
    /// The job, or why what somebody inserted is none.
    pub job: Result<Submission, String>,
}

/// What every engine selects, in this order, numbers as 64 bits and all else as text.
pub(super) fn decode<R>(row: &R) -> Result<Row, sqlx::Error>
where
    R: sqlx::Row,
    usize: ColumnIndex<R>,
    String: Type<R::Database> + for<'r> Decode<'r, R::Database>,
    i64: Type<R::Database> + for<'r> Decode<'r, R::Database>,
{
    let number = |place: usize| row.try_get::<Option<i64>, _>(place);
    let text = |place: usize| row.try_get::<Option<String>, _>(place);
    let fields = Fields {
        id: row.try_get(1)?,
        job_type: row.try_get(2)?,
        queue: row.try_get(3)?,
        payload: text(4)?,
        payload_bytes: row.try_get(5)?,
        priority: row.try_get(6)?,
        run_at: number(7)?,
        delay_ms: number(8)?,
        max_attempts: number(9)?,
        unique_key: text(10)?,
        group: text(11)?,
        backoff: text(12)?,
        traceparent: text(13)?,
        tracestate: text(14)?,
    };
    Ok(Row {
        seq: row.try_get(0)?,
        position: number(15)?.unwrap_or_default(),
        attempts: u32::try_from(row.try_get::<i64, _>(16)?).unwrap_or(u32::MAX),
        age: Duration::from_millis(u64::try_from(row.try_get::<i64, _>(17)?).unwrap_or(0)),
        bytes: usize::try_from(fields.payload_bytes).unwrap_or(0) + 200,
        id: fields.id.clone(),
        group: fields.group.clone(),
        job: fields.job(),
    })
}

struct Fields {
    id: String,
    job_type: String,
    queue: String,
    payload: Option<String>,
    payload_bytes: i64,
    priority: i64,
    run_at: Option<i64>,
    delay_ms: Option<i64>,
    max_attempts: Option<i64>,
    unique_key: Option<String>,
    group: Option<String>,
    backoff: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

impl Fields {
    /// Anybody can insert anything: each field is checked as that of a call would be.
    fn job(self) -> Result<Submission, String> {
        fn wrong(field: &str) -> impl Fn(&dyn std::fmt::Display) -> String {
            move |error| format!("{field}: {error}")
        }
        fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
            field: &str,
            text: Option<String>,
        ) -> Result<Option<T>, String> {
            text.map(|text| text.parse().map_err(|error| wrong(field)(&error)))
                .transpose()
        }
        fn number<T: TryFrom<i64>>(field: &str, number: Option<i64>) -> Result<Option<T>, String> {
            let fits = |number: i64| {
                T::try_from(number).map_err(|_| format!("{field}: {number} is out of range"))
            };
            number.map(fits).transpose()
        }
        let payload = self
            .payload
            .ok_or_else(|| format!("payload: has {} bytes", self.payload_bytes))?;
        let job_type = JobType::new(&self.job_type).map_err(|error| wrong("type")(&error))?;
        let mut job = Submission::new(job_type);
        job.id = Some(JobId::new(&self.id).map_err(|error| wrong("id")(&error))?);
        job.queue = QueueName::new(&self.queue).map_err(|error| wrong("queue")(&error))?;
        job.payload = Payload::new(payload).map_err(|error| wrong("payload")(&error))?;
        job.priority = number("priority", Some(self.priority))?.unwrap_or_default();
        job.run_at = number("run_at", self.run_at)?;
        job.delay_ms = number("delay_ms", self.delay_ms)?;
        job.max_attempts = number("max_attempts", self.max_attempts)?;
        job.unique_key = parsed::<Key>("unique_key", self.unique_key)?;
        job.group = parsed::<Key>("group_key", self.group)?;
        job.backoff = self
            .backoff
            .map(|text| serde_json::from_str::<Backoff>(&text))
            .transpose()
            .map_err(|error| wrong("backoff")(&error))?;
        job.traceparent = parsed("traceparent", self.traceparent)?;
        job.tracestate = parsed("tracestate", self.tracestate)?;
        Ok(job)
    }
}
