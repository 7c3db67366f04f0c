//! One writer at a time, across threads and processes, for as long as it takes to compare and rename.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;

use super::fault;
use crate::{Error, Key};

/// Keys share this many lock files. A collision costs a wait of microseconds.
const LOCKS: u64 = 64;

/// A holder works for well under a millisecond unless it is stopped or its disk is stuck.
const WAIT_MAX: Duration = Duration::from_secs(5);

const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Held until dropped, or until the process ends in any way.
#[derive(Debug)]
pub(super) struct Lock(OwnedFd);

impl Lock {
    /// Waits for the lock of `key`, but not for ever: its holder may be stopped.
    pub(super) fn acquire(folder: &Path, key: &Key, doing: &str) -> Result<Self, Error> {
        let path = folder.join(format!("{:02x}", number(key)));
        let failed = |error: Errno| fault::not_applied(doing, error.into());
        let started = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            // A flock belongs to the open file. Opening it again each time lets it exclude threads too, and finds the
            // new file if someone has removed the old one.
            let file = open(
                &path,
                OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC,
                // Anyone who can open it can hold it, and block every writer.
                Mode::from_raw_mode(0o600),
            )
            .map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // A lock on a file that was removed does not exclude later writers.
                Ok(()) if is_at(&file, &path).map_err(failed)? => return Ok(Self(file)),
                Ok(()) | Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
            if started.elapsed() >= WAIT_MAX {
                return Err(Error::unavailable(
                    doing,
                    format!("another process has held the lock for {WAIT_MAX:?}: is it stopped?"),
                ));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone would leave the lock to a child that was forked just now, until it calls exec.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Whether the path leads to this very file.
fn is_at(file: &OwnedFd, path: &Path) -> Result<bool, Errno> {
    let held = fstat(file)?;
    match stat(path) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// FNV-1a, and not a hash of the standard library: two builds of this program must agree.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn number(key: &Key) -> u64 {
    fnv1a(key.as_str().as_bytes()) % LOCKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_lock_file_that_is_removed_turns_to_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let key = Key::new("foobar").unwrap();
        let acquire = || Lock::acquire(folder.path(), &key, "testing");
        let path = folder.path().join("28");
        let first = acquire().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let lock = acquire().unwrap();
                (is_at(&lock.0, &path), lock)
            });
            std::fs::remove_file(&path).unwrap();
            // Nobody holds the new file; the waiting one gets it before the old one is free.
            let (is_at_path, lock) = waiting.join().unwrap();
            assert_eq!(is_at_path, Ok(true));
            drop((lock, first));
        });
    }

    #[test]
    fn a_lock_on_a_file_that_is_gone_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("28");
        let flags = OFlags::RDONLY | OFlags::CREATE;
        let file = open(&path, flags, Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(is_at(&file, &path), Ok(true));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(is_at(&file, &path), Ok(false));
        std::fs::write(&path, "").unwrap();
        assert_eq!(is_at(&file, &path), Ok(false));
    }

    #[test]
    fn every_build_takes_the_same_lock_for_a_key() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(number(&Key::new("foobar").unwrap()), 0x28);
    }
}
