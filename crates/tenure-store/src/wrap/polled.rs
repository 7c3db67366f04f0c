//! A store without hints, for programs that cannot have them or do not want them: they poll.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    AppendFolder, Change, Description, Error, Expect, IfMissing, Key, Object, Page, Prefix, Store,
    Version, Watch,
};

/// Hides a store's hints: nothing listens, nothing is watched.
#[derive(Debug)]
pub struct Polled {
    inner: Arc<dyn Store>,
}

impl Polled {
    /// Passes everything on but the hints.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner }
    }
}

#[async_trait]
impl Store for Polled {
    fn describe(&self) -> Description {
        let mut description = self.inner.describe();
        description.capabilities.hints = false;
        description
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.inner.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.inner.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.inner.put(key, value, expect).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.inner.list(prefix, after).await
    }

    fn watch(&self, _: &Prefix) -> Option<Watch> {
        None
    }

    fn append_folder(&self, prefix: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        self.inner.append_folder(prefix)
    }

    fn pin(&self, prefix: &Prefix, missing: IfMissing) {
        self.inner.pin(prefix, missing);
    }

    fn pause_before_write(&self) -> Duration {
        self.inner.pause_before_write()
    }

    fn is_replaced(&self) -> bool {
        self.inner.is_replaced()
    }
}
