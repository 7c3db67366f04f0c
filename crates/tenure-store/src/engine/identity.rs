//! Whether files and folders are still those that were opened.
//!
//! A database file or a folder can be replaced or deleted by name while a process has it open, or a link in its path
//! can be changed. The process would go on with files that nobody else sees: a second leader, and jobs that are
//! acknowledged and lost. So before and after each request, what a path leads to now is compared with what it led to
//! when the store was opened.
//!
//! A database file must also have only one name. SQLite names its write-ahead log after the name by which the file was
//! opened, so under two names (a hard link, or a mount of the file alone) there are two logs, and two leaders.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// What paths led to when the store was opened.
#[derive(Debug)]
pub(super) struct Identity {
    parts: Vec<Part>,
    /// Whether the first of them is a file that must have no other name.
    has_one_name: bool,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Identity {
    /// Notes what the paths lead to now. One that is given twice is looked at once: each check is made before and after
    /// every request.
    pub(super) fn of(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> io::Result<Self> {
        let mut parts: Vec<Part> = Vec::new();
        for path in paths.into_iter().map(Into::into) {
            if parts.iter().all(|part| part.path != path) {
                parts.push(Part::of(path)?);
            }
        }
        Ok(Self {
            parts,
            has_one_name: false,
        })
    }

    /// From now on, also checks that the first of them, a file, has no other name.
    #[cfg(feature = "sqlite")]
    pub(super) fn with_one_name(self) -> Self {
        Self {
            has_one_name: true,
            ..self
        }
    }

    /// Fails if a path leads to something else now, or to nothing, or if the file has another name.
    pub(super) fn check(&self, doing: &str) -> Result<(), Error> {
        match self.missing() {
            Ok(None) => match self.parts.first().filter(|_| self.has_one_name) {
                Some(file) => refuse_other_names(doing, &file.path),
                None => Ok(()),
            },
            Ok(Some(path)) => Err(Error::Gone {
                doing: doing.to_owned(),
                location: path.display().to_string(),
            }),
            Err(error) => Err(Error::unavailable(doing, error)),
        }
    }

    /// Whether a path leads to something else now. If it leads to nothing, the original may still come back: a disk
    /// that is mounted again.
    pub(super) fn is_replaced(&self) -> bool {
        let is_there = self.parts.first().is_some_and(|part| part.path.exists());
        is_there && matches!(self.missing(), Ok(Some(_)))
    }

    /// The first path that leads elsewhere now, or nowhere.
    pub(super) fn missing(&self) -> io::Result<Option<&Path>> {
        for part in &self.parts {
            if !part.is_there()? {
                return Ok(Some(&part.path));
            }
        }
        Ok(None)
    }
}

impl Part {
    fn of(path: PathBuf) -> io::Result<Self> {
        let metadata = std::fs::metadata(&path)?;
        Ok(Self {
            path,
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    fn is_there(&self) -> io::Result<bool> {
        match std::fs::metadata(&self.path) {
            Ok(now) => Ok((now.dev(), now.ino()) == (self.device, self.inode)),
            Err(error) if is_absence(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Refuses a file that has more than one name, or that is mounted on its own and so has another name elsewhere. A
/// missing file is fine.
pub(super) fn refuse_other_names(doing: &str, path: &Path) -> Result<(), Error> {
    let links = match std::fs::metadata(path) {
        Ok(metadata) => metadata.nlink(),
        Err(error) if is_absence(&error) => return Ok(()),
        Err(error) => return Err(Error::unavailable(doing, error)),
    };
    if links > 1 {
        return Err(Error::refused(
            doing,
            format!(
                "delete the other names (find them with: find / -xdev -samefile {}), and use one path everywhere; copy a \
                 database with sqlite3's .backup, not with a link",
                path.display()
            ),
            format!(
                "the file has {links} names (hard links), and under each SQLite would take it for another database"
            ),
        ));
    }
    if is_mounted_alone(path) {
        return Err(Error::refused(
            doing,
            "mount the folder that the file is in, with everything in it, instead of the file",
            "the file is mounted by itself, so the files next to it that end in -wal and -shm are not those that belong \
             to it",
        ));
    }
    Ok(())
}

/// Whether the path is a mount point. Linux reports that from version 5.8 on.
#[cfg(target_os = "linux")]
fn is_mounted_alone(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let looked = statx(CWD, path, AtFlags::empty(), StatxFlags::empty());
    looked.is_ok_and(|looked| {
        let said = looked.stx_attributes & looked.stx_attributes_mask;
        said.contains(StatxAttributes::MOUNT_ROOT)
    })
}

#[cfg(not(target_os = "linux"))]
fn is_mounted_alone(_path: &Path) -> bool {
    false
}

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_given_twice_is_looked_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let identity = Identity::of([folder.path(), folder.path(), &other]).unwrap();
        assert_eq!(identity.parts.len(), 2);
        std::fs::remove_dir(&other).unwrap();
        assert_eq!(identity.missing().unwrap(), Some(other.as_path()));
    }
}
