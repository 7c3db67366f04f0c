//! How many connections fit into the files that this process may have open.
//!
//! A connection is a file. If connections could take the last one, the store and the session would run out of files,
//! and strangers could end a term. So there are never more connections than fit beside the files that the server itself
//! needs.

use rustix::process::{Resource, getrlimit};

use crate::connections::SPARE_MAX;

/// How many files are reserved for the store, the session, the log and everything else that the server opens; a share
/// of all files where few are allowed.
const RESERVE_MAX: usize = 128;
const RESERVE_PART: usize = 4;

/// How many clients are turned away at a time, how many new sockets may wait to be admitted, and how many connections
/// to the leader may be idle; fewer where few files are allowed.
const FAREWELLS_MAX: usize = 256;
const ARRIVING_MAX: usize = 64;
const IDLE_MAX: usize = 256;
const PASSING_PART: usize = 8;

/// How many connections of each kind fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// The most connections.
    pub(crate) connections_max: usize,
    /// The most calls that are forwarded to the leader at a time: each takes another connection.
    pub(crate) forwards_max: usize,
    /// The most idle connections to the leader that are kept.
    pub(crate) idle_max: usize,
    /// The most clients that are turned away at a time.
    pub(crate) farewells_max: usize,
    arriving_max: usize,
}

impl Room {
    /// Room for as many connections as wanted, or as fit; at least one.
    pub(crate) fn new(wanted: usize, files: Option<usize>) -> Self {
        let files = files.unwrap_or(usize::MAX);
        let reserve = RESERVE_MAX.min(files / RESERVE_PART);
        let left = files.saturating_sub(reserve + SPARE_MAX);
        let passing = |most: usize| most.min(left / PASSING_PART);
        let [farewells_max, arriving_max, idle_max] =
            [FAREWELLS_MAX, ARRIVING_MAX, IDLE_MAX].map(passing);
        let rest = left - farewells_max - arriving_max - idle_max;
        // A leader forwards nothing; a standby may have to forward every call.
        let connections_max = wanted.min(rest / 4 * 3).max(1);
        let forwards_max = wanted.min(rest.saturating_sub(connections_max)).max(1);
        Self {
            connections_max,
            forwards_max,
            idle_max,
            farewells_max,
            arriving_max,
        }
    }

    /// The most sockets of clients, in any state.
    pub(crate) const fn sockets_max(&self) -> usize {
        let passing = self.farewells_max + self.arriving_max + 1;
        self.connections_max + SPARE_MAX + passing
    }
}

/// How many files this process may have open; `None` if unlimited.
pub(crate) fn most() -> Option<usize> {
    let most = getrlimit(Resource::Nofile).current?;
    Some(usize::try_from(most).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_never_take_what_the_server_needs() {
        for files in (64..70_000).step_by(7) {
            let room = Room::new(10_000, Some(files));
            let taken = room.sockets_max() + room.forwards_max + room.idle_max;
            let left = files.checked_sub(taken);
            assert!(left >= Some(127.min(files / 5)), "{files}: {room:?}");
        }
        for (wanted, files, connections, forwards) in [
            (10_000, None, 10_000, 10_000),
            (10_000, Some(65_536), 10_000, 10_000),
            (10_000, Some(20_000), 10_000, 9_280),
            (10_000, Some(1024), 447, 149),
            (10, Some(1024), 10, 10),
            (10_000, Some(0), 1, 1),
        ] {
            let room = Room::new(wanted, files);
            let got = (room.connections_max, room.forwards_max);
            assert_eq!(got, (connections, forwards), "{files:?}");
        }
    }
}
