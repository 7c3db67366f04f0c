//! A store whose objects have the ages of a real one: none, like a database or a bucket, or ages that count from when
//! a write was begun, which may be long before it became visible.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};

/// Wraps a store and changes its ages.
#[derive(Debug)]
pub(super) struct Aged {
    pub(super) store: Arc<dyn Store>,
    pub(super) ages: Ages,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Ages {
    None,
    /// The writer of a lease is stopped for this long between the start of its write and the moment at which the
    /// write becomes visible.
    SinceBegun(Duration),
}

impl Aged {
    fn aged(&self, key: &Key, object: Object) -> Object {
        let is_lease = key.as_str().contains("/elections/");
        let age = match self.ages {
            Ages::None => None,
            Ages::SinceBegun(stopped) if is_lease => object.age.map(|age| age + stopped),
            Ages::SinceBegun(_) => object.age,
        };
        Object {
            age,
            shown_age: age,
            ..object
        }
    }
}

#[async_trait]
impl Store for Aged {
    fn describe(&self) -> Description {
        let mut description = self.store.describe();
        description.capabilities.age = !matches!(self.ages, Ages::None);
        description
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let found = self.store.get(key).await?;
        Ok(found.map(|object| self.aged(key, object)))
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        Ok(match self.store.get_if_changed(key, version).await? {
            Change::Changed(object) => Change::Changed(self.aged(key, object)),
            other => other,
        })
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.store.put(key, value, expect).await
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
