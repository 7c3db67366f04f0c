//! The store that all hosts share: objects in memory, behind a network that takes its time. What is written
//! is told to the ledger at the very moment when it is.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_store::engine::memory::Memory;
use tenure_store::wrap::faulty::Faulty;
use tenure_store::{
    AppendFolder, Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version,
    Watch,
};

use super::disk::{Disk, Folder};
use super::held;
use super::plan::Plan;
use super::world::World;

/// A store whose every write is seen.
pub(crate) struct Recorded {
    memory: Memory,
    world: Weak<World>,
    hints: bool,
    /// Whether it stands for a file store: then what is written is seen before it is durable.
    files: bool,
    rising: Mutex<Vec<Rising>>,
}

/// A write that is seen and not durable: a file store has renamed the file, and not yet synced the folder.
#[derive(Debug, PartialEq, Eq)]
struct Rising {
    key: Key,
    version: Version,
    before: Option<Bytes>,
}

impl std::fmt::Debug for Recorded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Recorded")
    }
}

impl Recorded {
    pub(crate) fn new(world: Weak<World>, plan: &Plan) -> Self {
        Self {
            memory: Memory::new(),
            world,
            hints: plan.hints,
            files: plan.files,
            rising: Mutex::default(),
        }
    }

    /// Of what is not durable yet, some is as it was before.
    pub(crate) async fn lose_power(&self) {
        let rising = std::mem::take(&mut *self.rising());
        for Rising {
            key,
            version,
            before,
        } in rising
        {
            let object = self.memory.get(&key).await.expect("memory does not fail");
            // What was written over it is durable, or another one of these.
            let is_present = object.is_some_and(|object| object.version == version);
            if !is_present || self.world().random().chance(500) {
                continue;
            }
            self.world().say("store", &format!("forgets {key}"));
            if let Some(before) = before {
                let expect = Expect::Version(version);
                let put = self.memory.put(&key, before, &expect);
                put.await.expect("nobody else writes now");
            } else {
                let deleted = self.memory.delete(&key).await;
                deleted.expect("memory does not fail");
            }
        }
    }

    fn rising(&self) -> MutexGuard<'_, Vec<Rising>> {
        self.rising.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects themselves, at once and without a fault.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    fn world(&self) -> Arc<World> {
        self.world
            .upgrade()
            .expect("the world outlives its runtime")
    }

    /// A folder is on one host, and tells ages by a clock that nobody can set. A server's clock is wrong by
    /// anything, differently on each that answers: what it says is shown, and is no age.
    fn judge_age(&self, object: &mut Object) {
        if self.files {
            return;
        }
        let world = self.world();
        let most = world.plan.session.ttl * 4;
        let mut random = world.random();
        let ahead = if random.chance(500) {
            random.between(Duration::ZERO, most)
        } else {
            Duration::ZERO
        };
        object.shown_age = object.shown_age.map(|age| age + ahead);
        object.age = None;
    }

    /// One way through the network.
    async fn travel(&self) {
        let time = {
            let world = self.world();
            let latency = world.plan.latency;
            world.random().between(latency / 2, latency * 3 / 2)
        };
        tokio::time::sleep(time.max(Duration::from_millis(1))).await;
    }

    async fn arrive(&self) {
        self.world().requests.fetch_add(1, Ordering::Relaxed);
        self.travel().await;
    }

    /// A write to the log that was held up is there at last, or comes too late.
    pub(crate) async fn land(&self, key: &Key, value: Bytes) {
        let written = self.memory.put(key, value.clone(), &Expect::Absent).await;
        if written.is_ok() {
            self.wrote(key, &value);
        }
    }

    fn wrote(&self, key: &Key, value: &Bytes) {
        let world = self.world();
        let line = || format!("written: {key} {}", Summary(value));
        if key.as_str().contains("/queue/") {
            world.say("store", &line());
            let verdict = world.ledger().written(key, value);
            world.judge(verdict);
        } else if !key.as_str().contains("/nodes/") {
            world.say("store", &line());
            super::invariants::check_trust(&world);
        }
    }
}

/// Whether it is a place of the log.
pub(crate) fn is_in_log(key: &Key) -> bool {
    key.as_str().contains("/queue/log/")
}

/// The first words of a value.
struct Summary<'a>(&'a Bytes);

impl std::fmt::Display for Summary<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(self.0);
        let mut lines = text.lines();
        let first: String = lines.next().unwrap_or_default().chars().take(160).collect();
        formatter.write_str(&first)?;
        for line in lines.take(3) {
            let line: String = line.chars().take(160).collect();
            write!(formatter, "\n{:>24}{line}", "")?;
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Recorded {
    fn describe(&self) -> Description {
        let mut description = self.memory.describe();
        description.capabilities.hints = self.hints;
        description.capabilities.age = self.files;
        description
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.arrive().await;
        let mut object = self.memory.get(key).await?;
        if let Some(object) = &mut object {
            self.judge_age(object);
        }
        self.travel().await;
        Ok(object)
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.arrive().await;
        let mut change = self.memory.get_if_changed(key, version).await?;
        if let Change::Changed(object) = &mut change {
            self.judge_age(object);
        }
        self.travel().await;
        Ok(change)
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        if is_in_log(key) && held::hold(&self.world(), key, &value) {
            return std::future::pending().await;
        }
        self.arrive().await;
        let before = if self.files {
            self.memory.get(key).await?
        } else {
            None
        };
        let written = self.memory.put(key, value.clone(), expect).await;
        if let Ok(version) = &written {
            self.wrote(key, &value);
            if self.files {
                self.rising().push(Rising {
                    key: key.clone(),
                    version: version.clone(),
                    before: before.map(|object| object.value),
                });
            }
        }
        self.travel().await;
        if let Ok(version) = &written {
            self.rising()
                .retain(|rising| rising.key != *key || rising.version != *version);
        }
        written
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.arrive().await;
        self.world().say("store", &format!("deleted: {key}"));
        let deleted = self.memory.delete(key).await;
        self.travel().await;
        deleted
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.arrive().await;
        let page = self.memory.list(prefix, after).await;
        self.travel().await;
        page
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        if self.hints {
            self.memory.watch(prefix)
        } else {
            None
        }
    }
}

/// A host's way to a store that is a folder, for the production code to keep the log in files.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) store: Arc<Faulty>,
    pub(crate) disk: Arc<Disk>,
}

#[async_trait]
impl Store for Local {
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

    /// Its files are on the disk that all hosts share.
    fn append_folder(&self, prefix: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        Some(Arc::new(Folder::new(self.disk.clone(), prefix)))
    }
}
