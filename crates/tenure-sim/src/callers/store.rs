//! A store whose objects have no age, as that of a database or a bucket.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};

/// Around a store whose ages are not passed on.
#[derive(Debug)]
pub(super) struct Ageless(pub(super) Arc<dyn Store>);

fn ageless(object: Object) -> Object {
    Object {
        age: None,
        shown_age: None,
        ..object
    }
}

#[async_trait]
impl Store for Ageless {
    fn describe(&self) -> Description {
        let mut description = self.0.describe();
        description.capabilities.age = false;
        description
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let found = self.0.get(key).await?;
        Ok(found.map(ageless))
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        Ok(match self.0.get_if_changed(key, version).await? {
            Change::Changed(object) => Change::Changed(ageless(object)),
            other => other,
        })
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.0.put(key, value, expect).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.0.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.0.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.0.watch(prefix)
    }
}
