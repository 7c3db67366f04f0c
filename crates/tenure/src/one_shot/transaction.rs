//! One-shot elections inside the caller's own transaction: leadership is taken, or given back, if and only if that commits.
//!
//! The call is the same as without a transaction: the same steps, the same records. Only its requests go another way. They
//! are handed to the caller's future, which carries them out on the caller's connection, one after the other.
//!
//! # What is locked
//!
//! The lease, the fence and the sessions under the caller's id, from the call's first look at each until the transaction ends.
//! Nobody can take the lease meanwhile, or give it up, so keep the transaction short. Sessions of others are not locked, since
//! their owners renew them, unless the call evicts one that has expired. In SQLite every other writer to the file waits, so
//! begin with `BEGIN IMMEDIATE`. PostgreSQL and MariaDB are told to end the transaction if it is idle for a ttl, MySQL the
//! whole connection, also if that is idle for so long afterwards; SQLite has no such bound.
//!
//! A call with the store, for the same election and in the same program, waits for these locks: make none before the
//! transaction has ended.
//!
//! # Why two never lead at once
//!
//! Until the commit others see what stood before. If somebody else led then, the call would not have taken the lease: it takes
//! only one that is vacant, or whose holder has ended, or was asked to go and had its time. It has locked the lease when it
//! sees that, so it is still so at the commit. If the caller led, it goes on by a new version of its session. An observer that
//! takes the old version for expired can end it only by writing that very version, waits for the lock, and finds the new one.
//!
//! The commit shows session, lease and fence to others at once. They count a ttl from when they see the session, or, in SQLite,
//! from when its write was begun. The caller counts from before that, and for less than a ttl. So a long transaction costs the
//! caller time, and nobody's safety: what is left of `valid_for` at the commit is what it may use.
//!
//! # Isolation
//!
//! Safe from READ COMMITTED on. (MySQL's SERIALIZABLE locks all that is read, the leader's session, too.) What decides is
//! read with a lock: PostgreSQL fails such a read if the row has changed since the transaction began, MySQL reads the row as
//! it is now. What is read without a lock, the session of another leader, may be as it was when the transaction began. That it
//! has ended stays true. That it has expired is written before it counts, on the version that was seen, which fails if there
//! is a newer one. That it is missing counts only if a look with a lock says the same.
//!
//! So a call in a transaction that sees the past fails, and changes nothing. In MySQL's REPEATABLE READ one that is the first
//! in its transaction sees no past, since the lease is locked before anything else is read. In PostgreSQL's it may still be
//! told of a serialization failure if it had to wait for another.
//!
//! # What the call leaves out
//!
//! It does not wait, and it does not remove what dead candidates have left behind. Nothing is announced: a candidate that
//! waits notices at its next look, a heartbeat after the commit at most.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_core::election::Term;
use tenure_core::{ElectionName, NodeId};
use tenure_store::{
    Change, Description, Entry, Expect, Key, Object, PAGE_ENTRIES_MAX, Page, Prefix, Store,
    Version, Watch,
};
use tokio::sync::{mpsc, oneshot};

use super::{OneShot, Outcome, Withdrawal};
use crate::Error;
use crate::inspect::NamespaceView;
use crate::keys::Keys;
use crate::transaction::{Joined, NewObject, StoredObject, Transactional, new_version};

/// What an idle transaction gets at least.
const IDLE_MILLISECONDS_MIN: u128 = 1000;

/// How many writes of a call may find that somebody was faster. A transaction that sees the past would find that for ever,
/// and hold its locks meanwhile.
const CONFLICTS_MAX: u32 = 3;

/// Why a call in the caller's transaction came to nothing. Roll back; then nothing has happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The connection has no open transaction. Nothing was done; begin one first.
    #[error(
        "an election in a transaction needs one, and none is open on this connection; nothing was done"
    )]
    NoTransaction,
    /// This is not the database that is the store, or an older version made its table. Nothing was done; open the store once
    /// with this version.
    #[error("this database has no table tenure_objects of this version; nothing was done")]
    NoStore,
    /// Others were faster again and again, or the transaction sees an older state than they do. Roll back and try again.
    #[error("the election {election} has changed since this transaction began")]
    Changed {
        /// Which.
        election: ElectionName,
    },
    /// The database failed: a deadlock, a lock that took too long, a serialization failure, a lost connection. Roll back
    /// and try again.
    #[error("the election could not be held in this transaction")]
    Database(#[from] sqlx::Error),
    /// The election says no, as it would without a transaction; [`Error::MustWait`] only in one.
    #[error(transparent)]
    Election(#[from] Error),
}

impl OneShot {
    /// Registers `id` and lets it lead if nobody does, in the transaction that is open on `connection`. The outcome counts
    /// once that has committed. If it is rolled back, nothing has happened.
    ///
    /// The connection must be one to the database that is the store. Otherwise this is [`elect`](OneShot::elect), with these
    /// differences:
    ///
    /// - [`valid_for`](Outcome::valid_for) counts from the return of this call, not from the commit. A transaction that takes
    ///   longer than that commits a leadership that is over: call again.
    /// - Commit also if somebody else leads. In PostgreSQL and MySQL a dead leader is replaced by what two calls have seen, and
    ///   what this one saw is in the candidate's session.
    /// - If the answer to the commit is lost, act as if you did not lead: the next call finds out.
    /// - Where the protocol has to wait for a ttl, after the lease was deleted or an older copy restored, this is
    ///   [`Error::MustWait`]: call [`elect`](OneShot::elect) then.
    /// - What an earlier call said still holds if this one fails or is rolled back.
    ///
    /// The lease, the fence and the candidate's session stay locked until the transaction ends: nobody can take the lease or
    /// give it up meanwhile, so keep it short. A write that finds somebody else's in its place leaves the transaction intact.
    /// After any error, and if the future is dropped, roll back. In SQLite begin with `BEGIN IMMEDIATE`.
    ///
    /// ```no_run
    /// # async fn example(elections: tenure::OneShot, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// let outcome = elections.elect_tx(&mut *transaction, &"web-1".parse()?).await?;
    /// if outcome.is_leader() {
    ///     sqlx::query("INSERT INTO runs (day) VALUES (current_date)").execute(&mut *transaction).await?;
    /// }
    /// // Now it leads, if it said so.
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn elect_tx(
        &self,
        connection: &mut impl Transactional,
        id: &NodeId,
    ) -> Result<Outcome, TransactionError> {
        let (elections, served) = self.join(connection, id).await?;
        // On the heap: it is large, and this future is a part of the caller's.
        let call = Box::pin(elections.elect(id));
        served.serve(connection, call).await
    }

    /// Takes `id` off the list, and vacates its leadership first if it has it, in the transaction that is open on
    /// `connection`. If that is rolled back, it leads on.
    ///
    /// End the work before: others may lead as soon as the transaction commits. If the answer to the commit is lost, act as
    /// if you did not lead. Otherwise this is [`withdraw`](OneShot::withdraw), and what
    /// [`elect_tx`](OneShot::elect_tx) says of transactions holds here, too.
    ///
    /// ```no_run
    /// # async fn example(elections: tenure::OneShot, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// sqlx::query("UPDATE runs SET done = true").execute(&mut *transaction).await?;
    /// elections.withdraw_tx(&mut *transaction, &"web-1".parse()?, None).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn withdraw_tx(
        &self,
        connection: &mut impl Transactional,
        id: &NodeId,
        term: Option<Term>,
    ) -> Result<Withdrawal, TransactionError> {
        let (elections, served) = self.join(connection, id).await?;
        let call = Box::pin(elections.withdraw(id, term));
        served.serve(connection, call).await
    }

    /// The same elections with a store whose requests are to be served on the connection.
    async fn join(
        &self,
        connection: &mut impl Transactional,
        id: &NodeId,
    ) -> Result<(Self, Served), TransactionError> {
        let idle_max = self.config.ttl.as_millis().max(IDLE_MILLISECONDS_MIN);
        let lease = self.keys.lease(&self.election);
        match connection
            .join_transaction(lease.as_str(), idle_max)
            .await?
        {
            Joined::Transaction => {}
            Joined::NoTransaction => return Err(TransactionError::NoTransaction),
            Joined::NoStore => return Err(TransactionError::NoStore),
        }
        let (sender, requests) = mpsc::channel(1);
        let description = self.store.describe();
        let store = Arc::new(Borrowed {
            requests: sender,
            description,
        });
        let view = NamespaceView::new(store.clone(), self.keys.namespace().clone());
        let elections = Self {
            view: view.with_runtime(self.runtime.clone()),
            store,
            is_in_transaction: true,
            ..self.clone()
        };
        let served = Served {
            requests,
            id: id.clone(),
            election: self.election.clone(),
            conflicts: 0,
        };
        Ok((elections, served))
    }
}

/// The requests of one call, as they are carried out in the transaction.
struct Served {
    requests: mpsc::Receiver<Request>,
    /// The candidate that calls: its sessions are locked.
    id: NodeId,
    election: ElectionName,
    conflicts: u32,
}

impl Served {
    /// Polls the call, and carries out what it asks for, until it has ended. An error of the database ends it at once: what
    /// it would do about a failure, such as a look whether a write has landed, means nothing in a transaction that has failed.
    async fn serve<T>(
        mut self,
        connection: &mut impl Transactional,
        mut call: impl Future<Output = Result<T, Error>> + Unpin,
    ) -> Result<T, TransactionError> {
        loop {
            let request = tokio::select! {
                biased;
                ended = &mut call => return Ok(ended?),
                Some(request) = self.requests.recv() => request,
            };
            // While a statement is under way the call is not polled, so none of its timeouts ends a wait for a lock: that is
            // for the database to do, which then says what has happened.
            self.carry_out(connection, request).await?;
        }
    }

    async fn carry_out(
        &mut self,
        connection: &mut impl Transactional,
        request: Request,
    ) -> Result<(), TransactionError> {
        // If nobody waits for an answer, the call has ended.
        match request {
            Request::Get(key, answer) => {
                let found = self.read(connection, &key).await?;
                let _ = answer.send(Ok(found.map(to_object)));
            }
            Request::Put(key, value, expect, answer) => {
                let written = self.write(connection, &key, &value, &expect).await?;
                let _ = answer.send(written.ok_or(tenure_store::Error::Conflict { key }));
            }
            Request::Delete(key, answer) => {
                connection.delete_object(key.as_str()).await?;
                let _ = answer.send(Ok(()));
            }
            Request::List(prefix, after, answer) => {
                let _ = answer.send(list(connection, &prefix, after.as_ref()).await?);
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        connection: &mut impl Transactional,
        key: &Key,
    ) -> Result<Option<StoredObject>, TransactionError> {
        let is_of_another = Keys::session_of(key).is_some_and(|(node, _)| node != self.id);
        if !is_of_another {
            return Ok(connection.lock_object(key.as_str()).await?);
        }
        if let Some(found) = connection.read_object(key.as_str()).await? {
            return Ok(Some(found));
        }
        // Whoever is missing for a ttl counts as ended, but this transaction may see a time before the session was made. If it
        // does, the lock must not stay: the owner renews its session.
        match connection.lock_object(key.as_str()).await? {
            None => Ok(None),
            Some(_) => Err(self.changed()),
        }
    }

    /// The new version, or none if the object was not as expected.
    async fn write(
        &mut self,
        connection: &mut impl Transactional,
        key: &Key,
        value: &[u8],
        expect: &Expect,
    ) -> Result<Option<Version>, TransactionError> {
        let version = new_version();
        let expected = match expect {
            Expect::Absent => Some(None),
            // One of another engine, which no row has.
            Expect::Version(version) => version.tag().parse().ok().map(Some),
        };
        let is_written = match expected {
            None => false,
            Some(expected) => {
                let object = NewObject {
                    key: key.as_str(),
                    value,
                    version,
                    expected,
                    is_dated: Keys::session_of(key).is_some(),
                };
                connection.write_object(&object).await?
            }
        };
        if is_written {
            return Ok(Some(to_version(version)));
        }
        self.conflicts += 1;
        if self.conflicts > CONFLICTS_MAX {
            return Err(self.changed());
        }
        Ok(None)
    }

    fn changed(&self) -> TransactionError {
        TransactionError::Changed {
            election: self.election.clone(),
        }
    }
}

async fn list(
    connection: &mut impl Transactional,
    prefix: &Prefix,
    after: Option<&Key>,
) -> Result<Result<Page, tenure_store::Error>, sqlx::Error> {
    let above = after.map_or("", Key::as_str).max(prefix.as_str());
    // The next character after the slash.
    let below = format!("{}0", prefix.as_str().trim_end_matches('/'));
    let limit = i64::try_from(PAGE_ENTRIES_MAX).expect("a page is small") + 1;
    let rows = connection.list_objects(above, &below, limit).await?;
    let more = rows.len() > PAGE_ENTRIES_MAX;
    let rows = rows.into_iter().take(PAGE_ENTRIES_MAX);
    let entries = rows.map(|(key, version)| {
        Ok(Entry {
            key: Key::new(&key)?,
            version: to_version(version),
        })
    });
    let entries: Result<_, _> = entries.collect();
    Ok(entries.map(|entries| Page { entries, more }))
}

/// As the engines name the versions of rows: what one of them saw is recognised here, and the other way round.
fn to_version(number: i64) -> Version {
    Version::new(number.to_string())
}

fn to_object(stored: StoredObject) -> Object {
    Object {
        value: stored.value.into(),
        version: to_version(stored.version),
        age: stored.age,
        shown_age: None,
    }
}

/// A request, and where its answer goes.
#[derive(Debug)]
enum Request {
    Get(Key, Answer<Option<Object>>),
    Put(Key, Bytes, Expect, Answer<Version>),
    Delete(Key, Answer<()>),
    List(Prefix, Option<Key>, Answer<Page>),
}

type Answer<T> = oneshot::Sender<Result<T, tenure_store::Error>>;

/// The store of one call. A store lives for as long as it likes, and a connection is lent for the call, so the requests are
/// sent to the one who has it.
#[derive(Debug)]
struct Borrowed {
    requests: mpsc::Sender<Request>,
    description: Description,
}

impl Borrowed {
    async fn ask<T>(
        &self,
        request: impl FnOnce(Answer<T>) -> Request,
    ) -> Result<T, tenure_store::Error> {
        let (sender, answer) = oneshot::channel();
        let _ = self.requests.send(request(sender)).await;
        // Nobody serves a call that is not polled any more either, so this is not seen.
        answer.await.unwrap_or_else(|_| {
            Err(tenure_store::Error::Unavailable {
                doing: "a request in a transaction".to_owned(),
                source: "the call has ended".into(),
            })
        })
    }
}

#[async_trait]
impl Store for Borrowed {
    fn describe(&self) -> Description {
        self.description.clone()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, tenure_store::Error> {
        self.ask(|answer| Request::Get(key.clone(), answer)).await
    }

    async fn get_if_changed(
        &self,
        key: &Key,
        version: &Version,
    ) -> Result<Change, tenure_store::Error> {
        Ok(match self.get(key).await? {
            None => Change::Missing,
            Some(object) if object.version == *version => Change::Unchanged,
            Some(object) => Change::Changed(object),
        })
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
    ) -> Result<Version, tenure_store::Error> {
        self.ask(|answer| Request::Put(key.clone(), value, expect.clone(), answer))
            .await
    }

    async fn delete(&self, key: &Key) -> Result<(), tenure_store::Error> {
        self.ask(|answer| Request::Delete(key.clone(), answer))
            .await
    }

    async fn list(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
    ) -> Result<Page, tenure_store::Error> {
        self.ask(|answer| Request::List(prefix.clone(), after.cloned(), answer))
            .await
    }

    fn watch(&self, _prefix: &Prefix) -> Option<Watch> {
        None
    }
}
