//! MySQL and MariaDB.

use std::time::Duration;

use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlPoolOptions, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};

use super::shared::{self, MOVED, Words};
use super::{Error, Hints, Identity, Settlement, Which};
use crate::fence::claim::Claims as _;
use crate::outbox::insert::Insert;
use crate::outbox::row::{self, Row};

shared::tables!(MySql, MySqlRow, crate::outbox::SCHEMA_MYSQL);

const WORDS: Words = Words {
    bytes: |column| format!("LENGTH({column})"),
    number: |column| format!("CAST({column} AS SIGNED)"),
    text: ToOwned::to_owned,
    age: |column| {
        format!("CAST(TIMESTAMPDIFF(MICROSECOND, {column}, UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED)")
    },
    mark: |_| "?".to_owned(),
    signed: "SIGNED",
};

const CLAIM_IS_OLD: &str = "seen_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND";

/// Deletes some of the rows that fit a condition.
fn portion(table: &str, _key: &str, condition: &str, limit: usize) -> String {
    format!("DELETE FROM {table} WHERE {condition} LIMIT {limit}")
}

shared::marked!(
    sqlx::MySql,
    sqlx::mysql::MySqlArguments,
    "died_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND"
);

/// No locks on gaps, so that deletes keep nobody from inserting. A relay that is paused in a transaction is cut off: by MariaDB the
/// transaction, by MySQL the connection; each takes the other's words for a comment.
const SESSION: &str = "SET NAMES utf8mb4, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     /*M!100102 max_statement_time = 30, */ /*!50708 max_execution_time = 30000, */ \
     /*M!100300 idle_transaction_timeout = 10, */ wait_timeout = 60, innodb_lock_wait_timeout = 10, \
     lock_wait_timeout = 10, autocommit = 1; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

#[derive(Debug, Clone)]
pub(super) struct MySql {
    pool: MySqlPool,
}

impl MySql {
    pub(super) fn new(url: &str) -> Result<(Self, String), Error> {
        let (options, location) = tenure_store::engine::mysql::connect_options(url)?;
        let pool = MySqlPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_secs(10))
            .after_connect(|connection, _| {
                Box::pin(async move {
                    sqlx::raw_sql(SESSION).execute(connection).await?;
                    Ok(())
                })
            })
            .connect_lazy_with(options);
        Ok((Self { pool }, location))
    }

    async fn is_there(&self) -> Result<bool, sqlx::Error> {
        let statement = "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name = 'tenure_claims'";
        let count: i64 = sqlx::query_scalar(statement).fetch_one(&self.pool).await?;
        Ok(count > 0)
    }

    async fn take_over(&self, who: &Identity) -> Result<Option<i64>, sqlx::Error> {
        let generation = i64::try_from(who.generation.0).unwrap_or(i64::MAX);
        // MySQL assigns from left to right: what the condition looks at is changed last.
        let done = sqlx::query(
            "UPDATE tenure_outbox_relay SET takeover = LAST_INSERT_ID(takeover + 1), owner = ?, lineage = ?, \
             generation = ?, holder = ? WHERE owner IS NULL OR (owner = ? AND lineage = ? AND generation <= ?)",
        )
        .bind(&who.owner)
        .bind(&who.lineage)
        .bind(generation)
        .bind(&who.holder)
        .bind(&who.owner)
        .bind(&who.lineage)
        .bind(generation)
        .execute(&self.pool)
        .await?;
        let takeover = i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX);
        Ok((done.rows_affected() > 0).then_some(takeover))
    }

    /// Whether the take-over is still the last.
    async fn settle(&self, takeover: i64, settlement: &Settlement) -> Result<bool, sqlx::Error> {
        let mut transaction = self.pool.begin().await?;
        let found: Option<i64> = sqlx::query_scalar(
            "SELECT takeover FROM tenure_outbox_relay WHERE only_row = 1 LOCK IN SHARE MODE",
        )
        .fetch_optional(&mut *transaction)
        .await?;
        if found != Some(takeover) {
            transaction.rollback().await?;
            return Ok(false);
        }
        if !settlement.delivered.is_empty() {
            // One statement each, in one message: with a list of numbers the server may choose to scan the table, and would
            // wait for every row in it that is not committed yet.
            let deletes = settlement.delivered.iter();
            let deletes =
                deletes.map(|seq| format!("DELETE FROM tenure_outbox WHERE seq = {seq};"));
            let statement: String = deletes.collect();
            sqlx::raw_sql(AssertSqlSafe(statement))
                .execute(&mut *transaction)
                .await?;
        }
        shared::write_down!(transaction, settlement);
        transaction.commit().await?;
        Ok(true)
    }

    /// Row by row: each counts in its group, as an insert of a user's does.
    async fn retry(&self, which: &Which, last: i64, limit: usize) -> Result<u64, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let statement = format!(
            "SELECT seq FROM tenure_outbox_dead WHERE seq <= {last} AND {} ORDER BY seq LIMIT {limit}",
            condition(which)
        );
        let query = sqlx::query(AssertSqlSafe(statement)).persistent(false);
        let rows = bound(query, which).fetch_all(&mut *connection).await?;
        let mut count = 0;
        for row in &rows {
            count += u64::from(put_back(&mut connection, row.try_get(0)?).await?);
        }
        Ok(count)
    }

    async fn hints(&self) -> Hints {
        Hints::none()
    }

    async fn set_waiting(&self, _: bool) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn drop_groups(
        &self,
        takeover: i64,
        groups: &[(String, i64)],
    ) -> Result<(), sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        // One that a transaction holds is in use.
        let brief = "SET SESSION innodb_lock_wait_timeout = 1";
        sqlx::raw_sql(brief).execute(&mut *connection).await?;
        for (group, last) in groups {
            let dropped = sqlx::query(
                "DELETE FROM tenure_outbox_groups WHERE group_key = ? AND last = ? AND EXISTS (SELECT 1 FROM tenure_outbox_relay WHERE takeover = ?)",
            )
            .bind(group)
            .bind(last)
                .bind(takeover)
            .execute(&mut *connection)
            .await;
            match dropped {
                Ok(_) | Err(sqlx::Error::Database(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let usual = "SET SESSION innodb_lock_wait_timeout = 10";
        sqlx::raw_sql(usual).execute(&mut *connection).await?;
        Ok(())
    }
}

async fn put_back(connection: &mut MySqlConnection, seq: i64) -> Result<bool, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    // Whatever the group is called: also by a name that made it a dead row.
    let counted = sqlx::query(
        "INSERT INTO tenure_outbox_groups (group_key, last) SELECT group_key, LAST_INSERT_ID(1) FROM tenure_outbox_dead \
         WHERE seq = ? AND group_key IS NOT NULL ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + 1)",
    )
    .bind(seq)
    .execute(&mut *transaction)
    .await?;
    let position = i64::try_from(counted.last_insert_id()).unwrap_or(i64::MAX);
    let copied = format!(
        "INSERT INTO tenure_outbox ({MOVED}, group_position) \
         SELECT {MOVED}, IF(group_key IS NULL, NULL, {position}) FROM tenure_outbox_dead WHERE seq = ?"
    );
    let copied = sqlx::query(AssertSqlSafe(copied))
        .persistent(false)
        .bind(seq)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("DELETE FROM tenure_outbox_dead WHERE seq = ?")
        .bind(seq)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(copied.rows_affected() > 0)
}
