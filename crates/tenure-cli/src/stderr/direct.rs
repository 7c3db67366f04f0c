//! Writes directly, waiting only a moment for the reader.
//!
//! Whether a write waits is a property of the open file, which this process shares with all other holders: changing
//! it would affect all of them. So a pipe or a terminal is opened once more, and for a socket each call says it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::time::Timespec;

/// This much fits into a pipe that is reported as writable, if no one else writes to it at the same moment.
const PIECE_BYTES: usize = 4096;

/// Writes text to a file, as much of it as the reader takes within this time.
pub(super) fn write(file: BorrowedFd<'_>, mut text: &[u8], within: Duration) {
    let until = Instant::now() + within;
    let out = Out::of(file);
    while !text.is_empty() {
        match out.write(text) {
            Ok(count) => text = &text[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if out.wait(until) => {}
            // There is nowhere to report this.
            Err(_) => return,
        }
    }
}

enum Out<'a> {
    /// A file on a disk, whose writes do not wait for a reader.
    File(BorrowedFd<'a>),
    /// A pipe or a terminal that was opened once more, so that writes do not wait.
    Own(OwnedFd),
    Socket(BorrowedFd<'a>),
    /// A pipe or a terminal that may not be opened again: the user has changed since.
    Shared(BorrowedFd<'a>),
}

/// If the reader is gone, the write should return an error, not raise a signal. Elsewhere the signal is ignored, as
/// in every Rust program.
#[cfg(target_os = "linux")]
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(not(target_os = "linux"))]
const SEND: SendFlags = SendFlags::DONTWAIT;

impl<'a> Out<'a> {
    fn of(file: BorrowedFd<'a>) -> Self {
        match fstat(file).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Socket) => return Self::Socket(file),
            Ok(FileType::Fifo | FileType::CharacterDevice) => {}
            _ => return Self::File(file),
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty()).map_or(Self::Shared(file), Self::Own)
    }

    /// Writes, and returns how much was written; [`Errno::AGAIN`] if nothing can be written at the moment.
    fn write(&self, text: &[u8]) -> Result<usize, Errno> {
        match self {
            Self::File(file) => rustix::io::write(file, text),
            Self::Own(file) => rustix::io::write(file, text),
            Self::Socket(file) => send(file, text, SEND),
            Self::Shared(_) if !self.wait(Instant::now()) => Err(Errno::AGAIN),
            Self::Shared(file) => rustix::io::write(file, &text[..text.len().min(PIECE_BYTES)]),
        }
    }

    /// Waits until something can be written; false if that does not happen in time.
    fn wait(&self, until: Instant) -> bool {
        let file = match self {
            Self::File(file) | Self::Socket(file) | Self::Shared(file) => *file,
            Self::Own(file) => file.as_fd(),
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(patience) = Timespec::try_from(left) else {
                return false;
            };
            match poll(&mut [PollFd::new(&file, PollFlags::OUT)], Some(&patience)) {
                Ok(ready) => return ready > 0,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::os::unix::net::UnixStream;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);
    /// More than a pipe or a socket holds.
    const MUCH: usize = 4 * 1024 * 1024;

    /// Writes more text than fits, and returns how much a reader that comes too late still finds.
    fn stalled(writer: impl AsFd, mut reader: impl Read) -> usize {
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        let started = Instant::now();
        write(writer.as_fd(), &vec![b'x'; MUCH], SOON);
        assert!(started.elapsed() >= SOON && started.elapsed() < SOON * 100);
        // Other holders of the file still wait for its reader.
        assert_eq!(rustix::fs::fcntl_getfl(&writer).unwrap(), flags);
        drop(writer);
        reader.read_to_end(&mut Vec::new()).unwrap()
    }

    #[test]
    fn nobody_waits_for_a_reader_that_stalls() {
        let (reader, writer) = pipe().unwrap();
        let read = stalled(writer, reader);
        assert!((4096..MUCH).contains(&read), "{read}");
        let (reader, writer) = UnixStream::pair().unwrap();
        let read = stalled(writer, reader);
        assert!((4096..MUCH).contains(&read), "{read}");
    }

    #[test]
    fn a_pipe_that_cannot_be_opened_is_not_waited_for_either() {
        let (_reader, writer) = pipe().unwrap();
        let out = Out::Shared(writer.as_fd());
        let mut written = 0;
        while let Ok(count) = out.write(&[b'x'; 10_000]) {
            written += count;
        }
        assert!(written >= 4096);
        assert!(!out.wait(Instant::now() + SOON));
    }

    #[test]
    fn all_of_it_arrives_where_somebody_reads() {
        let (mut reader, writer) = pipe().unwrap();
        let reading = std::thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            read.len()
        });
        write(writer.as_fd(), &vec![b'x'; MUCH], Duration::from_secs(60));
        drop(writer);
        assert_eq!(reading.join().unwrap(), MUCH);
        let mut file = tempfile::tempfile().unwrap();
        write(file.as_fd(), b"first ", Duration::ZERO);
        write(file.as_fd(), b"second", Duration::ZERO);
        let mut text = String::new();
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first second");
    }
}
