//! The objects of the store inside the caller's own transaction, on a connection of sqlx.
//!
//! The connection must be one to the database that is the store. Every statement is part of the transaction that is open on it:
//! others see what it wrote when it commits, and nothing of it if it is rolled back.
//!
//! A conditional write that does not apply is no error to the database, so the transaction can go on. An error of the database
//! is another matter: PostgreSQL refuses every further statement, MySQL may have rolled the transaction back.

use std::future::Future;
use std::time::Duration;

use sqlx::Row;

#[cfg(feature = "postgres")]
use crate::fence::transaction::bound_idle_postgres;
#[cfg(feature = "sqlite")]
use crate::fence::transaction::is_in_transaction_sqlite;
#[cfg(feature = "mysql")]
use crate::fence::transaction::{bound_idle_mysql, is_in_transaction, is_number};

/// A connection on which objects of the store can be read and written in a transaction: of PostgreSQL, MySQL or SQLite.
pub trait Transactional: Send {
    /// Says whether a transaction is open, in a database with the store's table, and locks the object at `key` before anything
    /// else is read: what is seen after that is no older. A server is told to end the transaction if it is left idle for so
    /// long, and to make its commit durable.
    fn join_transaction(
        &mut self,
        key: &str,
        idle_milliseconds_max: u128,
    ) -> impl Future<Output = Result<Joined, sqlx::Error>> + Send;

    /// The object as it is now, locked until the transaction ends where the database can do that.
    fn lock_object(
        &mut self,
        key: &str,
    ) -> impl Future<Output = Result<Option<StoredObject>, sqlx::Error>> + Send;

    /// The object without a lock, and as the transaction sees it: that may be how it was when the transaction began.
    fn read_object(
        &mut self,
        key: &str,
    ) -> impl Future<Output = Result<Option<StoredObject>, sqlx::Error>> + Send;

    /// Writes the object if it is as expected, and says whether it was. If it was not, the transaction can go on.
    fn write_object(
        &mut self,
        object: &NewObject<'_>,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Deletes the object, if there is one.
    fn delete_object(&mut self, key: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// At most `limit` keys between `above` and `below`, and their versions, in order.
    fn list_objects(
        &mut self,
        above: &str,
        below: &str,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<(String, i64)>, sqlx::Error>> + Send;
}

/// What a connection was found to be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Joined {
    /// A transaction in a database with the store's table.
    Transaction,
    /// No transaction: every statement would be committed by itself.
    NoTransaction,
    /// A database without the store's table, or with one that an older version made.
    NoStore,
}

/// An object as a transaction sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredObject {
    /// The bytes that were written.
    pub value: Vec<u8>,
    /// Which write it is from.
    pub version: i64,
    /// How long ago, at most, that write was begun, where that can be proved.
    pub age: Option<Duration>,
}

/// An object to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewObject<'a> {
    /// Where.
    pub key: &'a str,
    /// What.
    pub value: &'a [u8],
    /// The version that it gets: a number that no other write has.
    pub version: i64,
    /// The version that it must have; `None` if there must be none.
    pub expected: Option<i64>,
    /// Whether to note when the write was begun, where the table has room for that. Only for what nobody but its writer
    /// trusts itself by, like a session: others see the write later, when it commits.
    pub is_dated: bool,
}

/// A number that no other write has, as every write of the store has one.
pub(crate) fn new_version() -> i64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    // The upper two bits of `low` are fixed in every uuid, the lower twelve of `high` are random.
    ((low ^ high << 62) & i64::MAX.unsigned_abs()).cast_signed()
}

/// A row of `value, version`.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn stored<R: Row>(row: &R) -> Result<StoredObject, sqlx::Error>
where
    usize: sqlx::ColumnIndex<R>,
    for<'r> Vec<u8>: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    for<'r> i64: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
{
    Ok(StoredObject {
        value: row.try_get(0)?,
        version: row.try_get(1)?,
        // The server's clock may be set, and be another one after a failover.
        age: None,
    })
}

#[cfg(feature = "postgres")]
impl Transactional for sqlx::PgConnection {
    async fn join_transaction(
        &mut self,
        key: &str,
        idle_milliseconds_max: u128,
    ) -> Result<Joined, sqlx::Error> {
        // The mark ends with the transaction too, so it is there for the next statement only if both are in one.
        let mark = "; SET LOCAL tenure.fence = 'held'";
        bound_idle_postgres(self, idle_milliseconds_max, mark).await?;
        // What is said to be committed must survive a crash of the server, also where other data need not: a lease that is
        // lost is taken by somebody else.
        let found = sqlx::query(
            "SELECT coalesce(current_setting('tenure.fence', true), '') = 'held', \
             to_regclass('tenure_objects') IS NOT NULL, \
             CASE WHEN current_setting('synchronous_commit') = 'off' \
             THEN set_config('synchronous_commit', 'on', true) END",
        );
        // Behind a pooler the name of a prepared statement may be taken by somebody else's.
        let found = found.persistent(false).fetch_one(&mut *self).await?;
        let (is_in_transaction, is_store): (bool, bool) = (found.try_get(0)?, found.try_get(1)?);
        let joined = joined(is_in_transaction, is_store);
        if joined == Joined::Transaction {
            self.lock_object(key).await?;
        }
        Ok(joined)
    }

    async fn lock_object(&mut self, key: &str) -> Result<Option<StoredObject>, sqlx::Error> {
        let found =
            sqlx::query("SELECT value, version FROM tenure_objects WHERE key = $1 FOR UPDATE");
        let found = found.bind(key).persistent(false).fetch_optional(self);
        found.await?.as_ref().map(stored).transpose()
    }

    async fn read_object(&mut self, key: &str) -> Result<Option<StoredObject>, sqlx::Error> {
        let found = sqlx::query("SELECT value, version FROM tenure_objects WHERE key = $1");
        let found = found.bind(key).persistent(false).fetch_optional(self);
        found.await?.as_ref().map(stored).transpose()
    }

    /// An insert waits for another transaction that inserts the same key, and then does nothing: a duplicate would end the
    /// caller's transaction.
    async fn write_object(&mut self, object: &NewObject<'_>) -> Result<bool, sqlx::Error> {
        let statement = match object.expected {
            None => {
                "INSERT INTO tenure_objects (value, version, key, modified_at) \
                 VALUES ($1, $2, $3, clock_timestamp()) ON CONFLICT (key) DO NOTHING"
            }
            Some(_) => {
                "UPDATE tenure_objects SET value = $1, version = $2, modified_at = clock_timestamp() \
                 WHERE key = $3 AND version = $4"
            }
        };
        let query = sqlx::query(statement).bind(object.value);
        let mut query = query.bind(object.version).bind(object.key);
        if let Some(expected) = object.expected {
            query = query.bind(expected);
        }
        let written = query.persistent(false).execute(self).await?;
        Ok(written.rows_affected() == 1)
    }

    async fn delete_object(&mut self, key: &str) -> Result<(), sqlx::Error> {
        let query = sqlx::query("DELETE FROM tenure_objects WHERE key = $1").bind(key);
        query.persistent(false).execute(self).await.map(drop)
    }

    async fn list_objects(
        &mut self,
        above: &str,
        below: &str,
        limit: i64,
    ) -> Result<Vec<(String, i64)>, sqlx::Error> {
        let query = sqlx::query(
            "SELECT key, version FROM tenure_objects WHERE key > $1 AND key < $2 ORDER BY key LIMIT $3",
        );
        let query = query.bind(above).bind(below).bind(limit);
        let rows = query.persistent(false).fetch_all(self).await?;
        let entries = rows.iter();
        let entries = entries.map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        entries.collect()
    }
}

#[cfg(feature = "mysql")]
const DUPLICATE: u16 = 1062;

#[cfg(feature = "mysql")]
const NO_TABLE: u16 = 1146;

#[cfg(feature = "mysql")]
impl Transactional for sqlx::MySqlConnection {
    async fn join_transaction(
        &mut self,
        key: &str,
        idle_milliseconds_max: u128,
    ) -> Result<Joined, sqlx::Error> {
        bound_idle_mysql(self, idle_milliseconds_max).await?;
        // In REPEATABLE READ the first read without a lock settles what such reads see from then on. Without autocommit this
        // read is also what opens the transaction.
        match self.lock_object(key).await {
            Ok(_) => {}
            Err(sqlx::Error::Database(error)) if is_number(&*error, NO_TABLE) => {
                return Ok(Joined::NoStore);
            }
            Err(error) => return Err(error),
        }
        Ok(joined(is_in_transaction(self).await?, true))
    }

    /// Reads what is committed now, whatever the transaction has seen before.
    async fn lock_object(&mut self, key: &str) -> Result<Option<StoredObject>, sqlx::Error> {
        let found =
            sqlx::query("SELECT value, version FROM tenure_objects WHERE `key` = ? FOR UPDATE");
        let found = found.bind(key).fetch_optional(self).await?;
        found.as_ref().map(stored).transpose()
    }

    async fn read_object(&mut self, key: &str) -> Result<Option<StoredObject>, sqlx::Error> {
        let found = sqlx::query("SELECT value, version FROM tenure_objects WHERE `key` = ?");
        let found = found.bind(key).fetch_optional(self).await?;
        found.as_ref().map(stored).transpose()
    }

    /// A duplicate undoes the statement, and leaves the transaction as it was.
    async fn write_object(&mut self, object: &NewObject<'_>) -> Result<bool, sqlx::Error> {
        let statement = match object.expected {
            None => {
                "INSERT INTO tenure_objects (value, version, `key`, modified_at) \
                 VALUES (?, ?, ?, UTC_TIMESTAMP(6))"
            }
            Some(_) => {
                "UPDATE tenure_objects SET value = ?, version = ?, modified_at = UTC_TIMESTAMP(6) \
                 WHERE `key` = ? AND version = ?"
            }
        };
        let query = sqlx::query(statement).bind(object.value);
        let mut query = query.bind(object.version).bind(object.key);
        if let Some(expected) = object.expected {
            query = query.bind(expected);
        }
        match query.execute(self).await {
            Ok(written) => Ok(written.rows_affected() == 1),
            Err(sqlx::Error::Database(error)) if is_number(&*error, DUPLICATE) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn delete_object(&mut self, key: &str) -> Result<(), sqlx::Error> {
        let query = sqlx::query("DELETE FROM tenure_objects WHERE `key` = ?");
        query.bind(key).execute(self).await.map(drop)
    }

    async fn list_objects(
        &mut self,
        above: &str,
        below: &str,
        limit: i64,
    ) -> Result<Vec<(String, i64)>, sqlx::Error> {
        let query = sqlx::query(
            "SELECT `key`, version FROM tenure_objects WHERE `key` > ? AND `key` < ? \
             ORDER BY `key` LIMIT ?",
        );
        let rows = query.bind(above).bind(below).bind(limit).fetch_all(self);
        let rows = rows.await?;
        let entries = rows.iter();
        let entries = entries.map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        entries.collect()
    }
}

#[cfg(feature = "sqlite")]
impl Transactional for sqlx::SqliteConnection {
    /// SQLite bounds no idle transaction.
    async fn join_transaction(&mut self, _: &str, _: u128) -> Result<Joined, sqlx::Error> {
        if !is_in_transaction_sqlite(self).await? {
            return Ok(Joined::NoTransaction);
        }
        let columns = sqlx::query(
            "SELECT count(*) FROM pragma_table_info('tenure_objects') WHERE name = 'written'",
        );
        let columns: i64 = columns.fetch_one(self).await?.try_get(0)?;
        Ok(joined(true, columns > 0))
    }

    /// SQLite has no row locks: if another writes before this transaction does, its own write is refused. Begin with
    /// `BEGIN IMMEDIATE`, and nobody does.
    async fn lock_object(&mut self, key: &str) -> Result<Option<StoredObject>, sqlx::Error> {
        self.read_object(key).await
    }

    async fn read_object(&mut self, key: &str) -> Result<Option<StoredObject>, sqlx::Error> {
        let found = sqlx::query("SELECT value, version, written FROM tenure_objects WHERE key = ?");
        let Some(row) = found.bind(key).fetch_optional(self).await? else {
            return Ok(None);
        };
        let (version, written): (i64, Option<&str>) = (row.try_get(1)?, row.try_get(2)?);
        Ok(Some(StoredObject {
            value: row.try_get(0)?,
            version,
            age: written.and_then(|written| tenure_store::engine::sqlite::age(written, version)),
        }))
    }

    async fn write_object(&mut self, object: &NewObject<'_>) -> Result<bool, sqlx::Error> {
        let statement = match object.expected {
            None => {
                "INSERT INTO tenure_objects (value, version, written, key, modified_at) \
                 VALUES (?, ?, ?, ?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)) \
                 ON CONFLICT (key) DO NOTHING"
            }
            Some(_) => {
                "UPDATE tenure_objects SET value = ?, version = ?, written = ?, \
                 modified_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) \
                 WHERE key = ? AND version = ?"
            }
        };
        let written = object
            .is_dated
            .then(|| tenure_store::engine::sqlite::written_now(object.version))
            .flatten();
        let query = sqlx::query(statement).bind(object.value);
        let mut query = query.bind(object.version).bind(written).bind(object.key);
        if let Some(expected) = object.expected {
            query = query.bind(expected);
        }
        let written = query.execute(self).await?;
        Ok(written.rows_affected() == 1)
    }

    async fn delete_object(&mut self, key: &str) -> Result<(), sqlx::Error> {
        let query = sqlx::query("DELETE FROM tenure_objects WHERE key = ?");
        query.bind(key).execute(self).await.map(drop)
    }

    async fn list_objects(
        &mut self,
        above: &str,
        below: &str,
        limit: i64,
    ) -> Result<Vec<(String, i64)>, sqlx::Error> {
        let query = sqlx::query(
            "SELECT key, version FROM tenure_objects WHERE key > ? AND key < ? ORDER BY key LIMIT ?",
        );
        let rows = query.bind(above).bind(below).bind(limit).fetch_all(self);
        let rows = rows.await?;
        let entries = rows.iter();
        let entries = entries.map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        entries.collect()
    }
}

fn joined(is_in_transaction: bool, is_store: bool) -> Joined {
    match (is_in_transaction, is_store) {
        (false, _) => Joined::NoTransaction,
        (true, false) => Joined::NoStore,
        (true, true) => Joined::Transaction,
    }
}
