//! The transactional outbox: a job that exists if and only if your own SQL transaction committed.
//!
//! [`Outbox::submit`] writes a row into `tenure_outbox`, in your transaction and in your database: PostgreSQL, MySQL,
//! MariaDB or SQLite. A [`Relay`] hands committed rows over to the queue, whatever store that is on, or to a
//! [`Deliver`] of your own. The relay is a daemon, `outbox:<name>`: register it on as many nodes as you like, one of
//! them runs it.
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::core::JobType;
//! use tenure::core::queue::{Payload, Submission};
//! use tenure::outbox::Outbox;
//!
//! let outbox = Outbox::default();
//! outbox.create(&mut *pool.acquire().await?).await?; // once, or by `tenure outbox schema` in your migrations
//!
//! let mut transaction = pool.begin().await?;
//! sqlx::query("UPDATE orders SET paid = true WHERE id = 7").execute(&mut *transaction).await?;
//! let mut mail = Submission::new(JobType::new("mail")?);
//! mail.payload = Payload::new(r#"{"order":7}"#)?;
//! outbox.submit(&mut *transaction, mail).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//!
//! - A row whose transaction was rolled back is never delivered. A row that was committed is delivered, or ends in
//!   `tenure_outbox_dead` with the reason.
//! - Into the queue each row is enqueued once, however often the relay is killed: the row's id is the job's id, and the
//!   row is deleted only after the queue has acknowledged it. This holds as long as the queue knows ids
//!   ([`KeepIds`](tenure_core::queue::KeepIds), an hour by default after a job has ended): a relay that is killed between the two, and
//!   stays away for longer than that while the job is done and dropped, enqueues it again.
//! - A handler of your own is called at least once for each row, with a [`Token`] that lets it refuse an older relay.
//! - Rows of one group are delivered in the order in which their transactions committed, also if one of them
//!   cannot be delivered for a while. Nothing is promised about the order of rows without a group.
//! - A row that is refused holds up its own group only.
//!
//! # The order within a group
//!
//! Numbers that are given out at an insert are not the order of commits: a transaction that inserts first may commit
//! last, behind rows that are delivered already. So each row of a group has a `group_position`, and the counter it is taken
//! from is a row of `tenure_outbox_groups` that its transaction keeps locked until it ends. Transactions that submit to one group wait for
//! each other there; so positions are the order of commits, have no gaps (a roll-back takes its numbers back), and
//! a reader that sees a position sees all those before it. Transactions of other groups, or without one, wait for nobody.
//!
//! | engine | who counts |
//! | --- | --- |
//! | PostgreSQL | a trigger before the insert, so a plain `INSERT` does |
//! | MySQL, MariaDB | a statement before the insert: triggers need rights there that few users have |
//! | SQLite | a trigger; there is one writer at a time anyway |
//!
//! # How rows are found
//!
//! An old snapshot, of a report or a forgotten `BEGIN`, keeps deleted rows in the table and its indexes, and a query for the
//! oldest row reads past all of them. So the relay does not: it goes on behind the last row that it has seen (`seq >
//! cursor`). What commits later with a lower number is found by a second look from the beginning, which is made in
//! portions, each short, and takes a tenth of the time at most. While nothing is in the way it is done every round, so
//! such rows wait no longer than others.
//!
//! # One relay at a time
//!
//! A relay first takes the outbox over: it raises `takeover` in `tenure_outbox_relay`, which it may only if no later
//! generation of the daemon has been there. Whatever it changes then is changed only while that number is still its own. A relay
//! that wakes up late can submit what it had read, which the queue recognises by the ids; it can change nothing in the outbox. The row also says which cluster the relay
//! belongs to, and another cluster's is refused: a test system that is pointed at a production
//! database takes no rows. `tenure outbox release` lets another one in.
//!
//! | a relay stops between | what its successor finds | what follows |
//! | --- | --- | --- |
//! | reading and submitting | the rows | they are submitted |
//! | submitting and the answer | the rows; perhaps jobs | the same rows with the same ids: duplicates are recognised, the rest is enqueued, in order |
//! | the answer and the delete | the rows and the jobs | the same |
//! | the delete and its answer | the rows or none | the same, or nothing |

mod database;
mod deliver;
mod insert;
mod observe;
mod plan;
mod relay;
mod row;

pub use database::{
    Database, Dead, Error, Fenced, Hints, Identity, Light, RelayRow, Settlement, Status, Tables,
    Wanted, Which,
};
pub use deliver::{
    Deliver, Each, End, Failure, Handler, Outcome, Rejected, Submit, ToQueue, Token,
};
pub use insert::{Insert, SubmitError};
pub use observe::{Event, Metrics, Observer};
pub use plan::Policy;
pub use relay::{Options, Relay};
pub use row::Row;

use tenure_core::JobId;
use tenure_core::queue::{Limits, Submission};

pub(crate) use row::{COMPLETE, EndOfClaim};

/// The SQL that makes the tables in PostgreSQL.
pub const SCHEMA_POSTGRES: &str = include_str!("outbox/schema/postgres.sql");
/// The SQL that makes the tables in MySQL and MariaDB.
pub const SCHEMA_MYSQL: &str = include_str!("outbox/schema/mysql.sql");
/// The SQL that makes the tables in SQLite.
pub const SCHEMA_SQLITE: &str = include_str!("outbox/schema/sqlite.sql");

/// Submits jobs in transactions of the caller's own. Cheap to clone; it holds no connection.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    limits: Limits,
    observer: Observer,
}

impl Outbox {
    /// Checks jobs by other limits than the defaults: those of the broker that will get them.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Tells `observer` of every job that is submitted with this value.
    #[must_use]
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.observer = observer;
        self
    }

    /// Makes the tables, unless they are there. Not within a transaction: MySQL would commit it.
    pub async fn create(&self, connection: &mut impl Insert) -> Result<(), sqlx::Error> {
        connection.create_tables().await
    }

    /// Submits a job in the transaction that is open on `connection`. It is enqueued if the transaction commits. Returns the
    /// job's id: its own, or a new one.
    ///
    /// One statement; for a job with a group in MySQL two. A job with a group waits for other transactions that have submitted
    /// to the same group and are still open.
    pub async fn submit(
        &self,
        connection: &mut impl Insert,
        job: Submission,
    ) -> Result<JobId, SubmitError> {
        let mut ids = self.submit_all(connection, vec![job]).await?;
        Ok(ids.pop().expect("an id for each job"))
    }

    /// Submits jobs, in order, as [`submit`](Outbox::submit) does. Their ids, in the same order. If one is not valid none is
    /// submitted.
    pub async fn submit_all(
        &self,
        connection: &mut impl Insert,
        mut jobs: Vec<Submission>,
    ) -> Result<Vec<JobId>, SubmitError> {
        let now = insert::now_milliseconds();
        let mut ids = Vec::with_capacity(jobs.len());
        for (place, job) in jobs.iter_mut().enumerate() {
            let id = job.id.get_or_insert_with(insert::new_id);
            ids.push(id.clone());
            self.limits
                .submission(job, now)
                .map_err(|source| SubmitError::Invalid { place, source })?;
        }
        // Transactions that take the locks of several groups in one order do not wait for each other in a circle.
        jobs.sort_by(|a, b| a.group.cmp(&b.group));
        connection.insert_jobs(&jobs).await?;
        for id in &ids {
            self.observer.tell(&Event::Enqueued { id: id.clone() });
        }
        Ok(ids)
    }
}
