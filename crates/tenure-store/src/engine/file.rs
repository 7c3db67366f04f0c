//! Objects as files below one local folder, shared by the processes of one host.
//!
//! The object `a/b/c` is the file `DIR/a/b/c`: its value, followed by a stamp of white space. The stamp has the
//! version, and when the object was written by the clock of this host that cannot be set. Keys never start with a dot,
//! so `DIR/.tenure` holds what is not an object: temporary files in `tmp`, lock files in `lock`.
//!
//! # How a write is done
//!
//! 1. The value is written to a temporary file and synced. So far nothing has changed.
//! 2. The file gets its name. To create, by a rename that fails if the name is taken. To replace, by a rename under a
//!    `flock`, after comparing the stamp of the current file under the same lock. This is the moment at which the write
//!    takes place: the kernel shows every process the old file or the new.
//! 3. The folder is synced, and once per folder also those above it. Then the write is done.
//!
//! An error before step 2 is refused or unavailable, and the old object is untouched; after it, every error is unknown.
//! A failed sync is never tried again: Linux reports a lost page once, and a second sync that succeeds proves nothing.
//!
//! Why `flock`: the kernel releases it when its holder is killed, so nothing has to expire. A
//! holder that is only stopped keeps it, and others get [`Error::Unavailable`] after five seconds.
//! When it wakes it still holds the lock, so nobody has changed the object between its compare and
//! its rename.
//!
//! # What is not guaranteed
//!
//! - A reader may see a write a moment before it is durable, so after a loss of power it may have seen
//!   something that is gone. The writer was not told that it was done.
//! - Manual changes to files bypass the locks. A file that was moved in manually is read whole and can be replaced; one
//!   that is edited in place may be read half.
//! - A folder that has become empty is removed by the delete that emptied it, unless it is near the root. A folder that
//!   was emptied in another way stays.
//! - Symbolic links below `DIR` are not objects. `DIR` itself may be one.
//! - Files that are [appended to](Store::append_folder), such as the segments of a queue's log, may show up in listings
//!   like files that were put there manually.
//!
//! # What is assumed
//!
//! A local file system. On NFS and SMB a lock or a rename may hold on one client and not on another, and an answer may
//! be lost, so opening a store there is refused. File systems that may be shared between hosts (FUSE, 9p, Ceph, Lustre
//! and similar ones) get a warning. The folder must stay where it is. If it is moved, replaced or deleted, every
//! request ends as [`Error::Gone`]. The same goes for `.tenure/lock`: two writers with two different lock files do not
//! exclude each other, so a process that uses the old ones must not go on beside one that creates new ones. A
//! namespace's folder that is [pinned](Store::pin) must stay as well: without it, everything in it would start from
//! nothing. Only a write that is between its compare and its rename at that very moment is not stopped; it ends as
//! unknown. A single lock file that is removed is created again, and processes that wait for the old one switch to the
//! new one. Temporary files are not locks: if their folder is removed, the next write creates it again.
//!
//! # Who may use it
//!
//! One user of the host. Folders are created with the mode 0700 and files with 0600, whatever the umask. A folder that
//! belongs to another user, or that others can write to, is refused: they could have changed anything in it, or hold
//! its locks for ever. A folder that others can only read is accepted, with a warning; `.tenure` is closed to them in
//! any case.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;

use self::folders::Folders;
use self::lock::Lock;
use self::object::ObjectFile;
use self::pinned::Pinned;
use self::scratch::{Scratch, Temporary};
use super::clock::Clock;
use super::identity::Identity;
use super::private;
use crate::stamp::{Stamp, Written};
use crate::{
    AppendFolder, Capabilities, Change, Description, Error, Expect, IfMissing, Key, Object, Page,
    Prefix, Store, Version, Watch, check_value,
};

mod append;
mod fault;
mod filesystem;
mod folders;
#[cfg(target_os = "linux")]
mod hints;
mod lock;
mod names;
mod object;
mod pinned;
mod scratch;
mod walk;

/// The folder for what is not an object. No key can name it.
const CONTROL: &str = ".tenure";

/// How often a create tries to make missing folders. Once is enough unless they are removed again meanwhile.
const FOLDER_ATTEMPTS_MAX: usize = 3;

/// How many names below a folder to look at for stores, level by level, and how many stores to name.
const BELOW_LOOKED_AT_MAX: usize = 10_000;
const BELOW_MAX: usize = 5;

/// A store in a folder. See the module's documentation for how it works.
#[derive(Debug)]
pub struct File {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folders: Folders,
    /// Created by the first write, so that a store that is only read creates nothing.
    scratch: Mutex<Option<Arc<Scratch>>>,
    locks: PathBuf,
    /// Identifies the folder by the given path and by the path without links, and the folder of locks.
    identity: Identity,
    /// Those folders, held open. Otherwise the inode number of a removed folder could be reused, and the two could not
    /// be told apart.
    _held: Vec<fs::File>,
    pinned: Pinned,
    /// Absent where the host has no clock that cannot be set.
    clock: Option<Clock>,
}

impl File {
    /// Opens the store in `folder`, and creates it if it is missing. Removes what killed writers have left in
    /// `.tenure/tmp`.
    ///
    /// Refused on a network file system, without write access, inside another store's folder or around one, and where
    /// other users could have changed something.
    pub async fn open(folder: &Path) -> Result<Self, Error> {
        Self::open_or_make(folder, true).await
    }

    /// Opens the store in `folder`, and creates nothing. Refused where there is no store.
    pub async fn open_existing(folder: &Path) -> Result<Self, Error> {
        Self::open_or_make(folder, false).await
    }

    async fn open_or_make(folder: &Path, makes: bool) -> Result<Self, Error> {
        let folder = folder.to_owned();
        let inner = blocking(move || Inner::open(&folder, makes)).await?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Each operation is one piece of blocking work. It runs to its end even if the future is dropped.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        blocking(move || {
            inner.check("using the file store")?;
            work(&inner)
        })
        .await
    }
}

#[async_trait]
impl Store for File {
    fn describe(&self) -> Description {
        Description {
            engine: "file",
            location: format!("file:{}", self.inner.folders.root().display()),
            capabilities: Capabilities {
                age: self.inner.clock.is_some(),
                hints: cfg!(target_os = "linux"),
                durable: true,
            },
        }
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        let key = key.clone();
        self.run(move |inner| {
            let Some(file) = inner.open_object(&key)? else {
                return Ok(None);
            };
            inner.read(&key, &file).map(Some)
        })
        .await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        let (key, version) = (key.clone(), version.clone());
        self.run(move |inner| {
            // An open file never changes, even if its name leads to another one by now, so its stamp and its value
            // belong together.
            let Some(file) = inner.open_object(&key)? else {
                return Ok(Change::Missing);
            };
            if inner.version_of(&key, &file)? == version {
                return Ok(Change::Unchanged);
            }
            inner.read(&key, &file).map(Change::Changed)
        })
        .await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        check_value(key, &value)?;
        let (key, expect) = (key.clone(), expect.clone());
        self.run(move |inner| match expect {
            Expect::Absent => inner.create(&key, &value),
            Expect::Version(version) => inner.replace(&key, &value, &version),
        })
        .await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let key = key.clone();
        self.run(move |inner| inner.delete(&key)).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let (prefix, after) = (prefix.clone(), after.cloned());
        self.run(move |inner| walk::page(inner.folders.root(), &prefix, after.as_ref()))
            .await
    }

    #[cfg(target_os = "linux")]
    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        hints::watch(self.inner.folders.root(), prefix)
    }

    #[cfg(not(target_os = "linux"))]
    fn watch(&self, _prefix: &Prefix) -> Option<Watch> {
        None
    }

    fn append_folder(&self, prefix: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        Some(Arc::new(append::Folder::new(self.inner.clone(), prefix)))
    }

    fn is_replaced(&self) -> bool {
        self.inner.identity.is_replaced() || self.inner.pinned.is_replaced()
    }

    fn pin(&self, prefix: &Prefix, missing: IfMissing) {
        let path = prefix.as_str().trim_end_matches('/');
        let folder = self.inner.folders.root().join(path);
        // Created now, so that it is this process's own from the start: one that appears later may be another's. If
        // that fails, the first request reports why.
        let must_be = match missing {
            IfMissing::Make => self.inner.folders.make(&folder, |_| false).is_ok(),
            IfMissing::Gone => true,
        };
        self.inner.pinned.add(folder, must_be);
    }
}

impl Inner {
    fn open(folder: &Path, makes: bool) -> Result<Self, Error> {
        let doing = format!("opening the store in {}", folder.display());
        let broken = |error| fault::not_applied(&doing, error);
        let is_store = is_store(folder).map_err(broken)?;
        let below = if is_store {
            Vec::new()
        } else {
            stores_below(folder)
        };
        let below = below.join(", ");
        if !makes && !is_store {
            return Err(if !below.is_empty() {
                Error::no_store_but(doing, &format!("there is a store in {below}"))
            } else if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
                // This may be a copy without the hidden folder. Its objects are not lost.
                let here = folder.display();
                let hint = format!(
                    "check the store's URL; if {here} is a copy of a store, copy its {CONTROL} as well, or let tenure \
                     serve --store file:{here} create it"
                );
                let cause =
                    format!("the folder is there, but is no store: it has no {CONTROL}/lock");
                Error::refused(doing, hint, cause)
            } else {
                Error::no_store(doing)
            });
        }
        if !below.is_empty() {
            // Those could no longer be opened: each would be inside this one.
            return Err(Error::refused(
                doing,
                "use that store, or choose another folder",
                format!("there is a store inside it, in {below}"),
            ));
        }
        let given = std::path::absolute(folder).map_err(broken)?;
        if !is_store {
            refuse_odd_place(&doing, &given)?;
        }
        let folders = Folders::open(&given).map_err(broken)?;
        private::check(&doing, folders.root())?;
        refuse_inside_another_store(&doing, folders.root())?;
        match filesystem::kind_of(folders.root()).map_err(broken)? {
            filesystem::Kind::Network(name) => {
                return Err(Error::refused(
                    doing,
                    "use a folder on a local disk, or PostgreSQL, MySQL or an object store",
                    format!(
                        "{name} does not keep locks and renames consistent between its clients"
                    ),
                ));
            }
            filesystem::Kind::Shared(name) => tracing::warn!(
                folder = %folders.root().display(),
                "the folder is on {name}, which other hosts may share: the store is safe only if all of \
                 its processes run on this host; elsewhere use PostgreSQL, MySQL or an object store"
            ),
            filesystem::Kind::Local | filesystem::Kind::Kernel(_) | filesystem::Kind::Other => {}
        }
        let control = folders.root().join(CONTROL);
        let locks = control.join("lock");
        if makes {
            private::create_folders(&locks).map_err(broken)?;
            // Older versions left it open, and anyone who can open a lock file can hold the lock.
            private::tighten(&control).map_err(broken)?;
        }
        let inner = Self {
            scratch: Mutex::new(None),
            _held: [folders.root(), &locks]
                .into_iter()
                .map(fs::File::open)
                .collect::<Result<_, _>>()
                .map_err(broken)?,
            identity: Identity::of([given.as_path(), folders.root(), &locks]).map_err(broken)?,
            pinned: Pinned::default(),
            clock: Clock::start(),
            folders,
            locks,
        };
        if makes {
            // Opened now, so that a folder without write access is noticed, and the leftovers of others are removed.
            inner.scratch().map_err(broken)?;
        }
        Ok(inner)
    }

    fn scratch(&self) -> io::Result<Arc<Scratch>> {
        let mut scratch = self.lock_scratch();
        if let Some(scratch) = &*scratch {
            return Ok(scratch.clone());
        }
        let new = Arc::new(Scratch::open(
            &self.folders.root().join(CONTROL).join("tmp"),
        )?);
        *scratch = Some(new.clone());
        Ok(new)
    }

    fn lock_scratch(&self) -> MutexGuard<'_, Option<Arc<Scratch>>> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A temporary file with the value and its stamp.
    fn write_temporary(&self, doing: &str, value: &[u8], stamp: Stamp) -> Result<Temporary, Error> {
        let broken = |error| fault::not_applied(doing, error);
        let scratch = self.scratch().map_err(broken)?;
        match scratch.write(value, stamp) {
            // Someone has removed the folder for temporary files. Create it again, unless the whole store is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.check(doing)?;
                self.lock_scratch()
                    .take_if(|current| Arc::ptr_eq(current, &scratch));
                let written = self.scratch().and_then(|new| new.write(value, stamp));
                written.map_err(broken)
            }
            written => written.map_err(broken),
        }
    }

    /// Fails if the store, or a namespace in it that must stay, was replaced or is gone.
    fn check(&self, doing: &str) -> Result<(), Error> {
        self.identity.check(doing)?;
        self.pinned.check(doing)
    }

    /// Fails if the store was replaced during a write. Whether the write is lost is then unknown.
    fn still_here(&self, key: &Key) -> Result<(), Error> {
        let checked = self.check("writing");
        checked.map_err(|error| Error::unknown(key, error))
    }

    fn create(&self, key: &Key, value: &[u8]) -> Result<Version, Error> {
        let doing = format!("creating {key}");
        let path = self.folders.path(key);
        // A create that has lost already need not wait for the disk.
        match fs::symlink_metadata(&path) {
            Ok(present) => return Err(occupied(key, &doing, &present)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fault::not_applied(&doing, error)),
        }
        let stamp = self.stamp();
        let mut temporary = self.write_temporary(&doing, value, stamp)?;
        // The folder is nearly always there, so it is created only if it turns out to be missing.
        for attempt in 0.. {
            match temporary.create(&path) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(match fs::symlink_metadata(&path) {
                        Ok(present) => occupied(key, &doing, &present),
                        Err(_) => Error::conflict(key),
                    });
                }
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && attempt < FOLDER_ATTEMPTS_MAX =>
                {
                    // Never create the folder of a namespace: it was there, so it was moved away a moment ago.
                    let made = self
                        .folders
                        .make(folder_of(&path), |it| self.pinned.contains(it));
                    if let Err(error) = made {
                        self.check(&doing)?;
                        return Err(fault::not_applied(&doing, error));
                    }
                }
                Err(error) => return Err(fault::maybe_applied(key, &doing, error)),
            }
        }
        self.sync(key, &path)?;
        Ok(Version::new(stamp.to_hex()))
    }

    fn replace(&self, key: &Key, value: &[u8], expected: &Version) -> Result<Version, Error> {
        let doing = format!("replacing {key}");
        // A version that is gone never comes back, so a mismatch is final even without the lock. The loser of a race
        // need not wait for the disk.
        self.expect_version(key, expected)?;
        let stamp = self.stamp();
        let path = self.folders.path(key);
        let mut temporary = self.write_temporary(&doing, value, stamp)?;
        let lock = Lock::acquire(&self.locks, key, &doing)?;
        self.expect_version(key, expected)?;
        temporary
            .replace(&path)
            .map_err(|error| fault::maybe_applied(key, &doing, error))?;
        // The folder is synced without the lock. Another writer may build on a rename that is not
        // durable yet, but it syncs the same folder before it is done, and that makes both durable.
        drop(lock);
        self.sync(key, &path)?;
        Ok(Version::new(stamp.to_hex()))
    }

    fn delete(&self, key: &Key) -> Result<(), Error> {
        let doing = format!("deleting {key}");
        let path = self.folders.path(key);
        {
            // The lock is needed so that a replace finds the file that it has compared.
            let _lock = Lock::acquire(&self.locks, key, &doing)?;
            use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
            match fs::remove_file(&path).map_err(|error| (error.kind(), error)) {
                Ok(()) => {}
                // Someone else may have removed it and not synced the folder yet.
                Err((NotFound, _)) if folder_of(&path).is_dir() => {}
                Err((NotFound | NotADirectory | IsADirectory, _)) => return Ok(()),
                Err((_, error)) => return Err(fault::maybe_applied(key, &doing, error)),
            }
        }
        let folder = folder_of(&path);
        self.folders
            .sync_removal(folder)
            .map_err(|error| Error::unknown(key, error))?;
        self.folders.remove_if_empty(folder);
        self.still_here(key)
    }

    /// Makes the last change to the folder of `path` durable. The change has already been applied, so an error is
    /// unknown.
    fn sync(&self, key: &Key, path: &Path) -> Result<(), Error> {
        self.folders
            .sync(folder_of(path))
            .map_err(|error| Error::unknown(key, error))?;
        self.still_here(key)
    }

    fn expect_version(&self, key: &Key, expected: &Version) -> Result<(), Error> {
        match self.open_object(key)? {
            Some(file) if self.version_of(key, &file)? == *expected => Ok(()),
            _ => Err(Error::conflict(key)),
        }
    }

    fn open_object(&self, key: &Key) -> Result<Option<ObjectFile>, Error> {
        ObjectFile::open(&self.folders.path(key)).map_err(|error| reading(key, error))
    }

    fn version_of(&self, key: &Key, file: &ObjectFile) -> Result<Version, Error> {
        file.version().map_err(|error| reading(key, error))
    }

    fn read(&self, key: &Key, file: &ObjectFile) -> Result<Object, Error> {
        let (value, version, written) = file.read().map_err(|error| reading(key, error))?;
        let age = written.and_then(|written| {
            let since = self.clock?.age(Some(written.reading))?;
            Some(since.saturating_sub(file.delay(written)))
        });
        let shown_age = wall_nanoseconds().checked_sub_signed(file.changed());
        Ok(Object {
            value,
            version,
            age,
            shown_age: shown_age.map(Duration::from_nanos),
        })
    }

    /// A stamp that no other write has.
    fn stamp(&self) -> Stamp {
        let reading = self.clock.and_then(Clock::read);
        Stamp::new(reading.map(|reading| Written {
            reading,
            wall_nanoseconds: wall_nanoseconds(),
        }))
    }
}

/// Nanoseconds since 1970 on the host's wall clock.
fn wall_nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// The error of a create whose name is taken. If it is taken by a folder, a conflict would mislead: the caller would
/// find no object, create it again, and never get anywhere.
fn occupied(key: &Key, doing: &str, present: &fs::Metadata) -> Error {
    if present.is_file() {
        return Error::conflict(key);
    }
    fault::not_applied(doing, io::ErrorKind::IsADirectory.into())
}

fn reading(key: &Key, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::InvalidData {
        return Error::Corrupt {
            location: key.to_string(),
            what: error.to_string(),
        };
    }
    fault::not_applied(&format!("reading {key}"), error)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().expect("an object lies below the root")
}

/// Refuses a store inside another. The same file would have a lock file in each of the stores, and writers of the two
/// would not exclude each other.
fn refuse_inside_another_store(doing: &str, root: &Path) -> Result<(), Error> {
    for outer in root.ancestors().skip(1) {
        if is_store(outer).unwrap_or_default() {
            return Err(Error::refused(
                doing,
                "open the outer folder and use a prefix, or choose another folder",
                format!("it is inside the store in {}", outer.display()),
            ));
        }
    }
    Ok(())
}

/// Refuses a file, or one of the kernel's own folders. The system's errors for these would not say what is wrong.
fn refuse_odd_place(doing: &str, given: &Path) -> Result<(), Error> {
    let Some(there) = given.ancestors().find(|path| path.exists()) else {
        return Ok(());
    };
    let why = if let Ok(filesystem::Kind::Kernel(name)) = filesystem::kind_of(there) {
        format!(
            "{} is a {name} file system, which keeps no files",
            there.display()
        )
    } else if there.is_dir() {
        return Ok(());
    } else {
        format!("{} is not a folder", there.display())
    };
    let hint = "name a folder on a disk; if it does not exist, it is created";
    Err(Error::refused(doing, hint, why))
}

/// Whether there is a store in the folder. An error does not mean that there is none.
fn is_store(folder: &Path) -> io::Result<bool> {
    use io::ErrorKind::{NotADirectory, NotFound};
    match fs::metadata(folder.join(CONTROL).join("lock")) {
        Ok(found) => Ok(found.is_dir()),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Some of the stores in the folder, however deep. The search is short, and goes level by level so that a large tree
/// does not hide a store near the top. What cannot be read is skipped. A store that is missed here is noticed when it
/// is opened next, see [`refuse_inside_another_store`].
fn stores_below(folder: &Path) -> Vec<String> {
    let mut stores = Vec::new();
    let mut folders = VecDeque::from([folder.to_owned()]);
    let mut looked_at = 0;
    while let Some(folder) = folders.pop_front() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > BELOW_LOOKED_AT_MAX || stores.len() >= BELOW_MAX {
                return stores;
            }
            // Links are not followed.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            if is_store(&path).unwrap_or_default() {
                stores.push(path.display().to_string());
            } else {
                folders.push_back(path);
            }
        }
    }
    stores.sort();
    stores
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    // This panics if no thread is free and none can be started.
    let spawn = std::panic::AssertUnwindSafe(|| tokio::task::spawn_blocking(work));
    let Ok(spawned) = std::panic::catch_unwind(spawn) else {
        return Err(Error::unavailable(
            "using the file store",
            "the system lets this process start no more threads",
        ));
    };
    match spawned.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Blocking work that has started is never cancelled, so this has not started.
        Err(error) => Err(Error::unavailable("using the file store", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The moment between the check before a write and the write itself, which no test of whole requests can hit.
    #[tokio::test]
    async fn a_pinned_folder_that_goes_in_the_middle_of_a_write_is_not_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = File::open(folder.path()).await.unwrap();
        store.pin(&Prefix::new("pinned").unwrap(), IfMissing::Make);
        let key = |name: &str| Key::new(name).unwrap();
        store.inner.create(&key("pinned/below/a"), b"1").unwrap();
        let (pinned, aside) = (folder.path().join("pinned"), folder.path().join("aside"));
        fs::rename(&pinned, &aside).unwrap();
        for name in ["pinned/a", "pinned/below/b", "pinned/new/c"] {
            let error = store.inner.create(&key(name), b"1").unwrap_err();
            assert!(matches!(error, Error::Gone { .. }), "{error:?}");
        }
        assert!(!pinned.exists(), "it was made again");
        fs::rename(&aside, &pinned).unwrap();
        store.inner.create(&key("pinned/new/c"), b"1").unwrap();
    }
}
