//! Whether a file or folder is still the one that was opened.
//!
//! A database file or a folder can be replaced or deleted by name while a process has it open. The process
//! would go on with what nobody else sees any more: a second leader, and jobs that are acknowledged and
//! lost. So what a path leads to is compared with what it led to, before and after each request.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// What a path led to when the store was opened.
#[derive(Debug)]
pub(super) struct Identity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Identity {
    /// Of what is there now.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    /// Fails if something else is there now, or nothing.
    pub(super) fn check(&self, doing: &str) -> Result<(), Error> {
        match std::fs::metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) == (self.device, self.inode) => Ok(()),
            Err(error) if !is_absence(&error) => Err(Error::unavailable(doing, error)),
            _ => Err(Error::Gone {
                doing: doing.to_owned(),
                location: self.path.display().to_string(),
            }),
        }
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
