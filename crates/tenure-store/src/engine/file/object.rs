//! One file as an object.
//!
//! A file is never changed once it has its name, only replaced, so everything that is read through one
//! open file belongs to one version.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::lock::fnv1a;
use crate::stamp::{STAMP_BYTES_MAX, Stamp, Written};
use crate::{VALUE_BYTES_MAX, Version};

/// The most bytes to read from a file that Tenure may not have written.
const FILE_BYTES_MAX: u64 = (VALUE_BYTES_MAX + STAMP_BYTES_MAX) as u64;

/// An open file that is an object.
#[derive(Debug)]
pub(super) struct ObjectFile {
    file: fs::File,
    bytes: u64,
    inode: u64,
    changed_nanoseconds: i64,
}

impl ObjectFile {
    /// `None` if there is nothing, or something that is not an object: a folder, a link, a pipe. `InvalidData` if it is
    /// larger than any object.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        // Without NONBLOCK a pipe that someone put there would hold the reader for ever.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match open(path, flags, Mode::empty()) {
            Ok(file) => fs::File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "it has {} bytes, but an object may have at most {FILE_BYTES_MAX}",
                    metadata.len()
                ),
            ));
        }
        Ok(Some(Self {
            file,
            bytes: metadata.len(),
            inode: metadata.ino(),
            changed_nanoseconds: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }))
    }

    /// When the file got its name, on the host's wall clock, in nanoseconds since 1970.
    ///
    /// This is the time of the last change of the file's own record, not of its content: the rename that makes a write
    /// take place sets it, and so does restoring a copy.
    pub(super) fn changed(&self) -> i64 {
        self.changed_nanoseconds
    }

    /// At most how long after a write's beginning its file got its name. This is long for a copy that was restored
    /// manually, so that the copy does not look as old as the original write.
    pub(super) fn delay(&self, written: Written) -> Duration {
        let changed = u64::try_from(self.changed_nanoseconds).unwrap_or_default();
        Duration::from_nanos(changed.saturating_sub(written.wall_nanoseconds))
    }

    /// Reads the stamp alone: the cost does not grow with the value.
    pub(super) fn version(&self) -> io::Result<Version> {
        let bytes = self.bytes.min(STAMP_BYTES_MAX as u64);
        let mut tail = [0; STAMP_BYTES_MAX];
        let tail = &mut tail[..usize::try_from(bytes).map_err(io::Error::other)?];
        self.file.read_exact_at(tail, self.bytes - bytes)?;
        match Stamp::at_end_of(tail) {
            Some((stamp, _)) => Ok(Version::new(stamp.to_hex())),
            None => Ok(self.read()?.1),
        }
    }

    /// Reads the whole object, and when its write was begun.
    pub(super) fn read(&self) -> io::Result<(Bytes, Version, Option<Written>)> {
        let mut stored = vec![0; usize::try_from(self.bytes).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut stored, 0)?;
        let (value, stamp) = Stamp::split(stored.into());
        let version = match stamp {
            Some(stamp) => Version::new(stamp.to_hex()),
            None => self.version_by_hand(&value),
        };
        Ok((value, version, stamp.and_then(Stamp::written)))
    }

    /// The version of a file that was put there manually. A hash of the content alone would repeat when old content
    /// comes back, and times alone are too coarse.
    fn version_by_hand(&self, content: &[u8]) -> Version {
        Version::new(format!(
            "by-hand-{:016x}-{:x}-{:x}",
            fnv1a(content),
            self.inode,
            self.changed_nanoseconds
        ))
    }
}

fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
