//! The folders of namespaces, which must not be replaced.
//!
//! A namespace's folder can be moved away while the store's own folder stays. A process that went on would create it
//! again, and start everything in it from nothing: another queue, terms that begin at 1 again. So a folder that a
//! process [pins](crate::Store::pin) is created at once if it is missing, and compared from then on, like the store's
//! own folder. Only pinning creates it: a write that finds it missing between its own checks does not.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::engine::identity::Identity;

/// A process usually has one namespace. Every request checks all of them.
const PINNED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Pinned {
    folders: Mutex<Vec<Folder>>,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Whether the folder existed when it was pinned, or should have: without it the namespace is gone.
    must_be: bool,
    /// The first folder that was seen there, held open so that its inode number is not reused.
    seen: Option<(Identity, fs::File)>,
}

impl Pinned {
    /// Adds a folder, which must stay from the moment it exists.
    pub(super) fn add(&self, path: PathBuf, must_be: bool) {
        let mut folders = self.folders();
        if folders.iter().any(|folder| folder.path == path) {
            return;
        }
        if folders.len() >= PINNED_MAX {
            tracing::warn!(folder = %path.display(), "too many namespaces in one process: this one may be replaced unnoticed");
            return;
        }
        let mut folder = Folder {
            path,
            must_be,
            seen: None,
        };
        folder.look();
        folders.push(folder);
    }

    /// Fails if one of them was replaced or is gone.
    pub(super) fn check(&self, doing: &str) -> Result<(), Error> {
        let mut folders = self.folders();
        folders.iter_mut().try_for_each(|folder| {
            folder.look();
            match &folder.seen {
                Some((identity, _)) => identity.check(doing),
                None if folder.must_be => Err(Error::Gone {
                    doing: doing.to_owned(),
                    location: folder.path.display().to_string(),
                }),
                None => Ok(()),
            }
        })
    }

    /// Whether this is one of them.
    pub(super) fn contains(&self, path: &Path) -> bool {
        self.folders().iter().any(|folder| folder.path == path)
    }

    /// Whether one of them was replaced. This also notes new folders, for a process that makes no requests.
    pub(super) fn is_replaced(&self) -> bool {
        let mut folders = self.folders();
        folders.iter_mut().any(|folder| {
            folder.look();
            let seen = folder.seen.as_ref();
            seen.is_some_and(|(identity, _)| identity.is_replaced())
        })
    }

    /// Each entry is always complete, so a poisoned lock is still consistent.
    fn folders(&self) -> MutexGuard<'_, Vec<Folder>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Folder {
    /// Notes the folder, if none was noted so far. It is opened first: if it is replaced in between, the next check
    /// notices.
    fn look(&mut self) {
        if self.seen.is_none()
            && let Ok(held) = fs::File::open(&self.path)
            && let Ok(identity) = Identity::of([&self.path])
        {
            self.seen = Some((identity, held));
        }
    }
}
