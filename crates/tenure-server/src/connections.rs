//! The connections of a server, and which of them are closed first when there is no room for all.
//!
//! A connection is a *stranger* until one of its calls was allowed: it has sent nothing yet, or no valid token, or has
//! only made calls that need no token. When the server is full, the oldest stranger is closed for the next connection,
//! so strangers cannot keep anybody out. When no connection is a stranger, a further one gets one of a few *spare*
//! places: there it can ask whether the server is healthy, and nothing else.
//!
//! What a connection holds in memory (a body that arrives, or an answer that its client reads) is counted here too.
//! When the budget is used up, connections that have made no progress for a while are closed: see
//! [`Connections::shed_slow`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::handlers::osqueue::Switched;
use crate::hold::Kept;

/// Places beyond the limit, for health checks.
pub(crate) const SPARE_MAX: usize = 16;

/// A connection is slow if no byte has moved in either direction for this long. It matters only when memory is short.
const STALLED: Duration = Duration::from_secs(1);

/// A body or an answer that takes this long is slow, even if bytes of it keep moving.
const LINGERING: Duration = Duration::from_secs(10);

/// All connections of one server.
#[derive(Debug)]
pub(crate) struct Connections {
    connections_max: usize,
    started: Instant,
    places: Mutex<Places>,
}

/// Keys are numbers in the order of arrival.
#[derive(Debug, Default)]
struct Places {
    next: u64,
    all: BTreeMap<u64, Arc<Connection>>,
    strangers: BTreeSet<u64>,
    spare: BTreeSet<u64>,
}

/// One connection, or one stream of an HTTP/2 connection, or one call of a WebSocket: those share everything but the
/// call that is being answered.
#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<SharedConnection>,
    /// The call that is being answered, as long as it could be made again.
    kept: Mutex<Option<Kept>>,
    /// What takes over the connection once the answer that switches protocols is written.
    switched: Mutex<Option<Switched>>,
}

#[derive(Debug)]
struct SharedConnection {
    number: u64,
    peer: SocketAddr,
    started: Instant,
    is_stranger: AtomicBool,
    has_answered: AtomicBool,
    asks_for_health: AtomicBool,
    /// When a byte last moved, in milliseconds since the server started.
    progressed_ms: AtomicU64,
    /// The bytes that it holds in memory, and since when it has held any.
    bytes: AtomicUsize,
    bytes_since_ms: AtomicU64,
    close: Notify,
}

impl Connections {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self {
            connections_max,
            started: Instant::now(),
            places: Mutex::default(),
        }
    }

    /// Admits a new connection. If the server is full, closes another to make room, or gives it a spare place.
    pub(crate) fn admit(&self, peer: SocketAddr) -> Arc<Connection> {
        let mut places = self.places();
        let is_full = places.all.len() - places.spare.len() >= self.connections_max;
        let stranger = is_full.then(|| places.strangers.first().copied());
        let is_spare = match stranger {
            None => false,
            Some(Some(oldest)) => {
                places.close(oldest);
                false
            }
            Some(None) => {
                if places.spare.len() >= SPARE_MAX
                    && let Some(&oldest) = places.spare.first()
                {
                    places.close(oldest);
                }
                true
            }
        };
        let number = places.next;
        places.next += 1;
        let connection = Arc::new(Connection::of(Arc::new(SharedConnection {
            number,
            peer,
            started: self.started,
            is_stranger: AtomicBool::new(true),
            has_answered: AtomicBool::new(false),
            asks_for_health: AtomicBool::new(false),
            progressed_ms: AtomicU64::new(milliseconds(self.started)),
            bytes: AtomicUsize::new(0),
            bytes_since_ms: AtomicU64::new(0),
            close: Notify::new(),
        })));
        places.all.insert(number, connection.clone());
        if is_spare {
            places.spare.insert(number)
        } else {
            places.strangers.insert(number)
        };
        connection
    }

    /// Notes that a connection has ended.
    pub(crate) fn left(&self, connection: &Connection) {
        self.places().remove(connection.shared.number);
    }

    /// Notes that a call of this connection was allowed, so that it is not a stranger any more. False if there is no
    /// room for it.
    pub(crate) fn welcome(&self, connection: &Connection) -> bool {
        if !connection.shared.is_stranger.load(Ordering::Relaxed) {
            return true;
        }
        let mut places = self.places();
        let number = connection.shared.number;
        // It was just closed to make room for another, so its call is not started.
        if !places.all.contains_key(&number) {
            return false;
        }
        if places.spare.contains(&number) {
            if places.all.len() - places.spare.len() >= self.connections_max {
                match places.strangers.first().copied() {
                    Some(oldest) => places.close(oldest),
                    None => return false,
                }
            }
            places.spare.remove(&number);
        }
        places.strangers.remove(&number);
        connection
            .shared
            .is_stranger
            .store(false, Ordering::Relaxed);
        true
    }

    /// Closes the slowest connections until they have freed this many bytes, or all slow ones.
    pub(crate) fn shed_slow(&self, bytes: usize) {
        let now = milliseconds(self.started);
        let mut places = self.places();
        let mut slow: Vec<_> = places
            .all
            .values()
            .filter(|connection| connection.is_slow(now))
            .map(|connection| {
                let progressed = connection.shared.progressed_ms.load(Ordering::Relaxed);
                let bytes = connection.shared.bytes.load(Ordering::Relaxed);
                (progressed, connection.shared.number, bytes)
            })
            .collect();
        slow.sort_unstable();
        let mut freed = 0;
        for (_, number, held) in slow {
            if freed >= bytes {
                break;
            }
            freed += held;
            places.close(number);
        }
        drop(places);
        if freed > 0 {
            tracing::debug!(bytes = freed, "memory is short: closed slow connections");
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        // Only plain changes are made under it, so a panic elsewhere leaves it whole.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// Frees its place at once; its task ends a moment later.
    fn close(&mut self, number: u64) {
        if let Some(connection) = self.remove(number) {
            connection.shared.close.notify_one();
        }
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Connection>> {
        self.strangers.remove(&number);
        self.spare.remove(&number);
        self.all.remove(&number)
    }
}

impl Connection {
    fn of(shared: Arc<SharedConnection>) -> Self {
        Self {
            shared,
            kept: Mutex::default(),
            switched: Mutex::default(),
        }
    }

    /// The same connection for one of several concurrent calls; each keeps its own.
    pub(crate) fn stream(&self) -> Arc<Self> {
        Arc::new(Self::of(self.shared.clone()))
    }

    /// Hands the connection to another protocol once the answer that announces it is written.
    pub(crate) fn switch(&self, to: Switched) {
        let mut switched = self.switched.lock().unwrap_or_else(PoisonError::into_inner);
        *switched = Some(to);
    }

    pub(crate) fn take_switched(&self) -> Option<Switched> {
        let mut switched = self.switched.lock().unwrap_or_else(PoisonError::into_inner);
        switched.take()
    }

    /// The client's address.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.shared.peer
    }

    /// Resolves when the connection has to go.
    pub(crate) async fn closed(&self) {
        self.shared.close.notified().await;
    }

    /// Notes that a byte was read or written.
    pub(crate) fn progressed(&self) {
        let now = milliseconds(self.shared.started);
        self.shared.progressed_ms.store(now, Ordering::Relaxed);
    }

    /// Notes that a byte of an answer was written.
    pub(crate) fn answered(&self) {
        self.shared.has_answered.store(true, Ordering::Relaxed);
    }

    /// Notes that its present call is a health check.
    pub(crate) fn ask_for_health(&self) {
        self.shared.asks_for_health.store(true, Ordering::Relaxed);
    }

    pub(crate) fn asks_for_health(&self) -> bool {
        self.shared.asks_for_health.load(Ordering::Relaxed)
    }

    /// Whether none of its calls was allowed or answered yet: then it can be told that nothing was done.
    pub(crate) fn is_unheard(&self) -> bool {
        self.shared.is_stranger.load(Ordering::Relaxed)
            && !self.shared.has_answered.load(Ordering::Relaxed)
    }

    /// Counts more bytes that it holds in memory.
    pub(crate) fn add(&self, bytes: usize) {
        if bytes > 0 && self.shared.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            let now = milliseconds(self.shared.started);
            self.shared.bytes_since_ms.store(now, Ordering::Relaxed);
        }
    }

    /// Counts fewer bytes that it holds in memory.
    pub(crate) fn subtract(&self, bytes: usize) {
        self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Keeps a call whose body has been read, in case it has to be made again.
    pub(crate) fn keep(&self, call: Kept) {
        *self.kept() = Some(call);
    }

    pub(crate) fn take_kept(&self) -> Option<Kept> {
        self.kept().take()
    }

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_slow(&self, now_ms: u64) -> bool {
        let longer = |since: &AtomicU64, time: Duration| {
            let passed = now_ms.saturating_sub(since.load(Ordering::Relaxed));
            Duration::from_millis(passed) >= time
        };
        self.shared.bytes.load(Ordering::Relaxed) > 0
            && (longer(&self.shared.progressed_ms, STALLED)
                || longer(&self.shared.bytes_since_ms, LINGERING))
    }
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> SocketAddr {
        "127.0.0.1:9".parse().unwrap()
    }

    async fn is_closed(connection: &Connection) -> bool {
        let now = tokio::time::timeout(Duration::ZERO, connection.closed());
        now.await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_make_room_and_the_oldest_first() {
        let connections = Connections::new(3);
        let [first, known, last] = [(); 3].map(|()| connections.admit(peer()));
        assert!(connections.welcome(&known));
        connections.admit(peer());
        assert!(is_closed(&first).await && !is_closed(&last).await);
        connections.admit(peer());
        assert!(is_closed(&last).await && !is_closed(&known).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_spare_places_are_kept_and_are_for_strangers_only() {
        let connections = Connections::new(1);
        let known = connections.admit(peer());
        assert!(connections.welcome(&known));
        let spare: Vec<_> = (0..=SPARE_MAX).map(|_| connections.admit(peer())).collect();
        assert!(is_closed(&spare[0]).await && !is_closed(&spare[1]).await);
        assert!(!connections.welcome(&spare[1]), "there is no place");
        connections.left(&known);
        assert!(connections.welcome(&spare[1]), "now there is");
        assert!(!connections.welcome(&spare[2]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_go_first_and_only_as_many_as_need_be() {
        let connections = Connections::new(9);
        let [slow, slower, quick, empty] = [(); 4].map(|()| connections.admit(peer()));
        for holder in [&slow, &slower, &quick] {
            holder.add(100);
        }
        tokio::time::advance(Duration::from_millis(500)).await;
        slow.progressed();
        tokio::time::advance(STALLED).await;
        quick.progressed();
        connections.shed_slow(100);
        assert!(is_closed(&slower).await);
        assert!(!is_closed(&slow).await && !is_closed(&quick).await);
        connections.shed_slow(1_000);
        assert!(is_closed(&slow).await);
        assert!(!is_closed(&quick).await && !is_closed(&empty).await);
        tokio::time::advance(LINGERING).await;
        quick.progressed();
        connections.shed_slow(1);
        assert!(is_closed(&quick).await, "a byte now and then is not enough");
    }
}
