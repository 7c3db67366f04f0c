//! Files that are appended to: plain files below the store's folder, beside its objects.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::Inner;
use super::folders::sync;
use crate::append::{AppendFile, AppendFolder, Operation};
use crate::engine::private;
use crate::{Key, Prefix};

/// Opening a pipe that someone put there would wait for its other end for ever. For a regular file the flag makes no
/// difference.
#[expect(clippy::cast_possible_wrap, reason = "the kernel's flags are an int")]
const NEVER_WAIT: i32 = OFlags::NONBLOCK.bits() as i32;

/// The files under one prefix.
#[derive(Debug)]
pub(super) struct Folder {
    store: Arc<Inner>,
    path: PathBuf,
}

#[derive(Debug)]
struct File {
    store: Arc<Inner>,
    file: fs::File,
    path: PathBuf,
}

impl Folder {
    pub(super) fn new(store: Arc<Inner>, prefix: &Prefix) -> Self {
        let path = store
            .folders
            .root()
            .join(prefix.as_str().trim_end_matches('/'));
        Self { store, path }
    }
}

impl AppendFolder for Folder {
    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn make(&self) -> Operation<'_, ()> {
        Operation::now(|| {
            match private::create_folder(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let above = self.path.parent();
            sync(above.expect("it lies below the store's folder"))
        })
    }

    fn names(&self) -> Operation<'_, Vec<String>> {
        Operation::now(|| {
            // Names that are not valid text were not made here.
            fs::read_dir(&self.path)?
                .map(|entry| Ok(entry?.file_name().into_string().ok()))
                .filter_map(Result::transpose)
                .collect()
        })
    }

    fn free_bytes(&self) -> Operation<'_, Option<u64>> {
        Operation::now(|| {
            let disk = rustix::fs::statvfs(&self.path)?;
            Ok(Some(disk.f_bavail.saturating_mul(disk.f_frsize)))
        })
    }

    fn create(&self, name: &str) -> Operation<'_, Box<dyn AppendFile>> {
        Operation::now(|| {
            let path = self.path.join(name);
            // Whatever has this name may be a link to another file of the log, or to any file at all, so it is never
            // written to.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // For this user alone, like everything that the store creates.
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            let store = self.store.clone();
            let file: Box<dyn AppendFile> = Box::new(File { store, file, path });
            Ok(file)
        })
    }

    fn read(&self, name: &str, bytes_max: usize) -> Operation<'_, Vec<u8>> {
        let path = self.path.join(name);
        Operation::now(|| match bytes_max {
            usize::MAX => read_all(&path),
            _ => read_start(open_file(&path)?.0, bytes_max),
        })
    }

    fn remove(&self, name: &str) -> Operation<'_, ()> {
        Operation::now(|| fs::remove_file(self.path.join(name)))
    }

    fn sync(&self) -> Operation<'_, ()> {
        Operation::now(|| sync(&self.path))
    }

    fn sync_file(&self, name: &str) -> Operation<'_, ()> {
        Operation::now(|| sync(&self.path.join(name)))
    }

    fn holds(&self, key: &Key, value: &[u8]) -> Operation<'_, bool> {
        // The stamp after the value need not be read, since no value is a prefix of another.
        Operation::now(|| {
            let file = fs::File::open(self.store.folders.path(key))?;
            Ok(read_start(file, value.len())? == value)
        })
    }
}

impl AppendFile for File {
    fn write_all_at<'a>(&'a self, bytes: &'a [u8], offset: u64) -> Operation<'a, ()> {
        Operation::now(|| self.file.write_all_at(bytes, offset))
    }

    fn set_len(&self, bytes: u64) -> Operation<'_, ()> {
        Operation::now(|| self.file.set_len(bytes))
    }

    fn sync_data(&self) -> Operation<'_, ()> {
        Operation::now(|| self.file.sync_data())
    }

    fn sync_all(&self) -> Operation<'_, ()> {
        Operation::now(|| self.file.sync_all())
    }

    fn is_in_place(&self) -> Operation<'_, bool> {
        Operation::now(|| {
            // The file's path leads through the namespace's folder, so this covers a replaced folder too.
            Ok(self.store.identity.missing()?.is_none() && is_at(&self.file, &self.path)?)
        })
    }
}

fn is_at(file: &fs::File, path: &Path) -> io::Result<bool> {
    let mine = file.metadata()?;
    match fs::metadata(path) {
        Ok(theirs) => Ok((mine.dev(), mine.ino()) == (theirs.dev(), theirs.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_start(file: fs::File, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(bytes_max);
    file.take(bytes_max as u64).read_to_end(&mut start)?;
    Ok(start)
}

fn read_all(path: &Path) -> io::Result<Vec<u8>> {
    let (mut file, bytes) = open_file(path)?;
    let mut all = Vec::with_capacity(usize::try_from(bytes).map_err(io::Error::other)?);
    file.read_to_end(&mut all)?;
    Ok(all)
}

/// Opens a file, and says how large it is. `InvalidData` if it is something else.
fn open_file(path: &Path) -> io::Result<(fs::File, u64)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(NEVER_WAIT)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() {
            "a folder"
        } else {
            "not a file"
        };
        let what = format!("it is {kind}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok((file, metadata.len()))
}
