//! Objects as rows of a PostgreSQL table.
//!
//! # What is guaranteed
//!
//! The whole contract, on the primary of PostgreSQL 13 or later. A standby is refused: its reads are behind. A write
//! that is done has been flushed to the write-ahead log, even in a database where `synchronous_commit` is off.
//!
//! A change is one statement, and the server's answer decides: it counts one row, or none, which is a conflict. If the
//! answer does not come, the write is unknown: a server that is restarted while it commits has often committed (36 of
//! 97 times in a test). Lock waits end on the server before they end here, so that a statement is not applied long
//! after its writer left. Reads have a time limit at the server too, so a locked table uses no more connections than
//! the pool has.
//!
//! # Poolers
//!
//! The engine works behind a pooler that lends out its server connections per transaction, such as PgBouncer, without
//! any setting. There, two statements of one client may be carried out by two server processes, and in between other
//! clients use them. The state of a session is therefore useless, and prepared statements are dangerous: sqlx names
//! them `sqlx_s_1`, `sqlx_s_2` and so on for every client, and even for unnamed ones it sends the statement and its
//! values in two steps, so that the values of one client could be bound to the statement of another. So every operation
//! is one message of the simple query protocol, with its values in the text (`statement.rs` keeps that safe), and there
//! is no session setting, advisory lock or temporary table.
//!
//! # Hints
//!
//! A change is announced with `pg_notify` once it is committed, by a small separate transaction that nobody waits for;
//! changes made meanwhile share the next one. So commits do not wait for each other, as PostgreSQL's own transactions
//! with an announcement do (`announcer.rs` has more). An announcement uses a connection of the pool, never the last
//! one, and is lost if the server, the connection or the process goes away just then: callers poll anyway.
//!
//! The store listens on one more connection, opened by the first [`Store::watch`](crate::Store::watch). A watch needs a
//! prefix of two segments. Behind a transaction pooler `LISTEN` cannot work, and the store detects that when it is
//! opened, by the server processes that answer. Then there are no hints and callers poll; changes are still announced
//! to those who are connected directly. With `?hints=off` in the URL the store neither announces nor listens.

use bytes::Bytes;
use sqlx::postgres::{
    PgConnectOptions, PgConnection, PgDatabaseError, PgRow, PgSeverity, PgSslMode,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};
use url::Url;

use self::announcer::Announcer;
use self::hints::Hints;
use self::statement::Table;
use super::sql::{self, Dial, Fate, Found, Pool, Range, Rows, answered};
use crate::{Capabilities, Description, Error, Key, Prefix, Watch};

mod announcer;
mod hints;
mod statement;

/// Enough to keep a node busy; a server allows 100 by default, for all nodes together.
const CONNECTIONS_MAX: usize = 8;

/// How often to look for the table while others create it too.
const LOOKS_MAX: usize = 10;

/// sqlx's own parameters, and `hints`.
const PARAMETERS: &[&str] = &[
    "hints",
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// A store in a PostgreSQL database.
#[derive(Debug)]
pub struct Postgres {
    pool: Pool<PgConnectOptions>,
    table: Table,
    /// Present if changes are announced.
    announcer: Option<Announcer>,
    hints: Hints,
    location: String,
}

impl Dial for PgConnectOptions {
    type Connection = PgConnection;

    fn dial(&self) -> impl Future<Output = Result<PgConnection, sqlx::Error>> + Send {
        self.connect()
    }
}

impl Postgres {
    /// Connects, and creates the table if it is missing; and the views `tenure_leaders`, `tenure_nodes` and
    /// `tenure_daemons`, if it may.
    ///
    /// What the URL leaves out is taken from the `PG*` variables and the password file, as in all PostgreSQL programs.
    /// `?sslmode=`, `?sslrootcert=` and so on are as in libpq, but on another host `require` is the default, unless
    /// `PGSSLMODE` says otherwise; `?hints=off` neither announces changes nor listens for them.
    pub async fn open(url: &Url) -> Result<Self, Error> {
        Self::open_or_make(url, true).await
    }

    /// As [`Postgres::open`], but creates nothing. Refused if there is no table.
    pub async fn open_existing(url: &Url) -> Result<Self, Error> {
        Self::open_or_make(url, false).await
    }

    async fn open_or_make(url: &Url, makes: bool) -> Result<Self, Error> {
        let (options, hints_wanted) = parse(url)?;
        let mut location = location(&options);
        let doing = format!("opening {location}");
        let pool = Pool::of_server(options.clone(), CONNECTIONS_MAX);
        let database = if makes {
            prepare_table(&pool, &doing).await?
        } else {
            let found = look(&pool, &doing).await?;
            found.ok_or_else(|| Error::no_store(doing.clone()))?
        };
        if options.get_database().is_none() {
            location.push_str(&database.name);
        }
        if makes && !database.has_views {
            prepare_views(&pool, &doing, &database).await;
        }
        let hints = hints_wanted && !is_pooled(&pool, &doing).await?;
        pool.close_idle();
        Ok(Self {
            table: Table::new(&database.schema, &database.synchronous_commit),
            announcer: hints_wanted.then(|| Announcer::new(pool.clone())),
            hints: Hints::new(options, hints),
            pool,
            location,
        })
    }

    async fn read(&self, doing: &str, statement: String) -> Result<Vec<PgRow>, Error> {
        read(&self.pool, doing, statement).await
    }

    /// Returns how many objects were changed. Every failure between sending the statement and getting its answer leaves
    /// open whether the statement was applied, unless the server says so.
    async fn change(&self, key: &Key, statement: String) -> Result<u64, Error> {
        let acquired = self.pool.acquire().await;
        let mut connection =
            acquired.map_err(|error| read_error(&format!("writing {key}"), error))?;
        let bytes = statement.len();
        let done = answered(sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection))
            .await
            .map_err(|error| sql::write_error(key, fate(&error), error))?;
        connection.finish(bytes);
        let changed = done.rows_affected();
        if changed > 0 {
            self.announce(key).await;
        }
        Ok(changed)
    }

    /// Announces that the object has changed, if anybody could watch it. Does not wait.
    async fn announce(&self, key: &Key) {
        if let Some(announcer) = &self.announcer
            && let Some(channel) = self.table.channel_of(key)
        {
            announcer.announce((channel, key.clone())).await;
        }
    }
}

impl Rows for Postgres {
    fn description(&self) -> Description {
        Description {
            engine: "postgres",
            location: self.location.clone(),
            capabilities: Capabilities {
                age: false,
                hints: self.hints.are_offered(),
                durable: true,
            },
        }
    }

    async fn find(&self, key: &Key, known: i64) -> Result<Option<Found>, Error> {
        let doing = format!("reading {key}");
        let rows = self.read(&doing, self.table.get(key, known)).await?;
        let row = rows.first().map(decode_object).transpose();
        row.map_err(|error| read_error(&doing, error))
    }

    async fn write(
        &self,
        key: &Key,
        value: Bytes,
        version: i64,
        expected: Option<i64>,
    ) -> Result<u64, Error> {
        let statement = match expected {
            None => self.table.insert(key, &value, version),
            Some(expected) => self.table.update(key, &value, expected, version),
        };
        self.change(key, statement).await
    }

    async fn remove(&self, key: &Key) -> Result<(), Error> {
        self.change(key, self.table.delete(key)).await.map(drop)
    }

    async fn list_range(
        &self,
        doing: String,
        range: Range<'_>,
    ) -> Result<Vec<(String, i64)>, Error> {
        let rows = self.read(&doing, self.table.list(&range)).await?;
        let entries: Result<_, sqlx::Error> = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect();
        entries.map_err(|error| read_error(&doing, error))
    }

    fn hints(&self, prefix: &Prefix) -> Option<Watch> {
        self.hints.watch(self.table.channel(prefix)?, prefix)
    }
}

fn decode_object(row: &PgRow) -> Result<Found, sqlx::Error> {
    let digits: Option<&str> = row.try_get(2)?;
    let Some(digits) = digits else {
        return Ok(Found(None));
    };
    let value = statement::read_bytes(digits)
        .ok_or_else(|| sqlx::Error::Decode("the value is not in hexadecimal".into()))?;
    let object = sql::to_object(value, row.try_get(0)?, row.try_get(1)?);
    Ok(Found(Some(object)))
}

async fn read(
    pool: &Pool<PgConnectOptions>,
    doing: &str,
    statement: String,
) -> Result<Vec<PgRow>, Error> {
    let result = async {
        let mut connection = pool.acquire().await?;
        let statement = sqlx::raw_sql(AssertSqlSafe(statement::bounded(&statement)));
        let rows = answered(statement.fetch_all(&mut *connection)).await?;
        // The only column that can be large is the last of a single row.
        let bytes = match &*rows {
            [row] => row
                .try_get_raw(row.len() - 1)?
                .as_bytes()
                .map_or(0, <[u8]>::len),
            _ => 0,
        };
        connection.finish(bytes);
        Ok(rows)
    };
    result.await.map_err(|error| read_error(doing, error))
}

fn read_error(doing: &str, error: sqlx::Error) -> Error {
    sql::read_error(doing, fate(&error), error)
}

/// What the database reports about itself.
struct Database {
    name: String,
    schema: String,
    synchronous_commit: String,
    has_views: bool,
}

/// Finds the table, or creates it. Of several processes that create it at once, PostgreSQL refuses some in spite of
/// `IF NOT EXISTS`. Whatever the error was, only the presence of the table counts.
async fn prepare_table(pool: &Pool<PgConnectOptions>, doing: &str) -> Result<Database, Error> {
    let mut refused = None;
    for _ in 0..LOOKS_MAX {
        if let Some(database) = look(pool, doing).await? {
            return Ok(database);
        }
        match read(pool, doing, statement::CREATE.to_owned()).await {
            Ok(_) => {}
            Err(error @ Error::Unavailable { .. }) => return Err(error),
            Err(error) if refused.is_none() => refused = Some(error),
            // Refused twice and still not there: nobody else is creating it.
            Err(error) => return Err(error),
        }
    }
    Err(refused.unwrap_or_else(|| {
        Error::unavailable(doing, "the table disappears as soon as it is created")
    }))
}

async fn look(pool: &Pool<PgConnectOptions>, doing: &str) -> Result<Option<Database>, Error> {
    let rows = read(pool, doing, statement::LOOK.to_owned()).await?;
    let row = rows
        .first()
        .ok_or_else(|| read_error(doing, sqlx::Error::RowNotFound))?;
    let decoded = || -> Result<_, sqlx::Error> {
        Ok((
            row.try_get::<String, _>(0)?,
            row.try_get::<Option<String>, _>(1)?,
            row.try_get::<bool, _>(2)?,
            row.try_get::<String, _>(3)?,
            row.try_get::<String, _>(4)?,
            row.try_get::<bool, _>(5)?,
        ))
    };
    let (name, schema, standby, synchronous_commit, fsync, has_views) =
        decoded().map_err(|error| read_error(doing, error))?;
    if standby {
        return Err(Error::refused(
            doing,
            "connect to the primary",
            "the server is a standby, so its reads lag behind",
        ));
    }
    if fsync == "off" {
        tracing::warn!(
            database = name,
            "fsync is off: a crash of the host can lose writes"
        );
    }
    Ok(schema.map(|schema| Database {
        name,
        schema,
        synchronous_commit,
        has_views,
    }))
}

/// Makes the views, unless others did so meanwhile. They are for people: everything else works without them.
async fn prepare_views(pool: &Pool<PgConnectOptions>, doing: &str, database: &Database) {
    let made = read(pool, doing, statement::views(&database.schema)).await;
    if let Err(error) = made
        && !matches!(look(pool, doing).await, Ok(Some(now)) if now.has_views)
    {
        sql::without_views(&error);
    }
}

/// Whether something between here and the server lends out its connections per transaction.
///
/// A direct connection is served by one process from start to end, and that process started with the connection. A
/// pooler serves a new connection with a process that it already has, or with one that it starts for the first
/// statement. This check is fooled only if the pooler starts a process for somebody else just while we connect, lends
/// us that one, and goes on lending us the same ones. The listener checks again from time to time.
async fn is_pooled(pool: &Pool<PgConnectOptions>, doing: &str) -> Result<bool, Error> {
    let asked = async {
        let mut old = pool.acquire().await?;
        let before = Backend::of(&mut *old).await?;
        // The pool has no other idle connection: so far only one statement was sent at a time.
        let mut new = pool.acquire().await?;
        let after = Backend::of(&mut *old).await?;
        let served = Backend::of(&mut *new).await?;
        let mut direct = before.process == after.process
            && before.process != served.process
            && (before.now..=after.now).contains(&served.began);
        for _ in 0..3 {
            direct &= Backend::of(&mut *old).await?.process == before.process
                && Backend::of(&mut *new).await?.process == served.process;
        }
        // The second one is not needed.
        let new = new.close_now();
        old.finish(0);
        new.await;
        Ok(!direct)
    };
    asked.await.map_err(|error| read_error(doing, error))
}

/// The process that served a statement. Times are microseconds of the server's clock.
struct Backend {
    process: i32,
    now: i64,
    began: i64,
}

impl Backend {
    async fn of<'c>(
        connection: impl sqlx::Executor<'c, Database = sqlx::Postgres>,
    ) -> Result<Self, sqlx::Error> {
        let row = answered(sqlx::raw_sql(statement::BACKEND).fetch_one(connection)).await?;
        Ok(Self {
            process: row.try_get(0)?,
            now: row.try_get(1)?,
            began: row.try_get(2)?,
        })
    }
}

/// How to connect to the database that a URL names, by the rules of [`Postgres::open`], and where it is, without user and
/// password: for tables beside the store's.
pub fn connect_options(url: &str) -> Result<(PgConnectOptions, String), Error> {
    let url = sql::parse_url(url)?;
    let (options, _) = parse(&url)?;
    let location = location(&options);
    Ok((options, location))
}

/// The options, and whether hints are wanted.
pub(crate) fn parse(url: &Url) -> Result<(PgConnectOptions, bool), Error> {
    sql::check_parameters(url, PARAMETERS)?;
    let mut rest = url.clone();
    let mut hints_wanted = true;
    rest.query_pairs_mut().clear();
    for (name, value) in url.query_pairs() {
        match (&*name, &*value) {
            ("hints", "on") => hints_wanted = true,
            ("hints", "off") => hints_wanted = false,
            ("hints", _) => {
                let what = "the parameter hints in the store URL is not on or off";
                return Err(Error::invalid(what, "use hints=on or hints=off"));
            }
            (name, value) => drop(rest.query_pairs_mut().append_pair(name, value)),
        }
    }
    let options = PgConnectOptions::from_url(&rest).map_err(|_error| {
        // The error may quote a part of the URL.
        Error::invalid(
            "a parameter in the store URL has a value that PostgreSQL does not know",
            "check sslmode and port",
        )
    })?;
    // Statements carry the values of objects, which must not get into a log. PgBouncer refuses a connection that asks
    // for extra_float_digits, and there are no floats here.
    let options = options.disable_statement_logging().extra_float_digits(None);
    let is_said = std::env::var("PGSSLMODE").is_ok_and(|mode| !mode.is_empty());
    let is_socket = options.get_socket().is_some();
    let options = if !is_said && sql::requires_tls(url, options.get_host(), is_socket) {
        options.ssl_mode(PgSslMode::Require)
    } else {
        options
    };
    let options = match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("tenure"),
    };
    Ok((options, hints_wanted))
}

fn location(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_default();
    let port = options.get_port();
    match options.get_socket() {
        Some(socket) => format!("postgres://{}:{port}/{database}", socket.display()),
        None => format!("postgres://{}:{port}/{database}", options.get_host()),
    }
}

fn fate(error: &sqlx::Error) -> Fate {
    let answer = error
        .as_database_error()
        .and_then(|answer| answer.try_downcast_ref::<PgDatabaseError>());
    match answer {
        Some(answer) => fate_of_answer(answer.code(), answer.severity()),
        None => sql::fate_without_answer(error),
    }
}

/// What PostgreSQL's answer says about a statement, by the codes of its manual's appendix A.
fn fate_of_answer(code: &str, severity: PgSeverity) -> Fate {
    match code {
        "28000" | "28P01" => {
            Fate::Refused("check the user and password in the URL or the PG* variables")
        }
        "3D000" => Fate::Refused("create the database, or name another one in the URL"),
        "3F000" => Fate::Refused("create the schema that the user's search_path names"),
        "42501" => Fate::Refused(
            "grant the user CONNECT on the database and SELECT, INSERT, UPDATE, DELETE on the table \
             tenure_objects; to create the table, also CREATE on its schema",
        ),
        "53100" => Fate::Refused("free some space on the server's disk"),
        "25006" => {
            Fate::Refused("connect to the primary, with a user whose transactions may write")
        }
        // Serialization, deadlock, lock not available, statement timeout, out of memory.
        "40001" | "40P01" | "55P03" | "57014" | "53200" => Fate::Busy,
        // `statement_completion_unknown`: the server itself does not know.
        "40003" => Fate::Lost,
        // The connection broke, the server stops, or something inside it or the pooler did: such an
        // answer can come after the commit.
        code if ["08", "57P", "58", "XX"]
            .iter()
            .any(|class| code.starts_with(class)) =>
        {
            Fate::Lost
        }
        _ => match severity {
            // The session ends. That rolls back what was not committed, and says no more.
            PgSeverity::Fatal | PgSeverity::Panic => Fate::Lost,
            // An error ends the transaction.
            _ => Fate::Refused("see PostgreSQL's message, and its log"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_that_rule_the_write_out_say_so() {
        let error = |code| fate_of_answer(code, PgSeverity::Error);
        // 08P01 is also what PgBouncer says when its connection to the server breaks.
        for code in [
            "57P01", "57P02", "57P03", "40003", "08006", "08P01", "XX000", "58030",
        ] {
            assert_eq!(error(code), Fate::Lost, "{code}");
        }
        assert_eq!(fate_of_answer("25P02", PgSeverity::Fatal), Fate::Lost);
        assert_eq!(fate_of_answer("25P02", PgSeverity::Panic), Fate::Lost);
        for code in ["40001", "40P01", "55P03", "57014"] {
            assert_eq!(error(code), Fate::Busy, "{code}");
        }
        for code in ["42501", "53100", "25006", "42P01", "22001", "54000"] {
            assert!(matches!(error(code), Fate::Refused(_)), "{code}");
        }
        // A refused connection also ends its session, but it is still a refusal.
        for code in ["28P01", "28000", "3D000"] {
            let fate = fate_of_answer(code, PgSeverity::Fatal);
            assert!(matches!(fate, Fate::Refused(_)), "{code}");
        }
    }

    #[test]
    fn tls_is_required_of_other_hosts_unless_the_url_says_otherwise() {
        let mode = |url: &str| {
            let (options, _) = parse(&url.parse().unwrap()).unwrap();
            format!("{:?}", options.get_ssl_mode())
        };
        for url in [
            "postgres://db.example/data",
            "postgres://u:p@192.0.2.7:5433/data?hints=off",
            "postgres://[2001:db8::1]/data",
            "postgres:///data?host=db.example",
        ] {
            assert_eq!(mode(url), "Require", "{url}");
        }
        for url in [
            "postgres://localhost/data",
            "postgres://127.0.0.2/data",
            "postgres://[::1]/data",
            "postgres:///data?host=/run/postgresql",
            "postgres://db.example/data?sslmode=prefer",
        ] {
            assert_eq!(mode(url), "Prefer", "{url}");
        }
        assert_eq!(
            mode("postgres://db.example/data?sslmode=disable"),
            "Disable"
        );
        assert_eq!(
            mode("postgres://db.example/data?ssl-mode=verify-full"),
            "VerifyFull"
        );
    }

    #[test]
    fn a_location_has_neither_user_nor_password() {
        let url = "postgres://user:secret@db.example:5433/data?sslmode=require&user=other";
        let (options, hints_wanted) = parse(&url.parse().unwrap()).unwrap();
        assert_eq!(location(&options), "postgres://db.example:5433/data");
        assert_eq!(options.get_application_name(), Some("tenure"));
        assert!(hints_wanted);
    }
}
