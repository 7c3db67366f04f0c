//! Ages by the clock of a server, for URLs that ask for them with `?age=server-clock`.
//!
//! Without an age a process that has just started waits a whole ttl before it may replace a dead leader. A database or
//! an object store could tell it how old a session is, but only by a clock that can be set, and that may in fact be
//! several clocks: each gateway of a bucket and each proxy in front of it has its own, and after a failover another
//! database answers. If such a clock is ahead by more than a session's margin (a tenth of its ttl), a leader that is
//! alive looks dead and **two processes lead at once**. Ask for these ages only where one server with one disciplined
//! clock answers, and where a ttl of waiting is worse.
//!
//! They are tested against our own writes. An age is reported only if something that this store wrote was read back
//! within [`TESTED_FOR`], and did not look older than it can be. If it ever does, no age is reported until the store is
//! opened again, and an error is logged. This detects a proxy that sends its own dates, and a clock that was set
//! forward. It cannot detect a clock that was wrong only when somebody else wrote.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    AppendFolder, Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version,
    Watch,
};

/// How long a test stays valid.
const TESTED_FOR: Duration = Duration::from_secs(1);

/// Reports [`Object::shown_age`] as [`Object::age`], until it is found to be wrong. See the module for the risk.
#[derive(Debug)]
pub struct ServerAges {
    inner: Arc<dyn Store>,
    is_wrong: AtomicBool,
    own: Mutex<Own>,
}

/// What this store can test the clock with.
#[derive(Debug, Default)]
struct Own {
    /// The last write that is known to be done, and a moment before it was sent.
    written: Option<(Key, Version, Instant)>,
    /// When our own write last passed the test.
    tested: Option<Instant>,
}

impl ServerAges {
    /// Around a store whose objects have a [`Object::shown_age`].
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            is_wrong: AtomicBool::new(false),
            own: Mutex::default(),
        }
    }

    /// Each change is one step that cannot panic half way, so a poisoned lock is still consistent.
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn judge(&self, key: &Key, object: &mut Object) {
        object.age = None;
        let Some(claimed) = object.shown_age else {
            return;
        };
        if self.is_wrong.load(Ordering::Relaxed) {
            return;
        }
        let is_tested = self.test(key, object) || self.was_tested() || self.read_back().await;
        if is_tested && !self.is_wrong.load(Ordering::Relaxed) {
            object.age = Some(claimed);
        }
    }

    fn was_tested(&self) -> bool {
        let tested = self.own().tested;
        tested.is_some_and(|tested| tested.elapsed() < TESTED_FOR)
    }

    /// Reads back our last write, since no other request may have read it for a while.
    async fn read_back(&self) -> bool {
        let Some((key, _, _)) = self.own().written.clone() else {
            return false;
        };
        match self.inner.get(&key).await {
            Ok(Some(object)) => self.test(&key, &object),
            Ok(None) | Err(_) => false,
        }
    }

    /// Whether this is our own write and looks no older than it can be.
    fn test(&self, key: &Key, object: &Object) -> bool {
        let mut own = self.own();
        let Some((written_key, version, started)) = &own.written else {
            return false;
        };
        if written_key != key || *version != object.version {
            return false;
        }
        let Some(claimed) = object.shown_age else {
            return false;
        };
        let most = started.elapsed();
        if claimed <= most {
            own.tested = Some(Instant::now());
            return true;
        }
        drop(own);
        if !self.is_wrong.swap(true, Ordering::Relaxed) {
            tracing::error!(
                store = self.inner.describe().location,
                %key,
                "the store's clock is wrong: it says that something written here at most {most:?} ago is \
                 {claimed:?} old; ages are ignored from now on, so taking over from a dead leader takes \
                 a full ttl; remove age=server-clock from the store's URL"
            );
        }
        false
    }
}

#[async_trait]
impl Store for ServerAges {
    fn describe(&self) -> Description {
        let mut description = self.inner.describe();
        description.capabilities.age = !self.is_wrong.load(Ordering::Relaxed);
        description
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let mut object = self.inner.get(key).await?;
        if let Some(object) = &mut object {
            self.judge(key, object).await;
        }
        Ok(object)
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        let mut change = self.inner.get_if_changed(key, version).await?;
        if let Change::Changed(object) = &mut change {
            self.judge(key, object).await;
        }
        Ok(change)
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        let started = Instant::now();
        let version = self.inner.put(key, value, expect).await?;
        self.own().written = Some((key.clone(), version.clone(), started));
        Ok(version)
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.inner.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.inner.watch(prefix)
    }

    /// Not passed on: no engine with files gets ages from a server.
    fn append_folder(&self, _: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::Memory;
    use crate::wrap::faulty::{Faults, Faulty};

    const SECOND: Duration = Duration::from_secs(1);

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    /// A store with a server's clock that the test can set.
    fn asked() -> (Arc<Faulty>, ServerAges) {
        let faulty = Faulty::new(Arc::new(Memory::new()), Faults::default(), 1).unwrap();
        let faulty = Arc::new(faulty);
        (faulty.clone(), ServerAges::new(faulty))
    }

    async fn age(store: &dyn Store, name: &str) -> Option<Duration> {
        store.get(&key(name)).await.unwrap().unwrap().age
    }

    #[tokio::test(start_paused = true)]
    async fn an_age_is_told_only_beside_a_write_of_our_own() {
        let (server, store) = asked();
        let others = key("others");
        server
            .put(&others, "x".into(), &Expect::Absent)
            .await
            .unwrap();
        tokio::time::sleep(9 * SECOND).await;
        assert_eq!(age(&store, "others").await, None, "nothing to test it by");
        let own = key("own");
        store.put(&own, "x".into(), &Expect::Absent).await.unwrap();
        assert_eq!(age(&store, "others").await, Some(9 * SECOND));
        let own = server.get(&own).await.unwrap().unwrap();
        server
            .put(&key("own"), "y".into(), &Expect::Version(own.version))
            .await
            .unwrap();
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(age(&store, "others").await, None, "it was overwritten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_once_ahead_is_never_believed_again() {
        let (server, store) = asked();
        server
            .put(&key("others"), "x".into(), &Expect::Absent)
            .await
            .unwrap();
        store
            .put(&key("own"), "x".into(), &Expect::Absent)
            .await
            .unwrap();
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(age(&store, "others").await, Some(2 * SECOND));
        assert!(store.describe().capabilities.age);
        server.set_clock_ahead(8 * SECOND);
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(age(&store, "others").await, None);
        server.set_clock_ahead(Duration::ZERO);
        store
            .put(&key("own-2"), "x".into(), &Expect::Absent)
            .await
            .unwrap();
        assert_eq!(age(&store, "others").await, None);
        assert!(!store.describe().capabilities.age);
        let shown = store.get(&key("others")).await.unwrap().unwrap().shown_age;
        assert_eq!(shown, Some(4 * SECOND), "people may see it all the same");
    }
}
