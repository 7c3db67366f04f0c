//! Temporary files, and the removal of those whose writer was killed.
//!
//! Every open store has its own folder in `.tenure/tmp` and holds a `flock` on it for as long as it lives. If the lock
//! of a folder can be taken, the folder has no owner any more, whatever its age. A folder whose owner is merely stopped
//! is never touched.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};

use super::super::private;
use crate::stamp::Stamp;

/// How often to try to create a folder. An attempt fails only if a clean-up removes the new folder in the few
/// microseconds before it is locked.
const CLAIM_ATTEMPTS_MAX: usize = 100;

/// The temporary files of one open store.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    /// Holds the lock that shows that the owner is alive. It also keeps the file system from being unmounted under the
    /// store.
    _alive: fs::File,
    next: AtomicU64,
}

/// A file that is complete and durable but is not at its path yet. Removed when dropped, unless it was moved there.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    moved: bool,
}

impl Scratch {
    /// Removes the folders of dead owners and creates one for this store.
    pub(super) fn open(all: &Path) -> io::Result<Self> {
        private::create_folders(all)?;
        for entry in fs::read_dir(all)? {
            // What cannot be removed, because of access rights or because another process is removing it, does no harm.
            let _ = remove_if_dead(&entry?.path());
        }
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            let folder = all.join(uuid::Uuid::new_v4().to_string());
            if let Some(alive) = claim(&folder)? {
                return Ok(Self {
                    folder,
                    _alive: alive,
                    next: AtomicU64::new(0),
                });
            }
        }
        Err(io::Error::other(
            "every folder for temporary files was removed as soon as it was created",
        ))
    }

    /// Writes a value with its stamp and waits until it is on the disk.
    pub(super) fn write(&self, value: &[u8], stamp: Stamp) -> io::Result<Temporary> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(number.to_string());
        let mut file = private::create_file(&path)?;
        // From here on an error drops this, and with it the file.
        let temporary = Temporary { path, moved: false };
        file.write_all(value)?;
        file.write_all(&stamp.to_bytes())?;
        file.sync_all()?;
        Ok(temporary)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Fails if a file is left in it; the next to open the store removes it then.
        let _ = fs::remove_dir(&self.folder);
    }
}

impl Temporary {
    /// Puts the file at `path` unless something is there already.
    pub(super) fn create(&mut self, path: &Path) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            use rustix::io::Errno;
            match renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.moved = true;
                    return Ok(());
                }
                // This file system has no such rename.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A hard link instead. The first name is removed when this is dropped.
        fs::hard_link(&self.path, path)
    }

    /// Puts the file at `path` in place of what is there.
    pub(super) fn replace(&mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.moved = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.moved {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the folder and takes its lock; `None` if a clean-up came between the two.
fn claim(folder: &Path) -> io::Result<Option<fs::File>> {
    private::create_folder(folder)?;
    let alive = match fs::File::open(folder) {
        Ok(alive) => alive,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if flock(&alive, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    // A clean-up holds the lock until the folder is gone, so if one came first, the folder is gone now.
    Ok(folder.exists().then_some(alive))
}

fn remove_if_dead(folder: &Path) -> io::Result<()> {
    let held = fs::File::open(folder)?;
    flock(&held, FlockOperation::NonBlockingLockExclusive)?;
    fs::remove_dir_all(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }

    #[test]
    fn the_dead_are_removed_and_the_living_are_not() {
        let all = tempfile::tempdir().unwrap();
        let dead = all.path().join("dead");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("0"), "half a val").unwrap();

        let living = Scratch::open(all.path()).unwrap();
        let temporary = living.write(b"value", Stamp::new(None)).unwrap();
        assert_eq!(names(all.path()), std::slice::from_ref(&living.folder));

        let second = Scratch::open(all.path()).unwrap();
        assert!(temporary.path.exists(), "taken from a writer that lives");
        drop(temporary);
        drop((living, second));
        assert!(names(all.path()).is_empty(), "left behind by a clean end");
    }

    #[test]
    fn nobody_works_in_a_folder_that_another_has_cleaned_up() {
        let all = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let scratch = Scratch::open(all.path()).unwrap();
                        fs::write(scratch.folder.join("0"), "").unwrap();
                        fs::remove_file(scratch.folder.join("0")).unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_file_appears_only_where_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch::open(&folder.path().join("tmp")).unwrap();
        let path = folder.path().join("object");
        let stamp = Stamp::new(None);
        scratch
            .write(b"first", stamp)
            .unwrap()
            .create(&path)
            .unwrap();
        let late = scratch.write(b"late", stamp).unwrap().create(&path);
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(fs::read(&path).unwrap().starts_with(b"first"));
        assert!(names(&scratch.folder).is_empty(), "a temporary file stayed");
    }
}
