//! A store whose writes, once begun, finish even if their caller is dropped.
//!
//! A dropped write has an unknown outcome: it may land after the clean-up and stay behind. So an interrupted run
//! first waits for the writes that it has begun, and begins no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tenure_store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};
use tokio::sync::RwLock;

#[derive(Debug)]
pub(crate) struct Finishing {
    store: Arc<dyn Store>,
    /// Every write under way holds a shared lock; an exclusive lock means that there are none.
    under_way: Arc<RwLock<()>>,
    finished: AtomicBool,
}

impl Finishing {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            under_way: Arc::default(),
            finished: AtomicBool::new(false),
        }
    }

    /// Lets no new write begin, and waits until those under way have ended. Deletes still work.
    pub(crate) async fn finish(&self) {
        self.finished.store(true, Ordering::SeqCst);
        drop(self.under_way.write().await);
    }
}

#[async_trait]
impl Store for Finishing {
    fn describe(&self) -> Description {
        self.store.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.store.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.store.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        let under_way = self.under_way.clone().read_owned().await;
        // Checked while the lock is held: either `finish` waits for this write, or this sees `finish`.
        if self.finished.load(Ordering::SeqCst) {
            return Err(Error::Unavailable {
                doing: format!("writing {key}"),
                source: "the run has ended".into(),
            });
        }
        let (store, key, expect) = (self.store.clone(), key.clone(), expect.clone());
        let write = tokio::spawn(async move {
            let result = store.put(&key, value, &expect).await;
            drop(under_way);
            result
        });
        match write.await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.store.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.store.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.store.watch(prefix)
    }
}

#[cfg(test)]
mod tests {
    use tenure_store::engine::memory::Memory;

    use super::*;

    /// A memory store whose writes wait for a permit.
    #[derive(Debug)]
    struct Slow {
        memory: Memory,
        begun: tokio::sync::Semaphore,
        permits: tokio::sync::Semaphore,
    }

    #[async_trait]
    impl Store for Slow {
        fn describe(&self) -> Description {
            self.memory.describe()
        }
        async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
            self.memory.get(key).await
        }
        async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
            self.memory.get_if_changed(key, version).await
        }
        async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
            self.begun.add_permits(1);
            let _permit = self.permits.acquire().await.expect("never closed");
            self.memory.put(key, value, expect).await
        }
        async fn delete(&self, key: &Key) -> Result<(), Error> {
            self.memory.delete(key).await
        }
        async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
            self.memory.list(prefix, after).await
        }
        fn watch(&self, prefix: &Prefix) -> Option<Watch> {
            self.memory.watch(prefix)
        }
    }

    #[tokio::test]
    async fn a_write_whose_caller_is_gone_is_waited_for() {
        let slow = Arc::new(Slow {
            memory: Memory::new(),
            begun: tokio::sync::Semaphore::new(0),
            permits: tokio::sync::Semaphore::new(0),
        });
        let store = Arc::new(Finishing::new(slow.clone()));
        let key = Key::new("a/b").unwrap();

        let caller = {
            let (store, key) = (store.clone(), key.clone());
            tokio::spawn(async move { store.put(&key, "x".into(), &Expect::Absent).await })
        };
        let _begun = slow.begun.acquire().await.unwrap();
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());

        let finish = store.finish();
        tokio::pin!(finish);
        tokio::select! {
            biased;
            () = &mut finish => panic!("the write has not ended yet"),
            () = tokio::task::yield_now() => slow.permits.add_permits(1),
        }
        finish.await;
        assert!(store.get(&key).await.unwrap().is_some());

        let late = store.put(&key, "y".into(), &Expect::Absent).await;
        assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
        store.delete(&key).await.unwrap();
        assert!(store.get(&key).await.unwrap().is_none());
    }
}
