//! The folders that objects lie in, and what makes them survive a loss of power.
//!
//! A file is durable only when every folder above it is, and the process that made a folder may have been killed before
//! it synced the one above. So it is not enough for a process to sync what it made: the first write to a folder syncs
//! all folders above it, whichever process made them.
//!
//! A folder that has become empty is removed, so that short-lived folders (a snapshot's, a node's) leave nothing
//! behind. Any process may later create a folder of the same name, so a folder is remembered with what tells it from
//! another.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::super::private;
use crate::Key;

/// Dropping entries costs a few more syncs, and keeps the memory bounded in a store with ever new folders.
const DURABLE_MAX: usize = 10_000;

/// How far below the root an empty folder is removed: `NAMESPACE/nodes/NAME` is, `NAMESPACE/nodes` is not.
const REMOVED_DEPTH_MIN: usize = 3;

#[derive(Debug)]
pub(super) struct Folders {
    root: PathBuf,
    /// Folders whose name, and the names of all folders above, this process has synced.
    durable: Mutex<HashMap<PathBuf, Birth>>,
}

/// Tells a folder from a later one of the same name. Inode numbers are reused, but not within the same nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Birth {
    number: u64,
    /// Absent on file systems that do not keep it: there, no folder is removed.
    at: Option<SystemTime>,
}

impl Birth {
    fn of(folder: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(folder)?;
        Ok(Self {
            number: metadata.ino(),
            at: metadata.created().ok(),
        })
    }
}

impl Folders {
    /// Creates the root if it is missing.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let root = std::path::absolute(root)?;
        make_all(&root)?;
        // A later change of the working folder or of a link must not lead elsewhere.
        let root = root.canonicalize()?;
        if let Some(above) = root.parent() {
            // Another process may have created the root just now. A process without read access to the folder above has
            // created nothing there, so it need not sync it.
            let _ = sync(above);
        }
        Ok(Self {
            root,
            durable: Mutex::default(),
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, key: &Key) -> PathBuf {
        self.root.join(key.as_str())
    }

    /// Creates a folder and those above it, but never the root (if that is gone, so is the store), and never one that
    /// must stay.
    pub(super) fn make(&self, folder: &Path, stays: impl Fn(&Path) -> bool) -> io::Result<()> {
        self.make_below(folder, &stays)
    }

    fn make_below(&self, folder: &Path, stays: &impl Fn(&Path) -> bool) -> io::Result<()> {
        if folder == self.root || stays(folder) {
            return fs::metadata(folder).map(drop);
        }
        let mut made = private::create_folder(folder);
        if let (Err(error), Some(above)) = (&made, folder.parent())
            && error.kind() == io::ErrorKind::NotFound
        {
            self.make_below(above, stays)?;
            made = private::create_folder(folder);
        }
        match made {
            Ok(()) => {
                self.durable().remove(folder);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a folder from which something was deleted, if it is empty now. A writer that is about to use it creates
    /// it again. Folders near the root stay: there are few, and a namespace's folder must never be replaced.
    pub(super) fn remove_if_empty(&self, folder: &Path) {
        let depth = folder
            .strip_prefix(&self.root)
            .map(|it| it.components().count());
        let may_go = depth.is_ok_and(|depth| depth >= REMOVED_DEPTH_MIN)
            && Birth::of(folder).is_ok_and(|birth| birth.at.is_some());
        // The system refuses to remove one that is not empty. If a power loss undoes the removal, only an empty folder
        // is left.
        if may_go && fs::remove_dir(folder).is_ok() {
            self.durable().remove(folder);
        }
    }

    /// Makes every change to the folder that has happened so far durable. One sync, and one more
    /// for each folder above it the first time.
    pub(super) fn sync(&self, folder: &Path) -> io::Result<()> {
        sync(folder)?;
        let mut synced = Vec::new();
        for folder in folder.ancestors() {
            if folder == self.root {
                break;
            }
            // Read after something was put into it, so it cannot be removed before that is deleted.
            let birth = Birth::of(folder)?;
            if self.durable().get(folder) == Some(&birth) {
                break;
            }
            sync(
                folder
                    .parent()
                    .expect("a folder of the store lies below the root"),
            )?;
            synced.push((folder.to_owned(), birth));
        }
        if synced.is_empty() {
            return Ok(());
        }
        let mut durable = self.durable();
        if durable.len() >= DURABLE_MAX {
            durable.clear();
        }
        durable.extend(synced);
        Ok(())
    }

    /// Makes a deletion from the folder durable. Other deletes may have removed the folder meanwhile, and the one above
    /// it: once that is durable, so is this deletion.
    pub(super) fn sync_removal(&self, folder: &Path) -> io::Result<()> {
        for folder in folder.ancestors() {
            match self.sync(folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && folder != self.root => {}
                synced => return synced,
            }
        }
        Ok(())
    }

    /// An entry that is missing only costs a sync, so a poisoned lock does no harm.
    fn durable(&self) -> MutexGuard<'_, HashMap<PathBuf, Birth>> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_all(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let Some(above) = folder.parent() else {
        return Err(io::ErrorKind::NotFound.into());
    };
    make_all(above)?;
    match private::create_folder(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made.and_then(|()| sync(above)),
    }
}

/// Makes durable what is in a file, or which names are in a folder.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_another_process_made_anew_is_synced_again() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (
            Folders::open(root.path()).unwrap(),
            Folders::open(root.path()).unwrap(),
        );
        let folder = one.root().join("space/nodes/a");
        one.make(&folder, |_| false).unwrap();
        one.sync(&folder).unwrap();
        let before = one.durable()[&folder];
        other.remove_if_empty(&folder);
        assert!(!folder.exists());
        other.make(&folder, |_| false).unwrap();
        // It is another folder, so the first one's sync does not count for it.
        assert_ne!(Birth::of(&folder).unwrap(), before);
        one.sync(&folder).unwrap();
        assert_eq!(one.durable()[&folder], Birth::of(&folder).unwrap());
    }
}
