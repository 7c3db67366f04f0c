//! The statements that all engines have in common, but for a few words.

use std::time::Duration;

use super::{COUNTED_MAX, PAGE_BYTES_MAX, Wanted};
use crate::outbox::row::{PAYLOAD_BYTES_MAX, TEXT_BYTES_MAX};

/// The columns that go from table to table.
pub(super) const MOVED: &str = "id, type, payload, queue, priority, run_at, delay_ms, max_attempts, unique_key, group_key, backoff, traceparent, tracestate, created_at";

/// The columns with text, but for the payload.
const TEXTS: [&str; 8] = [
    "id",
    "type",
    "queue",
    "unique_key",
    "group_key",
    "backoff",
    "traceparent",
    "tracestate",
];

/// The words in which engines differ.
pub(super) struct Words {
    /// The bytes of a column.
    pub(super) bytes: fn(&str) -> String,
    /// Makes a number of 64 bits of `{}`.
    pub(super) number: fn(&str) -> String,
    /// Makes a text of a JSON column.
    pub(super) text: fn(&str) -> String,
    /// Milliseconds since the time in a column.
    pub(super) age: fn(&str) -> String,
    /// What stands for the first value, the second and so on.
    pub(super) mark: fn(usize) -> String,
    /// The type of a number of 64 bits.
    pub(super) signed: &'static str,
}

impl Words {
    /// The rows that are wanted.
    pub(super) fn wanted(&self, wanted: &Wanted) -> String {
        match wanted {
            Wanted::After(_, limit) => {
                let condition = format!("o.seq > {}", (self.mark)(1));
                self.rows(&condition, "seq", *limit)
            }
            Wanted::These(seqs) => {
                let condition = format!("o.seq IN ({})", numbers(seqs));
                self.rows(&condition, "seq", seqs.len().max(1))
            }
            Wanted::Groups(groups, limit) => {
                let marks: Vec<String> = (1..=groups.len()).map(self.mark).collect();
                let condition = format!("o.group_key IN ({})", marks.join(","));
                self.rows(&condition, "group_key, group_position", *limit)
            }
        }
    }

    /// Rows that fit `condition`, in this order: as many as have [`PAGE_BYTES_MAX`] together, and at least one.
    fn rows(&self, condition: &str, order: &str, limit: usize) -> String {
        let Self {
            number, text, age, ..
        } = self;
        let (payload, age) = (text("payload"), age("created_at"));
        let (bytes, payload_bytes) = (number("bytes"), (self.bytes)("o.payload"));
        let (priority, attempts) = (number("priority"), number("attempts"));
        let max_attempts = number("max_attempts");
        let [id, job_type, queue] = ["id", "type", "queue"].map(|column| self.short(column));
        let [unique_key, group_key] = ["unique_key", "group_key"].map(|column| self.short(column));
        let [backoff, traceparent] = ["backoff", "traceparent"].map(|column| self.short(column));
        let (tracestate, too_long) = (self.short("tracestate"), self.too_long());
        format!(
            "SELECT seq, {id}, {job_type}, {queue}, CASE WHEN bytes <= {PAYLOAD_BYTES_MAX} THEN {payload} END, {bytes}, \
             {priority}, run_at, delay_ms, {max_attempts}, {unique_key}, {group_key}, {backoff}, {traceparent}, {tracestate}, \
             group_position, {attempts}, {age}, {too_long} \
             FROM (SELECT b.*, SUM(bytes) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before \
             FROM (SELECT o.*, {payload_bytes} AS bytes FROM tenure_outbox o WHERE {condition} ORDER BY {order} \
             LIMIT {limit}) b) c WHERE bytes_before < {PAGE_BYTES_MAX} ORDER BY {order}"
        )
    }

    /// A text, or nothing of it where it is longer than any that fits a job: a thousand rows are read at once, and anybody inserts
    /// what they like.
    fn short(&self, column: &str) -> String {
        let (bytes, text) = ((self.bytes)(column), (self.text)(column));
        format!("CASE WHEN {bytes} > {TEXT_BYTES_MAX} THEN '' ELSE {text} END")
    }

    /// The name of the first column that is too long, if one is.
    fn too_long(&self) -> String {
        let cases = TEXTS.map(|column| {
            let bytes = (self.bytes)(column);
            format!("WHEN {bytes} > {TEXT_BYTES_MAX} THEN '{column}'")
        });
        format!("CASE {} END", cases.join(" "))
    }

    pub(super) fn sweep(&self) -> String {
        let (from, to, limit) = ((self.mark)(1), (self.mark)(2), (self.mark)(3));
        let group = self.short("group_key");
        format!(
            "SELECT seq, {group} FROM tenure_outbox WHERE seq > {from} AND seq <= {to} ORDER BY seq LIMIT {limit}"
        )
    }

    pub(super) fn idle_groups(&self) -> String {
        let (after, limit, bytes) = ((self.mark)(1), (self.mark)(2), (self.bytes)("group_key"));
        format!(
            "SELECT group_key, last FROM tenure_outbox_groups g WHERE group_key > {after} AND last > 0 AND {bytes} <= {TEXT_BYTES_MAX} \
             AND NOT EXISTS (SELECT 1 FROM tenure_outbox o WHERE o.group_key = g.group_key) ORDER BY group_key LIMIT {limit}"
        )
    }

    pub(super) fn relay(&self) -> String {
        let signed = self.signed;
        format!(
            "SELECT CAST(version AS {signed}), owner, lineage, generation, holder, takeover FROM tenure_outbox_relay"
        )
    }

    pub(super) fn status(&self) -> String {
        let (number, age) = (self.number, (self.age)("created_at"));
        let count = |rows: &str| {
            number(&format!(
                "(SELECT COUNT(*) FROM (SELECT 1 FROM {rows} LIMIT {COUNTED_MAX}) t)"
            ))
        };
        let waiting = count("tenure_outbox");
        let failing = count("tenure_outbox WHERE attempts > 0");
        let dead = count("tenure_outbox_dead");
        let error = self.short("error");
        format!(
            "SELECT {waiting}, {failing}, {dead}, \
             (SELECT {age} FROM tenure_outbox ORDER BY seq LIMIT 1), owner, holder, generation, takeover, \
             (SELECT {error} FROM tenure_outbox WHERE attempts > 0 ORDER BY seq LIMIT 1) FROM tenure_outbox_relay"
        )
    }

    pub(super) fn dead(&self, limit: usize) -> String {
        let (attempts, age) = ((self.number)("attempts"), (self.age)("died_at"));
        let [id, job_type, group] = ["id", "type", "group_key"].map(|column| self.short(column));
        format!(
            "SELECT seq, {id}, {job_type}, {group}, {attempts}, COALESCE(error, ''), {age} FROM tenure_outbox_dead \
             ORDER BY seq LIMIT {limit}"
        )
    }
}

/// A result whose claim is not known any more.
pub(super) const RESULT_IS_LEFT: &str = "NOT EXISTS \
     (SELECT 1 FROM tenure_claims WHERE tenure_claims.job = tenure_claim_results.job)";

/// The statement of a schema that makes this table.
pub(super) fn statement_for(table: &str, schema: &'static str) -> &'static str {
    let begin = format!("CREATE TABLE IF NOT EXISTS {table} ");
    let rest = schema.find(&begin).map_or("", |at| &schema[at..]);
    rest.find(';').map_or(rest, |end| &rest[..=end])
}

pub(super) const RELEASE: &str = "UPDATE tenure_outbox_relay SET takeover = takeover + 1, owner = NULL, \
     lineage = NULL, generation = 0, holder = NULL";

/// One attempt more. Anybody may have inserted a number that has no next one.
pub(super) const COUNTED_ON: &str =
    "CASE WHEN attempts < 2147483647 THEN attempts + 1 ELSE attempts END";

pub(super) fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Whole seconds.
pub(super) fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

pub(super) fn numbers(seqs: &[i64]) -> String {
    if seqs.is_empty() {
        return "NULL".to_owned();
    }
    let seqs: Vec<String> = seqs.iter().map(ToString::to_string).collect();
    seqs.join(",")
}

/// Deletes some of the rows that fit a condition.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) fn delete_some(table: &str, key: &str, condition: &str, limit: usize) -> String {
    format!(
        "DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} WHERE {condition} LIMIT {limit})"
    )
}

/// An error as it is kept in a row.
pub(super) fn kept_error(error: &str) -> String {
    let end = error.floor_char_boundary(2_000);
    error[..end].replace('\0', " ")
}

/// Makes `$engine` the tables of an outbox. What is the same everywhere is here; the rest are methods of `$engine` with the
/// same names. Rows are read by place.
macro_rules! tables {
    ($engine:ident, $row:ty, $schema:expr) => {
        #[async_trait::async_trait]
        impl super::Tables for $engine {
            fn schema(&self) -> &'static str {
                $schema
            }

            async fn is_there(&self) -> Result<bool, Error> {
                Ok($engine::is_there(self).await?)
            }

            async fn create(&self) -> Result<(), Error> {
                Ok(self.pool.acquire().await?.create_tables().await?)
            }

            async fn add_missing(&self) -> Result<(), Error> {
                let mut connection = self.pool.acquire().await?;
                if !connection.has_results().await? {
                    let statement = shared::statement_for("tenure_claim_results", $schema);
                    sqlx::raw_sql(statement).execute(&mut *connection).await?;
                }
                Ok(())
            }

            async fn connect(&self) -> Result<(), Error> {
                let connection = self.pool.connect_options().connect().await?;
                Ok(connection.close().await?)
            }

            async fn relay(&self) -> Result<super::RelayRow, Error> {
                let row = sqlx::query(AssertSqlSafe(WORDS.relay())).fetch_one(&self.pool);
                Ok(relay_row(&row.await?)?)
            }

            async fn take_over(&self, identity: &Identity) -> Result<Option<i64>, Error> {
                Ok($engine::take_over(self, identity).await?)
            }

            async fn release(&self) -> Result<(), Error> {
                sqlx::query(shared::RELEASE).execute(&self.pool).await?;
                Ok(())
            }

            async fn rows(&self, wanted: &super::Wanted) -> Result<Vec<Row>, Error> {
                use super::Wanted::{After, Groups, These};

                let query = sqlx::query(AssertSqlSafe(WORDS.wanted(wanted)));
                let query = match wanted {
                    After(after, _) => query.bind(after),
                    // Its text is never the same.
                    These(_) => query.persistent(false),
                    Groups(groups, _) => {
                        let query = query.persistent(false);
                        groups.iter().fold(query, |query, group| query.bind(group))
                    }
                };
                let rows = query.fetch_all(&self.pool).await?;
                let rows: Result<_, sqlx::Error> = rows.iter().map(row::decode).collect();
                Ok(rows?)
            }

            async fn sweep(
                &self,
                from: i64,
                to: i64,
                limit: usize,
            ) -> Result<Vec<super::Light>, Error> {
                let query = sqlx::query(AssertSqlSafe(WORDS.sweep()));
                let query = query.bind(from).bind(to).bind(shared::number(limit));
                let rows = query.fetch_all(&self.pool).await?;
                let rows: Result<_, sqlx::Error> = rows.iter().map(light).collect();
                Ok(rows?)
            }

            async fn settle(&self, takeover: i64, settlement: &Settlement) -> Result<bool, Error> {
                Ok($engine::settle(self, takeover, settlement).await?)
            }

            async fn idle_groups(
                &self,
                after: &str,
                limit: usize,
            ) -> Result<Vec<(String, i64)>, Error> {
                let query = sqlx::query(AssertSqlSafe(WORDS.idle_groups()));
                let query = query.bind(after).bind(shared::number(limit));
                let rows = query.fetch_all(&self.pool).await?;
                // The counter of a group that is not text stays: no name of it could be bound.
                let idle = rows
                    .iter()
                    .filter_map(|row| Some((row.try_get(0).ok()?, row.try_get(1).ok()?)));
                Ok(idle.collect())
            }

            async fn drop_groups(
                &self,
                takeover: i64,
                groups: &[(String, i64)],
            ) -> Result<(), Error> {
                Ok($engine::drop_groups(self, takeover, groups).await?)
            }

            async fn status(&self) -> Result<super::Status, Error> {
                let row = sqlx::query(AssertSqlSafe(WORDS.status())).fetch_one(&self.pool);
                Ok(status(&row.await?)?)
            }

            async fn dead(&self, limit: usize) -> Result<Vec<super::Dead>, Error> {
                let query = sqlx::query(AssertSqlSafe(WORDS.dead(limit)));
                let rows = query.fetch_all(&self.pool).await?;
                let rows: Result<_, sqlx::Error> = rows.iter().map(dead).collect();
                Ok(rows?)
            }

            async fn dead_among(&self, ids: &[String]) -> Result<Vec<String>, Error> {
                let which = Which::Ids(ids.to_vec());
                let statement = format!(
                    "SELECT DISTINCT id FROM tenure_outbox_dead WHERE {}",
                    condition(&which)
                );
                let query = sqlx::query(AssertSqlSafe(statement)).persistent(false);
                let rows = bound(query, &which).fetch_all(&self.pool).await?;
                let found: Result<_, sqlx::Error> = rows.iter().map(|row| row.try_get(0)).collect();
                Ok(found?)
            }

            async fn last_dead(&self) -> Result<Option<i64>, Error> {
                let query = sqlx::query_scalar("SELECT MAX(seq) FROM tenure_outbox_dead");
                Ok(query.fetch_one(&self.pool).await?)
            }

            async fn retry(&self, which: &Which, last: i64, limit: usize) -> Result<u64, Error> {
                Ok($engine::retry(self, which, last, limit).await?)
            }

            async fn purge(&self, which: &Which, limit: usize) -> Result<u64, Error> {
                let statement = portion("tenure_outbox_dead", "seq", &condition(which), limit);
                let query = sqlx::query(AssertSqlSafe(statement)).persistent(false);
                let query = bound(query, which);
                Ok(query.execute(&self.pool).await?.rows_affected())
            }

            async fn purge_claims(&self, older_than: Duration, limit: usize) -> Result<u64, Error> {
                let statement = portion("tenure_claims", "job", CLAIM_IS_OLD, limit);
                let query = sqlx::query(AssertSqlSafe(statement));
                let query = query.bind(shared::seconds(older_than));
                Ok(query.execute(&self.pool).await?.rows_affected())
            }

            async fn purge_results(&self, limit: usize) -> Result<u64, Error> {
                let mut connection = self.pool.acquire().await?;
                if !connection.has_results().await? {
                    return Ok(0);
                }
                let table = "tenure_claim_results";
                let statement = portion(table, "job", shared::RESULT_IS_LEFT, limit);
                let query = sqlx::query(AssertSqlSafe(statement));
                Ok(query.execute(&mut *connection).await?.rows_affected())
            }

            async fn hints(&self) -> super::Hints {
                $engine::hints(self).await
            }

            async fn set_waiting(&self, waits: bool) -> Result<(), Error> {
                Ok($engine::set_waiting(self, waits).await?)
            }
        }

        fn status(row: &$row) -> Result<super::Status, sqlx::Error> {
            let count = |place: usize| -> Result<u64, sqlx::Error> {
                let number: i64 = row.try_get(place)?;
                Ok(u64::try_from(number).unwrap_or(0))
            };
            let oldest: Option<i64> = row.try_get(3)?;
            Ok(super::Status {
                waiting: count(0)?,
                failing: count(1)?,
                dead: count(2)?,
                oldest_ms: oldest.map(|oldest| u64::try_from(oldest).unwrap_or(0)),
                owner: row.try_get(4)?,
                holder: row.try_get(5)?,
                generation: count(6)?,
                takeover: count(7)?,
                error: row::shown(row, 8)?,
            })
        }

        fn dead(row: &$row) -> Result<super::Dead, sqlx::Error> {
            let number = |place: usize| -> Result<u64, sqlx::Error> {
                let number: i64 = row.try_get(place)?;
                Ok(u64::try_from(number).unwrap_or(0))
            };
            Ok(super::Dead {
                seq: row.try_get(0)?,
                id: row::shown(row, 1)?.unwrap_or_default(),
                job_type: row::shown(row, 2)?.unwrap_or_default(),
                group: row::shown(row, 3)?,
                attempts: number(4)?,
                error: row::shown(row, 5)?.unwrap_or_default(),
                age_ms: number(6)?,
            })
        }

        fn relay_row(row: &$row) -> Result<super::RelayRow, sqlx::Error> {
            Ok(super::RelayRow {
                version: row.try_get(0)?,
                owner: row.try_get(1)?,
                lineage: row.try_get(2)?,
                generation: row.try_get(3)?,
                holder: row.try_get(4)?,
                takeover: row.try_get(5)?,
            })
        }

        fn light(row: &$row) -> Result<super::Light, sqlx::Error> {
            Ok(super::Light {
                seq: row.try_get(0)?,
                group: row::group(row, 1)?,
            })
        }
    };
}
pub(super) use tables;

/// What an engine without arrays says of [`Which`](super::Which) rows: a mark for each value.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
macro_rules! marked {
    ($database:ty, $arguments:ty, $older:literal) => {
        fn condition(which: &Which) -> String {
            match which {
                Which::All => "TRUE".to_owned(),
                Which::Ids(ids) => format!("id IN ({})", vec!["?"; ids.len().max(1)].join(",")),
                Which::OlderThan(_) => $older.to_owned(),
            }
        }

        type Query<'q> = sqlx::query::Query<'q, $database, $arguments>;

        fn bound<'q>(query: Query<'q>, which: &'q Which) -> Query<'q> {
            match which {
                Which::All => query,
                Which::Ids(ids) if ids.is_empty() => query.bind(""),
                Which::Ids(ids) => ids.iter().fold(query, |query, id| query.bind(id)),
                Which::OlderThan(age) => query.bind(shared::seconds(*age)),
            }
        }
    };
}
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) use marked;

/// Writes down what failed and what is dead, row by row, in a transaction that holds the fence.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
macro_rules! write_down {
    ($transaction:ident, $settlement:ident) => {
        for (seq, error) in &$settlement.failed {
            let counted = shared::COUNTED_ON;
            let failed =
                format!("UPDATE tenure_outbox SET attempts = {counted}, error = ? WHERE seq = ?");
            sqlx::query(AssertSqlSafe(failed))
                .bind(shared::kept_error(error))
                .bind(seq)
                .execute(&mut *$transaction)
                .await?;
        }
        for (seq, error) in &$settlement.dead {
            let counted = shared::COUNTED_ON;
            // A number that another dead row has comes after a TRUNCATE.
            let copied = format!(
                "INSERT INTO tenure_outbox_dead (seq, {MOVED}, group_position, attempts, error) \
                 SELECT CASE WHEN EXISTS (SELECT 1 FROM tenure_outbox_dead d WHERE d.seq = o.seq) \
                 THEN (SELECT MAX(seq) + 1 FROM tenure_outbox_dead) ELSE seq END, \
                 {MOVED}, group_position, {counted}, ? FROM tenure_outbox o WHERE seq = ?"
            );
            sqlx::query(AssertSqlSafe(copied))
                .bind(shared::kept_error(error))
                .bind(seq)
                .execute(&mut *$transaction)
                .await?;
            sqlx::query("DELETE FROM tenure_outbox WHERE seq = ?")
                .bind(seq)
                .execute(&mut *$transaction)
                .await?;
        }
    };
}
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) use write_down;
