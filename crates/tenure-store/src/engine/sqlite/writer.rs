//! The writer of a process: changes that wait are committed together.
//!
//! The cost of a change is the flush of the disk at its commit, so changes that wait while one is under way share the
//! next transaction, and its flush. No change is delayed to wait for others: a single one is committed at once, as one
//! statement.
//!
//! Each has its own outcome:
//!
//! - One that conflicts changes no row, and the others of its group are committed all the same.
//! - If the database refuses one of a group, all of it is rolled back, and each is tried alone.
//! - If the database is busy or fails before the commit was sent, nothing of the group was applied.
//! - If the outcome of the commit is unknown, so is that of every change in the group.
//!
//! [Urgent](crate::urgent()) changes go before everything else that waits, and in their own group. They still wait for
//! the group that is under way, which is why groups are small.
//!
//! A thread carries out the changes, not their callers. So a caller that is cancelled costs the others nothing, and one
//! whose runtime is blocked delays nobody, least of all a heartbeat. A change that is still waiting when its caller is
//! cancelled is never made.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::{DELETE, INSERT, Query, UPDATE, fate, read_error};
use crate::engine::identity::Identity;
use crate::engine::sql::{self, CONNECT_WITHIN, Fate, Held, Pool, answered};
use crate::urgent::is_urgent;
use crate::{Error, Key};

/// How many changes are committed at once, and how many bytes of them unless a single one has more.
const GROUP_MAX: usize = 64;
const GROUP_BYTES_MAX: usize = 1024 * 1024;

/// The change to make to the object at a key.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) key: Key,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Put {
        value: Bytes,
        version: i64,
        written: Option<String>,
        /// The version that is there; `None` if there is to be no object.
        expected: Option<i64>,
    },
    Delete,
}

impl Change {
    fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Put { value, .. } => value.len(),
            Kind::Delete => 0,
        }
    }

    fn query(&self) -> Query {
        let key = self.key.to_string();
        let Kind::Put {
            value,
            version,
            written,
            expected,
        } = &self.kind
        else {
            return sqlx::query(DELETE).bind(key);
        };
        let statement = match expected {
            None => INSERT,
            Some(_) => UPDATE,
        };
        let query = sqlx::query(statement)
            .bind(value.to_vec())
            .bind(*version)
            .bind(written.clone())
            .bind(key);
        match expected {
            None => query,
            Some(expected) => query.bind(*expected),
        }
    }

    fn doing(&self) -> String {
        format!("writing {}", self.key)
    }
}

/// Makes changes, for all tasks of a store.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// One connection, which only the task that serves this queue uses.
    pool: Pool<SqliteConnectOptions>,
    path: PathBuf,
    identity: Arc<Identity>,
    waiting: Mutex<Waiting>,
    /// Notified when a change waits, or the writer is gone.
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    urgent: VecDeque<Waiter>,
    ordinary: VecDeque<Waiter>,
    /// Whether a task serves them.
    is_served: bool,
    /// The store was dropped, so the task that serves this queue ends.
    is_over: bool,
    /// How many have arrived; gives each one its number.
    count: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    change: Change,
    /// Whether it must be made alone, because its group was rolled back.
    is_alone: bool,
    /// How many objects were changed.
    answer: oneshot::Sender<Result<u64, Error>>,
}

impl Waiter {
    /// Sends the outcome. The caller may have left.
    fn end(self, end: Result<u64, Error>) {
        let _ = self.answer.send(end);
    }
}

impl Writer {
    /// `pool` has one connection.
    pub(super) fn new(
        pool: Pool<SqliteConnectOptions>,
        path: PathBuf,
        identity: Arc<Identity>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                pool,
                path,
                identity,
                waiting: Mutex::default(),
                news: Notify::new(),
            }),
        }
    }

    /// Makes a change, and returns how many objects it has changed.
    pub(super) async fn change(&self, change: Change) -> Result<u64, Error> {
        let (key, doing) = (change.key.clone(), change.doing());
        let (turn, mut answer) = self.wait(change);
        let answer = match timeout(CONNECT_WITHIN, &mut answer).await {
            Ok(answer) => answer,
            Err(_) if turn.give_up() => {
                let words = format!("no turn to write within {CONNECT_WITHIN:?}");
                return Err(Error::unavailable(doing, words));
            }
            // It is being made already, which has a time limit.
            Err(_) => answer.await,
        };
        answer.unwrap_or_else(|_| Err(Error::unknown(&key, "the runtime that wrote it has ended")))
    }

    fn wait(&self, change: Change) -> (Turn, oneshot::Receiver<Result<u64, Error>>) {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.shared.waiting();
        waiting.count += 1;
        let number = waiting.count;
        let waiter = Waiter {
            number,
            change,
            is_alone: false,
            answer,
        };
        if is_urgent() {
            waiting.urgent.push_back(waiter);
        } else {
            waiting.ordinary.push_back(waiter);
        }
        let was_served = std::mem::replace(&mut waiting.is_served, true);
        drop(waiting);
        if !was_served {
            start(Serving(self.shared.clone()));
        }
        self.shared.news.notify_one();
        let turn = Turn {
            shared: self.shared.clone(),
            number,
        };
        (turn, answered)
    }
}

/// A turn in the queue. Dropping it leaves the queue.
struct Turn {
    shared: Arc<Shared>,
    number: u64,
}

impl Turn {
    /// Leaves the queue. Returns whether it was still waiting.
    fn give_up(&self) -> bool {
        let mut waiting = self.shared.waiting();
        let Waiting {
            urgent, ordinary, ..
        } = &mut *waiting;
        [ordinary, urgent].into_iter().any(|queue| {
            let at = queue.iter().position(|one| one.number == self.number);
            at.and_then(|at| queue.remove(at)).is_some()
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.waiting().is_over = true;
        self.shared.news.notify_one();
    }
}

/// The task that serves the queue. If it ends early, by a panic, the next change starts another.
struct Serving(Arc<Shared>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.waiting().is_served = false;
    }
}

/// Serves the queue on a thread, for as long as the store exists. If no thread can be started, a task of the first
/// caller serves it until nothing waits: late if that runtime is blocked, but written.
fn start(serving: Serving) {
    let shared = serving.0.clone();
    let thread = std::thread::Builder::new().name("tenure-sqlite".to_owned());
    let served = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        match runtime {
            Ok(runtime) => runtime.block_on(serve(serving, End::WithTheStore)),
            Err(error) => {
                let failure = Failure {
                    fate: Fate::Lost,
                    cause: error.to_string(),
                };
                let group = serving.0.waiting().take();
                serving.0.end_unwritten(group, &failure);
            }
        }
    };
    let is_started = thread.spawn(served).is_ok();
    if !is_started {
        // Dropping the thread's closure has cleared this.
        shared.waiting().is_served = true;
        tokio::spawn(serve(Serving(shared), End::WhenIdle));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    WithTheStore,
    WhenIdle,
}

async fn serve(serving: Serving, end: End) {
    let shared = &serving.0;
    loop {
        let is_idle = match end {
            End::WhenIdle if !shared.waiting().is_anybody() => return,
            _ => shared.waiting().is_idle(),
        };
        if is_idle {
            if shared.waiting().is_over {
                return;
            }
            shared.news.notified().await;
            continue;
        }
        // Acquire the connection first: changes that arrive meanwhile go along.
        match shared.pool.acquire().await {
            Ok(held) => {
                let group = shared.waiting().take();
                shared.carry_out(held, group).await;
            }
            Err(error) => {
                let failure = Failure::new(error);
                let group = shared.waiting().take();
                shared.end_unwritten(group, &failure);
            }
        }
    }
}

impl Waiting {
    /// Whether anything waits. If not, the caller no longer counts as the task that serves the queue.
    fn is_anybody(&mut self) -> bool {
        self.is_served = !self.is_idle();
        self.is_served
    }

    fn is_idle(&self) -> bool {
        self.urgent.is_empty() && self.ordinary.is_empty()
    }

    /// Takes those that go next.
    fn take(&mut self) -> Vec<Waiter> {
        let queue = if self.urgent.is_empty() {
            &mut self.ordinary
        } else {
            &mut self.urgent
        };
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(next) = queue.front() {
            bytes += next.change.bytes();
            let is_full = group.len() >= GROUP_MAX || bytes > GROUP_BYTES_MAX;
            if !group.is_empty() && (is_full || next.is_alone) {
                break;
            }
            let is_alone = next.is_alone;
            group.extend(queue.pop_front());
            if is_alone {
                break;
            }
        }
        group
    }
}

/// The database's error, for each change of a group.
struct Failure {
    fate: Fate,
    cause: String,
}

impl Failure {
    fn new(error: sqlx::Error) -> Self {
        Self {
            fate: fate(&error),
            cause: sql::cause(error).to_string(),
        }
    }
}

/// How a group ended.
enum Ended {
    /// How many objects each has changed.
    Committed(Vec<u64>),
    /// The commit was not sent, or it was refused.
    NotCommitted(Failure),
    /// Whether it was committed is unknown.
    Unknown(Failure),
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing below can panic half way through a change.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn carry_out(&self, mut held: Held<SqliteConnectOptions>, group: Vec<Waiter>) {
        let Some(first) = group.first() else {
            held.finish(0);
            return;
        };
        if let Err(error) = self.identity.check(&first.change.doing()) {
            held.finish(0);
            let failure = Failure {
                fate: Fate::Lost,
                cause: error.to_string(),
            };
            return self.end_unwritten(group, &failure);
        }
        let ended = match &*group {
            [one] => alone(&mut held, &one.change).await,
            _ => together(&mut held, &group).await,
        };
        match ended {
            Ended::Committed(counts) => {
                held.finish(group.iter().map(|waiter| waiter.change.bytes()).sum());
                for (waiter, count) in group.into_iter().zip(counts) {
                    // What is written to a replaced file is lost.
                    let checked = self.identity.check(&waiter.change.doing());
                    let key = &waiter.change.key;
                    let end = checked.map_err(|error| Error::unknown(key, error));
                    waiter.end(end.map(|()| count));
                }
            }
            Ended::Unknown(failure) => {
                drop(held);
                for waiter in group {
                    let error = Error::unknown(&waiter.change.key, failure.cause.clone());
                    waiter.end(Err(error));
                }
            }
            Ended::NotCommitted(failure) => {
                let is_shared = group.len() > 1;
                if is_shared && roll_back(&mut held).await {
                    held.finish(0);
                } else {
                    // Closing it rolls back as well.
                    drop(held);
                }
                match failure.fate {
                    Fate::Refused(_) if is_shared => self.put_back(group),
                    _ => self.end_unwritten(group, &failure),
                }
            }
        }
    }

    /// The database may have refused one of them, or all: each gets its own answer.
    fn put_back(&self, group: Vec<Waiter>) {
        let mut waiting = self.waiting();
        for mut waiter in group.into_iter().rev() {
            waiter.is_alone = true;
            waiting.ordinary.push_front(waiter);
        }
    }

    /// Ends changes that were not applied. If the file is gone, that is the better reason.
    fn end_unwritten(&self, group: Vec<Waiter>, failure: &Failure) {
        for waiter in group {
            let doing = waiter.change.doing();
            let error = self.identity.check(&doing).err().unwrap_or_else(|| {
                let cause = failure.cause.clone().into();
                read_error(&self.path, doing, failure.fate, cause)
            });
            waiter.end(Err(error));
        }
    }
}

/// One statement, in its own transaction.
async fn alone(connection: &mut SqliteConnection, change: &Change) -> Ended {
    match answered(change.query().execute(connection)).await {
        Ok(done) => Ended::Committed(vec![done.rows_affected()]),
        Err(error) => Ended::of_commit(error),
    }
}

async fn together(connection: &mut SqliteConnection, group: &[Waiter]) -> Ended {
    let changes = async {
        // Waits for other processes here, and not half way.
        answered(sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection)).await?;
        let mut counts = Vec::new();
        for waiter in group {
            let done = answered(waiter.change.query().execute(&mut *connection)).await?;
            counts.push(done.rows_affected());
        }
        Ok(counts)
    };
    let counts = match changes.await {
        Ok(counts) => counts,
        Err(error) => return Ended::NotCommitted(Failure::new(error)),
    };
    match answered(sqlx::query("COMMIT").execute(connection)).await {
        Ok(_) => Ended::Committed(counts),
        Err(error) => Ended::of_commit(error),
    }
}

impl Ended {
    /// Judges a failed commit: the answer may show that nothing was applied.
    fn of_commit(error: sqlx::Error) -> Self {
        let failure = Failure::new(error);
        match failure.fate {
            Fate::Lost => Ended::Unknown(failure),
            Fate::Refused(_) | Fate::Busy | Fate::Damaged => Ended::NotCommitted(failure),
        }
    }
}

/// Rolls back. Returns whether no transaction is open now: some errors have ended it already.
async fn roll_back(connection: &mut SqliteConnection) -> bool {
    match answered(sqlx::query("ROLLBACK").execute(connection)).await {
        Ok(_) => true,
        // SQLITE_ERROR: there is none.
        Err(sqlx::Error::Database(error)) => error.code().as_deref() == Some("1"),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_an_answer_leaves_all_of_its_group_open() {
        let lost = sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
        assert!(matches!(Ended::of_commit(lost), Ended::Unknown(_)));
    }

    fn waiter(number: u64, bytes: usize, is_alone: bool) -> Waiter {
        let kind = Kind::Put {
            value: vec![0; bytes].into(),
            version: 1,
            written: None,
            expected: None,
        };
        Waiter {
            number,
            change: Change {
                key: Key::new(format!("a/{number}")).unwrap(),
                kind,
            },
            is_alone,
            answer: oneshot::channel().0,
        }
    }

    fn numbers(group: &[Waiter]) -> Vec<u64> {
        group.iter().map(|waiter| waiter.number).collect()
    }

    #[test]
    fn groups_are_bounded_in_number_and_bytes() {
        let mut waiting = Waiting::default();
        let most = u64::try_from(GROUP_MAX).unwrap();
        waiting
            .ordinary
            .extend((0..=most).map(|number| waiter(number, 10, false)));
        assert_eq!(waiting.take().len(), GROUP_MAX);
        waiting
            .ordinary
            .push_back(waiter(100, GROUP_BYTES_MAX, false));
        waiting.ordinary.push_back(waiter(101, 1, true));
        waiting.ordinary.push_back(waiter(102, 1, false));
        assert_eq!(numbers(&waiting.take()), [most]);
        assert_eq!(numbers(&waiting.take()), [100]);
        assert_eq!(numbers(&waiting.take()), [101]);
        waiting.urgent.push_back(waiter(103, 1, false));
        assert_eq!(numbers(&waiting.take()), [103]);
        assert_eq!(numbers(&waiting.take()), [102]);
        assert!(waiting.take().is_empty());
    }
}
