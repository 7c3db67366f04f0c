//! Fenced transactions: changes to the user's own tables that commit only while a term is current.
//!
//! No clock is involved. [`Leadership::fence`] reads the election's fence row inside the transaction, with
//! a share lock that stays until the transaction ends. A successor has to raise that row before it counts
//! as elected, so it waits for the transaction, and from then on the transaction of an older term finds a
//! higher fence and fails. In PostgreSQL, MySQL and MariaDB heartbeats write another row and never wait.
//! SQLite has one writer at a time: from the transaction's first write on, or from `BEGIN IMMEDIATE`, every
//! other write waits until it ends, heartbeats too, and after 8 s is told that the store is not available. A
//! transaction that is open for longer than the ttl less a heartbeat there ends every session on the file,
//! its own leader's included, and nobody can take over before it ends.
//!
//! The row must be this very term's: same lineage, same term, installed by this process. After a fail-over that lost
//! the newest commits, or a restore, the row is older or someone else's, and so is the data beside it: the
//! transaction is refused, though no successor has been seen.
//!
//! The transaction must run in the database that is the store. Keep it short: while it is open nobody can
//! take over. A server is told to end it if it is left idle for longer than leadership was trusted when it
//! began: PostgreSQL and MariaDB the transaction, MySQL the whole connection, which it also closes if it is
//! idle for so long afterwards. SQLite has no such bound: there an open transaction ends only with its process or
//! connection.
//!
//! So let [`Leadership::transaction`] begin and end it, above all on SQLite: it rolls back whatever is not ready in
//! time, half of the time that is left there, so that heartbeats that waited for it still come in time. What no
//! program can bound for itself: a process that is stopped (by a signal, a debugger) inside of a transaction on
//! SQLite. Nobody else writes to the file until it goes on or is killed.

use std::future::Future;
use std::time::Duration;

use sqlx::{Connection, Database, Row};
use tenure_core::NodeId;
use tenure_core::election::{Fence, Term};
use tokio::time::{Instant, timeout_at};

use super::{Stale, Token};
use crate::{Leadership, Stopped};

/// What an idle transaction gets at least: one of a term that is over is to hear so, and not to find its
/// connection closed.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// Why a transaction may not go on. Roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Another leader has been installed since. This process leads no longer.
    #[error("the term of this transaction is over")]
    Stale(#[from] Stale),
    /// The fence is not the one that this term installed: a fail-over of the database lost it, or an older copy
    /// was restored. What this process believes about the data may be lost too.
    #[error(
        "the fence at {key} says term {term} of {holder}, which is not this term: the database lost writes"
    )]
    Foreign {
        /// Where it is.
        key: String,
        /// Its term.
        term: Term,
        /// The node that installed it.
        holder: NodeId,
    },
    /// The connection has no open transaction, so nothing would keep the fence from being raised. Nothing was
    /// locked; begin a transaction first.
    #[error("a fence needs a transaction, and none is open on this connection")]
    NoTransaction,
    /// There is no fence: this is not the database that is the store, or someone deleted the row.
    #[error("the table tenure_objects of this database has no fence at {key}")]
    Missing {
        /// Where it was looked for.
        key: String,
    },
    /// The fence cannot be read by this version.
    #[error("cannot read the fence at {key}")]
    Unreadable {
        /// Where it is.
        key: String,
        /// Why.
        source: tenure_core::RecordError,
    },
    /// The database failed; with PostgreSQL also if a repeatable-read transaction began before the fence
    /// was raised.
    #[error("could not read the fence")]
    Database(#[from] sqlx::Error),
    /// This process does not lead any more; no transaction was begun.
    #[error("no transaction is begun without leadership")]
    NotLeading(#[from] Stopped),
    /// The transaction was not ready in time, and was rolled back.
    #[error("the transaction was rolled back: it was not ready within {limit:?}")]
    TooLong {
        /// How much time it had.
        limit: Duration,
    },
    /// The transaction could not be begun. Nothing was changed.
    #[error("the transaction could not be begun")]
    NotBegun(#[source] sqlx::Error),
    /// The commit failed. Unless the database says why, it may have been applied all the same.
    #[error("the transaction could not be committed")]
    NotCommitted(#[source] sqlx::Error),
}

/// A connection on which a fenced transaction can run: of PostgreSQL, MySQL or SQLite.
pub trait Fenceable: Send {
    /// Begins a transaction that can write.
    const BEGIN: &'static str = "BEGIN";

    /// Which part of the time that is left a transaction may take, as a divisor.
    const TIME_DIVISOR: u32 = 1;

    /// Reads the fence row at `key` and keeps it from being changed until the transaction ends.
    fn lock_fence(
        &mut self,
        key: &str,
        idle_milliseconds_max: u128,
    ) -> impl Future<Output = Result<Locked, sqlx::Error>> + Send;
}

/// What came of looking at the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Locked {
    /// The row, which nobody changes before the transaction ends; none if there is no such row.
    Row(Option<Vec<u8>>),
    /// No transaction is open.
    NoTransaction,
}

impl Leadership {
    /// Makes the transaction that is open on `connection` commit only if this term is still current.
    /// Call it at the beginning of the transaction, before anything is read that the work builds on.
    ///
    /// ```no_run
    /// # async fn example(leadership: tenure::Leadership, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// leadership.fence(&mut *transaction).await?;
    /// sqlx::query("UPDATE accounts SET balance = balance + 1").execute(&mut *transaction).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn fence(&self, connection: &mut impl Fenceable) -> Result<(), FenceError> {
        let key = self.fence_key().as_str();
        let remaining = self.check().unwrap_or_default();
        let idle_max = remaining.max(IDLE_MIN).as_millis();
        let row = match connection.lock_fence(key, idle_max).await? {
            Locked::NoTransaction => return Err(FenceError::NoTransaction),
            Locked::Row(row) => row.ok_or_else(|| FenceError::Missing {
                key: key.to_owned(),
            })?,
        };
        let fence = Fence::decode(&row).map_err(|source| FenceError::Unreadable {
            key: key.to_owned(),
            source,
        })?;
        let (lineage, term) = (fence.lineage, fence.term);
        self.token().check_against(Token { lineage, term })?;
        // An older term is as foreign as another process in the same one: both are what a lost write leaves.
        if term != self.term() || fence.holder.incarnation != self.incarnation() {
            return Err(FenceError::Foreign {
                key: key.to_owned(),
                term,
                holder: fence.holder.node,
            });
        }
        Ok(())
    }

    /// Runs `work` in a transaction that commits only if this term is still current, and that is rolled back if `work` fails or is not
    /// ready while this process may act as the leader: within nine tenths of the time that [`check`](crate::Trust::check)
    /// says at the beginning, and in SQLite half of that, since every heartbeat to the file waits meanwhile. A statement
    /// that is under way then is waited for.
    ///
    /// The connection must have no transaction open, and is in none afterwards. If this future is dropped, the transaction is rolled back before the
    /// connection is used again.
    ///
    /// ```no_run
    /// # async fn example(leadership: tenure::Leadership, pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut connection = pool.acquire().await?;
    /// let work = async |transaction: &mut sqlx::SqliteConnection| {
    ///     sqlx::query("UPDATE accounts SET balance = balance + 1").execute(transaction).await?;
    ///     Ok::<_, Box<dyn std::error::Error>>(())
    /// };
    /// leadership.transaction(&mut *connection, work).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction<C, T, E>(
        &self,
        connection: &mut C,
        work: impl AsyncFnOnce(&mut C) -> Result<T, E>,
    ) -> Result<T, E>
    where
        C: Fenceable + Connection,
        C::Database: Database<Connection = C>,
        E: From<FenceError>,
    {
        let remaining = self.check().map_err(FenceError::NotLeading)?;
        // Earlier than the server's own end of an idle transaction, which would cost the connection.
        let limit = (remaining - remaining / 10) / C::TIME_DIVISOR;
        let (deadline, too_long) = (Instant::now() + limit, FenceError::TooLong { limit });
        let begun = timeout_at(deadline, connection.begin_with(C::BEGIN)).await;
        let mut transaction = match begun {
            Ok(begun) => begun.map_err(FenceError::NotBegun)?,
            Err(_) => return Err(too_long.into()),
        };
        let fenced = async {
            self.fence(&mut *transaction).await?;
            work(&mut transaction).await
        };
        match timeout_at(deadline, fenced).await {
            Ok(Ok(value)) => {
                let committed = transaction.commit().await;
                committed.map_err(FenceError::NotCommitted)?;
                Ok(value)
            }
            Ok(Err(error)) => {
                // If it cannot be rolled back the connection is of no use, which its next user hears.
                let _ = transaction.rollback().await;
                Err(error)
            }
            Err(_) => {
                let _ = transaction.rollback().await;
                Err(too_long.into())
            }
        }
    }
}

#[cfg(feature = "postgres")]
impl Fenceable for sqlx::PgConnection {
    async fn lock_fence(
        &mut self,
        key: &str,
        idle_milliseconds_max: u128,
    ) -> Result<Locked, sqlx::Error> {
        // The mark ends with the transaction too, so it is there for the next statement only if both are in one.
        bound_idle_postgres(
            self,
            idle_milliseconds_max,
            "; SET LOCAL tenure.fence = 'held'",
        )
        .await?;
        let row = sqlx::query(
            "SELECT value, coalesce(current_setting('tenure.fence', true), '') = 'held' \
             FROM tenure_objects WHERE key = $1 FOR SHARE",
        )
        .bind(key)
        // Behind a pooler the name of a prepared statement may be taken by somebody else's.
        .persistent(false)
        .fetch_optional(self)
        .await?;
        let Some(row) = row else {
            return Ok(Locked::Row(None));
        };
        if row.try_get(1)? {
            Ok(Locked::Row(Some(row.try_get(0)?)))
        } else {
            Ok(Locked::NoTransaction)
        }
    }
}

/// A program that is paused in its transaction must not keep others waiting for ever. Ends with the transaction, since behind a
/// pooler others use the same session.
#[cfg(feature = "postgres")]
pub(crate) async fn bound_idle_postgres(
    connection: &mut sqlx::PgConnection,
    milliseconds: u128,
    and: &str,
) -> Result<(), sqlx::Error> {
    let limit = format!("SET LOCAL idle_in_transaction_session_timeout = {milliseconds}{and}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(limit))
        .execute(connection)
        .await?;
    Ok(())
}

/// MySQL: "transaction characteristics can't be changed while a transaction is in progress".
#[cfg(feature = "mysql")]
const IN_TRANSACTION: u16 = 1568;

#[cfg(feature = "mysql")]
impl Fenceable for sqlx::MySqlConnection {
    async fn lock_fence(
        &mut self,
        key: &str,
        idle_milliseconds_max: u128,
    ) -> Result<Locked, sqlx::Error> {
        bound_idle_mysql(self, idle_milliseconds_max).await?;
        // The older of the two spellings, which MariaDB knows too.
        let row =
            sqlx::query("SELECT value FROM tenure_objects WHERE `key` = ? LOCK IN SHARE MODE")
                .bind(key)
                .fetch_optional(&mut *self)
                .await?;
        // Asked after the row was read: without autocommit that is what opens the transaction.
        if !is_in_transaction(self).await? {
            return Ok(Locked::NoTransaction);
        }
        let value = row.map(|row| row.try_get(0)).transpose()?;
        Ok(Locked::Row(value))
    }
}

/// MariaDB bounds idle transactions, MySQL only idle sessions; each takes the other's words for a comment. Both count seconds, and
/// keep to it on this connection.
#[cfg(feature = "mysql")]
pub(crate) async fn bound_idle_mysql(
    connection: &mut sqlx::MySqlConnection,
    milliseconds: u128,
) -> Result<(), sqlx::Error> {
    let seconds = milliseconds.div_ceil(1000).max(1);
    let limit = format!(
        "SET SESSION /*M!100300 idle_transaction_timeout = {seconds} */ \
         /*!50700 wait_timeout = {seconds} */"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(limit))
        .execute(connection)
        .await?;
    Ok(())
}

/// MySQL has no way to ask, but refuses this while a transaction is open, and changes nothing by it.
#[cfg(feature = "mysql")]
pub(crate) async fn is_in_transaction(
    connection: &mut sqlx::MySqlConnection,
) -> Result<bool, sqlx::Error> {
    let asked = sqlx::raw_sql("SET TRANSACTION READ WRITE").execute(connection);
    match asked.await {
        Ok(_) => Ok(false),
        Err(sqlx::Error::Database(error)) if is_number(&*error, IN_TRANSACTION) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(feature = "mysql")]
pub(crate) fn is_number(error: &dyn sqlx::error::DatabaseError, number: u16) -> bool {
    error
        .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .is_some_and(|error| error.number() == number)
}

#[cfg(feature = "sqlite")]
impl Fenceable for sqlx::SqliteConnection {
    const BEGIN: &'static str = "BEGIN IMMEDIATE";

    /// Other nodes, and this one, have at least as much time left, and need some of it for a heartbeat afterwards.
    const TIME_DIVISOR: u32 = 2;

    /// SQLite has one writer at a time and no row locks. If the fence is raised between this read and the
    /// transaction's first write, the snapshot is out of date and that write is refused; after the first
    /// write nobody else writes until the transaction ends. Any other write in between, a heartbeat say, has
    /// the same effect: begin with `BEGIN IMMEDIATE`, and nothing comes in between.
    async fn lock_fence(&mut self, key: &str, _: u128) -> Result<Locked, sqlx::Error> {
        if !is_in_transaction_sqlite(self).await? {
            return Ok(Locked::NoTransaction);
        }
        let row = sqlx::query("SELECT value FROM tenure_objects WHERE key = ?")
            .bind(key)
            .fetch_optional(self)
            .await?;
        let value = row.map(|row| row.try_get(0)).transpose()?;
        Ok(Locked::Row(value))
    }
}

/// A transaction within a transaction is refused, and the outer one goes on.
#[cfg(feature = "sqlite")]
pub(crate) async fn is_in_transaction_sqlite(
    connection: &mut sqlx::SqliteConnection,
) -> Result<bool, sqlx::Error> {
    if sqlx::raw_sql("BEGIN")
        .execute(&mut *connection)
        .await
        .is_err()
    {
        return Ok(true);
    }
    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    Ok(false)
}
