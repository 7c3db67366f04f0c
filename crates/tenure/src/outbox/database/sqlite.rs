//! SQLite. One writer at a time: every change begins as one.

use std::time::Duration;

use sqlx::sqlite::{SqlitePool, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};

use super::shared::{self, MOVED, Words, delete_some as portion};
use super::{Error, Hints, Identity, Settlement, Which};
use crate::fence::claim::Claims as _;
use crate::outbox::insert::Insert;
use crate::outbox::row::{self, Row};

shared::tables!(Sqlite, SqliteRow, crate::outbox::SCHEMA_SQLITE);

const WORDS: Words = Words {
    bytes: |column| format!("length(CAST({column} AS BLOB))"),
    number: ToOwned::to_owned,
    text: ToOwned::to_owned,
    age: |column| format!("CAST((julianday('now') - {column}) * 86400000 AS INTEGER)"),
    mark: |_| "?".to_owned(),
    signed: "INTEGER",
};

const CLAIM_IS_OLD: &str = "seen_at < julianday('now') - ? / 86400.0";

shared::marked!(
    sqlx::Sqlite,
    sqlx::sqlite::SqliteArguments,
    "died_at < julianday('now') - ? / 86400.0"
);

#[derive(Debug, Clone)]
pub(super) struct Sqlite {
    pool: SqlitePool,
}

impl Sqlite {
    pub(super) fn new(path: &str) -> Result<(Self, String), Error> {
        let (options, location) = tenure_store::engine::sqlite::connect_options(path)?;
        let pool = SqlitePoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_secs(10))
            .connect_lazy_with(options);
        Ok((Self { pool }, location))
    }

    async fn is_there(&self) -> Result<bool, sqlx::Error> {
        let statement = "SELECT count(*) FROM sqlite_master WHERE name = 'tenure_claims'";
        let count: i64 = sqlx::query_scalar(statement).fetch_one(&self.pool).await?;
        Ok(count > 0)
    }

    async fn take_over(&self, who: &Identity) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(
            "UPDATE tenure_outbox_relay SET takeover = takeover + 1, owner = ?1, lineage = ?2, generation = ?3, \
             holder = ?4 WHERE owner IS NULL OR (owner = ?1 AND lineage = ?2 AND generation <= ?3) RETURNING takeover",
        )
        .bind(&who.owner)
        .bind(&who.lineage)
        .bind(i64::try_from(who.generation.0).unwrap_or(i64::MAX))
        .bind(&who.holder)
        .fetch_optional(&self.pool)
        .await
    }

    /// Whether the take-over is still the last.
    async fn settle(&self, takeover: i64, settlement: &Settlement) -> Result<bool, sqlx::Error> {
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        let found: Option<i64> =
            sqlx::query_scalar("SELECT takeover FROM tenure_outbox_relay WHERE only_row = 1")
                .fetch_optional(&mut *transaction)
                .await?;
        if found != Some(takeover) {
            transaction.rollback().await?;
            return Ok(false);
        }
        if !settlement.delivered.is_empty() {
            let seqs = shared::numbers(&settlement.delivered);
            let statement = format!("DELETE FROM tenure_outbox WHERE seq IN ({seqs})");
            sqlx::raw_sql(AssertSqlSafe(statement))
                .execute(&mut *transaction)
                .await?;
        }
        shared::write_down!(transaction, settlement);
        transaction.commit().await?;
        Ok(true)
    }

    async fn retry(&self, which: &Which, last: i64, limit: usize) -> Result<u64, sqlx::Error> {
        let condition = format!(
            "seq IN (SELECT seq FROM tenure_outbox_dead WHERE seq <= {last} AND {} ORDER BY seq LIMIT {limit})",
            condition(which)
        );
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        // In their order: the trigger counts as rows come.
        let copied = format!(
            "INSERT INTO tenure_outbox ({MOVED}) SELECT {MOVED} FROM tenure_outbox_dead WHERE {condition} ORDER BY seq"
        );
        let copied = bound(sqlx::query(AssertSqlSafe(copied)).persistent(false), which)
            .execute(&mut *transaction)
            .await?;
        let deleted = format!("DELETE FROM tenure_outbox_dead WHERE {condition}");
        bound(sqlx::query(AssertSqlSafe(deleted)).persistent(false), which)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(copied.rows_affected())
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
        for (group, last) in groups {
            sqlx::query("DELETE FROM tenure_outbox_groups WHERE group_key = ? AND last = ? AND EXISTS (SELECT 1 FROM tenure_outbox_relay WHERE takeover = ?)")
                .bind(group)
                .bind(last)
                .bind(takeover)
                .execute(&self.pool)
                .await?;
        }
        Ok(())
    }
}
