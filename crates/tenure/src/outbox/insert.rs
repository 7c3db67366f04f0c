//! Rows are written in the caller's own transaction.

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::JobId;
use tenure_core::queue::{Key, Submission};

/// How many rows one statement inserts: SQLite takes 32,766 values.
const ROWS_MAX: usize = 500;

const COLUMNS: &str = "id, type, payload, queue, priority, run_at, delay_ms, max_attempts, unique_key, group_key, backoff, traceparent, tracestate";

/// Why a job was not submitted. Roll the transaction back, or go on without the job: after `Invalid` nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The job cannot be. Nothing was sent to the database.
    #[error("job {place} is not valid")]
    Invalid {
        /// Which of the jobs, from 0.
        place: usize,
        /// What is wrong.
        source: tenure_core::queue::Invalid,
    },
    /// The database refused the row, or failed.
    #[error("could not write to the outbox")]
    Database(#[from] sqlx::Error),
}

/// A connection to a database that has an outbox: of PostgreSQL, MySQL or SQLite.
pub trait Insert: Send {
    /// Makes the tables.
    fn create_tables(&mut self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Inserts a row for each job, in order. Jobs of one group stand together.
    fn insert_jobs(
        &mut self,
        jobs: &[Submission],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

pub(super) fn new_id() -> JobId {
    JobId::new(uuid::Uuid::new_v4().to_string()).expect("letters, digits and dashes")
}

/// Only to refuse a time that is absurdly far ahead.
pub(super) fn now_milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// The values of a row, in the order of [`COLUMNS`].
macro_rules! bind {
    ($row:ident, $job:ident, $json:literal) => {{
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let text = |key: &Option<Key>| key.as_ref().map(|key| key.as_str().to_owned());
        let backoff = $job.backoff.as_ref();
        let backoff = backoff.map(|backoff| serde_json::to_string(backoff).expect("plain numbers"));
        $row.push_bind($job.id.as_ref().map(|id| id.as_str().to_owned()))
            .push_bind($job.job_type.as_str().to_owned())
            .push_bind($job.payload.as_str().to_owned())
            .push_unseparated($json)
            .push_bind($job.queue.as_str().to_owned())
            .push_bind(i16::from($job.priority))
            .push_bind($job.run_at.map(number))
            .push_bind($job.delay_ms.map(number))
            .push_bind($job.max_attempts.map(i64::from))
            .push_bind(text(&$job.unique_key))
            .push_bind(text(&$job.group))
            .push_bind(backoff)
            .push_unseparated($json)
            .push_bind($job.traceparent.as_ref().map(ToString::to_string))
            .push_bind($job.tracestate.as_ref().map(ToString::to_string));
    }};
}

#[cfg(feature = "postgres")]
impl Insert for sqlx::PgConnection {
    async fn create_tables(&mut self) -> Result<(), sqlx::Error> {
        // Of many who make a table at once PostgreSQL refuses some, or lets them wait for each other until a deadlock is found, although
        // they say IF NOT EXISTS. So they come one after the other: all of this is one transaction, which holds the lock to its end. Whoever
        // runs the schema by hand does not take it. What was made is rolled back then, and the first one has made it all.
        let schema = format!(
            "SELECT pg_advisory_xact_lock(hashtext('tenure_outbox'));\n{}",
            super::SCHEMA_POSTGRES
        );
        let mut tries = 0;
        loop {
            let made = sqlx::raw_sql(sqlx::AssertSqlSafe(schema.clone()));
            match made.execute(&mut *self).await {
                Ok(_) => return Ok(()),
                Err(sqlx::Error::Database(_)) if tries < 10 => tries += 1,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(20) * tries).await;
        }
    }

    async fn insert_jobs(&mut self, jobs: &[Submission]) -> Result<(), sqlx::Error> {
        for jobs in jobs.chunks(ROWS_MAX) {
            let mut insert = sqlx::QueryBuilder::<sqlx::Postgres>::new(format!(
                "INSERT INTO tenure_outbox ({COLUMNS}) "
            ));
            insert.push_values(jobs, |mut row, job| bind!(row, job, "::json"));
            insert.build().execute(&mut *self).await?;
        }
        Ok(())
    }
}

#[cfg(feature = "sqlite")]
impl Insert for sqlx::SqliteConnection {
    async fn create_tables(&mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(super::SCHEMA_SQLITE).execute(self).await?;
        Ok(())
    }

    async fn insert_jobs(&mut self, jobs: &[Submission]) -> Result<(), sqlx::Error> {
        for jobs in jobs.chunks(ROWS_MAX) {
            let mut insert = sqlx::QueryBuilder::<sqlx::Sqlite>::new(format!(
                "INSERT INTO tenure_outbox ({COLUMNS}) "
            ));
            insert.push_values(jobs, |mut row, job| bind!(row, job, ""));
            insert.build().execute(&mut *self).await?;
        }
        Ok(())
    }
}

/// Counts on by so many, and tells the new number. The row stays locked until the transaction ends.
#[cfg(feature = "mysql")]
const COUNT_MYSQL: &str = "INSERT INTO tenure_outbox_groups (group_key, last) \
     VALUES (?, LAST_INSERT_ID(?)) ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + ?)";

#[cfg(feature = "mysql")]
impl Insert for sqlx::MySqlConnection {
    async fn create_tables(&mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(super::SCHEMA_MYSQL).execute(self).await?;
        Ok(())
    }

    async fn insert_jobs(&mut self, jobs: &[Submission]) -> Result<(), sqlx::Error> {
        for jobs in jobs.chunk_by(|a, b| a.group == b.group) {
            let mut position = None;
            if let Some(group) = jobs.first().and_then(|job| job.group.as_ref()) {
                let count = i64::try_from(jobs.len()).unwrap_or(i64::MAX);
                let counted = sqlx::query(COUNT_MYSQL)
                    .bind(group.as_str().to_owned())
                    .bind(count)
                    .bind(count)
                    .execute(&mut *self)
                    .await?;
                let last = i64::try_from(counted.last_insert_id()).unwrap_or(i64::MAX);
                position = Some(last - count);
            }
            for jobs in jobs.chunks(ROWS_MAX) {
                let mut insert = sqlx::QueryBuilder::<sqlx::MySql>::new(format!(
                    "INSERT INTO tenure_outbox ({COLUMNS}, group_position) "
                ));
                insert.push_values(jobs, |mut row, job| {
                    bind!(row, job, "");
                    position = position.map(|position| position + 1);
                    row.push_bind(position);
                });
                insert.build().execute(&mut *self).await?;
            }
        }
        Ok(())
    }
}
