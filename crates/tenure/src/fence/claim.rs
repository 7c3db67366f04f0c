//! Fenced claims: effects of a job in the user's own database, once, despite pauses and second attempts.
//!
//! A worker that is silent for too long is followed by another attempt, and may wake up and go on all the same. So both write, unless the
//! database knows which claim is the newest. The table `tenure_claims`, which `tenure outbox schema` prints and
//! [`Outbox::create`](crate::outbox::Outbox::create) makes, has a row for each job: the newest claim that was seen, and whether its effects are
//! committed.
//!
//! [`ClaimFence::fence`] notes the claim there, in the worker's own transaction, and keeps the row locked until that ends:
//!
//! - A later claim was seen: [`ClaimError::Stale`]. Another attempt is at work, or was.
//! - An attempt has committed its effects with [`ClaimFence::finish`]: [`ClaimError::Done`]. Complete the job without doing them again.
//! - Otherwise the transaction may go on. Another attempt that gets as far as this waits for its end, and then finds either of the two.
//!
//! No clock decides anything. Numbers of claims only grow, under every broker ([`Token::number`](tenure_core::queue::Token)). A worker that is paused in its
//! transaction is cut off by the server after the claim's lease (PostgreSQL, MariaDB the transaction, MySQL the connection), so the next attempt
//! does not wait for ever; SQLite has no such bound.
//!
//! # The job completes with the transaction
//!
//! [`ClaimFence::complete`] does what `finish` does, and completes the job if the transaction commits: in the same transaction it
//! leaves a row in the outbox, which the relay tells the queue as the end of this claim. So a worker may stop right after its
//! commit, and the job is completed all the same, moments later, in whatever store the queue is. (The transaction itself cannot
//! write into the queue's log, not even in the same database: that has one writer, the leader, who numbers its records.)
//!
//! | meanwhile | the row | the job |
//! | --- | --- | --- |
//! | the answer to it is lost | is told again, and answered as before | is completed once |
//! | the worker has completed it itself | is answered as before, whichever comes first | is completed once |
//! | the lease ran out | is refused, and gone | the next attempt finds `Done` with the result, and completes it |
//! | the job was cancelled or deleted | is refused, and gone | stays as it is |
//!
//! Without a relay, or without `complete`, a worker that dies between its commit and the completion leaves a job that waits for the end
//! of its lease: the next attempt finds `Done`, and completes it.
//!
//! Rows of `tenure_claims`, and the results beside them, are deleted by `tenure outbox purge --claims-older-than`.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Database, Row};
use tenure_core::JobId;
use tenure_core::queue::{Claimed, Payload, Token};

use crate::outbox::{COMPLETE, EndOfClaim};

use super::transaction::Fenceable;
#[cfg(feature = "postgres")]
use super::transaction::bound_idle_postgres;
#[cfg(feature = "sqlite")]
use super::transaction::is_in_transaction_sqlite;
#[cfg(feature = "mysql")]
use super::transaction::{bound_idle_mysql, is_in_transaction};

/// The least time that a transaction may be idle.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// Why the effects of a job may not be written. Roll the transaction back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// A later claim of the job was seen. Drop the work.
    #[error("claim {given} of job {job} is over: claim {seen} was seen")]
    Stale {
        /// The job.
        job: JobId,
        /// This claim's number.
        given: u64,
        /// The newest.
        seen: u64,
    },
    /// An attempt has committed its effects. Complete the job, with the result of that attempt.
    #[error("the effects of job {job} are committed already")]
    Done {
        /// The job.
        job: JobId,
        /// What [`ClaimFence::complete`] was told, if it was.
        result: Option<Payload>,
    },
    /// The connection has no open transaction, so nothing would be held until its end. Begin one first.
    #[error("a fenced claim needs a transaction, and none is open on this connection")]
    NoTransaction,
    /// The database failed, or has no table `tenure_claims`.
    #[error("could not note the claim")]
    Database(#[from] sqlx::Error),
}

/// A connection on which a claim can be fenced: of PostgreSQL, MySQL or SQLite.
pub trait Claims: Send {
    /// Notes a claim unless a later one is known, keeps the row until the transaction ends, and tells the newest claim and whether the job is done. None
    /// without a transaction.
    fn note_claim(
        &mut self,
        job: &str,
        claim: i64,
        idle: Duration,
    ) -> impl Future<Output = Result<Option<(i64, bool)>, sqlx::Error>> + Send;

    /// Notes that the effects are part of this transaction.
    fn note_done(
        &mut self,
        job: &str,
        claim: i64,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Keeps the result of a job for later attempts: JSON.
    fn note_result(
        &mut self,
        job: &str,
        result: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The result of a job, if one was kept.
    fn result(
        &mut self,
        job: &str,
    ) -> impl Future<Output = Result<Option<String>, sqlx::Error>> + Send;

    /// Whether there is a table for results: tables of an earlier version have none.
    fn has_results(&mut self) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Leaves a row in the outbox that completes a job: this is its payload.
    fn note_end(
        &mut self,
        job: &str,
        end: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// Whether work was done now, or an attempt has done it before and left this result.
enum Ran<T> {
    Now(T),
    Before(Option<Payload>),
}

/// A claim, as a database is told of it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClaimFence {
    job: JobId,
    token: Token,
    idle_max: Duration,
}

impl fmt::Debug for ClaimFence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the token: whoever has it can end the claim.
        let mut debug = formatter.debug_struct("ClaimFence");
        debug.field("job", &self.job);
        debug.field("claim", &self.token.number);
        debug.finish_non_exhaustive()
    }
}

impl From<&Claimed> for ClaimFence {
    fn from(claimed: &Claimed) -> Self {
        let lease = Duration::from_millis(claimed.lease_ms.into());
        Self::new(claimed.id.clone(), claimed.token, lease)
    }
}

impl ClaimFence {
    /// The claim of a job that was got over HTTP, say: its id, its token and its lease.
    #[must_use]
    pub fn new(job: JobId, token: Token, lease: Duration) -> Self {
        Self {
            job,
            token,
            idle_max: lease.max(IDLE_MIN),
        }
    }

    /// Makes the transaction that is open on `connection` commit only if this is the newest claim of the job, and none before has
    /// [finished](ClaimFence::finish). Call it before anything else in the transaction.
    pub async fn fence(&self, connection: &mut impl Claims) -> Result<(), ClaimError> {
        let noted = connection.note_claim(self.job.as_str(), self.number(), self.idle_max);
        let (newest, done) = noted.await?.ok_or(ClaimError::NoTransaction)?;
        let job = self.job.clone();
        if done {
            let result = self.first_result(connection).await?;
            return Err(ClaimError::Done { job, result });
        }
        if newest > self.number() {
            return Err(ClaimError::Stale {
                job,
                given: self.token.number,
                seen: newest.unsigned_abs(),
            });
        }
        Ok(())
    }

    /// Notes, in the same transaction, that it has all effects of the job: if it commits, no later attempt does them again.
    pub async fn finish(&self, connection: &mut impl Claims) -> Result<(), ClaimError> {
        match connection
            .note_done(self.job.as_str(), self.number())
            .await?
        {
            0 => Err(ClaimError::NoTransaction),
            _ => Ok(()),
        }
    }

    async fn first_result(
        &self,
        connection: &mut impl Claims,
    ) -> Result<Option<Payload>, ClaimError> {
        if !connection.has_results().await? {
            return Ok(None);
        }
        let result = connection.result(self.job.as_str()).await?;
        // Only JSON is written there; what somebody has changed by hand is no result.
        Ok(result.and_then(|result| Payload::new(result).ok()))
    }

    /// The same, and completes the job with this result if the transaction commits: the relay of this database's outbox tells the
    /// queue, also if this process does not live to do so. It has to be a relay to the queue that the job is in.
    ///
    /// Completing the job afterwards, as a worker does, is harmless and a little faster: use the same result. A result that
    /// the broker does not take, being too large, say, is left out.
    pub async fn complete(
        &self,
        connection: &mut impl Claims,
        result: Option<Payload>,
    ) -> Result<(), ClaimError> {
        self.finish(connection).await?;
        let job = self.job.as_str();
        let result = result.filter(|result| !result.is_null());
        if let Some(result) = &result {
            connection.note_result(job, result.as_str()).await?;
        }
        let token = self.token;
        let end = EndOfClaim { token, result };
        let end = serde_json::to_string(&end).expect("JSON in JSON");
        Ok(connection.note_end(job, &end).await?)
    }

    /// Runs `work` in a transaction of its own, fenced and [completed](ClaimFence::complete) with what it returns. If an attempt has
    /// done it before, `work` is not run. Returns the result in both cases: it is what a worker's handler is to return.
    pub async fn once_and_complete<C, E>(
        &self,
        connection: &mut C,
        work: impl AsyncFnOnce(&mut C) -> Result<Option<Payload>, E>,
    ) -> Result<Option<Payload>, E>
    where
        C: Claims + Fenceable + Connection,
        C::Database: Database<Connection = C>,
        E: From<ClaimError>,
    {
        let done = self.run(connection, async |transaction| {
            let result = work(transaction).await?;
            self.complete(transaction, result.clone()).await?;
            Ok::<_, E>(result)
        });
        match done.await? {
            Ran::Now(result) | Ran::Before(result) => Ok(result),
        }
    }

    /// Runs `work` in a transaction of its own, fenced and finished. None if an attempt has done it before: then complete the job.
    ///
    /// ```no_run
    /// # async fn example(job: tenure::core::queue::Claimed, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::ClaimFence;
    ///
    /// let mut connection = pool.acquire().await?;
    /// let work = async |transaction: &mut sqlx::PgConnection| {
    ///     sqlx::query("UPDATE accounts SET balance = balance + 1").execute(transaction).await?;
    ///     Ok::<_, Box<dyn std::error::Error>>(())
    /// };
    /// ClaimFence::from(&job).once(&mut *connection, work).await?;
    /// // Complete the job now, also if it answered None.
    /// # Ok(())
    /// # }
    /// ```
    pub async fn once<C, T, E>(
        &self,
        connection: &mut C,
        work: impl AsyncFnOnce(&mut C) -> Result<T, E>,
    ) -> Result<Option<T>, E>
    where
        C: Claims + Fenceable + Connection,
        C::Database: Database<Connection = C>,
        E: From<ClaimError>,
    {
        let done = self.run(connection, async |transaction| {
            let value = work(transaction).await?;
            self.finish(transaction).await?;
            Ok::<_, E>(value)
        });
        Ok(match done.await? {
            Ran::Now(value) => Some(value),
            Ran::Before(_) => None,
        })
    }

    /// Runs `work` in a fenced transaction, which commits if it succeeds.
    async fn run<C, T, E>(
        &self,
        connection: &mut C,
        work: impl AsyncFnOnce(&mut C) -> Result<T, E>,
    ) -> Result<Ran<T>, E>
    where
        C: Claims + Fenceable + Connection,
        C::Database: Database<Connection = C>,
        E: From<ClaimError>,
    {
        let begun = connection.begin_with(C::BEGIN).await;
        let mut transaction = begun.map_err(ClaimError::Database)?;
        let done = async {
            match self.fence(&mut *transaction).await {
                Err(ClaimError::Done { result, .. }) => return Ok(Ran::Before(result)),
                other => other?,
            }
            Ok::<_, E>(Ran::Now(work(&mut transaction).await?))
        };
        match done.await {
            Ok(Ran::Now(value)) => {
                transaction.commit().await.map_err(ClaimError::Database)?;
                Ok(Ran::Now(value))
            }
            other => {
                // If it cannot be rolled back the connection is of no use, which its next user hears.
                let _ = transaction.rollback().await;
                other
            }
        }
    }

    fn number(&self) -> i64 {
        i64::try_from(self.token.number).unwrap_or(i64::MAX)
    }
}

/// Fences a transaction by a job that was claimed, or that a worker of `tenure-client` has in its hands: `job.fence(&mut *transaction)`.
///
/// ```no_run
/// # async fn example(job: tenure::core::queue::Claimed, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::core::queue::Payload;
/// use tenure::{ClaimError, FencedJob};
///
/// let mut transaction = pool.begin().await?;
/// let result = match job.fence(&mut *transaction).await {
///     Ok(()) => {
///         sqlx::query("UPDATE accounts SET balance = balance + 1").execute(&mut *transaction).await?;
///         let receipt = Payload::of(&"paid")?;
///         job.complete(&mut *transaction, Some(receipt.clone())).await?;
///         transaction.commit().await?;
///         Some(receipt)
///     }
///     Err(ClaimError::Done { result, .. }) => {
///         transaction.rollback().await?;
///         result
///     }
///     Err(error) => return Err(error.into()),
/// };
/// // The handler of a worker returns the result, in both cases.
/// # Ok(())
/// # }
/// ```
pub trait FencedJob {
    /// Makes the open transaction commit only if this is the newest claim of the job, see [`ClaimFence::fence`].
    fn fence(
        &self,
        connection: &mut impl Claims,
    ) -> impl Future<Output = Result<(), ClaimError>> + Send;

    /// Notes that the transaction has all effects of the job, see [`ClaimFence::finish`].
    fn finish(
        &self,
        connection: &mut impl Claims,
    ) -> impl Future<Output = Result<(), ClaimError>> + Send;

    /// The same, and completes the job if the transaction commits, see [`ClaimFence::complete`].
    fn complete(
        &self,
        connection: &mut impl Claims,
        result: Option<Payload>,
    ) -> impl Future<Output = Result<(), ClaimError>> + Send;
}

impl FencedJob for Claimed {
    async fn fence(&self, connection: &mut impl Claims) -> Result<(), ClaimError> {
        ClaimFence::from(self).fence(connection).await
    }

    async fn finish(&self, connection: &mut impl Claims) -> Result<(), ClaimError> {
        ClaimFence::from(self).finish(connection).await
    }

    async fn complete(
        &self,
        connection: &mut impl Claims,
        result: Option<Payload>,
    ) -> Result<(), ClaimError> {
        ClaimFence::from(self).complete(connection, result).await
    }
}

/// The same statements everywhere, but for the marks of their values and a few words. Behind a pooler the name of a prepared
/// statement may be taken by somebody else's, so none has one.
macro_rules! statements {
    ($one:literal, $two:literal, $json:literal, $replaced:literal, $text:literal, $has_results:literal) => {
        async fn note_done(&mut self, job: &str, claim: i64) -> Result<u64, sqlx::Error> {
            let statement = concat!(
                "UPDATE tenure_claims SET done = TRUE WHERE job = ",
                $one,
                " AND claim = ",
                $two
            );
            let query = sqlx::query(statement)
                .bind(job)
                .bind(claim)
                .persistent(false);
            Ok(query.execute(self).await?.rows_affected())
        }

        async fn note_result(&mut self, job: &str, result: &str) -> Result<(), sqlx::Error> {
            let query = sqlx::query($replaced)
                .bind(job)
                .bind(result)
                .persistent(false);
            query.execute(self).await.map(drop)
        }

        async fn result(&mut self, job: &str) -> Result<Option<String>, sqlx::Error> {
            let statement = concat!(
                "SELECT ",
                $text,
                " FROM tenure_claim_results WHERE job = ",
                $one
            );
            let query = sqlx::query_scalar(statement).bind(job).persistent(false);
            query.fetch_optional(self).await
        }

        async fn has_results(&mut self) -> Result<bool, sqlx::Error> {
            let query = sqlx::query_scalar::<_, i64>($has_results).persistent(false);
            Ok(query.fetch_one(self).await? > 0)
        }

        async fn note_end(&mut self, job: &str, end: &str) -> Result<(), sqlx::Error> {
            let (job_mark, end_mark) = ($one, concat!($two, $json));
            let statement = format!(
                "INSERT INTO tenure_outbox (id, type, payload) VALUES ({job_mark}, '{COMPLETE}', {end_mark})"
            );
            let query = sqlx::query(AssertSqlSafe(statement));
            let query = query.bind(job).bind(end).persistent(false);
            query.execute(self).await.map(drop)
        }
    };
}

#[cfg(feature = "postgres")]
impl Claims for sqlx::PgConnection {
    async fn note_claim(
        &mut self,
        job: &str,
        claim: i64,
        idle: Duration,
    ) -> Result<Option<(i64, bool)>, sqlx::Error> {
        bound_idle_postgres(self, idle.as_millis(), "").await?;
        let row = sqlx::query(
            "INSERT INTO tenure_claims AS c (job, claim) VALUES ($1, $2) ON CONFLICT (job) DO UPDATE \
             SET claim = greatest(c.claim, excluded.claim), seen_at = clock_timestamp() RETURNING claim, done",
        )
        .bind(job)
        .bind(claim)
        // Behind a pooler the name of a prepared statement may be taken by somebody else's.
        .persistent(false)
        .fetch_one(&mut *self)
        .await?;
        // The insert has given the transaction an id, which is gone by now if it was a transaction of one statement.
        let is_open: bool =
            sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
                .persistent(false)
                .fetch_one(self)
                .await?;
        if is_open {
            Ok(Some((row.try_get(0)?, row.try_get(1)?)))
        } else {
            Ok(None)
        }
    }

    statements!(
        "$1",
        "$2",
        "::json",
        "INSERT INTO tenure_claim_results (job, result) VALUES ($1, $2::json) \
         ON CONFLICT (job) DO UPDATE SET result = excluded.result",
        "result::text",
        "SELECT count(to_regclass('tenure_claim_results'))"
    );
}

#[cfg(feature = "mysql")]
impl Claims for sqlx::MySqlConnection {
    async fn note_claim(
        &mut self,
        job: &str,
        claim: i64,
        idle: Duration,
    ) -> Result<Option<(i64, bool)>, sqlx::Error> {
        bound_idle_mysql(self, idle.as_millis()).await?;
        sqlx::query(
            "INSERT INTO tenure_claims (job, claim) VALUES (?, ?) ON DUPLICATE KEY UPDATE \
             claim = GREATEST(claim, VALUES(claim)), seen_at = UTC_TIMESTAMP(6)",
        )
        .bind(job)
        .bind(claim)
        .execute(&mut *self)
        .await?;
        // The newest, not what was there when the transaction began.
        let row = sqlx::query(
            "SELECT claim, CAST(done AS SIGNED) FROM tenure_claims WHERE job = ? FOR UPDATE",
        )
        .bind(job)
        .fetch_one(&mut *self)
        .await?;
        if !is_in_transaction(self).await? {
            return Ok(None);
        }
        Ok(Some((row.try_get(0)?, row.try_get::<i64, _>(1)? != 0)))
    }

    statements!(
        "?",
        "?",
        "",
        "REPLACE INTO tenure_claim_results (job, result) VALUES (?, ?)",
        "result",
        "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = 'tenure_claim_results'"
    );
}

#[cfg(feature = "sqlite")]
impl Claims for sqlx::SqliteConnection {
    async fn note_claim(
        &mut self,
        job: &str,
        claim: i64,
        _: Duration,
    ) -> Result<Option<(i64, bool)>, sqlx::Error> {
        if !is_in_transaction_sqlite(self).await? {
            return Ok(None);
        }
        let row = sqlx::query(
            "INSERT INTO tenure_claims (job, claim) VALUES (?, ?) ON CONFLICT (job) DO UPDATE \
             SET claim = max(claim, excluded.claim), seen_at = julianday('now') RETURNING claim, done",
        )
        .bind(job)
        .bind(claim)
        .fetch_one(self)
        .await?;
        Ok(Some((row.try_get(0)?, row.try_get::<i64, _>(1)? != 0)))
    }

    statements!(
        "?",
        "?",
        "",
        "REPLACE INTO tenure_claim_results (job, result) VALUES (?, ?)",
        "result",
        "SELECT count(*) FROM sqlite_master WHERE name = 'tenure_claim_results'"
    );
}
