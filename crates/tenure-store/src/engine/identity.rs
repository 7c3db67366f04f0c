//! Whether files and folders are still those that were opened.
//!
//! A database file or a folder can be replaced or deleted by name while a process has it open, or a link on the way to it
//! can be set to another. The process would go on with what nobody else sees any more: a second leader, and jobs that are
//! acknowledged and lost. So what a path leads to is compared with what it led to, before and after each request.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// What paths led to when the store was opened.
#[derive(Debug)]
pub(super) struct Identity(Vec<Part>);

#[derive(Debug)]
struct Part {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Identity {
    /// Of what is there now.
    pub(super) fn of(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> io::Result<Self> {
        let parts = paths.into_iter().map(|path| Part::of(path.into()));
        parts.collect::<Result<_, _>>().map(Self)
    }

    /// Fails if something else is there now, or nothing.
    pub(super) fn check(&self, doing: &str) -> Result<(), Error> {
        match self.missing() {
            Ok(None) => Ok(()),
            Ok(Some(path)) => Err(Error::Gone {
                doing: doing.to_owned(),
                location: path.display().to_string(),
            }),
            Err(error) => Err(Error::unavailable(doing, error)),
        }
    }

    /// Whether something else is there. Where there is nothing, what was there may come back: a disk that is mounted again.
    pub(super) fn is_replaced(&self) -> bool {
        let is_there = self.0.first().is_some_and(|part| part.path.exists());
        is_there && matches!(self.missing(), Ok(Some(_)))
    }

    /// The first path that leads elsewhere now, or nowhere.
    pub(super) fn missing(&self) -> io::Result<Option<&Path>> {
        for part in &self.0 {
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

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
