//! The folders that objects lie in, and what it takes for them to survive a loss of power.
//!
//! A file is durable only when every folder above it is, and the process that made a folder may
//! have been killed before it synced the one above. So it is not enough to sync what one has made
//! oneself: the first write to a folder syncs all folders above it, whichever process made them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::private;
use crate::Key;

/// Forgetting costs a few more syncs, and keeps a store with ever new folders from growing.
const DURABLE_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct Folders {
    root: PathBuf,
    /// Folders whose name, and the names of all folders above, this process has synced.
    durable: Mutex<HashSet<PathBuf>>,
}

impl Folders {
    /// Makes the root if it is missing.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let root = std::path::absolute(root)?;
        make_all(&root)?;
        // A later change of the working folder or of a link must not lead elsewhere.
        let root = root.canonicalize()?;
        if let Some(above) = root.parent() {
            // Another process may have made the root just now. Without the right to read the folder
            // above, this one has not made anything there, and has nothing to answer for.
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

    /// Makes a folder and those above it, but never the root: if that is gone, so is the store. Nor one that must stay.
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

    /// Makes every change to the folder that has happened so far durable. One sync, and one more
    /// for each folder above it the first time.
    pub(super) fn sync(&self, folder: &Path) -> io::Result<()> {
        sync(folder)?;
        let mut synced = Vec::new();
        for folder in folder.ancestors() {
            if folder == self.root || self.durable().contains(folder) {
                break;
            }
            sync(
                folder
                    .parent()
                    .expect("a folder of the store lies below the root"),
            )?;
            synced.push(folder.to_owned());
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

    /// A set that misses an entry costs a sync, so a panic elsewhere has broken nothing.
    fn durable(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
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
