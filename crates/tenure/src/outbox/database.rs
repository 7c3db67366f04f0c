//! The outbox's tables as the relay and the command line use them: one statement or one short transaction each.
//!
//! Nothing here decides anything. In PostgreSQL every change is one statement, so a relay that is paused holds no lock; in
//! MySQL the server ends a transaction that is left open, in SQLite only the end of the process does.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tenure_core::cluster::Generation;

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod shared;
#[cfg(feature = "sqlite")]
mod sqlite;

use super::row::Row;

/// The most bytes of payloads that are read at once, but for one row.
pub(super) const PAGE_BYTES_MAX: i64 = 4 * 1024 * 1024;

/// As many rows as are counted for [`Status`].
pub(super) const COUNTED_MAX: i64 = 100_000;

/// How long a statement may take before the connection counts as lost.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// A database with an outbox, by URL. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    engine: Engine,
    location: String,
}

#[derive(Clone)]
enum Engine {
    #[cfg(feature = "postgres")]
    Postgres(postgres::Tables),
    #[cfg(feature = "mysql")]
    MySql(mysql::Tables),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Tables),
}

/// What went wrong with an outbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL cannot be used. Nothing was done.
    #[error(transparent)]
    Url(#[from] tenure_store::Error),
    /// The database failed. A change may have been made or not.
    #[error("the outbox's database failed")]
    Database(#[from] sqlx::Error),
    /// The database did not answer in time. A change may have been made or not.
    #[error("the outbox's database did not answer within {}s", STATEMENT_TIMEOUT.as_secs())]
    TimedOut,
    /// This relay may not hand rows over. Nothing was changed.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// A later version of Tenure made the tables. Nothing was done; upgrade this process.
    #[error("the outbox's tables have version {found}, and this process knows version 1")]
    Newer {
        /// Their version.
        found: i64,
    },
}

/// Why a relay may not hand rows over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fenced {
    /// Another one has taken over, or a later generation of the daemon has been there.
    #[error("another relay has taken the outbox over: {holder}, generation {generation}")]
    Stale {
        /// Which process.
        holder: String,
        /// Its generation.
        generation: u64,
    },
    /// The outbox belongs to another cluster, or to one whose store was wiped since.
    #[error(
        "the outbox is relayed by {owner}; if that is not so any more, run: tenure outbox release"
    )]
    Foreign {
        /// Namespace and daemon.
        owner: String,
    },
}

/// How an outbox stands. Numbers of rows stop at 100,000.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Rows that wait to be delivered.
    pub waiting: u64,
    /// Those among them whose delivery has failed before.
    pub failing: u64,
    /// Rows that were given up.
    pub dead: u64,
    /// How long the oldest row has waited, in milliseconds, by the database's clock.
    pub oldest_ms: Option<u64>,
    /// The namespace and daemon that hand the rows over, if some ever did.
    pub owner: Option<String>,
    /// The node that took over last.
    pub holder: Option<String>,
    /// Its generation.
    pub generation: u64,
    /// How often the outbox was taken over.
    pub takeover: u64,
}

/// A row that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dead {
    /// Its number.
    pub seq: i64,
    /// Its id.
    pub id: String,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// Its group.
    pub group: Option<String>,
    /// How often it was tried.
    pub attempts: u64,
    /// Why it could not be delivered.
    pub error: String,
    /// How long ago it was given up, in milliseconds, by the database's clock.
    pub age_ms: u64,
}

/// Who wants to take an outbox over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// Namespace and daemon.
    pub(super) owner: String,
    /// The row of terms of the cluster: another one's generations say nothing about this one's.
    pub(super) lineage: String,
    pub(super) generation: Generation,
    /// The node, for people.
    pub(super) holder: String,
}

/// `tenure_outbox_relay`, as it is.
#[derive(Debug, Clone)]
pub(super) struct RelayRow {
    pub(super) version: i64,
    pub(super) owner: Option<String>,
    pub(super) lineage: Option<String>,
    pub(super) generation: i64,
    pub(super) holder: Option<String>,
}

impl RelayRow {
    /// Why `identity` could not take over.
    fn refusal(&self, identity: &Identity) -> Fenced {
        let same = self.owner.as_ref() == Some(&identity.owner)
            && self.lineage.as_ref() == Some(&identity.lineage);
        if same { self.stale() } else { self.foreign() }
    }

    fn stale(&self) -> Fenced {
        Fenced::Stale {
            holder: self.holder.clone().unwrap_or_default(),
            generation: u64::try_from(self.generation).unwrap_or(0),
        }
    }

    fn foreign(&self) -> Fenced {
        let owner = self.owner.clone().unwrap_or_default();
        let lineage = self.lineage.clone().unwrap_or_default();
        Fenced::Foreign {
            owner: format!("{owner} (lineage {lineage})"),
        }
    }
}

/// A row without what it carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Light {
    pub(super) seq: i64,
    pub(super) group: Option<String>,
}

/// What came of a round, to be written down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settlement {
    /// To be deleted.
    pub(super) delivered: Vec<i64>,
    /// To be tried again, and why.
    pub(super) failed: Vec<(i64, String)>,
    /// To be moved to the dead table, and why.
    pub(super) dead: Vec<(i64, String)>,
}

/// Which rows to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// So many behind this number.
    After(i64, usize),
    /// These.
    These(Vec<i64>),
    /// The first of these groups, in the order of each.
    Groups(Vec<String>, usize),
}

/// Which dead rows are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those with these ids.
    Ids(Vec<String>),
    /// Those that were given up longer ago than this, by the database's clock.
    OlderThan(Duration),
}

macro_rules! on {
    ($self:ident, $tables:ident => $call:expr) => {
        match &$self.engine {
            #[cfg(feature = "postgres")]
            Engine::Postgres($tables) => bounded(Box::pin($call)).await,
            #[cfg(feature = "mysql")]
            Engine::MySql($tables) => bounded(Box::pin($call)).await,
            #[cfg(feature = "sqlite")]
            Engine::Sqlite($tables) => bounded(Box::pin($call)).await,
        }
    };
}

/// A server that went away without a word must not hold the relay up for ever.
async fn bounded<T>(work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Error::TimedOut),
    }
}

impl Database {
    /// Checks the URL of a database, such as `postgres://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE` or `sqlite:PATH`.
    /// Connects when it is needed.
    pub fn new(url: &str) -> Result<Self, Error> {
        let (scheme, _rest) = url.split_once(':').unwrap_or_default();
        let (engine, location) = match scheme {
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let (tables, location) = postgres::Tables::new(url)?;
                (Engine::Postgres(tables), location)
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => {
                let (tables, location) = mysql::Tables::new(url)?;
                (Engine::MySql(tables), location)
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let (tables, location) = sqlite::Tables::new(_rest)?;
                (Engine::Sqlite(tables), location)
            }
            // The rest of the URL may hold a password and is not repeated.
            _ => {
                return Err(Error::Url(tenure_store::Error::Invalid {
                    what: format!("this build has no outbox with the scheme {scheme:?}"),
                    hint: "use postgres://HOST/DATABASE, mysql://HOST/DATABASE or sqlite:PATH"
                        .to_owned(),
                }));
            }
        };
        Ok(Self { engine, location })
    }

    /// Where it is, without user and password.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The SQL that makes the tables.
    #[must_use]
    pub fn schema(&self) -> &'static str {
        match &self.engine {
            #[cfg(feature = "postgres")]
            Engine::Postgres(_) => super::SCHEMA_POSTGRES,
            #[cfg(feature = "mysql")]
            Engine::MySql(_) => super::SCHEMA_MYSQL,
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(_) => super::SCHEMA_SQLITE,
        }
    }

    /// Makes the tables, unless they are there.
    pub async fn create(&self) -> Result<(), Error> {
        if on!(self, tables => tables.is_there())? {
            return Ok(());
        }
        match on!(self, tables => tables.create()) {
            // Another has made them meanwhile.
            Err(Error::Database(_)) if on!(self, tables => tables.is_there())? => Ok(()),
            made => made,
        }
    }

    /// How the outbox stands.
    pub async fn status(&self) -> Result<Status, Error> {
        on!(self, tables => tables.status())
    }

    /// The rows that were given up, the oldest first, at most `limit`.
    pub async fn dead(&self, limit: usize) -> Result<Vec<Dead>, Error> {
        on!(self, tables => tables.dead(limit))
    }

    /// Puts dead rows back, with no attempt made: at the end of their groups. Says how many.
    pub async fn retry(&self, which: &Which) -> Result<u64, Error> {
        on!(self, tables => tables.retry(which))
    }

    /// Deletes dead rows. Says how many.
    pub async fn purge(&self, which: &Which) -> Result<u64, Error> {
        on!(self, tables => tables.purge(which))
    }

    /// Deletes what is known of claims that were seen longer ago than this, by the database's clock. Says how many. Choose more than
    /// a job can take with all its attempts.
    pub async fn purge_claims(&self, older_than: Duration) -> Result<u64, Error> {
        on!(self, tables => tables.purge_claims(older_than))
    }

    /// Lets the relay of another cluster take the outbox over.
    pub async fn release(&self) -> Result<(), Error> {
        on!(self, tables => tables.release())
    }

    /// Takes the outbox over. From then on every other relay is fenced off.
    pub(super) async fn take_over(&self, identity: &Identity) -> Result<i64, Error> {
        if let Some(takeover) = on!(self, tables => tables.take_over(identity))? {
            return Ok(takeover);
        }
        let row = on!(self, tables => tables.relay())?;
        Err(row.refusal(identity).into())
    }

    pub(super) async fn check_version(&self) -> Result<(), Error> {
        let row = on!(self, tables => tables.relay())?;
        match row.version {
            1 => Ok(()),
            found => Err(Error::Newer { found }),
        }
    }

    pub(super) async fn rows(&self, wanted: &Wanted) -> Result<Vec<Row>, Error> {
        on!(self, tables => tables.rows(wanted))
    }

    /// The rows whose numbers are in `(from, to]`, at most `limit`.
    pub(super) async fn sweep(
        &self,
        from: i64,
        to: i64,
        limit: usize,
    ) -> Result<Vec<Light>, Error> {
        on!(self, tables => tables.sweep(from, to, limit))
    }

    /// Writes down what came of a round, if this relay's take-over is still the last.
    pub(super) async fn settle(&self, takeover: i64, settlement: &Settlement) -> Result<(), Error> {
        if on!(self, tables => tables.settle(takeover, settlement))? {
            return Ok(());
        }
        let row = on!(self, tables => tables.relay())?;
        Err(row.stale().into())
    }

    /// Groups behind `after` that have no row waiting, and how far they have counted.
    pub(super) async fn idle_groups(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, i64)>, Error> {
        on!(self, tables => tables.idle_groups(after, limit))
    }

    /// Forgets groups that still stand where they stood.
    pub(super) async fn drop_groups(
        &self,
        takeover: i64,
        groups: &[(String, i64)],
    ) -> Result<(), Error> {
        on!(self, tables => tables.drop_groups(takeover, groups))
    }

    /// What tells when there may be something new, if the database can.
    pub(super) async fn hints(&self) -> Hints {
        match &self.engine {
            #[cfg(feature = "postgres")]
            Engine::Postgres(tables) => tables.hints().await,
            #[cfg(any(feature = "mysql", feature = "sqlite"))]
            #[allow(unreachable_patterns, reason = "without PostgreSQL it is the only one")]
            _ => Hints::none(),
        }
    }

    /// Says whether the relay waits, so that it is told of rows then, and only then.
    pub(super) async fn set_waiting(&self, waits: bool) -> Result<(), Error> {
        match &self.engine {
            #[cfg(feature = "postgres")]
            Engine::Postgres(tables) => bounded(tables.set_waiting(waits)).await,
            #[cfg(any(feature = "mysql", feature = "sqlite"))]
            #[allow(unreachable_patterns, reason = "without PostgreSQL it is the only one")]
            _ => {
                let _ = waits;
                Ok(())
            }
        }
    }
}

/// Tells when there may be something new. A hint is never the truth: whoever waits for one also polls.
pub(super) struct Hints {
    #[cfg(feature = "postgres")]
    listener: Option<sqlx::postgres::PgListener>,
}

impl Hints {
    fn none() -> Self {
        Self {
            #[cfg(feature = "postgres")]
            listener: None,
        }
    }

    pub(super) fn are_there(&self) -> bool {
        #[cfg(feature = "postgres")]
        return self.listener.is_some();
        #[cfg(not(feature = "postgres"))]
        false
    }

    /// Waits for the next.
    pub(super) async fn next(&mut self) {
        #[cfg(feature = "postgres")]
        if let Some(listener) = &mut self.listener {
            match listener.recv().await {
                Ok(_) => return,
                // Polling goes on; the next relay listens again.
                Err(error) => {
                    tracing::debug!(%error, "the outbox is polled from now on");
                    self.listener = None;
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Database");
        debug.field("location", &self.location).finish()
    }
}
