//! PostgreSQL. Each change is one statement: there is no transaction that a paused relay could leave open.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPool, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};

use super::shared::{self, MOVED, Words, delete_some as portion};
use super::{Error, Hints, Identity, STATEMENT_TIMEOUT, Settlement, Which};
use crate::fence::claim::Claims as _;
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

/// What went wrong with which row. As bytes, since a database with another encoding refuses the whole statement for a sign that it does not
/// have; it gets the text without such signs.
const WHY: &str = "why AS (SELECT seq, CASE WHEN getdatabaseencoding() = 'UTF8' THEN convert_from(bytes, 'UTF8') ELSE plain END AS error \
     FROM unnest($2::bigint[], $3::bytea[], $4::text[]) AS w (seq, bytes, plain))";

/// The columns that go to the dead table, numbers no larger than it takes: somebody may have changed the type of the other table's.
fn fitting() -> String {
    let number = |column: &str, most: i64, kind: &str| {
        // Both functions leave NULL out.
        format!(
            "CASE WHEN {column} IS NOT NULL THEN least(greatest({column}, -{most}), {most})::{kind} END"
        )
    };
    let priority = number("priority", 32_767, "smallint");
    let max_attempts = number("max_attempts", 2_147_483_647, "integer");
    let moved = MOVED.replace("priority", &priority);
    moved.replace("max_attempts", &max_attempts)
}

/// A database of the encoding `SQL_ASCII` keeps any bytes, and refuses a whole statement to a client of UTF-8 if one row has bytes
/// that are none. Without a conversion such a row comes as it is, and is refused alone.
async fn take_any_bytes(connection: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query(
        "SELECT set_config('client_encoding', 'SQL_ASCII', false) WHERE getdatabaseencoding() = 'SQL_ASCII'",
    )
    .persistent(false)
    .execute(connection)
    .await?;
    Ok(())
}

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
            .after_connect(|connection, _| Box::pin(take_any_bytes(connection)))
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
        let counted = shared::COUNTED_ON;
        if !settlement.failed.is_empty() {
            let failed = format!(
                "{FENCE}, {WHY} UPDATE tenure_outbox SET attempts = {counted}, error = why.error \
                 FROM why WHERE tenure_outbox.seq = why.seq AND EXISTS (SELECT FROM fence)"
            );
            self.write_down(&failed, takeover, &settlement.failed)
                .await?;
        }
        if !settlement.dead.is_empty() {
            let fitting = fitting();
            // A number that another dead row has comes after a TRUNCATE.
            let moved = format!(
                "{FENCE}, {WHY}, gone AS (DELETE FROM tenure_outbox WHERE seq IN (SELECT seq FROM why) \
                 AND EXISTS (SELECT FROM fence) RETURNING *), \
                 taken AS (SELECT seq FROM tenure_outbox_dead WHERE seq IN (SELECT seq FROM why)), \
                 free AS (SELECT max(seq) AS after FROM (SELECT seq FROM gone UNION ALL SELECT max(seq) FROM tenure_outbox_dead) n) \
                 INSERT INTO tenure_outbox_dead (seq, {MOVED}, group_position, attempts, error) \
                 SELECT CASE WHEN seq IN (SELECT seq FROM taken) THEN (SELECT after FROM free) + row_number() OVER (ORDER BY seq) ELSE seq END, \
                 {fitting}, group_position, {counted}, (SELECT error FROM why WHERE why.seq = gone.seq) FROM gone"
            );
            self.write_down(&moved, takeover, &settlement.dead).await?;
        }
        Ok(true)
    }

    /// One statement for all: with one for each, all others would wait while many fail.
    async fn write_down(
        &self,
        statement: &str,
        takeover: i64,
        rows: &[(i64, String)],
    ) -> Result<(), sqlx::Error> {
        let (seqs, errors): (Vec<i64>, Vec<String>) = rows
            .iter()
            .map(|(seq, error)| (*seq, shared::kept_error(error)))
            .unzip();
        let plain: Vec<String> = errors
            .iter()
            .map(|error| error.replace(|sign: char| !sign.is_ascii(), "?"))
            .collect();
        let bytes: Vec<Vec<u8>> = errors.into_iter().map(String::into_bytes).collect();
        sqlx::query(AssertSqlSafe(statement.to_owned()))
            .bind(takeover)
            .bind(seqs)
            .bind(bytes)
            .bind(plain)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn retry(&self, which: &Which, last: i64, limit: usize) -> Result<u64, sqlx::Error> {
        // The order of the dead table is that of the group: its trigger counts as rows come. The groups' counters are taken in the order in which
        // `submit_all` takes them.
        let statement = format!(
            "WITH back AS (DELETE FROM tenure_outbox_dead WHERE seq IN (SELECT seq FROM tenure_outbox_dead \
             WHERE seq <= {last} AND {} ORDER BY seq LIMIT {limit}) RETURNING *) \
             INSERT INTO tenure_outbox ({MOVED}) SELECT {MOVED} FROM back ORDER BY group_key COLLATE \"C\" NULLS FIRST, seq",
            condition(which)
        );
        let query = bound(
            sqlx::query(AssertSqlSafe(statement)).persistent(false),
            which,
        );
        Ok(query.execute(&self.pool).await?.rows_affected())
    }

    async fn drop_groups(
        &self,
        takeover: i64,
        groups: &[(String, i64)],
    ) -> Result<(), sqlx::Error> {
        for (group, last) in groups {
            // A group whose rows are not all to be had is in use: a transaction holds one. One that has counted on meanwhile keeps its number.
            let statement = "WITH held AS MATERIALIZED (SELECT last FROM tenure_outbox_groups WHERE group_key = $1 FOR UPDATE SKIP LOCKED) \
                 DELETE FROM tenure_outbox_groups WHERE group_key = $1 AND last IN (0, $2) AND $2 IN (SELECT last FROM held) \
                 AND (SELECT count(*) FROM held) = (SELECT count(*) FROM tenure_outbox_groups WHERE group_key = $1) \
                 AND EXISTS (SELECT FROM tenure_outbox_relay WHERE takeover = $3)";
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
