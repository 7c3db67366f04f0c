//! One compare-and-swap contract on the storage people already have.
//!
//! Everything Tenure keeps is a small versioned object under a [`Key`]. [`Store`] is the whole contract, and every
//! engine keeps all of it; [`conformance`] is the contract as a program, and `tenure store check URL` runs it on your
//! own storage before you trust it.
//!
//! ```
//! use tenure_store::{Expect, Key, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure_store::Error> {
//! let store = tenure_store::open("memory:").await?;
//! let key = Key::new("demo/elections/default")?;
//!
//! let first = store.put(&key, "term 1".into(), &Expect::Absent).await?;
//! store.put(&key, "term 2".into(), &Expect::Version(first.clone())).await?;
//!
//! // A process that still holds the old version can change nothing any more.
//! let late = store.put(&key, "term 1, late".into(), &Expect::Version(first)).await;
//! assert!(matches!(late, Err(tenure_store::Error::Conflict { .. })));
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//!
//! - **Atomic.** Of any number of writers that expect the same version, at most one succeeds. A reader sees a whole
//!   value, old or new, even when a writer is killed half way.
//! - **Linearizable.** A read that starts after a write has finished sees that write or a later one.
//! - **Durable.** A write that is done survives a crash of the writer and of the engine, as far as the engine promises
//!   that (the memory engine promises nothing).
//! - **Versions never come back.** A [`Version`] names one write, even if a later write has the same bytes and even if
//!   the object was deleted and created again in between. Object stores whose `ETag` is a hash of the content get a
//!   stamp inside the object to make this so.
//! - **Four outcomes.** A write ends as done, as [`Error::Conflict`], as refused (any other error, nothing was applied)
//!   or as [`Error::Unknown`]. No engine repeats a conditional write on its own: a repeat of a write that was applied,
//!   with its answer lost, would look like a conflict with someone else.
//!
//! # What is not guaranteed
//!
//! - After [`Error::Unknown`] a read that does not show the write proves nothing: the request may still be on its way.
//!   Only a newer version of that key does.
//! - A dropped `put` or `delete` future is an unknown outcome.
//! - [`Hint`]s may be late, duplicated or lost. Polling keeps callers correct; hints only make them faster.
//! - Keys form a tree, as folders do: do not make one key the folder of another (`a` and `a/b`);
//!   engines differ in whether they allow it.
//!
//! # Clocks
//!
//! No clock of one host is compared with that of another, and no age is taken from a clock that can be set.
//! [`Object::age`] is a difference of two readings of one clock of one host, and absent where that cannot be proved:
//! databases and object stores have none unless the URL asks for it with `?age=server-clock`; see [`wrap::ServerAges`]
//! for the risk.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

mod append;
pub mod conformance;
pub mod engine;
mod error;
#[cfg(test)]
mod fuzz;
mod host;
mod key;
#[cfg(feature = "object")]
mod layout;
mod open;
mod outage;
#[cfg(any(feature = "file", feature = "object"))]
mod stamp;
mod urgent;
mod version;
mod watch;
pub mod wrap;

pub use append::{AppendFile, AppendFolder, Operation};
pub use error::{Cause, Error};
pub use host::host_clock;
pub use key::{KEY_BYTES_MAX, Key, Prefix, SEGMENT_BYTES_MAX};
pub use open::{open, open_existing, open_foreign};
pub use outage::Outage;
pub use urgent::urgent;
pub use version::Version;
pub use watch::{Hint, Watch, WatchSender};

/// The largest value a store takes. Larger ones are refused before anything is sent.
pub const VALUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The most entries one call of [`Store::list`] returns.
pub const PAGE_ENTRIES_MAX: usize = 1000;

/// What [`Store::pin`] does if the prefix does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    /// Creates it: this process may be the first.
    Make,
    /// Counts it as gone: another connection of this process has already created it.
    Gone,
}

/// Versioned objects with compare-and-swap writes. See the crate documentation for the guarantees.
///
/// Methods take `&self` and may be called from many tasks at once. A store is cheap to share as
/// `Arc<dyn Store>`; opening a second one for the same URL gives an independent connection.
#[async_trait]
pub trait Store: std::fmt::Debug + Send + Sync + 'static {
    /// Which engine this is, where it keeps its objects, and what it can do beyond the contract.
    fn describe(&self) -> Description;

    /// Reads an object; `None` if there is none. One request.
    async fn get(&self, key: &Key) -> Result<Option<Object>, Error>;

    /// Reads an object only if its version is no longer `version`: the cheap way to poll. One
    /// request, which carries no value while nothing changes.
    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error>;

    /// Writes an object if `expect` holds at that moment, and returns the new version. One request, never repeated by
    /// the engine.
    ///
    /// [`Error::Unknown`] means that the write may have been applied, or may still be: read back and look for your own
    /// write in the value.
    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error>;

    /// Removes an object, whatever its version; a missing one is fine. Only for what is immutable or dead: object
    /// stores have no conditional delete, so deleting what others still write could remove their newest write. To
    /// release something, `put` a value that says it is released.
    async fn delete(&self, key: &Key) -> Result<(), Error>;

    /// Lists the objects under `prefix` in byte order of their keys, starting after the key `after`, at most
    /// [`PAGE_ENTRIES_MAX`] at a time.
    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error>;

    /// Hints that something under `prefix` may have changed, or `None` where the engine has no way to
    /// tell and callers poll. Must be called within a tokio runtime. An engine may need a prefix of at
    /// least two segments.
    fn watch(&self, prefix: &Prefix) -> Option<Watch>;

    /// Files under `prefix` that can be appended to, if the engine has such files beside its objects. Operations on
    /// them are not requests, so they bypass whatever a wrapper does to requests. A wrapper passes this on only if that
    /// does not matter, and documents which it does.
    fn append_folder(&self, _prefix: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        None
    }

    /// Whether the store was replaced by something else, so that every request from now on ends as [`Error::Gone`].
    /// Sends no request. Only a store in files of this host can be replaced.
    fn is_replaced(&self) -> bool {
        false
    }

    /// Tells the engine that this process relies on `prefix`. If that is replaced later, requests end as
    /// [`Error::Gone`], as they do if the whole store is replaced. Only engines whose prefixes are folders can tell.
    /// Sends no request.
    fn pin(&self, _prefix: &Prefix, _missing: IfMissing) {}

    /// How long a writer that can wait should wait before its next write, because of a [ceiling](wrap::throttled) on
    /// requests. Sends no request. A caller that does not ask waits for its turn in the write itself.
    fn pause_before_write(&self) -> Duration {
        Duration::ZERO
    }
}

/// What a [`Store::put`] expects to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// No object at all.
    Absent,
    /// Exactly this version.
    Version(Version),
}

/// An object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The bytes that were written.
    pub value: Bytes,
    /// Names the write that produced this value.
    pub version: Version,
    /// At least how long ago the write of this version was begun; `None` where that cannot be proved. Never more than
    /// the time since [`Store::put`] was called, so a lease cannot look older than it is.
    pub age: Option<Duration>,
    /// How old this version looks by the clock of the system that stored it, which can be set. Only for display: no
    /// decision may depend on it.
    pub shown_age: Option<Duration>,
}

/// The answer of [`Store::get_if_changed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The object still has the given version.
    Unchanged,
    /// Another version is there now.
    Changed(Object),
    /// The object no longer exists.
    Missing,
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The object's key.
    pub key: Key,
    /// Its version when it was listed.
    pub version: Version,
}

/// A part of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// In byte order of the keys.
    pub entries: Vec<Entry>,
    /// Whether there may be more: list again with `after` set to the last key.
    pub more: bool,
}

/// What a store is: for status pages, logs and the conformance suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `memory`, `file`, `s3`, `gcs`, `azure`, `postgres`, `mysql` or `sqlite`.
    pub engine: &'static str,
    /// Where the objects are, without user name, password or key: safe to print.
    pub location: String,
    /// What the engine can do beyond the contract.
    pub capabilities: Capabilities,
}

/// What an engine can do beyond the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// [`Object::age`] is known for what this host has written since it started.
    pub age: bool,
    /// [`Store::watch`] gives hints.
    pub hints: bool,
    /// A write that is done survives the end of every process.
    pub durable: bool,
}

/// Every object under `prefix`, page by page: one request per [`PAGE_ENTRIES_MAX`] entries.
pub async fn list_all(store: &dyn Store, prefix: &Prefix) -> Result<Vec<Entry>, Error> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let page = store
            .list(prefix, entries.last().map(|entry| &entry.key))
            .await?;
        let moved =
            page.entries.last().map(|entry| &entry.key) > entries.last().map(|entry| &entry.key);
        entries.extend(page.entries);
        if !page.more {
            return Ok(entries);
        }
        // A store that claims to have more and never returns it would keep us here for ever.
        if !moved {
            return Err(Error::Corrupt {
                location: store.describe().location,
                what: format!(
                    "the listing of {prefix} says that there is more, but does not continue"
                ),
            });
        }
    }
}

/// Refuses a value over the limit before any request: it is the caller's mistake on every engine.
pub(crate) fn check_value(key: &Key, value: &[u8]) -> Result<(), Error> {
    if value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::Invalid {
        what: format!(
            "the value for {key} has {} bytes; the limit is {VALUE_BYTES_MAX}",
            value.len()
        ),
        hint: "store less per object, or split it over several keys".to_owned(),
    })
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn describe(&self) -> Description {
        (**self).describe()
    }
    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        (**self).get(key).await
    }
    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        (**self).get_if_changed(key, version).await
    }
    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        (**self).put(key, value, expect).await
    }
    async fn delete(&self, key: &Key) -> Result<(), Error> {
        (**self).delete(key).await
    }
    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        (**self).list(prefix, after).await
    }
    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        (**self).watch(prefix)
    }
    fn append_folder(&self, prefix: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        (**self).append_folder(prefix)
    }
    fn is_replaced(&self) -> bool {
        (**self).is_replaced()
    }
    fn pin(&self, prefix: &Prefix, missing: IfMissing) {
        (**self).pin(prefix, missing);
    }

    fn pause_before_write(&self) -> Duration {
        (**self).pause_before_write()
    }
}
