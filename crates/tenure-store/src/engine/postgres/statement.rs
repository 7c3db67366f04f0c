//! The statements that the PostgreSQL engine sends, as text.
//!
//! They carry their values inside (see the engine for why), so this is the one place that must get
//! quoting right, and it does so by having nothing to quote: a [`Literal`] has no character that means
//! anything inside quotes, values travel as hexadecimal digits, versions as numbers. None of it depends
//! on a setting of the server such as `standard_conforming_strings` or `bytea_output`.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use super::super::sql::{LISTED_MAX, Range, STATEMENT_WITHIN, TABLE};
use super::announcer::Announcement;
use crate::{Key, Prefix};

/// How long a statement takes at the server at most, in milliseconds. Less than the client waits for the answer: a
/// change must not be applied long after its writer has stopped waiting.
const STATEMENT_MILLISECONDS_MAX: u128 = STATEMENT_WITHIN.as_millis() * 4 / 5;

/// How much of that it waits for a lock at most.
const LOCK_MILLISECONDS_MAX: u128 = 2000;

/// A statement with its bounds before it, see [`bounds`].
pub(super) fn bounded(statement: &str) -> String {
    format!("{}{statement}", bounds())
}

/// The settings in front of every statement. Waiting for a locked table or row ends soon: by then the caller has
/// stopped waiting, and its server process must not stay behind. The settings end with the transaction, since behind a
/// pooler others use the same session.
fn bounds() -> String {
    format!(
        "SET LOCAL lock_timeout = {LOCK_MILLISECONDS_MAX};\
         SET LOCAL statement_timeout = {STATEMENT_MILLISECONDS_MAX};"
    )
}

/// What the database reports about itself, about the table, and about the views: whether they are as this version makes
/// them. The schema is `NULL` if there is no table.
pub(super) const LOOK: &str = "SELECT current_database()::text, quote_ident(n.nspname), \
     pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'), \
     EXISTS (SELECT FROM pg_attribute AS a WHERE a.attname = 'failures' \
             AND a.attrelid = to_regclass(quote_ident(n.nspname) || '.tenure_daemons')) \
     FROM (SELECT to_regclass('tenure_objects') AS id) AS t \
     LEFT JOIN pg_class AS c ON c.oid = t.id LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace";

/// `COLLATE "C"` is byte order, whatever the database's language.
pub(super) const CREATE: &str = "CREATE TABLE IF NOT EXISTS tenure_objects (\
     key text COLLATE \"C\" PRIMARY KEY, version bigint NOT NULL, \
     modified_at timestamptz NOT NULL, value bytea NOT NULL)";

/// Makes the views for people in a schema that the server has quoted, all of them or none.
pub(super) fn views(quoted_schema: &str) -> String {
    let views = include_str!("../views/postgres.sql");
    format!("SET LOCAL search_path TO {quoted_schema};\n{views}")
}

/// The process that serves this statement, the time on the server's clock, and when that process began,
/// in microseconds.
pub(super) const BACKEND: &str = "SELECT pid, \
     (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
     (extract(epoch FROM backend_start) * 1000000)::bigint \
     FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// The table, once it is known to be there.
#[derive(Debug)]
pub(super) struct Table {
    /// With its schema, quoted by the server, so that later statements do not depend on a search path.
    name: String,
    /// The settings in front of every change. They end with the transaction, since behind a pooler others use the same
    /// session.
    settings: String,
}

impl Table {
    pub(super) fn new(quoted_schema: &str, synchronous_commit: &str) -> Self {
        let mut settings = bounds();
        if synchronous_commit == "off" {
            // A write reported as done must survive a crash, even in a database where other data need not.
            settings.push_str("SET LOCAL synchronous_commit = on;");
        }
        Self {
            name: format!("{quoted_schema}.{TABLE}"),
            settings,
        }
    }

    /// With `NULL` for the value if the version is still `version`.
    pub(super) fn get(&self, key: &Key, version: i64) -> String {
        format!(
            "SELECT version, {AGE}, CASE WHEN version <> {version} THEN encode(value, 'hex') END \
             FROM {} WHERE key = {}",
            self.name,
            Literal::new(key.as_str())
        )
    }

    /// Creates the object at `version`, if there is none.
    pub(super) fn insert(&self, key: &Key, value: &[u8], version: i64) -> String {
        self.change(value.len(), |sql| {
            write!(
                sql,
                "INSERT INTO {} (key, version, modified_at, value) \
                 VALUES ({}, {version}, clock_timestamp(), ",
                self.name,
                Literal::new(key.as_str())
            )?;
            write_bytes(sql, value);
            sql.write_str(") ON CONFLICT (key) DO NOTHING")
        })
    }

    /// Moves the object from the version `expected` to `version`.
    pub(super) fn update(&self, key: &Key, value: &[u8], expected: i64, version: i64) -> String {
        self.change(value.len(), |sql| {
            write!(
                sql,
                "UPDATE {} SET version = {version}, modified_at = clock_timestamp(), value = ",
                self.name
            )?;
            write_bytes(sql, value);
            write!(
                sql,
                " WHERE key = {} AND version = {expected}",
                Literal::new(key.as_str())
            )
        })
    }

    pub(super) fn delete(&self, key: &Key) -> String {
        self.change(0, |sql| {
            let key = Literal::new(key.as_str());
            write!(sql, "DELETE FROM {} WHERE key = {key}", self.name)
        })
    }

    pub(super) fn list(&self, range: &Range<'_>) -> String {
        format!(
            "SELECT key, version FROM {} WHERE key > {} AND key < {} ORDER BY key LIMIT {LISTED_MAX}",
            self.name,
            Literal::new(range.above),
            Literal::new(&range.below)
        )
    }

    /// One row is counted if the change was applied, none if not.
    fn change(
        &self,
        value_bytes: usize,
        write_change: impl FnOnce(&mut String) -> fmt::Result,
    ) -> String {
        let mut sql = String::with_capacity(self.settings.len() + value_bytes * 2 + 2048);
        sql.push_str(&self.settings);
        write_change(&mut sql).expect("writing to a string does not fail");
        sql
    }

    /// Where a change of the key is announced; `None` if nobody could watch it.
    pub(super) fn channel_of(&self, key: &Key) -> Option<String> {
        channel_of_key(&self.name, key)
    }

    /// Where changes under the prefix are announced; `None` if it is too short to have one channel.
    pub(super) fn channel(&self, prefix: &Prefix) -> Option<String> {
        channel(&self.name, prefix.as_str())
    }
}

/// Announces changes, each on its channel. The commit is not flushed, whatever the database's setting: nothing is stored.
pub(super) fn announce(announcements: &BTreeSet<Announcement>) -> String {
    let mut sql = bounds();
    sql.push_str(
        "SET LOCAL synchronous_commit = off;\
         SELECT pg_notify(channel, key) FROM (VALUES ",
    );
    for (index, (channel, key)) in announcements.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let (channel, key) = (Literal::new(channel), Literal::new(key.as_str()));
        write!(sql, "{comma}({channel}, {key})").expect("writing to a string does not fail");
    }
    sql.push_str(") AS changed (channel, key)");
    sql
}

/// The age is only for display: the clock may have been set since the row was written, and may have been another
/// server's then.
const AGE: &str = "(extract(epoch FROM clock_timestamp() - modified_at) * 1000000)::bigint";

/// Keys of fewer than three segments lie under no prefix of two, so nobody could watch them.
fn channel_of_key(table: &str, key: &Key) -> Option<String> {
    let deep = key.segments().nth(2).is_some();
    deep.then(|| channel(table, key.as_str()))?
}

/// One channel for all keys with the same first two segments: a watcher of elections is not woken by every heartbeat.
/// Channels belong to a database, so table and schema are enough to tell stores apart. Two channels that hash alike
/// cost a needless look, since the whole key is in the announcement.
fn channel(table: &str, path: &str) -> Option<String> {
    let mut slashes = path.match_indices('/');
    let (end, _) = slashes.nth(1)?;
    // FNV-1a: short, and the same in every version and build of this program.
    let hash = [table, "\0", &path[..end]]
        .iter()
        .flat_map(|part| part.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    Some(format!("tenure_{hash:016x}"))
}

/// Quoted text, of characters that have no meaning in quotes and escapes.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    /// # Panics
    /// On any other text. Keys and prefixes were checked when they were made. This second check keeps a change of those
    /// rules from becoming an injection.
    fn new(text: &'a str) -> Self {
        let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@+=/~".contains(&byte);
        assert!(text.bytes().all(harmless), "a key that would need quoting");
        Self(text)
    }
}

impl fmt::Display for Literal<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "'{}'", self.0)
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

fn write_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("decode('");
    for byte in bytes {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push_str("', 'hex')");
}

/// The bytes that hexadecimal digits spell, as `encode(…, 'hex')` writes them.
pub(super) fn read_bytes(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs
        .iter()
        .map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?))
        .collect::<Option<Vec<u8>>>()?;
    rest.is_empty().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn what_would_need_quoting_never_becomes_a_statement() {
        for text in ["'", "\\", "a'b", "a b", "a;b", "\0", "é", "$1", "\n", "\""] {
            let made = std::panic::catch_unwind(|| Literal::new(text).to_string());
            assert!(made.is_err(), "{text:?}");
        }
        assert_eq!(Literal::new("a/b:c@d+e=f.g-h_i").0, "a/b:c@d+e=f.g-h_i");
    }

    #[test]
    fn bytes_come_back_from_their_digits() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut sql = String::new();
        write_bytes(&mut sql, &bytes);
        let digits = sql.strip_prefix("decode('").unwrap();
        let digits = digits.strip_suffix("', 'hex')").unwrap();
        assert_eq!(read_bytes(digits), Some(bytes));
        assert_eq!(read_bytes(""), Some(Vec::new()));
        for wrong in ["0", "0g", "0 ", "\\x00"] {
            assert_eq!(read_bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn keys_of_one_folder_share_a_channel_and_others_do_not() {
        let prefix = Prefix::new("prod/elections").unwrap();
        let watched = channel("public.tenure_objects", prefix.as_str());
        let of = |table: &str, text: &str| channel_of_key(table, &key(text));
        assert!(watched.is_some());
        assert_eq!(
            watched,
            of("public.tenure_objects", "prod/elections/default")
        );
        assert_eq!(watched, of("public.tenure_objects", "prod/elections/a/b"));
        assert_ne!(watched, of("public.tenure_objects", "prod/nodes/default"));
        assert_ne!(
            watched,
            of("other.tenure_objects", "prod/elections/default")
        );
        assert_eq!(of("public.tenure_objects", "prod/assignments"), None);
        assert_eq!(channel("public.tenure_objects", "prod/"), None);
    }

    #[test]
    fn a_change_is_announced_only_if_it_can_be_watched_and_never_by_itself() {
        let table = Table::new("public", "on");
        assert!(table.channel_of(&key("a/b/c")).is_some());
        assert!(table.channel_of(&key("a/b")).is_none());
        let (key, value) = (key("a/b/c"), b"1");
        for change in [
            table.insert(&key, value, 1),
            table.update(&key, value, 1, 2),
            table.delete(&key),
        ] {
            assert!(!change.contains("notify"), "{change}");
        }
    }

    #[test]
    fn an_announcement_is_for_many_and_is_not_flushed() {
        let announcement = |channel: &str, text| (channel.to_owned(), key(text));
        let announcements = [announcement("c1", "a/b/c"), announcement("c2", "a/d/e")];
        let statement = announce(&BTreeSet::from(announcements));
        assert!(statement.starts_with(&bounds()));
        let rest = &statement[bounds().len()..];
        assert_eq!(
            rest,
            "SET LOCAL synchronous_commit = off;SELECT pg_notify(channel, key) FROM \
             (VALUES ('c1', 'a/b/c'), ('c2', 'a/d/e')) AS changed (channel, key)"
        );
    }

    #[test]
    fn a_database_that_need_not_be_durable_is_told_to_be() {
        let sure = "SET LOCAL synchronous_commit = on";
        let delete = |setting| Table::new("public", setting).delete(&key("a"));
        assert!(delete("off").contains(sure));
        assert!(!delete("on").contains(sure));
        assert!(!delete("remote_apply").contains(sure));
    }
}
