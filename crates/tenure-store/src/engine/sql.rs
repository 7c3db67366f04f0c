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
//!   hang, or answer the question of someone who has left. Until the server is done with the statement,
//!   or was silent for longer than it may take, it still counts.
//! - Whoever finds all connections in use waits a moment for one before another is made, and one that
//!   nobody wants is closed: an idle node has one.
//! - A connection that was not heard of for a second, or since some other one failed, is asked for a
//!   sign of life before it gets a statement. A dead one is then replaced while it is certain that
//!   nothing was sent, instead of turning a write into an unknown one. Under load this costs nothing,
//!   and a server that restarts costs at most one unknown write per connection in use.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sqlx::Connection;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::error::Cause;
use crate::urgent::is_urgent;
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

/// The last connection is closed when nobody wanted it for this long: a node that is idle keeps one, since it
/// may not get another where there are few.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The others are closed when nobody wanted them for this long.
const SPARE_IDLE_MAX: Duration = Duration::from_secs(10);

/// How long to wait for a connection that is in use before another one is made.
const SPARE_WITHIN: Duration = Duration::from_millis(50);

/// A connection that moved more than this gives its buffers back.
const BUFFER_BYTES_MAX: usize = 256 * 1024;

/// How an engine makes a connection that is ready for use.
pub(super) trait Dial: Send + Sync + 'static {
    type Connection: Connection + 'static;

    fn dial(&self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;
}

/// Connections to one database.
pub(super) struct Pool<D: Dial> {
    shared: Arc<Shared<D>>,
}

struct Shared<D: Dial> {
    dial: D,
    connections_max: usize,
    /// One for each connection that is in use, also if its user has given up and the server has not.
    permits: Arc<Semaphore>,
    /// Whoever is not urgent takes one of these first, and keeps it as long: there is one less, so that a permit is
    /// left for whoever is. All others wait here, where nobody urgent does.
    ordinary: Arc<Semaphore>,
    idle: Mutex<Idle<D::Connection>>,
    /// Told when a connection has become idle.
    returned: Notify,
    /// Whether connections that nobody wants are closed, and a task is about it.
    sweeps: bool,
    is_sweeping: AtomicBool,
}

struct Idle<C> {
    /// Last used last.
    connections: Vec<(C, Instant)>,
    /// When a connection was last given up. What was proven before that is not proven any more.
    distrusted: Option<Instant>,
}

impl<C> Idle<C> {
    fn close_unwanted(&mut self) {
        let mut left = self.connections.len();
        self.connections.retain(|(_, heard)| {
            left -= 1;
            let limit = if left == 0 { IDLE_MAX } else { SPARE_IDLE_MAX };
            heard.elapsed() < limit
        });
    }
}

impl<D: Dial> Pool<D> {
    /// Nothing is connected yet.
    pub(super) fn new(dial: D, connections_max: usize) -> Self {
        Self::make(dial, connections_max, false)
    }

    /// Of a server, whose connections are few: what nobody wants for a while is closed.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn of_server(dial: D, connections_max: usize) -> Self {
        Self::make(dial, connections_max, true)
    }

    fn make(dial: D, connections_max: usize, sweeps: bool) -> Self {
        Self {
            shared: Arc::new(Shared {
                dial,
                connections_max,
                permits: Arc::new(Semaphore::new(connections_max)),
                ordinary: Arc::new(Semaphore::new(connections_max.saturating_sub(1).max(1))),
                idle: Mutex::new(Idle {
                    connections: Vec::new(),
                    distrusted: None,
                }),
                returned: Notify::new(),
                sweeps,
                is_sweeping: AtomicBool::new(false),
            }),
        }
    }

    /// A connection that works, as far as one can know. No statement has been sent on it, so an error
    /// means that nothing was changed.
    pub(super) async fn acquire(&self) -> Result<Held<D>, sqlx::Error> {
        self.acquire_as(is_urgent()).await
    }

    /// The same, as one that is not urgent, whoever asks.
    #[cfg(feature = "postgres")]
    pub(super) async fn acquire_ordinary(&self) -> Result<Held<D>, sqlx::Error> {
        self.acquire_as(false).await
    }

    async fn acquire_as(&self, is_urgent: bool) -> Result<Held<D>, sqlx::Error> {
        let shared = &self.shared;
        within(CONNECT_WITHIN, "connection", async {
            let permit = Permit::acquire(shared, is_urgent).await?;
            let connection = match shared.spare().await {
                Some(connection) => connection,
                None => shared.dial.dial().await?,
            };
            Ok(Held {
                shared: shared.clone(),
                connection: Some(connection),
                permit: Some(permit),
            })
        })
        .await
    }

    /// Closes what is idle: whoever opens a store may not use it for long.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn close_idle(&self) {
        self.shared.idle().connections.clear();
    }
}

impl<D: Dial> Shared<D> {
    /// A connection that is there already. One that is in use will mostly be free in a moment, and a
    /// server has few, so we wait that moment before we make another.
    async fn spare(&self) -> Option<D::Connection> {
        if let Some(connection) = self.proven().await {
            return Some(connection);
        }
        // One permit is ours.
        if self.permits.available_permits() + 1 >= self.connections_max {
            return None;
        }
        let returned = async {
            loop {
                self.returned.notified().await;
                if let Some(connection) = self.proven().await {
                    return connection;
                }
            }
        };
        timeout(SPARE_WITHIN, returned).await.ok()
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

    /// Sees to it that connections are closed also if nobody comes back to this pool.
    fn sweep_later(self: &Arc<Self>) {
        if !self.sweeps || self.is_sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::downgrade(self);
        let sweep = async move {
            loop {
                sleep(SPARE_IDLE_MAX / 2).await;
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                let mut idle = shared.idle();
                idle.close_unwanted();
                if idle.connections.is_empty() {
                    // Under the same lock, so that the next to finish starts another.
                    shared.is_sweeping.store(false, Ordering::Relaxed);
                    return;
                }
            }
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(sweep)),
            Err(_) => self.is_sweeping.store(false, Ordering::Relaxed),
        }
    }
}

/// The same connections.
#[cfg(feature = "postgres")]
impl<D: Dial> Clone for Pool<D> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

/// Says nothing of the options: they hold the password.
impl<D: Dial> std::fmt::Debug for Pool<D> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// A connection in use; closed when dropped, unless it was [finished](Held::finish).
pub(super) struct Held<D: Dial> {
    shared: Arc<Shared<D>>,
    /// Only `finish` and `drop` take it out.
    connection: Option<D::Connection>,
    permit: Option<Permit>,
}

/// The right to use a connection.
struct Permit {
    _one: OwnedSemaphorePermit,
    _ordinary: Option<OwnedSemaphorePermit>,
}

impl Permit {
    async fn acquire<D: Dial>(shared: &Shared<D>, is_urgent: bool) -> Result<Self, sqlx::Error> {
        let take = async |semaphore: &Arc<Semaphore>| {
            let permit = semaphore.clone().acquire_owned().await;
            permit.map_err(|_closed| sqlx::Error::PoolClosed)
        };
        let ordinary = if is_urgent {
            None
        } else {
            Some(take(&shared.ordinary).await?)
        };
        Ok(Self {
            _one: take(&shared.permits).await?,
            _ordinary: ordinary,
        })
    }
}

impl<D: Dial> Held<D> {
    /// The statement came to its end and moved about so many bytes: others may use the connection.
    pub(super) fn finish(mut self, bytes_moved: usize) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if bytes_moved > BUFFER_BYTES_MAX {
            connection.shrink_buffers();
        }
        {
            let mut idle = self.shared.idle();
            idle.connections.push((connection, Instant::now()));
            idle.close_unwanted();
            self.shared.sweep_later();
        }
        self.shared.returned.notify_one();
    }
}

#[cfg(feature = "postgres")]
impl<D: Dial> Held<D> {
    /// Ends it, as the server sees it too when the future is done. Never longer than a sign of life takes.
    pub(super) async fn close_now(mut self) {
        if let Some(connection) = self.connection.take() {
            let _ = timeout(SIGN_OF_LIFE_WITHIN, connection.close()).await;
        }
    }
}

impl<D: Dial> Deref for Held<D> {
    type Target = D::Connection;

    fn deref(&self) -> &Self::Target {
        self.connection
            .as_ref()
            .expect("only finish takes it out, and finish ends the holding")
    }
}

impl<D: Dial> DerefMut for Held<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection
            .as_mut()
            .expect("only finish takes it out, and finish ends the holding")
    }
}

impl<D: Dial> Drop for Held<D> {
    /// A statement that was given up goes on at the server until its own time is over. The connection
    /// counts as in use until then, or a locked table would collect one connection for every try.
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        // What broke this one, a restart for example, may have broken the idle ones too.
        self.shared.idle().distrusted = Some(Instant::now());
        let permit = self.permit.take();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // The answer to the statement before it comes first.
                let _ = timeout(STATEMENT_WITHIN, connection.ping()).await;
                let _ = timeout(SIGN_OF_LIFE_WITHIN, connection.close()).await;
                drop(permit);
            });
        }
    }
}

/// The views could not be made. They are for people who look at the database, and nothing else needs them.
pub(super) fn without_views(error: &dyn std::error::Error) {
    let cause = error.source().map(ToString::to_string);
    tracing::info!(%error, cause, "continuing without the views tenure_leaders, tenure_nodes and tenure_daemons");
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

/// In the words of sqlx, which has no error of its own for it.
const WITHOUT_TLS: &str = "server does not support TLS";

/// Whether TLS is required though the URL does not say so: the server is elsewhere, and passwords and payloads would
/// cross the network in the clear if it, or somebody on the way, says that it has no TLS.
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

/// The fate when the database did not answer with an error of its own.
pub(super) fn fate_without_answer(error: &sqlx::Error) -> Fate {
    match error {
        sqlx::Error::Tls(cause) => match cause.downcast_ref::<std::io::Error>() {
            // The other end went away during the handshake, which says nothing about TLS.
            Some(error) if error.kind() != std::io::ErrorKind::InvalidData => Fate::Lost,
            _ if cause.to_string() == WITHOUT_TLS => Fate::Refused(
                "enable TLS on the server; or, if nobody else can listen on the network, turn TLS off in the URL: \
                 ?sslmode=disable for PostgreSQL, ?ssl-mode=DISABLED for MySQL",
            ),
            _ => Fate::Refused("check sslmode and the certificates in the URL"),
        },
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Fate::Damaged,
        _ => Fate::Lost,
    }
}

/// The error of a read, or of what comes before a write is sent.
pub(super) fn read_error(doing: impl Into<String>, fate: Fate, error: sqlx::Error) -> Error {
    not_applied(doing, fate, cause(error))
}

/// The same, where the cause may be that of several.
pub(super) fn not_applied(doing: impl Into<String>, fate: Fate, cause: Cause) -> Error {
    match fate {
        Fate::Refused(hint) => Error::refused(doing, hint, cause),
        Fate::Busy | Fate::Lost => Error::unavailable(doing, cause),
        Fate::Damaged => Error::Corrupt {
            location: format!("the table {TABLE}"),
            what: cause.to_string(),
        },
    }
}

/// The error of a write that was sent.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn write_error(key: &Key, fate: Fate, error: sqlx::Error) -> Error {
    match fate {
        Fate::Lost => Error::unknown(key, cause(error)),
        fate => read_error(format!("writing {key}"), fate, error),
    }
}

/// The database's own words, and no more: sqlx's errors repeat their sources, and the details of some
/// show what is in a row.
pub(super) fn cause(error: sqlx::Error) -> Cause {
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
            format!("known parameters: {}", known.join(", ")),
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

/// The database's clock may be set, and be another one after a failover: what it says is for people.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn to_object(value: impl Into<Bytes>, version: i64, age_microseconds: i64) -> Object {
    let age = u64::try_from(age_microseconds).unwrap_or(0);
    Object {
        value: value.into(),
        version: to_version(version),
        age: None,
        shown_age: Some(Duration::from_micros(age)),
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

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    #[test]
    fn what_a_database_says_of_an_age_is_only_shown() {
        let object = to_object("x", 1, 5);
        assert_eq!(object.shown_age, Some(Duration::from_micros(5)));
        assert_eq!(object.age, None);
        assert_eq!(to_object("x", 1, -5).shown_age, Some(Duration::ZERO));
    }

    /// Connects to nothing.
    #[cfg(feature = "sqlite")]
    fn pool(connections_max: usize) -> Pool<sqlx::sqlite::SqliteConnectOptions> {
        let options = sqlx::sqlite::SqliteConnectOptions::new().in_memory(true);
        Pool::new(options, connections_max)
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn an_urgent_request_finds_a_connection_however_many_others_wait() {
        let soon = Duration::from_secs(2);
        let pool = pool(3);
        let taken = [pool.acquire().await.unwrap(), pool.acquire().await.unwrap()];
        let other = timeout(Duration::from_millis(100), pool.acquire()).await;
        assert!(other.is_err(), "the last one is not for everybody");
        let urgent = timeout(soon, crate::urgent(pool.acquire())).await;
        urgent.unwrap().unwrap().finish(0);
        drop(taken);
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn an_urgent_request_is_next_where_there_is_one_connection() {
        let pool = pool(1);
        let pool = &pool;
        let order = Mutex::new(Vec::new());
        let use_it = async |who: usize| {
            let held = match who {
                9 => crate::urgent(pool.acquire()).await,
                _ => pool.acquire().await,
            };
            order.lock().unwrap().push(who);
            tokio::task::yield_now().await;
            held.unwrap().finish(0);
        };
        let late = async {
            tokio::task::yield_now().await;
            use_it(9).await;
        };
        let first = pool.acquire().await.unwrap();
        let free = async {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            first.finish(0);
        };
        tokio::join!(use_it(1), use_it(2), use_it(3), use_it(4), late, free);
        let order = order.lock().unwrap().clone();
        let at = order.iter().position(|&who| who == 9).unwrap();
        assert!(at <= 1, "{order:?}");
    }
}
