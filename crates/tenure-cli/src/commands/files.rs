//! How many files this process may have open, and how many of them its programs may take; and which errors are a
//! shortage of resources.

use std::fmt;
use std::io;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

/// How many files are reserved for the session and its store: they must not fail because programs took the last file.
/// Where few are allowed, a share of them.
const RESERVE_MAX: u64 = 64;
const RESERVE_PART: u64 = 4;

/// How many files a program needs briefly at its start, and a worker's program while it runs: two descriptors of a
/// socket, three pipes, and one that reports the guard's end.
const PER_START: u64 = 8;
const PER_RUN: u64 = 6;

/// About how many files a node's session and its store have open.
const NODE: u64 = 16;

/// How many files a worker's connections to its servers may take.
const CONNECTIONS: u64 = 8;

/// The limit that this process was started with. Its programs get the same.
static INHERITED: OnceLock<u64> = OnceLock::new();

/// Raises the limit as far as the system allows: many systems allow only 1,024 by default.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    INHERITED.get_or_init(|| limit.current.unwrap_or(u64::MAX));
    // If this fails, the old limit stays, and has to be enough.
    let _ = setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

/// The limit that programs get: some cannot cope with a higher one than usual.
pub(crate) fn inherited() -> u64 {
    *INHERITED.get_or_init(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Lowers the limit to this; never raises it.
pub(crate) fn limit(files: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| files < current) {
        let current = Some(files);
        let _ = setrlimit(
            Resource::Nofile,
            rustix::process::Rlimit { current, ..limit },
        );
    }
}

/// There are too few files for another program.
#[derive(Debug)]
pub(crate) struct NoRoom {
    open: u64,
    most: u64,
    reserve: u64,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            open,
            most,
            reserve,
        } = self;
        write!(
            formatter,
            "{open} of {most} files are open, and {reserve} are reserved for the session: raise the limit \
             (ulimit -Hn, LimitNOFILE)"
        )
    }
}

impl std::error::Error for NoRoom {}

/// Whether another program can be started without taking what the session needs.
pub(crate) fn check_room() -> Result<(), NoRoom> {
    let Some(most) = most() else {
        return Ok(());
    };
    let (open, reserve) = (open(), reserve(most));
    if open + PER_START + reserve <= most {
        Ok(())
    } else {
        Err(NoRoom {
            open,
            most,
            reserve,
        })
    }
}

/// Checks that a node that is about to start will have files for at least one program. With fewer it would be a
/// candidate that can never do the work.
pub(crate) fn check_room_of_node() -> anyhow::Result<()> {
    let Some(most) = most() else {
        return Ok(());
    };
    let needed = open() + NODE + PER_START + reserve(most);
    anyhow::ensure!(
        needed <= most,
        "only {most} files may be open, and a node with one program needs about {needed}: raise the limit (ulimit -Hn, LimitNOFILE)"
    );
    Ok(())
}

/// How many programs of a worker can run at once (at least one), and how many files may be open; `None` if files are
/// not limited.
pub(crate) fn programs_max() -> Option<(u64, u64)> {
    let most = most()?;
    Some((fitting(most, open()), most))
}

fn fitting(most: u64, open: u64) -> u64 {
    let taken = open + reserve(most) + CONNECTIONS + PER_START;
    (most.saturating_sub(taken) / PER_RUN).max(1)
}

/// How many files may be open; `None` if not limited.
pub(crate) fn most() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

fn reserve(most: u64) -> u64 {
    RESERVE_MAX.min(most / RESERVE_PART)
}

/// Where they cannot be counted, a start fails if there are too few.
fn open() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64)
}

/// Whether something failed because files, processes, threads or memory were short: it may work later, or on another
/// host, and the request itself was not wrong.
pub(crate) fn is_shortage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let of_system = cause
            .downcast_ref::<io::Error>()
            .and_then(Errno::from_io_error)
            .or_else(|| cause.downcast_ref::<Errno>().copied());
        cause.is::<NoRoom>() || of_system.is_some_and(is_short)
    })
}

/// The same for a system error.
pub(crate) fn is_short(errno: Errno) -> bool {
    [
        Errno::MFILE,
        Errno::NFILE,
        Errno::AGAIN,
        Errno::NOMEM,
        Errno::NOBUFS,
    ]
    .contains(&errno)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_shortage_is_told_from_a_program_that_cannot_be_started() {
        let no_room = NoRoom {
            open: 43,
            most: 64,
            reserve: 16,
        };
        for short in [
            Err::<(), _>(no_room).context("cannot start"),
            Err(io::Error::from(Errno::AGAIN)).context("cannot start"),
            Err(Errno::MFILE).context("cannot start"),
        ] {
            assert!(is_shortage(&short.unwrap_err()));
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC] {
            let error = Err::<(), _>(io::Error::from(errno)).context("cannot start");
            assert!(!is_shortage(&error.unwrap_err()));
        }
    }

    #[test]
    fn as_many_programs_fit_as_can_be_started() {
        let (most, open) = (1024, 20);
        let fitting = fitting(most, open);
        // The last program is started while all others run.
        let before = open + CONNECTIONS + (fitting - 1) * PER_RUN;
        assert!(before + PER_START + reserve(most) <= most);
        assert!(fitting > 150, "{fitting}");
        assert_eq!(super::fitting(20, 20), 1);
    }
}
