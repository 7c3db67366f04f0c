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
//! What is not done: to complete the job in the same transaction. The queue's log has one writer, the leader, also if it is kept in the same database; a
//! worker's record would be unknown to the leader's memory, would have to be numbered before it commits, and would leave a gap when it is rolled
//! back. It is not needed either: if a worker dies between its commit and the completion, the next attempt finds `Done`, and completes.
//! `docs/outbox.md` has the cases one by one.
//!
//! Rows of `tenure_claims` are deleted by `tenure outbox purge --claims-older-than`.

use std::future::Future;
use std::time::Duration;

use sqlx::{Connection, Database, Row};
use tenure_core::JobId;
use tenure_core::queue::{Claimed, Token};

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
    /// An attempt has committed its effects. Complete the job.
    #[error("the effects of job {job} are committed already")]
    Done {
        /// The job.
        job: JobId,
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
}

/// A claim, as a database is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFence {
    job: JobId,
    claim: u64,
    idle_max: Duration,
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
            claim: token.number,
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
            return Err(ClaimError::Done { job });
        }
        if newest > self.number() {
            return Err(ClaimError::Stale {
                job,
                given: self.claim,
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
        let begun = connection.begin_with(C::BEGIN).await;
        let mut transaction = begun.map_err(ClaimError::Database)?;
        let done = async {
            match self.fence(&mut *transaction).await {
                Err(ClaimError::Done { .. }) => return Ok(None),
                other => other?,
            }
            let value = work(&mut transaction).await?;
            self.finish(&mut *transaction).await?;
            Ok::<_, E>(Some(value))
        };
        match done.await {
            Ok(Some(value)) => {
                transaction.commit().await.map_err(ClaimError::Database)?;
                Ok(Some(value))
            }
            other => {
                // If it cannot be rolled back the connection is of no use, which its next user hears.
                let _ = transaction.rollback().await;
                other
            }
        }
    }

    fn number(&self) -> i64 {
        i64::try_from(self.claim).unwrap_or(i64::MAX)
    }
}

/// Fences a transaction by a job that was claimed, or that a worker of `tenure-client` has in its hands: `job.fence(&mut *transaction)`.
///
/// ```no_run
/// # async fn example(job: tenure::core::queue::Claimed, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::{ClaimError, FencedJob};
///
/// let mut transaction = pool.begin().await?;
/// match job.fence(&mut *transaction).await {
///     Ok(()) => {
///         sqlx::query("UPDATE accounts SET balance = balance + 1").execute(&mut *transaction).await?;
///         job.finish(&mut *transaction).await?;
///         transaction.commit().await?;
///     }
///     Err(ClaimError::Done { .. }) => transaction.rollback().await?,
///     Err(error) => return Err(error.into()),
/// }
/// // Complete the job now, in both cases.
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
}

impl FencedJob for Claimed {
    async fn fence(&self, connection: &mut impl Claims) -> Result<(), ClaimError> {
        ClaimFence::from(self).fence(connection).await
    }

    async fn finish(&self, connection: &mut impl Claims) -> Result<(), ClaimError> {
        ClaimFence::from(self).finish(connection).await
    }
}

/// The same statement everywhere, but for the marks of its values.
macro_rules! note_done {
    ($job:literal, $claim:literal) => {
        async fn note_done(&mut self, job: &str, claim: i64) -> Result<u64, sqlx::Error> {
            let statement = concat!(
                "UPDATE tenure_claims SET done = TRUE WHERE job = ",
                $job,
                " AND claim = ",
                $claim
            );
            // Behind a pooler the name of a prepared statement may be taken by somebody else's.
            let query = sqlx::query(statement)
                .bind(job)
                .bind(claim)
                .persistent(false);
            Ok(query.execute(self).await?.rows_affected())
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

    note_done!("$1", "$2");
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

    note_done!("?", "?");
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

    note_done!("?", "?");
}
