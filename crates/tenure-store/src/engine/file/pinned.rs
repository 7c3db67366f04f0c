//! The folders of namespaces, which must stay those that they were.
//!
//! A namespace's folder can be moved away while the store's own stays. A process that went on would make it anew, and
//! start everything in it from nothing: another queue, terms that begin with 1 again. So a folder that a process
//! [pins](crate::Store::pin) is made at once if it is missing, and compared from then on, as the store's own is. Nothing but
//! that makes it: a write that finds it missing between its own looks does not.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::engine::identity::Identity;

/// A process has one namespace, as a rule. Each is looked at by every request.
const PINNED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Pinned {
    folders: Mutex<Vec<Folder>>,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// It was there when it was pinned, or should have been: without it the namespace is gone.
    must_be: bool,
    /// What was there first. Held open, so that its number is not given to another.
    seen: Option<(Identity, fs::File)>,
}

impl Pinned {
    /// From when it is there on, this folder must stay.
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

    /// Fails if one of them is another now, or gone.
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

    /// Whether another is where one of them was. A process that only asks this, and makes no request, has seen it too.
    pub(super) fn is_replaced(&self) -> bool {
        let mut folders = self.folders();
        folders.iter_mut().any(|folder| {
            folder.look();
            let seen = folder.seen.as_ref();
            seen.is_some_and(|(identity, _)| identity.is_replaced())
        })
    }

    /// Each entry is whole at all times: a panic elsewhere has broken nothing.
    fn folders(&self) -> MutexGuard<'_, Vec<Folder>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Folder {
    /// Notes what is there, if nothing was so far. Opened first: if it is replaced in between, the next look tells.
    fn look(&mut self) {
        if self.seen.is_none()
            && let Ok(held) = fs::File::open(&self.path)
            && let Ok(identity) = Identity::of([&self.path])
        {
            self.seen = Some((identity, held));
        }
    }
}
