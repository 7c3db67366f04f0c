//! What the SQL engines share.
//!
//! Objects are rows of one table, [`TABLE`]. Every operation is one statement in its own transaction, so the database's
//! row locks are all that the compare-and-swap needs. A version is a random number that the writer makes, so it does
//! not come back after a delete. An engine implements [`Rows`] for its database; that makes it a [`Store`].

mod fate;
mod pool;

use async_trait::async_trait;
use bytes::Bytes;

pub(super) use self::fate::*;
pub(super) use self::pool::*;
use crate::{
    Change, Description, Entry, Error, Expect, Key, Object, PAGE_ENTRIES_MAX, Page, Prefix, Store,
    Version, Watch, check_value,
};

/// Where the objects are.
pub(super) const TABLE: &str = "tenure_objects";

/// The rows of the table in one database.
pub(super) trait Rows: Send + Sync + std::fmt::Debug + 'static {
    fn description(&self) -> Description;

    /// The row of `key`, without its value if it has the version `known`.
    fn find(
        &self,
        key: &Key,
        known: i64,
    ) -> impl Future<Output = Result<Option<Found>, Error>> + Send;

    /// Writes the row if it has the version `expected`, or if there is none and none is expected. Returns how many rows
    /// were changed.
    fn write(
        &self,
        key: &Key,
        value: Bytes,
        version: i64,
        expected: Option<i64>,
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    fn remove(&self, key: &Key) -> impl Future<Output = Result<(), Error>> + Send;

    /// At most [`LISTED_MAX`] keys and versions within the range, by key.
    fn list_range(
        &self,
        doing: String,
        range: Range<'_>,
    ) -> impl Future<Output = Result<Vec<(String, i64)>, Error>> + Send;

    fn hints(&self, _prefix: &Prefix) -> Option<Watch> {
        None
    }

    fn was_replaced(&self) -> bool {
        false
    }
}

/// A version that no row has.
const NO_VERSION: i64 = -1;

#[async_trait]
impl<R: Rows> Store for R {
    fn describe(&self) -> Description {
        self.description()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let found = self.find(key, NO_VERSION).await?;
        Ok(found.and_then(|Found(object)| object))
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        let known = version_number(version).unwrap_or(NO_VERSION);
        Ok(match self.find(key, known).await? {
            None => Change::Missing,
            Some(Found(None)) => Change::Unchanged,
            Some(Found(Some(object))) => Change::Changed(object),
        })
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        check_value(key, &value)?;
        let expected = match expect {
            Expect::Absent => None,
            Expect::Version(version) => {
                Some(version_number(version).ok_or_else(|| Error::conflict(key))?)
            }
        };
        let version = new_version();
        match self.write(key, value, version, expected).await? {
            0 => Err(Error::conflict(key)),
            _ => Ok(to_version(version)),
        }
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.remove(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let range = Range::new(prefix, after);
        let rows = self.list_range(format!("listing {prefix}"), range).await?;
        to_page(rows)
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.hints(prefix)
    }

    fn is_replaced(&self) -> bool {
        self.was_replaced()
    }
}

/// Logs that the views could not be made. They are for people who look at the database, and nothing else needs them.
pub(super) fn without_views(error: &dyn std::error::Error) {
    let cause = error.source().map(ToString::to_string);
    tracing::info!(%error, cause, "continuing without the views tenure_leaders, tenure_nodes and tenure_daemons");
}

/// Whether TLS is required even if the URL does not say so. It is if the server is on another host: passwords and
/// payloads would cross the network in the clear if the server, or somebody in between, claimed that it has no TLS.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn requires_tls(url: &url::Url, host: &str, is_socket: bool) -> bool {
    let is_said = url
        .query_pairs()
        .any(|(name, _)| name == "sslmode" || name == "ssl-mode");
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback());
    !is_said && !is_socket && !host.starts_with('/') && !is_loopback
}

/// Parses a URL. Errors do not repeat the text: it may hold a password.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn parse_url(url: &str) -> Result<url::Url, Error> {
    url::Url::parse(url).map_err(|error| {
        Error::invalid(
            format!("the URL of the database is not valid: {error}"),
            "use postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE",
        )
    })
}

/// Refuses unknown parameters. They are a mistake in the URL, and a value may be a secret, which sqlx would log.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn check_parameters(url: &url::Url, known: &[&str]) -> Result<(), Error> {
    let unknown = url
        .query_pairs()
        .map(|(name, _)| name)
        .find(|name| !known.contains(&&**name) && !name.starts_with("options["));
    match unknown {
        None => Ok(()),
        Some(name) => Err(Error::invalid(
            format!("the store URL has an unknown parameter {name:?}"),
            format!("known parameters: {}", known.join(", ")),
        )),
    }
}

/// A version that no other write has or will have: 63 random bits.
fn new_version() -> i64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    // The upper two bits of `low` are fixed in every uuid, the lower twelve of `high` are random.
    let bits = (low ^ high << 62) & i64::MAX.unsigned_abs();
    bits.cast_signed()
}

pub(super) fn to_version(number: i64) -> Version {
    Version::new(number.to_string())
}

/// `None` for a version of some other engine, which no row here has.
fn version_number(version: &Version) -> Option<i64> {
    version.tag().parse().ok()
}

/// The database's clock may be set, and be another one after a failover: its age is only for display.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn to_object(value: impl Into<Bytes>, version: i64, age_microseconds: i64) -> Object {
    let age = u64::try_from(age_microseconds).unwrap_or(0);
    Object {
        value: value.into(),
        version: to_version(version),
        age: None,
        shown_age: Some(std::time::Duration::from_micros(age)),
    }
}

/// A row that was found. It has no object if the caller already knows the version.
pub(super) struct Found(pub(super) Option<Object>);

/// The keys of a listing: all that are more than `above` and less than `below`, in byte order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range<'a> {
    pub(super) above: &'a str,
    pub(super) below: String,
}

impl<'a> Range<'a> {
    pub(super) fn new(prefix: &'a Prefix, after: Option<&'a Key>) -> Self {
        let above = after.map_or("", Key::as_str).max(prefix.as_str());
        let below = match prefix.as_str().strip_suffix('/') {
            // The next character after the slash.
            Some(segments) => format!("{segments}0"),
            // This comes after every character that a key may have.
            None => "~".to_owned(),
        };
        Self { above, below }
    }
}

/// One more than a page holds, to see whether there are more.
pub(super) const LISTED_MAX: usize = PAGE_ENTRIES_MAX + 1;

/// A page of rows that were read with the limit [`LISTED_MAX`].
fn to_page(rows: Vec<(String, i64)>) -> Result<Page, Error> {
    let more = rows.len() > PAGE_ENTRIES_MAX;
    let entries = rows
        .into_iter()
        .take(PAGE_ENTRIES_MAX)
        .map(|(key, version)| {
            let key = Key::new(&key).map_err(|error| Error::Corrupt {
                location: format!("the table {TABLE}"),
                what: error.to_string(),
            })?;
            Ok(Entry {
                key,
                version: to_version(version),
            })
        })
        .collect::<Result<_, Error>>()?;
    Ok(Page { entries, more })
}

#[cfg(test)]
mod tests {
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    use std::time::Duration;

    use super::*;

    #[test]
    fn versions_use_all_63_bits_and_are_not_negative() {
        let (mut ones, mut zeros) = (0, 0);
        for _ in 0..200 {
            let version = new_version();
            assert!(version >= 0);
            ones |= version;
            zeros |= !version;
        }
        assert_eq!((ones, zeros & i64::MAX), (i64::MAX, i64::MAX));
    }

    #[test]
    fn a_version_of_another_engine_is_no_number_here() {
        assert_eq!(version_number(&to_version(7)), Some(7));
        assert_eq!(version_number(&Version::new("\"etag\"")), None);
    }

    #[test]
    fn ranges_are_half_open_and_hold_whole_segments() {
        let prefix = Prefix::new("a/b").unwrap();
        let range = Range::new(&prefix, None);
        assert_eq!((range.above, &*range.below), ("a/b/", "a/b0"));
        let inside = Key::new("a/b/c").unwrap();
        assert_eq!(Range::new(&prefix, Some(&inside)).above, "a/b/c");
        let before = Key::new("a/a").unwrap();
        assert_eq!(Range::new(&prefix, Some(&before)).above, "a/b/");
        let root = Prefix::root();
        let all = Range::new(&root, None);
        assert_eq!((all.above, &*all.below), ("", "~"));
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    #[test]
    fn what_a_database_says_of_an_age_is_only_shown() {
        let object = to_object("x", 1, 5);
        assert_eq!(object.shown_age, Some(Duration::from_micros(5)));
        assert_eq!(object.age, None);
        assert_eq!(to_object("x", 1, -5).shown_age, Some(Duration::ZERO));
    }
}
