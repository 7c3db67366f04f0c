//! A request to resign inside the caller's own transaction: the leader is asked if and only if that commits.
//!
//! The transaction must run in the database that is the store. The row of the lease is locked from the request on until the
//! transaction ends, so keep it short: nobody else can take the lease meanwhile, or give it up. The leader sees the request
//! at its next look, a heartbeat later at most: nothing is announced to it.

use std::future::Future;

use sqlx::Row;
use tenure_core::election::{Lease, Request, RequestKind, Writer};
use tenure_core::session::Record;
use tenure_core::{ElectionName, Incarnation, NodeId, Nonce};

use super::NamespaceView;

/// Why the leader was not asked. Whether the transaction can go on is for its database to say.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nobody leads, or this is not the database that is the store. Nothing was changed.
    #[error("nobody leads the election {election}, as far as this database says")]
    NoLeader {
        /// Which.
        election: ElectionName,
    },
    /// The lease cannot be read by this version. Nothing was changed.
    #[error("cannot read {key}")]
    Unreadable {
        /// Where it is.
        key: String,
        /// Why.
        source: tenure_core::RecordError,
    },
    /// The lease has changed since this transaction has read it. Roll it back and try again.
    #[error("the lease of {election} has changed")]
    Changed {
        /// Which.
        election: ElectionName,
    },
    /// The database failed.
    #[error("could not ask the leader to resign")]
    Database(#[from] sqlx::Error),
}

/// A connection on which an object of the store can be changed in a transaction: of PostgreSQL, MySQL or SQLite.
pub trait Requestable: Send {
    /// The object and its version, locked until the transaction ends where the database can do that.
    fn lock_object(
        &mut self,
        key: &str,
    ) -> impl Future<Output = Result<Option<(Vec<u8>, i64)>, sqlx::Error>> + Send;

    /// The object as it is, without a lock: a session is renewed meanwhile.
    fn read_object(
        &mut self,
        key: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, sqlx::Error>> + Send;

    /// Replaces the object if it still has the first of the versions. Says whether it had.
    fn replace_object(
        &mut self,
        key: &str,
        value: &[u8],
        versions: (i64, i64),
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
}

impl NamespaceView {
    /// Asks the leader to resign, in the transaction that is open on `connection`: if that is rolled back, nobody was asked.
    /// Asks nobody a second time who is asked already.
    ///
    /// ```no_run
    /// # async fn example(view: tenure::NamespaceView, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// sqlx::query("UPDATE settings SET region = 'west'").execute(&mut *transaction).await?;
    /// view.request_resign_tx(&mut *transaction, &"reports".parse()?, &"admin".parse()?).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn request_resign_tx(
        &self,
        connection: &mut impl Requestable,
        election: &ElectionName,
        by: &NodeId,
    ) -> Result<(), RequestError> {
        let no_leader = || RequestError::NoLeader {
            election: election.clone(),
        };
        let key = self.keys.lease(election);
        let key = key.as_str();
        let found = connection.lock_object(key).await?;
        let (value, version) = found.ok_or_else(no_leader)?;
        let lease = Lease::decode(&value).map_err(|source| RequestError::Unreadable {
            key: key.to_owned(),
            source,
        })?;
        let lapses = match lease.holder() {
            None => false,
            Some(holder) => {
                let session = self.keys.session(holder);
                let session = connection.read_object(session.as_str()).await?;
                let session = session.and_then(|value| Record::decode(&value).ok());
                session.is_some_and(|session| session.is_one_shot())
            }
        };
        let request = Request {
            kind: RequestKind::Resign,
            by: by.clone(),
            lapses,
        };
        if lease.is_asked(&request) {
            return Ok(());
        }
        let writer = Writer {
            incarnation: Incarnation(uuid::Uuid::new_v4().as_u128()),
            counter: 1,
            nonce: Nonce::default(),
        };
        let asked = lease.with_request(request, writer).ok_or_else(no_leader)?;
        let versions = (version, new_version());
        let value = asked.encode();
        if connection.replace_object(key, &value, versions).await? {
            Ok(())
        } else {
            Err(RequestError::Changed {
                election: election.clone(),
            })
        }
    }
}

/// As every write of the store has one: a number that no other has.
fn new_version() -> i64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    // The upper two bits of `low` are fixed in every uuid, the lower twelve of `high` are random.
    ((low ^ high << 62) & i64::MAX.unsigned_abs()).cast_signed()
}

#[cfg(feature = "postgres")]
impl Requestable for sqlx::PgConnection {
    async fn lock_object(&mut self, key: &str) -> Result<Option<(Vec<u8>, i64)>, sqlx::Error> {
        let found = sqlx::query("SELECT value, version FROM tenure_objects WHERE key = $1 FOR UPDATE")
            .bind(key)
            // Behind a pooler the name of a prepared statement may be taken by somebody else's.
            .persistent(false)
            .fetch_optional(self)
            .await?;
        found
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .transpose()
    }

    async fn read_object(&mut self, key: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
        let found = sqlx::query("SELECT value FROM tenure_objects WHERE key = $1").bind(key);
        let found = found.persistent(false).fetch_optional(self).await?;
        found.map(|row| row.try_get(0)).transpose()
    }

    async fn replace_object(
        &mut self,
        key: &str,
        value: &[u8],
        (expected, version): (i64, i64),
    ) -> Result<bool, sqlx::Error> {
        let replaced = sqlx::query(
            "UPDATE tenure_objects SET value = $1, version = $2, modified_at = clock_timestamp() \
             WHERE key = $3 AND version = $4",
        );
        let replaced = replaced.bind(value).bind(version).bind(key).bind(expected);
        let replaced = replaced.persistent(false).execute(self).await?;
        Ok(replaced.rows_affected() == 1)
    }
}

#[cfg(feature = "mysql")]
impl Requestable for sqlx::MySqlConnection {
    async fn lock_object(&mut self, key: &str) -> Result<Option<(Vec<u8>, i64)>, sqlx::Error> {
        let found =
            sqlx::query("SELECT value, version FROM tenure_objects WHERE `key` = ? FOR UPDATE")
                .bind(key)
                .fetch_optional(self)
                .await?;
        found
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .transpose()
    }

    async fn read_object(&mut self, key: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
        let found = sqlx::query("SELECT value FROM tenure_objects WHERE `key` = ?").bind(key);
        let found = found.fetch_optional(self).await?;
        found.map(|row| row.try_get(0)).transpose()
    }

    async fn replace_object(
        &mut self,
        key: &str,
        value: &[u8],
        (expected, version): (i64, i64),
    ) -> Result<bool, sqlx::Error> {
        let replaced = sqlx::query(
            "UPDATE tenure_objects SET value = ?, version = ?, modified_at = UTC_TIMESTAMP(6) \
             WHERE `key` = ? AND version = ?",
        );
        let replaced = replaced.bind(value).bind(version).bind(key).bind(expected);
        let replaced = replaced.execute(self).await?;
        Ok(replaced.rows_affected() == 1)
    }
}

#[cfg(feature = "sqlite")]
impl Requestable for sqlx::SqliteConnection {
    /// SQLite has no row locks: if another writes before this transaction does, its own write is refused. Begin with
    /// `BEGIN IMMEDIATE`, and nobody does.
    async fn lock_object(&mut self, key: &str) -> Result<Option<(Vec<u8>, i64)>, sqlx::Error> {
        let found = sqlx::query("SELECT value, version FROM tenure_objects WHERE key = ?")
            .bind(key)
            .fetch_optional(self)
            .await?;
        found
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .transpose()
    }

    async fn read_object(&mut self, key: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
        let found = sqlx::query("SELECT value FROM tenure_objects WHERE key = ?").bind(key);
        let found = found.fetch_optional(self).await?;
        found.map(|row| row.try_get(0)).transpose()
    }

    /// Without what tells the age of the row: this host's clock is not known here, and nobody waits for it.
    async fn replace_object(
        &mut self,
        key: &str,
        value: &[u8],
        (expected, version): (i64, i64),
    ) -> Result<bool, sqlx::Error> {
        let replaced = sqlx::query(
            "UPDATE tenure_objects SET value = ?, version = ?, written = NULL, \
             modified_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) \
             WHERE key = ? AND version = ?",
        );
        let replaced = replaced.bind(value).bind(version).bind(key).bind(expected);
        let replaced = replaced.execute(self).await?;
        Ok(replaced.rows_affected() == 1)
    }
}
