//! Requests to the store as the log needs them: with patience, and with every outcome settled.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::Namespace;
use tenure_store::{AppendFolder, Entry, Expect, Key, Object, Page, Prefix, Store, Version};
use tokio::time::{Instant, sleep, timeout};

use super::{Config, Error};
use crate::Runtime;
use crate::runtime::HOST;

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The store, and where in it the log of a namespace is.
pub(crate) struct Access {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    /// Where the log can be kept in files: only a store that has such files can hold a log of that form.
    pub(crate) files: Option<Arc<dyn AppendFolder>>,
    pub(crate) keys: Keys,
    pub(crate) config: Config,
}

/// Not all that the store holds.
impl fmt::Debug for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store.describe().location;
        write!(formatter, "{}* in {store}", self.keys.queue)
    }
}

/// How [`Access::create`] ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Created {
    /// Our bytes are there.
    Done,
    /// Other bytes are there, and ours will never be.
    Taken(Bytes),
}

impl Access {
    /// On this host.
    pub(crate) fn new(store: Arc<dyn Store>, namespace: &Namespace, config: Config) -> Arc<Self> {
        Self::on(&HOST, store, namespace, config)
    }

    pub(crate) fn on(
        runtime: &Runtime,
        store: Arc<dyn Store>,
        namespace: &Namespace,
        config: Config,
    ) -> Arc<Self> {
        let keys = Keys::new(namespace, &config.folder);
        Arc::new(Self {
            runtime: runtime.clone(),
            files: store.append_folder(&keys.segments()),
            store,
            keys,
            config,
        })
    }

    /// Reads an object, again and again while the store is not available, within the patience.
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let mut pause = Pause::new(self.config.patience);
        loop {
            match self.bounded(key, self.store.get(key)).await {
                Ok(object) => return Ok(object),
                Err(error) => pause.after(error).await?,
            }
        }
    }

    /// Lists everything under a prefix, with the same patience.
    pub(crate) async fn list(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
    ) -> Result<Vec<Entry>, Error> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let last = entries.last().map(|entry| &entry.key).or(after);
            let page = self.page(prefix, last).await?;
            let moved = page.entries.last().map(|entry| &entry.key) > last;
            entries.extend(page.entries);
            if !page.more {
                return Ok(entries);
            }
            // A store that promises more and never gives it would keep us here for ever.
            if !moved {
                return Err(Error::corrupt(
                    prefix,
                    "its listing says that there is more, but does not continue",
                ));
            }
        }
    }

    /// One page of a listing, with the same patience.
    pub(crate) async fn page(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let mut pause = Pause::new(self.config.patience);
        loop {
            match timeout(self.config.request_timeout, self.store.list(prefix, after)).await {
                Ok(Ok(page)) => return Ok(page),
                Ok(Err(error)) => pause.after(error).await?,
                Err(_) => pause.after(unanswered(format!("listing {prefix}"))).await?,
            }
        }
    }

    /// Whether there is an object.
    pub(crate) async fn is_there(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.get(key).await?.is_some())
    }

    /// Creates an object, and settles the outcome.
    ///
    /// While it is certain that nothing was written, the store's error is returned: at once if trying again
    /// cannot help, else when the patience is over. From the first lost answer on, only the object itself
    /// can tell, and this waits until it does: ours, another's, or missing. Missing proves nothing, since the
    /// request may still be on its way, so the same bytes are sent again to the same place. Whichever of
    /// them arrives first, there is one object with one content.
    ///
    /// A conflict is read back too: it may be with our own write, which a proxy or a library has repeated.
    pub(crate) async fn create(&self, key: &Key, value: &Bytes) -> Result<Created, Error> {
        let mut pause = Pause::new(self.config.patience);
        let mut is_uncertain = false;
        loop {
            match self.put(key, value, &Expect::Absent).await {
                Ok(_) => return Ok(Created::Done),
                Err(tenure_store::Error::Conflict { .. }) => {}
                Err(error) if error.is_not_applied() => {
                    if is_uncertain {
                        pause.sleep().await;
                    } else {
                        pause.after(error).await?;
                    }
                    continue;
                }
                Err(_) => is_uncertain = true,
            }
            match self.bounded(key, self.store.get(key)).await {
                Ok(Some(object)) if object.value == *value => return Ok(Created::Done),
                Ok(Some(object)) => return Ok(Created::Taken(object.value)),
                Ok(None) => {}
                // Our own write may be what the conflict was with.
                Err(_) => is_uncertain = true,
            }
            pause.sleep().await;
        }
    }

    /// One write. Silence is a lost answer.
    pub(crate) async fn put(
        &self,
        key: &Key,
        value: &Bytes,
        expect: &Expect,
    ) -> Result<Version, tenure_store::Error> {
        let put = self.store.put(key, value.clone(), expect);
        timeout(self.config.request_timeout, put)
            .await
            .unwrap_or_else(|_| {
                Err(tenure_store::Error::Unknown {
                    key: key.clone(),
                    source: "there was no answer in time".into(),
                })
            })
    }

    /// Deletes what nobody needs any more. Trying once is enough: what stays is deleted another time.
    pub(crate) async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.bounded(key, self.store.delete(key))
            .await
            .map_err(Error::from)
    }

    async fn bounded<T>(
        &self,
        key: &Key,
        request: impl Future<Output = Result<T, tenure_store::Error>>,
    ) -> Result<T, tenure_store::Error> {
        timeout(self.config.request_timeout, request)
            .await
            .unwrap_or_else(|_| Err(unanswered(format!("using {key}"))))
    }
}

fn unanswered(doing: String) -> tenure_store::Error {
    tenure_store::Error::Unavailable {
        doing,
        source: "there was no answer in time".into(),
    }
}

/// Waits longer each time. There is one leader, so nothing has to be spread out.
#[derive(Debug)]
pub(crate) struct Pause {
    until: Instant,
    next: Duration,
}

impl Pause {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            until: Instant::now() + patience,
            next: PAUSE_MIN,
        }
    }

    /// Waits if it is worth while to try again, and gives the error back if it is not.
    pub(crate) async fn after(&mut self, error: tenure_store::Error) -> Result<(), Error> {
        let is_passing = matches!(error, tenure_store::Error::Unavailable { .. });
        if !is_passing || Instant::now() + self.next > self.until {
            return Err(error.into());
        }
        self.sleep().await;
        Ok(())
    }

    pub(crate) async fn sleep(&mut self) {
        sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
    }
}

/// The keys of one queue.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    queue: Prefix,
    begun: Key,
}

const NAMES_FIT: &str = "a namespace, a checked folder and a number fit a key";

impl Keys {
    fn new(namespace: &Namespace, folder: &str) -> Self {
        Self {
            queue: Prefix::new(format!("{namespace}/{folder}")).expect(NAMES_FIT),
            begun: Key::new(format!("{namespace}/logs/{folder}")).expect(NAMES_FIT),
        }
    }

    /// Outside of the queue, so that it is still there when all of the queue is gone.
    pub(crate) fn begun(&self) -> &Key {
        &self.begun
    }

    /// Everything of the queue.
    pub(crate) fn queue(&self) -> &Prefix {
        &self.queue
    }

    pub(crate) fn origin(&self) -> Key {
        self.queue.key("origin").expect(NAMES_FIT)
    }

    pub(crate) fn reached(&self) -> Key {
        self.queue.key("reached").expect(NAMES_FIT)
    }

    pub(crate) fn trial(&self) -> Key {
        self.queue.key("trial").expect(NAMES_FIT)
    }

    pub(crate) fn log(&self) -> Prefix {
        self.queue.join("log").expect(NAMES_FIT)
    }

    pub(crate) fn log_object(&self, seq: u64) -> Key {
        self.queue.key(format!("log/{seq:020}")).expect(NAMES_FIT)
    }

    /// The folder of the log's files, where there are any.
    pub(crate) fn segments(&self) -> Prefix {
        self.queue.join("segments").expect(NAMES_FIT)
    }

    pub(crate) fn snapshots(&self) -> Prefix {
        self.queue.join("snapshot").expect(NAMES_FIT)
    }

    pub(crate) fn part(&self, snapshot: &str, number: u64) -> Key {
        self.queue
            .key(format!("snapshot/{snapshot}/{number:06}"))
            .expect(NAMES_FIT)
    }

    pub(crate) fn manifest(&self, snapshot: &str) -> Key {
        self.queue
            .key(format!("snapshot/{snapshot}/manifest"))
            .expect(NAMES_FIT)
    }
}
