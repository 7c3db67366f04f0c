//! A process that has lost the right to read and writes on: it keeps nobody from leading.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure::store::engine::memory::Memory;
use tenure::store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};

use crate::support::{brisk, elected, namespace, node_on};

/// What one host gets of a store: nothing to read, from some time on.
#[derive(Debug)]
struct Host {
    store: Arc<Memory>,
    is_blind: AtomicBool,
}

impl Host {
    fn look(&self) -> Result<(), Error> {
        if self.is_blind.load(Ordering::SeqCst) {
            Err(Error::Refused {
                doing: "reading".to_owned(),
                hint: "allow s3:GetObject".to_owned(),
                source: "access denied".into(),
            })
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Store for Host {
    fn describe(&self) -> Description {
        self.store.describe()
    }
    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.look()?;
        self.store.get(key).await
    }
    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.look()?;
        self.store.get_if_changed(key, version).await
    }
    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.store.put(key, value, expect).await
    }
    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.store.delete(key).await
    }
    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.look()?;
        self.store.list(prefix, after).await
    }
    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.store.watch(prefix)
    }
}

#[tokio::test]
async fn a_leader_that_cannot_read_makes_room() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let host = Arc::new(Host {
        store: store.clone(),
        is_blind: AtomicBool::new(false),
    });
    let config = brisk(Duration::from_secs(2));
    let a = node_on(&host, &namespace, "a", config.clone()).await;
    let of_a = a.join("e").await.unwrap();
    let first = elected(&of_a).await;
    let b = node_on(&store, &namespace, "b", config).await;
    let of_b = b.join("e").await.unwrap();

    host.is_blind.store(true, Ordering::SeqCst);
    let second = elected(&of_b).await;
    assert!(first.check().is_err() && second.term() > first.term());
    assert!(a.joined().await.is_ok(), "it writes a session all the same");

    // And takes part again when it can read.
    host.is_blind.store(false, Ordering::SeqCst);
    second.resign();
    assert!(elected(&of_a).await.term() > second.term());
    a.shutdown().await;
    b.shutdown().await;
}
