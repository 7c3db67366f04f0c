//! The statements that all engines have in common, but for a few words.

use super::{COUNTED_MAX, PAGE_BYTES_MAX};
use crate::outbox::row::PAYLOAD_BYTES_MAX;

/// The columns that go from table to table.
pub(super) const MOVED: &str = "id, type, payload, queue, priority, run_at, delay_ms, max_attempts, unique_key, group_key, backoff, traceparent, tracestate, created_at";

/// The words in which engines differ.
pub(super) struct Words {
    /// The bytes of a payload.
    pub(super) payload_bytes: &'static str,
    /// Makes a number of 64 bits of `{}`.
    pub(super) number: fn(&str) -> String,
    /// Makes a text of a JSON column.
    pub(super) text: fn(&str) -> String,
    /// Milliseconds since the time in a column.
    pub(super) age: fn(&str) -> String,
}

impl Words {
    /// Rows that fit `condition`, in this order: as many as have [`PAGE_BYTES_MAX`] together, and at least one.
    pub(super) fn rows(&self, condition: &str, order: &str, limit: usize) -> String {
        let Self {
            payload_bytes,
            number,
            text,
            age,
        } = self;
        let (payload, backoff, age) = (text("payload"), text("backoff"), age("created_at"));
        let (bytes, priority) = (number("bytes"), number("priority"));
        let (attempts, max_attempts) = (number("attempts"), number("max_attempts"));
        format!(
            "SELECT seq, id, type, queue, CASE WHEN bytes <= {PAYLOAD_BYTES_MAX} THEN {payload} END, {bytes}, \
             {priority}, run_at, delay_ms, {max_attempts}, unique_key, group_key, {backoff}, traceparent, tracestate, \
             group_position, {attempts}, {age} \
             FROM (SELECT b.*, SUM(bytes) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before \
             FROM (SELECT o.*, {payload_bytes} AS bytes FROM tenure_outbox o WHERE {condition} ORDER BY {order} \
             LIMIT {limit}) b) c WHERE bytes_before < {PAGE_BYTES_MAX} ORDER BY {order}"
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
        format!(
            "SELECT {waiting}, {failing}, {dead}, \
             (SELECT {age} FROM tenure_outbox ORDER BY seq LIMIT 1), owner, holder, generation, takeover \
             FROM tenure_outbox_relay"
        )
    }

    pub(super) fn dead(&self, limit: usize) -> String {
        let (attempts, age) = ((self.number)("attempts"), (self.age)("died_at"));
        format!(
            "SELECT seq, id, type, group_key, {attempts}, COALESCE(error, ''), {age} FROM tenure_outbox_dead \
             ORDER BY seq LIMIT {limit}"
        )
    }
}

pub(super) const RELAY: &str =
    "SELECT CAST(version AS {}), owner, lineage, generation, holder FROM tenure_outbox_relay";

pub(super) fn numbers(seqs: &[i64]) -> String {
    if seqs.is_empty() {
        return "NULL".to_owned();
    }
    let seqs: Vec<String> = seqs.iter().map(ToString::to_string).collect();
    seqs.join(",")
}

/// An error as it is kept in a row.
pub(super) fn kept_error(error: &str) -> String {
    let end = error.floor_char_boundary(2_000);
    error[..end].replace('\0', " ")
}

/// Reads by place, whatever the engine.
macro_rules! decoders {
    ($row:ty) => {
        fn status(row: &$row) -> Result<Status, sqlx::Error> {
            let count = |place: usize| -> Result<u64, sqlx::Error> {
                let number: i64 = row.try_get(place)?;
                Ok(u64::try_from(number).unwrap_or(0))
            };
            let oldest: Option<i64> = row.try_get(3)?;
            Ok(Status {
                waiting: count(0)?,
                failing: count(1)?,
                dead: count(2)?,
                oldest_ms: oldest.map(|oldest| u64::try_from(oldest).unwrap_or(0)),
                owner: row.try_get(4)?,
                holder: row.try_get(5)?,
                generation: count(6)?,
                takeover: count(7)?,
            })
        }

        fn dead(row: &$row) -> Result<Dead, sqlx::Error> {
            let number = |place: usize| -> Result<u64, sqlx::Error> {
                let number: i64 = row.try_get(place)?;
                Ok(u64::try_from(number).unwrap_or(0))
            };
            Ok(Dead {
                seq: row.try_get(0)?,
                id: row.try_get(1)?,
                job_type: row.try_get(2)?,
                group: row.try_get(3)?,
                attempts: number(4)?,
                error: row.try_get(5)?,
                age_ms: number(6)?,
            })
        }

        fn relay_row(row: &$row) -> Result<RelayRow, sqlx::Error> {
            Ok(RelayRow {
                version: row.try_get(0)?,
                owner: row.try_get(1)?,
                lineage: row.try_get(2)?,
                generation: row.try_get(3)?,
                holder: row.try_get(4)?,
            })
        }

        fn light(row: &$row) -> Result<Light, sqlx::Error> {
            Ok(Light {
                seq: row.try_get(0)?,
                group: row.try_get(1)?,
            })
        }
    };
}
pub(super) use decoders;
