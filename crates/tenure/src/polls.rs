//! Polls of many leases, answered by one listing.
//!
//! A process in a thousand elections has a thousand leases to look at in every heartbeat, and nearly
//! always nothing has changed. A listing shows the versions of a thousand objects in one request, so a poll
//! that would only hear "unchanged" is answered from there; whatever looks changed or missing is read.
//!
//! That is as good as a read of its own: the core counts trust from the moment when it asked for the look,
//! and a listing serves only those who asked before it was started. Each line of it, on whichever page, was
//! read after that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tenure_store::{Entry, Key, PAGE_ENTRIES_MAX, Prefix, Store, Version, list_all};

use crate::requests::{Chain, OUTAGE};

/// How many single reads a page of a listing must save: a listing is a heavier request than they are.
const SAVED_MIN: usize = 10;

/// A listing that several polls wait for.
pub(crate) type Listing = Shared<BoxFuture<'static, Option<Arc<[Entry]>>>>;

/// Listings of one prefix, each started once whoever has asked meanwhile can share it.
#[derive(Debug)]
pub(crate) struct Listings {
    store: Arc<dyn Store>,
    prefix: Prefix,
    /// How long a listing waits for company. Polls are jittered, so they come one by one.
    pause: Duration,
    /// The listing that has not been started yet.
    next: Mutex<Option<Listing>>,
    /// How many pages the last one had.
    pages: AtomicUsize,
}

impl Listings {
    pub(crate) fn new(store: Arc<dyn Store>, prefix: Prefix, pause: Duration) -> Arc<Self> {
        Arc::new(Self {
            store,
            prefix,
            pause,
            next: Mutex::default(),
            pages: AtomicUsize::new(1),
        })
    }

    /// Whether a listing costs less than looking at this many objects one by one.
    pub(crate) fn is_worth(&self, objects: usize) -> bool {
        objects > SAVED_MIN * self.pages.load(Ordering::Relaxed)
    }

    /// A listing that has not been started yet. It is under way once it is polled.
    pub(crate) fn join(self: &Arc<Self>) -> Listing {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.get_or_insert_with(|| list(Arc::downgrade(self)).boxed().shared())
            .clone()
    }

    fn close(&self) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Weak, because the listing that is kept for others to join must not keep its keeper alive.
async fn list(listings: Weak<Listings>) -> Option<Arc<[Entry]>> {
    let pause = listings.upgrade()?.pause;
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    let listings = listings.upgrade()?;
    // Whoever asks from here on gets another one.
    listings.close();
    match list_all(&*listings.store, &listings.prefix).await {
        Ok(entries) => {
            let pages = entries.len().div_ceil(PAGE_ENTRIES_MAX).max(1);
            listings.pages.store(pages, Ordering::Relaxed);
            Some(entries.into())
        }
        Err(error) => {
            let prefix = &listings.prefix;
            OUTAGE.failed(format_args!("listing {prefix}: {}", Chain(&error)));
            None
        }
    }
}

/// Whether the listing shows the object at this version.
pub(crate) fn shows(entries: &[Entry], key: &Key, version: &Version) -> bool {
    entries
        .binary_search_by(|entry| entry.key.cmp(key))
        .is_ok_and(|at| entries[at].version == *version)
}

#[cfg(test)]
mod tests {
    use tenure_store::Expect;
    use tenure_store::engine::memory::Memory;
    use tenure_store::wrap::metered::{Metered, Operation, Outcome};

    use super::*;

    #[tokio::test]
    async fn a_listing_serves_all_who_asked_before_it_and_nobody_later() {
        let store = Arc::new(Metered::new(Arc::new(Memory::new())));
        let lists = || {
            let snapshot = store.meter().snapshot();
            snapshot.count(Operation::List, Outcome::Done)
        };
        let prefix = Prefix::new("a").unwrap();
        let listings = Listings::new(store.clone(), prefix.clone(), Duration::ZERO);
        let key = prefix.key("b").unwrap();
        let (early, too) = (listings.join(), listings.join());
        let version = store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
        assert!(shows(&early.await.unwrap(), &key, &version));
        assert!(shows(&too.await.unwrap(), &key, &version));
        assert_eq!(lists(), 1);

        let late = listings.join();
        let expect = Expect::Version(version.clone());
        let newer = store.put(&key, "2".into(), &expect).await.unwrap();
        let entries = late.await.unwrap();
        assert!(shows(&entries, &key, &newer) && !shows(&entries, &key, &version));
        assert_eq!(lists(), 2);
    }
}
