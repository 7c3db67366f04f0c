//! Objects as rows of an SQLite database, shared by any number of processes on one host.
//!
//! # What is guaranteed
//!
//! The whole contract, on a local file system. The database is in write-ahead mode with
//! `synchronous = FULL`, so a write that is done has been flushed to the disk. Write-ahead mode needs
//! memory that all processes share, which a network file system does not have: there the store is
//! refused.
//!
//! A change is one statement in its own transaction. Within a process writers take turns; between
//! processes they wait for each other for 8 seconds, after which the store is unavailable and nothing was
//! written. An input/output error leaves it open whether a write was applied: its frames
//! may be in the log although they were not flushed.
//!
//! # Clock
//!
//! The engine's clock is the host's, which all processes share. Setting it makes nothing look older than it
//! is to those who have the store open, since they count the present from the start of the host.
//!
//! There are no hints: callers poll.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Row};

use super::clock::Clock;
use super::sql::{self, Dial, Fate, Found, LISTED_MAX, Pool, Range, answered};
use crate::{
    Capabilities, Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version,
    Watch, check_value,
};

/// How long a writer waits for those of other processes. Shorter than a statement may take, so that the
/// wait ends with an answer.
const BUSY_WITHIN: Duration = Duration::from_secs(8);

/// Each has a thread.
const READERS_MAX: usize = 4;

/// Small columns first: SQLite reads a row from its beginning.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS tenure_objects (\
     key TEXT COLLATE BINARY NOT NULL PRIMARY KEY, version INTEGER NOT NULL, \
     modified_at INTEGER NOT NULL, value BLOB NOT NULL) STRICT";

const VIEWS: &str = include_str!("views/sqlite.sql");

/// The time is read when the statement runs, which is after it has waited for other writers.
macro_rules! now {
    () => {
        "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)"
    };
}

const GET: &str = "SELECT version, modified_at, value FROM tenure_objects WHERE key = ?";

const GET_IF_CHANGED: &str = "SELECT version, modified_at, CASE WHEN version <> ? THEN value END \
     FROM tenure_objects WHERE key = ?";

const INSERT: &str = concat!(
    "INSERT INTO tenure_objects (value, version, key, modified_at) VALUES (?, ?, ?, ",
    now!(),
    ") ON CONFLICT (key) DO NOTHING"
);

const UPDATE: &str = concat!(
    "UPDATE tenure_objects SET value = ?, version = ?, modified_at = ",
    now!(),
    " WHERE key = ? AND version = ?"
);

const DELETE: &str = "DELETE FROM tenure_objects WHERE key = ?";

const LIST: &str = "SELECT key, version FROM tenure_objects WHERE key > ? AND key < ? \
     ORDER BY key LIMIT ?";

/// A store in an SQLite database file.
#[derive(Debug)]
pub struct Sqlite {
    readers: Pool<SqliteConnectOptions>,
    /// One connection: writers of this process take turns here, in the order of their coming, which is
    /// fairer and faster than SQLite's own waiting.
    writer: Pool<SqliteConnectOptions>,
    path: PathBuf,
    clock: Option<Clock>,
}

impl Dial for SqliteConnectOptions {
    type Connection = SqliteConnection;

    /// Of many who open a new database at once, all but one are told that it is busy when they switch it
    /// to write-ahead mode, without the wait that SQLite otherwise grants.
    async fn dial(&self) -> Result<SqliteConnection, sqlx::Error> {
        loop {
            match self.connect().await {
                Err(error) if fate(&error) == Fate::Busy => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                result => return result,
            }
        }
    }
}

type Query = sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

impl Sqlite {
    /// Opens the database at `path`, and makes it, with its table and views, if there is none. Its folder must
    /// exist.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        // Absolute, so that SQLite does not take `:memory:` or `file:…` for more than a file's name.
        let path = std::path::absolute(path)
            .map_err(|error| Error::invalid(error.to_string(), "use sqlite:PATH"))?;
        refuse_network(&path)?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_WITHIN)
            .disable_statement_logging();
        let store = Self {
            readers: Pool::new(options.clone(), READERS_MAX),
            writer: Pool::new(options, 1),
            path,
            clock: Clock::start(),
        };
        let opened = store.prepare_table().await;
        opened.map_err(|error| store.read_error(format!("opening {}", store.location()), error))?;
        Ok(store)
    }

    async fn prepare_table(&self) -> Result<(), sqlx::Error> {
        let mut connection = self.writer.acquire().await?;
        answered(sqlx::raw_sql(CREATE).execute(&mut *connection)).await?;
        match answered(sqlx::raw_sql(VIEWS).execute(&mut *connection)).await {
            Ok(_) => connection.finish(0),
            Err(error) => sql::without_views(&error),
        }
        Ok(())
    }

    fn location(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    async fn read_entries(&self, query: Query) -> Result<Vec<(String, i64)>, sqlx::Error> {
        let rows = self.read(query).await?;
        rows.iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect()
    }

    async fn read(&self, query: Query) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let mut connection = self.readers.acquire().await?;
        let rows = answered(query.fetch_all(&mut *connection)).await?;
        connection.finish(0);
        Ok(rows)
    }

    async fn read_object(&self, query: Query) -> Result<Option<Found>, sqlx::Error> {
        let rows = self.read(query).await?;
        let row = rows.first();
        row.map(|row| self.decode_object(row)).transpose()
    }

    fn decode_object(&self, row: &SqliteRow) -> Result<Found, sqlx::Error> {
        let value: Option<Vec<u8>> = row.try_get(2)?;
        let (version, modified_at) = (row.try_get(0)?, row.try_get::<i64, _>(1)?);
        let clock = self.clock.as_ref();
        let age = clock.and_then(|clock| clock.since(modified_at.saturating_mul(1_000_000)));
        Ok(Found(value.map(|value| Object {
            value: value.into(),
            version: sql::to_version(version),
            age,
        })))
    }

    /// How many objects were changed.
    async fn change(&self, key: &Key, query: Query) -> Result<u64, Error> {
        let acquired = self.writer.acquire().await;
        let mut connection =
            acquired.map_err(|error| self.read_error(format!("writing {key}"), error))?;
        let done = answered(query.execute(&mut *connection))
            .await
            .map_err(|error| match fate(&error) {
                Fate::Lost => sql::write_error(key, Fate::Lost, error),
                _ => self.read_error(format!("writing {key}"), error),
            })?;
        connection.finish(0);
        Ok(done.rows_affected())
    }

    fn read_error(&self, doing: String, error: sqlx::Error) -> Error {
        match sql::read_error(doing, fate(&error), error) {
            Error::Corrupt { what, .. } => Error::Corrupt {
                location: self.location(),
                what,
            },
            error => error,
        }
    }
}

#[async_trait]
impl Store for Sqlite {
    fn describe(&self) -> Description {
        Description {
            engine: "sqlite",
            location: self.location(),
            capabilities: Capabilities {
                age: self.clock.is_some(),
                hints: false,
                durable: true,
            },
        }
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let query = sqlx::query(GET).bind(key.to_string());
        match self.read_object(query).await {
            Ok(found) => Ok(found.and_then(|Found(object)| object)),
            Err(error) => Err(self.read_error(format!("reading {key}"), error)),
        }
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        // No row has the version of another engine, nor a negative one.
        let number = sql::version_number(version).unwrap_or(-1);
        let query = sqlx::query(GET_IF_CHANGED)
            .bind(number)
            .bind(key.to_string());
        match self.read_object(query).await {
            Ok(found) => Ok(sql::to_change(found)),
            Err(error) => Err(self.read_error(format!("reading {key}"), error)),
        }
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        check_value(key, &value)?;
        let version = sql::new_version();
        let statement = match expect {
            Expect::Absent => INSERT,
            Expect::Version(_) => UPDATE,
        };
        let mut query = sqlx::query(statement)
            .bind(Vec::from(value))
            .bind(version)
            .bind(key.to_string());
        if let Expect::Version(expected) = expect {
            let expected = sql::version_number(expected).ok_or_else(|| Error::conflict(key))?;
            query = query.bind(expected);
        }
        match self.change(key, query).await? {
            0 => Err(Error::conflict(key)),
            _ => Ok(sql::to_version(version)),
        }
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let query = sqlx::query(DELETE).bind(key.to_string());
        self.change(key, query).await.map(drop)
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let range = Range::new(prefix, after);
        let query = sqlx::query(LIST)
            .bind(range.above.to_owned())
            .bind(range.below)
            .bind(i64::try_from(LISTED_MAX).expect("a page is small"));
        match self.read_entries(query).await {
            Ok(rows) => sql::to_page(rows),
            Err(error) => Err(self.read_error(format!("listing {prefix}"), error)),
        }
    }

    fn watch(&self, _prefix: &Prefix) -> Option<Watch> {
        None
    }
}

fn fate(error: &sqlx::Error) -> Fate {
    let answer = error.as_database_error();
    match answer.and_then(|answer| answer.code()?.parse().ok()) {
        Some(code) => fate_of_answer(code),
        None => sql::fate_without_answer(error),
    }
}

/// What SQLite's answer says about a statement, by its result codes.
fn fate_of_answer(code: u32) -> Fate {
    // The lower byte is the kind, the rest the reason.
    match code & 0xff {
        // SQLITE_BUSY, SQLITE_LOCKED, SQLITE_NOMEM
        5..=7 => Fate::Busy,
        // SQLITE_PERM, SQLITE_READONLY, SQLITE_CANTOPEN, SQLITE_AUTH
        3 | 8 | 14 | 23 => Fate::Refused(
            "create the folder, and let this user write to it, to the database file and to the files \
             beside it that end in -wal and -shm",
        ),
        // SQLITE_FULL
        13 => Fate::Refused("free some space on the disk"),
        // SQLITE_CORRUPT, SQLITE_NOTADB
        11 | 26 => Fate::Damaged,
        // SQLITE_ERROR, SQLITE_SCHEMA, SQLITE_CONSTRAINT, SQLITE_MISMATCH
        1 | 17 | 19 | 20 => Fate::Refused("see SQLite's own words; is this table Tenure's?"),
        // SQLITE_IOERR and whatever else: the frames may be in the log.
        _ => Fate::Lost,
    }
}

/// Refuses a file whose folder is on a network file system. A folder that cannot be asked about is
/// SQLite's to complain of.
fn refuse_network(path: &Path) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(path);
    match network_file_system(folder) {
        None => Ok(()),
        Some(name) => Err(Error::refused(
            format!("opening sqlite:{}", path.display()),
            "put the database on a local disk, or use a server such as PostgreSQL",
            format!("the folder is on {name}, where SQLite's write-ahead mode is not safe"),
        )),
    }
}

#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(folder).ok()?.f_type;
    NETWORK_FILE_SYSTEMS
        .iter()
        .find(|(number, _)| i128::from(*number) == i128::from(kind) & 0xffff_ffff)
        .map(|&(_, name)| name)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_folder: &Path) -> Option<&'static str> {
    None
}

/// By the numbers of `statfs(2)`. FUSE is not among them: most of what is mounted by it is local.
#[cfg(target_os = "linux")]
const NETWORK_FILE_SYSTEMS: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0x0102_1997, "9P"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_that_rule_the_write_out_say_so() {
        // SQLITE_IOERR_FSYNC, SQLITE_IOERR_WRITE, SQLITE_PROTOCOL
        for code in [1034, 778, 15] {
            assert_eq!(fate_of_answer(code), Fate::Lost, "{code}");
        }
        // SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT
        for code in [5, 517] {
            assert_eq!(fate_of_answer(code), Fate::Busy, "{code}");
        }
        // SQLITE_FULL, SQLITE_READONLY_DBMOVED, SQLITE_CANTOPEN_ISDIR
        for code in [13, 1032, 526] {
            assert!(matches!(fate_of_answer(code), Fate::Refused(_)), "{code}");
        }
        // SQLITE_CORRUPT_INDEX, SQLITE_NOTADB
        for code in [779, 26] {
            assert_eq!(fate_of_answer(code), Fate::Damaged, "{code}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_file_systems_of_this_host_are_told_apart() {
        // No network file system can be mounted in a test; that the number is read at all is seen
        // from one that every Linux has.
        assert_eq!(rustix::fs::statfs("/proc").unwrap().f_type, 0x9fa0);
        assert_eq!(network_file_system(Path::new("/proc")), None);
        assert_eq!(network_file_system(Path::new("/no/such/folder")), None);
    }
}
