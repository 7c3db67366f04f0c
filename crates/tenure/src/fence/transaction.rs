//! Fenced transactions: changes to the user's own tables that commit only while a term is current.
//!
//! No clock is involved. [`Leadership::fence`] reads the election's fence row inside the transaction, with
//! a share lock that stays until the transaction ends. A successor has to raise that row before it counts
//! as elected, so it waits for the transaction, and from then on the transaction of an older term finds a
//! higher fence and fails. Heartbeats write another row and never wait.
//!
//! The transaction must run in the database that is the store. Keep it short: while it is open nobody can
//! take over. PostgreSQL is told to end it if it is left idle for longer than leadership was trusted when it
//! began.

use std::future::Future;
use std::time::Duration;

use sqlx::Row;
use tenure_core::election::Fence;

use super::{Stale, Token};
use crate::Leadership;

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
    /// There is no fence: this is not the database that is the store, or someone deleted the row.
    #[error("the table tenure_objects of this database has no fence at {key}")]
    Missing {
        /// Where it was looked for.
        key: String,
    },
    /// The fence cannot be read by this version.
    #[error("the fence at {key} cannot be read")]
    Unreadable {
        /// Where it is.
        key: String,
        /// Why.
        source: tenure_core::RecordError,
    },
    /// The database failed; with PostgreSQL also if a repeatable-read transaction began before the fence
    /// was raised.
    #[error("the fence could not be read")]
    Database(#[from] sqlx::Error),
}

/// A connection on which a fenced transaction can run: of PostgreSQL, MySQL or SQLite.
pub trait Fenceable: Send {
    /// Reads the fence row at `key` and keeps it from being changed until the transaction ends.
    fn lock_fence(
        &mut self,
        key: &str,
        idle_milliseconds_max: u128,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, sqlx::Error>> + Send;
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
        let Some(row) = connection.lock_fence(key, idle_max).await? else {
            return Err(FenceError::Missing {
                key: key.to_owned(),
            });
        };
        let Fence { lineage, term, .. } =
            Fence::decode(&row).map_err(|source| FenceError::Unreadable {
                key: key.to_owned(),
                source,
            })?;
        Ok(self.token().check_against(Token { lineage, term })?)
    }
}

#[cfg(feature = "postgres")]
impl Fenceable for sqlx::PgConnection {
    async fn lock_fence(
        &mut self,
        key: &str,
        idle_milliseconds_max: u128,
    ) -> Result<Option<Vec<u8>>, sqlx::Error> {
        // A leader that is paused in its transaction must not keep others from taking over for ever. Ends
        // with the transaction, since behind a pooler others use the same session.
        let limit =
            format!("SET LOCAL idle_in_transaction_session_timeout = {idle_milliseconds_max}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(limit))
            .execute(&mut *self)
            .await?;
        let row = sqlx::query("SELECT value FROM tenure_objects WHERE key = $1 FOR SHARE")
            .bind(key)
            // Behind a pooler the name of a prepared statement may be taken by somebody else's.
            .persistent(false)
            .fetch_optional(self)
            .await?;
        row.map(|row| row.try_get(0)).transpose()
    }
}

#[cfg(feature = "mysql")]
impl Fenceable for sqlx::MySqlConnection {
    async fn lock_fence(&mut self, key: &str, _: u128) -> Result<Option<Vec<u8>>, sqlx::Error> {
        // The older of the two spellings, which MariaDB knows too.
        let row =
            sqlx::query("SELECT value FROM tenure_objects WHERE `key` = ? LOCK IN SHARE MODE")
                .bind(key)
                .fetch_optional(self)
                .await?;
        row.map(|row| row.try_get(0)).transpose()
    }
}

#[cfg(feature = "sqlite")]
impl Fenceable for sqlx::SqliteConnection {
    /// SQLite has one writer at a time and no row locks. If the fence is raised between this read and the
    /// transaction's first write, the snapshot is out of date and that write is refused; after the first
    /// write nobody else writes until the transaction ends. Any other write in between, a heartbeat say, has
    /// the same effect: begin with `BEGIN IMMEDIATE`, and nothing comes in between.
    async fn lock_fence(&mut self, key: &str, _: u128) -> Result<Option<Vec<u8>>, sqlx::Error> {
        let row = sqlx::query("SELECT value FROM tenure_objects WHERE key = ?")
            .bind(key)
            .fetch_optional(self)
            .await?;
        row.map(|row| row.try_get(0)).transpose()
    }
}
