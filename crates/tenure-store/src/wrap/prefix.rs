//! A store inside a store: every key under a prefix, and nothing else visible.
//!
//! Callers name keys without the prefix and never see it: not in listings, not in hints, not in the
//! `key` of an error. Two prefixes make two separate stores, unless one is the beginning of the
//! other. Keys can only be as long as the prefix leaves room for.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    AppendFolder, Change, Description, Error, Expect, IfMissing, KEY_BYTES_MAX, Key, Object, Page,
    Prefix, Store, Version, Watch,
};

/// Puts every key under a prefix.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure_store::Error> {
/// use tenure_store::{Expect, Key, Prefix, Store, wrap::Prefixed};
///
/// let store = tenure_store::open("memory:").await?;
/// let team = Prefixed::new(store.clone(), Prefix::new("team-a")?);
/// team.put(&Key::new("lease")?, "term 1".into(), &Expect::Absent).await?;
///
/// assert!(store.get(&Key::new("team-a/lease")?).await?.is_some());
/// assert_eq!(team.list(&Prefix::root(), None).await?.entries[0].key, Key::new("lease")?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Prefixed {
    inner: Arc<dyn Store>,
    prefix: Prefix,
}

impl Prefixed {
    /// The part of `inner` that lies under `prefix`.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, prefix: Prefix) -> Self {
        Self { inner, prefix }
    }

    /// The key as the inner store knows it.
    fn inside(&self, key: &Key) -> Result<Key, Error> {
        // Both parts are valid, so only the length can be wrong.
        self.prefix
            .key(key.as_str())
            .map_err(|_| self.too_long("key", key.as_str()))
    }

    /// The prefix as the inner store knows it.
    fn inside_prefix(&self, prefix: &Prefix) -> Result<Prefix, Error> {
        self.prefix
            .join(prefix.as_str())
            .map_err(|_| self.too_long("prefix", prefix.as_str()))
    }

    fn too_long(&self, what: &str, text: &str) -> Error {
        let taken = self.prefix.as_str().len();
        Error::invalid(
            format!(
                "a {what} of {} bytes does not fit under the store's own prefix of {taken} bytes, \
                 the limit for both together is {KEY_BYTES_MAX}",
                text.len()
            ),
            format!(
                "use keys of at most {} bytes here, or a shorter prefix for the store",
                KEY_BYTES_MAX.saturating_sub(taken)
            ),
        )
    }
}

/// The error for the caller of the outer store, with the key as the caller named it.
fn about(key: &Key) -> impl FnOnce(Error) -> Error {
    let key = key.clone();
    |error| match error {
        Error::Conflict { .. } => Error::Conflict { key },
        Error::Unknown { source, .. } => Error::Unknown { key, source },
        error => error,
    }
}

#[async_trait]
impl Store for Prefixed {
    fn describe(&self) -> Description {
        let inner = self.inner.describe();
        Description {
            location: format!("{}, keys under {}", inner.location, self.prefix),
            ..inner
        }
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.inner.get(&self.inside(key)?).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.inner.get_if_changed(&self.inside(key)?, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        let inside = self.inside(key)?;
        let result = self.inner.put(&inside, value, expect).await;
        result.map_err(about(key))
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let result = self.inner.delete(&self.inside(key)?).await;
        result.map_err(about(key))
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let prefix = self.inside_prefix(prefix)?;
        let after = after.map(|key| self.inside(key)).transpose()?;
        let mut page = self.inner.list(&prefix, after.as_ref()).await?;
        for entry in &mut page.entries {
            entry.key = entry
                .key
                .strip(&self.prefix)
                .ok_or_else(|| Error::Corrupt {
                    location: self.inner.describe().location,
                    what: format!("the listing of {prefix} shows {}", entry.key),
                })?;
        }
        Ok(page)
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        // Nothing can lie under a prefix that is too long, so there are no hints.
        let prefix = self.inside_prefix(prefix).ok()?;
        Some(self.inner.watch(&prefix)?.strip(&self.prefix))
    }

    /// Not passed on: files would not be under the prefix.
    fn append_folder(&self, _: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        None
    }

    fn is_replaced(&self) -> bool {
        self.inner.is_replaced()
    }

    fn pin(&self, prefix: &Prefix, missing: IfMissing) {
        // Nothing can lie under a prefix that is too long.
        if let Ok(prefix) = self.inside_prefix(prefix) {
            self.inner.pin(&prefix, missing);
        }
    }

    fn pause_before_write(&self) -> std::time::Duration {
        self.inner.pause_before_write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hint;
    use crate::engine::memory::Memory;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn prefixed(inner: Arc<dyn Store>, prefix: &str) -> Arc<Prefixed> {
        Arc::new(Prefixed::new(inner, Prefix::new(prefix).unwrap()))
    }

    #[tokio::test]
    async fn two_prefixes_do_not_see_each_other() {
        let memory = Arc::new(Memory::new());
        let left = prefixed(memory.clone(), "left");
        let right = prefixed(memory.clone(), "left-2");
        let absent = Expect::Absent;
        left.put(&key("x"), "l".into(), &absent).await.unwrap();
        assert_eq!(right.get(&key("x")).await.unwrap(), None);
        right.put(&key("x"), "r".into(), &absent).await.unwrap();
        right.delete(&key("x")).await.unwrap();
        assert!(left.get(&key("x")).await.unwrap().is_some());
        let root = right.list(&Prefix::root(), None).await.unwrap();
        assert_eq!(root, Page::default());
    }

    #[tokio::test]
    async fn listings_hints_and_errors_name_the_callers_own_key() {
        let memory = Arc::new(Memory::new());
        // Two layers, so that both prefixes have to come off, in the right order.
        let store = prefixed(prefixed(memory.clone(), "a/b"), "c");
        let mut watch = store.watch(&Prefix::new("d").unwrap()).unwrap();
        let name = key("d/e");
        let put = || store.put(&name, "1".into(), &Expect::Absent);
        put().await.unwrap();
        assert_eq!(watch.next().await, Some(Hint::Changed(name.clone())));
        assert!(matches!(put().await, Err(Error::Conflict { key }) if key == name));
        let page = store.list(&Prefix::root(), Some(&key("d/d"))).await;
        assert_eq!(page.unwrap().entries[0].key, name);
        let after = store.list(&Prefix::root(), Some(&name)).await.unwrap();
        assert_eq!(after, Page::default());
        assert!(memory.get(&key("a/b/c/d/e")).await.unwrap().is_some());
        let location = store.describe().location;
        assert_eq!(location, "memory:, keys under a/b/, keys under c/");
    }

    #[tokio::test]
    async fn a_key_that_is_too_long_with_the_prefix_is_invalid() {
        let store = prefixed(Arc::new(Memory::new()), &"p".repeat(99));
        let segment = "x".repeat(149);
        let fits = key(&[&*segment; 4].join("/"));
        assert_eq!(fits.as_str().len() + 100, KEY_BYTES_MAX - 1);
        store.get(&fits).await.unwrap();
        let long = key(&format!("{fits}yy"));
        for error in [
            store.get(&long).await.unwrap_err(),
            store
                .put(&long, "".into(), &Expect::Absent)
                .await
                .unwrap_err(),
            store.delete(&long).await.unwrap_err(),
        ] {
            assert_eq!(
                error.to_string(),
                "a key of 601 bytes does not fit under the store's own prefix of 100 bytes, \
                 the limit for both together is 700"
            );
            assert!(error.hint().contains("at most 600 bytes"), "{error:?}");
        }
    }
}
