//! SQLite. One writer at a time: every change begins as one.

use std::time::Duration;

use sqlx::sqlite::{SqlitePool, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::shared::{self, MOVED, Words};
use super::{Dead, Error, Identity, Light, RelayRow, Settlement, Status, Wanted, Which};
use crate::outbox::insert::Insert;
use crate::outbox::row::{self, Row};

shared::decoders!(SqliteRow);

const WORDS: Words = Words {
    payload_bytes: "length(CAST(o.payload AS BLOB))",
    number: ToOwned::to_owned,
    text: ToOwned::to_owned,
    age: |column| format!("CAST((julianday('now') - {column}) * 86400000 AS INTEGER)"),
};

#[derive(Debug, Clone)]
pub(super) struct Tables {
    pool: SqlitePool,
}

impl Tables {
    pub(super) fn new(path: &str) -> Result<(Self, String), Error> {
        let (options, location) = tenure_store::engine::sqlite::connect_options(path)?;
        let pool = SqlitePoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_secs(10))
            .connect_lazy_with(options);
        Ok((Self { pool }, location))
    }

    pub(super) async fn is_there(&self) -> Result<bool, sqlx::Error> {
        let statement = "SELECT count(*) FROM sqlite_master WHERE name = 'tenure_claims'";
        let count: i64 = sqlx::query_scalar(statement).fetch_one(&self.pool).await?;
        Ok(count > 0)
    }

    pub(super) async fn create(&self) -> Result<(), sqlx::Error> {
        self.pool.acquire().await?.create_tables().await
    }

    pub(super) async fn relay(&self) -> Result<RelayRow, sqlx::Error> {
        let statement = shared::RELAY.replace("{}", "INTEGER");
        let row = sqlx::query(AssertSqlSafe(statement)).fetch_one(&self.pool);
        relay_row(&row.await?)
    }

    pub(super) async fn take_over(&self, who: &Identity) -> Result<Option<i64>, sqlx::Error> {
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

    pub(super) async fn release(&self) -> Result<(), sqlx::Error> {
        let statement = "UPDATE tenure_outbox_relay SET takeover = takeover + 1, owner = NULL, lineage = NULL, \
             generation = 0, holder = NULL";
        sqlx::query(statement).execute(&self.pool).await?;
        Ok(())
    }

    pub(super) async fn rows(&self, wanted: &Wanted) -> Result<Vec<Row>, sqlx::Error> {
        let rows = match wanted {
            Wanted::After(after, limit) => {
                let statement = WORDS.rows("o.seq > ?", "seq", *limit);
                let query = sqlx::query(AssertSqlSafe(statement)).bind(after);
                query.fetch_all(&self.pool).await?
            }
            Wanted::These(seqs) => {
                let condition = format!("o.seq IN ({})", shared::numbers(seqs));
                let statement = WORDS.rows(&condition, "seq", seqs.len().max(1));
                let query = sqlx::query(AssertSqlSafe(statement)).persistent(false);
                query.fetch_all(&self.pool).await?
            }
            Wanted::Groups(groups, limit) => {
                let marks = vec!["?"; groups.len()].join(",");
                let condition = format!("o.group_key IN ({marks})");
                let statement = WORDS.rows(&condition, "group_key, group_position", *limit);
                let mut query = sqlx::query(AssertSqlSafe(statement)).persistent(false);
                for group in groups {
                    query = query.bind(group);
                }
                query.fetch_all(&self.pool).await?
            }
        };
        rows.iter().map(row::decode).collect()
    }

    pub(super) async fn sweep(
        &self,
        from: i64,
        to: i64,
        limit: usize,
    ) -> Result<Vec<Light>, sqlx::Error> {
        let rows = sqlx::query(
            "SELECT seq, group_key FROM tenure_outbox WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
        )
        .bind(from)
        .bind(to)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(light).collect()
    }

    /// Whether the take-over is still the last.
    pub(super) async fn settle(
        &self,
        takeover: i64,
        settlement: &Settlement,
    ) -> Result<bool, sqlx::Error> {
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
        for (seq, error) in &settlement.failed {
            sqlx::query(
                "UPDATE tenure_outbox SET attempts = attempts + 1, error = ? WHERE seq = ?",
            )
            .bind(shared::kept_error(error))
            .bind(seq)
            .execute(&mut *transaction)
            .await?;
        }
        for (seq, error) in &settlement.dead {
            let copied = format!(
                "INSERT INTO tenure_outbox_dead (seq, {MOVED}, group_position, attempts, error) \
                 SELECT seq, {MOVED}, group_position, attempts + 1, ? FROM tenure_outbox WHERE seq = ?"
            );
            sqlx::query(AssertSqlSafe(copied))
                .bind(shared::kept_error(error))
                .bind(seq)
                .execute(&mut *transaction)
                .await?;
            sqlx::query("DELETE FROM tenure_outbox WHERE seq = ?")
                .bind(seq)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(true)
    }

    pub(super) async fn status(&self) -> Result<Status, sqlx::Error> {
        let row = sqlx::query(AssertSqlSafe(WORDS.status())).fetch_one(&self.pool);
        status(&row.await?)
    }

    pub(super) async fn dead(&self, limit: usize) -> Result<Vec<Dead>, sqlx::Error> {
        let rows = sqlx::query(AssertSqlSafe(WORDS.dead(limit))).fetch_all(&self.pool);
        rows.await?.iter().map(dead).collect()
    }

    pub(super) async fn retry(&self, which: &Which) -> Result<u64, sqlx::Error> {
        let condition = condition(which);
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

    pub(super) async fn purge(&self, which: &Which) -> Result<u64, sqlx::Error> {
        let statement = format!("DELETE FROM tenure_outbox_dead WHERE {}", condition(which));
        let query = bound(
            sqlx::query(AssertSqlSafe(statement)).persistent(false),
            which,
        );
        Ok(query.execute(&self.pool).await?.rows_affected())
    }

    pub(super) async fn purge_claims(&self, older_than: Duration) -> Result<u64, sqlx::Error> {
        let statement = "DELETE FROM tenure_claims WHERE seen_at < julianday('now') - ? / 86400.0";
        let query = sqlx::query(statement).bind(seconds(older_than));
        Ok(query.execute(&self.pool).await?.rows_affected())
    }

    pub(super) async fn idle_groups(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, i64)>, sqlx::Error> {
        sqlx::query_as(
            "SELECT group_key, last FROM tenure_outbox_groups g WHERE group_key > ? AND NOT EXISTS \
             (SELECT 1 FROM tenure_outbox o WHERE o.group_key = g.group_key) ORDER BY group_key LIMIT ?",
        )
        .bind(after)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&self.pool)
        .await
    }

    pub(super) async fn drop_groups(
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

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

fn condition(which: &Which) -> String {
    match which {
        Which::All => "TRUE".to_owned(),
        Which::Ids(ids) => format!("id IN ({})", vec!["?"; ids.len().max(1)].join(",")),
        Which::OlderThan(_) => "died_at < julianday('now') - ? / 86400.0".to_owned(),
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

fn bound<'q>(mut query: Query<'q>, which: &'q Which) -> Query<'q> {
    match which {
        Which::All => {}
        Which::Ids(ids) if ids.is_empty() => query = query.bind(""),
        Which::Ids(ids) => {
            for id in ids {
                query = query.bind(id);
            }
        }
        Which::OlderThan(age) => query = query.bind(seconds(*age)),
    }
    query
}
