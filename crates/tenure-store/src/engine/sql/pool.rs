//! Connections to one database.
//!
//! sqlx has its own pool. That asks the server after every use whether the connection still works (a second round
//! trip), repeats a refused connect until its time is up and then drops the reason, and takes a connection back even if
//! a statement on it was cancelled half way. So there is a small one here, with these rules:
//!
//! - A connection is used again only after [`Held::finish`], which is called when a statement has ended. After an
//!   error, a timeout, or a future dropped by its caller it is closed: it may still hang, or answer the statement of an
//!   earlier caller. It counts as in use until the server is done with the statement, or was silent for longer than a
//!   statement may take.
//! - A request that finds all connections in use waits a moment for one before another is made, and unused ones are
//!   closed: an idle node has one.
//! - A connection that was not heard from for a second, or since some other one failed, is pinged before it gets a
//!   statement. A dead one is then replaced while it is certain that nothing was sent, instead of turning a write into
//!   an unknown one. Under load this costs nothing, and a server that restarts costs at most one unknown write per
//!   connection in use.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::Connection;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::urgent::is_urgent;

/// How long it may take to get a connection.
pub(in crate::engine) const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long a statement may take, from its first byte to the end of its answer.
pub(in crate::engine) const STATEMENT_WITHIN: Duration = Duration::from_secs(10);

/// How long a ping may take. Shorter than [`CONNECT_WITHIN`], so that there is time to connect again when a firewall
/// drops everything on the old connection.
const SIGN_OF_LIFE_WITHIN: Duration = Duration::from_secs(2);

/// For how long the last answer on a connection counts as proof that it works.
const PROVEN_FOR: Duration = Duration::from_secs(1);

/// The last connection is closed after this long without use: a node that is idle keeps one, since it may not get
/// another where there are few.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The others are closed after this long without use.
const SPARE_IDLE_MAX: Duration = Duration::from_secs(10);

/// How long to wait for a connection that is in use before another one is made.
const SPARE_WITHIN: Duration = Duration::from_millis(50);

/// A connection that moved more than this shrinks its buffers afterwards.
const BUFFER_BYTES_MAX: usize = 256 * 1024;

/// How an engine makes a connection that is ready for use.
pub(in crate::engine) trait Dial: Send + Sync + 'static {
    type Connection: Connection + 'static;

    fn dial(&self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;
}

/// Connections to one database.
pub(in crate::engine) struct Pool<D: Dial> {
    shared: Arc<Shared<D>>,
}

struct Shared<D: Dial> {
    dial: D,
    connections_max: usize,
    /// One for each connection that is in use, even if its caller has left and the server is not done.
    permits: Arc<Semaphore>,
    /// A request that is not urgent takes one of these first, and keeps it as long as its permit. There is one fewer
    /// than permits, so that a permit is left for an urgent request. Requests that are not urgent queue here, where no
    /// urgent one does.
    ordinary: Arc<Semaphore>,
    idle: Mutex<Idle<D::Connection>>,
    /// Notified when a connection has become idle.
    returned: Notify,
    /// Whether unused connections are closed, and whether a task that does so is running.
    sweeps: bool,
    is_sweeping: AtomicBool,
}

struct Idle<C> {
    /// The last used one is last.
    connections: Vec<(C, Instant)>,
    /// When a connection last failed or was dropped in use. An earlier answer on another connection no longer proves
    /// that it works.
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
    /// Makes a pool. Connects to nothing yet.
    #[cfg(feature = "sqlite")]
    pub(in crate::engine) fn new(dial: D, connections_max: usize) -> Self {
        Self::make(dial, connections_max, false)
    }

    /// For a server, where connections are few: unused ones are closed after a while.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::engine) fn of_server(dial: D, connections_max: usize) -> Self {
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

    /// A connection that works, as far as that can be known. No statement has been sent on it, so an error means that
    /// nothing was changed.
    pub(in crate::engine) async fn acquire(&self) -> Result<Held<D>, sqlx::Error> {
        self.acquire_as(is_urgent()).await
    }

    /// As [`Pool::acquire`], but never as an urgent request, even if the caller is one.
    #[cfg(feature = "postgres")]
    pub(in crate::engine) async fn acquire_ordinary(&self) -> Result<Held<D>, sqlx::Error> {
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

    /// Closes idle connections: a store may be opened long before it is used.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::engine) fn close_idle(&self) {
        self.shared.idle().connections.clear();
    }
}

impl<D: Dial> Shared<D> {
    /// An existing connection. One that is in use will mostly be free in a moment, and a server has few, so we wait
    /// that moment before we make another.
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

    /// An idle connection that has answered recently or answers a ping; dead ones are dropped on the way.
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

    /// Starts a task that closes unused connections, even if this pool is never used again.
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
                    // Set under the same lock, so that the next connection to finish starts another task.
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

/// A clone shares the connections.
#[cfg(feature = "postgres")]
impl<D: Dial> Clone for Pool<D> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

/// Leaves out the options: they hold the password.
impl<D: Dial> std::fmt::Debug for Pool<D> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// A connection in use; closed when dropped, unless it was [finished](Held::finish).
pub(in crate::engine) struct Held<D: Dial> {
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
    /// The statement has ended and moved about this many bytes: others may use the connection.
    pub(in crate::engine) fn finish(mut self, bytes_moved: usize) {
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
    /// Closes the connection, and waits until the server has seen that, but no longer than a ping may take.
    pub(in crate::engine) async fn close_now(mut self) {
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
    /// A cancelled statement goes on at the server until its own time limit. The connection counts as in use until
    /// then; otherwise a locked table would collect one connection per attempt.
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        // What broke this one, a restart for example, may have broken the idle ones too.
        self.shared.idle().distrusted = Some(Instant::now());
        let permit = self.permit.take();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // The answer to the cancelled statement comes first.
                let _ = timeout(STATEMENT_WITHIN, connection.ping()).await;
                let _ = timeout(SIGN_OF_LIFE_WITHIN, connection.close()).await;
                drop(permit);
            });
        }
    }
}
/// Limits the time of a statement. A timeout counts as a lost answer.
pub(in crate::engine) async fn answered<T>(
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

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    /// Connects to nothing.
    fn pool(connections_max: usize) -> Pool<sqlx::sqlite::SqliteConnectOptions> {
        let options = sqlx::sqlite::SqliteConnectOptions::new().in_memory(true);
        Pool::new(options, connections_max)
    }

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
