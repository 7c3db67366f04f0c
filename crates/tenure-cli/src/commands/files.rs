//! How many files this process may have open, and how many of them its programs may take.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit, setrlimit};

/// How many files are kept for the session and its store: it must not fail because programs took the last. Where few
/// are allowed at all, it is a part of them.
const RESERVE_MAX: u64 = 64;
const RESERVE_PART: u64 = 4;

/// How many files a program costs while it runs, and for a moment when it is started.
const PER_PROGRAM: u64 = 8;

/// The limit that this process was started with, which its programs get.
static INHERITED: OnceLock<u64> = OnceLock::new();

/// Asks for as many as the system allows: many allow a process no more than 1,024 unless it asks.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    INHERITED.get_or_init(|| limit.current.unwrap_or(u64::MAX));
    // If that fails the old limit stays, and holds what it holds.
    let _ = setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

/// The limit that programs get: some cannot cope with a higher one.
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

/// Whether another program can be started without taking what the session needs.
pub(crate) fn check_room() -> io::Result<()> {
    let Some(most) = getrlimit(Resource::Nofile).current else {
        return Ok(());
    };
    let reserve = RESERVE_MAX.min(most / RESERVE_PART);
    // Where it cannot be counted, the start itself fails if there are too few.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
    if open + PER_PROGRAM + reserve <= most {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{open} of {most} files are open, and {reserve} are reserved for the session: raise the limit \
         (ulimit -Hn, LimitNOFILE)"
        )))
    }
}
