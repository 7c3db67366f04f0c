//! Objects in this process's memory, for tests and examples: nothing survives the process, and no
//! other process sees it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use crate::watch::WatchSender;
use crate::{
    Capabilities, Change, Description, Entry, Error, Expect, Key, Object, PAGE_ENTRIES_MAX, Page,
    Prefix, Store, Version, Watch, check_value,
};

/// A store in memory. Clone an `Arc` of it to let several parts of one process share it.
#[derive(Debug, Default)]
pub struct Memory {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Key, Stored>,
    /// Counts over all keys, so that a version does not come back after a delete.
    writes: u64,
    watches: Vec<WatchSender>,
}

#[derive(Debug)]
struct Stored {
    value: Bytes,
    version: Version,
    written: Instant,
}

impl Memory {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Every operation changes the state in one step that cannot fail half way, so a panic elsewhere
    /// while the mutex was held leaves nothing broken.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tell_watches(&mut self, key: &Key) {
        self.watches.retain(|watch| !watch.is_closed());
        self.watches.iter().for_each(|watch| watch.changed(key));
    }
}

impl Stored {
    fn read(&self) -> Object {
        // One process, with a clock that nobody can set.
        let age = Some(self.written.elapsed());
        Object {
            value: self.value.clone(),
            version: self.version.clone(),
            age,
            shown_age: age,
        }
    }
}

#[async_trait]
impl Store for Memory {
    fn describe(&self) -> Description {
        Description {
            engine: "memory",
            location: "memory:".to_owned(),
            capabilities: Capabilities {
                age: true,
                hints: true,
                durable: false,
            },
        }
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        Ok(self.state().objects.get(key).map(Stored::read))
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        Ok(match self.state().objects.get(key) {
            None => Change::Missing,
            Some(stored) if stored.version == *version => Change::Unchanged,
            Some(stored) => Change::Changed(stored.read()),
        })
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        check_value(key, &value)?;
        let mut state = self.state();
        let holds = match (expect, state.objects.get(key)) {
            (Expect::Absent, current) => current.is_none(),
            (Expect::Version(expected), Some(stored)) => stored.version == *expected,
            (Expect::Version(_), None) => false,
        };
        if !holds {
            return Err(Error::conflict(key));
        }
        state.writes += 1;
        let version = Version::new(state.writes.to_string());
        let stored = Stored {
            value,
            version: version.clone(),
            written: Instant::now(),
        };
        state.objects.insert(key.clone(), stored);
        state.tell_watches(key);
        Ok(version)
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let mut state = self.state();
        if state.objects.remove(key).is_some() {
            state.tell_watches(key);
        }
        Ok(())
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let state = self.state();
        // A prefix is not a key, but it sorts right before the first key under it.
        let from = match after {
            Some(after) if after.as_str() >= prefix.as_str() => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix.as_str()),
        };
        let mut entries: Vec<Entry> = state
            .objects
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.is_under(prefix))
            .take(PAGE_ENTRIES_MAX + 1)
            .map(|(key, stored)| Entry {
                key: key.clone(),
                version: stored.version.clone(),
            })
            .collect();
        let more = entries.len() > PAGE_ENTRIES_MAX;
        entries.truncate(PAGE_ENTRIES_MAX);
        Ok(Page { entries, more })
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        let (sender, watch) = Watch::channel(prefix.clone());
        self.state().watches.push(sender);
        Some(watch)
    }
}
