//! Calls that read the whole namespace, of any size: they share their readings.
//!
//! Reading a thousand sessions takes a thousand requests to the store, and anybody with a token may ask. So only one
//! such reading is under way at a time, and a caller that asks meanwhile waits for it, or for the next one: each
//! caller has an earliest time at which its reading may have begun. For a read, that is a second ago or the last
//! change made through this server, whichever is later; after a change, it is that change. A reading continues if its
//! caller goes away. Its failure is shared as well, so that a store in trouble does not get more requests.
//!
//! The number of waiting callers is limited; further ones are answered 429.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure::NamespaceView;
use tenure_api::{Cluster, Code};
use tenure_core::Incarnation;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::app::App;
use crate::handlers::cluster;
use crate::problem::Problem;

/// How old a reading may be for a read.
const FRESH: Duration = Duration::from_secs(1);

/// The most callers that wait for a reading.
const CALLERS_MAX: usize = 256;

/// How long a reading may take.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The shared readings.
#[derive(Debug)]
pub(crate) struct Looks {
    sessions: Shared<NamespaceView>,
    cluster: Shared<Arc<Overview>>,
    room: Semaphore,
    /// When a call to this server last changed something.
    changed: Mutex<Option<Instant>>,
}

/// The cluster as the store had it.
#[derive(Debug)]
pub(crate) struct Overview {
    pub(crate) cluster: Cluster,
    /// The cluster as JSON, ready to be sent.
    pub(crate) json: Bytes,
    /// How long before the reading each session was written.
    pub(crate) ages: BTreeMap<Incarnation, Duration>,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            sessions: Shared::default(),
            cluster: Shared::default(),
            room: Semaphore::new(CALLERS_MAX),
            changed: Mutex::default(),
        }
    }
}

impl Looks {
    /// Room for one more caller.
    pub(crate) fn permit(&self) -> Result<SemaphorePermit<'_>, Problem> {
        let full = "too many calls are already reading the nodes and candidates";
        self.room
            .try_acquire()
            .map_err(|_| Problem::overloaded(full))
    }

    /// Marks a call that changes something: when it ends, even by an error, earlier readings are too old.
    pub(crate) fn change(&self) -> Changing<'_> {
        Changing(&self.changed)
    }

    /// The earliest start of a reading that is recent enough for a read.
    pub(crate) fn recent(&self) -> Instant {
        recent(&self.changed)
    }

    /// The namespace, with its sessions read no earlier than `since`.
    pub(crate) async fn sessions(
        &self,
        app: &App,
        since: Instant,
    ) -> Result<NamespaceView, Problem> {
        let view = app.node.view().clone();
        let read = async move { Ok(view.look().await?) };
        self.sessions.get(since, read).await
    }

    /// The cluster, read no earlier than `since`.
    pub(crate) async fn cluster(
        &self,
        app: &Arc<App>,
        since: Instant,
    ) -> Result<Arc<Overview>, Problem> {
        let app = app.clone();
        let read = async move { cluster::read(&app).await.map(Arc::new) };
        self.cluster.get(since, read).await
    }
}

/// Notes a change when it is dropped.
#[derive(Debug)]
pub(crate) struct Changing<'a>(&'a Mutex<Option<Instant>>);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
}

fn recent(changed: &Mutex<Option<Instant>>) -> Instant {
    let now = Instant::now();
    let changed = *changed.lock().unwrap_or_else(PoisonError::into_inner);
    let fresh = now.checked_sub(FRESH).unwrap_or(now);
    changed.map_or(fresh, |changed| changed.max(fresh))
}

/// Allows one reading at a time, and keeps the last one.
#[derive(Debug)]
struct Shared<T>(Arc<tokio::sync::Mutex<Option<Reading<T>>>>);

#[derive(Debug)]
struct Reading<T> {
    begun: Instant,
    result: Result<T, Problem>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + 'static> Shared<T> {
    /// The last reading if it was begun recently enough, otherwise a new one.
    async fn get(
        &self,
        since: Instant,
        read: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        // Callers get the lock in order. The first one reads, and the others find its reading.
        let mut last = self.0.clone().lock_owned().await;
        if let Some(last) = &*last
            && last.begun >= since
        {
            return last.result.clone();
        }
        // Runs in its own task: if this caller goes away, the others still get the reading.
        let task = tokio::spawn(async move {
            let begun = Instant::now();
            let result = timeout(READ_TIMEOUT, read).await.unwrap_or_else(|_| {
                let late = "the store did not answer in time; nothing was done";
                Err(Problem::new(Code::StoreUnavailable, late).hint("try again later"))
            });
            *last = Some(Reading {
                begun,
                result: result.clone(),
            });
            result
        });
        let bug = "the broker could not read the nodes and candidates";
        task.await.unwrap_or_else(|_| Err(Problem::internal(bug)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    /// A reading that takes 100 ms and returns its number.
    fn reading(
        count: &Arc<AtomicUsize>,
    ) -> impl Future<Output = Result<usize, Problem>> + Send + 'static {
        let count = count.clone();
        async move {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            sleep(Duration::from_millis(100)).await;
            Ok(number)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_share_a_reading_that_was_begun_late_enough() {
        let (shared, count) = (Shared::default(), Arc::default());
        let changed = Mutex::default();
        let all = (0..100).map(|_| shared.get(recent(&changed), reading(&count)));
        let all = futures_util::future::join_all(all).await;
        assert!(all.iter().all(|got| matches!(got, Ok(1))), "one for all");
        advance(Duration::from_millis(800)).await;
        let again = shared.get(recent(&changed), reading(&count)).await;
        assert_eq!(again.unwrap(), 1);
        advance(Duration::from_millis(200)).await;
        let old = shared.get(recent(&changed), reading(&count)).await;
        assert_eq!(old.unwrap(), 2);
        drop(Changing(&changed));
        let after = shared.get(recent(&changed), reading(&count)).await;
        assert_eq!(after.unwrap(), 3, "not what was before the change");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_changed_something_waits_for_the_next_reading() {
        let (shared, count) = (Shared::default(), Arc::default());
        let look = shared.get(Instant::now(), reading(&count));
        let changes = async {
            sleep(Duration::from_millis(50)).await;
            let all = (0..9).map(|_| shared.get(Instant::now(), reading(&count)));
            futures_util::future::join_all(all).await
        };
        let (look, changes) = tokio::join!(look, changes);
        assert_eq!(look.unwrap(), 1);
        assert!(
            changes.iter().all(|got| matches!(got, Ok(2))),
            "{changes:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_takes_the_reading_from_nobody() {
        let (shared, count) = (Shared::default(), Arc::default());
        let since = Instant::now();
        let gone = timeout(
            Duration::from_millis(50),
            shared.get(since, reading(&count)),
        );
        assert!(gone.await.is_err());
        assert_eq!(shared.get(since, reading(&count)).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_shared_like_an_answer() {
        let shared: Shared<usize> = Shared::default();
        let since = Instant::now();
        let failing = async { Err(Problem::no_leader("it failed")) };
        assert!(shared.get(since, failing).await.is_err());
        let unused = async { panic!("the store was asked again") };
        assert!(shared.get(since, unused).await.is_err());
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let looks = Looks::default();
        let permits: Vec<_> = (0..CALLERS_MAX).map(|_| looks.permit().unwrap()).collect();
        let refused = looks.permit().unwrap_err();
        assert_eq!(refused.code(), Code::Overloaded);
        drop(permits);
        assert!(looks.permit().is_ok());
    }
}
