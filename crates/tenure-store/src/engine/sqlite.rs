//! Objects as rows of an SQLite database, shared by any number of processes on one host.
//!
//! # What is guaranteed
//!
//! The whole contract, on a local file system. The database is in write-ahead mode with
//! `synchronous = FULL`, so a write that is done has been flushed to the disk. Write-ahead mode needs
//! memory that all processes share, which a network file system does not have: there the store is
//! refused.
//!
//! A change is one statement. Within a process, changes that wait are committed together, up to 64 in one transaction
//! with one flush, and each has its own outcome; between processes writers wait for each other for 8 seconds, after
//! which the store is unavailable and nothing was written. An input/output error at the commit leaves it open whether a
//! write was applied: its frames may be in the log although they were not flushed.
//!
//! # Clock
//!
//! The column `written` has three things: what the clock of this host that cannot be set showed when the write was
//! begun, the id of the host's start, and the object's version. An older Tenure that does not know the column leaves an
//! old object version there, and such an entry is ignored. `modified_at` is for people.
//!
//! # The file
//!
//! If the file, its write-ahead log or the log's index is replaced or deleted while it is open, every request ends as
//! [`Error::Gone`]: it is another store then, or none. SQLite deletes the log and its index itself when nobody has the
//! file open, so one connection stays open for as long as the store.
//!
//! The log and its index are found by name. Under a second name, given by a hard link or a mount of the file alone,
//! SQLite would use a second log, and there would be two stores in one file. Such a file is refused, even if it gets
//! its second name while it is open.
//!
//! There are no hints: callers poll.

mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Row};

use super::clock::{Clock, Reading};
use super::identity::{Identity, refuse_other_names};
use super::private;
use super::sql::{self, Dial, Fate, Found, LISTED_MAX, Pool, Range, Rows, answered};
use crate::error::Cause;
use crate::{Capabilities, Description, Error, Key, Object};
use writer::{Kind, Writer};

/// How long a writer waits for writers of other processes. Shorter than a statement may take, so that the wait ends
/// with an answer.
const BUSY_WITHIN: Duration = Duration::from_secs(8);

/// Each reader has a thread.
const READERS_MAX: usize = 4;

/// Small columns first: SQLite reads a row from its beginning.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS tenure_objects (\
     key TEXT COLLATE BINARY NOT NULL PRIMARY KEY, version INTEGER NOT NULL, \
     modified_at INTEGER NOT NULL, written TEXT, value BLOB NOT NULL) STRICT";

/// Whether the table is there, and whether it has the column that older versions did not make.
const LOOK: &str = "SELECT count(*), count(*) FILTER (WHERE name = 'written') \
     FROM pragma_table_info('tenure_objects')";

const ADD_WRITTEN: &str = "ALTER TABLE tenure_objects ADD COLUMN written TEXT";

const VIEWS: &str = include_str!("views/sqlite.sql");

/// Whether there are views of an older version: without a column, or with a word that only SQLite 3.42 and later ones know.
const VIEWS_OUTDATED: &str = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('tenure_daemons')) \
         AND NOT EXISTS (SELECT 1 FROM pragma_table_info('tenure_daemons') WHERE name = 'failures') \
     OR EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = 'tenure_nodes' AND sql LIKE '%subsec%')";

const DROP_VIEWS: &str = "DROP VIEW IF EXISTS tenure_leaders; DROP VIEW IF EXISTS tenure_nodes; \
     DROP VIEW IF EXISTS tenure_daemons";

/// Read when the statement runs, which is after it has waited for other writers.
macro_rules! now {
    () => {
        "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)"
    };
}

const GET: &str = concat!(
    "SELECT version, ",
    now!(),
    " - modified_at, CASE WHEN version <> ? THEN value END, written FROM tenure_objects WHERE key = ?"
);

/// The same for a table without the column.
const GET_OLDER: &str = concat!(
    "SELECT version, ",
    now!(),
    " - modified_at, CASE WHEN version <> ? THEN value END FROM tenure_objects WHERE key = ?"
);

const INSERT: &str = concat!(
    "INSERT INTO tenure_objects (value, version, written, key, modified_at) VALUES (?, ?, ?, ?, ",
    now!(),
    ") ON CONFLICT (key) DO NOTHING"
);

const UPDATE: &str = concat!(
    "UPDATE tenure_objects SET value = ?, version = ?, written = ?, modified_at = ",
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
    /// One connection, for all writes of this process: fairer and faster than SQLite's own waiting.
    writer: Writer,
    path: PathBuf,
    clock: Option<Clock>,
    identity: Arc<Identity>,
    /// Keeps SQLite from deleting the write-ahead log. Never used; the mutex only makes it shareable.
    _open: Mutex<SqliteConnection>,
    /// Whether the table has the column `written`. A table made by an older version lacks it until it is opened for
    /// writing.
    has_written: bool,
}

/// How to connect to the database at `path`, which must be there, and where it is: for tables beside the store's.
pub fn connect_options(path: impl AsRef<Path>) -> Result<(SqliteConnectOptions, String), Error> {
    let path = std::path::absolute(path)
        .map_err(|error| Error::invalid(error.to_string(), "use sqlite:PATH"))?;
    refuse_network(&path)?;
    let location = format!("sqlite:{}", path.display());
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_WITHIN)
        .disable_statement_logging();
    Ok((options, location))
}

impl Dial for SqliteConnectOptions {
    type Connection = SqliteConnection;

    /// When many open a new database at once, all but one get `busy` when they switch it to write-ahead mode, without
    /// the wait that SQLite otherwise grants.
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
    /// Opens the database at `path`, and creates it, with its table and views, if it is missing. Its folder must exist.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_or_make(path.as_ref(), true).await
    }

    /// Opens the database at `path`, and creates nothing. Refused if there is no store.
    pub async fn open_existing(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_or_make(path.as_ref(), false).await
    }

    async fn open_or_make(path: &Path, makes: bool) -> Result<Self, Error> {
        // Absolute, so that SQLite takes `:memory:` and `file:…` for nothing but a file's name.
        let path = std::path::absolute(path)
            .map_err(|error| Error::invalid(error.to_string(), "use sqlite:PATH"))?;
        let doing = format!("opening sqlite:{}", path.display());
        if !makes {
            use std::io::ErrorKind::{NotADirectory, NotFound};
            match std::fs::metadata(&path) {
                Ok(found) if found.is_file() => {}
                // An error does not mean that there is none.
                Err(error) if !matches!(error.kind(), NotFound | NotADirectory) => {
                    let hint = "give the user of this process read and write access to the file and its folder";
                    return Err(Error::refused(doing, hint, error));
                }
                Ok(_) | Err(_) => return Err(Error::no_store(doing)),
            }
        }
        refuse_network(&path)?;
        refuse_log_without_database(&doing, &path)?;
        make_private(&path)?;
        // Checked before SQLite creates a log for this name.
        refuse_other_names(&doing, &path)?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_WITHIN)
            .disable_statement_logging();
        let prepared = prepare(&options, makes).await.map_err(|error| {
            read_error(
                &path,
                doing.clone(),
                fate_of_read(&error),
                sql::cause(error),
            )
        })?;
        let (connection, found) = prepared;
        let has_written = match found {
            Look::Nothing => return Err(Error::no_store(doing)),
            Look::Older => false,
            Look::Present => true,
        };
        // A database of an older version may have no write-ahead log until somebody writes to it. SQLite puts the log
        // beside the file that links lead to.
        let target = path.canonicalize();
        let target = target.map_err(|error| Error::unavailable(&doing, error))?;
        let beside = ["-wal", "-shm"].map(|suffix| {
            let mut name = target.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        });
        let beside = beside.into_iter().filter(|path| path.exists());
        let identity = Identity::of([path.clone()].into_iter().chain(beside));
        let identity = identity.map_err(|error| Error::unavailable(&doing, error))?;
        let identity = Arc::new(identity.with_one_name());
        // From here on a missing file is not created again: that would be another store.
        Ok(Self {
            readers: Pool::new(options.clone(), READERS_MAX),
            writer: Writer::new(Pool::new(options, 1), path.clone(), identity.clone()),
            path,
            clock: Clock::start(),
            identity,
            _open: Mutex::new(connection),
            has_written,
        })
    }

    fn location(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    /// What was read counts only if the file was still there afterwards: a connection opened for this read may have
    /// opened another file.
    async fn read(&self, doing: String, query: Query) -> Result<Vec<SqliteRow>, Error> {
        let read = async {
            let mut connection = self.readers.acquire().await?;
            let rows = answered(query.fetch_all(&mut *connection)).await?;
            connection.finish(0);
            Ok(rows)
        };
        let rows = read.await;
        self.identity.check(&doing)?;
        rows.map_err(|error| self.read_error(doing, error))
    }

    fn decode_object(&self, row: &SqliteRow) -> Result<Found, sqlx::Error> {
        let value: Option<Vec<u8>> = row.try_get(2)?;
        let (version, shown_age) = (row.try_get(0)?, row.try_get::<i64, _>(1)?);
        let written: Option<&str> = if self.has_written {
            row.try_get(3)?
        } else {
            None
        };
        let written = written.and_then(|written| read_written(written, version));
        let shown_age = u64::try_from(shown_age).unwrap_or_default();
        Ok(Found(value.map(|value| Object {
            value: value.into(),
            version: sql::to_version(version),
            age: self.clock.and_then(|clock| clock.age(written)),
            shown_age: Some(Duration::from_millis(shown_age)),
        })))
    }

    fn read_error(&self, doing: String, error: sqlx::Error) -> Error {
        read_error(&self.path, doing, fate_of_read(&error), sql::cause(error))
    }
}

/// The error of a read, or of a write that was certainly not applied.
fn read_error(path: &Path, doing: String, fate: Fate, cause: Cause) -> Error {
    match sql::not_applied(doing, fate, cause) {
        Error::Corrupt { what, .. } => Error::Corrupt {
            location: format!("sqlite:{}", path.display()),
            what,
        },
        error => error,
    }
}

/// Creates what is missing, if `makes`, and returns what is there. The connection has read from the database, so all of
/// its files are open.
async fn prepare(
    options: &SqliteConnectOptions,
    makes: bool,
) -> Result<(SqliteConnection, Look), sqlx::Error> {
    if !makes {
        let mut connection = options.dial().await?;
        let found = look(&mut connection).await?;
        return Ok((connection, found));
    }
    let options = options.clone().create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal);
    let mut connection = options.dial().await?;
    answered(sqlx::raw_sql(CREATE).execute(&mut connection)).await?;
    let added = match look(&mut connection).await? {
        Look::Older => answered(sqlx::raw_sql(ADD_WRITTEN).execute(&mut connection)).await,
        _ => Ok(Default::default()),
    };
    // When several add it at once, all but one are told that it exists.
    let found = look(&mut connection).await?;
    if found != Look::Present {
        added?;
    }
    if let Err(error) = prepare_views(&mut connection).await {
        sql::without_views(&error);
    }
    Ok((connection, found))
}

/// Makes the views, and replaces those of an older version. They are for people: nothing breaks if they are missing for
/// a moment.
async fn prepare_views(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let outdated = sqlx::raw_sql(VIEWS_OUTDATED).fetch_one(&mut *connection);
    if answered(outdated).await?.try_get(0)? {
        answered(sqlx::raw_sql(DROP_VIEWS).execute(&mut *connection)).await?;
    }
    answered(sqlx::raw_sql(VIEWS).execute(connection)).await?;
    Ok(())
}

impl Rows for Sqlite {
    fn description(&self) -> Description {
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

    async fn find(&self, key: &Key, known: i64) -> Result<Option<Found>, Error> {
        let statement = if self.has_written { GET } else { GET_OLDER };
        let query = sqlx::query(statement).bind(known).bind(key.to_string());
        let doing = format!("reading {key}");
        let rows = self.read(doing.clone(), query).await?;
        let row = rows.first().map(|row| self.decode_object(row)).transpose();
        row.map_err(|error| self.read_error(doing, error))
    }

    async fn write(
        &self,
        key: &Key,
        value: Bytes,
        version: i64,
        expected: Option<i64>,
    ) -> Result<u64, Error> {
        if !self.has_written {
            return Err(Error::refused(
                format!("writing {key}"),
                "open it once with a program of this version that writes, such as tenure serve or tenure run",
                "the table was created by an older version of Tenure, and was opened for reading only",
            ));
        }
        let reading = self.clock.and_then(Clock::read);
        let change = writer::Change {
            key: key.clone(),
            kind: Kind::Put {
                value,
                version,
                written: reading.map(|reading| write_written(reading, version)),
                expected,
            },
        };
        self.writer.change(change).await
    }

    async fn remove(&self, key: &Key) -> Result<(), Error> {
        let change = writer::Change {
            key: key.clone(),
            kind: Kind::Delete,
        };
        self.writer.change(change).await.map(drop)
    }

    async fn list_range(
        &self,
        doing: String,
        range: Range<'_>,
    ) -> Result<Vec<(String, i64)>, Error> {
        let query = sqlx::query(LIST)
            .bind(range.above.to_owned())
            .bind(range.below)
            .bind(i64::try_from(LISTED_MAX).expect("a page is small"));
        let rows = self.read(doing.clone(), query).await?;
        let entries: Result<_, sqlx::Error> = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect();
        entries.map_err(|error| self.read_error(doing, error))
    }

    fn was_replaced(&self) -> bool {
        self.identity.is_replaced()
    }
}

/// What is in the database.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Nothing,
    /// The table without the column `written`.
    Older,
    Present,
}

async fn look(connection: &mut SqliteConnection) -> Result<Look, sqlx::Error> {
    let row = answered(sqlx::query(LOOK).fetch_one(connection)).await?;
    let (columns, written): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok(match (columns, written) {
        (0, _) => Look::Nothing,
        (_, 0) => Look::Older,
        _ => Look::Present,
    })
}

/// The value of the column `written` for a write of `version` that begins now; `None` if this host has no such clock.
/// For programs that write an object in their own transaction.
#[must_use]
pub fn written_now(version: i64) -> Option<String> {
    let reading = Clock::start().and_then(Clock::read);
    reading.map(|reading| write_written(reading, version))
}

/// How long ago the write of `version` was begun, by the column `written`. For programs that read an object in their
/// own transaction.
#[must_use]
pub fn age(written: &str, version: i64) -> Option<Duration> {
    Clock::start()?.age(read_written(written, version))
}

/// The column `written`: the version, the host's start, and the nanoseconds since then.
fn write_written(reading: Reading, version: i64) -> String {
    let Reading { boot, nanoseconds } = reading;
    format!("{version} {boot:032x} {nanoseconds}")
}

/// `None` if it is about another version, or was not written by Tenure.
fn read_written(text: &str, version: i64) -> Option<Reading> {
    let mut fields = text.split(' ');
    let of: i64 = fields.next()?.parse().ok()?;
    let boot = u128::from_str_radix(fields.next()?, 16).ok()?;
    let nanoseconds = fields.next()?.parse().ok()?;
    (of == version && fields.next().is_none()).then_some(Reading { boot, nanoseconds })
}

fn fate(error: &sqlx::Error) -> Fate {
    let answer = error.as_database_error();
    match answer.and_then(|answer| answer.code()?.parse().ok()) {
        Some(code) => fate_of_answer(code),
        None => sql::fate_without_answer(error),
    }
}

/// As above, for a statement that writes nothing: whatever went wrong, nothing is unknown. `SQLITE_IOERR` is about a
/// file here, not about a server that may be down.
fn fate_of_read(error: &sqlx::Error) -> Fate {
    let answer = error.as_database_error();
    let code: Option<u32> = answer.and_then(|answer| answer.code()?.parse().ok());
    match code {
        Some(IOERR_SHORT_READ) => Fate::Refused(
            "a file of the database is shorter than it has to be: it was cut off, or overwritten while it was in use. \
             Stop every process that uses it, restore the database, without files that end in -wal and -shm unless they \
             are of the same backup, then start them again",
        ),
        Some(code) if code & 0xff == IOERR => Fate::Refused(
            "check the disk and its file system: see SQLite's message and the system's log",
        ),
        _ => fate(error),
    }
}

/// Result codes of SQLite.
const IOERR: u32 = 10;
const IOERR_SHORT_READ: u32 = 522;

/// What SQLite's answer says about a statement, by its result codes.
fn fate_of_answer(code: u32) -> Fate {
    // The lower byte is the kind, the rest the reason.
    match code & 0xff {
        // SQLITE_BUSY, SQLITE_LOCKED, SQLITE_NOMEM
        5..=7 => Fate::Busy,
        // SQLITE_PERM, SQLITE_READONLY, SQLITE_CANTOPEN, SQLITE_AUTH
        3 | 8 | 14 | 23 => Fate::Refused(
            "create the folder, and let this user write to it, to the database file, and to the files \
             next to it that end in -wal and -shm",
        ),
        // SQLITE_FULL
        13 => Fate::Refused("free some space on the disk"),
        // SQLITE_CORRUPT, SQLITE_NOTADB
        11 | 26 => Fate::Damaged,
        // SQLITE_ERROR, SQLITE_SCHEMA, SQLITE_CONSTRAINT, SQLITE_MISMATCH
        1 | 17 | 19 | 20 => {
            Fate::Refused("see SQLite's message; does this table belong to Tenure?")
        }
        // SQLITE_IOERR and whatever else: the frames may be in the log.
        _ => Fate::Lost,
    }
}

/// Creates the file for this user alone, if it is missing: SQLite would follow the umask. SQLite gives the files beside
/// it the same mode. A file that others could have changed is refused.
fn make_private(path: &Path) -> Result<(), Error> {
    match private::create_file(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        // SQLite's own error is clearer.
        Err(_) => return Ok(()),
    }
    private::check(&format!("opening sqlite:{}", path.display()), path)
}

/// Refuses a write-ahead log whose database is gone: it may have been moved away for a moment, while the log has the
/// last commits. SQLite would take the log for a leftover and empty it. Checked before a file is created. An empty
/// database beside a log that is not empty counts as gone too.
fn refuse_log_without_database(doing: &str, path: &Path) -> Result<(), Error> {
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    // SQLite keeps the log beside the file that links lead to. If they lead to nothing, there is no log.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut log = target.clone().into_os_string();
    log.push("-wal");
    if bytes(&target) > 0 || bytes(Path::new(&log)) == 0 {
        return Ok(());
    }
    let log = Path::new(&log).display();
    let hint = format!(
        "put the database back beside {log}; to begin with an empty one, move that file away first"
    );
    Err(Error::refused(
        doing,
        hint,
        "its write-ahead log is there and the database is not",
    ))
}

/// Refuses a file whose folder is on a network file system. If the folder cannot be checked, SQLite reports the error.
fn refuse_network(path: &Path) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(path);
    match network_file_system(folder) {
        None => Ok(()),
        Some(name) => Err(Error::refused(
            format!("opening sqlite:{}", path.display()),
            "put the database on a local disk, or use a server such as PostgreSQL",
            format!("the folder is on {name}, where SQLite's write-ahead log is not safe"),
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

/// By the numbers of `statfs(2)`. FUSE is not among them: most FUSE mounts are local.
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

    #[test]
    fn a_note_of_another_version_counts_for_nothing() {
        let reading = Reading {
            boot: 0xabc,
            nanoseconds: 7,
        };
        let text = write_written(reading, 5);
        assert_eq!(read_written(&text, 5), Some(reading));
        for wrong in [
            "",
            "5",
            "5 0",
            "5 x 7",
            "5 0 7 1",
            &write_written(reading, 6),
        ] {
            assert_eq!(read_written(wrong, 5), None, "{wrong:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_file_systems_of_this_host_are_told_apart() {
        // No network file system can be mounted in a test. One that every Linux has shows that the number is read at
        // all.
        assert_eq!(rustix::fs::statfs("/proc").unwrap().f_type, 0x9fa0);
        assert_eq!(network_file_system(Path::new("/proc")), None);
        assert_eq!(network_file_system(Path::new("/no/such/folder")), None);
    }
}
