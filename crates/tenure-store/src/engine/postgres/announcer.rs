//! `NOTIFY`, after the commit.
//!
//! PostgreSQL commits transactions that announce something one after the other: each holds a lock of the whole server
//! from before its commit until the log is flushed. A change that announced itself would wait for all others, with a
//! flush for each. So a change is committed first, and then announced by a transaction that nobody waits for and that
//! is not flushed: a crash loses only hints.
//!
//! At most one task of a store announces. Changes made meanwhile are part of the next announcement; none is delayed to
//! wait for others. A writer that finds nobody announcing takes the first step itself, on the connection that it has
//! just given back. So the announcement is mostly sent before the caller has its answer, and a process may write
//! something and exit. The rest is a task of its runtime. If that runtime is blocked, only the announcements of this
//! store are late: no change waits for one, and they do not use the session's place in the pool.
//!
//! An announcement that does not fit or cannot be sent is dropped. Its watchers notice the change when they poll.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnectOptions;

use super::super::sql::{Held, Pool, answered};
use super::statement;
use crate::Key;

/// How many changes wait at most; one announcement covers all of them.
const WAITING_MAX: usize = 1024;

/// A channel, and the key that is announced there.
pub(super) type Announcement = (String, Key);

/// Announces changes, for all tasks of a store. It ends when nothing waits any more, so it outlives its store by no more than
/// the last announcement.
#[derive(Debug)]
pub(super) struct Announcer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Pool<PgConnectOptions>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    announcements: BTreeSet<Announcement>,
    /// Whether a task announces.
    is_served: bool,
}

impl Waiting {
    /// Adds an announcement. Returns whether the caller has to announce, because no task does.
    fn push(&mut self, announcement: Announcement) -> bool {
        if self.announcements.len() < WAITING_MAX {
            self.announcements.insert(announcement);
        }
        !std::mem::replace(&mut self.is_served, true)
    }

    fn take(&mut self) -> BTreeSet<Announcement> {
        std::mem::take(&mut self.announcements)
    }

    /// Whether anything waits. If not, the caller no longer counts as the task that announces.
    fn is_anything(&mut self) -> bool {
        self.is_served = !self.announcements.is_empty();
        self.is_served
    }
}

impl Announcer {
    pub(super) fn new(pool: Pool<PgConnectOptions>) -> Self {
        Self {
            shared: Arc::new(Shared {
                pool,
                waiting: Mutex::default(),
            }),
        }
    }

    /// Announces what has been committed. Does not wait.
    pub(super) async fn announce(&self, announcement: Announcement) {
        if !self.shared.waiting().push(announcement) {
            return;
        }
        let serving = Serving {
            shared: self.shared.clone(),
            is_over: false,
        };
        let mut serving: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(serving.serve());
        let first = poll_fn(|context| Poll::Ready(serving.as_mut().poll(context))).await;
        if first.is_pending() {
            tokio::spawn(serving);
        }
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing above can panic half way through a change.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that announces. If it ends early, with its runtime, the next change starts another.
struct Serving {
    shared: Arc<Shared>,
    /// Whether it has ended in order; another task may have started already.
    is_over: bool,
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.waiting().is_served = false;
        }
    }
}

impl Serving {
    async fn serve(mut self) {
        while !self.is_over {
            // Acquire the connection first: changes that arrive meanwhile are announced too.
            let acquired = self.shared.pool.acquire_ordinary().await;
            let announcements = self.shared.waiting().take();
            let sent = match acquired {
                Ok(held) => send(held, &announcements).await,
                Err(error) => Err(error),
            };
            if let Err(error) = sent {
                let count = announcements.len();
                tracing::debug!(%error, count, "changes are not announced");
            }
            self.is_over = !self.shared.waiting().is_anything();
        }
    }
}

async fn send(
    mut held: Held<PgConnectOptions>,
    announcements: &BTreeSet<Announcement>,
) -> Result<(), sqlx::Error> {
    let statement = statement::announce(announcements);
    let bytes = statement.len();
    let sent = answered(sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *held)).await;
    match &sent {
        Ok(_) => held.finish(bytes),
        // The server answered and is done with the statement, so this says nothing about other connections.
        Err(sqlx::Error::Database(_)) => held.close_now().await,
        Err(_) => drop(held),
    }
    sent.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(number: usize) -> Announcement {
        let key = Key::new(format!("a/b/{number}")).unwrap();
        ("tenure_0".to_owned(), key)
    }

    #[test]
    fn only_the_first_to_come_announces_and_it_announces_for_all() {
        let mut waiting = Waiting::default();
        assert!(waiting.push(announcement(1)));
        assert!(!waiting.push(announcement(2)));
        assert!(!waiting.push(announcement(1)), "which is one of them");
        assert_eq!(waiting.take().len(), 2);
        assert!(!waiting.push(announcement(3)), "while they are under way");
        assert!(waiting.is_anything());
        assert_eq!(waiting.take().len(), 1);
        assert!(!waiting.is_anything());
        assert!(waiting.push(announcement(4)), "nobody is there any more");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut waiting = Waiting::default();
        for number in 0..2 * WAITING_MAX {
            waiting.push(announcement(number));
        }
        assert_eq!(waiting.take().len(), WAITING_MAX);
    }
}
