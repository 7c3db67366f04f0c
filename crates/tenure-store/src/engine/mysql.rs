//! Objects as rows of a MySQL or MariaDB table.
//!
//! # What is guaranteed
//!
//! The whole contract, on one server with `InnoDB`, or on the primary of a replicated one. A server that is
//! read-only is refused: it is a replica, and its reads are behind. A proxy that sends reads to replicas
//! breaks the contract and cannot be recognised from here.
//!
//! A change is one statement in its own transaction, and the server's answer decides: it counts one row, or none, which
//! is a conflict. The count is the same whether the server counts rows that match or rows that change, since every
//! write changes the version. If the answer does not come, or comes from a server that is being stopped, the write is
//! unknown.
//!
//! How durable a write is depends on the server's setting `innodb_flush_log_at_trx_commit`. It is 1 unless someone
//! changed it; if it is not 1, opening the store logs a warning.
//!
//! There are no hints: callers poll.

use bytes::Bytes;
use sqlx::mysql::{
    MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow, MySqlSslMode,
};
use sqlx::{ConnectOptions, Row};
use url::Url;

use super::sql::{self, Dial, Fate, Found, LISTED_MAX, Pool, Range, Rows, answered};
use crate::{Capabilities, Description, Error, Key};

/// Enough to keep a node busy; a server allows 151 by default, for all nodes together.
const CONNECTIONS_MAX: usize = 8;

/// The most bytes that a write takes on the wire besides its value.
const PACKET_BYTES_BESIDES: u64 = 2048;

/// sqlx's own parameters, without those that would change how the statements below are read.
const PARAMETERS: &[&str] = &[
    "sslmode", "ssl-mode", "sslca", "ssl-ca", "sslcert", "ssl-cert", "sslkey", "ssl-key", "socket",
];

/// A row that does not fit must be an error, not truncated. Lock waits end before the client stops waiting, so that a
/// statement is not applied long after its writer left. The isolation level is set because a server may be configured
/// to show readers what is not committed.
///
/// Waiting for a locked table ends soon, and every statement has a time limit at the server. MySQL and MariaDB have
/// different names for that limit, and each reads the other's as a comment.
const SESSION: &str = "SET NAMES utf8mb4, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     /*M!100102 max_statement_time = 8, */ /*!50708 max_execution_time = 8000, */ \
     innodb_lock_wait_timeout = 2, lock_wait_timeout = 2, autocommit = 1; \
     SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";

/// Cast, since the types differ between servers.
const LOOK: &str = "SELECT CAST(@@max_allowed_packet AS CHAR), CAST(@@global.read_only AS CHAR), \
     CAST(@@innodb_flush_log_at_trx_commit AS CHAR), \
     (SELECT CAST(COUNT(*) AS CHAR) FROM information_schema.tables \
      WHERE table_schema = DATABASE() AND table_name = 'tenure_objects'), \
     (SELECT CAST(COUNT(*) AS CHAR) FROM information_schema.columns \
      WHERE table_schema = DATABASE() AND table_name = 'tenure_daemons' AND column_name = 'failures')";

/// `ascii_bin` is byte order. The key has 700 bytes, which every `InnoDB` row format can index.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS tenure_objects (\
     `key` VARCHAR(700) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY, \
     version BIGINT NOT NULL, modified_at DATETIME(6) NOT NULL, value LONGBLOB NOT NULL\
     ) ENGINE = InnoDB";

const VIEWS: &str = include_str!("views/mysql.sql");

/// The age is only for display: the clock may have been set since the row was written, and may have been another
/// server's then. In UTC, which has no daylight saving time.
const GET: &str = "SELECT version, \
     TIMESTAMPDIFF(MICROSECOND, modified_at, UTC_TIMESTAMP(6)), \
     CASE WHEN version <> ? THEN value END FROM tenure_objects WHERE `key` = ?";

const INSERT: &str = "INSERT INTO tenure_objects (value, version, `key`, modified_at) \
     VALUES (?, ?, ?, UTC_TIMESTAMP(6))";

const UPDATE: &str = "UPDATE tenure_objects SET value = ?, version = ?, \
     modified_at = UTC_TIMESTAMP(6) WHERE `key` = ? AND version = ?";

const DELETE: &str = "DELETE FROM tenure_objects WHERE `key` = ?";

const LIST: &str = "SELECT `key`, version FROM tenure_objects WHERE `key` > ? AND `key` < ? \
     ORDER BY `key` LIMIT ?";

/// A store in a MySQL or MariaDB database.
#[derive(Debug)]
pub struct MySql {
    pool: Pool<Session>,
    location: String,
    packet_bytes_max: u64,
}

/// Connects, and sets up each connection with [`SESSION`].
struct Session(MySqlConnectOptions);

impl Dial for Session {
    type Connection = MySqlConnection;

    async fn dial(&self) -> Result<MySqlConnection, sqlx::Error> {
        let mut connection = self.0.connect().await?;
        sqlx::raw_sql(SESSION).execute(&mut connection).await?;
        Ok(connection)
    }
}

type Query = sqlx::query::Query<'static, sqlx::MySql, sqlx::mysql::MySqlArguments>;

impl MySql {
    /// Connects, and creates the table if it is missing; and the views `tenure_leaders`, `tenure_nodes` and
    /// `tenure_daemons`, if it may. `?ssl-mode=`, `?ssl-ca=` and so on are as in MySQL's own programs, but on another
    /// host `REQUIRED` is the default.
    pub async fn open(url: &Url) -> Result<Self, Error> {
        Self::open_or_make(url, true).await
    }

    /// As [`MySql::open`], but creates nothing. Refused if there is no table.
    pub async fn open_existing(url: &Url) -> Result<Self, Error> {
        Self::open_or_make(url, false).await
    }

    async fn open_or_make(url: &Url, makes: bool) -> Result<Self, Error> {
        let options = parse(url)?;
        let location = location(&options);
        let doing = format!("opening {location}");
        let pool = Pool::of_server(Session(options), CONNECTIONS_MAX);
        let packet_bytes_max = prepare_table(&pool, &doing, makes)
            .await
            .map_err(|error| read_error(&doing, error))??;
        pool.close_idle();
        Ok(Self {
            pool,
            location,
            packet_bytes_max,
        })
    }

    async fn read_object(&self, query: Query) -> Result<Option<Found>, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        // All rows, though there is at most one: fetching only the first leaves the end of the answer
        // to the next user of the connection.
        let rows = answered(query.fetch_all(&mut *connection)).await?;
        let found = rows.first().map(decode_object).transpose()?;
        connection.finish(match &found {
            Some(Found(Some(object))) => object.value.len(),
            _ => 0,
        });
        Ok(found)
    }

    async fn read_entries(&self, query: Query) -> Result<Vec<(String, i64)>, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let rows = answered(query.fetch_all(&mut *connection)).await?;
        connection.finish(0);
        rows.iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect()
    }

    /// Returns how many objects were changed. Every failure between sending the statement and getting its answer leaves
    /// open whether the statement was applied, unless the server says so.
    async fn change(&self, key: &Key, query: Query, value_bytes: usize) -> Result<u64, Error> {
        let doing = format!("writing {key}");
        if value_bytes as u64 + PACKET_BYTES_BESIDES > self.packet_bytes_max {
            // Refused here, because the server would close the connection half way, which looks like a lost answer.
            return Err(Error::refused(
                doing,
                "raise max_allowed_packet on the server to at least 16 MiB",
                format!("max_allowed_packet is {}", self.packet_bytes_max),
            ));
        }
        let acquired = self.pool.acquire().await;
        let mut connection = acquired.map_err(|error| read_error(&doing, error))?;
        let changed = match answered(query.execute(&mut *connection)).await {
            Ok(done) => done.rows_affected(),
            Err(error) if number(&error) == Some(DUPLICATE) => 0,
            Err(error) => return Err(sql::write_error(key, fate(&error), error)),
        };
        connection.finish(value_bytes);
        Ok(changed)
    }
}

impl Rows for MySql {
    fn description(&self) -> Description {
        Description {
            engine: "mysql",
            location: self.location.clone(),
            capabilities: Capabilities {
                age: false,
                hints: false,
                durable: true,
            },
        }
    }

    async fn find(&self, key: &Key, known: i64) -> Result<Option<Found>, Error> {
        let query = sqlx::query(GET).bind(known).bind(key.to_string());
        let found = self.read_object(query).await;
        found.map_err(|error| read_error(&format!("reading {key}"), error))
    }

    async fn write(
        &self,
        key: &Key,
        value: Bytes,
        version: i64,
        expected: Option<i64>,
    ) -> Result<u64, Error> {
        let statement = expected.map_or(INSERT, |_| UPDATE);
        let bytes = value.len();
        let mut query = sqlx::query(statement)
            .bind(Vec::from(value))
            .bind(version)
            .bind(key.to_string());
        if let Some(expected) = expected {
            query = query.bind(expected);
        }
        self.change(key, query, bytes).await
    }

    async fn remove(&self, key: &Key) -> Result<(), Error> {
        let query = sqlx::query(DELETE).bind(key.to_string());
        self.change(key, query, 0).await.map(drop)
    }

    async fn list_range(
        &self,
        doing: String,
        range: Range<'_>,
    ) -> Result<Vec<(String, i64)>, Error> {
        let query = sqlx::query(LIST)
            .bind(range.above.to_owned())
            .bind(range.below)
            .bind(LISTED_MAX as u64);
        let entries = self.read_entries(query).await;
        entries.map_err(|error| read_error(&doing, error))
    }
}

fn decode_object(row: &MySqlRow) -> Result<Found, sqlx::Error> {
    let value: Option<Vec<u8>> = row.try_get(2)?;
    let (version, age) = (row.try_get(0)?, row.try_get(1)?);
    Ok(Found(
        value.map(|value| sql::to_object(value, version, age)),
    ))
}

/// Creates the table if it is missing, and returns the largest packet that the server accepts. Looks first, since
/// `CREATE TABLE IF NOT EXISTS` needs the right to create even if the table exists.
async fn prepare_table(
    pool: &Pool<Session>,
    doing: &str,
    makes: bool,
) -> Result<Result<u64, Error>, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let row = answered(sqlx::raw_sql(LOOK).fetch_one(&mut *connection)).await?;
    let text = |index: usize| row.try_get::<String, _>(index);
    if !["0", "OFF"].contains(&&*text(1)?) {
        return Ok(Err(Error::refused(
            doing,
            "connect to the primary",
            "the server is read-only, so it is a replica, and its reads lag behind",
        )));
    }
    if text(2)? != "1" {
        tracing::warn!("innodb_flush_log_at_trx_commit is not 1: a crash can lose writes");
    }
    if text(3)? == "0" {
        if !makes {
            connection.finish(0);
            return Ok(Err(Error::no_store(doing)));
        }
        answered(sqlx::raw_sql(CREATE).execute(&mut *connection)).await?;
    }
    // A value that cannot be parsed counts as unlimited.
    let packet_bytes_max = text(0)?.parse().unwrap_or(u64::MAX);
    let has_views = text(4)? != "0";
    connection.finish(0);
    if makes
        && !has_views
        && let Err(error) = prepare_views(pool).await
    {
        sql::without_views(&error);
    }
    Ok(Ok(packet_bytes_max))
}

/// Makes the views. They are for people: everything else works without them.
async fn prepare_views(pool: &Pool<Session>) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    answered(sqlx::raw_sql(VIEWS).execute(&mut *connection)).await?;
    connection.finish(0);
    Ok(())
}

/// How to connect to the database that a URL names, by the rules of [`MySql::open`], and where it is, without user and
/// password: for tables beside the store's.
pub fn connect_options(url: &str) -> Result<(MySqlConnectOptions, String), Error> {
    let options = parse(&sql::parse_url(url)?)?;
    let location = location(&options);
    Ok((options, location))
}

pub(crate) fn parse(url: &Url) -> Result<MySqlConnectOptions, Error> {
    sql::check_parameters(url, PARAMETERS)?;
    let options = MySqlConnectOptions::from_url(url).map_err(|_error| {
        // The error may quote a part of the URL.
        Error::invalid(
            "a parameter in the store URL has a value that MySQL does not know",
            "check ssl-mode",
        )
    })?;
    if options.get_database().is_none() {
        return Err(Error::invalid(
            "the store URL does not name a database",
            "use mysql://USER@HOST/DATABASE",
        ));
    }
    let is_socket = options.get_socket().is_some();
    let options = if sql::requires_tls(url, options.get_host(), is_socket) {
        options.ssl_mode(MySqlSslMode::Required)
    } else {
        options
    };
    // What a session needs is set by SESSION, in one round trip.
    Ok(options
        .disable_statement_logging()
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false))
}

fn location(options: &MySqlConnectOptions) -> String {
    let database = options.get_database().unwrap_or_default();
    match options.get_socket() {
        Some(socket) => format!("mysql://{}/{database}", socket.display()),
        None => format!(
            "mysql://{}:{}/{database}",
            options.get_host(),
            options.get_port()
        ),
    }
}

fn read_error(doing: &str, error: sqlx::Error) -> Error {
    sql::read_error(doing, fate(&error), error)
}

/// The row already exists.
const DUPLICATE: u16 = 1062;

fn number(error: &sqlx::Error) -> Option<u16> {
    let answer = error.as_database_error()?;
    Some(answer.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

fn fate(error: &sqlx::Error) -> Fate {
    let state = error.as_database_error().and_then(|answer| answer.code());
    match number(error) {
        Some(number) => fate_of_answer(number, &state.unwrap_or_default()),
        None => sql::fate_without_answer(error),
    }
}

/// What the server's answer says about a statement, by the numbers of MySQL's error reference; MariaDB
/// shares them.
fn fate_of_answer(number: u16, state: &str) -> Fate {
    match number {
        1045 | 1698 => Fate::Refused("check the user and password in the URL"),
        1049 => Fate::Refused("create the database, or name another one in the URL"),
        1044 | 1142 | 1143 | 1227 | 1370 => Fate::Refused(
            "grant the user SELECT, INSERT, UPDATE, DELETE on the table tenure_objects; to create \
             the table, also CREATE on the database",
        ),
        1021 | 1114 => Fate::Refused("free some space on the server's disk"),
        1290 | 1792 | 1836 => Fate::Refused("connect to the primary, with a user who may write"),
        1153 => Fate::Refused("raise max_allowed_packet on the server to at least 16 MiB"),
        // Lock wait timeout, deadlock, too many connections, a limit of the user, statement timeout, and
        // a prepared statement that a proxy or a change of the table made void.
        1205 | 1213 | 1040 | 1203 | 1226 | 1969 | 3024 | 1243 | 1615 => Fate::Busy,
        // Syntax and rights: found before anything is done.
        _ if state.starts_with("42") => Fate::Refused("see the server's message, and its log"),
        // A server that stops, a connection that was killed, a commit that failed in the log.
        _ => Fate::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_required_of_other_hosts_unless_the_url_says_otherwise() {
        let mode =
            |url: &str| format!("{:?}", parse(&url.parse().unwrap()).unwrap().get_ssl_mode());
        assert_eq!(mode("mysql://db.example/data"), "Required");
        assert_eq!(mode("mysql://u:p@192.0.2.7:3307/data"), "Required");
        assert_eq!(mode("mysql://LOCALHOST/data"), "Preferred");
        assert_eq!(mode("mysql://127.0.0.1/data"), "Preferred");
        assert_eq!(mode("mysql://[::1]/data"), "Preferred");
        assert_eq!(mode("mysql://db/data?socket=/run/mysqld.sock"), "Preferred");
        assert_eq!(
            mode("mysql://db.example/data?ssl-mode=DISABLED"),
            "Disabled"
        );
        assert_eq!(
            mode("mysql://db.example/data?sslmode=PREFERRED"),
            "Preferred"
        );
    }

    #[test]
    fn only_answers_that_rule_the_write_out_say_so() {
        // Shutdown, killed, interrupted, error during commit, gone away, lost during query.
        for number in [1053, 1927, 1317, 1180, 2006, 2013, 1026] {
            assert_eq!(fate_of_answer(number, "HY000"), Fate::Lost, "{number}");
        }
        for number in [1205, 1213] {
            assert_eq!(fate_of_answer(number, "40001"), Fate::Busy, "{number}");
        }
        for number in [1044, 1045, 1049, 1142, 1114, 1153, 1290, 1146] {
            let fate = fate_of_answer(number, "42S02");
            assert!(matches!(fate, Fate::Refused(_)), "{number}");
        }
    }
}
