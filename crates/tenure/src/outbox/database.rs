//! The outbox's tables as the relay and the command line use them: one statement or one short transaction each.
//!
//! Nothing here decides anything. In PostgreSQL every change is one statement, so a relay that is paused holds no lock; in
//! MySQL the server ends a transaction that is left open, in SQLite only the end of the process does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
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

/// How many rows one statement deletes.
const PURGED_MAX: usize = 10_000;

/// How many rows are put back at once: in MySQL with a commit for each.
const RETRIED_MAX: usize = 100;

/// How long a statement may take before the connection counts as lost.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long it may take to find out why there is no connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// A database with an outbox, by URL. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    tables: Arc<dyn Tables>,
    location: String,
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
    /// Why the first row among those that have failed could not be delivered.
    pub error: Option<String>,
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
pub struct Identity {
    /// Namespace and daemon.
    pub owner: String,
    /// The row of terms of the cluster: another one's generations say nothing about this one's.
    pub lineage: String,
    /// The generation of the daemon.
    pub generation: Generation,
    /// The node, for people.
    pub holder: String,
}

/// `tenure_outbox_relay`, as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayRow {
    /// The version of the tables.
    pub version: i64,
    /// Namespace and daemon.
    pub owner: Option<String>,
    /// The row of terms of the cluster.
    pub lineage: Option<String>,
    /// The generation of the daemon.
    pub generation: i64,
    /// The node, for people.
    pub holder: Option<String>,
    /// The number of the last take-over.
    pub takeover: i64,
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
pub struct Light {
    /// Its number.
    pub seq: i64,
    /// Its group.
    pub group: Option<String>,
}

/// What came of a round, to be written down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settlement {
    /// To be deleted.
    pub delivered: Vec<i64>,
    /// To be tried again, and why.
    pub failed: Vec<(i64, String)>,
    /// To be moved to the dead table, and why.
    pub dead: Vec<(i64, String)>,
}

/// Which rows to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// So many behind this number.
    After(i64, usize),
    /// These.
    These(Vec<i64>),
    /// The first of these groups, in the order of each: so many together.
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

/// The tables of an outbox in one kind of database. Nothing here decides anything: a [`Relay`](super::Relay) does, and calls nothing
/// while another call of it is under way.
///
/// Each call sees all that was committed before it. A call that fails may have been carried out or not, now or later; a change of a row
/// is made as a whole or not at all. Implement it for a database that Tenure does not know; the comments in `tenure outbox schema` say what the columns mean.
#[async_trait]
pub trait Tables: fmt::Debug + Send + Sync + 'static {
    /// The SQL that makes the tables.
    fn schema(&self) -> &'static str;

    /// Whether the tables are there, to the last of them.
    async fn is_there(&self) -> Result<bool, Error>;

    /// Makes the tables. It may fail if another does so at the same time.
    async fn create(&self) -> Result<(), Error>;

    /// Makes what tables of an earlier version lack, and touches no other: somebody may have them locked.
    async fn add_missing(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Opens a connection and closes it, to learn why that cannot be done.
    async fn connect(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The row that says who relays.
    async fn relay(&self) -> Result<RelayRow, Error>;

    /// Counts a take-over, if nobody relays, or an earlier generation of the same daemon in the same cluster does, or this one
    /// itself. Its number, or `None` if it may not.
    async fn take_over(&self, identity: &Identity) -> Result<Option<i64>, Error>;

    /// Lets any cluster take over, and counts that too, so that the present relay is fenced off.
    async fn release(&self) -> Result<(), Error>;

    /// Rows by their numbers, of groups by group and position: as many as have 4 MiB together, and at least one.
    async fn rows(&self, wanted: &Wanted) -> Result<Vec<Row>, Error>;

    /// The rows whose numbers are in `(from, to]`, by number, at most `limit`.
    async fn sweep(&self, from: i64, to: i64, limit: usize) -> Result<Vec<Light>, Error>;

    /// Writes down what came of a round if this take-over is still the last; whether it is. The comparison holds until the change is
    /// committed: nobody takes over in between.
    async fn settle(&self, takeover: i64, settlement: &Settlement) -> Result<bool, Error>;

    /// Groups behind `after` that have no row waiting, and how far they have counted, by name.
    async fn idle_groups(&self, after: &str, limit: usize) -> Result<Vec<(String, i64)>, Error>;

    /// Forgets groups that still stand where they stood, and that no transaction holds, while this take-over is the last.
    async fn drop_groups(&self, takeover: i64, groups: &[(String, i64)]) -> Result<(), Error>;

    /// How the outbox stands.
    async fn status(&self) -> Result<Status, Error>;

    /// Dead rows, the oldest first.
    async fn dead(&self, limit: usize) -> Result<Vec<Dead>, Error>;

    /// Those of these ids that dead rows have.
    async fn dead_among(&self, ids: &[String]) -> Result<Vec<String>, Error> {
        Ok(ids.to_vec())
    }

    /// The highest number of a dead row.
    async fn last_dead(&self) -> Result<Option<i64>, Error>;

    /// Puts dead rows with numbers up to `last` back at the end of their groups, the first of them, at most so many. Says how many.
    async fn retry(&self, which: &Which, last: i64, limit: usize) -> Result<u64, Error>;

    /// Deletes dead rows, at most so many. Says how many.
    async fn purge(&self, which: &Which, limit: usize) -> Result<u64, Error>;

    /// Deletes claims that were seen longer ago than this, at most so many. Says how many.
    async fn purge_claims(&self, older_than: Duration, limit: usize) -> Result<u64, Error>;

    /// Deletes results whose claims were deleted, at most so many. Says how many.
    async fn purge_results(&self, _limit: usize) -> Result<u64, Error> {
        Ok(0)
    }

    /// What tells when there may be something new, if the database can.
    async fn hints(&self) -> Hints {
        Hints::none()
    }

    /// Says whether the relay waits, so that it is told of rows then, and only then.
    async fn set_waiting(&self, _waits: bool) -> Result<(), Error> {
        Ok(())
    }
}

/// Goes on until a portion is not full. One statement for millions of rows would not end in time, however often it is tried.
async fn in_portions(
    limit: usize,
    mut change: impl AsyncFnMut(usize) -> Result<u64, Error>,
) -> Result<u64, Error> {
    let mut changed = 0;
    loop {
        let portion = change(limit).await?;
        changed += portion;
        if portion < limit as u64 {
            return Ok(changed);
        }
    }
}

impl Database {
    /// Checks the URL of a database, such as `postgres://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE` or `sqlite:PATH`.
    /// Connects when it is needed.
    pub fn new(url: &str) -> Result<Self, Error> {
        let (scheme, _rest) = url.split_once(':').unwrap_or_default();
        let (tables, location): (Arc<dyn Tables>, _) = match scheme {
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let (tables, location) = postgres::Postgres::new(url)?;
                (Arc::new(tables), location)
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => {
                let (tables, location) = mysql::MySql::new(url)?;
                (Arc::new(tables), location)
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let (tables, location) = sqlite::Sqlite::new(_rest)?;
                (Arc::new(tables), location)
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
        Ok(Self { tables, location })
    }

    /// A database of another kind, and where it is, for people.
    pub fn with_tables(tables: impl Tables, location: impl Into<String>) -> Self {
        Self {
            tables: Arc::new(tables),
            location: location.into(),
        }
    }

    /// A server that went away without a word must not hold the relay up for ever.
    async fn bounded<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let done = tokio::time::timeout(STATEMENT_TIMEOUT, work).await;
        match done.unwrap_or(Err(Error::TimedOut)) {
            // The pool does not say why it has no connection.
            Err(error @ Error::Database(sqlx::Error::PoolTimedOut)) => {
                let connected = tokio::time::timeout(CONNECT_PATIENCE, self.tables.connect()).await;
                Err(connected.ok().and_then(Result::err).unwrap_or(error))
            }
            done => done,
        }
    }

    /// Where it is, without user and password.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The SQL that makes the tables.
    #[must_use]
    pub fn schema(&self) -> &'static str {
        self.tables.schema()
    }

    /// Makes the tables, unless they are there.
    pub async fn create(&self) -> Result<(), Error> {
        if self.bounded(self.tables.is_there()).await? {
            // Workers use it and relays do not, so a relay that may make no tables relays all the same.
            if let Err(error) = self.bounded(self.tables.add_missing()).await {
                let error = super::deliver::told(&error);
                tracing::warn!(
                    error,
                    "cannot make the table tenure_claim_results; run: tenure outbox schema"
                );
            }
            return Ok(());
        }
        match self.bounded(self.tables.create()).await {
            // Another has made them meanwhile.
            Err(Error::Database(_)) if self.bounded(self.tables.is_there()).await? => Ok(()),
            made => made,
        }
    }

    /// How the outbox stands.
    pub async fn status(&self) -> Result<Status, Error> {
        self.bounded(self.tables.status()).await
    }

    /// The rows that were given up, the oldest first, at most `limit`.
    pub async fn dead(&self, limit: usize) -> Result<Vec<Dead>, Error> {
        self.bounded(self.tables.dead(limit)).await
    }

    /// Those of these ids that no dead row has, in their order.
    pub async fn not_dead(&self, ids: &[String]) -> Result<Vec<String>, Error> {
        let dead = self.bounded(self.tables.dead_among(ids)).await?;
        let missing = ids.iter().filter(|id| !dead.contains(id));
        Ok(missing.cloned().collect())
    }

    /// Puts dead rows back, with no attempt made: at the end of their groups. Says how many.
    pub async fn retry(&self, which: &Which) -> Result<u64, Error> {
        // What dies again meanwhile is not put back again: it has a higher number then.
        let Some(last) = self.bounded(self.tables.last_dead()).await? else {
            return Ok(0);
        };
        let portion = async |limit| self.bounded(self.tables.retry(which, last, limit)).await;
        in_portions(RETRIED_MAX, portion).await
    }

    /// Deletes dead rows. Says how many.
    pub async fn purge(&self, which: &Which) -> Result<u64, Error> {
        let portion = async |limit| self.bounded(self.tables.purge(which, limit)).await;
        in_portions(PURGED_MAX, portion).await
    }

    /// Deletes what is known of claims that were seen longer ago than this, by the database's clock. Says how many. Choose more than
    /// a job can take with all its attempts.
    pub async fn purge_claims(&self, older_than: Duration) -> Result<u64, Error> {
        let portion = async |limit| {
            self.bounded(self.tables.purge_claims(older_than, limit))
                .await
        };
        let deleted = in_portions(PURGED_MAX, portion).await?;
        let portion = async |limit| self.bounded(self.tables.purge_results(limit)).await;
        in_portions(PURGED_MAX, portion).await?;
        Ok(deleted)
    }

    /// Lets the relay of another cluster take the outbox over.
    pub async fn release(&self) -> Result<(), Error> {
        self.bounded(self.tables.release()).await
    }

    /// Takes the outbox over. From then on every other relay is fenced off.
    pub(super) async fn take_over(&self, identity: &Identity) -> Result<i64, Error> {
        if let Some(takeover) = self.bounded(self.tables.take_over(identity)).await? {
            return Ok(takeover);
        }
        let row = self.bounded(self.tables.relay()).await?;
        Err(row.refusal(identity).into())
    }

    pub(super) async fn check_version(&self) -> Result<(), Error> {
        let row = self.bounded(self.tables.relay()).await?;
        match row.version {
            1 => Ok(()),
            found => Err(Error::Newer { found }),
        }
    }

    /// Rows to deliver, if this relay's take-over was still the last after they were read: one that was fenced off while it had nothing to
    /// do delivers nothing that its successor does.
    pub(super) async fn rows(&self, takeover: i64, wanted: &Wanted) -> Result<Vec<Row>, Error> {
        let rows = self.bounded(self.tables.rows(wanted)).await?;
        if !rows.is_empty() {
            self.check_takeover(takeover).await?;
        }
        Ok(rows)
    }

    /// Whether this relay's take-over is still the last.
    pub(super) async fn check_takeover(&self, takeover: i64) -> Result<(), Error> {
        let row = self.bounded(self.tables.relay()).await?;
        if row.takeover == takeover {
            return Ok(());
        }
        Err(row.stale().into())
    }

    /// The rows whose numbers are in `(from, to]`, at most `limit`.
    pub(super) async fn sweep(
        &self,
        from: i64,
        to: i64,
        limit: usize,
    ) -> Result<Vec<Light>, Error> {
        self.bounded(self.tables.sweep(from, to, limit)).await
    }

    /// Writes down what came of a round, if this relay's take-over is still the last.
    pub(super) async fn settle(&self, takeover: i64, settlement: &Settlement) -> Result<(), Error> {
        if self
            .bounded(self.tables.settle(takeover, settlement))
            .await?
        {
            return Ok(());
        }
        let row = self.bounded(self.tables.relay()).await?;
        Err(row.stale().into())
    }

    /// Groups behind `after` that have no row waiting, and how far they have counted.
    pub(super) async fn idle_groups(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, i64)>, Error> {
        self.bounded(self.tables.idle_groups(after, limit)).await
    }

    /// Forgets groups that still stand where they stood.
    pub(super) async fn drop_groups(
        &self,
        takeover: i64,
        groups: &[(String, i64)],
    ) -> Result<(), Error> {
        self.bounded(self.tables.drop_groups(takeover, groups))
            .await
    }

    /// What tells when there may be something new, if the database can.
    pub(super) async fn hints(&self) -> Hints {
        self.tables.hints().await
    }

    /// Says whether the relay waits, so that it is told of rows then, and only then.
    pub(super) async fn set_waiting(&self, waits: bool) -> Result<(), Error> {
        self.bounded(self.tables.set_waiting(waits)).await
    }
}

/// Tells when there may be something new. A hint is never the truth: its waiter also polls.
pub struct Hints {
    #[cfg(feature = "postgres")]
    listener: Option<sqlx::postgres::PgListener>,
}

impl Hints {
    /// Nothing tells: the tables are polled.
    #[must_use]
    pub fn none() -> Self {
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
                // Polling goes on until the relay listens again.
                Err(error) => {
                    tracing::debug!(%error, "the outbox is polled from now on");
                    self.listener = None;
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

impl fmt::Debug for Hints {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Hints");
        debug.field("are_there", &self.are_there()).finish()
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Database");
        debug.field("location", &self.location).finish()
    }
}
