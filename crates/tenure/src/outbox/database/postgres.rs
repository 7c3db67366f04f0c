//! PostgreSQL. Each change is one statement: there is no transaction that a paused relay could leave open.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPool, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::shared::{self, MOVED, Words, delete_some as portion};
use super::{Error, Hints, Identity, STATEMENT_TIMEOUT, Settlement, Which};
use crate::outbox::insert::Insert;
use crate::outbox::row::{self, Row};

shared::tables!(Postgres, PgRow, crate::outbox::SCHEMA_POSTGRES);

const WORDS: Words = Words {
    bytes: |column| format!("octet_length({column}::text)"),
    number: |column| format!("{column}::bigint"),
    text: |column| format!("{column}::text"),
    // A time may also be `infinity`, which has no distance to any other.
    age: |column| {
        format!(
            "CASE WHEN isfinite({column}) THEN (extract(epoch FROM clock_timestamp() - {column}) * 1000)::bigint ELSE 0 END"
        )
    },
    mark: |place| format!("${place}"),
    signed: "bigint",
};

const CLAIM_IS_OLD: &str = "seen_at < clock_timestamp() - make_interval(secs => $1)";

/// Holds the relay's row for the length of a statement, and is empty if another one has taken over.
const FENCE: &str =
    "WITH fence AS MATERIALIZED (SELECT 1 FROM tenure_outbox_relay WHERE takeover = $1 FOR SHARE)";

#[derive(Debug, Clone)]
pub(super) struct Postgres {
    pool: PgPool,
}

impl Postgres {
    pub(super) fn new(url: &str) -> Result<(Self, String), Error> {
        let (options, location) = tenure_store::engine::postgres::connect_options(url)?;
        let timeout = STATEMENT_TIMEOUT.as_millis().to_string();
        let options = options.options([
            ("statement_timeout", timeout.as_str()),
            ("lock_timeout", "10000"),
        ]);
        // One works, one listens, and one serves status queries.
        let pool = PgPoolOptions::new()
            .max_connections(3)
            .acquire_timeout(Duration::from_secs(10))
            .connect_lazy_with(options);
        Ok((Self { pool }, location))
    }

    async fn is_there(&self) -> Result<bool, sqlx::Error> {
        // The last that the schema makes.
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass('tenure_outbox') \
             AND tgname = 'tenure_outbox_wake')",
        )
        .persistent(false)
        .fetch_one(&self.pool)
        .await
    }

    async fn take_over(&self, who: &Identity) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(
            "UPDATE tenure_outbox_relay SET takeover = takeover + 1, owner = $1, lineage = $2, generation = $3, \
             holder = $4 WHERE owner IS NULL OR (owner = $1 AND lineage = $2 AND generation <= $3) RETURNING takeover",
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
        let deleted = format!(
            "{FENCE}, gone AS (DELETE FROM tenure_outbox WHERE seq = ANY($2) AND EXISTS (SELECT FROM fence)) \
             SELECT count(*) FROM fence"
        );
        let held: i64 = sqlx::query_scalar(AssertSqlSafe(deleted))
            .bind(takeover)
            .bind(&settlement.delivered)
            .fetch_one(&self.pool)
            .await?;
        if held == 0 {
            return Ok(false);
        }
        for (seq, error) in &settlement.failed {
            let failed = format!(
                "{FENCE} UPDATE tenure_outbox SET attempts = attempts + 1, error = $3 \
                 WHERE seq = $2 AND EXISTS (SELECT FROM fence)"
            );
            sqlx::query(AssertSqlSafe(failed))
                .bind(takeover)
                .bind(seq)
                .bind(shared::kept_error(error))
                .execute(&self.pool)
                .await?;
        }
        for (seq, error) in &settlement.dead {
            let moved = format!(
                "{FENCE}, gone AS (DELETE FROM tenure_outbox WHERE seq = $2 AND EXISTS (SELECT FROM fence) RETURNING *) \
                 INSERT INTO tenure_outbox_dead (seq, {MOVED}, group_position, attempts, error) \
                 SELECT seq, {MOVED}, group_position, attempts + 1, $3 FROM gone"
            );
            sqlx::query(AssertSqlSafe(moved))
                .bind(takeover)
                .bind(seq)
                .bind(shared::kept_error(error))
                .execute(&self.pool)
                .await?;
        }
        Ok(true)
    }

    async fn retry(&self, which: &Which) -> Result<u64, sqlx::Error> {
        // The order of the dead table is that of the group: its trigger counts as rows come.
        let statement = format!(
            "WITH back AS (DELETE FROM tenure_outbox_dead WHERE {} RETURNING *) \
             INSERT INTO tenure_outbox ({MOVED}) SELECT {MOVED} FROM back ORDER BY seq",
            condition(which)
        );
        let query = bound(sqlx::query(AssertSqlSafe(statement)), which);
        Ok(query.execute(&self.pool).await?.rows_affected())
    }

    async fn drop_groups(
        &self,
        takeover: i64,
        groups: &[(String, i64)],
    ) -> Result<(), sqlx::Error> {
        for (group, last) in groups {
            // One that a transaction holds is in use.
            let statement = "DELETE FROM tenure_outbox_groups WHERE ctid = (SELECT ctid FROM tenure_outbox_groups \
                 WHERE group_key = $1 AND last = $2 FOR UPDATE SKIP LOCKED) AND last = $2 AND EXISTS (SELECT FROM tenure_outbox_relay WHERE takeover = $3)";
            sqlx::query(statement)
                .bind(group)
                .bind(last)
                .bind(takeover)
                .execute(&self.pool)
                .await?;
        }
        Ok(())
    }

    /// Behind a pooler that lends its connections out nobody can listen; then the outbox is polled.
    async fn hints(&self) -> Hints {
        let listening = async {
            let mut listener = PgListener::connect_with(&self.pool).await?;
            listener.listen("tenure_outbox").await?;
            Ok::<_, sqlx::Error>(listener)
        };
        match tokio::time::timeout(STATEMENT_TIMEOUT, listening).await {
            Ok(Ok(listener)) => Hints {
                listener: Some(listener),
            },
            _ => Hints::none(),
        }
    }

    async fn set_waiting(&self, waits: bool) -> Result<(), sqlx::Error> {
        sqlx::query("SELECT setval('tenure_outbox_waiting', $1)")
            .bind(if waits { 2_i64 } else { 1 })
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}

fn condition(which: &Which) -> &'static str {
    match which {
        Which::All => "true",
        Which::Ids(_) => "id = ANY($1)",
        Which::OlderThan(_) => "died_at < clock_timestamp() - make_interval(secs => $1)",
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

fn bound<'q>(query: Query<'q>, which: &'q Which) -> Query<'q> {
    match which {
        Which::All => query,
        Which::Ids(ids) => query.bind(ids),
        Which::OlderThan(age) => query.bind(age.as_secs_f64()),
    }
}
