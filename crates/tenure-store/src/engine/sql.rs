//! What the SQL engines share: connections, and what an answer or the lack of one says.
//!
//! Objects are rows of one table, [`TABLE`]. Every operation is one statement in its own transaction, so
//! the database's row locks are the whole of the compare-and-swap. A version is a random number that the
//! writer makes, so it does not come back after a delete.
//!
//! # Connections
//!
//! sqlx has a pool of its own. It asks the server after every use whether the connection still works
//! (a second round trip), repeats a refused connect until its time is up and then forgets why, and
//! takes a connection back although a statement on it was given up half way. So there is a small one
//! here, with these rules:
//!
//! - A connection is used again only after [`Held::finish`], which is called when a statement has come
//!   to its end. After an error, a timeout, or a future dropped by its caller it is closed: it may still
//!   hang, or answer the question of someone who has left.
//! - A connection that was not heard of for a second, or since some other one failed, is asked for a
//!   sign of life before it gets a statement. A dead one is then replaced while it is certain that
//!   nothing was sent, instead of turning a write into an unknown one. Under load this costs nothing,
//!   and a server that restarts costs at most one unknown write per connection in use.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sqlx::Connection;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::error::Cause;
use crate::{Change, Entry, Error, Key, Object, PAGE_ENTRIES_MAX, Page, Prefix, Version};

/// Where the objects are.
pub(super) const TABLE: &str = "tenure_objects";

/// How long it may take to get hold of a connection.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long a statement may take, from its first byte to the end of its answer.
pub(super) const STATEMENT_WITHIN: Duration = Duration::from_secs(10);

/// How long a sign of life may take. Shorter than [`CONNECT_WITHIN`], so that there is time to connect
/// anew when a firewall swallows everything on the old connection.
const SIGN_OF_LIFE_WITHIN: Duration = Duration::from_secs(2);

/// For how long the last answer on a connection counts as proof that it works.
const PROVEN_FOR: Duration = Duration::from_secs(1);

/// Connections beyond the first are closed when nobody wanted them for this long.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A connection that moved more than this gives its buffers back.
const BUFFER_BYTES_MAX: usize = 256 * 1024;

/// How an engine makes a connection that is ready for use.
pub(super) trait Dial: Send + Sync + 'static {
    type Connection: Connection;

    fn dial(&self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;
}

/// Connections to one database.
pub(super) struct Pool<D: Dial> {
    dial: D,
    permits: Semaphore,
    idle: Mutex<Idle<D::Connection>>,
}

struct Idle<C> {
    /// Last used last.
    connections: Vec<(C, Instant)>,
    /// When a connection was last given up. What was proven before that is not proven any more.
    distrusted: Option<Instant>,
}

impl<D: Dial> Pool<D> {
    /// Nothing is connected yet.
    pub(super) fn new(dial: D, connections_max: usize) -> Self {
        Self {
            dial,
            permits: Semaphore::new(connections_max),
            idle: Mutex::new(Idle {
                connections: Vec::new(),
                distrusted: None,
            }),
        }
    }

    /// A connection that works, as far as one can know. No statement has been sent on it, so an error
    /// means that nothing was changed.
    pub(super) async fn acquire(&self) -> Result<Held<'_, D>, sqlx::Error> {
        within(CONNECT_WITHIN, "connection", async {
            let permit = self.permits.acquire().await;
            let permit = permit.map_err(|_closed| sqlx::Error::PoolClosed)?;
            let connection = match self.proven().await {
                Some(connection) => connection,
                None => self.dial.dial().await?,
            };
            Ok(Held {
                pool: self,
                connection: Some(connection),
                _permit: permit,
            })
        })
        .await
    }

    /// An idle connection that was just heard of, if there is one; dead ones are dropped on the way.
    async fn proven(&self) -> Option<D::Connection> {
        loop {
            let (mut connection, proven) = {
                let mut idle = self.idle();
                let (connection, heard) = idle.connections.pop()?;
                let trusted = idle.distrusted.is_none_or(|since| heard > since);
                (connection, trusted && heard.elapsed() < PROVEN_FOR)
            };
            if proven {
                return Some(connection);
            }
            if let Ok(Ok(())) = timeout(SIGN_OF_LIFE_WITHIN, connection.ping()).await {
                return Some(connection);
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle<D::Connection>> {
        // Nothing below can panic half way through a change.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says nothing of the options: they hold the password.
impl<D: Dial> std::fmt::Debug for Pool<D> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// A connection in use; closed when dropped, unless it was [finished](Held::finish).
pub(super) struct Held<'a, D: Dial> {
    pool: &'a Pool<D>,
    /// Only `finish` takes it out.
    connection: Option<D::Connection>,
    _permit: SemaphorePermit<'a>,
}

impl<D: Dial> Held<'_, D> {
    /// The statement came to its end and moved about so many bytes: others may use the connection.
    pub(super) fn finish(mut self, bytes_moved: usize) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if bytes_moved > BUFFER_BYTES_MAX {
            connection.shrink_buffers();
        }
        let mut idle = self.pool.idle();
        idle.connections
            .retain(|(_, heard)| heard.elapsed() < IDLE_MAX);
        idle.connections.push((connection, Instant::now()));
    }
}

impl<D: Dial> Deref for Held<'_, D> {
    type Target = D::Connection;

    fn deref(&self) -> &Self::Target {
        self.connection
            .as_ref()
            .expect("only finish takes it out, and finish ends the holding")
    }
}

impl<D: Dial> DerefMut for Held<'_, D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection
            .as_mut()
            .expect("only finish takes it out, and finish ends the holding")
    }
}

impl<D: Dial> Drop for Held<'_, D> {
    fn drop(&mut self) {
        if self.connection.is_some() {
            // What broke this one, a restart for example, may have broken the idle ones too.
            self.pool.idle().distrusted = Some(Instant::now());
        }
    }
}

/// The views could not be made. They are for people who look at the database, and nothing else needs them.
pub(super) fn without_views(error: &dyn std::error::Error) {
    let cause = error.source().map(ToString::to_string);
    tracing::info!(%error, cause, "going on without the views tenure_leaders, tenure_nodes and tenure_daemons");
}

/// Bounds a statement. Running out of time is the loss of the answer.
pub(super) async fn answered<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    within(STATEMENT_WITHIN, "answer", statement).await
}

async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    timeout(limit, work).await.unwrap_or_else(|_elapsed| {
        Err(sqlx::Error::Io(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("no {what} within {limit:?}"),
        )))
    })
}

/// What an error says about the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The database said no, and why; nothing was changed. With what to do about it.
    Refused(&'static str),
    /// The database said no for now; nothing was changed.
    Busy,
    /// What is stored makes no sense.
    Damaged,
    /// There was no answer, or one that says nothing about the statement.
    Lost,
}

/// The fate when the database did not answer with an error of its own.
pub(super) fn fate_without_answer(error: &sqlx::Error) -> Fate {
    match error {
        sqlx::Error::Tls(cause) => match cause.downcast_ref::<std::io::Error>() {
            // The other end went away during the handshake, which says nothing about TLS.
            Some(error) if error.kind() != std::io::ErrorKind::InvalidData => Fate::Lost,
            _ => Fate::Refused("check sslmode and the certificates that the URL names"),
        },
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Fate::Damaged,
        _ => Fate::Lost,
    }
}

/// The error of a read, or of what comes before a write is sent.
pub(super) fn read_error(doing: impl Into<String>, fate: Fate, error: sqlx::Error) -> Error {
    match fate {
        Fate::Refused(hint) => Error::refused(doing, hint, cause(error)),
        Fate::Busy | Fate::Lost => Error::unavailable(doing, cause(error)),
        Fate::Damaged => Error::Corrupt {
            location: format!("the table {TABLE}"),
            what: cause(error).to_string(),
        },
    }
}

/// The error of a write that was sent.
pub(super) fn write_error(key: &Key, fate: Fate, error: sqlx::Error) -> Error {
    match fate {
        Fate::Lost => Error::unknown(key, cause(error)),
        fate => read_error(format!("writing {key}"), fate, error),
    }
}

/// The database's own words, and no more: sqlx's errors repeat their sources, and the details of some
/// show what is in a row.
fn cause(error: sqlx::Error) -> Cause {
    match error {
        sqlx::Error::Io(error) => error.into(),
        sqlx::Error::Database(answer) => match answer.code() {
            Some(code) => format!("{} ({code})", answer.message()).into(),
            None => answer.message().into(),
        },
        error => error.to_string().into(),
    }
}

/// A parameter that nobody knows is a mistake in the URL, and its value may be a secret: sqlx would
/// log it.
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
            format!("known are {}", known.join(", ")),
        )),
    }
}

/// A version that no other write has or will have: 63 random bits.
pub(super) fn new_version() -> i64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    // The upper two bits of `low` are fixed in every uuid, the lower twelve of `high` are random.
    let bits = (low ^ high << 62) & i64::MAX.unsigned_abs();
    bits.cast_signed()
}

pub(super) fn to_version(number: i64) -> Version {
    Version::new(number.to_string())
}

/// `None` for a version of some other engine, which no row here has.
pub(super) fn version_number(version: &Version) -> Option<i64> {
    version.tag().parse().ok()
}

pub(super) fn to_object(value: impl Into<Bytes>, version: i64, age_microseconds: i64) -> Object {
    // A database whose clock was set back knows only that the object is no younger than nothing.
    let age = u64::try_from(age_microseconds).unwrap_or(0);
    Object {
        value: value.into(),
        version: to_version(version),
        age: Some(Duration::from_micros(age)),
    }
}

/// A row that was found. Without an object if its value was not wanted, since its version is known.
pub(super) struct Found(pub(super) Option<Object>);

pub(super) fn to_change(found: Option<Found>) -> Change {
    match found {
        None => Change::Missing,
        Some(Found(None)) => Change::Unchanged,
        Some(Found(Some(object))) => Change::Changed(object),
    }
}

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
            // Comes after every character that a key may have.
            None => "~".to_owned(),
        };
        Self { above, below }
    }
}

/// One more than a page holds, to see whether there are more.
pub(super) const LISTED_MAX: usize = PAGE_ENTRIES_MAX + 1;

/// A page of rows that were read with the limit [`LISTED_MAX`].
pub(super) fn to_page(rows: Vec<(String, i64)>) -> Result<Page, Error> {
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

    #[test]
    fn an_age_is_never_negative() {
        let object = to_object("x", 1, -5);
        assert_eq!(object.age, Some(Duration::ZERO));
    }
}
