//! The disk that the files of the log are on: one place, so that a simulation can make it slow, full, broken and
//! forgetful, and stop a process between any two steps.
//!
//! Everything here blocks its thread. It is `async` for the simulation alone: on a real disk each future is ready
//! when it is first asked. So it is run on a thread that may block, see [`blocking`](crate::task::blocking).

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "__simulation")]
use crate::simulation::{self, disk as simulated};
use crate::task::is_simulated;

/// A file that is open for writing.
#[derive(Debug)]
pub(crate) enum File {
    Real(fs::File),
    #[cfg(feature = "__simulation")]
    Simulated(simulation::File),
}

impl File {
    /// Makes an empty file, or empties the one that is there.
    pub(crate) async fn create(path: &Path) -> io::Result<Self> {
        #[cfg(feature = "__simulation")]
        if let Some(disk) = simulated() {
            return simulation::File::create(disk, path)
                .await
                .map(Self::Simulated);
        }
        // For this user alone, as everything that the file store makes.
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map(Self::Real)
    }

    pub(crate) async fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Real(file) => file.write_all_at(bytes, offset),
            #[cfg(feature = "__simulation")]
            Self::Simulated(file) => file.write(bytes, offset).await,
        }
    }

    pub(crate) async fn set_len(&self, bytes: u64) -> io::Result<()> {
        match self {
            Self::Real(file) => file.set_len(bytes),
            #[cfg(feature = "__simulation")]
            Self::Simulated(file) => file.set_length(bytes).await,
        }
    }

    /// What was written is durable, and so is what it takes to read it.
    pub(crate) async fn sync_data(&self) -> io::Result<()> {
        match self {
            Self::Real(file) => file.sync_data(),
            #[cfg(feature = "__simulation")]
            Self::Simulated(file) => file.sync().await,
        }
    }

    /// Whether this is the file that others find there: not if the folder was replaced or deleted meanwhile.
    pub(crate) async fn is_at(&self, path: &Path) -> io::Result<bool> {
        match self {
            Self::Real(file) => {
                let (mine, theirs) = (file.metadata()?, fs::metadata(path));
                let theirs = match theirs {
                    Ok(theirs) => theirs,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                    Err(error) => return Err(error),
                };
                Ok((mine.dev(), mine.ino()) == (theirs.dev(), theirs.ino()))
            }
            // Nobody moves folders there.
            #[cfg(feature = "__simulation")]
            Self::Simulated(_) => Ok(true),
        }
    }

    pub(crate) async fn sync_all(&self) -> io::Result<()> {
        match self {
            Self::Real(file) => file.sync_all(),
            #[cfg(feature = "__simulation")]
            Self::Simulated(file) => file.sync().await,
        }
    }
}

/// Makes durable what anyone has written to a file, or which names are in a folder.
pub(crate) async fn sync(path: &Path) -> io::Result<()> {
    #[cfg(feature = "__simulation")]
    if let Some(disk) = simulated() {
        return disk.sync_path(path).await;
    }
    fs::File::open(path)?.sync_all()
}

pub(crate) async fn create_dir(path: &Path) -> io::Result<()> {
    #[cfg(feature = "__simulation")]
    if let Some(disk) = simulated() {
        return disk.create_folder(path).await;
    }
    fs::DirBuilder::new().mode(0o700).create(path)
}

pub(crate) async fn remove_file(path: &Path) -> io::Result<()> {
    #[cfg(feature = "__simulation")]
    if let Some(disk) = simulated() {
        return disk.remove(path).await;
    }
    fs::remove_file(path)
}

pub(crate) async fn read(path: &Path) -> io::Result<Vec<u8>> {
    #[cfg(feature = "__simulation")]
    if let Some(disk) = simulated() {
        return disk.read(path, usize::MAX).await;
    }
    fs::read(path)
}

/// What a file begins with, no more than so many bytes.
pub(crate) async fn read_start(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    #[cfg(feature = "__simulation")]
    if let Some(disk) = simulated() {
        return disk.read(path, bytes_max).await;
    }
    let mut start = Vec::with_capacity(bytes_max);
    fs::File::open(path)?
        .take(bytes_max as u64)
        .read_to_end(&mut start)?;
    Ok(start)
}

/// The names in a folder that are text.
pub(crate) async fn names(folder: &Path) -> io::Result<Vec<String>> {
    #[cfg(feature = "__simulation")]
    if let Some(disk) = simulated() {
        return disk.names(folder).await;
    }
    fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().into_string().ok()))
        .filter_map(Result::transpose)
        .collect()
}

/// Waits for a moment.
pub(crate) async fn pause(time: Duration) {
    if is_simulated() {
        tokio::time::sleep(time).await;
    } else {
        std::thread::sleep(time);
    }
}
