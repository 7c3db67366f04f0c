//! A row, as the relay reads it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{ColumnIndex, Decode, Type};
use tenure_core::queue::{Backoff, Completion, Key, Payload, Submission, Token};
use tenure_core::{JobId, JobType, QueueName};

/// The most bytes of a payload that is read at all. More fits no queue.
pub(super) const PAYLOAD_BYTES_MAX: i64 = 16 * 1024 * 1024;

/// The most bytes of any other text that is read at all. No name, key or option of a job has so many.
pub(super) const TEXT_BYTES_MAX: i64 = 2_000;

/// What a row has in place of a type if it completes a job. No type of a job has a slash in it, so a relay of a version
/// that does not know such rows puts them into the dead table.
pub(crate) const COMPLETE: &str = "tenure/complete";

/// A row of the outbox that is to be delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its number. Numbers are given out at the insert: they are not the order of commits.
    pub seq: i64,
    /// Its id: that of the job, too.
    pub id: String,
    /// Its group. None, too, if what somebody inserted is no name of a group: then [`job`](Row::job) says so.
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
    /// The claim that ends, if the row completes a job. Such a row is no job, and no [`Handler`](super::Handler) gets it.
    pub completes: Option<Completion>,
}

/// What every engine selects, in this order, numbers as 64 bits and all else as text.
///
/// One row that cannot be read must not keep the others from being delivered: it is a row that is no job.
pub(super) fn decode<R>(row: &R) -> Result<Row, sqlx::Error>
where
    R: sqlx::Row,
    usize: ColumnIndex<R>,
    String: Type<R::Database> + for<'r> Decode<'r, R::Database>,
    Vec<u8>: Type<R::Database> + for<'r> Decode<'r, R::Database>,
    i64: Type<R::Database> + for<'r> Decode<'r, R::Database>,
{
    let number = |place: usize| row.try_get::<Option<i64>, _>(place);
    let mut unreadable =
        shown(row, 18)?.map(|field| format!("{field}: has more than {TEXT_BYTES_MAX} bytes"));
    let mut text = |place: usize, field: &str| {
        if !is_text(row, place) {
            unreadable.get_or_insert_with(|| format!("{field}: is not valid UTF-8"));
        }
        shown(row, place)
    };
    let fields = Fields {
        id: text(1, "id")?.unwrap_or_default(),
        job_type: text(2, "type")?.unwrap_or_default(),
        queue: text(3, "queue")?.unwrap_or_default(),
        payload: text(4, "payload")?,
        payload_bytes: row.try_get(5)?,
        priority: row.try_get(6)?,
        run_at: number(7)?,
        delay_ms: number(8)?,
        max_attempts: number(9)?,
        unique_key: text(10, "unique_key")?,
        group: text(11, "group_key")?,
        backoff: text(12, "backoff")?,
        traceparent: text(13, "traceparent")?,
        tracestate: text(14, "tracestate")?,
    };
    let bytes = usize::try_from(fields.payload_bytes).unwrap_or(0) + 200;
    let id = fields.id.clone();
    let (job, completes) = match unreadable {
        Some(error) => (Err(error), None),
        None => fields.content(),
    };
    Ok(Row {
        seq: row.try_get(0)?,
        position: number(15)?.unwrap_or_default(),
        attempts: u32::try_from(row.try_get::<i64, _>(16)?.max(0)).unwrap_or(u32::MAX),
        // MySQL keeps times that are none.
        age: Duration::from_millis(u64::try_from(number(17)?.unwrap_or(0)).unwrap_or(0)),
        bytes,
        id,
        group: group(row, 11)?,
        job,
        completes,
    })
}

/// A text for people: what is not UTF-8, which SQLite and some databases of PostgreSQL keep, with other signs in its place.
pub(super) fn shown<R>(row: &R, place: usize) -> Result<Option<String>, sqlx::Error>
where
    R: sqlx::Row,
    usize: ColumnIndex<R>,
    String: Type<R::Database> + for<'r> Decode<'r, R::Database>,
    Vec<u8>: Type<R::Database> + for<'r> Decode<'r, R::Database>,
{
    if is_text(row, place) {
        return row.try_get(place);
    }
    let bytes = row.try_get_unchecked::<Vec<u8>, _>(place)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The name of a row's group, by which its rows can be asked for.
pub(super) fn group<R>(row: &R, place: usize) -> Result<Option<String>, sqlx::Error>
where
    R: sqlx::Row,
    usize: ColumnIndex<R>,
    String: Type<R::Database> + for<'r> Decode<'r, R::Database>,
{
    if !is_text(row, place) {
        return Ok(None);
    }
    let group: Option<String> = row.try_get(place)?;
    Ok(group.filter(|group| Key::new(group).is_ok()))
}

fn is_text<R>(row: &R, place: usize) -> bool
where
    R: sqlx::Row,
    usize: ColumnIndex<R>,
    String: Type<R::Database> + for<'r> Decode<'r, R::Database>,
{
    let text = row.try_get::<Option<String>, _>(place);
    !matches!(text, Err(sqlx::Error::ColumnDecode { .. }))
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

/// What the payload of a row has that completes a job.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndOfClaim {
    pub(crate) token: Token,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Payload>,
}

impl Fields {
    /// What the row is: a job, or the end of a claim.
    fn content(self) -> (Result<Submission, String>, Option<Completion>) {
        if self.job_type != COMPLETE {
            return (self.job(), None);
        }
        match self.completion() {
            Ok(completion) => (
                Err("completes a job, and is none".to_owned()),
                Some(completion),
            ),
            Err(error) => (Err(error), None),
        }
    }

    /// The claim that ends. What was meant for a job would have no effect, so it is refused; the queue of the job does not matter.
    fn completion(self) -> Result<Completion, String> {
        let given = [
            ("priority", self.priority != 0),
            ("run_at", self.run_at.is_some()),
            ("delay_ms", self.delay_ms.is_some()),
            ("max_attempts", self.max_attempts.is_some()),
            ("unique_key", self.unique_key.is_some()),
            ("group_key", self.group.is_some()),
            ("backoff", self.backoff.is_some()),
        ];
        if let Some((field, _)) = given.iter().find(|(_, is_given)| *is_given) {
            return Err(format!("{field}: a row that completes a job has none"));
        }
        let payload = self
            .payload
            .ok_or_else(|| format!("payload: has {} bytes", self.payload_bytes))?;
        let end: EndOfClaim =
            serde_json::from_str(&payload).map_err(|error| format!("payload: {error}"))?;
        Ok(Completion {
            id: JobId::new(&self.id).map_err(|error| format!("id: {error}"))?,
            token: end.token,
            result: end.result,
        })
    }

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
            .map(|text| backoff(&text))
            .transpose()
            .map_err(|error| wrong("backoff")(&error))?;
        job.traceparent = parsed("traceparent", self.traceparent)?;
        job.tracestate = parsed("tracestate", self.tracestate)?;
        Ok(job)
    }
}

/// A mistake in a name must not mean the default in silence.
fn backoff(text: &str) -> Result<Backoff, String> {
    let fields = |value: serde_json::Value| match value {
        serde_json::Value::Object(fields) => Ok(fields),
        _ => Err("is not a JSON object".to_owned()),
    };
    let given: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let known = serde_json::to_value(Backoff::default()).map_err(|error| error.to_string())?;
    let known = fields(known)?;
    let given = fields(given)?;
    if let Some(name) = given.keys().find(|name| !known.contains_key(*name)) {
        return Err(format!("there is no option {name:?}"));
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}
